//! SMC-R for ordinary TCP: by which method, with what prepared from the host, and what stands in
//! the way. What the kernel takes is in `net/smc/smc_ib.c` and `smc_pnet.c`: RoCE ports of node
//! type CA, with a GID of the right type, found by the interface that the connection leaves by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::gates::place;
use super::words::{list, quote, refuse};
use super::{Case, Grant, GrantedMount, Notes, Refusal, Variable};
use crate::inventory::{
    GidKind, Hca, Home, Interface, LinkLayer, NetnsMode, NodeType, PodNetwork, PodView, Port,
};
use crate::request::{Can, CarrierPath, Key, Request, SmcMethod};

/// Where the library is bound that turns sockets into SMC's.
pub const LIBRARY: &str = "/run/rdma-ctk/libsmc-preload.so";
/// Ports that Alibaba's kernels keep for eRDMA's own connections, in every namespace.
const RESERVED: &str = "65500 to 65515";

/// What is known of SMC on a node when a container is decided about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmcFacts {
    /// The module smc is loaded, or built in.
    pub loaded: bool,
    /// A namespace can be switched by sysctl.
    pub tcp2smc: Can,
    /// Containers can be switched by a program in the kernel.
    pub bpf: Can,
    /// There is a library to be loaded into programs.
    pub preload: Can,
    /// Sysctls of the module, without `net.smc.`.
    pub sysctls: BTreeSet<String>,
    /// User EIDs of the machine.
    pub eids: BTreeSet<String>,
    /// Ports of adapters that have a PNET id already: name and port, and the id.
    pub pnet: BTreeMap<String, String>,
}

impl SmcFacts {
    /// The key of [`SmcFacts::pnet`].
    pub fn port(adapter: &str, port: u32) -> String {
        format!("{adapter}/{port}")
    }
}

/// SMC-R of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmcGrant {
    /// How its sockets are turned: `tcp2smc`, `bpf` or `preload`.
    pub method: SmcMethod,
    /// The user EID that the machine must have for version 2; `None`: policy sets none.
    pub eid: Option<String>,
    /// Adapters that have to be named for interfaces of the pod.
    pub pnet: Vec<PnetGrant>,
    /// Sysctls of the pod's network namespace, with their whole names.
    pub sysctls: Vec<(String, String)>,
    /// The runtime sets these sysctls; else they are set by entering the namespace.
    pub by_runtime: bool,
    /// Sockets of MPTCP are turned too (method `bpf`).
    pub mptcp: bool,
    /// The network namespace is made after the decision: what has to be named for its interfaces is
    /// told by a second one, when it is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub later: bool,
}

/// An adapter that is named for an interface of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PnetGrant {
    /// The PNET id, which the adapter may have already.
    pub name: String,
    /// Kernel name of the adapter.
    pub adapter: String,
    /// Its port.
    pub port: u32,
    /// The interface in the pod.
    pub interface: String,
}

/// Adds SMC-R to the grant of a container that asked for it.
pub(super) fn add(case: &Case<'_>, grant: &mut Grant, notes: &mut Notes) -> Result<(), Refusal> {
    let request = case.request;
    if request.smc == SmcMethod::Off {
        return Ok(());
    }
    let no = |why: String| refuse(request, Key::Smc, why);
    if !case.allowance.keys.contains(&Key::Smc) {
        let whose = super::gates::whose(&request.container.pod);
        let place = place(case, "keys", |allowance| allowance.keys.contains(&Key::Smc));
        return Err(no(format!("policy does not let {whose} use this key ({place})")));
    }
    if request.carrier.path == CarrierPath::Cdi {
        return Err(no(format!(
            "{} does not serve SMC-R; NRI, the runtime wrapper and podman's hooks do",
            super::gates::carrier(request)
        )));
    }
    let facts = case.smc.ok_or_else(|| {
        no("what the kernel has of SMC-R was not looked at on this path".to_owned())
    })?;
    if !facts.loaded {
        return Err(no("SMC-R is not available on this kernel (no smc module); load it on the \
                       node: modprobe -a smc smc_diag"
            .to_owned()));
    }
    let method = method(case, facts, notes).map_err(no)?;
    let ports = ports(case, method).map_err(no)?;
    version(case, facts, &ports, notes).map_err(no)?;
    let pnet = topology(case, facts, &ports, notes).map_err(no)?;
    let sysctls = sysctls(case, facts, method).map_err(no)?;
    let eid = &case.policy.smc.eid;
    warn(case, method, &ports, notes);
    if method == SmcMethod::Preload {
        preload(case, grant, notes).map_err(no)?;
    }
    grant.smc = Some(SmcGrant {
        method,
        eid: Some(eid.clone()).filter(|eid| !eid.is_empty()),
        pnet,
        by_runtime: !sysctls.is_empty() && request.carrier.sysctl == Can::Yes,
        sysctls,
        mptcp: case.policy.smc.mptcp && method == SmcMethod::Bpf,
        later: comes_later(case),
    });
    Ok(())
}

