//! Containers that work and containers that do not, from the fixtures, each with its screen.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::verbs::{Bandwidth, Ended, Latency, Missing, PortSaid};
use super::{Exit, Fault, Level, Machine, Options, Place, Report, Transcript, cm, run, screen};
use crate::inventory::{self, fixture};
use crate::roots::Roots;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

/// To which adapter an address belongs.
type Bind = fn(IpAddr) -> Result<String, Errno>;

/// A container: an unpacked fixture with the image's files in it, and what the kernel answers.
struct Container {
    folder: tempfile::TempDir,
    opens: HashMap<&'static str, Errno>,
    memlock: u64,
    variables: HashMap<&'static str, &'static str>,
    /// What the library lists; an error is in place of the library.
    library: Result<Vec<&'static str>, Transcript>,
    /// Changes what a working adapter says.
    trial: fn(&mut Transcript),
    bound: Result<Bind, Errno>,
}

impl Container {
    fn of(machine: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
        fixture::unpack(&fixtures.join(format!("{machine}.tree")), folder.path()).unwrap();
        let container = Self {
            folder,
            opens: HashMap::new(),
            memlock: u64::MAX,
            variables: HashMap::new(),
            library: Ok(vec!["rxe0"]),
            trial: |_| {},
            bound: Ok(|address| match address.to_string().as_str() {
                "10.77.0.1" | "10.77.0.101" => Ok("5054:00ff:fe77:0001".to_owned()),
                _ => Err(Errno::ENODEV),
            }),
        };
        container.write("proc/sys/kernel/osrelease", "6.12.117+deb13-amd64\n");
        container.write("proc/self/status", "CapEff:\t0000000000000000\n");
        container.write("proc/self/uid_map", "         0          0 4294967295\n");
        container.write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    8000000 kB\n");
        let file = format!("{}.14.56.1", &LIBRARY[1..]);
        container.write(&file, "");
        std::os::unix::fs::symlink("libibverbs.so.1.14.56.1", container.path(&LIBRARY[1..]))
            .unwrap();
        for provider in ["rxe", "mlx5"] {
            container.write(
                &format!("usr/lib/x86_64-linux-gnu/libibverbs/lib{provider}-rdmav34.so"),
                "",
            );
            container.write(&format!("etc/libibverbs.d/{provider}.driver"), "");
        }
        container
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    fn probe_with(&self, options: &Options) -> Report {
        let roots = Roots::below(self.folder.path());
        let node = inventory::snapshot(&roots, None);
        let place = Place { roots: &roots, image: self.folder.path(), node: &node };
        run(self, &place, options)
    }

    fn probe(&self) -> Report {
        self.probe_with(&Options { devices: Vec::new(), memory: 256 << 20, traffic: 500 })
    }
}

impl Machine for Container {
    fn open(&self, path: &Path) -> Result<(), Errno> {
        let name = path.file_name().unwrap().to_str().unwrap();
        self.opens.get(name).map_or(Ok(()), |errno| Err(*errno))
    }

    fn user(&self) -> u32 {
        1000
    }

    fn memlock(&self) -> u64 {
        self.memlock
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|value| (*value).to_owned())
    }

    fn verbs(&self, arguments: &[String]) -> Transcript {
        let silent = Transcript {
            loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
            ..Transcript::silent(Ended::Exited(0))
        };
        let listed = match &self.library {
            Ok(listed) => listed,
            Err(said) => return said.clone(),
        };
        let library = Some(LIBRARY.to_owned());
        let [_, _, _, most, traffic] = arguments else {
            let devices = listed.iter().map(|name| (*name).to_owned()).collect();
            return Transcript { library, devices, ..silent };
        };
        let most: u64 = most.parse().unwrap();
        let has_traffic = traffic != "0";
        let mut said = Transcript {
            library,
            step: Some((if has_traffic { "bandwidth" } else { "memory" }).to_owned()),
            port: Some(PortSaid { state: 4, mtu: 3, lid: 0, link_layer: 2 }),
            memory: vec![(4096, 0), (most, 0)],
            latency: has_traffic.then_some(Latency {
                message: 64,
                rounds: 1000,
                nanoseconds: 1940,
            }),
            bandwidth: has_traffic.then_some(Bandwidth {
                message: 64 << 10,
                bytes: 11 << 30,
                nanoseconds: 500_000_000,
            }),
            ..silent
        };
        (self.trial)(&mut said);
        said
    }

