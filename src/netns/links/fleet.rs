//! All adapters that are away, and what becomes of them: one hand that moves them, each in turn.

use std::collections::BTreeMap;

use super::{Entry, Fault, Goal, Journal, Kernel, Whereabouts, resume, run};

/// The adapters that are away, with what moves them and where it is written down.
pub struct Fleet {
    entries: BTreeMap<String, Entry>,
    /// Adapters with an entry of another boot that could not be removed yet.
    stale: Vec<String>,
    kernel: Box<dyn Kernel>,
    journal: Box<dyn Journal>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// What has become of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is back, with all that belongs to it.
    Back {
        /// Which.
        hca: String,
        /// The pod that had it.
        pod: String,
    },
    /// It does not come back, for another reason than before.
    Stuck {
        /// Which.
        hca: String,
        /// The pod that had it.
        pod: String,
        /// Why, as a sentence without its end.
        reason: String,
    },
}

impl Fleet {
    /// Takes over what the journal holds. What was away before a reboot is at home.
    pub fn new(
        boot: &str,
        found: Vec<Entry>,
        kernel: Box<dyn Kernel>,
        mut journal: Box<dyn Journal>,
    ) -> Self {
        let mut entries = BTreeMap::new();
        let mut stale = Vec::new();
        for mut entry in found {
            if resume(&mut entry, boot) {
                entries.insert(entry.hca.clone(), entry);
            } else if journal.remove(&entry.hca).is_err() {
                stale.push(entry.hca);
            }
        }
        Self { entries, stale, kernel, journal }
    }

    /// The adapters that are away, by name, each with the pod that has it.
    pub fn owners(&self) -> BTreeMap<String, String> {
        let words = |entry: &Entry| match entry.goal {
            Goal::Inside => format!("it already belongs to pod {}", entry.pod),
            Goal::Home => {
                let stuck = entry.stuck.as_ref();
                let stuck = stuck.map(|why| format!(" ({why})")).unwrap_or_default();
                format!("it is on its way back from pod {}{stuck}", entry.pod)
            }
        };
        self.entries.values().map(|entry| (entry.hca.clone(), words(entry))).collect()
    }

    /// The adapters of a sandbox, and whether all of them are where they should be: in the pod.
    pub fn of(&self, sandbox: &str) -> (Vec<String>, bool) {
        let own = || self.entries.values().filter(|entry| entry.sandbox == sandbox);
        (own().map(|entry| entry.hca.clone()).collect(), own().all(Entry::is_inside))
    }

    /// How many are away, and how many of them do not come back.
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.values().filter(|entry| entry.stuck.is_some()).count())
    }

    /// Whether nothing is left to do before something happens.
    pub fn is_quiet(&self) -> bool {
        self.entries.values().all(Entry::is_inside)
    }

    /// Moves adapters into a pod, all or none.
    ///
    /// # Errors
    /// Why not, as a sentence without its end; what had been moved is on its way back.
    pub fn attach(&mut self, wanted: Vec<Entry>) -> Result<(), String> {
        for entry in &wanted {
            if let Some(words) = self.owners().get(&entry.hca) {
                return Err(format!("{}: {words}", entry.hca));
            }
        }
        let sandbox = wanted.first().map(|entry| entry.sandbox.clone()).unwrap_or_default();
        for mut entry in wanted {
            let done = run(&mut entry, &mut *self.kernel, &mut *self.journal);
            self.entries.insert(entry.hca.clone(), entry);
            if let Err(fault) = done {
                self.call_home(&sandbox);
                self.tend();
                return Err(fault.to_string());
            }
        }
        Ok(())
    }

    /// The adapters of a sandbox are to come back.
    pub fn call_home(&mut self, sandbox: &str) {
        self.call_home_if(|entry| entry.sandbox == sandbox);
    }

    /// The adapters of all sandboxes but these are to come back.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.call_home_if(|entry| !is_there(&entry.sandbox));
    }

    fn call_home_if(&mut self, meant: impl Fn(&Entry) -> bool) {
        for entry in self.entries.values_mut().filter(|entry| meant(entry)) {
            if entry.goal == Goal::Inside {
                entry.call_home();
                // Without it a daemon that starts now takes it for the pod's, until the runtime
                // does not tell of the pod any more.
                let _ = self.journal.write(entry);
            }
        }
    }

    /// Brings back what is to come back, as far as that goes, and looks whether what should be in a
    /// pod is there.
    pub fn tend(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let (entries, journal) = (&self.entries, &mut self.journal);
        // One that is away again has an entry of this boot by now.
        self.stale.retain(|hca| !entries.contains_key(hca) && journal.remove(hca).is_err());
        let names: Vec<String> = self.entries.keys().cloned().collect();
        for name in names {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            if entry.is_inside()
                && self.kernel.sight(entry).is_ok_and(|sight| {
                    // The namespace ended without a word from the runtime, or somebody took it back.
                    !sight.namespace
                        || sight.rdma == Whereabouts::Home
                        || (entry.netdev.is_some() && sight.netdev == Whereabouts::Home)
                })
            {
                entry.call_home();
            }
            if entry.goal == Goal::Inside {
                continue;
            }
            let pod = entry.pod.clone();
            match run(entry, &mut *self.kernel, &mut *self.journal) {
                Ok(()) => {
                    self.entries.remove(&name);
                    events.push(Event::Back { hca: name, pod });
                }
                Err(fault) => {
                    let mut reason = fault.to_string();
                    if matches!(fault, Fault::Unseen { .. }) {
                        reason = format!("{reason}; {}", self.kernel.holders(entry));
                    }
                    if entry.stuck.as_ref() != Some(&reason) {
                        entry.stuck = Some(reason.clone());
                        // Only to be shown; what matters was written before.
                        let _ = self.journal.write(entry);
                        events.push(Event::Stuck { hca: name, pod, reason });
                    }
                }
            }
        }
        events
    }
}
