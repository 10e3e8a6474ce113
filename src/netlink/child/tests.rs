use proptest::prelude::*;

use super::super::change::tests::{sent, sorted};
use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn children_are_made_as_iproute2_makes_them() {
    for (name, kind, parent) in
        [("child-ipvlan", Kind::Ipvlan, 2), ("child-macvlan", Kind::Macvlan, 3)]
    {
        let (message, header, mine) = sorted(&create(kind, parent, 4, "rdma0"), LINK_HEADER);
        let (theirs, _, mut other) = sorted(&sent(name), LINK_HEADER);
        // Switched on with it, which iproute2 does by a message of its own.
        assert_eq!((message, &header[8..12]), (theirs, &1_u32.to_ne_bytes()[..]), "{name}");
        if kind == Kind::Ipvlan {
            // The flags of all children of the parent, which are none of ours to set.
            let info = other.iter_mut().find(|(kind, _)| *kind == IFLA_LINKINFO).unwrap();
            info.1.truncate(info.1.len() - 8);
            info.1[12] -= 8;
        }
        assert_eq!(mine, other, "{name}");
    }
    assert_eq!(delete(3), sent("child-delete"));
}

#[test]
fn addresses_routes_and_rules_are_set_as_iproute2_sets_them() {
    let way = Way {
        to: (ip("10.51.0.0"), 16),
        gateway: Some(ip("10.9.0.9")),
        source: Some(ip("10.9.0.1")),
        table: 1007,
        metric: Some(77),
    };
    for (name, message, header) in [
        ("addr-v4-second", address(2, ip("10.9.0.2"), 24), 8),
        ("addr-v6", address(2, ip("fd00::5"), 64), 8),
        ("route-table", route(2, &way), 12),
        ("rule-from", rule(ip("10.9.0.1"), 1007, 500), 12),
    ] {
        let (kind, mut fixed, attributes) = sorted(&message, header);
        let mut theirs = sorted(&sent(name), header);
        if name == "route-table" {
            assert_eq!((fixed[5], theirs.1[5]), (RTPROT_STATIC, 3), "who has set it");
            (fixed[5], theirs.1[5]) = (0, 0);
        }
        assert_eq!((kind, fixed, attributes), theirs, "{name}");
    }
    let everywhere = Way { to: (ip("10.0.0.0"), 0), source: None, table: 254, metric: None, ..way };
    let (_, fixed, attributes) = sorted(&route(2, &everywhere), 12);
    assert_eq!(fixed, [AF_INET, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0]);
    assert_eq!(attributes.iter().map(|a| a.0).collect::<Vec<_>>(), [RTA_OIF, RTA_GATEWAY]);
    let near = route(2, &Way { gateway: None, to: (ip("10.9.0.0"), 24), ..everywhere });
    assert_eq!(near.body[6], SCOPE_LINK);
    assert_eq!(address(2, ip("10.9.0.2"), 32).body.len(), 24, "no broadcast of one address");
}

#[test]
fn settings_are_nested_below_their_family() {
    let message = configure(7, &[(Conf::ArpIgnore, 1), (Conf::RpFilter, 2)]);
    let families = attribute::parse(&message.body[LINK_HEADER..]).next().unwrap().unwrap();
    let inet = families.nested().next().unwrap().unwrap();
    let conf = inet.nested().next().unwrap().unwrap();
    assert_eq!((families.kind, inet.kind, conf.kind), (IFLA_AF_SPEC, 2, IFLA_INET_CONF));
    let set: Vec<(u16, u64)> =
        conf.nested().map(|a| a.map(|a| (a.kind, a.number().unwrap())).unwrap()).collect();
    assert_eq!(set, [(19, 1), (8, 2)]);
}

#[test]
fn a_child_is_read_with_its_parent() {
    let mut message = create(Kind::Ipvlan, 5, 4, "rdma0");
    put(&mut message.body, IFLA_LINK_NETNSID, &0_i32.to_ne_bytes());
    put_u32(&mut message.body, IFLA_MTU, 4200);
    let upper = Upper::parse(&message.body).unwrap();
    let wanted = Upper {
        name: "rdma0".into(),
        kind: "ipvlan".into(),
        mode: Some(0),
        lower: Some(5),
        elsewhere: true,
        mtu: 4200,
        ..Upper::default()
    };
    assert_eq!(upper, wanted);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Upper::parse(&bytes);
    }

    #[test]
    fn any_address_and_length_make_a_message(
        ip in any::<IpAddr>(), length in any::<u8>(), table in any::<u32>()
    ) {
        let way =
            Way { to: (ip, length), gateway: None, source: None, table, metric: None };
        for (message, header) in
            [(address(1, ip, length), 8), (route(1, &way), 12), (rule(ip, table, 1), 12)]
        {
            let read: Result<Vec<_>, _> = attribute::parse(&message.body[header..]).collect();
            prop_assert!(read.is_ok());
        }
    }
}
