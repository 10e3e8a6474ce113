//! What the runtime's own process may lock and raise: containers inherit its limit of locked
//! memory, and it can raise theirs only as far as it is allowed to.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::roots::Roots;

/// What the runtime's own process may lock and raise; containers inherit the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeLimits {
    /// Its soft limit of locked memory in bytes (`u64::MAX` is none); `None`: unknown.
    pub memlock: Option<u64>,
    /// The limit to which it may raise a container's: `None` is any.
    pub ceiling: Option<u64>,
    /// Its hard limit of locked memory, likewise.
    pub hard: Option<u64>,
}

/// `CAP_SYS_RESOURCE` (`linux/capability.h`), with which limits may be raised above the hard one.
const CAP_SYS_RESOURCE: u32 = 24;

/// The limits of that process; unknown as far as they cannot be read.
pub fn of_process(roots: &Roots, pid: u32) -> RuntimeLimits {
    let folder = roots.proc.join(pid.to_string());
    read(&folder).unwrap_or_else(|error| {
        tracing::debug!("the runtime's limits are unknown: {}: {error}", folder.display());
        RuntimeLimits::default()
    })
}

/// Whether that process is in a user namespace of its own; one that cannot be looked at is not.
pub fn in_user_namespace(roots: &Roots, pid: u32) -> bool {
    let map = text(&roots.proc.join(pid.to_string()).join("uid_map"));
    map.is_ok_and(|map| !is_initial(&map))
}

fn read(folder: &Path) -> io::Result<RuntimeLimits> {
    let Some((soft, hard)) = memlock(&text(&folder.join("limits"))?) else {
        return Ok(RuntimeLimits::default());
    };
    let status = text(&folder.join("status"))?;
    let map = text(&folder.join("uid_map"))?;
    let unbounded = may_raise(&status) && is_initial(&map);
    let ceiling = (!unbounded).then_some(hard);
    Ok(RuntimeLimits { memlock: Some(soft), ceiling, hard: Some(hard) })
}

/// The text of a file whose length is not known before: with room for it from the beginning it is
/// read in two calls, not in ten.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(4096);
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Soft and hard limit of locked memory from the text of `/proc/PID/limits`.
pub fn memlock(limits: &str) -> Option<(u64, u64)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((words.next()??, words.next()??))
}

/// Whether the process has the capability in its own user namespace.
fn may_raise(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> CAP_SYS_RESOURCE & 1 == 1)
}

/// Whether a `uid_map` is that of the initial user namespace, the only one in which the capability
/// lets limits be raised (`capable` in the kernel's `kernel/sys.c`).
fn is_initial(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const INITIAL: &str = "         0          0 4294967295\n";

    fn limits(text: &str, capabilities: &str, map: &str) -> RuntimeLimits {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let process = roots.proc.join("7");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("limits"), text).unwrap();
        fs::write(process.join("status"), format!("Name:\tx\nCapEff:\t{capabilities}\n")).unwrap();
        fs::write(process.join("uid_map"), map).unwrap();
        of_process(&roots, 7)
    }

    #[test]
    fn limits_are_those_of_the_process() {
        let text = |soft: &str, hard: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             96000                96000                processes \n\
                 Max locked memory         {soft}              {hard}              bytes     \n"
            )
        };
        let full = "000001ffffffffff";
        let known = |memlock, ceiling, hard| RuntimeLimits {
            memlock: Some(memlock),
            ceiling,
            hard: Some(hard),
        };
        for (soft, hard, capabilities, map, expected) in [
            ("8388608", "8388608", full, INITIAL, known(8 << 20, None, 8 << 20)),
            ("unlimited", "unlimited", full, INITIAL, known(u64::MAX, None, u64::MAX)),
            ("65536", "131072", "0000000000000000", INITIAL, known(65536, Some(131_072), 131_072)),
            ("65536", "unlimited", "0", INITIAL, known(65536, Some(u64::MAX), u64::MAX)),
            (
                "65536",
                "65536",
                full,
                "0 1000 1\n1 100000 65536\n",
                known(65536, Some(65536), 65536),
            ),
        ] {
            assert_eq!(limits(&text(soft, hard), capabilities, map), expected, "{soft} {hard}");
        }
        for nonsense in ["", "Max locked memory\n", "Max locked memory x y bytes\n"] {
            assert_eq!(limits(nonsense, full, INITIAL), RuntimeLimits::default(), "{nonsense:?}");
        }
    }

    #[test]
    fn a_process_that_is_gone_has_unknown_limits() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_process(&Roots::below(folder.path()), 7), RuntimeLimits::default());
    }
}
