use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::fleet::{Event, Fleet};
use super::simulated::{At, Fate, Handle, Namespace, World};
use super::*;

fn handle(adapters: usize) -> Handle {
    let mut world = World::new(adapters);
    world.pods.insert(0, Namespace { path: true, held: false });
    Handle(Arc::new(Mutex::new(world)))
}

/// A daemon that starts in this world.
fn start(handle: &Handle) -> Fleet {
    let (boot, found) = {
        let mut world = handle.world();
        world.crashed = false;
        (world.boot_id(), world.journal.values().cloned().collect())
    };
    Fleet::new(&boot, found, Box::new(handle.clone()), Box::new(handle.clone()))
}

fn steps(handle: &Handle, entry: &mut Entry) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut kernel, mut journal) = (handle.clone(), handle.clone());
    while advance(entry, &mut kernel, &mut journal).unwrap() == Progress::Step {
        steps.extend(entry.step);
    }
    steps
}

#[test]
fn c51_the_rdma_device_comes_back_before_its_interface() {
    let handle = handle(3);
    for (hca, way_in, way_out) in [
        (
            "mlx5_0",
            vec![Step::NetdevIn, Step::SettingsIn, Step::RdmaIn],
            vec![Step::RdmaOut, Step::NetdevOut, Step::SettingsOut],
        ),
        ("mlx5_2", vec![Step::RdmaIn], vec![Step::RdmaOut]),
    ] {
        let mut entry = handle.world().entry(hca, 0);
        assert_eq!(steps(&handle, &mut entry), way_in, "{hca}");
        assert!(entry.is_inside());
        assert!(handle.world().journal[hca].is_inside());
        entry.call_home();
        assert_eq!(steps(&handle, &mut entry), way_out, "{hca}");
        assert!(handle.world().journal.is_empty());
    }
}

#[test]
fn c71_an_adapter_belongs_to_one_pod() {
    let handle = handle(2);
    handle.world().pods.insert(1, Namespace { path: true, held: false });
    let mut fleet = start(&handle);
    let (first, second) = {
        let world = handle.world();
        (world.entry("mlx5_0", 0), world.entry("mlx5_0", 1))
    };
    assert_eq!(fleet.attach(vec![first]), Ok(()));
    assert_eq!(
        fleet.attach(vec![second]),
        Err("mlx5_0: it already belongs to pod ml/pod-0".to_owned())
    );
    assert_eq!(handle.world().adapters["mlx5_0"].rdma, At::Pod(0));
    assert_eq!(fleet.of("box-0"), (vec!["mlx5_0".to_owned()], true));
}

#[test]
fn a_way_in_that_fails_leads_back() {
    let handle = handle(2);
    let mut fleet = start(&handle);
    let entries = {
        let mut world = handle.world();
        // Everything goes well up to the second adapter's RDMA device.
        world.fates = vec![Fate::Refused];
        world.fates.extend([Fate::Good; 21]);
        vec![world.entry("mlx5_0", 0), world.entry("mlx5_1", 0)]
    };
    let refused = fleet.attach(entries).unwrap_err();
    assert!(refused.starts_with("mlx5_1: "), "{refused}");
    assert!(handle.world().journal.is_empty(), "{:?}", handle.world().journal);
    assert_eq!(fleet.counts(), (0, 0));
    for adapter in handle.world().adapters.values() {
        assert_eq!(adapter.settings, World::at_home(adapter.saved.as_ref()));
    }
}

#[test]
fn who_holds_the_namespace_is_told_once() {
    let handle = handle(1);
    let mut fleet = start(&handle);
    let entry = handle.world().entry("mlx5_0", 0);
    fleet.attach(vec![entry]).unwrap();
    // The device is in a namespace of the pod's own making.
    handle.world().adapters.get_mut("mlx5_0").unwrap().rdma = At::Pod(9);
    handle.world().pods.insert(9, Namespace { path: false, held: true });
    fleet.call_home("box-0");
    let events = fleet.tend();
    let [Event::Stuck { reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("RDMA device is neither") && reason.contains("somebody holds it"));
    assert_eq!(fleet.tend(), []);
    assert_eq!(fleet.counts(), (1, 1));
    assert!(fleet.owners()["mlx5_0"].contains("on its way back from pod ml/pod-0"));
    // Its interface is back all the same.
    assert_eq!(handle.world().adapters["mlx5_0"].netdev, Some(At::Home));
    handle.world().pods.remove(&9);
    for _ in 0..4 {
        handle.world().tick();
    }
    assert!(matches!(fleet.tend()[..], [Event::Back { .. }]));
}

#[test]
fn an_entry_survives_json() {
    let entry = World::new(1).entry("mlx5_0", 0);
    let text = serde_json::to_string(&entry).unwrap();
    assert!(text.contains(r#""addresses":["0101","0102"]"#), "{text}");
    assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
    for wrong in ["\"0\"", "\"0g\"", "\"é0\""] {
        let text = text.replace("\"0101\"", wrong);
        assert!(serde_json::from_str::<Entry>(&text).is_err(), "{text}");
    }
}

/// What happens in a history.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A pod starts and asks for adapters, a bit each.
    Start(usize, u8),
    /// The runtime says that a pod stops.
    Stop(usize),
    /// A pod's namespace loses its path, whether the runtime has said so or not.
    Unlink(usize),
    /// Somebody begins, or ends, to hold a pod's namespace.
    Hold(usize),
    Release(usize),
    /// Somebody in the pod changes the interface.
    Meddle(u8),
    /// The daemon is killed, and started again.
    Kill,
    Reboot,
    /// The daemon looks after things.
    Tend,
    /// The runtime tells what there is.
    Synchronize,
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..4_usize, 1..16_u8).prop_map(|(pod, adapters)| Act::Start(pod, adapters)),
        3 => (0..4_usize).prop_map(Act::Stop),
        2 => (0..4_usize).prop_map(Act::Unlink),
        1 => (0..4_usize).prop_map(Act::Hold),
        1 => (0..4_usize).prop_map(Act::Release),
        1 => (0..4_u8).prop_map(Act::Meddle),
        2 => Just(Act::Kill),
        1 => Just(Act::Reboot),
        3 => Just(Act::Tend),
        1 => Just(Act::Synchronize),
        3 => Just(Act::Tick),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Good),
        2 => Just(Fate::Refused),
        2 => Just(Fate::RefusedLate),
        2 => Just(Fate::CrashBefore),
        2 => Just(Fate::CrashAfter),
    ]
}

