//! Runtimes that run on the node, read from procfs.

use std::fs;
use std::path::Path;

use crate::roots::Roots;

/// Program names of the daemons that start containers (`comm`, which the kernel cuts at 15
/// characters).
const RUNTIMES: [&str; 3] = ["containerd", "crio", "dockerd"];

/// `CAP_SYS_RESOURCE` of capability.h: may raise limits above the hard ones.
const CAP_SYS_RESOURCE: u32 = 24;

/// A process, as far as procfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// `comm`
    pub name: String,
    /// Command line; empty where it cannot be read.
    pub arguments: Vec<String>,
    /// Soft and hard limit of locked memory in bytes (`u64::MAX`: none); `None` where it cannot be
    /// read.
    pub memlock: Option<(u64, u64)>,
    /// `CapEff`; `None` where it cannot be read.
    pub capabilities: Option<u64>,
}

impl Process {
    /// Whether it may raise limits; true where that cannot be read.
    pub fn may_raise_limits(&self) -> bool {
        self.capabilities.is_none_or(|set| set & (1 << CAP_SYS_RESOURCE) != 0)
    }

    /// Value of `--NAME VALUE` or `--NAME=VALUE` on its command line.
    pub fn argument(&self, names: &[&str]) -> Option<&str> {
        let mut arguments = self.arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            for name in names {
                if argument == *name {
                    return arguments.next();
                }
                if let Some(value) = argument.strip_prefix(name).and_then(|v| v.strip_prefix('=')) {
                    return Some(value);
                }
            }
        }
        None
    }
}

/// Daemons of [`RUNTIMES`] in our own PID namespace, ascending by PID. A process of a container
/// that goes by such a name is in another one, and is left out.
pub fn runtimes(roots: &Roots) -> std::io::Result<Vec<Process>> {
    let ours = fs::read_link(roots.proc.join("self/ns/pid")).ok();
    let mut found = Vec::new();
    for entry in fs::read_dir(&roots.proc)? {
        // A process that ends while we read is no error.
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let folder = entry.path();
        let Ok(name) = fs::read_to_string(folder.join("comm")) else { continue };
        if !RUNTIMES.contains(&name.trim_end()) {
            continue;
        }
        let theirs = fs::read_link(folder.join("ns/pid")).ok();
        if ours.is_some() && theirs.is_some() && ours != theirs {
            continue;
        }
        found.push(process(pid, name.trim_end(), &folder));
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(pid: u32, name: &str, folder: &Path) -> Process {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    Process {
        pid,
        name: name.to_owned(),
        arguments: fs::read(folder.join("cmdline"))
            .map(|bytes| arguments(&bytes))
            .unwrap_or_default(),
        memlock: read("limits").as_deref().and_then(memlock),
        capabilities: read("status").as_deref().and_then(capabilities),
    }
}

/// Words of `/proc/PID/cmdline`, each ended by a NUL.
fn arguments(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Soft and hard limit in the line `Max locked memory` of `/proc/PID/limits`.
pub fn memlock(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((words.next()??, words.next()??))
}

/// The set in the line `CapEff:` of `/proc/PID/status`.
fn capabilities(text: &str) -> Option<u64> {
    let set = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        for (line, expected) in [
            (
                "Max locked memory         8388608              8388608              bytes",
                Some((8_388_608, 8_388_608)),
            ),
            (
                "Max locked memory         65536                unlimited            bytes",
                Some((65_536, u64::MAX)),
            ),
            ("Max locked memory         much                 more                 bytes", None),
            ("Max file locks            unlimited            unlimited            locks", None),
        ] {
            assert_eq!(memlock(&format!("Limit     Soft\n{line}\n")), expected, "{line}");
        }
    }

    #[test]
    fn runtimes_are_found_by_name_and_told_from_those_in_containers() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join("proc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let namespace = |process: &str, name: &str| {
            let path = folder.path().join("proc").join(process).join("ns");
            fs::create_dir_all(&path).unwrap();
            std::os::unix::fs::symlink(name, path.join("pid")).unwrap();
        };
        namespace("self", "pid:[1]");
        write("812/comm", "containerd\n");
        write("812/cmdline", "/usr/bin/containerd\0--config=/etc/c.toml\0");
        write("812/limits", "Max locked memory 8388608 8388608 bytes\n");
        write("812/status", "Name:\tcontainerd\nCapEff:\t000001ffffffffff\n");
        namespace("812", "pid:[1]");
        write("99/comm", "dockerd\n");
        write("99/status", "CapEff:\t00000000a80425fb\n");
        write("4000/comm", "containerd\n");
        namespace("4000", "pid:[2]");
        write("813/comm", "containerd-shim\n");
        let found = runtimes(&Roots::below(folder.path())).unwrap();
        assert_eq!(found.iter().map(|p| p.pid).collect::<Vec<_>>(), [99, 812]);
        assert!(!found[0].may_raise_limits());
        assert_eq!(found[0].memlock, None);
        assert!(found[1].may_raise_limits());
        assert_eq!(found[1].memlock, Some((8_388_608, 8_388_608)));
        assert_eq!(found[1].argument(&["--config", "-c"]), Some("/etc/c.toml"));
        assert_eq!(found[1].argument(&["--root"]), None);
    }
}
