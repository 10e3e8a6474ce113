use proptest::prelude::*;

use super::kobject::{self, Action, Subsystem};
use super::nldev::{self, EventType, System};
use super::rdma::{Message, Query, Rdma, vanished};
use super::reply::{Reply, messages};
use super::route::{self, Answer, Link, Route};
use super::*;

const RECORDED: &str = include_str!("fixtures/linux-6.12.hex");

/// Datagrams of that name, in order.
pub fn recorded(name: &str) -> Vec<Vec<u8>> {
    recorded_after("", name)
}

/// Datagrams of that name behind the comment `mark`, up to the next comment.
pub fn recorded_after(mark: &str, name: &str) -> Vec<Vec<u8>> {
    RECORDED
        .lines()
        .skip_while(|line| !mark.is_empty() && line.strip_prefix("# ") != Some(mark))
        .skip(1)
        .take_while(|line| mark.is_empty() || !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .filter(|(key, _)| *key == name)
        .map(|(_, hex)| {
            let digits = hex.as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            digits.map(byte).collect()
        })
        .collect()
}

/// Plays a recorded answer, whose question had sequence number 7.
fn play<F: Family>(name: &str) -> Result<Vec<F::Answer>, Error> {
    let mut reply = Reply::new("it", 7, 100);
    let datagrams = recorded(name);
    assert!(!datagrams.is_empty(), "{name}");
    for (at, datagram) in datagrams.iter().enumerate() {
        let last = reply.take::<F>(datagram, Some)?;
        assert_eq!(last, at + 1 == datagrams.len(), "{name} {at}");
    }
    assert!(!reply.interrupted);
    Ok(reply.kept)
}

fn nldev<T>(name: &str, parse: fn(&[u8]) -> Result<T, attribute::Malformed>) -> T {
    let answers = play::<Rdma>(name).unwrap();
    let [Message { attributes, .. }] = &answers[..] else { panic!("{answers:?}") };
    parse(attributes).unwrap()
}

#[test]
fn nldev_describes_a_soft_roce_device() {
    assert_eq!(
        nldev("devices", nldev::Device::parse),
        nldev::Device {
            index: 0,
            name: "rxe0".into(),
            node_type: Some(1),
            node_guid: Some(0x5054_00ff_fe77_0001),
            protocol: Some("roce".into()),
            firmware: None,
        }
    );
    assert_eq!(
        nldev("ports", nldev::Port::parse),
        nldev::Port {
            number: 1,
            state: Some(4),
            lid: None,
            netdev_index: Some(2),
            netdev: Some("eth0".into()),
        }
    );
    assert_eq!(nldev("system", System::parse), System { shared: Some(true), monitor: true });
}

#[test]
fn nldev_gives_the_numbers_of_character_devices() {
    let uverbs = nldev("uverbs", nldev::CharDevice::parse);
    assert_eq!((&*uverbs.name, uverbs.major, uverbs.minor), ("uverbs0", 231, 192));
    assert_eq!(uverbs.driver_id, Some(14));
    // A minor number above 255.
    let rdma_cm = nldev("rdma_cm", nldev::CharDevice::parse);
    assert_eq!((&*rdma_cm.name, rdma_cm.major, rdma_cm.minor), ("rdma_cm", 10, 260));
    assert_eq!(rdma_cm.driver_id, None);
}

#[test]
fn numbers_are_packed_as_the_kernel_packs_them() {
    for (number, pair) in [
        (0xe7c0, (231, 192)),
        (0x0010_0a04, (10, 260)),
        (0xffff_ffff, (0xfff, 0xf_ffff)),
        (0, (0, 0)),
    ] {
        assert_eq!(nldev::huge_decode_dev(number), pair, "{number:#x}");
    }
}

#[test]
fn refusals_carry_their_reason() {
    for (name, errno, gone) in [
        ("port_of_none", Errno::EINVAL, true),
        ("uverbs_of_none", Errno::EINVAL, true),
        ("uverbs_with_port", Errno::EINVAL, true),
        ("unknown_client", Errno::EOPNOTSUPP, false),
    ] {
        let error = play::<Rdma>(name).unwrap_err();
        assert_eq!((error.refusal(), vanished(&error)), (Some(errno), gone), "{name}");
    }
    assert_eq!(
        play::<Route>("bad_link_dump").unwrap_err().to_string(),
        "NETLINK_ROUTE refuses it: EINVAL: Invalid argument (Filter by device index not supported \
         for link dumps)"
    );
}

#[test]
fn questions_are_what_the_kernel_was_asked_when_it_was_recorded() {
    // The kernel quotes a question that it refuses.
    let quoted = &recorded("uverbs_of_none")[0][20..];
    let message = Message::from(Query::Uverbs { device: 99 });
    assert_eq!(&quoted[16..], message.attributes);
    assert_eq!(quoted[4..6], nldev::message_type(message.command).to_ne_bytes());
    // It has a port only where a port may be.
    let ports = |query| {
        let message = Message::from(query);
        attribute::parse(&message.attributes)
            .filter(|a| a.as_ref().unwrap().kind == nldev::RDMA_NLDEV_ATTR_PORT_INDEX)
            .count()
    };
    assert_eq!(ports(Query::Uverbs { device: 1 }), 0);
    assert_eq!(ports(Query::RdmaCm), 0);
    assert_eq!(ports(Query::Umad { device: 1, port: 2 }), 1);
    assert_eq!(ports(Query::Issm { device: 1, port: 2 }), 1);
}

fn link(name: &str) -> Link {
    let links = play::<Route>("links").unwrap().into_iter();
    let named = |answer| match answer {
        Answer::Link(link) => (link.name == name).then_some(link),
        _ => None,
    };
    links.filter_map(named).next().unwrap()
}

#[test]
fn links_tell_what_they_lie_on() {
    let lo = link("lo");
    assert!(lo.loopback && lo.up);
    assert_eq!((&lo.kind, lo.lower), (&None, None));
    let eth0 = link("eth0");
    assert_eq!(eth0.kind.as_deref(), Some("veth"));
    assert!(eth0.lower_elsewhere && eth0.up && !eth0.loopback);
    assert_eq!(eth0.address.len(), 6);
    for (name, kind, lower) in
        [("mv0", "macvlan", "eth0"), ("vl0", "vlan", "eth0"), ("iv0", "ipvlan", "eth1")]
    {
        let upper = link(name);
        assert_eq!(upper.kind.as_deref(), Some(kind));
        assert_eq!(upper.lower, Some(link(lower).index), "{name}");
        assert!(!upper.lower_elsewhere, "{name}");
    }
    // An ipvlan on the host's eth0, whose index there is 2.
    let net1 = link("net1");
    assert_eq!(net1.kind.as_deref(), Some("ipvlan"));
    assert_eq!((net1.lower, net1.lower_elsewhere), (Some(2), true));
}

#[test]
fn addresses_are_the_interfaces_own() {
    let addresses: Vec<(u32, String, u8)> = play::<Route>("addresses")
        .unwrap()
        .into_iter()
        .filter_map(|answer| match answer {
            Answer::Address(address) => address,
            _ => None,
        })
        .map(|a| (a.index, a.address.to_string(), a.prefix))
        .collect();
    let (eth0, mv0) = (link("eth0").index, link("mv0").index);
    assert!(addresses.contains(&(eth0, "10.1.0.2".into(), 24)), "{addresses:?}");
    assert!(addresses.contains(&(mv0, "fd00::5".into(), 64)), "{addresses:?}");
    // Its peer is 10.2.0.9.
    assert!(addresses.contains(&(mv0, "10.2.0.1".into(), 32)), "{addresses:?}");
}

#[test]
fn default_routes_are_found_among_others() {
    let routes = |name| -> Vec<Vec<u32>> {
        let answers = play::<Route>(name).unwrap().into_iter();
        answers
            .filter_map(|answer| match answer {
                Answer::DefaultRoute(interfaces) => Some(interfaces),
                _ => None,
            })
            .filter(|interfaces| !interfaces.is_empty())
            .collect()
    };
    let (eth0, mv0) = (link("eth0").index, link("mv0").index);
    assert_eq!(routes("routes4"), [vec![eth0], vec![eth0, mv0]]);
    assert_eq!(routes("routes6"), [[mv0]]);
}

#[test]
fn the_monitor_tells_of_devices_and_their_interfaces() {
    let kinds = |mark| -> Vec<EventType> {
        recorded_after(mark, "monitor")
            .iter()
            .flat_map(|datagram| messages(datagram).map(Result::unwrap).collect::<Vec<_>>())
            .map(|(header, payload)| {
                assert_eq!(
                    nldev::command(header.message_type),
                    Some(nldev::RDMA_NLDEV_CMD_MONITOR)
                );
                let event = nldev::Event::parse(payload).unwrap();
                assert_eq!(event.name.as_deref(), Some("rxe0"));
                event.kind
            })
            .collect()
    };
    assert_eq!(kinds("rxe del"), [EventType::Unregister]);
    assert_eq!(kinds("rxe add"), [EventType::Register, EventType::NetdevAttach]);
}

#[test]
fn uevents_are_read_for_what_matters() {
    let uevents = |mark| -> Vec<Option<(Action, Subsystem)>> {
        recorded_after(mark, "uevent")
            .iter()
            .map(|message| kobject::parse(message).map(|event| (event.action, event.subsystem)))
            .collect()
    };
    assert_eq!(uevents("rename"), [Some((Action::Move, Subsystem::Infiniband))]);
    assert_eq!(
        uevents("rxe del"),
        [
            Some((Action::Remove, Subsystem::Mad)),
            Some((Action::Remove, Subsystem::Verbs)),
            Some((Action::Remove, Subsystem::Infiniband)),
        ]
    );
    // The module itself is of no interest; the node that it made is.
    let unloaded = uevents("rmmod rdma_ucm");
    assert_eq!(unloaded[..2], [Some((Action::Remove, Subsystem::RdmaCm)), None]);
    assert_eq!(
        uevents("veth").iter().flatten().collect::<Vec<_>>(),
        [&(Action::Add, Subsystem::Net)]
    );
    assert_eq!(kobject::parse(b"libudev\0\xfe\xed\xca\xfe"), None);
    assert_eq!(kobject::parse(b""), None);
    assert_eq!(kobject::parse(b"add@/x"), None);
}

#[test]
fn answers_to_other_questions_are_told_apart() {
    let datagram = &recorded("devices")[0];
    let take = |sequence| {
        let mut reply = Reply::new("it", sequence, 100);
        reply.take::<Rdma>(datagram, Some).map(|last| (last, reply.kept.len()))
    };
    assert_eq!(take(7), Ok((false, 1)));
    // A late answer to a question that was given up.
    assert_eq!(take(8), Ok((false, 0)));
    assert_eq!(take(2_000_000_000), Ok((false, 0)));
    let error = Error::Sequence { family: Rdma::NAME, request: "it", want: 6, got: 7 };
    assert_eq!(take(6), Err(error));
}

#[test]
fn a_list_that_changed_meanwhile_is_noticed() {
    let mut datagram = recorded("devices")[0].clone();
    datagram[6] |= 0x10;
    let mut reply = Reply::new("it", 7, 100);
    assert_eq!(reply.take::<Rdma>(&datagram, Some), Ok(false));
    assert!(reply.interrupted);
}

#[test]
fn a_list_without_end_is_given_up() {
    let datagram = &recorded("devices")[0];
    let mut reply = Reply::new("it", 7, 2);
    assert_eq!(reply.take::<Rdma>(datagram, Some), Ok(false));
    assert_eq!(reply.take::<Rdma>(datagram, Some), Ok(false));
    assert_eq!(
        reply.take::<Rdma>(datagram, Some).unwrap_err().to_string(),
        "NETLINK_RDMA has more than 2 answers to it"
    );
}

proptest! {
    #[test]
    fn any_datagram_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        total(&bytes);
    }

    /// What the kernel said, with a few bytes changed or its end missing.
    #[test]
    fn any_damage_is_survived(
        which in 0_usize..100,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let lines: Vec<&str> = RECORDED.lines().filter(|line| !line.starts_with('#')).collect();
        let (name, _) = lines[which % lines.len()].split_once(' ').unwrap();
        for mut datagram in recorded(name) {
            for (at, byte) in &changes {
                let at = at.index(datagram.len());
                datagram[at] = *byte;
            }
            total(&datagram);
            datagram.truncate(cut.index(datagram.len()));
            total(&datagram);
        }
    }
}

/// Every reader of this module has an answer to these bytes.
fn total(bytes: &[u8]) {
    let _ = Reply::new("it", 7, 100).take::<Rdma>(bytes, Some);
    let _ = Reply::new("it", 7, 100).take::<Route>(bytes, Some);
    let _ = nldev::Device::parse(bytes);
    let _ = nldev::Port::parse(bytes);
    let _ = nldev::CharDevice::parse(bytes);
    let _ = System::parse(bytes);
    let _ = nldev::Event::parse(bytes);
    let _ = Link::parse(bytes);
    let _ = route::Address::parse(bytes);
    let _ = kobject::parse(bytes);
    assert!(messages(bytes).count() <= bytes.len());
}

/// The build machine speaks rtnetlink too, whatever else it is.
#[test]
fn the_running_kernel_lists_its_interfaces() {
    let interfaces = Socket::<Route>::open().unwrap().interfaces().unwrap();
    let lo = interfaces.iter().find(|interface| interface.link.loopback).unwrap();
    assert_eq!(lo.link.index, 1);
    assert!(interfaces.is_sorted_by_key(|interface| interface.link.index));
}