/// Whether the network namespace is made after this. Under NRI it is there, and is waited for.
fn comes_later(case: &Case<'_>) -> bool {
    case.request.carrier.path != CarrierPath::Nri && matches!(case.pod, PodView::Pending { .. })
}

/// The method: the one that was asked for, or of `auto` the first that can be had.
fn method(case: &Case<'_>, facts: &SmcFacts, notes: &mut Notes) -> Result<SmcMethod, String> {
    let possible = |method| {
        if !case.allowance.permits_smc(method) {
            let allowed = list(case.allowance.smc.iter().map(ToString::to_string));
            let place = place(case, "smc", |allowance| allowance.permits_smc(method));
            return Err(format!("policy does not allow it ({place}: {allowed})"));
        }
        match method {
            SmcMethod::Tcp2smc => {
                whole_pod(case.request)?;
                can(&facts.tcp2smc)
            }
            SmcMethod::Bpf => can(&facts.bpf),
            SmcMethod::Preload => can(&facts.preload),
            SmcMethod::Off | SmcMethod::Auto => Ok(()),
        }
    };
    if case.request.smc != SmcMethod::Auto {
        possible(case.request.smc)?;
        notes.reason("smc", format!("sockets are turned by {}, as was asked", case.request.smc));
        return Ok(case.request.smc);
    }
    let mut lacking = Vec::new();
    for method in [SmcMethod::Tcp2smc, SmcMethod::Bpf, SmcMethod::Preload] {
        match possible(method) {
            Ok(()) => {
                let not = if lacking.is_empty() {
                    String::new()
                } else {
                    format!(" (not by {})", lacking.join("; not by "))
                };
                notes.reason("smc", format!("sockets are turned by {method}{not}"));
                return Ok(method);
            }
            Err(why) => lacking.push(format!("{method}: {why}")),
        }
    }
    Err(format!("no method can be had here: {}", lacking.join("; ")))
}

fn can(can: &Can) -> Result<(), String> {
    match can {
        Can::Yes => Ok(()),
        Can::No(why) => Err(why.clone()),
    }
}

/// What changes a network namespace changes all containers in it.
fn whole_pod(request: &Request) -> Result<(), String> {
    if request.container.pod.host_network {
        return Err(
            "a hostNetwork pod shares the host's network namespace, which is never changed"
                .to_owned(),
        );
    }
    let asked = request.asked_by.get(&Key::Smc);
    if asked.is_some_and(|asked| asked.annotation.contains("/container.")) {
        return Err("it changes the whole pod, so it takes the key smc.rdma-ctk.io or \
                    smc.rdma-ctk.io/pod, not one of a container"
            .to_owned());
    }
    Ok(())
}

/// A port that SMC-R takes.
#[derive(Debug, Clone, Copy)]
struct Usable<'a> {
    hca: &'a Hca,
    port: &'a Port,
}

impl Usable<'_> {
    /// Whether it has a GID of that kind that version 2 (IPv4 only) or 1 takes.
    fn has(&self, case: &Case<'_>, kind: GidKind) -> bool {
        case.sight
            .table(self.hca, self.port)
            .iter()
            .any(|gid| gid.kind == Some(kind) && (kind == GidKind::V1 || gid.address().is_ipv4()))
    }
}

