//! On the running kernel, in the test machine.

use std::process::Command;

use super::super::simulated::child;
use super::*;
use crate::netns::enter::tests::fresh;

fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn settings_are_told_by_their_paths() {
    assert_eq!(conf("net/ipv4/conf/rdma0/arp_ignore"), Some(("rdma0", Conf::ArpIgnore)));
    assert_eq!(conf("net/ipv4/conf/rdma0/rp_filter"), Some(("rdma0", Conf::RpFilter)));
    assert_eq!(conf("net/ipv4/conf/rdma0/forwarding"), None);
    assert_eq!(conf("net/ipv4/ip_forward"), None);
}

/// An ipvlan or a macvlan on a dummy of the host's: never seen there, furnished in the pod, gone by
/// whatever name it has.
#[test]
#[ignore = "makes interfaces: run it in the test machine of integration/"]
fn vm_a_child_is_made_furnished_and_ended() {
    let index = |name: &str| {
        let mut socket = Socket::<Change>::open().unwrap();
        socket.upper(name).unwrap().unwrap().index
    };
    for kind in [Kind::Ipvlan, Kind::Macvlan] {
        ip("link add d0 type dummy");
        ip("link set d0 mtu 4200 up");
        let pod = fresh().unwrap();
        let mut visit = Visit::begin(pod).unwrap();
        let mut made = Child {
            kind,
            parent: "d0".into(),
            parent_index: index("d0"),
            interface: "rdma0".into(),
            ..child(0)
        };
        visit.create(&mut made).unwrap();
        assert!(made.index.is_some() && made.mtu == 4200 && made.mac.len() == 17, "{made:?}");
        assert_eq!(visit.create(&mut made.clone()), Err(Unmade::Taken));
        assert!(!ip("-o link").contains("rdma0"));
        visit.give(&made, "10.9.1.5/24".parse().unwrap()).unwrap();
        visit.give(&made, "10.9.1.5/24".parse().unwrap()).unwrap();
        visit.give(&made, "fd00:9::5/64".parse().unwrap()).unwrap();
        let route = Setting::Route {
            table: 1007,
            to: "10.50.0.0/16".parse().unwrap(),
            via: Some("10.9.1.1".parse().unwrap()),
            index: made.index.unwrap(),
            from: Some("10.9.1.5".parse().unwrap()),
            metric: 0,
        };
        let rule = Setting::Rule { from: "10.9.1.5".parse().unwrap(), table: 1007, priority: 1007 };
        let sysctl = |name: &str, value: &str| Setting::Sysctl {
            path: format!("net/ipv4/conf/rdma0/{name}"),
            value: value.into(),
        };
        for setting in [
            route,
            rule,
            sysctl("arp_ignore", "1"),
            sysctl("arp_announce", "2"),
            sysctl("rp_filter", "2"),
        ] {
            visit.set(&setting).unwrap();
            visit.set(&setting).unwrap();
        }
        let seen = visit.namespace.run(|| {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/rdma0/{name}")).unwrap()
            };
            let sysctls = ["arp_ignore", "arp_announce", "rp_filter"].map(read).concat();
            // By a name of its own choice.
            let seen = (ip("-o addr show rdma0"), ip("route show table 1007"), ip("rule"), sysctls);
            ip("link set rdma0 down");
            ip("link set rdma0 name mine");
            seen
        });
        let (addresses, routes, rules, sysctls) = seen.unwrap();
        assert!(addresses.contains("10.9.1.5/24") && addresses.contains("fd00:9::5/64"));
        assert!(routes.contains("10.50.0.0/16 via 10.9.1.1 dev rdma0"), "{routes}");
        assert!(rules.contains("from 10.9.1.5 lookup 1007"), "{rules}");
        assert_eq!(sysctls, "1\n2\n2\n");
        // A second kind beside it is refused in words.
        let other = if kind == Kind::Ipvlan { Kind::Macvlan } else { Kind::Ipvlan };
        let mut beside =
            Child { kind: other, interface: "rdma1".into(), index: None, ..made.clone() };
        let Err(Unmade::Refused(why)) = visit.create(&mut beside) else { panic!() };
        assert!(why.starts_with(&format!("d0 can carry no {}: it carries", other.word())), "{why}");
        visit.remove(&made).unwrap();
        visit.remove(&made).unwrap();
        assert_eq!(visit.names().unwrap(), ["lo".to_owned()].into());
        ip("link del d0");
    }
}

