//! `NETLINK_ROUTE`, the other half: what changes a namespace, and what has to be put back after an
//! interface was in another one.
//!
//! An interface that changes its namespace loses its addresses and routes. They are kept as the
//! kernel told them, less what it adds by itself ([`keep_address`], [`keep_route`], [`keep_rule`]),
//! so that an attribute which is not known here is not lost either.

use std::net::IpAddr;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkSerializable,
};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::attribute::{self, Attribute, Malformed, put, put_text, put_u32};
use super::{Error, Family, Socket};

/// The family of rtnetlink, with messages as they are on the wire.
#[derive(Debug)]
pub struct Change;

/// A message: its type and all that follows the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `RTM_…`
    pub kind: u16,
    /// Fixed part and attributes.
    pub body: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { kind: header.message_type, body: payload.to_vec() })
    }
}

impl Family for Change {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkRoute;
    const NAME: &'static str = "NETLINK_ROUTE";
    type Request = Message;
    type Answer = Message;

    fn name(message_type: u16) -> &'static str {
        match message_type {
            RTM_NEWLINK => "RTM_NEWLINK",
            RTM_DELLINK => "RTM_DELLINK",
            RTM_GETLINK => "RTM_GETLINK",
            RTM_NEWADDR => "RTM_NEWADDR",
            RTM_GETADDR => "RTM_GETADDR",
            RTM_NEWROUTE => "RTM_NEWROUTE",
            RTM_GETROUTE => "RTM_GETROUTE",
            RTM_NEWRULE => "RTM_NEWRULE",
            RTM_GETRULE => "RTM_GETRULE",
            _ => "a message of rtnetlink",
        }
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_PARENT_DEV_NAME: u16 = 56;
/// `RTEXT_FILTER_SKIP_STATS`
const SKIP_STATS: u32 = 8;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_RT_PRIORITY: u16 = 9;
const IFA_PROTO: u16 = 11;
/// On IPv6; on IPv4 the same bit is `IFA_F_SECONDARY`, which the kernel sets by itself.
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_NODAD: u32 = 0x02;
/// What somebody chose: `NODAD`, `HOMEADDRESS`, `MANAGETEMPADDR`, `NOPREFIXROUTE`, `MCAUTOJOIN`.
const IFA_CHOSEN: u32 = IFA_F_NODAD | 0x10 | 0x100 | 0x200 | 0x400;
/// `IFAPROT_KERNEL_LO`, `_RA` and `_LL`: the kernel has made it, and will again.
const IFAPROT_KERNEL: std::ops::RangeInclusive<u64> = 1..=3;

const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_VIA: u16 = 18;
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;
/// `RTPROT_REDIRECT`, `RTPROT_KERNEL`, `RTPROT_RA`: they come by themselves.
const BY_ITSELF: [u8; 3] = [1, 2, 9];
const RTN_UNICAST: u8 = 1;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_ONLINK: u32 = 4;

const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_OIFNAME: u16 = 17;
/// `FIB_RULE_INVERT`, the only flag that is not the kernel's own.
const FIB_RULE_INVERT: u32 = 2;

/// Lengths of `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg`, `struct fib_rule_hdr`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const RULE_HEADER: usize = 12;
const HOP_HEADER: usize = 8;

/// An interface as far as moving it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Netdev {
    /// `ifindex`; another namespace may give it another one.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Whether it is switched on.
    pub up: bool,
    /// Present link-layer address.
    pub address: Vec<u8>,
    /// That which the card was made with (5.6 and later; virtual interfaces have none).
    pub permanent: Vec<u8>,
    /// The device that it belongs to, such as a PCI address (5.13 and later).
    pub parent: Option<String>,
}

impl Netdev {
    /// Reads the body of an `RTM_NEWLINK`.
    ///
    /// # Errors
    /// The body is cut short or no run of attributes.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let header = header::<LINK_HEADER>(body, "struct ifinfomsg")?;
        let mut netdev = Self {
            index: u32_at(header, 4),
            up: u32_at(header, 8) & IFF_UP != 0,
            ..Self::default()
        };
        for attribute in attribute::parse(&body[LINK_HEADER..]) {
            let attribute = attribute?;
            match attribute.kind {
                IFLA_IFNAME => netdev.name = attribute.text()?.to_owned(),
                IFLA_MTU => netdev.mtu = attribute.small()?,
                IFLA_ADDRESS => netdev.address = attribute.value.to_vec(),
                IFLA_PERM_ADDRESS => netdev.permanent = attribute.value.to_vec(),
                IFLA_PARENT_DEV_NAME => netdev.parent = Some(attribute.text()?.to_owned()),
                _ => {}
            }
        }
        Ok(netdev)
    }
}

