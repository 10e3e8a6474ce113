//! Character devices of RDMA: which there are, with what numbers, and what `/dev` has of them.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::attribute::{Folder, Reader};
use super::focus::Focus;
use super::hca::CLASS;
use super::node::{CharDev, Hca, Node, Port};
use super::pci::Place;

/// A uverbs device: whose it is and where that sits.
#[derive(Debug, Clone)]
pub(super) struct Uverbs {
    pub(super) device: CharDev,
    /// Kernel name of the HCA.
    pub(super) ibdev: String,
    /// The HCA's owner; `None` for a virtual one.
    pub(super) owner: Option<Place>,
}

/// Reads `class/infiniband_verbs`. It is in no namespace: an HCA that somebody moved away is still
/// listed here.
pub(super) fn uverbs(reader: &mut Reader, sys: &Folder, focus: &Focus) -> Vec<Uverbs> {
    if let Some(names) = &focus.adapters
        && let Some(few) = uverbs_of(reader, sys, names)
    {
        return few;
    }
    let base = "class/infiniband_verbs";
    let Some(class) = reader.folder(sys, base) else { return Vec::new() };
    let mut found = Vec::new();
    for name in reader.names(&class) {
        let owner = |reader: &mut Reader| {
            reader
                .link(&class, &name)
                .and_then(|target| Place::of_link(base, &target)?.owner())
                .filter(|owner| owner.as_str() != "virtual")
        };
        found.extend(one_uverbs(reader, &class, &name, owner));
    }
    found
}

/// The uverbs devices of those HCAs, found on the devices that they belong to: both have one parent.
/// `None` where that finds not every one: then all have to be looked through.
fn uverbs_of(reader: &mut Reader, sys: &Folder, names: &BTreeSet<String>) -> Option<Vec<Uverbs>> {
    let class = reader.folder(sys, CLASS)?;
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let target = reader.link(&class, name)?;
        let place = Place::of_link(CLASS, &target)?.owner()?;
        let beside = format!("devices/{}/infiniband_verbs", place.as_str());
        let beside = reader.folder(sys, &beside)?;
        let owner = Some(place).filter(|place| place.as_str() != "virtual");
        let its = reader.names(&beside).into_iter().find_map(|node| {
            one_uverbs(reader, &beside, &node, |_| owner.clone())
                .filter(|device| device.ibdev == *name)
        });
        found.push(its?);
    }
    Some(found)
}

fn one_uverbs(
    reader: &mut Reader,
    folder: &Folder,
    name: &str,
    owner: impl FnOnce(&mut Reader) -> Option<Place>,
) -> Option<Uverbs> {
    if !is_numbered(name, "uverbs") {
        return None;
    }
    let ibdev = reader.text(folder, &format!("{name}/ibdev")).map(str::to_owned)?;
    let device = device(reader, folder, name)?;
    Some(Uverbs { device, ibdev, owner: owner(reader) })
}

/// MAD devices by HCA and port: the `umad` and the `issm` one.
pub(super) type Mads = HashMap<(String, u32), (Option<CharDev>, Option<CharDev>)>;

/// Reads `class/infiniband_mad`, which is in no namespace either.
pub(super) fn mads(reader: &mut Reader, sys: &Folder, focus: &Focus) -> Mads {
    let mut mads = Mads::new();
    if !focus.mads {
        return mads;
    }
    let Some(class) = reader.folder(sys, "class/infiniband_mad") else { return mads };
    for name in reader.names(&class) {
        let is_umad = is_numbered(&name, "umad");
        if !is_umad && !is_numbered(&name, "issm") {
            continue;
        }
        let ibdev = reader.text(&class, &format!("{name}/ibdev")).map(str::to_owned);
        let port = reader.number(&class, &format!("{name}/port"));
        let (Some(ibdev), Some(port)) = (ibdev, port) else { continue };
        let Some(device) = device(reader, &class, &name) else { continue };
        let (umad, issm) = mads.entry((ibdev, port)).or_default();
        *(if is_umad { umad } else { issm }) = Some(device);
    }
    mads
}

/// The connection manager's device, one for the whole node.
pub(super) fn rdma_cm(reader: &mut Reader, sys: &Folder) -> Option<CharDev> {
    let class = reader.folder(sys, "class/misc")?;
    device(reader, &class, "rdma_cm")
}

fn device(reader: &mut Reader, class: &Folder, name: &str) -> Option<CharDev> {
    let numbers = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let (major, minor) =
        reader.parsed(class, &format!("{name}/dev"), "a device number", numbers)?;
    Some(CharDev { name: name.to_owned(), major, minor, mode: None })
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Fills in the modes of all of `node`'s devices from the nodes in `dev`, and notes those nodes
/// that are another device than the kernel's: libibverbs waits five seconds for such a one, then
/// fails.
///
/// What is no character device is taken by its mode alone: a fixture holds plain files, since
/// real ones could be opened.
pub(super) fn add_modes(node: &mut Node, dev: &Path) {
    let folder = dev.join("infiniband");
    let Node { hcas, rdma_cm, remarks, .. } = node;
    let devices = hcas.iter_mut().flat_map(|Hca { uverbs, ports, .. }| {
        let mads = ports.iter_mut().flat_map(|Port { umad, issm, .. }| [umad, issm]);
        std::iter::once(uverbs).chain(mads)
    });
    for device in devices.chain([rdma_cm]).flatten() {
        add_mode(device, &folder, remarks);
    }
}

fn add_mode(device: &mut CharDev, folder: &Path, remarks: &mut Vec<String>) {
    let path = folder.join(&device.name);
    device.mode = None;
    let Ok(found) = std::fs::metadata(&path) else { return };
    device.mode = Some(found.permissions().mode() & 0o7777);
    if found.file_type().is_char_device() {
        let numbers = (major(found.rdev()), minor(found.rdev()));
        if numbers != (u64::from(device.major), u64::from(device.minor)) {
            remarks.push(format!(
                "{} is device {}:{}, but the kernel's {} is {}:{}: the node is stale, remove it",
                path.display(),
                numbers.0,
                numbers.1,
                device.name,
                device.major,
                device.minor
            ));
        }
    }
}
