//! Locked memory: how much of it programs may have, by trying and by reading.

use std::io::ErrorKind;
use std::num::NonZeroUsize;

use nix::errno::Errno;

use super::processes::runtimes;
use super::{Context, Finding, Unable};

/// How much the check locks: more than the 64 KiB of old systems, less than the 8 MiB of new ones.
const TRIED: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

/// Locks a small region. Reading the limit is not enough: in a user namespace of an old kernel
/// it reads unlimited and locking fails all the same.
pub fn locking(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let live = context.live()?;
    let tried = size(TRIED.get() as u64);
    let (limit, outcome) = (live.memlock(), live.lock(TRIED));
    let finding = match (limit, outcome) {
        (Ok((soft, _)), Ok(())) if soft < TRIED.get() as u64 => Finding::ok(format!(
            "locking {tried} works here in spite of a limit of {}: CAP_IPC_LOCK",
            size(soft)
        )),
        (Ok((soft, _)), Ok(())) => {
            Finding::ok(format!("locking {tried} works here; the limit is {}", size(soft)))
        }
        (Ok((soft, _)), Err(error)) if soft >= TRIED.get() as u64 => Finding::fail(
            format!(
                "limit reads {} but locking {tried} failed ({:?}); kernel accounting in a user \
                 namespace",
                size(soft),
                error
            ),
            "run containers outside of a user namespace on this kernel, or take a newer kernel",
        ),
        (Ok((soft, hard)), Err(_)) => Finding::fail(
            format!("memlock {}: ibv_create_cq / ibv_reg_mr will fail", size(soft)),
            format!(
                "in a container, ask for devices with {}; in a shell, `ulimit -l {}`; for a \
                 service, LimitMEMLOCK=infinity in its unit",
                "devices.rdma-ctk.io",
                if hard == u64::MAX { "unlimited".to_owned() } else { (hard / 1024).to_string() }
            ),
        ),
        (Err(error), outcome) => Finding::warn(
            format!(
                "the limit cannot be read ({}); locking {tried} {}",
                error.desc(),
                outcome.map_or_else(Errno::desc, |()| "works")
            ),
            "run doctor on the node itself, not under a sandbox that forbids getrlimit",
        ),
    };
    Ok(vec![finding])
}

/// What containers that ask for nothing inherit, and whether the runtime can give more.
pub fn of_runtime(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let processes = match runtimes(context.roots) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Unable::Read { path: context.roots.proc.clone(), error });
        }
        processes => processes.unwrap_or_default(),
    };
    if processes.is_empty() {
        return Err(Unable::Absent("no container runtime is running"));
    }
    Ok(processes
        .iter()
        .map(|process| {
            let who = format!("{} (pid {})", process.name, process.pid);
            match (process.limits.memlock, process.limits.ceiling) {
                (None, _) => Finding::warn(
                    format!("the limits of {who} cannot be read"),
                    "run doctor as root",
                ),
                (Some(u64::MAX), _) => Finding::ok(format!(
                    "{who} has no memlock limit: containers that do not ask have none either"
                )),
                (Some(soft), None) => Finding::ok(format!(
                    "{who} has {} of memlock, for containers that do not ask; it can give more to \
                     those that do",
                    size(soft)
                )),
                (Some(_), Some(hard)) => Finding::warn(
                    format!(
                        "{who} cannot raise limits (no CAP_SYS_RESOURCE in the initial user \
                         namespace): containers have {} of memlock at most",
                        size(hard)
                    ),
                    "start it with a higher limit (LimitMEMLOCK=infinity in its unit)",
                ),
            }
        })
        .collect())
}