    fn bind(&self, _: &Path, addresses: &[IpAddr]) -> Result<Vec<cm::Bound>, Errno> {
        let bind = self.bound?;
        let bound = |address: &IpAddr| cm::Bound { address: *address, guid: bind(*address) };
        Ok(addresses.iter().map(bound).collect())
    }
}

#[track_caller]
fn ends(report: &Report, exit: Exit, part: &str) {
    assert_eq!(report.result, exit, "{}", screen(report));
    let failure = report.first_failure.as_ref().unwrap();
    assert!(failure.sentence.contains(part), "{failure:?}");
    assert!(failure.fix.is_some());
    assert_eq!((report.works, report.exit), (false, exit as u8));
}

#[test]
fn all_good() {
    let report = Container::of("soft-roce").probe();
    assert_eq!((report.result, report.first_failure.as_ref()), (Exit::Works, None));
    insta::assert_snapshot!(screen(&report));
    insta::assert_snapshot!("all_good_json", serde_json::to_string_pretty(&report).unwrap());
}

#[test]
fn no_nodes() {
    let mut container = Container::of("soft-roce");
    container.remove("dev/infiniband/uverbs0");
    container.remove("dev/infiniband/rdma_cm");
    container.memlock = 8 << 20;
    container.library = Ok(vec![]);
    let report = container.probe();
    ends(&report, Exit::NoDevice, "there is no /dev/infiniband/uverbs0 (rxe0)");
    insta::assert_snapshot!(screen(&report));
}

#[test]
fn c08_a_node_without_a_cgroup_rule_is_told_from_one_with_a_mode() {
    let mut container = Container::of("soft-roce");
    container.opens = [("uverbs0", Errno::EPERM), ("rdma_cm", Errno::EPERM)].into();
    let report = container.probe();
    ends(&report, Exit::Node, "the container's device cgroup has no rule for 231:192");
    insta::assert_snapshot!("no_cgroup_rule", screen(&report));

    let mut container = Container::of("soft-roce");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(container.path("dev/infiniband/uverbs0"), private).unwrap();
    container.opens = [("uverbs0", Errno::EACCES)].into();
    let report = container.probe();
    ends(&report, Exit::Node, "mode 0600, and this is user 1000");
    insta::assert_snapshot!("mode_0600", screen(&report));
}

#[test]
fn memlock_64_kib() {
    let mut container = Container::of("soft-roce");
    container.memlock = 64 << 10;
    let report = container.probe();
    ends(&report, Exit::Memory, "64 KiB registered, and that is all: memlock limit 64 KiB");
    insta::assert_snapshot!(screen(&report));
}

#[test]
fn memory_that_cannot_be_registered_although_the_limit_allows_it() {
    let mut container = Container::of("soft-roce");
    container.trial = |said| {
        said.memory = vec![(4096, 0), (8192, 12)];
        said.step = Some("memory".into());
    };
    ends(&container.probe(), Exit::Memory, "8 KiB fails with ENOMEM (Out of memory)");
    container.memlock = 0;
    container.trial = |said| said.memory = vec![(4096, 1)];
    container.write("sys/fs/cgroup/memory.max", "max\n");
    let report = container.probe();
    ends(&report, Exit::Memory, "0 bytes registered");
}

#[test]
fn ipc_lock_lifts_the_limit_and_the_memory_cgroup_bounds_what_is_tried() {
    let mut container = Container::of("soft-roce");
    container.memlock = 64 << 10;
    container.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    container.write("sys/fs/cgroup/memory.max", "67108864\n");
    container.write("sys/fs/cgroup/memory.current", "33554432\n");
    let report = container.probe();
    assert_eq!(report.result, Exit::Works, "{}", screen(&report));
    assert_eq!(report.adapters[0].registered, 16 << 20);
    let text = screen(&report);
    assert!(
        text.contains("16 MiB registered (the container's memory limit allows no more)"),
        "{text}"
    );
    assert!(text.contains("lifted by CAP_IPC_LOCK"), "{text}");
    // In a user namespace it lifts nothing (C06).
    container.write("proc/self/uid_map", "0 100000 65536\n");
    ends(&container.probe(), Exit::Memory, "memlock limit 64 KiB, too low");
}

