//! Variables for NCCL, UCX, NVSHMEM and MPI. What the container sets itself is never overridden;
//! whether it makes sense is looked at in [`check`](super::check).
//!
//! NCCL, as of 2.30: a plain name in `NCCL_IB_HCA` is a prefix, so the list begins with `=`; its
//! GID index is one number for all devices, or it takes the first RoCE v2 entry of one address
//! family in one range (from 2.21 on). UCX chooses for each device, by a list of subnets. EFA has
//! no use for either (libfabric), and iWARP connects by rdma_cm, which neither does.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::addresses::{Range, nccl_takes};
use super::gid::{self, Placed};
use super::words::list;
use super::{Case, ChosenGid, Notes, Variable};
use crate::inventory::{GidKind, Interface, LinkLayer, NodeType, PciAddress, PodView};
use crate::request::EnvFamily;
use crate::request::nccl::HcaList;

/// What the variables are made of.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    /// The adapters.
    pub(super) placed: &'a [Placed<'a>],
    /// Each GPU of the container with the adapter for it.
    pub(super) pairs: &'a [(PciAddress, PciAddress)],
    /// Where the topology file is in the container.
    pub(super) topology: Option<&'a str>,
}

/// Writes the variables of the families that were asked for.
pub(super) fn write(case: &Case<'_>, sources: &Sources<'_>, notes: &mut Notes) -> Vec<Variable> {
    let families = &case.request.env.families;
    if families.is_empty() {
        notes.reason("env", "off");
        return Vec::new();
    }
    warn_of_iwarp(sources.placed, notes);
    let mut writer = Writer { case, variables: Vec::with_capacity(12), kept: Vec::new() };
    let names = names(sources.placed);
    let socket = socket_interface(case);
    // Looked for once: the tables are large.
    let way = LazyCell::new(|| Way::of(case, &ports(sources.placed).collect::<Vec<_>>()));
    for family in families {
        match family {
            EnvFamily::Nccl => nccl(sources, &names, socket.as_deref(), &way, &mut writer, notes),
            EnvFamily::Ucx => ucx(sources.placed, &names, &mut writer),
            EnvFamily::Nvshmem => {
                nvshmem(sources.placed, &names, socket.as_deref(), &way, &mut writer);
            }
            EnvFamily::Mpi => mpi(sources.placed, &names, &mut writer),
        }
    }
    if !writer.kept.is_empty() {
        notes.reason("env", format!("set by the container, kept: {}", list(&writer.kept)));
    }
    let set = writer.variables.iter().map(|variable| &variable.name);
    notes.reason("env", format!("set: {}", list(set)));
    writer.variables
}

/// Collects variables that the container does not have.
struct Writer<'a> {
    case: &'a Case<'a>,
    variables: Vec<Variable>,
    kept: Vec<&'static str>,
}

impl Writer<'_> {
    /// Whether the container sets it.
    fn has(&self, name: &str) -> bool {
        present(self.case, name).is_some()
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        if self.has(name) {
            self.kept.push(name);
        } else if !self.variables.iter().any(|variable| variable.name == name) {
            self.variables.push(Variable { name: name.to_owned(), value: value.into() });
        }
    }
}

/// What the container itself sets a variable to; of several the last counts.
pub(super) fn present<'a>(case: &Case<'a>, name: &str) -> Option<&'a str> {
    let env = &case.request.container.env;
    env.iter().rev().find(|(present, _)| present == name).map(|(_, value)| value.as_str())
}

/// Ports for the lists, as `name:port`, with their adapter.
pub(super) fn ports<'a>(placed: &'a [Placed<'a>]) -> impl Iterator<Item = (&'a Placed<'a>, u32)> {
    let usable = placed.iter().filter(|placed| placed.adapter.usable);
    usable.flat_map(|placed| placed.listed.iter().map(move |port| (placed, *port)))
}