/// Ports that the kernel takes for SMC-R, from the container's network namespace.
fn ports<'a>(case: &Case<'a>, method: SmcMethod) -> Result<Vec<Usable<'a>>, String> {
    let mut lacks = Vec::new();
    let mut usable = Vec::new();
    for hca in &case.node.hcas {
        let name = &hca.name;
        if let Some(why) = unfit(case, hca, method) {
            lacks.push(format!("{name} {why}"));
            continue;
        }
        let ethernet = hca.active_ports().filter(|port| port.link_layer == LinkLayer::Ethernet);
        let before = usable.len();
        usable.extend(ethernet.map(|port| Usable { hca, port }));
        if usable.len() == before {
            lacks.push(format!("{name} has no ACTIVE port on Ethernet"));
        }
    }
    // A device that was moved into the pod is not seen from here: that it is there has to do.
    let moved = matches!(case.pod, PodView::Ready(network) if !network.hcas.is_empty());
    if !usable.is_empty() || moved {
        return Ok(usable);
    }
    if lacks.is_empty() {
        return Err("this node has no RDMA adapter".to_owned());
    }
    Err(format!("no adapter that SMC-R takes: {}", list(lacks)))
}

/// Why an adapter is none for SMC-R.
fn unfit(case: &Case<'_>, hca: &Hca, method: SmcMethod) -> Option<String> {
    match hca.node_type {
        NodeType::Ca => {}
        // The kernels that have this sysctl take iWARP too.
        NodeType::Rnic if method == SmcMethod::Tcp2smc => {}
        NodeType::Rnic => {
            return Some(
                "is of node type RNIC (iWARP), and this kernel's SMC-R takes CA only".into(),
            );
        }
        _ => return Some("is of another node type than CA".into()),
    }
    if hca.home == Home::Elsewhere {
        return Some("is in another namespace".into());
    }
    let exclusive = case.node.netns_mode == NetnsMode::Exclusive;
    match case.pod {
        PodView::Ready(network) if exclusive && !network.hcas.contains(&hca.name) => {
            Some("is not in the pod's namespace, and the host is in exclusive mode".into())
        }
        _ => None,
    }
}

/// Which version of SMC-R the two sides can agree on, as far as this side goes.
fn version(
    case: &Case<'_>,
    facts: &SmcFacts,
    ports: &[Usable<'_>],
    notes: &mut Notes,
) -> Result<(), String> {
    let any = |kind| ports.is_empty() || ports.iter().any(|usable| usable.has(case, kind));
    let (v1, v2) = (any(GidKind::V1), any(GidKind::V2));
    let eid = !case.policy.smc.eid.is_empty() || !facts.eids.is_empty();
    let names = list(ports.iter().map(|usable| &usable.hca.name));
    match (v2, eid, v1) {
        (true, true, _) => {
            let eid = if case.policy.smc.eid.is_empty() {
                list(&facts.eids)
            } else {
                case.policy.smc.eid.clone()
            };
            notes.reason("smc", format!("version 2 by {names}, with user EID {eid}"));
            Ok(())
        }
        (_, _, true) => {
            let mut lone = own_addresses(case).filter(|(_, _, prefix)| *prefix == 32);
            if let Some((_, address, _)) = lone.next() {
                return Err(format!(
                    "{address}/32: without {} there is only version 1, which reaches peers of the \
                     same subnet, and a mask of /32 leaves none",
                    if v2 {
                        "a user EID (policy: [smc] eid)"
                    } else {
                        "a RoCE v2 GID of an IPv4 address"
                    }
                ));
            }
            notes.reason("smc", format!("version 1 by {names}: peers of the same subnet only"));
            Ok(())
        }
        (true, false, false) => Err(format!(
            "{names}: only RoCE v2 GIDs, which take version 2, and that a user EID; policy sets \
             none: [smc] eid = \"RDMA-CTK\""
        )),
        (false, ..) => Err(format!(
            "{names}: no RoCE v1 GID and no RoCE v2 GID of an IPv4 address; give its interface an \
             IPv4 address"
        )),
    }
}

/// IPv4 addresses of the container's namespace, with their interface and prefix length.
fn own_addresses<'a>(
    case: &Case<'a>,
) -> impl Iterator<Item = (&'a Interface, Ipv4Addr, u8)> + use<'a> {
    let interfaces: &'a [Interface] = match case.pod {
        PodView::Host => &case.node.interfaces,
        PodView::Ready(network) => &network.interfaces,
        PodView::Pending { .. } | PodView::Unknown { .. } => &[],
    };
    interfaces.iter().filter(|interface| interface.name != "lo").flat_map(|interface| {
        interface.addresses.iter().filter_map(move |(address, prefix)| match address {
            IpAddr::V4(address) => Some((interface, *address, *prefix)),
            IpAddr::V6(_) => None,
        })
    })
}

