//! `rdma-ctk list`: the adapters of a node.

use std::fmt::Write as _;

use clap::Args;

use super::output::{print, render, table};
use super::root::ViewArgs;
use super::{Error, Exit};
use crate::inventory::{Hca, Home, LinkLayer, Nearness, NetnsMode, Node, NodeType, Port, Role};

/// Show the adapters of this node
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    view: ViewArgs,
    /// Only adapters of this driver (mlx5, efa, erdma, rxe, ...)
    #[arg(long, visible_alias = "provider", value_name = "NAME")]
    driver: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The fixture cannot be used, or standard output cannot be written.
pub fn run(args: &ListArgs) -> Result<Exit, Error> {
    let trees = args.view.trees()?;
    let mut node = trees.node();
    if let Some(driver) = &args.driver {
        keep_driver(&mut node, driver);
    }
    let text = match render(args.view.output, &node)? {
        Some(text) => text,
        None => describe(&node),
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// Leaves only the adapters of that driver.
fn keep_driver(node: &mut Node, driver: &str) {
    node.hcas.retain(|hca| hca.driver.is(driver));
    let names: Vec<&str> = node.hcas.iter().map(|hca| hca.name.as_str()).collect();
    node.relations.retain(|relation| names.contains(&relation.hca.as_str()));
}

const HEADER: [&str; 13] = [
    "NAME", "DRIVER", "PCI", "NUMA", "PORT", "LINK", "STATE", "RATE", "NETDEV", "NODES", "GIDS",
    "ROLE", "GPUS",
];

/// The table, and what concerns the node as a whole below it.
fn describe(node: &Node) -> String {
    let mut text = if node.hcas.is_empty() {
        "no RDMA adapter\n".to_owned()
    } else {
        table(&HEADER, node.hcas.iter().flat_map(|hca| rows(node, hca)))
    };
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nrdma_cm: {}; RDMA namespaces: {}\n",
        node.rdma_cm.as_ref().map_or_else(
            || "missing".to_owned(),
            |device| format!("{}:{}{}", device.major, device.minor, no_node(device.mode))
        ),
        match node.netns_mode {
            NetnsMode::Shared => "shared",
            NetnsMode::Exclusive => "exclusive",
        }
    );
    if node.hcas.iter().any(|hca| hca.driver.is("erdma")) {
        text.push_str(
            "note: eRDMA hardware without extended doorbells opens for SYS_RAWIO only, which no path but \
             the runtime wrapper and the podman hook can give\n",
        );
    }
    for remark in &node.remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    text
}

/// A row for each port; what belongs to the adapter stands in its first.
fn rows(node: &Node, hca: &Hca) -> Vec<Vec<String>> {
    let own = |port: Option<&Port>| {
        [
            hca.name.clone(),
            hca.driver.to_string(),
            or_dash(hca.pci.map(|pci| pci.to_string())),
            or_dash(hca.numa.map(|numa| numa.to_string())),
            or_dash(port.map(|port| port.number.to_string())),
        ]
    };
    let tail = |port: Option<&Port>| {
        [nodes(hca, port), or_dash(port.and_then(gids)), place(hca), gpus(node, hca)]
    };
    if hca.ports.is_empty() {
        let mut row = own(None).to_vec();
        row.extend(["-", "-", "-", "-"].map(str::to_owned));
        row.extend(tail(None));
        return vec![row];
    }
    hca.ports
        .iter()
        .enumerate()
        .map(|(at, port)| {
            let mut row = own(Some(port)).to_vec();
            row.extend([
                link(hca, port).to_owned(),
                port.state.to_string(),
                or_dash((!port.rate.is_empty()).then(|| port.rate.clone())),
                or_dash(port.netdev.clone()),
            ]);
            row.extend(tail(Some(port)));
            if at > 0 {
                for column in [0, 1, 2, 3, 11, 12] {
                    row[column].clear();
                }
            }
            row
        })
        .collect()
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

const fn link(hca: &Hca, port: &Port) -> &'static str {
    match (port.link_layer, hca.node_type) {
        (LinkLayer::InfiniBand, _) => "IB",
        (LinkLayer::Ethernet, NodeType::Rnic) => "iWARP",
        (LinkLayer::Ethernet, _) => "RoCE",
        (LinkLayer::Unknown, _) => "other",
    }
}

/// Device nodes of an adapter's port by their numbers, and in words what is missing.
fn nodes(hca: &Hca, port: Option<&Port>) -> String {
    let mut names = Vec::new();
    match &hca.uverbs {
        Some(device) => names.push(format!("{}{}", device.name, no_node(device.mode))),
        None if hca.home == Home::Elsewhere => {}
        None => names.push("no uverbs".to_owned()),
    }
    let management = port.into_iter().flat_map(|port| [&port.umad, &port.issm]).flatten();
    names.extend(management.map(|device| format!("{}{}", device.name, no_node(device.mode))));
    or_dash((!names.is_empty()).then(|| names.join(" ")))
}

const fn no_node(mode: Option<u32>) -> &'static str {
    if mode.is_some() { "" } else { " (no node)" }
}

/// Used slots and all slots of a port's GID table.
fn gids(port: &Port) -> Option<String> {
    (port.gid_slots > 0).then(|| format!("{}/{}", port.gids.len(), port.gid_slots))
}

/// Role, and where it is if not here.
fn place(hca: &Hca) -> String {
    let role = match &hca.role {
        Role::Physical { vfs: 0 } => "physical".to_owned(),
        Role::Physical { vfs } => format!("physical, {vfs} VFs"),
        Role::Virtual { physical: Some(of) } => format!("virtual of {of}"),
        Role::Virtual { physical: None } => "virtual".to_owned(),
        Role::Representor => "representor".to_owned(),
        Role::Bond { netdev } => format!("bond {netdev}"),
        Role::BondMember { bond } => format!("member of {bond}"),
        Role::Software { parent: Some(parent) } => format!("software on {parent}"),
        Role::Software { parent: None } => "software".to_owned(),
    };
    match hca.home {
        Home::Host => role,
        Home::Elsewhere => format!("{role}; in another RDMA namespace"),
        Home::NetdevElsewhere => format!("{role}; interface in another namespace"),
    }
}

/// The nearest GPUs: those behind the same switch by name, others by their number.
fn gpus(node: &Node, hca: &Hca) -> String {
    let near = node.relations.iter().filter(|relation| {
        relation.hca == hca.name
            && !matches!(relation.nearness, Nearness::Other | Nearness::Unknown)
    });
    let Some(best) = near.clone().map(|relation| relation.nearness).min() else {
        return "-".to_owned();
    };
    let here: Vec<String> = near
        .filter(|relation| relation.nearness == best)
        .map(|relation| relation.gpu.to_string())
        .collect();
    let how = match best {
        Nearness::Switch => "same switch",
        Nearness::HostBridge => "same host bridge",
        _ => "same NUMA node",
    };
    match here.as_slice() {
        [one] => format!("{one} ({how})"),
        many => format!("{} ({how})", many.len()),
    }
}
