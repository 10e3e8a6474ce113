use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::policy::{Policy, Pools};
use crate::roots::Roots;

/// Others on the wire.
#[derive(Debug, Default)]
struct Wire {
    others: BTreeSet<IpAddr>,
    asked: Vec<IpAddr>,
    broken: bool,
}

impl Prober for Wire {
    fn in_use(&mut self, address: IpAddr) -> Result<bool, String> {
        self.asked.push(address);
        if self.broken {
            return Err("the wire is cut".to_owned());
        }
        Ok(self.others.contains(&address))
    }
}

fn pools(text: &str) -> Pools {
    let text = text.replace('\'', "\"");
    let pools: String = text
        .split(';')
        .map(|pool| {
            let keys = pool.replace(", ", "\n");
            format!("[[links.pools]]\nadapters = [\"*\"]\n{keys}\n")
        })
        .collect();
    Pools(Policy::from_toml(&pools).unwrap().links.pools)
}

fn wish(sandbox: &str, hca: &str) -> Wish {
    Wish {
        boot: "boot-1".into(),
        sandbox: sandbox.into(),
        pod: format!("ml/{sandbox}"),
        uid: format!("uid-{sandbox}"),
        hca: hca.into(),
        parent: "eth1".into(),
        parent_index: 3,
        own: vec!["10.1.0.5/24".parse().unwrap(), "fe80::1/64".parse().unwrap()],
        others: Vec::new(),
        wanted: Wanted::Pool,
    }
}

fn fixed(sandbox: &str, addresses: &[&str]) -> Wish {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Wish { wanted: Wanted::Fixed(addresses), ..wish(sandbox, "mlx5_0") }
}

struct Machine {
    folder: tempfile::TempDir,
    leases: Leases,
    wire: Wire,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (leases, problems) = Self::open(&folder, "boot-1");
        assert!(problems.is_empty(), "{problems:?}");
        Self { folder, leases, wire: Wire::default() }
    }

    fn open(folder: &tempfile::TempDir, boot: &str) -> (Leases, Vec<Problem>) {
        let roots = Roots::below(folder.path());
        fs::create_dir_all(roots.proc.join("sys/kernel/random")).unwrap();
        fs::write(roots.proc.join("sys/kernel/random/boot_id"), format!("{boot}\n")).unwrap();
        Leases::open(&roots)
    }

    fn reopen(&mut self, boot: &str) -> Vec<String> {
        let (leases, problems) = Self::open(&self.folder, boot);
        self.leases = leases;
        problems.iter().map(ToString::to_string).collect()
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        let folder = self.folder.path().join("run/rdma-ctk/leases");
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn take(&mut self, wish: &Wish, pools: &Pools) -> Result<Vec<String>, String> {
        let lease = self.leases.take(wish, pools, &mut self.wire);
        let lease = lease.map_err(|refused| refused.to_string())?;
        assert!(self.leases.of(&wish.sandbox, &wish.hca) == Some(&lease));
        Ok(lease.addresses.iter().map(ToString::to_string).collect())
    }
}

#[test]
fn addresses_are_from_the_pool_and_never_the_networks_or_the_hosts() {
    let mut machine = Machine::new();
    // Eight addresses, of which five are nobody's to have.
    let pool = pools("range = '10.1.0.0-10.1.0.7', gateway = '10.1.0.1'");
    let pod = |name: &str| Wish {
        others: vec!["10.1.0.6".parse().unwrap(), "10.1.0.7".parse().unwrap()],
        ..wish(name, "mlx5_0")
    };
    let mut given = BTreeSet::new();
    for name in ["a", "b", "c"] {
        given.extend(machine.take(&pod(name), &pool).unwrap());
    }
    assert_eq!(given, ["10.1.0.2/24", "10.1.0.3/24", "10.1.0.4/24"].map(str::to_owned).into());
    let refused = machine.take(&pod("d"), &pool).unwrap_err();
    assert!(
        refused.starts_with("no address is left for mlx5_0 in 10.1.0.0-10.1.0.7: 10.1.0.2 by ml/"),
        "{refused}"
    );
    for name in ["a", "b", "c"] {
        assert!(refused.contains(&format!("by ml/{name}")), "{refused}");
    }
    // The same again for who has one.
    let again = machine.take(&pod("b"), &pool).unwrap();
    assert!(given.contains(&again[0]));
    assert_eq!(machine.files().len(), 3);
    assert!(machine.leases.release("b").is_empty());
    assert_eq!(machine.take(&pod("d"), &pool).unwrap(), again);
}

