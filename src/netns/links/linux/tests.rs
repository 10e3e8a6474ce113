//! On the running kernel, in the test machine: a dummy in a namespace of the test's own moves, and
//! soft-RoCE refuses to.

use std::sync::{Arc, Mutex};
use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::super::fleet::Fleet;
use super::super::simulated::{Handle, World};
use super::*;
use crate::netlink::attribute::{put, put_text};
use crate::netlink::change::Message;

/// The host's side of a test: a thread in a namespace of its own, with a dummy `d0`.
fn with_host(test: impl FnOnce(Linux) + Send) {
    let roots = Roots {
        proc: "/proc".into(),
        sys: "/sys".into(),
        dev: "/dev".into(),
        run: "/run".into(),
        etc: "/etc".into(),
    };
    thread::scope(|scope| {
        let host = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut socket = Socket::<Change>::open().unwrap();
            let mut body = vec![0; 16];
            put_text(&mut body, 3, "d0");
            let mut kind = Vec::new();
            put_text(&mut kind, 1, "dummy");
            put(&mut body, 18, &kind);
            socket.add(Message { kind: 16, body }).unwrap();
            test(Linux::new(&roots));
        });
        host.join().unwrap();
    });
}

fn index(name: &str) -> u32 {
    let mut socket = Socket::<Change>::open().unwrap();
    socket.netdevs().unwrap().iter().find(|netdev| netdev.name == name).unwrap().index
}

