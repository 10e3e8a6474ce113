//! The switch: a program in the kernel that makes stream sockets of certain containers SMC's.
//!
//! [`program`] is what it does, [`call`] how it gets there. Here is its life. It is pinned, with
//! its two maps, below `/sys/fs/bpf/rdma-ctk`: a daemon that is killed changes nothing for running
//! containers, and the next one goes on where that one stopped. It is loaded for the first
//! container and taken away with the last. While it is loaded it holds the module smc, so that the
//! program always goes before the protocol that it names.

pub mod call;
pub mod program;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{FsType, statfs};
use serde::{Deserialize, Serialize};

use super::btf::{Btf, BtfError};
use crate::roots::Roots;
use call::Map;
use program::{DEEPEST, ModuleFunction, References, Settings};

/// Name of the program in the kernel. The number is that of what it does: a program of another
/// number is replaced.
const NAME: &str = "rdma_ctk_smc_2";
/// The function in front of which it stands.
pub const FUNCTION: &str = "update_socket_protocol";
/// Functions of the module smc, one of which is named to hold it.
const HOLDS: [&str; 3] = ["smc_bind", "smc_accept", "smc_listen"];
/// Most groups at once: far more than containers fit on a node.
const MOST: u32 = 16_384;
/// `BPF_FS_MAGIC` of `linux/magic.h`
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

type Groups = Map<8, 4>;
type SettingsMap = Map<4, 8>;

/// The switch could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// There is no file system to pin in.
    #[error("{path} is no BPF file system; mount it: mount -t bpf bpf {path}", path = path.display())]
    NotMounted {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file or folder cannot be used.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The kernel's description of itself cannot be used.
    #[error("{path}: {source}", path = path.display())]
    Btf {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: BtfError,
    },
    /// The kernel lacks the function.
    #[error("this kernel has no function {name} (6.11 and later have)")]
    NoFunction {
        /// Its name.
        name: &'static str,
    },
    /// The module smc does not say what it has, so that it could not be held.
    #[error(
        "the module smc has no description of its types (CONFIG_DEBUG_INFO_BTF_MODULES), so that it \
         could be removed under containers that are switched to it"
    )]
    NoModuleBtf,
    /// The kernel does not take the program.
    #[error("the kernel does not take the program: {errno}{}", words(.said))]
    Rejected {
        /// Why.
        errno: Errno,
        /// The verifier's last words.
        said: String,
    },
    /// A call of bpf(2) failed.
    #[error("cannot {action}: {source}")]
    Call {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: Errno,
    },
    /// A control group is too deep for the program.
    #[error(
        "control group {group}: {depth} levels deep; {DEEPEST} is the deepest that can be switched"
    )]
    TooDeep {
        /// The group's number.
        group: u64,
        /// Its depth.
        depth: u32,
    },
}

fn words(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" ({said})") }
}

fn failed(action: &'static str) -> impl Fn(Errno) -> BpfError {
    move |source| BpfError::Call { action, source }
}

/// A control group: its number, which is that of its folder's inode, and its depth below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Number.
    pub id: u64,
    /// Depth; the root's is 0.
    pub depth: u32,
}

/// Where the switch is pinned.
#[derive(Debug, Clone)]
pub struct Switch {
    roots: Roots,
    /// `/sys/fs/bpf/rdma-ctk`
    folder: PathBuf,
    /// Sockets of MPTCP are turned too.
    mptcp: bool,
}

/// What is pinned, open.
#[derive(Debug)]
struct Pinned {
    groups: Groups,
    settings: SettingsMap,
    /// The program that runs is the one of this version.
    current: bool,
}

impl Switch {
    /// The switch of a node.
    pub fn new(roots: &Roots, mptcp: bool) -> Self {
        let folder = roots.sys.join("fs/bpf/rdma-ctk");
        Self { roots: roots.clone(), folder, mptcp }
    }

