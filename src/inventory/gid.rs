//! GID tables: `gids/N` of a port, with `gid_attrs/types/N` and `gid_attrs/ndevs/N`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::Ipv6Addr;

use super::attribute::{Folder, Reader};
use super::node::{Gid, GidKind};

/// What an empty slot reads as.
const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// One port's table: how many slots it has, and those that are used.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) slots: u32,
    pub(super) used: Vec<Gid>,
}

/// Reads the table of `port`. The attributes, two more files a slot, are only opened for slots
/// that are used: a table has up to 1024 slots, of which a handful are.
///
/// Where `of` is given, attributes are read only of slots that hold one of its values, and the others
/// are as if the kernel did not tell theirs.
pub(super) fn table(reader: &mut Reader, port: &Folder, of: Option<&BTreeSet<Ipv6Addr>>) -> Table {
    let mut table = Table::default();
    let Some(gids) = reader.folder(port, "gids") else { return table };
    let slots = reader.numbers(&gids);
    table.slots = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let mut name = String::new();
    for index in slots {
        if let Some(value) = value(reader, &gids, numbered(&mut name, index)) {
            table.used.push(Gid { index, value, kind: None, netdev: None });
        }
    }
    let concerns = |gid: &Gid| of.is_none_or(|values| values.contains(&gid.value));
    if !table.used.iter().any(concerns) {
        return table;
    }
    if let Some(types) = reader.folder(port, "gid_attrs/types") {
        for gid in table.used.iter_mut().filter(|gid| concerns(gid)) {
            let file = numbered(&mut name, gid.index);
            gid.kind = reader.parsed(&types, file, "a kind of GID", kind);
        }
    }
    if let Some(netdevs) = reader.folder(port, "gid_attrs/ndevs") {
        for gid in table.used.iter_mut().filter(|gid| concerns(gid)) {
            gid.netdev = reader.text(&netdevs, numbered(&mut name, gid.index)).map(str::to_owned);
        }
    }
    table
}

fn numbered(name: &mut String, number: u32) -> &str {
    name.clear();
    // Writing to a String does not fail.
    let _ = write!(name, "{number}");
    name
}

fn value(reader: &mut Reader, gids: &Folder, name: &str) -> Option<Ipv6Addr> {
    let parse = |text: &str| match text {
        EMPTY => Some(Ipv6Addr::UNSPECIFIED),
        _ => text.parse().ok(),
    };
    reader.parsed(gids, name, "a GID", parse).filter(|value| !value.is_unspecified())
}

fn kind(text: &str) -> Option<GidKind> {
    match text {
        "IB/RoCE v1" => Some(GidKind::V1),
        "RoCE v2" => Some(GidKind::V2),
        _ => None,
    }
}