fn play(handle: &Handle, fleet: &mut Fleet, act: Act) {
    match act {
        Act::Start(pod, adapters) => {
            let entries = {
                let mut world = handle.world();
                world.pods.entry(pod).or_insert(Namespace { path: true, held: false });
                let names: Vec<String> = world.adapters.keys().cloned().collect();
                let meant = (0..8).zip(names).filter(|(bit, _)| adapters >> bit & 1 == 1);
                // What is not at home is not selected, as the inventory tells.
                meant
                    .filter(|(_, name)| {
                        let adapter = &world.adapters[name];
                        adapter.rdma == At::Home && adapter.netdev.is_none_or(|at| at == At::Home)
                    })
                    .map(|(_, name)| world.entry(&name, pod))
                    .collect()
            };
            let _ = fleet.attach(entries);
        }
        Act::Stop(pod) => {
            fleet.call_home(&format!("box-{pod}"));
            fleet.tend();
        }
        Act::Unlink(pod) => {
            if let Some(namespace) = handle.world().pods.get_mut(&pod) {
                namespace.path = false;
            }
        }
        Act::Hold(pod) | Act::Release(pod) => {
            if let Some(namespace) = handle.world().pods.get_mut(&pod) {
                namespace.held = matches!(act, Act::Hold(_));
            }
        }
        Act::Meddle(adapter) => {
            let mut world = handle.world();
            if let Some(adapter) = world.adapters.get_mut(&format!("mlx5_{adapter}"))
                && matches!(adapter.netdev, Some(At::Pod(_)))
            {
                adapter.settings.name = "mine".into();
                adapter.settings.mtu = 1500;
                adapter.settings.parts.clear();
            }
        }
        Act::Kill => *fleet = start(handle),
        Act::Reboot => {
            handle.world().reboot();
            *fleet = start(handle);
        }
        Act::Tend => {
            fleet.tend();
        }
        Act::Synchronize => {
            let alive: Vec<String> =
                handle.world().pods.keys().map(|pod| format!("box-{pod}")).collect();
            fleet.retain(|sandbox| alive.iter().any(|alive| alive == sandbox));
        }
        Act::Tick => handle.world().tick(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12_000, ..ProptestConfig::default() })]

    /// Promise 3: whatever moved into a pod comes back, exactly once.
    #[test]
    fn c51_after_any_history_every_adapter_is_back_exactly_once(
        acts in prop::collection::vec(act(), 1..30),
        fates in prop::collection::vec(fate(), 0..120),
        restart in any::<bool>(),
    ) {
        let handle = Handle(Arc::new(Mutex::new(World::new(4))));
        let mut fleet = start(&handle);
        handle.world().fates = fates;
        for act in acts {
            play(&handle, &mut fleet, act);
            if handle.world().crashed {
                fleet = start(&handle);
            }
            let world = handle.world();
            prop_assert!(world.wrong.is_empty(), "{:?}", world.wrong);
            for (name, adapter) in &world.adapters {
                let away = adapter.rdma != At::Home
                    || adapter.netdev.is_some_and(|netdev| netdev != At::Home);
                prop_assert!(!away || world.journal.contains_key(name), "{name} is forgotten");
            }
        }
        // No more faults; all pods end.
        handle.world().fates.clear();
        if restart || handle.world().crashed {
            fleet = start(&handle);
        }
        fleet.retain(|_| false);
        handle.world().pods.clear();
        for _ in 0..8 {
            fleet.tend();
            handle.world().tick();
        }
        prop_assert_eq!(fleet.counts(), (0, 0), "{:?}", fleet);
        let world = handle.world();
        prop_assert!(world.wrong.is_empty(), "{:?}", world.wrong);
        prop_assert!(world.journal.is_empty(), "{:?}", world.journal);
        for (name, adapter) in &world.adapters {
            prop_assert_eq!(adapter.rdma, At::Home, "{}", name);
            prop_assert!(adapter.netdev.is_none_or(|netdev| netdev == At::Home), "{}", name);
            prop_assert_eq!(&adapter.settings, &World::at_home(adapter.saved.as_ref()), "{}", name);
            for (away, back) in adapter.moves {
                prop_assert_eq!(away, back, "{}", name);
            }
        }
    }
}
