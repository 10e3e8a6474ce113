//! GID tables: `gids/N` of a port, with `gid_attrs/types/N` and `gid_attrs/ndevs/N`.

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
pub(super) fn table(reader: &mut Reader, port: &Folder) -> Table {
    let mut table = Table::default();
    let Some(gids) = reader.folder(port, "gids") else { return table };
    let slots = reader.numbers(&gids);
    table.slots = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let mut name = String::new();
    for index in slots {
        if let Some(value) = value(reader, &gids, numbered(&mut name, "", index)) {
            table.used.push(Gid { index, value, kind: None, netdev: None });
        }
    }
    for gid in &mut table.used {
        let file = numbered(&mut name, "gid_attrs/types/", gid.index);
        gid.kind = reader.parsed(port, file, "a kind of GID", kind);
        let file = numbered(&mut name, "gid_attrs/ndevs/", gid.index);
        gid.netdev = reader.text(port, file).map(str::to_owned);
    }
    table
}

fn numbered<'a>(name: &'a mut String, folder: &str, number: u32) -> &'a str {
    name.clear();
    // Writing to a String does not fail.
    let _ = write!(name, "{folder}{number}");
    name
}

fn value(reader: &mut Reader, gids: &Folder, name: &str) -> Option<Ipv6Addr> {
    if reader.text(gids, name)? == EMPTY {
        return None;
    }
    let value = reader.parsed(gids, name, "a GID", |text| text.parse::<Ipv6Addr>().ok())?;
    (!value.is_unspecified()).then_some(value)
}

fn kind(text: &str) -> Option<GidKind> {
    match text {
        "IB/RoCE v1" => Some(GidKind::V1),
        "RoCE v2" => Some(GidKind::V2),
        _ => None,
    }
}