/// `mlx5_0:1,mlx5_1:1`; empty when no adapter is for NCCL and UCX.
fn names(placed: &[Placed<'_>]) -> String {
    let mut names = String::with_capacity(placed.len() * 16);
    for (placed, port) in ports(placed) {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(&placed.hca.name);
        names.push(':');
        names.push_str(&port.to_string());
    }
    names
}

/// GID slots of the RoCE ports in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Indexes {
    /// There is no RoCE port.
    None,
    /// Of one port at least it is not known.
    Unknown,
    /// All have the same.
    One(u32),
    /// They differ.
    Several,
}

impl Indexes {
    pub(super) fn of<'a>(ports: impl IntoIterator<Item = (&'a Placed<'a>, u32)>) -> Self {
        let mut indexes = Self::None;
        for (_, _, gid) in roce(ports) {
            indexes = match (indexes, gid) {
                (_, None) => return Self::Unknown,
                (Self::None, Some(gid)) => Self::One(gid.index),
                (Self::One(index), Some(gid)) if index == gid.index => Self::One(index),
                _ => Self::Several,
            };
        }
        indexes
    }
}

/// The RoCE ports of some ports, with the GID chosen for each.
fn roce<'a>(
    ports: impl IntoIterator<Item = (&'a Placed<'a>, u32)>,
) -> impl Iterator<Item = (&'a Placed<'a>, u32, Option<&'a ChosenGid>)> {
    ports.into_iter().filter_map(|(placed, number)| {
        let port = placed.hca.ports.iter().find(|port| port.number == number)?;
        let gid = placed.adapter.gids.iter().find(|gid| gid.port == number);
        (port.link_layer == LinkLayer::Ethernet).then_some((placed, number, gid))
    })
}

fn nccl(
    sources: &Sources<'_>,
    names: &str,
    socket: Option<&str>,
    way: &LazyCell<Way, impl FnOnce() -> Way>,
    writer: &mut Writer<'_>,
    notes: &mut Notes,
) {
    if !names.is_empty() {
        writer.set("NCCL_IB_HCA", format!("={names}"));
        nccl_gid(sources.placed, way, writer, notes);
    }
    if let Some(name) = socket {
        writer.set("NCCL_SOCKET_IFNAME", name);
    }
    if let Some(path) = sources.topology {
        writer.set("NCCL_TOPO_FILE", path);
    }
    if !sources.pairs.is_empty() {
        let pairs = sources.pairs.iter().map(|(gpu, nic)| format!("{gpu}={nic}"));
        writer.set("VLLM_GPU_NIC_PCIE_MAPPING", pairs.collect::<Vec<_>>().join(","));
    }
}

/// Variables by which NCCL, and NVSHMEM after it, find a GID.
struct GidNames {
    index: &'static str,
    version: &'static str,
    family: &'static str,
    range: &'static str,
}

const NCCL: GidNames = GidNames {
    index: "NCCL_IB_GID_INDEX",
    version: "NCCL_IB_ROCE_VERSION_NUM",
    family: "NCCL_IB_ADDR_FAMILY",
    range: "NCCL_IB_ADDR_RANGE",
};

const NVSHMEM: GidNames = GidNames {
    index: "NVSHMEM_IB_GID_INDEX",
    version: "NVSHMEM_IB_ROCE_VERSION_NUM",
    family: "NVSHMEM_IB_ADDR_FAMILY",
    range: "NVSHMEM_IB_ADDR_RANGE",
};

/// How a library that has one number for all ports is told which GIDs to use.
enum Way {
    /// There is nothing to say, or not enough is known to say it.
    Nothing,
    /// The index that all ports have, and whether their addresses are IPv6.
    Index(u32, bool),
    /// By itself: within a range where one holds no other GID of these ports.
    Itself {
        ipv6: Option<bool>,
        range: Option<Range>,
        /// What there is to say about it.
        said: String,
    },
}