/// Moves an interface into the namespace behind a descriptor, under another name if one is given.
pub fn move_link(index: u32, namespace: u32, name: Option<&str>) -> Message {
    let mut body = link(index, 0, 0);
    put_u32(&mut body, IFLA_NET_NS_FD, namespace);
    if let Some(name) = name {
        put_text(&mut body, IFLA_IFNAME, name);
    }
    Message { kind: RTM_NEWLINK, body }
}

/// Gives an interface another name; it has to be down.
pub fn rename(index: u32, name: &str) -> Message {
    let mut body = link(index, 0, 0);
    put_text(&mut body, IFLA_IFNAME, name);
    Message { kind: RTM_NEWLINK, body }
}

/// Sets the longest packet.
pub fn set_mtu(index: u32, mtu: u32) -> Message {
    let mut body = link(index, 0, 0);
    put_u32(&mut body, IFLA_MTU, mtu);
    Message { kind: RTM_NEWLINK, body }
}

/// Sets the link-layer address.
pub fn set_address(index: u32, address: &[u8]) -> Message {
    let mut body = link(index, 0, 0);
    put(&mut body, IFLA_ADDRESS, address);
    Message { kind: RTM_NEWLINK, body }
}

/// Switches an interface on or off.
pub fn set_up(index: u32, up: bool) -> Message {
    Message { kind: RTM_NEWLINK, body: link(index, if up { IFF_UP } else { 0 }, IFF_UP) }
}

fn link(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, flags, change] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// What is kept of an address of the interface `index` by the name `name`, as the body of an
/// `RTM_NEWADDR` without an index; `None` for those of others and those that the kernel makes.
///
/// # Errors
/// The body is cut short or no run of attributes.
pub fn keep_address(body: &[u8], index: u32, name: &str) -> Result<Option<Vec<u8>>, Malformed> {
    let header = header::<ADDRESS_HEADER>(body, "struct ifaddrmsg")?;
    let [family, prefix, flags, scope, ..] = *header;
    if u32_at(header, 4) != index || !is_ip(family) {
        return Ok(None);
    }
    let (mut flags, mut protocol, mut kept) = (u32::from(flags), None, Vec::new());
    let mut address = None;
    for attribute in attribute::parse(&body[ADDRESS_HEADER..]) {
        let attribute = attribute?;
        match attribute.kind {
            IFA_FLAGS => flags = attribute.small()?,
            IFA_PROTO => protocol = Some(attribute.number()?),
            IFA_LABEL if attribute.text()? == name => {}
            // Lifetimes, which only one that was leased has.
            IFA_CACHEINFO if attribute.value.get(..8) == Some(&[0xff; 8]) => {}
            IFA_ADDRESS | IFA_LOCAL | IFA_LABEL | IFA_BROADCAST | IFA_CACHEINFO
            | IFA_RT_PRIORITY => {
                if matches!(attribute.kind, IFA_LOCAL | IFA_ADDRESS) {
                    address = address.or_else(|| ip(attribute.value));
                }
                kept.push(attribute);
            }
            _ => {}
        }
    }
    let link_local =
        matches!(address, Some(IpAddr::V6(address)) if address.is_unicast_link_local());
    // Kernels before 5.18 do not say who made it.
    let by_itself = protocol.map_or(link_local, |protocol| IFAPROT_KERNEL.contains(&protocol));
    if by_itself || (family == AF_INET6 && flags & IFA_F_TEMPORARY != 0) {
        return Ok(None);
    }
    // It was checked for duplicates when it was set, and is to be a GID at once.
    let flags = (flags & IFA_CHOSEN) | if family == AF_INET6 { IFA_F_NODAD } else { 0 };
    let short = u8::try_from(flags);
    let mut saved = vec![family, prefix, short.unwrap_or(0), scope, 0, 0, 0, 0];
    if short.is_err() {
        put_u32(&mut saved, IFA_FLAGS, flags);
    }
    for Attribute { kind, value } in kept {
        put(&mut saved, kind, value);
    }
    Ok(Some(saved))
}

