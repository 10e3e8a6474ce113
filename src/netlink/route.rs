//! `NETLINK_ROUTE`: interfaces, their addresses, and where the default routes leave.
//!
//! Questions are written by netlink-packet-route. Answers are read here, attribute by attribute and
//! only those that are wanted: a library that knows every attribute fails on the first one that a
//! newer kernel writes differently, and with it the whole list.

use std::net::IpAddr;

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader};
use netlink_packet_route::address::{AddressHeader, AddressMessage};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage,
};
use netlink_packet_route::route::{RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::attribute::{self, Attribute, Malformed};
use super::{Error, Family, Socket};

/// The family of rtnetlink.
#[derive(Debug)]
pub struct Route;

/// `RTNLGRP_LINK`: interfaces come, go and change.
pub const RTNLGRP_LINK: u32 = 1;
/// `RTNLGRP_IPV4_IFADDR`
pub const RTNLGRP_IPV4_IFADDR: u32 = 5;
/// `RTNLGRP_IPV6_IFADDR`
pub const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// An interface appeared or changed.
pub const RTM_NEWLINK: u16 = 16;
/// An interface went.
pub const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
/// An address appeared or changed.
pub const RTM_NEWADDR: u16 = 20;
/// An address went.
pub const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;

/// Lengths of `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg` and `struct rtnexthop`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const HOP_HEADER: usize = 8;

impl Family for Route {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkRoute;
    const NAME: &'static str = "NETLINK_ROUTE";
    const STRICT: bool = true;
    type Request = RouteNetlinkMessage;
    type Answer = Answer;

    fn name(message_type: u16) -> &'static str {
        match message_type {
            RTM_GETLINK => "RTM_GETLINK",
            RTM_GETADDR => "RTM_GETADDR",
            RTM_GETROUTE => "RTM_GETROUTE",
            _ => "a message of rtnetlink",
        }
    }
}

/// One message of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// An interface.
    Link(Link),
    /// An address; `None` for those of families other than IP.
    Address(Option<Address>),
    /// Interfaces through which a default route of the main table leaves; empty for other routes.
    DefaultRoute(Vec<u32>),
}

impl NetlinkDeserializable for Answer {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match header.message_type {
            RTM_NEWLINK => Link::parse(payload).map(Self::Link),
            RTM_NEWADDR => Address::parse(payload).map(Self::Address),
            RTM_NEWROUTE => default_route(payload).map(Self::DefaultRoute),
            other => return Err(DecodeError::from(format!("unexpected message type {other}"))),
        }
        .map_err(|malformed| DecodeError::from(malformed.to_string()))
    }
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// `ifindex`
    pub index: u32,
    /// Name.
    pub name: String,
    /// Whether it is the loopback.
    pub loopback: bool,
    /// Whether it is switched on and has a carrier (`IFF_UP` and `IFF_RUNNING`).
    pub up: bool,
    /// `IFLA_INFO_KIND`; `None` for hardware and the loopback.
    pub kind: Option<String>,
    /// `ifindex` of the interface below, or of the other end of a veth.
    pub lower: Option<u32>,
    /// Whether `lower` is in another network namespace, where its index was given.
    pub lower_elsewhere: bool,
    /// `ifindex` of the bond, bridge or VRF that it is a member of.
    pub controller: Option<u32>,
    /// Link-layer address; six bytes on Ethernet.
    pub address: Vec<u8>,
}

