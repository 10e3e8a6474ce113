//! Runtimes that run on the node, read from procfs.

use std::fs;
use std::path::Path;

use crate::daemon::runtime_limits::of_process;
use crate::nri::container::RuntimeLimits;
use crate::roots::Roots;

/// Program names of the daemons that start containers (`comm`, which the kernel cuts at 15
/// characters).
const RUNTIMES: [&str; 3] = ["containerd", "crio", "dockerd"];

/// A process, as far as procfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// `comm`
    pub name: String,
    /// Command line; empty where it cannot be read.
    pub arguments: Vec<String>,
    /// What it may lock and raise.
    pub limits: RuntimeLimits,
}

impl Process {
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
        found.push(process(roots, pid, name.trim_end(), &folder));
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(roots: &Roots, pid: u32, name: &str, folder: &Path) -> Process {
    Process {
        pid,
        name: name.to_owned(),
        arguments: fs::read(folder.join("cmdline"))
            .map(|bytes| arguments(&bytes))
            .unwrap_or_default(),
        limits: of_process(roots, pid),
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

#[cfg(test)]
mod tests {
    use super::*;

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
        write("812/uid_map", "0 0 4294967295\n");
        namespace("812", "pid:[1]");
        write("99/comm", "dockerd\n");
        write("4000/comm", "containerd\n");
        namespace("4000", "pid:[2]");
        write("813/comm", "containerd-shim\n");
        let found = runtimes(&Roots::below(folder.path())).unwrap();
        assert_eq!(found.iter().map(|p| p.pid).collect::<Vec<_>>(), [99, 812]);
        assert_eq!(found[0].limits, RuntimeLimits::default());
        assert_eq!(
            found[1].limits,
            RuntimeLimits { memlock: Some(8_388_608), ceiling: None, hard: Some(8_388_608) }
        );
        assert_eq!(found[1].argument(&["--config", "-c"]), Some("/etc/c.toml"));
        assert_eq!(found[1].argument(&["--root"]), None);
    }
}