    /// Switches a group, and loads the program if it is not there.
    ///
    /// # Errors
    /// As [`BpfError`] says; then the group is not switched.
    pub fn add(&self, group: Group) -> Result<(), BpfError> {
        if group.depth == 0 || group.depth > DEEPEST {
            return Err(BpfError::TooDeep { group: group.id, depth: group.depth });
        }
        let _lock = self.lock()?;
        let pinned = match self.open()? {
            Some(pinned) if pinned.current => pinned,
            Some(old) => self.replace(&members(&old.groups)?)?,
            None => self.replace(&BTreeMap::new())?,
        };
        self.insert(&pinned, group)
    }

    /// Switches a group off. With the last one the program goes too.
    ///
    /// # Errors
    /// As [`BpfError`] says.
    pub fn remove(&self, group: u64) -> Result<(), BpfError> {
        let _lock = self.lock()?;
        let Some(pinned) = self.open()? else { return Ok(()) };
        pinned.groups.remove(&group.to_ne_bytes()).map_err(failed("switch a container off"))?;
        if members(&pinned.groups)?.is_empty() { self.unpin() } else { Ok(()) }
    }

    /// Makes these groups the only ones that are switched: takes over what an earlier daemon left,
    /// drops what is gone, and takes the program away if nothing is left. Returned is how many
    /// were dropped.
    ///
    /// # Errors
    /// As [`BpfError`] says.
    pub fn keep_only(&self, groups: &[Group]) -> Result<usize, BpfError> {
        let _lock = self.lock()?;
        let there = self.open()?;
        let old = there.as_ref().map(|pinned| members(&pinned.groups)).transpose()?;
        let old = old.unwrap_or_default();
        let stale: Vec<u64> =
            old.keys().filter(|id| !groups.iter().any(|group| group.id == **id)).copied().collect();
        if groups.is_empty() {
            self.unpin()?;
            return Ok(stale.len());
        }
        let pinned = match there {
            Some(pinned) if pinned.current => pinned,
            _ => self.replace(&old)?,
        };
        for group in groups {
            self.insert(&pinned, *group)?;
        }
        for id in &stale {
            pinned.groups.remove(&id.to_ne_bytes()).map_err(failed("switch a container off"))?;
        }
        Ok(stale.len())
    }

    /// The groups that are switched; `None`: the program is not loaded.
    ///
    /// # Errors
    /// As [`BpfError`] says.
    pub fn groups(&self) -> Result<Option<BTreeMap<u64, u32>>, BpfError> {
        self.open()?.map(|pinned| members(&pinned.groups)).transpose()
    }

    /// Loads the program and forgets it again: whether this kernel takes it.
    ///
    /// # Errors
    /// Why it does not.
    pub fn try_out(&self) -> Result<(), BpfError> {
        let (groups, settings) = self.maps()?;
        self.load(&groups, &settings).map(drop)
    }

    fn insert(&self, pinned: &Pinned, group: Group) -> Result<(), BpfError> {
        // Bits are only ever added: a depth at which there is no group any more costs each stream
        // socket one look into a map. First the bit, so that the group counts when it is there.
        let mut settings = self.settings(&pinned.settings)?;
        settings.depths |= 1 << group.depth;
        settings.flags = if self.mptcp { program::TURN_MPTCP } else { 0 };
        let key = 0_u32.to_ne_bytes();
        pinned
            .settings
            .set(&key, &settings.to_bytes())
            .map_err(failed("set the switch for containers"))?;
        pinned
            .groups
            .set(&group.id.to_ne_bytes(), &group.depth.to_ne_bytes())
            .map_err(failed("switch a container"))
    }

    fn settings(&self, map: &SettingsMap) -> Result<Settings, BpfError> {
        let bytes = map.get(&0_u32.to_ne_bytes()).map_err(failed("read the switch's settings"))?;
        Ok(Settings::from_bytes(bytes.unwrap_or_default()))
    }