#[test]
fn c91_no_libibverbs() {
    let missing = |text: &str| {
        let mut container = Container::of("soft-roce");
        container.library = Err(Transcript {
            missing: Some(Missing::Library(text.to_owned())),
            ..Transcript::silent(Ended::Exited(0))
        });
        container.probe()
    };
    for text in [
        "libibverbs.so.1: cannot open shared object file: No such file or directory",
        "Error loading shared library libibverbs.so.1: No such file or directory",
    ] {
        ends(&missing(text), Exit::NoLibrary, "image has no libibverbs: NCCL will use TCP");
    }
    insta::assert_snapshot!(screen(&missing("libibverbs.so.1: cannot open shared object file")));
    let half = "libnl-3.so.200: cannot open shared object file: No such file or directory";
    ends(&missing(half), Exit::NoLibrary, "libibverbs cannot be loaded: libnl-3.so.200");

    let mut container = Container::of("soft-roce");
    container.library = Err(Transcript::silent(Ended::NoLoader));
    ends(&container.probe(), Exit::NoLibrary, "no dynamic loader");
    container.library = Err(Transcript::silent(Ended::Killed(9)));
    ends(&container.probe(), Exit::NoLibrary, "died of SIGKILL");
    container.library = Err(Transcript::silent(Ended::NotStarted("no exec".into())));
    ends(&container.probe(), Exit::NoLibrary, "cannot be tried: no exec");
}

#[test]
fn c91_provider_missing() {
    let mut container = Container::of("soft-roce");
    container.library = Ok(vec![]);
    container.remove("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so");
    let report = container.probe();
    ends(&report, Exit::Device, "no provider for rxe (librxe-rdmav*.so is not in");
    insta::assert_snapshot!(screen(&report));

    let mut container = Container::of("soft-roce");
    container.library = Ok(vec![]);
    ends(&container.probe(), Exit::Device, "a provider for rxe that does not take it");
    container.remove("etc/libibverbs.d/rxe.driver");
    ends(&container.probe(), Exit::Device, "but not /etc/libibverbs.d/rxe.driver");
}

