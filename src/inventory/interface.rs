//! Network interfaces as sysfs shows them: which device each belongs to, and what it is part of.

use std::collections::{HashMap, HashSet};

use super::attribute::{Folder, Reader};
use super::node::Interface;
use super::pci::Place;

/// `ARPHRD_INFINIBAND`: an IPoIB interface.
const INFINIBAND: u32 = 32;

/// An interface of the namespace that the sysfs belongs to.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) interface: Interface,
    /// The device that it belongs to; `None` for a virtual one.
    pub(super) owner: Option<Place>,
    /// Its hardware address, lower case with colons; empty where there is none.
    pub(super) mac: String,
    /// Which port of the device, from 0.
    pub(super) device_port: Option<u32>,
    /// An IPoIB interface.
    pub(super) ipoib: bool,
    /// `phys_port_name`: `p0` or `pf0vf3` in switchdev mode.
    pub(super) port_name: Option<String>,
    /// Bond or bridge that it is a member of.
    pub(super) controller: Option<String>,
}

impl Link {
    /// Whether it stands for a function on the other side of an embedded switch
    /// (`devlink-port.rst`: `pf0vf1`, `pf0sf7`, `c1pf0vf1`, `pf0hpf`), not for a port of the card.
    pub(super) fn is_representor(&self) -> bool {
        self.port_name.as_deref().is_some_and(is_representor_name)
    }

    /// The EUI-64 that drivers make a node GUID or a link-local address of, from the hardware
    /// address; written as the kernel writes a GUID.
    pub(super) fn eui64(&self) -> Option<String> {
        let mut bytes = [0u8; 6];
        let mut parts = self.mac.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        let [a, b, c, d, e, f] = bytes;
        let whole = parts.next().is_none() && bytes != [0; 6];
        whole.then(|| format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}", a ^ 2))
    }
}

fn is_representor_name(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // An external controller's number may stand before.
    let name = match name.strip_prefix('c').and_then(|rest| rest.split_once("pf")) {
        Some((controller, rest)) if number(controller) => rest,
        _ => match name.strip_prefix("pf") {
            Some(rest) => rest,
            None => return false,
        },
    };
    match name.find(|byte: char| !byte.is_ascii_digit()) {
        // `pf0` alone: the other side of a physical function, on a SmartNIC.
        None => number(name),
        Some(0) => name == "hpf",
        Some(at) => {
            let (_, rest) = name.split_at(at);
            rest == "hpf" || ["vf", "sf"].iter().any(|k| rest.strip_prefix(k).is_some_and(number))
        }
    }
}

/// All interfaces of one namespace.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Ascending by name.
    pub(super) all: Vec<Link>,
    names: HashSet<String>,
}

/// The interfaces of the device at `place`. `None`: one of them is a part of something else, such as
/// a bond.
pub(super) fn own(reader: &mut Reader, sys: &Folder, place: &Place) -> Option<Vec<Link>> {
    let Some(at) = reader.folder(sys, &format!("devices/{}/net", place.as_str())) else {
        return Some(Vec::new());
    };
    let mut links = Vec::new();
    for name in reader.names(&at) {
        // One that goes away meanwhile is absent.
        let Some(folder) = reader.folder(&at, &name) else { continue };
        let Some(link) = one(reader, &folder, name, Some(place.clone())) else { continue };
        if link.controller.is_some() {
            return None;
        }
        links.push(link);
    }
    Some(links)
}

impl Links {
    /// Those links.
    pub(super) fn of(mut all: Vec<Link>) -> Self {
        all.sort_by(|one, other| one.interface.name.cmp(&other.interface.name));
        // Two HCAs of one device have the same interfaces.
        all.dedup_by(|one, other| one.interface.name == other.interface.name);
        Self { names: all.iter().map(|link| link.interface.name.clone()).collect(), all }
    }