impl Way {
    fn of(case: &Case<'_>, ports: &[(&Placed<'_>, u32)]) -> Self {
        let addresses = || roce(ports.iter().copied()).filter_map(|(.., gid)| Some(gid?.address));
        let first = addresses().next().map(|address| address.is_ipv6());
        let ipv6 = first.filter(|ipv6| addresses().all(|address| address.is_ipv6() == *ipv6));
        match Indexes::of(ports.iter().copied()) {
            Indexes::None | Indexes::Unknown => Self::Nothing,
            Indexes::One(index) => Self::Index(index, ipv6 == Some(true)),
            Indexes::Several => {
                let wanted = roce(ports.iter().copied()).filter_map(|(placed, _, gid)| {
                    Some(format!("{}:{}", placed.hca.name, gid?.index))
                });
                let mut said = format!(
                    "HCAs need different GID indexes ({}); leaving selection to NCCL (2.21 or \
                     newer)",
                    list(wanted)
                );
                let range = Range::around(addresses())
                    .filter(|range| !range.is_everything() && singles_out(case, ports, *range));
                if let Some(range) = range {
                    said.push_str(&format!(" within {range}"));
                } else if ipv6.is_none_or(|ipv6| !finds(case, ports, ipv6, None)) {
                    said.push_str(
                        ", which no variable can tell the right ones: it may take another address \
                         of the same ports",
                    );
                }
                Self::Itself { ipv6, range, said }
            }
        }
    }

    fn write(&self, names: &GidNames, writer: &mut Writer<'_>) {
        match self {
            Self::Nothing => {}
            Self::Index(index, ipv6) => {
                writer.set(names.index, index.to_string());
                if *ipv6 {
                    writer.set(names.family, "AF_INET6");
                }
            }
            Self::Itself { ipv6, range, .. } => {
                writer.set(names.version, "2");
                if let Some(ipv6) = ipv6 {
                    writer.set(names.family, if *ipv6 { "AF_INET6" } else { "AF_INET" });
                }
                if let Some(range) = range {
                    writer.set(names.range, range.to_string());
                }
            }
        }
    }
}

/// Whether the container itself says which GID to use; an index of ours would undo a range of its.
fn settled(names: &GidNames, writer: &mut Writer<'_>) -> bool {
    let own = [names.index, names.range].into_iter().find(|name| writer.has(name));
    writer.kept.extend(own);
    own.is_some()
}

fn nccl_gid(
    placed: &[Placed<'_>],
    way: &LazyCell<Way, impl FnOnce() -> Way>,
    writer: &mut Writer<'_>,
    notes: &mut Notes,
) {
    if settled(&NCCL, writer) {
        return;
    }
    // Of a container's own list only the ports in it have to agree.
    let own = present(writer.case, "NCCL_IB_HCA").map(HcaList::parse).map(|list| {
        let ports = ports(placed).filter(|(at, port)| list.selects(&at.hca.name, *port));
        Way::of(writer.case, &ports.collect::<Vec<_>>())
    });
    let way = own.as_ref().unwrap_or_else(|| way);
    if let Way::Itself { said, .. } = way {
        notes.warn("gid", said.as_str());
    }
    way.write(&NCCL, writer);
}

/// Whether NCCL, left to itself within that range, takes the chosen GID of every port.
fn finds(case: &Case<'_>, ports: &[(&Placed<'_>, u32)], ipv6: bool, range: Option<Range>) -> bool {
    roce(ports.iter().copied()).all(|(placed, port, chosen)| {
        let table = gid::table_of(case, placed.hca, port);
        chosen.is_some_and(|chosen| nccl_takes(table, ipv6, range) == chosen.index)
    })
}

/// Whether of every port's RoCE v2 GIDs the chosen one and no other is in that range, so that
/// whoever comes and goes elsewhere in the table changes nothing.
fn singles_out(case: &Case<'_>, ports: &[(&Placed<'_>, u32)], range: Range) -> bool {
    let alone = roce(ports.iter().copied()).all(|(placed, port, chosen)| {
        gid::table_of(case, placed.hca, port)
            .iter()
            .filter(|gid| gid.kind == Some(GidKind::V2) && range.holds(gid.address()))
            .all(|gid| chosen.is_some_and(|chosen| chosen.index == gid.index))
    });
    let ipv6 =
        roce(ports.iter().copied()).any(|(.., gid)| gid.is_some_and(|gid| gid.address.is_ipv6()));
    alone && finds(case, ports, ipv6, Some(range))
}