/// An address that was kept, to be set on that interface.
pub fn new_address(saved: &[u8], index: u32) -> Message {
    let mut body = saved.to_vec();
    if let Some(place) = body.get_mut(4..8) {
        place.copy_from_slice(&index.to_ne_bytes());
    }
    Message { kind: RTM_NEWADDR, body }
}

/// The address in the body of an `RTM_NEWADDR`.
pub fn address_of(body: &[u8]) -> Option<IpAddr> {
    let attributes = || attribute::parse(body.get(ADDRESS_HEADER..).unwrap_or_default()).flatten();
    let find = |kind| attributes().find(|attribute| attribute.kind == kind);
    find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS)).and_then(|attribute| ip(attribute.value))
}

/// A route of the interface that is to move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptRoute {
    /// It is another interface's, or comes by itself.
    None,
    /// The body of an `RTM_NEWROUTE` without the interface.
    Saved(Vec<u8>),
    /// It cannot be taken away and put back; why, as part of a sentence.
    Shared(&'static str),
}

/// What is kept of a route.
///
/// # Errors
/// The body is cut short or no run of attributes.
pub fn keep_route(body: &[u8], index: u32) -> Result<KeptRoute, Malformed> {
    let header = header::<ROUTE_HEADER>(body, "struct rtmsg")?;
    let (protocol, kind, flags) = (header[5], header[7], u32_at(header, 8));
    let mut kept = Vec::new();
    let (mut leaves, mut several, mut object) = (false, false, false);
    for attribute in attribute::parse(&body[ROUTE_HEADER..]) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_OIF => leaves = attribute.number()? == u64::from(index),
            RTA_MULTIPATH => several = hops(attribute.value).any(|hop| hop == index),
            RTA_NH_ID => object = true,
            RTA_CACHEINFO | RTA_EXPIRES => {}
            _ => kept.push(attribute),
        }
    }
    let by_itself = BY_ITSELF.contains(&protocol) || flags & RTM_F_CLONED != 0;
    if !is_ip(header[0]) || by_itself || kind != RTN_UNICAST {
        return Ok(KeptRoute::None);
    }
    if several {
        return Ok(KeptRoute::Shared("a route goes over it and other interfaces at once"));
    }
    if !leaves {
        return Ok(KeptRoute::None);
    }
    if object {
        return Ok(KeptRoute::Shared("a route goes over it by a nexthop object"));
    }
    let mut saved = header.to_vec();
    saved[8..].copy_from_slice(&(flags & RTNH_F_ONLINK).to_ne_bytes());
    for Attribute { kind, value } in kept {
        put(&mut saved, kind, value);
    }
    Ok(KeptRoute::Saved(saved))
}

/// A route that was kept, to leave through that interface.
pub fn new_route(saved: &[u8], index: u32) -> Message {
    let mut body = saved.to_vec();
    put_u32(&mut body, RTA_OIF, index);
    Message { kind: RTM_NEWROUTE, body }
}

/// Whether a route that was kept goes by way of a neighbour, to which there has to be a route first.
pub fn has_gateway(saved: &[u8]) -> bool {
    attribute::parse(saved.get(ROUTE_HEADER..).unwrap_or_default())
        .flatten()
        .any(|attribute| matches!(attribute.kind, RTA_GATEWAY | RTA_VIA))
}

/// What is kept of a rule: one that names the interface, or is for packets from one of its
/// addresses.
///
/// # Errors
/// The body is cut short or no run of attributes.
pub fn keep_rule(
    body: &[u8],
    name: &str,
    addresses: &[IpAddr],
) -> Result<Option<Vec<u8>>, Malformed> {
    let header = header::<RULE_HEADER>(body, "struct fib_rule_hdr")?;
    let mut saved = header.to_vec();
    let flags = u32_at(header, 8) & FIB_RULE_INVERT;
    saved[8..].copy_from_slice(&flags.to_ne_bytes());
    let mut wanted = false;
    for attribute in attribute::parse(&body[RULE_HEADER..]) {
        let attribute = attribute?;
        wanted |= match attribute.kind {
            FRA_IIFNAME | FRA_OIFNAME => attribute.text()? == name,
            FRA_SRC => ip(attribute.value).is_some_and(|source| {
                addresses.iter().any(|address| within(*address, source, header[2]))
            }),
            _ => false,
        };
        put(&mut saved, attribute.kind, attribute.value);
    }
    Ok(wanted.then_some(saved).filter(|_| is_ip(header[0])))
}