impl Link {
    /// Reads the body of an `RTM_NEWLINK` or `RTM_DELLINK`.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let short = |_| Malformed::Short { what: "struct ifinfomsg", length: body.len() };
        let header = LinkHeader::parse(body).map_err(short)?;
        let mut link = Self {
            index: header.index,
            loopback: header.flags.contains(LinkFlags::Loopback),
            up: header.flags.contains(LinkFlags::Up | LinkFlags::Running),
            ..Self::default()
        };
        for attribute in attributes(body, LINK_HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                IFLA_IFNAME => link.name = attribute.text()?.to_owned(),
                IFLA_LINK => link.lower = Some(attribute.small()?).filter(|index| *index != 0),
                // The kernel's number is signed: what it means here is only "another one".
                IFLA_LINK_NETNSID => link.lower_elsewhere = true,
                IFLA_MASTER => link.controller = Some(attribute.small()?),
                IFLA_ADDRESS => link.address = attribute.value.to_vec(),
                IFLA_LINKINFO => {
                    for nested in attribute.nested() {
                        let nested = nested?;
                        if nested.kind == IFLA_INFO_KIND {
                            link.kind = Some(nested.text()?.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(link)
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// `ifindex` of the interface.
    pub index: u32,
    /// The interface's own address, not its peer's.
    pub address: IpAddr,
    /// Length of the prefix.
    pub prefix: u8,
}

impl Address {
    /// Reads the body of an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if it is not about IP.
    pub fn parse(body: &[u8]) -> Result<Option<Self>, Malformed> {
        let short = |_| Malformed::Short { what: "struct ifaddrmsg", length: body.len() };
        let header = AddressHeader::parse(body).map_err(short)?;
        if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
            return Ok(None);
        }
        let (mut local, mut address) = (None, None);
        for attribute in attributes(body, ADDRESS_HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                IFA_LOCAL => local = Some(ip(&attribute)?),
                IFA_ADDRESS => address = Some(ip(&attribute)?),
                _ => {}
            }
        }
        // On a point-to-point interface IFA_ADDRESS is the peer's; without IFA_LOCAL it is ours.
        let address = local.or(address).ok_or(Malformed::Missing("IFA_ADDRESS"))?;
        Ok(Some(Self { index: header.index, address, prefix: header.prefix_len }))
    }
}

/// Reads the body of an `RTM_NEWROUTE`: where it leaves if it is a default route of the main table.
fn default_route(body: &[u8]) -> Result<Vec<u32>, Malformed> {
    let short = |_| Malformed::Short { what: "struct rtmsg", length: body.len() };
    let header = RouteHeader::parse(body).map_err(short)?;
    let mut table = u32::from(header.table);
    let mut interfaces = Vec::new();
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return Ok(interfaces);
    }
    for attribute in attributes(body, ROUTE_HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_TABLE => table = attribute.small()?,
            RTA_OIF => interfaces.push(attribute.small()?),
            RTA_MULTIPATH => interfaces.extend(hops(attribute.value)),
            _ => {}
        }
    }
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        interfaces.clear();
    }
    Ok(interfaces)
}

/// Interfaces of a run of `struct rtnexthop`.
fn hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut interfaces = Vec::new();
    while let Some(([a, b, _, _, c, d, e, f], _)) = bytes.split_first_chunk::<HOP_HEADER>() {
        interfaces.push(u32::from_ne_bytes([*c, *d, *e, *f]));
        let length = usize::from(u16::from_ne_bytes([*a, *b])).max(HOP_HEADER);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    interfaces
}

fn attributes(
    body: &[u8],
    header: usize,
) -> impl Iterator<Item = Result<Attribute<'_>, Malformed>> + use<'_> {
    attribute::parse(body.get(header..).unwrap_or_default())
}

fn ip(attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    if let Ok(bytes) = <[u8; 4]>::try_from(attribute.value) {
        return Ok(bytes.into());
    }
    <[u8; 16]>::try_from(attribute.value).map(IpAddr::from).map_err(|_| Malformed::Length {
        kind: attribute.kind,
        length: attribute.value.len(),
        expected: "4 or 16",
    })
}

/// An interface with what belongs to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface itself.
    pub link: Link,
    /// Its addresses with their prefix lengths, in the kernel's order.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route of the main table leaves here.
    pub default_route: bool,
}

impl Socket<Route> {
    /// Every interface of the socket's namespace, ascending by `ifindex`.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>, Error> {
        let links = self.links()?;
        let addresses = self.addresses()?;
        let mut routes = self.default_routes(AddressFamily::Inet)?;
        routes.extend(self.default_routes(AddressFamily::Inet6)?);
        Ok(join(links, &addresses, &routes))
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        self.list(RouteNetlinkMessage::GetLink(request), |answer| match answer {
            Answer::Link(link) => Some(link),
            _ => None,
        })
    }

    fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.list(request, |answer| match answer {
            Answer::Address(address) => address,
            _ => None,
        })
    }

    fn default_routes(&mut self, family: AddressFamily) -> Result<Vec<u32>, Error> {
        let mut request = RouteMessage::default();
        // With strict checking the kernel itself leaves other tables and types out. Nothing shortens
        // the list to default routes; none of the others is kept.
        request.header = RouteHeader {
            address_family: family,
            table: RouteHeader::RT_TABLE_MAIN,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let answers = self.list(RouteNetlinkMessage::GetRoute(request), |answer| match answer {
            Answer::DefaultRoute(interfaces) if !interfaces.is_empty() => Some(interfaces),
            _ => None,
        });
        match answers {
            Ok(interfaces) => Ok(interfaces.concat()),
            // A namespace in which no route was ever made has no table.
            Err(error) if error.refusal() == Some(Errno::ENOENT) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Puts together what was listed one after the other. An address whose interface came or went in
/// between belongs to no interface, and is dropped.
fn join(links: Vec<Link>, addresses: &[Address], routes: &[u32]) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = links
        .into_iter()
        .map(|link| Interface {
            default_route: routes.contains(&link.index),
            link,
            addresses: Vec::new(),
        })
        .collect();
    interfaces.sort_by_key(|interface| interface.link.index);
    for address in addresses {
        if let Ok(at) = interfaces.binary_search_by_key(&address.index, |i| i.link.index) {
            interfaces[at].addresses.push((address.address, address.prefix));
        }
    }
    interfaces
}