    /// What is pinned; `None`: nothing, or something that is not ours to understand.
    fn open(&self) -> Result<Option<Pinned>, BpfError> {
        let missing = |errno| matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL);
        let get = |name: &str| match call::get(&self.folder.join(name)) {
            Ok(object) => Ok(Some(object)),
            Err(errno) if missing(errno) => Ok(None),
            Err(errno) => Err(failed("open the pinned program")(errno)),
        };
        let Some(link) = get("smc_link")? else { return Ok(None) };
        let current = call::name_of_attached(link.as_fd()).is_ok_and(|name| name == NAME);
        let groups = Groups::open(&self.folder.join("smc_groups"));
        let settings = SettingsMap::open(&self.folder.join("smc_settings"));
        match (groups, settings) {
            (Ok(Some(groups)), Ok(Some(settings))) => {
                Ok(Some(Pinned { groups, settings, current }))
            }
            (Err(errno), _) | (_, Err(errno)) if !missing(errno) => {
                Err(failed("open the pinned maps")(errno))
            }
            // Half of it: left by somebody who was killed between two steps.
            _ => Ok(None),
        }
    }

    /// Loads the program of this version with those members, and puts it in the place of whatever
    /// is pinned. The new one runs before the old one goes, and then stands behind it: each of
    /// them answers alike for the groups that both know.
    fn replace(&self, groups: &BTreeMap<u64, u32>) -> Result<Pinned, BpfError> {
        self.prepare_folder()?;
        let (map, settings) = self.maps()?;
        let program = self.load(&map, &settings)?;
        let pinned = Pinned { groups: map, settings, current: true };
        for (id, depth) in groups {
            self.insert(&pinned, Group { id: *id, depth: (*depth).clamp(1, DEEPEST) })?;
        }
        let link = call::attach(program.as_fd()).map_err(failed("attach the program"))?;
        // The link last: what has a link has all of it.
        let objects = [
            ("smc_settings", pinned.settings.as_fd()),
            ("smc_groups", pinned.groups.as_fd()),
            ("smc_link", link.as_fd()),
        ];
        self.unpin_files()?;
        for (name, object) in objects {
            call::pin(object, &self.folder.join(name)).map_err(failed("pin the program"))?;
        }
        Ok(pinned)
    }

    fn maps(&self) -> Result<(Groups, SettingsMap), BpfError> {
        let groups = Groups::create(call::HASH, MOST, call::NO_PREALLOC, "rdma_ctk_groups")
            .map_err(failed("make a map"))?;
        let settings =
            SettingsMap::create(call::ARRAY, 1, 0, "rdma_ctk_set").map_err(failed("make a map"))?;
        Ok((groups, settings))
    }

    fn load(&self, groups: &Groups, settings: &SettingsMap) -> Result<OwnedFd, BpfError> {
        let folder = self.roots.sys.join("kernel/btf");
        let blob = read(&folder.join("vmlinux"))?;
        let bad = |path: &Path| {
            let path = path.to_owned();
            move |source| BpfError::Btf { path, source }
        };
        let path = folder.join("vmlinux");
        let kernel = Btf::parse(&blob).map_err(bad(&path))?;
        let function = kernel
            .function(FUNCTION)
            .map_err(bad(&path))?
            .ok_or(BpfError::NoFunction { name: FUNCTION })?;
        let module = self.module(&kernel)?;
        let references = References {
            groups: groups.as_fd().as_raw_fd(),
            settings: settings.as_fd().as_raw_fd(),
            module: module
                .as_ref()
                .map(|(btf, id)| ModuleFunction { btf: btf.as_raw_fd(), id: id.cast_signed() }),
        };
        call::load(&program::instructions(&references), NAME, function)
            .map_err(|rejected| BpfError::Rejected { errno: rejected.errno, said: rejected.said })
    }

    /// What names a function of the module smc; `None` where smc is built in.
    fn module(&self, kernel: &Btf<'_>) -> Result<Option<(OwnedFd, u32)>, BpfError> {
        // A built-in has no such file.
        if !self.roots.sys.join("module/smc/refcnt").exists() {
            return Ok(None);
        }
        let path = self.roots.sys.join("kernel/btf/smc");
        if !path.exists() {
            return Err(BpfError::NoModuleBtf);
        }
        let blob = read(&path)?;
        let bad = |source| BpfError::Btf { path: path.clone(), source };
        let module = Btf::parse(&blob).map_err(bad)?;
        let mut found = None;
        for name in HOLDS {
            found = module.function_of_module(kernel, name).map_err(bad)?;
            if found.is_some() {
                break;
            }
        }
        let btf = call::module_btf("smc").map_err(failed("open the description of smc"))?;
        match btf.zip(found) {
            Some(both) => Ok(Some(both)),
            None => Err(BpfError::NoModuleBtf),
        }
    }

    fn prepare_folder(&self) -> Result<(), BpfError> {
        let root = self.roots.sys.join("fs/bpf");
        if statfs(&root).ok().is_none_or(|fs| fs.filesystem_type() != BPF_FS_MAGIC) {
            return Err(BpfError::NotMounted { path: root });
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(BpfError::File { action: "make", path: self.folder.clone(), source: error })
            }
            _ => Ok(()),
        }
    }

    /// Takes everything away: new sockets are plain again from here on.
    fn unpin(&self) -> Result<(), BpfError> {
        self.unpin_files()?;
        match fs::remove_dir(&self.folder) {
            Err(error) if !gone(&error) => {
                Err(BpfError::File { action: "remove", path: self.folder.clone(), source: error })
            }
            _ => Ok(()),
        }
    }

    fn unpin_files(&self) -> Result<(), BpfError> {
        for name in ["smc_link", "smc_groups", "smc_settings"] {
            let path = self.folder.join(name);
            match fs::remove_file(&path) {
                Err(source) if !gone(&source) => {
                    return Err(BpfError::File { action: "remove", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// One at a time: the daemon and hooks of runtimes may come at once.
    fn lock(&self) -> Result<Flock<File>, BpfError> {
        let folder = self.roots.run.join("rdma-ctk");
        let path = folder.join("smc.lock");
        let failed = |source| BpfError::File { action: "lock", path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
    }
}

fn gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn members(map: &Groups) -> Result<BTreeMap<u64, u32>, BpfError> {
    let failed = failed("read which containers are switched");
    let mut members = BTreeMap::new();
    for key in map.keys(MOST as usize).map_err(&failed)? {
        if let Some(depth) = map.get(&key).map_err(&failed)? {
            members.insert(u64::from_ne_bytes(key), u32::from_ne_bytes(depth));
        }
    }
    Ok(members)
}

fn read(path: &Path) -> Result<Vec<u8>, BpfError> {
    fs::read(path).map_err(|source| BpfError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_are_too_deep_are_refused_by_their_number() {
        let root = tempfile::tempdir().unwrap();
        let switch = Switch::new(&Roots::below(root.path()), false);
        for depth in [0, DEEPEST + 1] {
            let error = switch.add(Group { id: 77, depth }).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "control group 77: {depth} levels deep; 24 is the deepest that can be switched"
                )
            );
        }
    }

    #[test]
    fn a_node_without_the_program_has_nothing_to_take_away() {
        let root = tempfile::tempdir().unwrap();
        let switch = Switch::new(&Roots::below(root.path()), false);
        assert_eq!(switch.groups().unwrap(), None);
        switch.remove(5).unwrap();
        assert_eq!(switch.keep_only(&[]).unwrap(), 0);
    }

    #[test]
    fn where_nothing_can_be_pinned_it_is_said() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/fs/bpf")).unwrap();
        let switch = Switch::new(&Roots::below(root.path()), false);
        let error = switch.add(Group { id: 5, depth: 2 }).unwrap_err().to_string();
        assert!(error.contains("is no BPF file system; mount it: mount -t bpf bpf"), "{error}");
    }

    /// The protocol of a new stream socket of this process.
    fn protocol() -> i32 {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        let pid = std::process::id();
        // What the kernel says of the file: `getsockopt` of nix has no such option.
        let inode = fs::read_link(format!("/proc/{pid}/fd/{}", made.as_raw_fd())).unwrap();
        let inode = inode.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']');
        let inode: u64 = inode.parse().unwrap();
        let smc = crate::smc::diag::sockets().unwrap();
        if smc.iter().any(|socket| socket.inode == inode) { 256 } else { 6 }
    }

    /// Moves this process into a control group.
    fn enter(group: &Path) {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }

    #[test]
    #[ignore = "needs smc and root: run it in the test machine of integration/"]
    fn vm_the_switch_turns_sockets_of_its_groups_alone() {
        use std::os::unix::fs::MetadataExt;

        let roots = Roots::below(Path::new("/"));
        let switch = Switch::new(&roots, false);
        let root = Path::new("/sys/fs/cgroup");
        let ours = root.join("smc-test/container");
        let nested = ours.join("a/b");
        let beside = root.join("smc-test/beside");
        for group in [&nested, &beside] {
            fs::create_dir_all(group).unwrap();
        }
        let group = Group { id: fs::metadata(&ours).unwrap().ino(), depth: 2 };
        switch.add(group).unwrap();
        for (place, expected) in [(root, 6), (&*ours, 256), (&*nested, 256), (&*beside, 6)] {
            enter(place);
            assert_eq!(protocol(), expected, "{place:?}");
        }
        enter(root);
        // Another one takes over, and drops what is gone.
        let next = Switch::new(&roots, false);
        assert_eq!(next.groups().unwrap(), Some([(group.id, 2)].into()));
        let other = Group { id: fs::metadata(&beside).unwrap().ino(), depth: 2 };
        assert_eq!(next.keep_only(&[other]).unwrap(), 1);
        for (place, expected) in [(&*ours, 6), (&*beside, 256)] {
            enter(place);
            assert_eq!(protocol(), expected, "{place:?}");
        }
        enter(root);
        switch.remove(other.id).unwrap();
        assert_eq!(switch.groups().unwrap(), None);
        assert!(!Path::new("/sys/fs/bpf/rdma-ctk").exists());
    }

    #[test]
    #[ignore = "a measurement, for docs/performance.md: run it in the test machine of integration/"]
    fn measure_a_socket_of_others() {
        use std::thread::sleep;
        use std::time::{Duration, Instant};

        use nix::sched::{CpuSet, sched_setaffinity};
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        use nix::unistd::Pid;

        /// Of each kind; one more without.
        const BLOCKS: usize = 100;
        const CALLS: u32 = 1_000;
        /// So long the kernel tidies up after a program has come or gone.
        const SETTLED: Duration = Duration::from_millis(100);
        let mut one = CpuSet::new();
        one.set(0).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        let switch = Switch::new(&Roots::below(Path::new("/")), false);
        let make = |kind, calls| {
            for _ in 0..calls {
                drop(socket(AddressFamily::Inet, kind, SockFlag::empty(), None));
            }
        };
        let cost = |kind| {
            sleep(SETTLED);
            make(kind, CALLS / 2);
            let begun = Instant::now();
            make(kind, CALLS);
            begun.elapsed().as_secs_f64() / f64::from(CALLS)
        };
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            (values[values.len() / 4], values[values.len() / 2], values[values.len() * 3 / 4])
        };
        for kind in [SockType::Stream, SockType::Datagram] {
            // In turns: whatever else the machine does falls on both. Each block with the program is
            // held against those before and after it.
            let mut without = vec![cost(kind)];
            let mut with = Vec::new();
            for _ in 0..BLOCKS {
                // A container of somebody.
                switch.add(Group { id: 4_242, depth: 2 }).unwrap();
                with.push(cost(kind));
                switch.remove(4_242).unwrap();
                without.push(cost(kind));
            }
            let ratios = with.iter().zip(without.windows(2));
            let ratios =
                ratios.map(|(with, beside)| 2.0 * with / (beside[0] + beside[1])).collect();
            let (low, middle, high) = median(ratios);
            let (_, plain, _) = median(without);
            eprintln!(
                "{kind:?}: {} socket() and close() of each kind, {:.1} us without: {middle:.2} with \
                 (half of the blocks: {low:.2} to {high:.2})",
                BLOCKS * 1_000,
                plain * 1e6
            );
        }
    }
}
