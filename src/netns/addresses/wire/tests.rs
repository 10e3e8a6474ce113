//! On the running kernel, in the test machine: a neighbour on the wire, a sub-interface beside ours,
//! and who is heard from where.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::*;
use crate::roots::Roots;

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Namespaces `far` (a machine on the wire), `near` (a pod with an address on the same adapter) and
/// `pod` (ours), which are gone afterwards, with all interfaces.
struct Ground;

impl Ground {
    fn new(kind: &str) -> Self {
        Self::clear();
        for name in ["far", "near", "pod"] {
            ip(&format!("netns add addr-{name}"));
            ip(&format!("-n addr-{name} link set lo up"));
        }
        ip("link add addr0 type veth peer name addr1 netns addr-far");
        ip("link set addr0 up");
        ip("-n addr-far addr add 10.99.0.9/24 dev addr1");
        ip("-n addr-far addr add fd99::9/64 dev addr1 nodad");
        ip("-n addr-far link set addr1 up");
        let mode = if kind == "ipvlan" { "l2" } else { "bridge" };
        for (name, link) in [("near", "c0"), ("pod", "c1")] {
            ip(&format!("link add {link} link addr0 netns addr-{name} type {kind} mode {mode}"));
            ip(&format!("-n addr-{name} link set {link} up"));
        }
        ip("-n addr-near addr add 10.99.0.20/24 dev c0");
        ip("-n addr-near addr add fd99::20/64 dev c0 nodad");
        Self
    }

    fn clear() {
        let quiet = |arguments: &str| {
            Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
        };
        quiet("link del addr0");
        for name in ["far", "near", "pod"] {
            quiet(&format!("netns del addr-{name}"));
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        Self::clear();
    }
}

fn roots() -> Roots {
    Roots {
        proc: "/proc".into(),
        sys: "/sys".into(),
        dev: "/dev".into(),
        run: "/run".into(),
        etc: "/etc".into(),
    }
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap()
}

/// Who is heard: the machine on the wire and the pod beside, of both families; and nobody.
fn heard(wire: &mut Wire<'_>) -> Vec<bool> {
    let addresses = ["10.99.0.9", "fd99::9", "10.99.0.20", "fd99::20", "10.99.0.77", "fd99::77"];
    let questions = addresses.map(|text| Question {
        hca: "rxe0",
        parent_index: index("addr0"),
        address: text.parse().unwrap(),
    });
    let begun = Instant::now();
    let answers = wire.all_in_use(&questions);
    println!("asked for {} addresses in {:?}: {answers:?}", addresses.len(), begun.elapsed());
    answers.into_iter().map(Result::unwrap).collect()
}

#[test]
#[ignore = "wants root and a kernel with sub-interfaces: cargo xtask test --e2e --batch units"]
fn vm_a_probe_by_the_sub_interface_reaches_the_wire_and_those_beside_it() {
    for kind in ["ipvlan", "macvlan"] {
        let _ground = Ground::new(kind);
        println!("{kind}, by the host's interface");
        assert_eq!(heard(&mut Wire::new()), [true, true, false, false, false, false], "{kind}");
        println!("{kind}, by the sub-interface");
        let namespace = Namespace::open(&roots(), Path::new("/run/netns/addr-pod")).unwrap();
        let inside =
            Inside { namespace: &namespace, index: namespace.run(|| index("c1")).unwrap() };
        let mut wire = Wire::new().by(index("addr0"), inside);
        assert_eq!(heard(&mut wire), [true, true, true, true, false, false], "{kind}");
        assert_eq!(wire.in_use("10.99.0.9".parse().unwrap()), Ok(true));
        // What cannot be asked is no answer.
        ip("link set addr0 down");
        let question = Question {
            hca: "",
            parent_index: index("addr0"),
            address: "10.99.0.9".parse().unwrap(),
        };
        let down = Wire::new().all_in_use(&[question]);
        assert!(down[0].as_ref().is_err_and(|why| why.contains("down")), "{down:?}");
    }
}
