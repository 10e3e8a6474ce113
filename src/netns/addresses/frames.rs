//! What is sent on the wire to ask whether an address is in use, and what is heard of it: ARP probes
//! (RFC 5227) and duplicate address detection of IPv6 (RFC 4862, with the messages of RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A link-layer address of Ethernet.
pub type Mac = [u8; 6];

/// `ETH_P_ARP`
pub const ARP: u16 = 0x0806;
/// `ETH_P_IPV6`
pub const IPV6: u16 = 0x86dd;

const EVERYBODY: Mac = [0xff; 6];
/// Link-layer address of all nodes of IPv6, to whom an answer goes.
pub const ALL_NODES: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The frame that asks for that address, sent from that interface by one who has none yet.
pub fn probe(from: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp(from, address),
        IpAddr::V6(address) => solicitation(from, address),
    }
}

/// The link-layer address at which holders of that address are asked (RFC 2464).
pub fn group(address: Ipv6Addr) -> Mac {
    let [.., a, b, c] = address.octets();
    [0x33, 0x33, 0xff, a, b, c]
}

fn arp(from: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(EVERYBODY);
    frame.extend(from);
    frame.extend(ARP.to_be_bytes());
    // Ethernet, IPv4, lengths 6 and 4, a request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from);
    // A sender without address, so that nobody's table changes.
    frame.extend([0; 4]);
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

fn solicitation(from: Mac, address: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = address.octets();
    let group_address = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        u16::from_be_bytes([0xff, a]),
        u16::from_be_bytes([b, c]),
    );
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(address.octets());
    let sum = checksum(Ipv6Addr::UNSPECIFIED, group_address, &body).to_be_bytes();
    body[2..4].copy_from_slice(&sum);
    let mut frame = Vec::with_capacity(78);
    frame.extend(group(address));
    frame.extend(from);
    frame.extend(IPV6.to_be_bytes());
    // Version 6, 24 bytes, ICMPv6, the hop limit that proves a neighbour.
    frame.extend([0x60, 0, 0, 0, 0, 24, ICMPV6, 255]);
    frame.extend(Ipv6Addr::UNSPECIFIED.octets());
    frame.extend(group_address.octets());
    frame.extend(body);
    frame
}

/// Checksum of ICMPv6 (RFC 4443, 2.3), over a body of even length in which it is zero.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> u16 {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    let parts: [&[u8]; 5] = [&from.octets(), &to.octets(), &length, &[0, 0, 0, ICMPV6], body];
    let mut sum: u32 = 0;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        sum += u32::from(word);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// The address that somebody has, or is about to take, as a frame says; `own` are the link-layer
/// addresses of those who ask.
pub fn claimed(frame: &[u8], own: &[Mac]) -> Option<IpAddr> {
    let from = mac(frame.get(6..12)?)?;
    match u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?) {
        ARP => claimed_by_arp(frame.get(14..42)?, own),
        IPV6 => claimed_by_neighbour(frame.get(14..)?, from, own),
        _ => None,
    }
}

fn claimed_by_arp(body: &[u8], own: &[Mac]) -> Option<IpAddr> {
    if body.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let operation = u16::from_be_bytes(body.get(6..8)?.try_into().ok()?);
    let sender_mac = mac(body.get(8..14)?)?;
    let four = |from: usize| -> Option<Ipv4Addr> {
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(body.get(from..from + 4)?).ok()?))
    };
    let (sender, target) = (four(14)?, four(24)?);
    if !matches!(operation, 1 | 2) {
        return None;
    }
    if !sender.is_unspecified() {
        // Whoever sends from an address has it, the sub-interface of another pod too, whose
        // link-layer address (of ipvlan) is ours.
        return Some(sender.into());
    }
    // Somebody else's probe: both want it, and neither should have it (RFC 5227, 2.1.1).
    (operation == 1 && !own.contains(&sender_mac) && !target.is_unspecified())
        .then_some(target.into())
}