#[test]
#[ignore = "makes interfaces: run it in the test machine of integration/"]
fn vm_the_mode_of_others_is_not_changed() {
    ip("link add d0 type dummy");
    ip("link set d0 up");
    ip("link add link d0 name theirs type ipvlan mode l3");
    let mut socket = Socket::<Change>::open().unwrap();
    let parent_index = socket.upper("d0").unwrap().unwrap().index;
    let mut visit = Visit::begin(fresh().unwrap()).unwrap();
    let mut wanted =
        Child { parent: "d0".into(), parent_index, interface: "rdma0".into(), ..child(0) };
    let Err(Unmade::Refused(why)) = visit.create(&mut wanted) else { panic!() };
    assert!(why.starts_with("d0 carries the ipvlan theirs"), "{why}");
    ip("link del d0");
}

/// One sub-interface with an address and a route by us and by `ip`, in turns: the ratio of the medians.
#[test]
#[ignore = "a measurement: run it in the test machine of integration/"]
fn measure_a_child_against_ip() {
    use std::time::{Duration, Instant};

    use crate::netns::children::Ground;

    const ROUNDS: u32 = 30;
    let linux = Linux::new(&Roots::below(Path::new("/")));
    ip("link add d0 type dummy");
    ip("link set d0 up");
    let parent_index = Socket::<Change>::open().unwrap().upper("d0").unwrap().unwrap().index;
    for kind in [Kind::Ipvlan, Kind::Macvlan] {
        let mode = if kind == Kind::Ipvlan { "l2" } else { "bridge" };
        let ours = |name: &str| {
            let path = format!("/run/netns/{name}");
            let begun = Instant::now();
            let place = linux.place(Path::new(&path)).unwrap().unwrap();
            let mut inside = linux.enter(&place).unwrap().unwrap();
            inside.names().unwrap();
            let mut made = Child {
                kind,
                parent: "d0".into(),
                parent_index,
                interface: "rdma0".into(),
                ..child(0)
            };
            inside.create(&mut made).unwrap();
            inside.give(&made, "10.9.1.5/24".parse().unwrap()).unwrap();
            let route = Setting::Route {
                table: 254,
                to: "10.50.0.0/16".parse().unwrap(),
                via: Some("10.9.1.1".parse().unwrap()),
                index: made.index.unwrap(),
                from: None,
                metric: 0,
            };
            inside.set(&route).unwrap();
            begun.elapsed()
        };
        let theirs = |name: &str| {
            let begun = Instant::now();
            let sort = kind.word();
            ip(&format!("link add link d0 name rdma0 netns {name} type {sort} mode {mode}"));
            ip(&format!("-n {name} addr add 10.9.1.5/24 dev rdma0"));
            ip(&format!("-n {name} link set rdma0 up"));
            ip(&format!("-n {name} route add 10.50.0.0/16 via 10.9.1.1 dev rdma0"));
            begun.elapsed()
        };
        let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for which in [round % 2, (round + 1) % 2] {
                ip("netns add ctk-m");
                let time = if which == 0 { ours("ctk-m") } else { theirs("ctk-m") };
                times[which as usize].push(time);
                ip("netns del ctk-m");
            }
        }
        let [ours, theirs] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2]
        });
        println!(
            "{}: {ours:?} against {theirs:?} by ip: {:.2}",
            kind.word(),
            ours.as_secs_f64() / theirs.as_secs_f64()
        );
    }
    ip("link del d0");
}