    /// Reads `class/net` of `sys`. Virtual interfaces, of which a node has one for every pod, are
    /// taken from `told` where they are in there.
    pub(super) fn read(reader: &mut Reader, sys: &Folder, told: &[Interface]) -> Self {
        let told: HashMap<&str, &Interface> =
            told.iter().map(|interface| (interface.name.as_str(), interface)).collect();
        let Some(class) = reader.folder(sys, "class/net") else { return Self::default() };
        let bonds: HashSet<String> = reader
            .text(&class, "bonding_masters")
            .map(|text| text.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default();
        let all: Vec<Link> = reader
            .names(&class)
            .into_iter()
            .filter_map(|name| link(reader, &class, name, &bonds, &told))
            .collect();
        let mut links =
            Self { names: all.iter().map(|link| link.interface.name.clone()).collect(), all };
        links.number_controllers();
        links
    }

    fn number_controllers(&mut self) {
        let numbers: Vec<Option<u32>> = self
            .all
            .iter()
            .map(|link| self.named(link.controller.as_deref()?).map(|found| found.interface.index))
            .collect();
        for (link, number) in self.all.iter_mut().zip(numbers) {
            link.interface.controller = number.or(link.interface.controller);
        }
    }

    /// Whether there is none, not even `lo`: then nothing can be concluded from absence.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether an interface of that name is here.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The interface of that name.
    pub(super) fn named(&self, name: &str) -> Option<&Link> {
        let at = self.all.binary_search_by(|link| link.interface.name.as_str().cmp(name)).ok()?;
        self.all.get(at)
    }

    /// Whether it is a bond.
    pub(super) fn is_bond(&self, name: &str) -> bool {
        self.named(name).is_some_and(|link| link.interface.kind.as_deref() == Some("bond"))
    }
}

fn link(
    reader: &mut Reader,
    class: &Folder,
    name: String,
    bonds: &HashSet<String>,
    told: &HashMap<&str, &Interface>,
) -> Option<Link> {
    // What is no link is a control file, such as `bonding_masters`.
    let target = reader.link(class, &name)?;
    let place = Place::of_link("class/net", &target)?;
    let owner = place.owner().filter(|owner| owner.as_str() != "virtual");
    if owner.is_none()
        && let Some(interface) = told.get(name.as_str())
    {
        return Some(Link {
            interface: (*interface).clone(),
            owner,
            mac: String::new(),
            device_port: None,
            ipoib: false,
            port_name: None,
            controller: None,
        });
    }
    let at = reader.folder(class, &name)?;
    let kind = if bonds.contains(&name) {
        Some("bond".to_owned())
    } else if owner.is_none() {
        // `vlan`, `bridge`, `vxlan`; veth, macvlan and ipvlan do not say.
        reader.text(&at, "uevent").and_then(device_type)
    } else {
        None
    };
    let mut link = one(reader, &at, name, owner)?;
    link.interface.kind = kind;
    Some(link)
}

/// The interface whose folder is `at`, as far as it says what it is itself.
fn one(reader: &mut Reader, at: &Folder, name: String, owner: Option<Place>) -> Option<Link> {
    let index = reader.number(at, "ifindex")?;
    let lower = reader.number(at, "iflink").filter(|&lower| lower != index && lower != 0);
    let up = reader.parsed(at, "flags", "a hexadecimal number", hexadecimal);
    let mac = reader.text(at, "address").unwrap_or_default().to_ascii_lowercase();
    let controller =
        reader.link(at, "master").and_then(|link| Some(link.rsplit('/').next()?.to_owned()));
    let hardware = owner.is_some();
    Some(Link {
        owner,
        mac,
        device_port: if hardware { reader.number(at, "dev_port") } else { None },
        ipoib: hardware && reader.number(at, "type") == Some(INFINIBAND),
        port_name: if hardware {
            reader.text(at, "phys_port_name").map(str::to_owned)
        } else {
            None
        },
        controller,
        interface: Interface {
            name,
            index,
            lower,
            kind: None,
            controller: None,
            addresses: Vec::new(),
            default_route: false,
            // IFF_UP
            up: up.is_some_and(|flags| flags & 1 != 0),
        },
    })
}

/// `DEVTYPE` of a uevent file.
fn device_type(uevent: &str) -> Option<String> {
    uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned)
}

/// A number such as `0x1003`.
pub(super) fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representors_are_told_by_the_name_of_their_port() {
        for name in ["pf0vf0", "pf1vf12", "pf0sf88", "c1pf0vf3", "pf0hpf", "pf0", "c1pf0hpf"] {
            assert!(is_representor_name(name), "{name}");
        }
        for name in ["p0", "p1", "p0s1", "", "pfvf", "pf0vf", "pf0vfx", "cpf", "c1", "0"] {
            assert!(!is_representor_name(name), "{name}");
        }
    }
}