#[test]
fn each_family_has_an_address_and_a_second_pool_takes_over() {
    let mut machine = Machine::new();
    let both = pools(
        "range = '10.1.0.9-10.1.0.9', routes = ['10.0.0.0/8'], gateway = '10.1.0.1';\
         range = '10.1.0.10-10.1.0.10';range = 'fd00::8/126', routes = ['fd00::/16']",
    );
    let first = machine.leases.take(&wish("a", "mlx5_0"), &both, &mut machine.wire).unwrap();
    let addresses: Vec<String> = first.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses[0], "10.1.0.9/24");
    assert!(addresses[1].starts_with("fd00::") && addresses[1].ends_with("/126"), "{addresses:?}");
    assert_ne!(addresses[1], "fd00::8/126", "the subnet's routers have that");
    assert_eq!(first.gateways, ["10.1.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(
        first.routes,
        [
            Route { to: "10.0.0.0/8".parse().unwrap(), via: Some("10.1.0.1".parse().unwrap()) },
            Route { to: "fd00::/16".parse().unwrap(), via: None },
        ]
    );
    assert_eq!(machine.take(&wish("b", "mlx5_0"), &both).unwrap()[0], "10.1.0.10/24");
}

#[test]
fn an_own_prefix_gives_its_spare_addresses() {
    let mut machine = Machine::new();
    let own = Wish { own: vec!["10.9.0.1/30".parse().unwrap()], ..wish("a", "mlx5_0") };
    let pool = pools("own_prefix = true");
    assert_eq!(machine.take(&own, &pool).unwrap(), ["10.9.0.2/30"]);
    let full = machine.take(&Wish { sandbox: "b".into(), ..own.clone() }, &pool).unwrap_err();
    assert_eq!(
        full,
        "no address is left for mlx5_0 in 10.9.0.0/30 (its own prefix): 10.9.0.2 by ml/a \
         (links.pools of the policy)"
    );
    let bare = Wish { own: vec!["fe80::1/64".parse().unwrap()], ..wish("c", "mlx5_0") };
    assert!(machine.take(&bare, &pool).unwrap_err().contains("eth1 has no prefix of its own"));
    let unknown = pools("range = '10.77.0.1-10.77.0.9'");
    assert!(machine.take(&own.clone().of("d"), &unknown).unwrap_err().contains("prefix_length"));
    assert_eq!(machine.take(&own.of("d"), &Pools::default()).unwrap(), Vec::<String>::new());
}

impl Wish {
    fn of(mut self, sandbox: &str) -> Self {
        sandbox.clone_into(&mut self.sandbox);
        self
    }
}

#[test]
fn a_named_address_is_given_or_refused() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.64/26', gateway = '10.1.0.65';range = 'fd00::/64'");
    machine.wire.others.insert("10.1.0.99".parse().unwrap());
    let both = fixed("a", &["10.1.0.70/24", "fd00::7/64"]);
    assert_eq!(machine.take(&both, &pool).unwrap(), ["10.1.0.70/24", "fd00::7/64"]);
    for (address, why) in [
        ("10.1.0.70/24", "10.1.0.70 for mlx5_0 is held by ml/a"),
        ("10.1.0.7/24", "10.1.0.7 is in no pool of mlx5_0 (there are: 10.1.0.64/26, fd00::/64)"),
        ("10.1.0.65/24", "10.1.0.65 for mlx5_0 is the network's own, the host's or the router's"),
        ("10.1.0.99/24", "10.1.0.99 for mlx5_0 is in use: somebody answers for it at eth1"),
    ] {
        assert_eq!(machine.take(&fixed("b", &[address]), &pool).unwrap_err(), why);
    }
    let none = machine.take(&fixed("b", &["10.1.0.71/24"]), &Pools::default()).unwrap_err();
    assert_eq!(none, "10.1.0.71 is in no pool of mlx5_0 (there are: none)");
    let nothing = Wish { wanted: Wanted::None, ..wish("c", "mlx5_0") };
    assert_eq!(machine.take(&nothing, &pool).unwrap(), Vec::<String>::new());
    assert_eq!(machine.files().len(), 2);
}