#[test]
fn port_down() {
    let container = Container::of("soft-roce");
    container.write("sys/devices/virtual/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    let report = container.probe();
    ends(&report, Exit::Port, "rxe0 has no port that is up: port 1 is DOWN");
    insta::assert_snapshot!(screen(&report));
}

#[test]
fn no_gid() {
    let container = Container::of("soft-roce");
    for slot in 1..=2 {
        container.write(
            &format!("sys/devices/virtual/infiniband/rxe0/ports/1/gids/{slot}"),
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        );
    }
    let report = container.probe();
    ends(&report, Exit::Port, "its GID table has no routable RoCE v2 entry");
    insta::assert_snapshot!(screen(&report));
}

#[test]
fn without_an_interface_of_its_own_a_container_has_the_hosts_gid() {
    let mut container = Container::of("soft-roce");
    container.write("proc/net/fib_trie", "Main:\n");
    container.bound = Ok(|_| Err(Errno::ENODEV));
    let report = container.probe();
    assert_eq!(report.result, Exit::Works, "{}", screen(&report));
    assert_eq!(report.adapters[0].gid_index, Some(1));
    assert!(!report.adapters[0].gid_is_own);
    insta::assert_snapshot!(screen(&report));
}

#[test]
fn a_variable_that_names_another_slot_is_told() {
    let mut container = Container::of("soft-roce");
    container.variables = [("NCCL_IB_GID_INDEX", "3")].into();
    let report = container.probe();
    assert_eq!(report.result, Exit::Works);
    let text = screen(&report);
    assert!(text.contains("but NCCL_IB_GID_INDEX is 3"), "{text}");
    for right in ["1", "-1", "x"] {
        container.variables = [("NCCL_IB_GID_INDEX", right)].into();
        assert!(!screen(&container.probe()).contains("WARN"), "{right}");
    }
}

#[test]
fn what_the_library_does_is_told_with_the_step() {
    type Case = (fn(&mut Transcript), Exit, &'static str);
    let cases: [Case; 7] = [
        (|said| fail(said, "open", Fault::Errno(11)), Exit::Device, "open fails: EAGAIN"),
        (
            |said| fail(said, "open", Fault::Died(Ended::Killed(11))),
            Exit::Device,
            "rxe0: open fails: the image's library died of SIGSEGV",
        ),
        (|said| fail(said, "pd", Fault::Errno(12)), Exit::Device, "pd fails: ENOMEM"),
        (|said| fail(said, "cq", Fault::Errno(12)), Exit::Traffic, "a completion queue cannot"),
        (
            |said| fail(said, "connect", Fault::Errno(22)),
            Exit::Traffic,
            "cannot be connected with GID index 1: EINVAL",
        ),
        (
            |said| fail(said, "latency", Fault::Status { status: 12, vendor: 0 }),
            Exit::Traffic,
            "does not answer itself with GID index 1: no answer, all retries used",
        ),
        (|said| fail(said, "latency", Fault::Corrupt), Exit::Traffic, "is not what was sent"),
    ];
    for (trial, exit, part) in cases {
        let mut container = Container::of("soft-roce");
        container.trial = trial;
        let report = container.probe();
        ends(&report, exit, part);
        // One cause, one failure.
        let failures = report.findings.iter().filter(|finding| finding.level == Level::Fail);
        assert_eq!(failures.count(), 1, "{}", screen(&report));
    }
}

fn fail(said: &mut Transcript, step: &str, fault: Fault) {
    said.step = Some(step.to_owned());
    said.fault = Some(fault);
    (said.latency, said.bandwidth) = (None, None);
    if matches!(step, "open" | "pd") {
        said.memory.clear();
    }
}

#[test]
fn rdma_cm_that_was_not_given_is_no_failure_and_one_that_is_forbidden_is() {
    let mut container = Container::of("soft-roce");
    container.opens = [("rdma_cm", Errno::EPERM)].into();
    ends(
        &container.probe(),
        Exit::Cm,
        "/dev/infiniband/rdma_cm (all adapters): open fails with EPERM",
    );
    container.opens.clear();
    container.bound = Err(Errno::ENODEV);
    ends(&container.probe(), Exit::Cm, "makes no identifier: ENODEV");
    container.remove("dev/infiniband/rdma_cm");
    assert_eq!(container.probe().result, Exit::Works);
}

#[test]
fn adapters_that_were_not_given_are_named_and_others_tried() {
    let mut container = Container::of("gpu-infiniband");
    let nodes: Vec<PathBuf> = fs::read_dir(container.path("dev/infiniband"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    for node in nodes {
        if !node.ends_with("uverbs0") {
            fs::remove_file(node).unwrap();
        }
    }
    container.library = Ok(vec!["mlx5_0"]);
    let report = container.probe();
    assert_eq!(report.result, Exit::Works, "{}", screen(&report));
    insta::assert_snapshot!(screen(&report));
    let named = Options { devices: vec!["mlx9".into()], memory: 1 << 20, traffic: 0 };
    ends(
        &container.probe_with(&named),
        Exit::NoDevice,
        "there is no adapter mlx9; there are mlx5_0",
    );
}

#[test]
fn efa_and_iwarp_have_no_ping_pong() {
    for (machine, text) in
        [("efa-p5", "EFA has no RC connections"), ("erdma-iwarp", "iWARP connects by rdma_cm only")]
    {
        let mut container = Container::of(machine);
        let roots = Roots::below(container.folder.path());
        let names: Vec<String> =
            inventory::snapshot(&roots, None).hcas.into_iter().map(|hca| hca.name).collect();
        container.library = Ok(names.into_iter().map(|name| &*name.leak()).collect());
        let report = container.probe();
        assert_eq!(report.result, Exit::Works, "{}", screen(&report));
        assert!(screen(&report).contains(text), "{}", screen(&report));
        let mut of = report.adapters.iter().filter(|adapter| machine.starts_with(&adapter.driver));
        assert!(of.all(|adapter| adapter.latency.is_none() && adapter.registered > 0));
    }
}

#[test]
fn a_machine_without_rdma_and_one_without_sysfs() {
    let mut container = Container::of("none");
    container.library = Ok(vec![]);
    ends(&container.probe(), Exit::NoDevice, "the kernel shows no RDMA adapter here");
    fs::remove_dir_all(container.path("sys")).unwrap();
    ends(&container.probe(), Exit::NoDevice, "/sys is not mounted here");
}