fn claimed_by_neighbour(packet: &[u8], from: Mac, own: &[Mac]) -> Option<IpAddr> {
    let header = packet.get(..40)?;
    let neighbour = header[0] >> 4 == 6 && header[6] == ICMPV6 && header[7] == 255;
    let body = packet.get(40..64).filter(|_| neighbour)?;
    let sender = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?);
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&body[8..24]).ok()?);
    let claims = match (body[0], body[1]) {
        (ADVERTISEMENT, 0) => true,
        (SOLICITATION, 0) => sender.is_unspecified() && !own.contains(&from),
        _ => false,
    };
    (claims && !target.is_multicast() && !target.is_unspecified()).then_some(target.into())
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 2];

    fn bytes(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn an_arp_probe_is_that_of_the_rfc() {
        let frame = probe(OURS, "10.1.0.7".parse().unwrap());
        assert_eq!(
            frame,
            bytes(
                "ffffffffffff 020000000001 0806 0001 0800 06 04 0001
                 020000000001 00000000 000000000000 0a010007"
            )
        );
    }

    #[test]
    fn a_solicitation_is_that_of_duplicate_address_detection() {
        let frame = probe(OURS, "fd00::12:3456".parse().unwrap());
        assert_eq!(
            frame[..54],
            bytes(
                "3333ff123456 020000000001 86dd 60000000 0018 3a ff
                 00000000000000000000000000000000 ff0200000000000000000001ff123456"
            )
        );
        assert_eq!(frame[54..56], [135, 0]);
        assert_eq!(frame[58..], bytes("00000000 fd000000000000000000000000123456"));
        // The checksum over what it covers, itself included, is zero.
        let (from, to) = (Ipv6Addr::UNSPECIFIED, "ff02::1:ff12:3456".parse().unwrap());
        assert_eq!(checksum(from, to, &frame[54..]), 0);
    }

    #[test]
    fn who_answers_or_asks_for_itself_claims_an_address() {
        let arp = |operation: &str, mac: &str, sender: &str, target: &str| {
            bytes(&format!(
                "ffffffffffff {mac} 0806 0001 0800 06 04 {operation} {mac} {sender} 000000000000 {target}"
            ))
        };
        let (ours, theirs) = ("020000000001", "020000000002");
        for (operation, mac, sender, target, claims) in [
            // An answer, by somebody else or by another pod's ipvlan with our link-layer address.
            ("0002", theirs, "0a010007", "00000000", Some("10.1.0.7")),
            ("0002", ours, "0a010007", "00000000", Some("10.1.0.7")),
            // An announcement, and any question of its holder.
            ("0001", theirs, "0a010007", "0a010007", Some("10.1.0.7")),
            ("0001", theirs, "0a010007", "0a010001", Some("10.1.0.7")),
            // A probe: another's counts, our own does not.
            ("0001", theirs, "00000000", "0a010007", Some("10.1.0.7")),
            ("0001", ours, "00000000", "0a010007", None),
            ("0002", theirs, "00000000", "0a010007", None),
            ("0003", theirs, "0a010007", "0a010007", None),
        ] {
            let frame = arp(operation, mac, sender, target);
            let claimed = claimed(&frame, &[OURS]).map(|address| address.to_string());
            assert_eq!(claimed.as_deref(), claims, "{operation} {mac} {sender} {target}");
        }
        let neighbour = |kind: u8, from: Mac, sender: Ipv6Addr, hops: u8| {
            let mut frame = probe(from, "fd00::7".parse().unwrap());
            frame[21] = hops;
            frame[22..38].copy_from_slice(&sender.octets());
            frame[54] = kind;
            claimed(&frame, &[OURS]).map(|address| address.to_string())
        };
        let none = Ipv6Addr::UNSPECIFIED;
        let sender: Ipv6Addr = "fd00::7".parse().unwrap();
        assert_eq!(neighbour(136, THEIRS, sender, 255).as_deref(), Some("fd00::7"));
        assert_eq!(neighbour(136, OURS, sender, 255).as_deref(), Some("fd00::7"));
        assert_eq!(neighbour(136, THEIRS, sender, 64), None, "it came over a router");
        assert_eq!(neighbour(135, THEIRS, none, 255).as_deref(), Some("fd00::7"));
        assert_eq!(neighbour(135, OURS, none, 255), None);
        assert_eq!(neighbour(135, THEIRS, sender, 255), None, "it looks for somebody else");
    }

    proptest::proptest! {
        #[test]
        fn no_frame_panics(frame in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..90)) {
            let _ = claimed(&frame, &[OURS]);
        }

        #[test]
        fn no_part_of_a_frame_panics(address in proptest::prelude::any::<[u8; 16]>(), length in 0..80usize) {
            let mut frame = probe(OURS, IpAddr::from(address));
            frame.truncate(length);
            let _ = claimed(&frame, &[THEIRS]);
        }
    }
}
