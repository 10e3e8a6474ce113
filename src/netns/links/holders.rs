//! Who keeps a network namespace alive: processes in it, descriptors of it, mounts of it.
//!
//! A namespace that is held does not give back the devices that are in it, whatever has become of
//! its path.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::roots::Roots;

/// Most holders that are told.
const TOLD: usize = 4;

/// Somebody who holds a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process.
    pub pid: u32,
    /// Its name; the process's own words.
    pub name: String,
    /// How it holds it.
    pub by: Hold,
}

/// How a namespace is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// The process is in it.
    Inside,
    /// The process has it open, by that descriptor.
    Open(u32),
    /// It is mounted there, in the process's mount namespace.
    Mount(PathBuf),
}

impl Holder {
    /// A path by which the namespace can be opened.
    pub fn handle(&self, roots: &Roots) -> PathBuf {
        let process = roots.proc.join(self.pid.to_string());
        match &self.by {
            Hold::Inside => process.join("ns/net"),
            Hold::Open(descriptor) => process.join("fd").join(descriptor.to_string()),
            Hold::Mount(path) => process.join("root").join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, by } = self;
        let name = name.escape_debug();
        match by {
            Hold::Inside => write!(f, "{name} (pid {pid}) is in it"),
            Hold::Open(_) => write!(f, "{name} (pid {pid}) has it open"),
            Hold::Mount(path) => {
                let path = path.display().to_string();
                write!(f, "it is mounted at {} for {name} (pid {pid})", path.escape_debug())
            }
        }
    }
}

/// Those who hold the namespace with that inode, except this process; a process once, and of a
/// mount namespace one process.
pub fn of(roots: &Roots, inode: u64) -> Vec<Holder> {
    let wanted = format!("net:[{inode}]");
    let own = std::process::id();
    let mut found = Vec::new();
    let mut mount_namespaces = Vec::new();
    let names = fs::read_dir(&roots.proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids.into_iter().filter(|pid| *pid != own) {
        let process = roots.proc.join(pid.to_string());
        let mounts = fs::read_link(process.join("ns/mnt")).ok();
        let new = mounts.is_none_or(|mounts| {
            let new = !mount_namespaces.contains(&mounts);
            mount_namespaces.push(mounts);
            new
        });
        if let Some(by) = hold(&process, &wanted, new) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(Holder { pid, name: name.trim_end().to_owned(), by });
        }
    }
    found
}

fn hold(process: &Path, wanted: &str, look_at_mounts: bool) -> Option<Hold> {
    let is_it = |path: &Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str().to_str() == Some(wanted))
    };
    if is_it(&process.join("ns/net")) {
        return Some(Hold::Inside);
    }
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let open = descriptors
        .filter(|entry| is_it(&entry.path()))
        .find_map(|entry| entry.file_name().to_str()?.parse().ok());
    if let Some(descriptor) = open {
        return Some(Hold::Open(descriptor));
    }
    let mounts = if look_at_mounts {
        fs::read_to_string(process.join("mountinfo")).unwrap_or_default()
    } else {
        String::new()
    };
    mounts.lines().find_map(|line| mount_point(line, wanted)).map(Hold::Mount)
}

/// Where a line of `mountinfo` says that the namespace is mounted.
fn mount_point(line: &str, wanted: &str) -> Option<PathBuf> {
    let mut words = line.split(' ');
    let root = words.nth(3)?;
    let point = words.next()?;
    (root == wanted).then(|| point.into())
}

/// The holders as part of a sentence.
pub fn words(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "no process is seen that holds its network namespace: the kernel is still taking \
                it down, or a socket keeps it"
            .to_owned();
    }
    let told: Vec<String> = holders.iter().take(TOLD).map(ToString::to_string).collect();
    let more = holders.len().saturating_sub(TOLD);
    let more = if more > 0 { format!(", and {more} more hold it") } else { String::new() };
    format!("its network namespace is held: {}{more}", told.join(", "))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, pid: u32, name: &str, net: u64, mounts: &str, fds: &[(u32, &str)]) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("ns")).unwrap();
        fs::create_dir_all(folder.join("fd")).unwrap();
        symlink(format!("net:[{net}]"), folder.join("ns/net")).unwrap();
        symlink(format!("mnt:[{}]", mounts.len()), folder.join("ns/mnt")).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        fs::write(folder.join("mountinfo"), mounts).unwrap();
        for (number, target) in fds {
            symlink(target, folder.join("fd").join(number.to_string())).unwrap();
        }
    }

    #[test]
    fn whoever_holds_a_namespace_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let mounted = "36 35 0:4 net:[77] /run/netns/x rw shared:9 - nsfs nsfs rw\n";
        process(&roots.proc, 10, "sleep", 77, "", &[]);
        process(&roots.proc, 11, "agent", 1, "", &[(5, "net:[77]"), (6, "socket:[77]")]);
        process(&roots.proc, 12, "init", 1, mounted, &[]);
        process(&roots.proc, 13, "other", 1, mounted, &[]);
        process(&roots.proc, 14, "stranger", 1, "", &[(3, "/dev/null")]);
        fs::create_dir(roots.proc.join("sys")).unwrap();
        let found = of(&roots, 77);
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [10, 11, 12]);
        assert_eq!(
            words(&found),
            "its network namespace is held: sleep (pid 10) is in it, agent (pid 11) has it open, \
             it is mounted at /run/netns/x for init (pid 12)"
        );
        assert_eq!(found[1].handle(&roots), roots.proc.join("11/fd/5"));
        assert_eq!(found[2].handle(&roots), roots.proc.join("12/root/run/netns/x"));
        assert!(words(&of(&roots, 78)).contains("no process"));
    }
}
