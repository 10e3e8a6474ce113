use proptest::prelude::*;

use super::super::nldev::{self, Maker};
use super::super::rdma;
use super::*;

const IPROUTE2: &str = include_str!("../fixtures/iproute2.hex");

/// Messages of that name: type and body.
fn recorded(name: &str) -> Vec<Message> {
    let lines = IPROUTE2.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let messages: Vec<Message> = lines
        .map(|line| {
            let (kind, hex) = line.split_once(' ').unwrap();
            let digits = hex.as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let body = digits.map(byte).collect();
            Message { kind: u16::from_str_radix(kind, 16).unwrap(), body }
        })
        .collect();
    assert!(!messages.is_empty(), "{name}");
    messages
}

pub(in crate::netlink) fn sent(name: &str) -> Message {
    recorded(name).remove(0)
}

/// Type and value of an attribute.
pub(in crate::netlink) type Plain = (u16, Vec<u8>);

/// A message with its attributes in order of their types: iproute2 writes them in another order
/// than the kernel.
pub(in crate::netlink) fn sorted(message: &Message, header: usize) -> (u16, Vec<u8>, Vec<Plain>) {
    let attributes = attribute::parse(&message.body[header..]).map(Result::unwrap);
    let mut attributes: Vec<_> = attributes.map(|a| (a.kind, a.value.to_vec())).collect();
    attributes.sort();
    (message.kind, message.body[..header].to_vec(), attributes)
}

#[test]
fn interfaces_are_changed_as_iproute2_does_it() {
    for (name, message) in [
        ("mtu", set_mtu(2, 4100)),
        ("down", set_up(2, false)),
        ("up", set_up(2, true)),
        ("address", set_address(2, &[2, 0, 0, 0, 0, 5])),
        ("netns-plain", move_link(3, 4, None)),
        ("netns-name", move_link(2, 4, Some("foo1"))),
    ] {
        assert_eq!(message, sent(name), "{name}");
    }
    let mut named = sent("netns-name").body;
    named.drain(16..24);
    assert_eq!(rename(2, "foo1").body, named);
}

#[test]
fn an_rdma_device_is_moved_as_iproute2_does_it() {
    let recorded = sent("rdma-netns");
    let message = rdma::move_device(0, 4);
    assert_eq!(message.message_type(), recorded.kind);
    assert_eq!(message.attributes, recorded.body);
    assert_eq!(nldev::command(recorded.kind), Some(nldev::RDMA_NLDEV_CMD_SET));
}

#[test]
fn addresses_are_put_back_as_iproute2_sets_them() {
    let kept: Vec<Vec<u8>> = recorded("addresses")
        .iter()
        .filter_map(|message| keep_address(&message.body, 2, "d0").unwrap())
        .collect();
    let names = ["addr-v4", "addr-v4-second", "addr-v6"];
    assert_eq!(kept.len(), names.len(), "the link-local one comes by itself");
    for (saved, name) in kept.iter().zip(names) {
        let mut theirs = sorted(&sent(name), 8);
        if name == "addr-v6" {
            // The kernel tells one of the two, and takes either.
            theirs.2.retain(|(kind, _)| *kind != IFA_LOCAL);
        }
        assert_eq!(sorted(&new_address(saved, 2), 8), theirs, "{name}");
        assert_eq!(saved[4..8], [0; 4], "{name}");
    }
    assert_eq!(address_of(&kept[1]), Some("10.9.0.2".parse().unwrap()));
    assert_eq!(address_of(&kept[2]), Some("fd00::5".parse().unwrap()));
    let body = &recorded("addresses")[0].body;
    assert_eq!(keep_address(body, 3, "d0"), Ok(None), "another interface's");
    let labelled = keep_address(body, 2, "eth7").unwrap().unwrap();
    assert!(labelled.windows(2).any(|pair| pair == b"d0"), "a label that somebody chose stays");
}

#[test]
fn routes_are_put_back_as_iproute2_sets_them() {
    let kept: Vec<Vec<u8>> = recorded("routes")
        .iter()
        .filter_map(|message| match keep_route(&message.body, 2).unwrap() {
            KeptRoute::Saved(saved) => Some(saved),
            KeptRoute::None => None,
            KeptRoute::Shared(why) => panic!("{why}"),
        })
        .collect();
    let names = ["route-table", "route-main", "route-v6"];
    assert_eq!(kept.len(), names.len(), "those of addresses come by themselves");
    for (saved, name) in kept.iter().zip(names) {
        let (kind, ours, mine) = sorted(&new_route(saved, 2), 12);
        let (_, theirs, other) = sorted(&sent(name), 12);
        // The kernel names the table twice, and gives IPv6 routes their default metric.
        assert_eq!((kind, ours[..4].to_vec()), (RTM_NEWROUTE, theirs[..4].to_vec()), "{name}");
        assert_eq!(ours[5..], theirs[5..], "{name}");
        assert!(other.iter().all(|attribute| mine.contains(attribute)), "{name}: {mine:?}");
        let more: Vec<u16> = mine.iter().filter(|a| !other.contains(a)).map(|a| a.0).collect();
        assert!(more.iter().all(|kind| matches!(kind, 6 | 15 | 20)), "{name}: {more:?}");
        assert!(has_gateway(saved), "{name}");
    }
    assert_eq!(keep_route(&recorded("routes")[0].body, 9), Ok(KeptRoute::None));
}

