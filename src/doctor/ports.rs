//! Ports: state, GID table, the interface that RoCE needs.

use std::net::IpAddr;

use super::adapters::usable;
use super::{Context, Finding, Unable};
use crate::inventory::{GidKind, Hca, Home, LinkLayer, NodeType, Port, PortState, Role};

/// Port states.
pub fn states(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = countable(context)?;
    let (up, down): (Vec<&Hca>, Vec<&Hca>) =
        here.iter().partition(|hca| hca.active_ports().next().is_some());
    let mut findings = Vec::new();
    let summary = format!("{} of {} adapters have an ACTIVE port", up.len(), up.len() + down.len());
    if up.is_empty() {
        findings.push(Finding::fail(summary, "see the ports below"));
    } else {
        findings.push(Finding::ok(summary));
    }
    for (hca, port) in down.iter().flat_map(|hca| hca.ports.iter().map(move |port| (hca, port))) {
        findings.push(Finding::warn(
            format!("{} port {} is {}", hca.name, port.number, port.state),
            match (port.state, port.link_layer) {
                (PortState::Init | PortState::Armed, LinkLayer::InfiniBand) => {
                    "no subnet manager has set it up: is one running on this fabric?".to_owned()
                }
                (_, LinkLayer::Ethernet) => match &port.netdev {
                    Some(netdev) => format!("`ip link set {netdev} up`, then cable and switch"),
                    None => "cable and switch, and its network interface".to_owned(),
                },
                _ => "cable and switch; it will not be granted by `all` or a count".to_owned(),
            },
        ));
    }
    Ok(findings)
}

