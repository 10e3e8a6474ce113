//! `NETLINK_ROUTE`: interfaces that lie on another one, from their making to their end, and what they
//! are given. They are made in the namespace that they are for and never seen in this one.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST};
use nix::errno::Errno;

use super::attribute::{self, Malformed, put, put_text, put_u32};
use super::change::{Change, Message};
use super::{Error, Family, Socket};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWRULE: u16 = 32;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// `IFLA_IPVLAN_MODE` and `IFLA_MACVLAN_MODE` alike.
const MODE: u16 = 1;
/// `IPVLAN_MODE_L2`; a message that names none means L3.
const IPVLAN_L2: u16 = 0;
/// `MACVLAN_MODE_BRIDGE`
const MACVLAN_BRIDGE: u32 = 4;
/// `RTEXT_FILTER_SKIP_STATS`
const SKIP_STATS: u32 = 8;
const IFF_UP: u32 = 1;
/// `IFLA_INET_CONF`, below the family in `IFLA_AF_SPEC`.
const IFLA_INET_CONF: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_F_NODAD: u8 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
/// `RTPROT_STATIC`: somebody has set it.
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const SCOPE_LINK: u8 = 253;

const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
/// `FR_ACT_TO_TBL`
const TO_TABLE: u8 = 1;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const LINK_HEADER: usize = 16;

/// How a child shares its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ipvlan` in mode L2: with the parent's link-layer address.
    Ipvlan,
    /// `macvlan` in mode bridge: with a link-layer address of its own.
    Macvlan,
}

impl Kind {
    /// `IFLA_INFO_KIND`
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ipvlan => "ipvlan",
            Self::Macvlan => "macvlan",
        }
    }
}

/// Settings of IPv4 on one interface (`IPV4_DEVCONF_…` of `linux/ip.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Conf {
    /// `rp_filter`
    RpFilter = 8,
    /// `arp_announce`
    ArpAnnounce = 18,
    /// `arp_ignore`
    ArpIgnore = 19,
}

/// Makes a child of the interface `parent` in the namespace behind a descriptor, and switches it on.
pub fn create(kind: Kind, parent: u32, namespace: u32, name: &str) -> Message {
    let mut body = link(0, IFF_UP, IFF_UP);
    put_text(&mut body, IFLA_IFNAME, name);
    put_u32(&mut body, IFLA_LINK, parent);
    put_u32(&mut body, IFLA_NET_NS_FD, namespace);
    let mut data = Vec::new();
    match kind {
        Kind::Ipvlan => put(&mut data, MODE, &IPVLAN_L2.to_ne_bytes()),
        Kind::Macvlan => put_u32(&mut data, MODE, MACVLAN_BRIDGE),
    }
    let mut info = Vec::new();
    put(&mut info, IFLA_INFO_KIND, kind.word().as_bytes());
    put(&mut info, IFLA_INFO_DATA, &data);
    put(&mut body, IFLA_LINKINFO, &info);
    Message { kind: RTM_NEWLINK, body }
}

/// Ends a virtual interface.
pub fn delete(index: u32) -> Message {
    Message { kind: RTM_DELLINK, body: link(index, 0, 0) }
}

/// Sets what is otherwise set below `/proc/sys/net/ipv4/conf/NAME`, which a service may find
/// read-only.
pub fn configure(index: u32, settings: &[(Conf, u32)]) -> Message {
    let mut conf = Vec::new();
    for (setting, value) in settings {
        put_u32(&mut conf, *setting as u16, *value);
    }
    let (mut inet, mut families) = (Vec::new(), Vec::new());
    put(&mut inet, IFLA_INET_CONF, &conf);
    put(&mut families, u16::from(AF_INET), &inet);
    let mut body = link(index, 0, 0);
    put(&mut body, IFLA_AF_SPEC, &families);
    Message { kind: RTM_NEWLINK, body }
}

/// Gives an interface an address. One of IPv6 is not looked for on the wire once more: it is to be a
/// GID at once.
pub fn address(index: u32, address: IpAddr, length: u8) -> Message {
    let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
    let mut body = vec![family(address), length, flags, 0];
    body.extend(index.to_ne_bytes());
    put(&mut body, IFA_LOCAL, &bytes(address));
    put(&mut body, IFA_ADDRESS, &bytes(address));
    if let IpAddr::V4(address) = address
        && (1..31).contains(&length)
    {
        let broadcast = address.to_bits() | (u32::MAX >> length);
        put(&mut body, IFA_BROADCAST, &broadcast.to_be_bytes());
    }
    Message { kind: RTM_NEWADDR, body }
}

/// A way to somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Where to: an address and the length of its prefix; 0 is everywhere.
    pub to: (IpAddr, u8),
    /// By way of that neighbour; `None`: the addresses are neighbours themselves.
    pub gateway: Option<IpAddr>,
    /// With that address of ours.
    pub source: Option<IpAddr>,
    /// In that table.
    pub table: u32,
    /// The lesser is preferred; `None`: as the kernel has it.
    pub metric: Option<u32>,
}