/// Bytes as people say them: `64 KiB`, `unlimited`.
pub fn size(bytes: u64) -> String {
    if bytes == u64::MAX {
        return "unlimited".to_owned();
    }
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::{Level, Live};
    use super::*;
    use crate::daemon::records::Records;
    use crate::inventory::Node;
    use crate::roots::Roots;

    struct Fake {
        limit: (u64, u64),
        most: u64,
    }

    impl Live for Fake {
        fn memlock(&self) -> Result<(u64, u64), Errno> {
            Ok(self.limit)
        }
        fn lock(&self, bytes: NonZeroUsize) -> Result<(), Errno> {
            if bytes.get() as u64 > self.most { Err(Errno::ENOMEM) } else { Ok(()) }
        }
        fn open(&self, _: &Path) -> Result<(), Errno> {
            Err(Errno::ENOENT)
        }
        fn version(&self, _: &str) -> Option<String> {
            None
        }
        fn metrics(&self, _: std::net::SocketAddr) -> Option<String> {
            None
        }
    }

    fn nowhere(root: &Path) -> (Roots, Node, Records) {
        (Roots::below(root), Node::default(), Records::default())
    }

    fn try_locking(limit: (u64, u64), most: u64) -> Finding {
        let (roots, node, records) = nowhere(Path::new("/nowhere"));
        let fake = Fake { limit, most };
        let context = Context { roots: &roots, node: &node, records: &records, live: Some(&fake) };
        locking(&context).unwrap().remove(0)
    }

    #[test]
    fn c06_a_limit_that_reads_unlimited_is_tried() {
        let finding = try_locking((u64::MAX, u64::MAX), 65_536);
        assert_eq!(finding.level, Level::Fail);
        assert_eq!(
            finding.sentence,
            "limit reads unlimited but locking 1 MiB failed (ENOMEM); kernel \
             accounting in a user namespace"
        );
        assert_eq!(try_locking((u64::MAX, u64::MAX), u64::MAX).level, Level::Ok);
    }

    #[test]
    fn c02_a_small_limit_is_named_with_what_will_fail() {
        let finding = try_locking((65_536, 65_536), 65_536);
        assert_eq!(finding.level, Level::Fail);
        assert_eq!(finding.sentence, "memlock 64 KiB: ibv_create_cq / ibv_reg_mr will fail");
        assert!(finding.fix.unwrap().contains("ulimit -l 64"));
    }

    #[test]
    fn a_capability_that_lifts_the_limit_is_told() {
        let finding = try_locking((65_536, 65_536), u64::MAX);
        assert_eq!(finding.level, Level::Ok);
        assert!(finding.sentence.contains("CAP_IPC_LOCK"), "{finding:?}");
    }

    #[test]
    fn a_fixture_has_no_memory_to_lock() {
        let (roots, node, records) = nowhere(Path::new("/nowhere"));
        let context = Context { roots: &roots, node: &node, records: &records, live: None };
        assert!(matches!(locking(&context), Err(Unable::NotLive)));
    }

    #[test]
    fn the_runtime_is_judged_by_what_it_can_give() {
        for (limits, set, level, text) in [
            ("8388608 8388608", "1ffffffffff", Level::Ok, "8 MiB"),
            ("unlimited unlimited", "1ffffffffff", Level::Ok, "no memlock limit"),
            ("65536 65536", "a80425fb", Level::Warn, "cannot raise limits"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let process = folder.path().join("proc/812");
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("comm"), "containerd\n").unwrap();
            fs::write(process.join("limits"), format!("Max locked memory {limits} bytes\n"))
                .unwrap();
            fs::write(process.join("status"), format!("CapEff:\t{set}\n")).unwrap();
            fs::write(process.join("uid_map"), "0 0 4294967295\n").unwrap();
            let (roots, node, records) = nowhere(folder.path());
            let context = Context { roots: &roots, node: &node, records: &records, live: None };
            let findings = of_runtime(&context).unwrap();
            assert_eq!(findings[0].level, level, "{findings:?}");
            assert!(findings[0].sentence.contains(text), "{findings:?}");
        }
    }

    #[test]
    fn sizes_are_said_in_the_largest_unit_that_is_exact() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (65_536, "64 KiB"),
            (65_537, "65537 bytes"),
            (8 << 20, "8 MiB"),
            (68_719_476_736, "64 GiB"),
            (u64::MAX, "unlimited"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