/// A rule that was kept, for an interface that was called `old` and is called `new`.
pub fn new_rule(saved: &[u8], old: &str, new: &str) -> Message {
    let (header, attributes) = saved.split_at(RULE_HEADER.min(saved.len()));
    let mut body = header.to_vec();
    for Attribute { kind, value } in attribute::parse(attributes).flatten() {
        let names = matches!(kind, FRA_IIFNAME | FRA_OIFNAME)
            && Attribute { kind, value }.text() == Ok(old);
        if names { put_text(&mut body, kind, new) } else { put(&mut body, kind, value) }
    }
    Message { kind: RTM_NEWRULE, body }
}

impl Socket<Change> {
    /// Every interface of the socket's namespace.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn netdevs(&mut self) -> Result<Vec<Netdev>, Error> {
        let mut body = link(0, 0, 0);
        put_u32(&mut body, IFLA_EXT_MASK, SKIP_STATS);
        self.every(RTM_GETLINK, RTM_NEWLINK, body, |body| Netdev::parse(body).map(Some))
    }

    /// The addresses to keep of an interface.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn kept_addresses(&mut self, index: u32, name: &str) -> Result<Vec<Vec<u8>>, Error> {
        let body = vec![0; ADDRESS_HEADER];
        self.every(RTM_GETADDR, RTM_NEWADDR, body, |body| keep_address(body, index, name))
    }

    /// The routes of an interface, in all tables.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn kept_routes(&mut self, index: u32) -> Result<Vec<KeptRoute>, Error> {
        let body = vec![0; ROUTE_HEADER];
        self.every(RTM_GETROUTE, RTM_NEWROUTE, body, |body| {
            keep_route(body, index).map(|kept| Some(kept).filter(|kept| *kept != KeptRoute::None))
        })
    }

    /// The rules to keep.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn kept_rules(&mut self, name: &str, from: &[IpAddr]) -> Result<Vec<Vec<u8>>, Error> {
        let body = vec![0; RULE_HEADER];
        self.every(RTM_GETRULE, RTM_NEWRULE, body, |body| keep_rule(body, name, from))
    }

    /// Changes what is there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn change(&mut self, message: Message) -> Result<(), Error> {
        self.order(message, NLM_F_REQUEST | NLM_F_ACK)
    }

    /// Adds what is not there; what is there already is no error.
    ///
    /// # Errors
    /// The kernel refuses for another reason.
    pub fn add(&mut self, message: Message) -> Result<(), Error> {
        match self.order(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE) {
            Err(error) if error.refusal() == Some(Errno::EEXIST) => Ok(()),
            done => done,
        }
    }

    fn every<T>(
        &mut self,
        ask: u16,
        answer: u16,
        body: Vec<u8>,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let read = |message: Message| {
            if message.kind == answer { read(&message.body).transpose() } else { None }
        };
        let answers = match self.list(Message { kind: ask, body }, read) {
            // A namespace in which no route was ever made has no table.
            Err(error) if error.refusal() == Some(Errno::ENOENT) => return Ok(Vec::new()),
            answers => answers?,
        };
        answers.into_iter().collect::<Result<_, _>>().map_err(|reason| Error::Malformed {
            family: Change::NAME,
            request: Change::name(ask),
            reason: reason.to_string(),
        })
    }
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const fn is_ip(family: u8) -> bool {
    matches!(family, AF_INET | AF_INET6)
}

fn header<'a, const N: usize>(
    body: &'a [u8],
    what: &'static str,
) -> Result<&'a [u8; N], Malformed> {
    body.first_chunk().ok_or(Malformed::Short { what, length: body.len() })
}

/// The number at that place; 0 beyond the end.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// Whether an address lies in that prefix, which is one only if it is not empty.
fn within(address: IpAddr, prefix: IpAddr, length: u8) -> bool {
    let (a, b, width) = match (address, prefix) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    (1..=width).contains(&length) && (a ^ b) >> (width - length) == 0
}

/// Interfaces of a run of `struct rtnexthop`.
fn hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HOP_HEADER>()?;
        let index = u32_at(header, 4);
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]])).max(HOP_HEADER);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(index)
    })
}

#[cfg(test)]
pub(super) mod tests;
