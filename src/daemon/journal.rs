//! The hand that writes records, and tells the log of grants: off the event loop, one after the
//! other, in the order in which they were handed over, and a moment later, since what was decided
//! within a call of the runtime is to be answered first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc, oneshot};
use tracing::{error, info, warn};

use super::ids::Ids;
use super::records::{DaemonState, PodName, PodRecord, Record, RecordError, Store, Verdict};

/// Entries written by one trip to a blocking thread, at most.
const BATCH: usize = 256;
/// How much later. Containers come in bursts, and so are written with one waking of a thread.
const LATER: Duration = Duration::from_millis(100);
/// Mishaps on record of one pod.
const MISHAPS: usize = 8;
/// Times of files are those of the last tick, not of the clock.
const CLOCK: Duration = Duration::from_secs(1);

/// Where records are handed over; clones feed the same hand.
#[derive(Debug, Clone)]
pub struct Journal {
    sender: mpsc::UnboundedSender<Entry>,
    hurry: Arc<Notify>,
    store: Store,
}

#[derive(Debug)]
enum Entry {
    Container(Box<Record>),
    RemoveContainer(String),
    Pod(Box<PodRecord>),
    Matched(String),
    Mishap {
        pod: PodName,
        at: u64,
        sentence: String,
    },
    RemovePod(String),
    Daemon(Box<DaemonState>),
    /// Removes what belongs to no container or pod of these.
    Retain {
        containers: Ids,
        pods: Ids,
        at: SystemTime,
    },
    Done(oneshot::Sender<()>),
}

impl Journal {
    /// A journal into `store`. To be called within a tokio runtime, on which it writes.
    pub fn new(store: Store) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let hurry = Arc::new(Notify::new());
        tokio::spawn(write(store.clone(), receiver, Arc::clone(&hurry)));
        Self { sender, hurry, store }
    }

    /// Where it writes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes what was decided for a container.
    pub fn container(&self, record: Record) {
        self.hand_over(Entry::Container(Box::new(record)));
    }

    /// Removes a container's record and files.
    pub fn remove_container(&self, id: &str) {
        self.hand_over(Entry::RemoveContainer(id.to_owned()));
    }

    /// Writes which annotations of a pod are left over.
    pub fn unmatched(&self, pod: PodName, at: u64, unmatched: Vec<String>) {
        let record = PodRecord { pod, at, unmatched, mishaps: Vec::new() };
        self.hand_over(Entry::Pod(Box::new(record)));
    }

    /// None of a pod's annotations is left over after all.
    pub fn matched(&self, sandbox: &str) {
        self.hand_over(Entry::Matched(sandbox.to_owned()));
    }

    /// Writes what went wrong with a call about a pod.
    pub fn mishap(&self, pod: PodName, at: u64, sentence: String) {
        self.hand_over(Entry::Mishap { pod, at, sentence });
    }

    /// Removes a pod's record.
    pub fn remove_pod(&self, sandbox: &str) {
        self.hand_over(Entry::RemovePod(sandbox.to_owned()));
    }

    /// Writes who serves.
    pub fn daemon(&self, state: DaemonState) {
        self.hand_over(Entry::Daemon(Box::new(state)));
    }

    /// Removes what belongs to no container or pod of these: they went while nobody was told.
    pub fn retain(&self, containers: Ids, pods: Ids) {
        self.hand_over(Entry::Retain { containers, pods, at: SystemTime::now() });
    }

    /// Waits until everything handed over so far is written.
    pub async fn written(&self) {
        let (sender, receiver) = oneshot::channel();
        self.hand_over(Entry::Done(sender));
        self.hurry.notify_one();
        // An error is the end of the runtime, after which nothing is written.
        let _ = receiver.await;
    }

    fn hand_over(&self, entry: Entry) {
        // The hand lives as long as the runtime does.
        let _ = self.sender.send(entry);
    }
}

async fn write(store: Store, mut receiver: mpsc::UnboundedReceiver<Entry>, hurry: Arc<Notify>) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, BATCH).await > 0 {
        if batch.len() < BATCH {
            tokio::select! {
                () = tokio::time::sleep(LATER) => {}
                () = hurry.notified() => {}
            }
        }
        while batch.len() < BATCH
            && let Ok(entry) = receiver.try_recv()
        {
            batch.push(entry);
        }
        let (store, entries) = (store.clone(), std::mem::take(&mut batch));
        let done = tokio::task::spawn_blocking(move || {
            for entry in entries {
                if let Err(problem) = put(&store, entry) {
                    error!("a record is lost: {problem}");
                }
            }
        });
        if let Err(problem) = done.await {
            error!("records are lost: {problem}");
        }
    }
}