#[test]
fn routes_that_others_have_a_part_in_are_named() {
    let mut several = sent("route-main").body;
    several.truncate(several.len() - 8);
    let hop = |index: u32| [&[8, 0, 0, 0][..], &index.to_ne_bytes()].concat();
    put(&mut several, RTA_MULTIPATH, &[hop(2), hop(7)].concat());
    assert!(
        matches!(keep_route(&several, 7), Ok(KeptRoute::Shared(why)) if why.contains("others") || why.contains("other interfaces"))
    );
    assert_eq!(keep_route(&several, 8), Ok(KeptRoute::None));
    let mut object = sent("route-main").body;
    put_u32(&mut object, RTA_NH_ID, 5);
    assert!(matches!(keep_route(&object, 2), Ok(KeptRoute::Shared(_))));
    assert_eq!(keep_route(&object, 3), Ok(KeptRoute::None));
}

#[test]
fn rules_are_put_back_as_iproute2_sets_them() {
    let addresses = ["10.9.0.1".parse().unwrap()];
    let kept: Vec<Vec<u8>> = recorded("rules")
        .iter()
        .filter_map(|message| keep_rule(&message.body, "d0", &addresses).unwrap())
        .collect();
    let names = ["rule-from", "rule-iif"];
    assert_eq!(kept.len(), names.len());
    for (saved, name) in kept.iter().zip(names) {
        let (kind, ours, mine) = sorted(&new_rule(saved, "d0", "d0"), 12);
        let (_, theirs, other) = sorted(&sent(name), 12);
        assert_eq!((kind, ours[..4].to_vec()), (RTM_NEWRULE, theirs[..4].to_vec()), "{name}");
        assert_eq!(ours[5..], theirs[5..], "{name}");
        assert!(other.iter().all(|attribute| mine.contains(attribute)), "{name}: {mine:?}");
    }
    let renamed = new_rule(&kept[1], "d0", "rdma0").body;
    assert!(renamed.windows(6).any(|bytes| bytes == b"rdma0\0"), "{renamed:?}");
    for (addresses, name, wanted) in [
        (&["10.9.0.2".parse().unwrap()][..], "d0", 1),
        (&addresses[..], "eth0", 1),
        (&[], "eth0", 0),
    ] {
        let found = recorded("rules")
            .iter()
            .filter(|message| keep_rule(&message.body, name, addresses).unwrap().is_some())
            .count();
        assert_eq!(found, wanted, "{addresses:?} {name}");
    }
}

#[test]
fn who_uses_a_device_is_told_apart() {
    let makers: Vec<Maker> =
        recorded("makers").iter().flat_map(|m| Maker::parse(&m.body).unwrap()).collect();
    assert_eq!(makers[0], Maker { pid: Some(319), kernel: None });
    assert_eq!(makers[1], Maker { pid: None, kernel: Some("ib_core".into()) });
}

#[test]
fn prefixes_hold_their_addresses() {
    let within = |a: &str, p: &str, l| super::within(a.parse().unwrap(), p.parse().unwrap(), l);
    assert!(within("10.9.0.1", "10.9.0.0", 24));
    assert!(!within("10.9.1.1", "10.9.0.0", 24));
    assert!(!within("10.9.0.1", "0.0.0.0", 0), "a rule for everybody is nobody's");
    assert!(within("fd00::5", "fd00::5", 128));
    assert!(!within("fd00::5", "10.9.0.0", 8));
    assert!(!within("10.9.0.1", "10.9.0.1", 33));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Netdev::parse(&bytes);
        let _ = Maker::parse(&bytes);
        let _ = address_of(&bytes);
        let _ = (new_address(&bytes, 1), new_route(&bytes, 1), new_rule(&bytes, "a", "b"));
        if let Ok(Some(saved)) = keep_address(&bytes, 0, "d0") {
            prop_assert_eq!(&new_address(&saved, 7).body[4..8], &7_u32.to_ne_bytes());
        }
        let _ = (keep_route(&bytes, 0), keep_rule(&bytes, "", &[]), has_gateway(&bytes));
    }
}