#[test]
fn an_address_that_somebody_answers_for_is_left_out() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.8-10.1.0.15'");
    for last in 9..=15 {
        machine.wire.others.insert(IpAddr::from([10, 1, 0, last]));
    }
    // At most four are tried at once, and what was found is remembered.
    let mut tries = 0;
    let given = loop {
        match machine.take(&wish("a", "mlx5_0"), &pool) {
            Ok(given) => break given,
            Err(why) => assert!(why.contains("the search goes on"), "{why}"),
        }
        tries += 1;
    };
    assert_eq!(given, ["10.1.0.8/24"]);
    assert!(tries <= 1, "{tries}");
    let asked = machine.wire.asked.len();
    assert!(asked <= 8, "{:?}", machine.wire.asked);
    // Only when there is no other is it asked for again.
    let crowded = machine.take(&wish("b", "mlx5_0"), &pool).unwrap_err();
    assert!(crowded.contains("the search goes on") || tries == 1, "{crowded}");
    let refused = machine.take(&wish("b", "mlx5_0"), &pool).unwrap_err();
    assert!(refused.contains("is in use: somebody answers for it at eth1"), "{refused}");
    machine.wire.others.clear();
    assert!(machine.take(&wish("b", "mlx5_0"), &pool).is_ok());
    machine.wire.broken = true;
    let refused = machine.take(&wish("c", "mlx5_0"), &pool).unwrap_err();
    assert!(refused.ends_with("cannot be found out: the wire is cut"), "{refused}");
}

/// Somebody forges answers for a whole pool, and stops: what is free again is found, though one of
/// the addresses was really another's all along.
#[test]
fn answers_that_were_forged_do_not_use_a_pool_up() {
    for others in 8..=11 {
        let mut machine = Machine::new();
        let pool = pools("range = '10.1.0.8-10.1.0.11'");
        machine.wire.others.extend((8..=11).map(|last| IpAddr::from([10, 1, 0, last])));
        for _ in 0..3 {
            machine.take(&wish("a", "mlx5_0"), &pool).unwrap_err();
        }
        machine.wire.others = [IpAddr::from([10, 1, 0, others])].into();
        let tries: Vec<bool> =
            (0..2).map(|_| machine.take(&wish("a", "mlx5_0"), &pool).is_ok()).collect();
        assert!(tries.contains(&true), "10.1.0.{others} is in use, and the rest is free");
    }
}

#[test]
fn a_named_address_has_no_network_wider_than_its_pools() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.64/26';range = 'fd00::/64'");
    for address in ["10.1.0.70/1", "10.1.0.70/23"] {
        let refused = machine.take(&fixed("a", &[address]), &pool).unwrap_err();
        assert_eq!(
            refused,
            format!(
                "{address} for mlx5_0 reaches beyond the network of its pool: its prefix length is \
                 24 or more"
            )
        );
    }
    assert!(machine.take(&fixed("a", &["fd00::7/48"]), &pool).is_err());
    assert!(machine.take(&fixed("a", &["10.1.0.70/32", "fd00::7/64"]), &pool).is_ok());
}

#[test]
fn several_adapters_are_asked_for_together() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.8-10.1.0.10'");
    machine.wire.others.insert("10.1.0.9".parse().unwrap());
    let wishes: Vec<(Wish, Pools)> =
        ["mlx5_0", "mlx5_1", "mlx5_2"].map(|hca| (wish("a", hca), pool.clone())).into();
    let (leases, _) = Machine::open(&machine.folder, "boot-1");
    let leases = Mutex::new(leases);
    let taken = take_all(&leases, &wishes, &mut machine.wire);
    let given: BTreeSet<String> = taken
        .iter()
        .flatten()
        .flat_map(|lease| lease.addresses.iter().map(ToString::to_string))
        .collect();
    assert_eq!(given, ["10.1.0.10/24", "10.1.0.8/24"].map(str::to_owned).into());
    assert_eq!(taken.iter().filter(|taken| taken.is_err()).count(), 1);
    assert_eq!(machine.files().len(), 2);
    let mut leases = leases.into_inner().unwrap();
    assert!(leases.take(&wish("b", "x"), &pool, &mut Wire::default()).is_ok(), "nothing pends");
}

