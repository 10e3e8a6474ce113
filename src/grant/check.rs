//! What the container's own variables say, held against what it is given. They stay as they are;
//! a value that was copied from another cluster is told.

use super::environment::{Indexes, ports, present, visible};
use super::gid::Placed;
use super::words::{list, quote};
use super::{Case, Notes};
use crate::request::nccl::HcaList;

/// Warns of variables that name none of the adapters, or another GID.
pub(super) fn check(case: &Case<'_>, placed: &[Placed<'_>], notes: &mut Notes) {
    if case.request.container.env.is_empty() {
        return;
    }
    if present(case, "NCCL_IB_DISABLE").is_some_and(|value| !matches!(value.trim(), "" | "0")) {
        notes.warn("env", "NCCL_IB_DISABLE is set: NCCL uses TCP");
    }
    names(case, placed, notes);
    indexes(case, placed, notes);
    let interfaces = visible(case).filter(|interfaces| !interfaces.is_empty());
    if let (Some(value), Some(interfaces)) = (present(case, "NCCL_SOCKET_IFNAME"), interfaces) {
        // The same four forms; interfaces have no ports.
        let list_of = HcaList::parse(value);
        let others = || interfaces.iter().map(|i| &i.name).filter(|name| *name != "lo");
        if !interfaces.iter().any(|interface| list_of.selects(&interface.name, 0)) {
            notes.warn(
                "env",
                format!(
                    "NCCL_SOCKET_IFNAME={} names none of the interfaces here ({})",
                    quote(value),
                    list(others())
                ),
            );
        }
    }
}

fn names(case: &Case<'_>, placed: &[Placed<'_>], notes: &mut Notes) {
    let mut warn = |name: &str, value: &str| {
        let injected = list(placed.iter().map(|placed| &placed.hca.name));
        notes.warn(
            "env",
            format!("{name} names none of the injected HCAs ({injected}): it is {}", quote(value)),
        );
    };
    if ports(placed).next().is_none() {
        return;
    }
    if let Some(value) = present(case, "NCCL_IB_HCA") {
        let named = HcaList::parse(value);
        if !ports(placed).any(|(placed, port)| named.selects(&placed.hca.name, port)) {
            warn("NCCL_IB_HCA", value);
        }
    }
    if let Some(value) = present(case, "UCX_NET_DEVICES") {
        let (exclude, value) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
        let mut words = value.split(',').map(str::trim);
        let named = words.any(|word| {
            word == "all"
                || ports(placed).any(|(placed, port)| {
                    let rest = word.strip_prefix(placed.hca.name.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest == format!(":{port}"))
                })
        });
        if !named && !exclude {
            warn("UCX_NET_DEVICES", value);
        }
    }
}

fn indexes(case: &Case<'_>, placed: &[Placed<'_>], notes: &mut Notes) {
    let right = match Indexes::of(ports(placed)) {
        Indexes::One(index) => Some(index),
        Indexes::Several => None,
        Indexes::None | Indexes::Unknown => return,
    };
    for name in ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX"] {
        let Some(value) = present(case, name) else { continue };
        // Less than 0, or `auto`, leaves the choice to the library.
        let Ok(index) = value.trim().parse::<u32>() else { continue };
        if right == Some(index) {
            continue;
        }
        let wanted = placed.iter().flat_map(|placed| {
            placed.adapter.gids.iter().map(|gid| format!("{}:{}", placed.hca.name, gid.index))
        });
        notes.warn(
            "env",
            format!("{name}={index} is set, and the GIDs of this container are {}", list(wanted)),
        );
    }
}