/// Settings as iproute2 would make them: an address of each family, a route over a gateway in a
/// table of its own, and a rule that leads there.
fn furnish(name: &str) {
    let index = index(name);
    let mut socket = Socket::<Change>::open().unwrap();
    socket.change(change::set_mtu(index, 4100)).unwrap();
    let ip = |family: u8, prefix: u8, address: &[u8]| {
        let mut body = vec![family, prefix, 0, 0, 0, 0, 0, 0];
        put(&mut body, 2, address);
        put(&mut body, 1, address);
        body
    };
    socket.add(change::new_address(&ip(2, 24, &[10, 9, 0, 1]), index)).unwrap();
    let six = "fd00::5".parse::<std::net::Ipv6Addr>().unwrap().octets();
    socket.add(change::new_address(&ip(10, 64, &six), index)).unwrap();
    socket.change(change::set_up(index, true)).unwrap();
    let mut route = vec![2, 16, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0];
    put(&mut route, 1, &[10, 51, 0, 0]);
    put(&mut route, 5, &[10, 9, 0, 9]);
    put(&mut route, 15, &1007_u32.to_ne_bytes());
    socket.add(change::new_route(&route, index)).unwrap();
    let mut rule = vec![2, 0, 32, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    put(&mut rule, 2, &[10, 9, 0, 1]);
    put(&mut rule, 15, &1007_u32.to_ne_bytes());
    put(&mut rule, 6, &500_u32.to_ne_bytes());
    socket.add(change::new_rule(&rule, "", "")).unwrap();
}

#[test]
#[ignore = "needs a dummy and CAP_NET_ADMIN: run it in the test machine of integration/"]
fn vm_an_interface_goes_with_all_that_it_has_and_comes_back_with_it() {
    let pod = crate::netns::enter::tests::fresh().unwrap();
    with_host(|linux| {
        furnish("d0");
        let saved = linux.save("d0").unwrap();
        assert_eq!((saved.mtu, saved.up), (4100, true));
        assert_eq!([saved.addresses.len(), saved.routes.len(), saved.rules.len()], [2, 1, 1]);

        send(&saved, &pod.file().as_raw_fd(), &BTreeSet::from(["d0".to_owned()])).unwrap();
        // Again, as after a crash: there is nothing to send any more.
        send(&saved, &pod.file().as_raw_fd(), &BTreeSet::new()).unwrap();
        let inside = pod.run(|| {
            settle(&saved, false).unwrap();
            settle(&saved, false).unwrap();
            linux.save("rdma0").unwrap()
        });
        let inside = inside.unwrap();
        assert_eq!((inside.mtu, inside.up, &inside.routes), (4100, true, &saved.routes));
        assert_eq!(inside.addresses, saved.addresses);
        assert_eq!(inside.rules, saved.rules);

        // A tenant has its way with it.
        let host = File::open("/proc/thread-self/ns/net").unwrap();
        let back = pod.run(|| {
            let mut socket = Socket::<Change>::open().unwrap();
            let index = index("rdma0");
            socket.change(change::set_mtu(index, 1500)).unwrap();
            send(&saved, &host.as_raw_fd(), &BTreeSet::from(["d0".to_owned()]))
        });
        back.unwrap().unwrap();
        assert!(linux.save("d0").is_err());
        settle(&saved, true).unwrap();
        settle(&saved, true).unwrap();
        assert_eq!(linux.save("d0").unwrap(), saved);
    });
}

#[test]
#[ignore = "needs a dummy and CAP_NET_ADMIN: run it in the test machine of integration/"]
fn vm_c51_descriptors_do_not_pile_up() {
    let pod = crate::netns::enter::tests::fresh().unwrap();
    with_host(|linux| {
        furnish("d0");
        let saved = linux.save("d0").unwrap();
        let open = || std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
        let host = File::open("/proc/thread-self/ns/net").unwrap();
        let mut before = None;
        for _ in 0..100 {
            send(&saved, &pod.file().as_raw_fd(), &BTreeSet::new()).unwrap();
            pod.run(|| {
                settle(&saved, false)
                    .and_then(|()| send(&saved, &host.as_raw_fd(), &BTreeSet::new()))
            })
            .unwrap()
            .unwrap();
            settle(&saved, true).unwrap();
            let now = open();
            // Other tests of this process open and close theirs: not one for each round is what counts.
            let before = *before.get_or_insert(now);
            assert!(now < before + 50, "{before} descriptors have become {now}");
        }
    });
}

#[test]
#[ignore = "needs rxe0: run it in the test machine of integration/"]
fn vm_c51_what_the_driver_refuses_leads_back_with_all_that_it_had() {
    let pod = crate::netns::enter::tests::fresh().unwrap();
    with_host(|linux| {
        furnish("d0");
        let saved = linux.save("d0").unwrap();
        let (device, inode) = pod.identity().unwrap();
        let path = format!("/proc/self/fd/{}", pod.file().as_raw_fd()).into();
        // The path is none that a runtime gives: it is found by who holds it, which is this
        // process's child.
        let mut child =
            pod.run(|| std::process::Command::new("sleep").arg("100").spawn().unwrap()).unwrap();
        let handle = Handle(Arc::new(Mutex::new(World::new(0))));
        let entry = Entry {
            boot: "boot-0".into(),
            pod: "ml/a".into(),
            sandbox: "box".into(),
            namespace: Place { path, device, inode },
            hca: "rxe0".into(),
            index: linux.index("rxe0").unwrap(),
            adapter: None,
            netdev: Some(saved.clone()),
            goal: Goal::Inside,
            step: None,
            settled: false,
            stuck: None,
        };
        let holders = linux.clone().holders(&entry);
        assert!(holders.contains("sleep (pid "), "{holders}");
        let kernel = Box::new(linux.clone());
        let mut fleet = Fleet::new("boot-0", Vec::new(), kernel, Box::new(handle.clone()));
        let refused = fleet.attach(vec![entry]).unwrap_err();
        assert!(refused.contains("does not go into the pod"), "{refused}");
        assert!(refused.contains("the driver cannot move its devices"), "{refused}");
        assert_eq!(fleet.counts(), (0, 0), "{fleet:?}");
        assert!(handle.world().journal.is_empty());
        assert_eq!(linux.save("d0").unwrap(), saved);
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn an_interface_without_an_own_name_gets_a_free_one() {
    let taken = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(free_name("eth0", &taken(&["lo"])), "eth0");
    assert_eq!(free_name("eth0", &taken(&["lo", "eth0"])), "rdma0");
    assert_eq!(free_name("eth0", &taken(&["rdma0", "eth0"])), "rdma1");
}

#[test]
fn hardware_is_told_by_what_a_tenant_cannot_change() {
    let card = |name: &str, address: u8, permanent: u8, parent: &str| Netdev {
        name: name.into(),
        address: vec![2, 0, 0, 0, 0, address],
        permanent: vec![2, 0, 0, 0, 0, permanent],
        parent: Some(parent.into()),
        ..Netdev::default()
    };
    let saved = Saved {
        name: "eth1".into(),
        address: vec![2, 0, 0, 0, 0, 1],
        permanent: vec![2, 0, 0, 0, 0, 1],
        parent: Some("0000:3b:00.0".into()),
        ..Saved::default()
    };
    let impostor =
        Netdev { name: "eth1".into(), address: saved.address.clone(), ..Netdev::default() };
    let all =
        [impostor.clone(), card("mine", 9, 1, "0000:3b:00.0"), card("eth1", 1, 2, "0000:3b:00.0")];
    assert_eq!(find(&saved, &all).map(|netdev| netdev.name.as_str()), Some("mine"));
    assert_eq!(find(&saved, std::slice::from_ref(&impostor)), None);
    let virtual_one = Saved { permanent: vec![], parent: None, ..saved };
    assert_eq!(find(&virtual_one, std::slice::from_ref(&impostor)), Some(&impostor));
}