/// Which adapters have to be named for the pod's interfaces. Of an interface on an adapter's own
/// (ipvlan, macvlan, VLAN, the interface itself) the kernel finds the adapter; of a veth it
/// cannot, and a name helps only where the adapter's interface lies in the address's subnet.
fn topology(
    case: &Case<'_>,
    facts: &SmcFacts,
    ports: &[Usable<'_>],
    notes: &mut Notes,
) -> Result<Vec<PnetGrant>, String> {
    let network = match case.pod {
        PodView::Host => return Ok(Vec::new()),
        PodView::Ready(network) => network,
        PodView::Pending { .. } if comes_later(case) => {
            let sentence = "which adapter connections leave by is told when its network is made";
            notes.reason("smc", sentence);
            return Ok(Vec::new());
        }
        PodView::Pending { reason } | PodView::Unknown { reason } => {
            return Err(format!("the pod's network is not known: {}", quote(reason)));
        }
    };
    let (mut named, mut found, mut lacks) = (Vec::new(), false, Vec::new());
    for (interface, address, prefix) in own_addresses(case) {
        match adapter_of(case, network, interface, address, ports) {
            Way::Found => {
                found = true;
                let name = &interface.name;
                notes.reason("smc", format!("{name}: the kernel finds its adapter by itself"));
            }
            Way::Named(usable) => {
                let (hca, port) = (&usable.hca.name, usable.port);
                let known = facts.pnet.get(&SmcFacts::port(hca, port.number));
                let name = known.cloned().unwrap_or_else(|| pnet_name(hca));
                let of = &interface.name;
                notes.reason("smc", format!("{of}: {hca} is named for it by PNET id {name}"));
                let entry = PnetGrant {
                    name,
                    adapter: hca.clone(),
                    port: port.number,
                    interface: of.clone(),
                };
                if !named.contains(&entry) {
                    named.push(entry);
                }
            }
            Way::None(why) => lacks.push(format!("{} {address}/{prefix}: {why}", interface.name)),
        }
    }
    if !found && named.is_empty() {
        if lacks.is_empty() {
            lacks.push("the pod has no IPv4 address".to_owned());
        }
        return Err(format!("connections could not leave by RDMA: {}", lacks.join("; ")));
    }
    for lack in lacks {
        notes.warn("smc", format!("{lack}; connections from there stay on TCP"));
    }
    Ok(named)
}

/// How the kernel gets from an interface to an adapter.
enum Way<'a> {
    /// By itself.
    Found,
    /// By a PNET id.
    Named(Usable<'a>),
    /// Not at all.
    None(String),
}

fn adapter_of<'a>(
    case: &Case<'a>,
    network: &PodNetwork,
    interface: &Interface,
    address: Ipv4Addr,
    ports: &[Usable<'a>],
) -> Way<'a> {
    match interface.kind.as_deref() {
        Some("veth") => {}
        Some("dummy" | "tun" | "bridge" | "wireguard" | "vxlan" | "ipip" | "gre") => {
            let kind = interface.kind.as_deref().unwrap_or_default();
            return Way::None(format!("a {kind} interface belongs to no adapter"));
        }
        // On the adapter's own interface, or it itself.
        kind => {
            let below = |usable: &Usable<'_>| {
                let netdev = usable.port.netdev.as_deref();
                let host = case.node.interfaces.iter().find(|at| Some(at.name.as_str()) == netdev);
                host.is_some_and(|host| interface.lower == Some(host.index))
            };
            let moved = !network.hcas.is_empty()
                || kind.is_none()
                    && case.node.hcas.iter().any(|hca| hca.home == Home::NetdevElsewhere);
            return if moved || ports.iter().any(below) {
                Way::Found
            } else {
                Way::None("it does not lie on the interface of an adapter".to_owned())
            };
        }
    }
    let same_subnet = |usable: &&Usable<'_>| {
        let netdev = usable.port.netdev.as_deref();
        let host = case.node.interfaces.iter().find(|at| Some(at.name.as_str()) == netdev);
        host.is_some_and(|host| {
            host.addresses.iter().any(|(own, prefix)| match own {
                IpAddr::V4(own) => same(*own, address, *prefix),
                IpAddr::V6(_) => false,
            })
        })
    };
    match ports.iter().find(same_subnet) {
        Some(usable) => Way::Named(*usable),
        None => Way::None(
            "a veth, whose address lies in no adapter's subnet: SMC-R version 2 looks for a GID in \
             the subnet of the connection; attach an ipvlan or macvlan of the adapter"
                .to_owned(),
        ),
    }
}