fn put(store: &Store, entry: Entry) -> Result<(), RecordError> {
    match entry {
        Entry::Container(record) => {
            tell(&record);
            store.write(&record)
        }
        Entry::RemoveContainer(id) => store.remove(&id),
        Entry::Pod(mut record) => {
            let before = store.read_pod(&record.pod.sandbox)?;
            record.mishaps = before.map(|record| record.mishaps).unwrap_or_default();
            store.write_pod(&record)
        }
        Entry::Matched(sandbox) => match store.read_pod(&sandbox)? {
            Some(record) if !record.mishaps.is_empty() => {
                store.write_pod(&PodRecord { unmatched: Vec::new(), ..record })
            }
            _ => store.remove_pod(&sandbox),
        },
        Entry::Mishap { pod, at, sentence } => {
            let before = store.read_pod(&pod.sandbox)?;
            let (unmatched, mut mishaps) =
                before.map(|record| (record.unmatched, record.mishaps)).unwrap_or_default();
            mishaps.push(sentence);
            let too_many = mishaps.len().saturating_sub(MISHAPS);
            mishaps.drain(..too_many);
            store.write_pod(&PodRecord { pod, at, unmatched, mishaps })
        }
        Entry::RemovePod(sandbox) => store.remove_pod(&sandbox),
        Entry::Daemon(state) => store.write_daemon(&state),
        Entry::Retain { containers, pods, at } => {
            let mut there = store.identifiers();
            // Files are written before a container's creation is answered, not by this hand: those
            // of a container that came meanwhile must stay.
            let before = at - CLOCK;
            there.files.retain(|id| store.files_made(id).is_none_or(|made| made < before));
            let gone = |ids: Vec<String>, kept: &Ids| {
                ids.into_iter().filter(|id| !kept.contains(id)).collect::<Vec<_>>()
            };
            for id in gone([there.containers, there.files].concat(), &containers) {
                store.remove(&id)?;
            }
            gone(there.pods, &pods).iter().try_for_each(|sandbox| store.remove_pod(sandbox))
        }
        Entry::Done(sender) => {
            // Whoever waited may have gone.
            let _ = sender.send(());
            Ok(())
        }
    }
}

/// Tells the log of a grant.
fn tell(record: &Record) {
    let Verdict::Granted { grant } = &record.verdict else { return };
    let (pod, container) = (&record.pod, &record.name);
    let adapters: Vec<&str> = grant.adapters.iter().map(|adapter| adapter.name.as_str()).collect();
    info!(
        %pod, container, ?adapters,
        memlock = grant.memlock.map(|limit| limit.bytes),
        cpus = grant.cpus.as_ref().map(tracing::field::display),
        "granted"
    );
    for warning in &grant.warnings {
        warn!(%pod, container, "{warning}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::records::read_all;
    use crate::grant::GrantedFile;
    use crate::roots::Roots;

    fn record(id: &str, sandbox: &str) -> Record {
        Record {
            id: id.into(),
            name: "worker".into(),
            pod: PodName { sandbox: sandbox.into(), ..PodName::default() },
            runtime: String::new(),
            at: 0,
            verdict: Verdict::Refused { sentence: id.into() },
        }
    }

    #[tokio::test]
    async fn what_is_handed_over_is_written_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let store = Store::new(&roots);
        store.prepare().unwrap();
        let journal = Journal::new(store);
        for n in 0..200 {
            journal.container(record(&format!("c{n:03}"), "box"));
        }
        for n in 10..200 {
            journal.remove_container(&format!("c{n:03}"));
        }
        journal.container(record("../escape", "box"));
        journal.container(record("last", "box"));
        journal.written().await;
        let all = read_all(&roots).containers;
        assert_eq!(all.len(), 11);
        assert_eq!(all[10].id, "last");
    }

    #[tokio::test]
    async fn what_went_wrong_with_a_pod_stays_beside_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let store = Store::new(&roots);
        store.prepare().unwrap();
        let journal = Journal::new(store);
        let pod = PodName { sandbox: "box".into(), ..PodName::default() };
        for n in 0..20 {
            journal.mishap(pod.clone(), n, format!("mishap {n}"));
        }
        journal.unmatched(pod.clone(), 20, vec!["k".into()]);
        journal.mishap(pod.clone(), 21, "the last".into());
        journal.written().await;
        let [record] = &read_all(&roots).pods[..] else { panic!("one pod") };
        assert_eq!((record.at, record.unmatched.len(), record.mishaps.len()), (21, 1, MISHAPS));
        assert_eq!(record.mishaps.last().unwrap(), "the last");
        journal.matched("box");
        journal.written().await;
        let [record] = &read_all(&roots).pods[..] else { panic!("one pod") };
        assert_eq!((record.unmatched.len(), record.mishaps.len()), (0, MISHAPS));
        journal.unmatched(PodName { sandbox: "other".into(), ..pod }, 22, vec!["k".into()]);
        journal.matched("other");
        journal.remove_pod("box");
        journal.written().await;
        assert_eq!(read_all(&roots).pods, []);
    }

    #[tokio::test]
    async fn what_nobody_owns_any_more_goes() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let store = Store::new(&roots);
        store.prepare().unwrap();
        let journal = Journal::new(store);
        let file = GrantedFile { path: "/etc/nccl.conf".into(), content: "A=1\n".into() };
        for id in ["kept", "gone"] {
            journal.store().write_file(id, &file).unwrap();
            journal.container(record(id, "box"));
            let pod = PodName { sandbox: id.into(), ..PodName::default() };
            journal.unmatched(pod, 0, Vec::new());
        }
        journal.store().write_file("old", &file).unwrap();
        let old = std::fs::File::open(roots.run.join("rdma-ctk/files/old")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        let mut kept = Ids::default();
        kept.insert("kept");
        journal.retain(kept.clone(), kept);
        journal.store().write_file("new", &file).unwrap();
        journal.written().await;
        let mut there = journal.store().identifiers();
        there.files.sort();
        assert_eq!(there.containers, ["kept"]);
        assert_eq!(there.pods, ["kept"]);
        assert_eq!(there.files, ["kept", "new"]);
    }
}
