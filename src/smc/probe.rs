//! What a kernel has of SMC, and by which methods sockets can be turned there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use nix::sys::statfs::{FsType, statfs};

use super::bpf::Switch;
use super::kernel::Kernel;
use crate::grant::SmcFacts;
use crate::policy;
use crate::request::Can;
use crate::roots::Roots;

/// `BPF_FS_MAGIC` of `linux/magic.h`
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

/// Looks. Nothing is changed, and no module loaded; the program of method `bpf` is not tried out.
pub fn probe(roots: &Roots, policy: &policy::Smc) -> SmcFacts {
    let protocols = protocols(roots);
    let sysctls = names(roots);
    let mut facts = SmcFacts {
        loaded: protocols.contains("SMC") || !sysctls.is_empty(),
        tcp2smc: if sysctls.contains("tcp2smc") {
            Can::Yes
        } else {
            Can::No(
                "this kernel has no net.smc.tcp2smc, nor has any mainline kernel a sysctl that turns \
                 sockets"
                    .to_owned(),
            )
        },
        bpf: bpf(roots, &protocols).map_or_else(|why| Can::No(why.to_owned()), |()| Can::Yes),
        preload: preload(policy),
        sysctls: sysctls.into_iter().filter(|name| name != "tcp2smc").collect(),
        eids: BTreeSet::new(),
        pnet: BTreeMap::new(),
    };
    if roots.is_live() && facts.loaded {
        ask(&mut facts);
    }
    facts
}

/// Looks, for a container that asks: the module is loaded where policy says so. Beside it is what went
/// wrong with that.
pub fn probe_for(roots: &Roots, policy: &policy::Smc) -> (SmcFacts, Option<String>) {
    let facts = probe(roots, policy);
    if facts.loaded || !policy.load_module || !roots.is_live() {
        return (facts, None);
    }
    let problem = load_module().err();
    (probe(roots, policy), problem)
}

/// Whether the kernel takes the program of method `bpf`: it is loaded and forgotten again, unless it is
/// there.
pub fn try_out(roots: &Roots, policy: &policy::Smc, facts: &mut SmcFacts) {
    if facts.bpf != Can::Yes || !roots.is_live() {
        return;
    }
    let switch = Switch::new(roots, policy.mptcp);
    let there = switch.groups().is_ok_and(|groups| groups.is_some());
    if !there && let Err(problem) = switch.try_out() {
        facts.bpf = Can::No(problem.to_string());
    }
}

/// Loads the module. Whether that helped is seen by looking.
fn load_module() -> Result<(), String> {
    match Command::new("modprobe").args(["-a", "smc", "smc_diag"]).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(format!("cannot load the module smc: {}", said.trim().replace('\n', "; ")))
        }
        Err(problem) => Err(format!("cannot run modprobe: {problem}")),
    }
}

/// Protocols of the kernel by name (`/proc/net/protocols`).
fn protocols(roots: &Roots) -> BTreeSet<String> {
    let text = fs::read_to_string(roots.proc.join("net/protocols")).unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Sysctls of the module, which are there while it is loaded.
fn names(roots: &Roots) -> BTreeSet<String> {
    let Ok(folder) = fs::read_dir(roots.proc.join("sys/net/smc")) else { return BTreeSet::new() };
    folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn bpf(roots: &Roots, protocols: &BTreeSet<String>) -> Result<(), &'static str> {
    let sys = |path: &str| roots.sys.join(path);
    if !protocols.contains("INET_SMC") {
        return Err("the kernel has no IPPROTO_SMC (6.11 and later have)");
    }
    if !sys("kernel/btf/vmlinux").exists() {
        return Err("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)");
    }
    if sys("module/smc/refcnt").exists() && !sys("kernel/btf/smc").exists() {
        return Err(
            "the module smc does not describe its types (CONFIG_DEBUG_INFO_BTF_MODULES), so \
                    that it could not be held",
        );
    }
    if !sys("fs/cgroup/cgroup.controllers").exists() {
        return Err("control groups are not of version 2 alone");
    }
    if !roots.is_live() {
        return Ok(());
    }
    // The root of all groups has this number; another one is a part that somebody was given.
    if fs::metadata(sys("fs/cgroup")).map(|folder| folder.ino()).ok() != Some(1) {
        return Err("what is at /sys/fs/cgroup is not the root of the machine's control groups");
    }
    let mounted = statfs(&sys("fs/bpf")).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC);
    if mounted {
        Ok(())
    } else {
        Err("no BPF file system is mounted: mount -t bpf bpf /sys/fs/bpf")
    }
}

