//! SMC-R by the wrapper: what is in the document, what is left to the hook, and what is refused at once.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use super::rig::{Rig, asking, documents};
use crate::oci::hook::state::State;
use crate::oci::ledger::{Entry, Ledger, key};
use crate::oci::{Surroundings, smc};
use crate::policy::Policy;
use crate::records::{Record, Verdict};
use crate::request::SmcMethod;
use crate::smc::bpf::Group;
use crate::smc::claims::{Claims, Keeper};

/// A machine whose kernel has these files beside.
fn rig(files: &[(&str, &str)]) -> Rig {
    let rig = Rig::new("soft-roce");
    for (path, content) in files {
        let path = rig.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    rig
}

const MODERN: &[(&str, &str)] = &[
    ("proc/net/protocols", "protocol size\nSMC 1\nSMC6 1\nINET_SMC 1\n"),
    ("proc/sys/net/smc/wmem", "65536"),
    ("sys/kernel/btf/vmlinux", ""),
    ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
];
/// As the kernels of Alibaba Cloud.
const SWITCHED: &[(&str, &str)] =
    &[("proc/net/protocols", "protocol size\nSMC 1\n"), ("proc/sys/net/smc/tcp2smc", "0")];

fn document(engine: &str, value: &str) -> Value {
    let name = format!("{engine}.config.json");
    let (_, document) = documents().into_iter().find(|(found, _)| *found == name).unwrap();
    asking(&document, "smc.rdma-ctk.io", value)
}

fn stages(document: &Value) -> Vec<(String, String)> {
    let ours = |hook: &&Value| hook["args"][0] == "rdma-ctk-hook";
    let mut found = Vec::new();
    for (stage, hooks) in document["hooks"].as_object().into_iter().flatten() {
        for hook in hooks.as_array().unwrap().iter().filter(ours) {
            assert_eq!(hook["args"][1], json!(stage));
            found.push((stage.clone(), hook["args"][3].as_str().unwrap().to_owned()));
        }
    }
    found
}

#[test]
fn the_program_is_left_to_a_hook_behind_those_that_make_the_network() {
    for engine in ["nerdctl", "docker", "ctr"] {
        let rig = rig(MODERN);
        let before = document(engine, "bpf");
        let (after, replaced) = rig.edit(&before).unwrap();
        assert!(replaced);
        let stages = stages(&after);
        let names: Vec<&str> = stages.iter().map(|(stage, _)| stage.as_str()).collect();
        assert_eq!(names, ["createRuntime", "poststop"], "{engine}");
        let hooks = after["hooks"]["createRuntime"].as_array().unwrap();
        assert_eq!(hooks.last().unwrap()["args"][0], "rdma-ctk-hook");
        // No node, no limit, no variable.
        assert_eq!(after["process"], before["process"], "{engine}");
        assert_eq!(after["linux"], before["linux"], "{engine}");
        let records = rig.records();
        let [Record { verdict: Verdict::Granted { grant }, .. }] = &records.containers[..] else {
            panic!("{records:?}")
        };
        let smc = grant.smc.as_ref().unwrap();
        assert_eq!((smc.method, smc.later), (SmcMethod::Bpf, true), "{engine}");
        assert!(fs::metadata(&stages[0].1).is_ok(), "{engine}");
    }
}

#[test]
fn the_sysctl_is_the_documents_where_the_kernel_has_it() {
    let rig = rig(SWITCHED);
    let before = document("nerdctl", "auto");
    let refused = rig.edit(&before).unwrap_err();
    assert!(refused.contains("policy does not allow it"), "{refused}");
    rig.policy("[default]\nsmc = [\"tcp2smc\", \"bpf\"]\n");
    let (after, _) = rig.edit(&before).unwrap();
    assert_eq!(after["linux"]["sysctl"]["net.smc.tcp2smc"], "1");
    // A mainline kernel has no such sysctl, and none is set.
    let rig = self::rig(MODERN);
    rig.policy("[default]\nsmc = [\"tcp2smc\"]\n");
    let refused = rig.edit(&document("nerdctl", "tcp2smc")).unwrap_err();
    assert!(refused.contains("this kernel has no net.smc.tcp2smc"), "{refused}");
    assert!(!fs::read_to_string(rig.config()).unwrap().contains("tcp2smc\":"));
}

#[test]
fn c98_preload_is_refused_for_a_program_that_it_does_not_reach() {
    let rig = rig(MODERN);
    let library = rig.folder.path().join("libsmc-preload.so");
    fs::write(&library, "").unwrap();
    rig.policy(&format!("[smc]\npreload_library = {:?}\n", library.to_str().unwrap()));
    let bin = rig.bundle().join("rootfs/bin");
    fs::create_dir_all(&bin).unwrap();
    let mut program = vec![0_u8; 200];
    program[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (program[32], program[54], program[56]) = (64, 56, 1);
    fs::write(bin.join("sleep"), &program).unwrap();
    let document = document("nerdctl", "preload");
    let refused = rig.edit(&document).unwrap_err();
    assert_eq!(
        refused,
        "smc.rdma-ctk.io: preload: entry binary is statically linked: preload cannot switch it to SMC"
    );
    fs::remove_file(bin.join("sleep")).unwrap();
    let (after, _) = rig.edit(&document).unwrap();
    let env = after["process"]["env"].as_array().unwrap();
    assert!(env.contains(&json!("LD_PRELOAD=/run/rdma-ctk/libsmc-preload.so")));
}

#[test]
fn c99_what_the_kernel_lacks_is_refused_before_anything_is_made() {
    let rig = rig(&[]);
    let refused = rig.edit(&document("nerdctl", "auto")).unwrap_err();
    assert!(refused.contains("SMC-R is not available on this kernel (no smc module)"), "{refused}");
}

/// A container whose first process is in a control group of its own.
fn created(rig: &Rig) -> (Entry, State, Group) {
    let proc = &rig.roots.proc;
    let group = rig.roots.sys.join("fs/cgroup/default/c1");
    fs::create_dir_all(&group).unwrap();
    for (pid, said) in [("self", "0::/engine\n"), ("71", "0::/default/c1\n")] {
        fs::create_dir_all(proc.join(pid)).unwrap();
        fs::write(proc.join(pid).join("cgroup"), said).unwrap();
    }
    rig.edit(&document("nerdctl", "bpf")).unwrap();
    let surroundings = Surroundings { roots: rig.roots.clone(), variable: &|_| None };
    let ledger = Ledger::of(&surroundings, false);
    let record = key(Some("/run/runc".as_ref()), "c1".as_ref());
    let mut entry = ledger.read(&record).unwrap().unwrap();
    if let Verdict::Granted { grant } = &mut entry.record.verdict
        && let Some(smc) = &mut grant.smc
    {
        // As in the host's namespace; there is no kernel here to be told.
        (smc.later, smc.eid) = (false, None);
    }
    let state = State { id: "c1".into(), pid: 71, ..State::default() };
    let id = fs::metadata(&group).unwrap().ino();
    (entry, state, Group { id, depth: 2 })
}

#[test]
fn what_could_not_be_done_is_said_and_leaves_no_claim() {
    let rig = rig(MODERN);
    let (entry, state, _) = created(&rig);
    let policy = Policy::default();
    // There is no BPF file system to pin the program in.
    let why = smc::turn_on(&rig.roots, &policy, "k", &entry, &state).unwrap_err();
    assert!(why.contains("is no BPF file system"), "{why}");
    assert_eq!(Claims::open(&rig.roots).unwrap().all(), []);
    // A process in the engine's own group.
    fs::write(rig.roots.proc.join("71/cgroup"), "0::/engine\n").unwrap();
    let why = smc::turn_on(&rig.roots, &policy, "k", &entry, &state).unwrap_err();
    assert!(why.starts_with("the container has no control group of its own"), "{why}");
}

#[test]
fn what_a_container_had_goes_with_it_and_what_others_left() {
    let rig = rig(MODERN);
    let (_, _, group) = created(&rig);
    let claims = Claims::open(&rig.roots).unwrap();
    let claim = |group: Group| crate::smc::claims::Claim {
        keeper: Keeper::Hook,
        place: rig.roots.sys.join("fs/cgroup/default/c1"),
        group: Some(group),
        names: Default::default(),
    };
    claims.put("own", &claim(group)).unwrap();
    claims.put("lives", &claim(group)).unwrap();
    claims.put("gone", &claim(Group { id: group.id + 1, depth: 2 })).unwrap();
    drop(claims);
    assert_eq!(smc::turn_off(&rig.roots, "own"), Vec::<String>::new());
    let left: Vec<String> =
        Claims::open(&rig.roots).unwrap().all().into_iter().map(|(_, key, _)| key).collect();
    assert_eq!(left, ["lives"]);
}