#[test]
fn leases_outlive_the_daemon_and_end_with_the_boot() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.8-10.1.0.9'");
    let given = machine.take(&wish("a", "mlx5_0"), &pool).unwrap();
    machine.leases.name("a", "mlx5_0", "rdma0").unwrap();
    assert!(machine.reopen("boot-1").is_empty());
    let lease = machine.leases.of("a", "mlx5_0").unwrap().clone();
    assert_eq!(lease.interface.as_deref(), Some("rdma0"));
    assert_eq!(machine.take(&wish("a", "mlx5_0"), &pool).unwrap(), given);
    assert_ne!(machine.take(&wish("b", "mlx5_0"), &pool).unwrap(), given);
    let roots = Roots::below(machine.folder.path());
    assert_eq!(leases(&roots).0.len(), 2);
    // Only `b` is there.
    assert!(machine.leases.retain(|sandbox| sandbox == "b").is_empty());
    assert_eq!(machine.take(&wish("c", "mlx5_0"), &pool).unwrap(), given);
    // Nobody knows which boot this is: everything stays.
    assert!(machine.reopen("").is_empty());
    assert_eq!(machine.leases.all().count(), 2);
    assert!(machine.reopen("boot-2").is_empty());
    assert_eq!((machine.leases.all().count(), machine.files().len()), (0, 0));
}

#[test]
fn a_lease_that_cannot_be_read_keeps_its_address() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.8-10.1.0.9'");
    let given = machine.take(&wish("a", "mlx5_0"), &pool).unwrap();
    let file = machine.files().remove(0);
    fs::write(&file, "{").unwrap();
    let folder = file.parent().unwrap();
    fs::write(folder.join("README"), "what is this?").unwrap();
    fs::write(folder.join("b+mlx5_0+10.1.0.200.new"), "half").unwrap();
    fs::create_dir(folder.join("c+mlx5_0+10.1.0.201.json")).unwrap();
    let problems = machine.reopen("boot-1");
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("it is no lease: ")), "{problems:?}");
    assert_eq!(machine.files().len(), 3, "only what was never used is gone");
    let other = machine.take(&wish("b", "mlx5_0"), &pool).unwrap();
    assert_ne!(other, given);
    let refused = machine.take(&wish("d", "mlx5_0"), &pool).unwrap_err();
    assert!(refused.contains("by the lease ") && refused.contains("cannot be read"), "{refused}");
    // Its sandbox is gone: the name tells.
    assert!(machine.leases.release("a").is_empty());
    assert_eq!(machine.take(&wish("d", "mlx5_0"), &pool).unwrap(), given);
    // A copy by another name holds what both say.
    let file = machine.files().into_iter().find(|path| path.display().to_string().contains("d+"));
    let copied = folder.join("z+mlx5_0+10.1.0.77.json");
    fs::copy(file.unwrap(), &copied).unwrap();
    assert!(machine.reopen("boot-1").iter().any(|problem| problem.contains("it is that of ml/d")));
    machine.leases.retain(|sandbox| sandbox == "z");
    let refused = machine.take(&wish("e", "mlx5_0"), &pool);
    assert_ne!(refused.unwrap(), given, "b's is free, that of the copy is not");
}

#[test]
fn what_cannot_be_written_or_read_is_not_given() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.8-10.1.0.9'");
    let path = machine.folder.path().join("run/rdma-ctk");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("leases"), "a file").unwrap();
    assert!(machine.take(&wish("a", "mlx5_0"), &pool).is_err());
    assert!(machine.leases.all().next().is_none());
    assert_eq!(machine.reopen("boot-1").len(), 1);
    let refused = machine.take(&wish("a", "mlx5_0"), &pool).unwrap_err();
    assert!(refused.starts_with("which addresses are held cannot be read"), "{refused}");
    fs::remove_file(path.join("leases")).unwrap();
    machine.reopen("boot-1");
    for (sandbox, hca) in [("../a", "mlx5_0"), ("", "mlx5_0"), ("a", "m/5"), ("a+b", "mlx5_0")] {
        let refused = machine.take(&wish(sandbox, hca), &pool).unwrap_err();
        assert!(refused.contains("cannot be part of a lease's file name"), "{refused}");
    }
    assert!(machine.files().is_empty());
}

#[test]
fn a_pod_begins_its_search_somewhere_else_than_the_one_before() {
    let mut machine = Machine::new();
    let pool = pools("range = '10.1.0.0/24'");
    let mut seen = BTreeSet::new();
    for pod in 0..20 {
        let name = format!("pod-{pod}");
        seen.extend(machine.take(&wish(&name, "mlx5_0"), &pool).unwrap());
        machine.leases.release(&name);
    }
    assert!(
        seen.len() >= 15,
        "an address that was given back is not the next to be given: {seen:?}"
    );
}