fn preload(policy: &policy::Smc) -> Can {
    match &policy.preload_library {
        None => Can::No("policy names no library: [smc] preload_library".to_owned()),
        Some(path) => match fs::metadata(path) {
            Ok(file) if file.is_file() => Can::Yes,
            _ => Can::No(format!("there is no library {path} on the node")),
        },
    }
}

/// What only the kernel itself can tell. Where it does not, nothing is known, and later steps say
/// why.
fn ask(facts: &mut SmcFacts) {
    let Ok(mut kernel) = Kernel::open() else { return };
    facts.eids = kernel.eids().unwrap_or_default().into_iter().collect();
    for device in kernel.devices().unwrap_or_default() {
        for (port, number) in device.ports.iter().zip(1..) {
            if !port.pnet.is_empty() {
                facts.pnet.insert(SmcFacts::port(&device.name, number), port.pnet.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel with these files.
    fn kernel(files: &[(&str, &str)]) -> SmcFacts {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        probe(&Roots::below(folder.path()), &policy::Smc::default())
    }

    const OLD: (&str, &str) = ("proc/net/protocols", "protocol size\nTCP 1\nSMC 2\nSMC6 2\n");
    const NEW: (&str, &str) = ("proc/net/protocols", "protocol size\nTCP 1\nSMC 2\nINET_SMC 2\n");
    const WMEM: (&str, &str) = ("proc/sys/net/smc/wmem", "65536\n");
    const SWITCH: (&str, &str) = ("proc/sys/net/smc/tcp2smc", "0\n");
    const BTF: (&str, &str) = ("sys/kernel/btf/vmlinux", "");
    const MODULE: (&str, &str) = ("sys/module/smc/refcnt", "1\n");
    const MODULE_BTF: (&str, &str) = ("sys/kernel/btf/smc", "");
    const CGROUP: (&str, &str) = ("sys/fs/cgroup/cgroup.controllers", "cpu\n");

    #[test]
    fn c99_methods_are_probed_and_what_is_missing_is_named() {
        for (files, loaded, tcp2smc, bpf) in [
            (&[][..], false, false, Some("has no IPPROTO_SMC")),
            (&[OLD, WMEM], true, false, Some("has no IPPROTO_SMC")),
            (&[OLD, WMEM, SWITCH], true, true, Some("has no IPPROTO_SMC")),
            (&[NEW, WMEM], true, false, Some("CONFIG_DEBUG_INFO_BTF)")),
            (&[NEW, BTF, MODULE], true, false, Some("CONFIG_DEBUG_INFO_BTF_MODULES")),
            (&[NEW, BTF, MODULE, MODULE_BTF], true, false, Some("not of version 2 alone")),
            (&[NEW, BTF, MODULE, MODULE_BTF, CGROUP], true, false, None),
            // Built in.
            (&[NEW, BTF, CGROUP], true, false, None),
        ] {
            let facts = kernel(files);
            assert_eq!(facts.loaded, loaded, "{files:?}");
            assert_eq!(facts.tcp2smc == Can::Yes, tcp2smc, "{files:?}");
            match (&facts.bpf, bpf) {
                (Can::Yes, None) => {}
                (Can::No(why), Some(part)) => assert!(why.contains(part), "{files:?}: {why}"),
                (can, _) => panic!("{files:?}: {can:?}"),
            }
            assert!(matches!(&facts.preload, Can::No(why) if why.contains("names no library")));
        }
        assert_eq!(kernel(&[OLD, WMEM, SWITCH]).sysctls, BTreeSet::from(["wmem".to_owned()]));
    }

    #[test]
    fn a_library_has_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("lib.so");
        let policy = policy::Smc {
            preload_library: Some(library.to_str().unwrap().to_owned()),
            ..policy::Smc::default()
        };
        assert!(matches!(preload(&policy), Can::No(why) if why.ends_with("on the node")));
        fs::write(&library, "").unwrap();
        assert_eq!(preload(&policy), Can::Yes);
    }
}