fn same(a: Ipv4Addr, b: Ipv4Addr, prefix: u8) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    a.to_bits() & mask == b.to_bits() & mask
}

/// The PNET id that we give to an adapter: up to 16 capital letters and digits, ours by the first
/// four. The rest is a hash of the name, since names differ in characters that may not be in it.
fn pnet_name(adapter: &str) -> String {
    // FNV-1a: what counts is that it is the same tomorrow.
    let hash = adapter.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{PNET_OURS}{:012X}", hash & 0xffff_ffff_ffff)
}

/// How PNET ids of ours begin.
pub const PNET_OURS: &str = "RCTK";

/// Sysctls that were asked for, and the one that the method is.
fn sysctls(
    case: &Case<'_>,
    facts: &SmcFacts,
    method: SmcMethod,
) -> Result<Vec<(String, String)>, String> {
    let request = case.request;
    let mut sysctls = Vec::new();
    if !request.smc_sysctls.is_empty() {
        whole_pod(request).map_err(|why| format!("sysctls: {why}"))?;
    }
    for (name, value) in &request.smc_sysctls {
        if !case.allowance.smc_sysctls.contains(name) {
            return Err(format!(
                "policy does not let it set net.smc.{name} ({}: {})",
                place(case, "smc_sysctls", |allowance| allowance.smc_sysctls.contains(name)),
                list(&case.allowance.smc_sysctls)
            ));
        }
        if !facts.sysctls.contains(name) {
            return Err(format!(
                "this kernel has no net.smc.{name} (it has: {})",
                list(&facts.sysctls)
            ));
        }
        sysctls.push((format!("net.smc.{name}"), value.to_string()));
    }
    if method == SmcMethod::Tcp2smc {
        sysctls.push(("net.smc.tcp2smc".to_owned(), "1".to_owned()));
    }
    Ok(sysctls)
}

/// What a user should know of it.
fn warn(case: &Case<'_>, method: SmcMethod, ports: &[Usable<'_>], notes: &mut Notes) {
    let six = |interface: &Interface| {
        let global = |address: &IpAddr| match address {
            IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        };
        interface.addresses.iter().any(|(address, _)| global(address))
    };
    let interfaces = match case.pod {
        PodView::Host => case.node.interfaces.as_slice(),
        PodView::Ready(network) => network.interfaces.as_slice(),
        PodView::Pending { .. } | PodView::Unknown { .. } => &[],
    };
    let sentence = "IPv6 sockets stay on TCP: SMC-R version 2 takes AF_INET sockets only";
    if interfaces.iter().any(six) {
        notes.warn("smc", sentence);
    } else {
        notes.reason("smc", sentence);
    }
    if method == SmcMethod::Tcp2smc {
        notes.reason("smc", "the sysctl turns every container of the pod");
        if ports.iter().any(|usable| usable.hca.node_type == NodeType::Rnic) {
            notes.warn(
                "smc",
                format!("TCP ports {RESERVED} are eRDMA's in every network namespace: nothing can listen there"),
            );
        }
    }
}

/// The library and the variable that loads it into every program.
fn preload(case: &Case<'_>, grant: &mut Grant, notes: &mut Notes) -> Result<(), String> {
    const NAME: &str = "LD_PRELOAD";
    let Some(library) = &case.policy.smc.preload_library else {
        return Err("policy names no library: [smc] preload_library".to_owned());
    };
    let container = &case.request.container;
    if container.mounts.iter().any(|mount| mount.destination == LIBRARY) {
        return Err(format!("there is a mount at {LIBRARY} already"));
    }
    let before = container.env.iter().rev().find(|(name, _)| name == NAME).map(|(_, value)| value);
    let value = match before {
        Some(before) if !before.is_empty() => format!("{before}:{LIBRARY}"),
        _ => LIBRARY.to_owned(),
    };
    grant.env.retain(|variable| variable.name != NAME);
    grant.env.push(Variable { name: NAME.to_owned(), value });
    grant.mounts.push(GrantedMount {
        source: library.clone(),
        destination: LIBRARY.to_owned(),
        executable: true,
    });
    notes.warn(
        "smc",
        "the library reaches programs that are linked to glibc: none that are static, set-uid, of \
         musl, or written in Go",
    );
    Ok(())
}