/// What may happen to the leases of a node.
#[derive(Debug, Clone)]
enum Event {
    Take {
        pod: usize,
        hca: usize,
        fixed: Option<u8>,
    },
    Release {
        pod: usize,
    },
    /// The daemon dies and comes back; a write that it had begun is left half done.
    Crash {
        half: bool,
    },
    /// The daemon dies right after it took an address, before anybody used it.
    Lost {
        pod: usize,
        hca: usize,
    },
    /// A file is cut short.
    Corrupt {
        file: usize,
        length: usize,
    },
    /// Somebody on the wire takes or gives back an address.
    Wire {
        last: u8,
    },
    /// The runtime tells which sandboxes there are.
    Synchronize,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..6usize, 0..2usize, prop::option::weighted(0.2, 8..20u8))
            .prop_map(|(pod, hca, fixed)| Event::Take { pod, hca, fixed }),
        3 => (0..6usize).prop_map(|pod| Event::Release { pod }),
        2 => any::<bool>().prop_map(|half| Event::Crash { half }),
        1 => (0..6usize, 0..2usize).prop_map(|(pod, hca)| Event::Lost { pod, hca }),
        1 => (0..8usize, 0..200usize).prop_map(|(file, length)| Event::Corrupt { file, length }),
        1 => (8..20u8).prop_map(|last| Event::Wire { last }),
        1 => Just(Event::Synchronize),
    ];
    prop::collection::vec(event, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_history_gives_an_address_twice(events in events()) {
        let mut machine = Machine::new();
        let pool = pools("range = '10.1.0.8-10.1.0.15';range = '10.1.0.16-10.1.0.19'");
        // Which pod uses which address, as the pods see it.
        let mut used: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let mut running: BTreeSet<usize> = BTreeSet::new();
        for event in events {
            match event {
                Event::Take { pod, hca, fixed } => {
                    let (sandbox, hca) = (format!("pod{pod}"), format!("mlx5_{hca}"));
                    let wanted = fixed.map_or(Wanted::Pool, |last| {
                        let address = IpAddr::from([10, 1, 0, last]);
                        Wanted::Fixed(vec![Prefix { address, length: 24 }])
                    });
                    let wish = Wish { wanted, ..wish(&sandbox, &hca) };
                    let Ok(lease) = machine.leases.take(&wish, &pool, &mut machine.wire) else {
                        continue;
                    };
                    running.insert(pod);
                    for prefix in lease.addresses {
                        let before = used.insert(prefix.address, pod);
                        prop_assert!(before.is_none_or(|before| before == pod), "{prefix}");
                    }
                }
                Event::Release { pod } => {
                    used.retain(|_, user| *user != pod);
                    running.remove(&pod);
                    let left = machine.leases.release(&format!("pod{pod}"));
                    prop_assert!(left.is_empty());
                }
                Event::Crash { half } => {
                    if half {
                        let folder = machine.folder.path().join("run/rdma-ctk/leases");
                        fs::create_dir_all(&folder).unwrap();
                        fs::write(folder.join("pod9+mlx5_0+10.1.0.9.new"), "{\"boot\":").unwrap();
                    }
                    machine.reopen("boot-1");
                }
                Event::Lost { pod, hca } => {
                    let wish = wish(&format!("pod{pod}"), &format!("mlx5_{hca}"));
                    machine.leases.take(&wish, &pool, &mut machine.wire).ok();
                    machine.reopen("boot-1");
                }
                Event::Corrupt { file, length } => {
                    let files = machine.files();
                    let Some(file) = files.get(file % files.len().max(1)) else { continue };
                    let mut text = fs::read(file).unwrap();
                    text.truncate(length);
                    fs::write(file, text).unwrap();
                    machine.reopen("boot-1");
                }
                Event::Wire { last } => {
                    let address = IpAddr::from([10, 1, 0, last]);
                    if !machine.wire.others.remove(&address) && !used.contains_key(&address) {
                        machine.wire.others.insert(address);
                    }
                }
                Event::Synchronize => {
                    let there: BTreeSet<String> =
                        running.iter().map(|pod| format!("pod{pod}")).collect();
                    prop_assert!(machine.leases.retain(|s| there.contains(s)).is_empty());
                }
            }
        }
        // Nothing is lost: with every pod gone, every address can be had again.
        machine.leases.retain(|_| false);
        machine.wire.others.clear();
        for last in 8..20 {
            let sandbox = format!("after{last}");
            prop_assert!(machine.take(&wish(&sandbox, "mlx5_0"), &pool).is_ok());
        }
        prop_assert!(machine.take(&wish("one-more", "mlx5_0"), &pool).is_err());
    }

    #[test]
    fn no_lease_and_no_name_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), name in ".{0,60}") {
        let _ = decode(&bytes);
        let _ = Said::of(&name);
    }
}