fn ucx(placed: &[Placed<'_>], names: &str, writer: &mut Writer<'_>) {
    if names.is_empty() {
        return;
    }
    writer.set("UCX_NET_DEVICES", names);
    // The two exclude each other.
    for name in ["UCX_IB_GID_INDEX", "UCX_IB_ROCE_SUBNETS"] {
        if writer.has(name) {
            writer.kept.push(name);
            return;
        }
    }
    match Indexes::of(ports(placed)) {
        Indexes::None | Indexes::Unknown => {}
        Indexes::One(index) => writer.set("UCX_IB_GID_INDEX", index.to_string()),
        Indexes::Several => {
            let gids = roce(ports(placed)).filter_map(|(.., gid)| Some(gid?.address));
            let subnets: BTreeSet<IpAddr> = gids.collect();
            let subnets = subnets.iter().map(|address| {
                let length = if address.is_ipv4() { 32 } else { 128 };
                format!("{address}/{length}")
            });
            writer.set("UCX_IB_ROCE_SUBNETS", subnets.collect::<Vec<_>>().join(","));
        }
    }
}

fn nvshmem(
    placed: &[Placed<'_>],
    names: &str,
    socket: Option<&str>,
    way: &Way,
    writer: &mut Writer<'_>,
) {
    if names.is_empty() {
        return;
    }
    writer.set("NVSHMEM_HCA_LIST", names);
    if placed.iter().any(|placed| !placed.adapter.usable) {
        // The list counts only with this; without, each PE takes the nearest device that opens,
        // which is better wherever all of them are of use.
        writer.set("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1");
    }
    if !settled(&NVSHMEM, writer) {
        way.write(&NVSHMEM, writer);
    }
    if let Some(name) = socket {
        writer.set("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", name);
    }
}

/// Open MPI and MPICH go by UCX; Open MPI before 5 that was built without it, by openib.
fn mpi(placed: &[Placed<'_>], names: &str, writer: &mut Writer<'_>) {
    if names.is_empty() {
        return;
    }
    ucx(placed, names, writer);
    writer.set("OMPI_MCA_btl_openib_if_include", names);
    if let Indexes::One(index) = Indexes::of(ports(placed)) {
        writer.set("OMPI_MCA_btl_openib_gid_index", index.to_string());
    }
}

/// The interface that leads out, for the connections by which NCCL finds its peers. Its plain
/// name, unless that is the beginning of another's.
fn socket_interface(case: &Case<'_>) -> Option<String> {
    let interfaces = visible(case)?;
    let numbered = |interface: &&Interface| {
        interface.addresses.iter().any(|(address, _)| match address {
            IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
        })
    };
    let name = &interfaces
        .iter()
        .filter(|interface| interface.default_route && numbered(interface))
        .min_by_key(|interface| interface.index)?
        .name;
    let shared = interfaces
        .iter()
        .any(|interface| interface.name != *name && interface.name.starts_with(name.as_str()));
    Some(if shared { format!("={name}") } else { name.clone() })
}

/// Interfaces that the container sees, where they are known.
pub(super) fn visible<'a>(case: &Case<'a>) -> Option<&'a [Interface]> {
    match case.pod {
        PodView::Host => Some(&case.node.interfaces),
        PodView::Ready(network) => Some(&network.interfaces),
        PodView::Pending { .. } | PodView::Unknown { .. } => None,
    }
}

/// An adapter in iWARP mode is in no list, and the user should know.
fn warn_of_iwarp(placed: &[Placed<'_>], notes: &mut Notes) {
    let iwarp: Vec<&str> = placed
        .iter()
        .filter(|placed| placed.hca.node_type == NodeType::Rnic)
        .map(|placed| placed.hca.name.as_str())
        .collect();
    if !iwarp.is_empty() {
        let is = if iwarp.len() == 1 { "is" } else { "are" };
        notes.warn(
            "env",
            format!(
                "{} {is} in iWARP mode: only programs that connect by rdma_cm can use it, NCCL and \
                 UCX cannot",
                list(iwarp)
            ),
        );
    }
}