/// A route that leaves through that interface.
pub fn route(index: u32, way: &Way) -> Message {
    let scope = if way.gateway.is_some() || way.to.0.is_ipv6() { 0 } else { SCOPE_LINK };
    let short = u8::try_from(way.table).unwrap_or(0);
    let mut body = vec![family(way.to.0), way.to.1, 0, 0, short, RTPROT_STATIC, scope, RTN_UNICAST];
    body.extend([0; 4]);
    if way.to.1 > 0 {
        put(&mut body, RTA_DST, &bytes(way.to.0));
    }
    if let Some(gateway) = way.gateway {
        put(&mut body, RTA_GATEWAY, &bytes(gateway));
    }
    if short == 0 {
        put_u32(&mut body, RTA_TABLE, way.table);
    }
    if let Some(metric) = way.metric {
        put_u32(&mut body, RTA_PRIORITY, metric);
    }
    if let Some(source) = way.source {
        put(&mut body, RTA_PREFSRC, &bytes(source));
    }
    put_u32(&mut body, RTA_OIF, index);
    Message { kind: RTM_NEWROUTE, body }
}

/// A rule: what comes from that address goes by that table.
pub fn rule(from: IpAddr, table: u32, priority: u32) -> Message {
    let length = if from.is_ipv4() { 32 } else { 128 };
    let short = u8::try_from(table).unwrap_or(0);
    let mut body = vec![family(from), 0, length, 0, short, 0, 0, TO_TABLE];
    body.extend([0; 4]);
    put(&mut body, FRA_SRC, &bytes(from));
    if short == 0 {
        put_u32(&mut body, FRA_TABLE, table);
    }
    put_u32(&mut body, FRA_PRIORITY, priority);
    Message { kind: RTM_NEWRULE, body }
}

/// An interface as far as those on others go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upper {
    /// `ifindex`
    pub index: u32,
    /// Name.
    pub name: String,
    /// `IFLA_INFO_KIND`; empty for hardware.
    pub kind: String,
    /// Mode of an ipvlan: 0 is L2.
    pub mode: Option<u16>,
    /// `ifindex` of that on which it lies, in the namespace of that one.
    pub lower: Option<u32>,
    /// Whether that is another namespace.
    pub elsewhere: bool,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Link-layer address.
    pub address: Vec<u8>,
}

impl Upper {
    /// Reads the body of an `RTM_NEWLINK`.
    ///
    /// # Errors
    /// The body is cut short or no run of attributes.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let Some((header, attributes)) = body.split_first_chunk::<LINK_HEADER>() else {
            return Err(Malformed::Short { what: "struct ifinfomsg", length: body.len() });
        };
        let [_, _, _, _, a, b, c, d, ..] = *header;
        let mut upper = Self { index: u32::from_ne_bytes([a, b, c, d]), ..Self::default() };
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                IFLA_IFNAME => upper.name = attribute.text()?.to_owned(),
                IFLA_MTU => upper.mtu = attribute.small()?,
                IFLA_ADDRESS => upper.address = attribute.value.to_vec(),
                IFLA_LINK => upper.lower = Some(attribute.small()?).filter(|index| *index != 0),
                // The kernel's number is signed: what it means here is only "another one".
                IFLA_LINK_NETNSID => upper.elsewhere = true,
                IFLA_LINKINFO => {
                    let mut data = None;
                    for nested in attribute.nested() {
                        let nested = nested?;
                        match nested.kind {
                            IFLA_INFO_KIND => upper.kind = nested.text()?.to_owned(),
                            IFLA_INFO_DATA => data = Some(nested),
                            _ => {}
                        }
                    }
                    if let Some(data) = data.filter(|_| upper.kind == Kind::Ipvlan.word()) {
                        let mode = data.nested().flatten().find(|nested| nested.kind == MODE);
                        upper.mode = mode.map(|mode| mode.small()).transpose()?;
                    }
                }
                _ => {}
            }
        }
        Ok(upper)
    }
}

impl Socket<Change> {
    /// Every interface of the socket's namespace, as far as those on others go.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn uppers(&mut self) -> Result<Vec<Upper>, Error> {
        let mut body = link(0, 0, 0);
        put_u32(&mut body, IFLA_EXT_MASK, SKIP_STATS);
        let read =
            |message: Message| (message.kind == RTM_NEWLINK).then(|| Upper::parse(&message.body));
        let answers = self.list(Message { kind: RTM_GETLINK, body }, read)?;
        answers.into_iter().collect::<Result<_, _>>().map_err(malformed)
    }

    /// The interface of that name; `None`: there is none.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn upper(&mut self, name: &str) -> Result<Option<Upper>, Error> {
        let mut body = link(0, 0, 0);
        put_u32(&mut body, IFLA_EXT_MASK, SKIP_STATS);
        put_text(&mut body, IFLA_IFNAME, name);
        let answers = match self.ask(Message { kind: RTM_GETLINK, body }) {
            Err(error) if error.refusal() == Some(Errno::ENODEV) => return Ok(None),
            answers => answers?,
        };
        let found = answers.iter().find(|message| message.kind == RTM_NEWLINK);
        found.map(|message| Upper::parse(&message.body)).transpose().map_err(malformed)
    }

    /// Makes what is not there; that it is there already is an error as any other.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn make(&mut self, message: Message) -> Result<(), Error> {
        self.order(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE)
    }
}

fn malformed(reason: Malformed) -> Error {
    Error::Malformed {
        family: Change::NAME,
        request: Change::name(RTM_GETLINK),
        reason: reason.to_string(),
    }
}

fn link(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, flags, change] {
        body.extend(word.to_ne_bytes());
    }
    body
}

const fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests;