/// Room in GID tables of RoCE ports: each address of each interface, pods' too, takes a slot for
/// every RoCE version.
pub fn gid_room(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let ports = roce_ports(context)?;
    let mut findings = Vec::new();
    for (hca, port) in &ports {
        let used = u32::try_from(port.gids.len()).unwrap_or(u32::MAX);
        let each = if port.gids.iter().any(|gid| gid.kind == Some(GidKind::V1)) { 2 } else { 1 };
        let free = port.gid_slots.saturating_sub(used);
        // A driver that tells no table size has none that we could judge.
        if port.gid_slots < 8 || free.saturating_mul(10) > port.gid_slots {
            continue;
        }
        let room = free / each;
        findings.push(Finding::warn(
            format!(
                "{} port {}: {used} of {} GIDs used, room for {room} more interface{}",
                hca.name,
                port.number,
                port.gid_slots,
                if room == 1 { "" } else { "s" }
            ),
            format!(
                "an address takes {each} slot{}: give pods interfaces on other adapters, or fewer \
                 addresses",
                if each == 1 { "" } else { "s" }
            ),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("every RoCE port has room for more interfaces"));
    }
    Ok(findings)
}

/// RoCE ports without an interface, or with one that has no address.
pub fn interfaces(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let mut findings = Vec::new();
    let mut fine = 0_usize;
    for (hca, port) in roce_ports(context)? {
        let which = format!("{} port {}", hca.name, port.number);
        if hca.home == Home::NetdevElsewhere {
            findings.push(Finding::ok(format!("{which}: its interface is in a pod")));
            continue;
        }
        let Some(netdev) = &port.netdev else {
            findings.push(Finding::warn(
                format!(
                    "{which} is RoCE and has no network interface: nobody can connect through it"
                ),
                "load the driver's network module; if the interface was moved into a namespace \
                 that is gone, reload the driver",
            ));
            continue;
        };
        let routed = port.gids.iter().any(|gid| match gid.address() {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => address.segments()[0] & 0xffc0 != 0xfe80,
        });
        // A virtual function is there to be given away, and gets its address then.
        let kept = !matches!(hca.role, Role::Virtual { .. });
        if port.state == PortState::Active && kept && !routed {
            findings.push(Finding::warn(
                format!("{which}: {netdev} has no address, so only link-local GIDs"),
                format!("give {netdev} an address, or an interface of its own to each pod"),
            ));
        } else {
            fine += 1;
        }
    }
    if fine > 0 {
        let count = if fine == 1 { "1 RoCE port".into() } else { format!("{fine} RoCE ports") };
        findings.push(Finding::ok(format!("{count} with an interface")));
    }
    Ok(findings)
}

/// How to take an adapter out of iWARP mode, by driver (`""`: any other).
const OUT_OF_IWARP: [(&str, &str); 3] = [
    (
        "erdma",
        "for NCCL, load erdma with `options erdma compat_mode=1` in modprobe.d; that resets its users",
    ),
    (
        "irdma",
        "for NCCL, switch it to RoCE (`devlink dev param`, enable_roce); that resets its users",
    ),
    ("", "use programs that connect by librdmacm"),
];

/// Adapters that speak iWARP, which NCCL and UCX do not, and virtual functions that have no GUID.
pub fn identity(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = usable(context)?;
    let named = |wanted: &dyn Fn(&Hca) -> bool| {
        let found = here.iter().filter(|hca| wanted(hca));
        names(&found.map(|hca| hca.name.as_str()).collect::<Vec<_>>())
    };
    let mut findings = Vec::new();
    let known = |hca: &Hca| OUT_OF_IWARP.iter().any(|(driver, _)| hca.driver.is(driver));
    for (driver, fix) in OUT_OF_IWARP {
        let iwarp = |hca: &Hca| {
            let of_driver = if driver.is_empty() { !known(hca) } else { hca.driver.is(driver) };
            hca.node_type == NodeType::Rnic && of_driver
        };
        if let Some(names) = named(&iwarp) {
            findings.push(Finding::warn(
                format!("in iWARP mode, which NCCL and UCX cannot use: {names}"),
                fix,
            ));
        }
    }
    // What rdma-cni asks of Mellanox functions; others make their connections without.
    let blank = |hca: &Hca| {
        let nvidia = hca.driver.is("mlx5") || hca.driver.is("mlx4");
        let blank = hca.node_guid.chars().all(|c| c == '0' || c == ':');
        nvidia && blank && matches!(hca.role, Role::Virtual { .. })
    };
    if let Some(names) = named(&blank) {
        findings.push(Finding::warn(
            format!("without a node GUID, so that librdmacm will not use it: {names}"),
            "give the virtual function a MAC address (or a GUID) on the host and bind its driver \
             again",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no adapter is in iWARP mode or lacks its GUID"));
    }
    Ok(findings)
}

/// The first few names, and how many more; `None` for none.
fn names(names: &[&str]) -> Option<String> {
    const SAID: usize = 6;
    let more = names.len().saturating_sub(SAID);
    let said = names.get(..SAID).unwrap_or(names).join(", ");
    match (names, more) {
        ([], _) => None,
        (_, 0) => Some(said),
        _ => Some(format!("{said} and {more} more")),
    }
}

/// Adapters by which a user would count: no representor, no member of a bond.
fn countable<'a>(context: &Context<'a>) -> Result<Vec<&'a Hca>, Unable> {
    let mut here = usable(context)?;
    here.retain(|hca| !matches!(hca.role, Role::Representor | Role::BondMember { .. }));
    if here.is_empty() {
        return Err(Unable::Absent("only representors and members of bonds here"));
    }
    Ok(here)
}

/// RoCE ports of those.
fn roce_ports<'a>(context: &Context<'a>) -> Result<Vec<(&'a Hca, &'a Port)>, Unable> {
    let mut ports: Vec<(&Hca, &Port)> = countable(context)?
        .into_iter()
        .filter(|hca| hca.node_type == NodeType::Ca)
        .flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)))
        .collect();
    ports.retain(|(_, port)| port.link_layer == LinkLayer::Ethernet);
    if ports.is_empty() {
        return Err(Unable::Absent("no RoCE port on this node"));
    }
    Ok(ports)
}
