//! SMC-R, read when metrics are asked for: how connections go in the network namespaces of
//! containers that have it. The kernel counts for each namespace, and forgets with it; here the
//! counts add up, so that they never fall.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tracing::debug;

use crate::netns::Namespace;
use crate::roots::Roots;
use crate::smc::diag::Mode;
use crate::smc::reason;
use crate::smc::status::{self, Seen};

/// A process in the namespace of each container that has SMC-R.
pub type Processes = dyn Fn() -> Vec<u32> + Send + Sync;

/// Reads the namespaces at each scrape.
pub struct SmcCollector {
    roots: Roots,
    processes: Box<Processes>,
    ledger: Mutex<Ledger>,
}

impl fmt::Debug for SmcCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmcCollector").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl SmcCollector {
    /// Reads the namespaces of these processes.
    pub fn new(roots: Roots, processes: Box<Processes>) -> Self {
        Self { roots, processes, ledger: Mutex::default() }
    }

    /// What is in each namespace, by its inode.
    fn look(&self) -> HashMap<u64, Seen> {
        let mut seen = HashMap::new();
        let mut tried = HashSet::new();
        for pid in (self.processes)() {
            let path = self.roots.proc.join(format!("{pid}/ns/net"));
            let Ok(inode) = fs::metadata(&path).map(|file| file.ino()) else { continue };
            if !tried.insert(inode) {
                continue;
            }
            match self.visit(&PathBuf::from(format!("/proc/{pid}/ns/net"))) {
                Ok(found) => {
                    seen.insert(inode, found);
                }
                // It has ended meanwhile, mostly.
                Err(problem) => debug!("SMC-R of a namespace is not counted: {problem}"),
            }
        }
        seen
    }

    fn visit(&self, path: &Path) -> Result<Seen, String> {
        let namespace = Namespace::open(&self.roots, path).map_err(|error| error.to_string())?;
        let seen = if namespace.is_current(&self.roots) {
            status::look()
        } else {
            namespace.run(status::look).map_err(|error| error.to_string())?
        };
        seen.map_err(|error| error.to_string())
    }
}

/// Counts that the kernel keeps for a namespace, by name and label.
type Counts = BTreeMap<(&'static str, &'static str), u64>;

/// Name and label of the bytes that were received and sent.
const RECEIVED: (&str, &str) = ("bytes", "receive");
const SENT: (&str, &str) = ("bytes", "transmit");
const FALLBACK: &str = "fallback";

/// Counts over all namespaces that there have been.
#[derive(Debug, Default)]
struct Ledger {
    last: HashMap<u64, Counts>,
    total: Counts,
}

impl Ledger {
    /// Adds what has come since it was last looked.
    fn take(&mut self, seen: &HashMap<u64, Seen>) {
        for (inode, seen) in seen {
            let now = counts(seen);
            let last = self.last.get(inode);
            for (key, count) in &now {
                let before = last.and_then(|last| last.get(key)).copied().unwrap_or(0);
                // Less than before: another namespace with the number of one that has gone.
                let more = count.checked_sub(before).unwrap_or(*count);
                *self.total.entry(*key).or_default() += more;
            }
            self.last.insert(*inode, now);
        }
        self.last.retain(|inode, _| seen.contains_key(inode));
    }
}

fn counts(seen: &Seen) -> Counts {
    let mut counts = Counts::from([(RECEIVED, seen.stats.received), (SENT, seen.stats.sent)]);
    for fallen in &seen.fallen {
        *counts.entry((FALLBACK, reason::word(fallen.code))).or_default() += fallen.count;
    }
    counts
}

impl Collector for SmcCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let seen = self.look();
        let total = {
            let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            ledger.take(&seen);
            ledger.total.clone()
        };
        let mut metric = encoder.encode_descriptor(
            "rdma_ctk_smc_fallback",
            "Connections of namespaces with SMC-R that fell back to TCP, by reason",
            None,
            MetricType::Counter,
        )?;
        for ((_, label), count) in total.iter().filter(|((name, _), _)| *name == FALLBACK) {
            metric
                .encode_family(&[("reason", *label)])?
                .encode_counter::<NoLabelSet, u64, u64>(count, None)?;
        }
        let mut metric = encoder.encode_descriptor(
            "rdma_ctk_smc_bytes",
            "Bytes of namespaces with SMC-R that went over it",
            None,
            MetricType::Counter,
        )?;
        for ((_, label), count) in total.iter().filter(|((name, _), _)| *name != FALLBACK) {
            metric
                .encode_family(&[("direction", *label)])?
                .encode_counter::<NoLabelSet, u64, u64>(count, None)?;
        }
        let mut metric = encoder.encode_descriptor(
            "rdma_ctk_smc_connections",
            "SMC sockets that are connected, in namespaces with SMC-R",
            None,
            MetricType::Gauge,
        )?;
        for mode in [Mode::SmcR, Mode::Tcp] {
            let sockets = seen.values().flat_map(|seen| &seen.sockets);
            let count = sockets.filter(|one| one.is_connection() && one.mode == mode).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            metric.encode_family(&[("mode", mode.name())])?.encode_gauge(&count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smc::kernel::{Fallen, Stats};

    fn seen(received: u64, fallen: &[(u32, u64)]) -> Seen {
        let fallen = fallen.iter();
        Seen {
            stats: Stats { received, ..Stats::default() },
            fallen: fallen.map(|&(code, count)| Fallen { server: false, code, count }).collect(),
            ..Seen::default()
        }
    }

    #[test]
    fn c96_fallbacks_are_counted_by_reason_and_never_fall() {
        let mut ledger = Ledger::default();
        let reason = (FALLBACK, "no_rdma_device");
        let total = |ledger: &Ledger, key| ledger.total.get(&key).copied().unwrap_or(0);
        ledger.take(&HashMap::from([(1, seen(10, &[(0x0303_0002, 1)]))]));
        assert_eq!((total(&ledger, reason), total(&ledger, RECEIVED)), (1, 10));
        // The same again, a second namespace, another reason.
        let two = HashMap::from([
            (1, seen(15, &[(0x0303_0002, 1), (0x0301_0000, 4)])),
            (2, seen(7, &[(0x0303_0002, 3)])),
        ]);
        ledger.take(&two);
        assert_eq!((total(&ledger, reason), total(&ledger, RECEIVED)), (4, 22));
        assert_eq!(total(&ledger, (FALLBACK, "peer_without_smc")), 4);
        // Both have gone, and the first one's number comes again.
        ledger.take(&HashMap::new());
        ledger.take(&HashMap::from([(1, seen(2, &[]))]));
        assert_eq!((total(&ledger, reason), total(&ledger, RECEIVED)), (4, 24));
    }
}
