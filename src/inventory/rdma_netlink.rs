//! Fills a [`NetlinkView`] from the live kernel.
//!
//! **An inventory loads no modules.** The kernel answers the first `NETLINK_RDMA` socket by loading
//! `ib_core` (alias `net-pf-16-proto-20`), and a question about a character device that it does not
//! know by starting `modprobe rdma-client-…`: for `rdma_cm` that makes a node which the admin may
//! have chosen not to have, and for the MAD nodes of an adapter without MADs it starts a process in
//! vain at every reading. So only what sysfs shows is asked about. Loading `rdma_ucm` is up to the
//! admin; `doctor` says when it is missing.

use std::collections::BTreeSet;
use std::path::Path;

use super::attribute::Reader;
use super::chardev;
use super::focus::Focus;
use super::hca::CLASS;
use super::netlink_view::{NetlinkDevice, NetlinkPort, NetlinkView};
use super::node::{CharDev, NetnsMode, NodeType, PortState};
use super::rtnetlink;
use crate::netlink::nldev::{CharDevice, Device, Port};
use crate::netlink::rdma::{Query, Rdma, vanished};
use crate::netlink::{Error, Socket};
use crate::roots::Roots;

/// Reads RDMA netlink, and the interfaces, in the calling thread's network namespace. `None` on a
/// fixture tree, which no netlink speaks of; a view without devices where `ib_core` is not loaded.
///
/// # Errors
/// When the devices cannot be listed: a list that is missing is not an empty one. Other questions
/// that fail are remarks of the view.
pub fn read(roots: &Roots) -> Result<Option<NetlinkView>, Error> {
    read_part(roots, &Focus::EVERYTHING)
}

/// Reads as [`read`], of the devices only those that somebody wants to know about.
///
/// # Errors
/// As [`read`].
pub fn read_part(roots: &Roots, focus: &Focus) -> Result<Option<NetlinkView>, Error> {
    if !roots.is_live() {
        return Ok(None);
    }
    let core = roots.sys.join(CLASS).exists();
    let mut view = if core { devices(roots, focus)? } else { NetlinkView::default() };
    if focus.interfaces {
        match rtnetlink::read() {
            Ok(interfaces) => view.interfaces = Some(interfaces),
            Err(error) => view.remarks.push(error.to_string()),
        }
    }
    Ok(Some(view))
}

fn devices(roots: &Roots, focus: &Focus) -> Result<NetlinkView, Error> {
    match Socket::open() {
        Ok(mut socket) => view(&mut socket, &Shown::read(&roots.sys, focus), focus),
        Err(Error::Absent { .. }) => Ok(NetlinkView::default()),
        Err(error) => Err(error),
    }
}

/// The character devices that sysfs shows, which are those that may be asked about.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    /// Devices with a uverbs node.
    uverbs: BTreeSet<String>,
    /// Ports with a umad node.
    umad: BTreeSet<(String, u32)>,
    /// Ports with an issm node.
    issm: BTreeSet<(String, u32)>,
    /// Whether there is an `rdma_cm`.
    rdma_cm: bool,
}

impl Shown {
    /// Looks into the classes; one that is not there has no devices.
    fn read(sys: &Path, focus: &Focus) -> Self {
        let mut reader = Reader::new();
        let Some(sys) = reader.open(sys) else { return Self::default() };
        let mut shown = Self {
            rdma_cm: reader.folder(&sys, "class/misc/rdma_cm").is_some(),
            uverbs: chardev::uverbs(&mut reader, &sys, focus)
                .into_iter()
                .map(|device| device.ibdev)
                .collect(),
            ..Self::default()
        };
        for (port, (umad, issm)) in chardev::mads(&mut reader, &sys, focus) {
            if issm.is_some() {
                shown.issm.insert(port.clone());
            }
            if umad.is_some() {
                shown.umad.insert(port);
            }
        }
        shown
    }
}

fn view(socket: &mut Socket<Rdma>, shown: &Shown, focus: &Focus) -> Result<NetlinkView, Error> {
    let mut view = NetlinkView::default();
    match socket.system() {
        Ok(system) => {
            view.monitor = system.monitor;
            view.netns_mode = system.shared.map(|shared| match shared {
                true => NetnsMode::Shared,
                false => NetnsMode::Exclusive,
            });
        }
        Err(error) => view.remarks.push(error.to_string()),
    }
    for device in socket.devices()?.into_iter().filter(|device| focus.adapter(&device.name)) {
        match describe(socket, shown, device, &mut view.remarks) {
            Ok(device) => view.devices.push(device),
            Err(error) if vanished(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if shown.rdma_cm {
        let answer = socket.char_device(Query::RdmaCm);
        view.rdma_cm = heard("rdma_cm", answer, &mut view.remarks).map(char_dev);
    }
    Ok(view)
}

/// Asks for all that belongs to one device.
fn describe(
    socket: &mut Socket<Rdma>,
    shown: &Shown,
    device: Device,
    remarks: &mut Vec<String>,
) -> Result<NetlinkDevice, Error> {
    let Device { index, name, node_type, node_guid, protocol, firmware } = device;
    let ports = match socket.ports(index) {
        Ok(ports) => ports,
        Err(error) if vanished(&error) => return Err(error),
        Err(error) => {
            remarks.push(format!("ports of {name}: {error}"));
            Vec::new()
        }
    };
    let uverbs = if shown.uverbs.contains(&name) {
        heard(&name, socket.char_device(Query::Uverbs { device: index }), remarks)
    } else {
        None
    };
    let mut described = NetlinkDevice {
        index,
        node_type: node_type.and_then(node_type_of),
        node_guid: node_guid.map(guid),
        protocol,
        firmware,
        driver_id: uverbs.as_ref().and_then(|uverbs| uverbs.driver_id),
        uverbs: uverbs.map(char_dev),
        ports: Vec::new(),
        name,
    };
    for Port { number, state, lid, netdev_index, netdev } in ports {
        let at = (described.name.clone(), number);
        let mut ask = |shown: &BTreeSet<(String, u32)>, query| {
            shown.contains(&at).then(|| socket.char_device(query)).and_then(|answer| {
                heard(&format!("{} port {number}", at.0), answer, remarks).map(char_dev)
            })
        };
        described.ports.push(NetlinkPort {
            number,
            state: state.and_then(port_state_of),
            lid,
            netdev_index,
            netdev,
            umad: ask(&shown.umad, Query::Umad { device: index, port: number }),
            issm: ask(&shown.issm, Query::Issm { device: index, port: number }),
        });
    }
    described.ports.sort_by_key(|port| port.number);
    Ok(described)
}

/// What was answered; a device that vanished meanwhile is not worth a remark, anything else is.
fn heard(
    what: &str,
    answer: Result<Option<CharDevice>, Error>,
    remarks: &mut Vec<String>,
) -> Option<CharDevice> {
    answer.unwrap_or_else(|error| {
        if !vanished(&error) {
            remarks.push(format!("{what}: {error}"));
        }
        None
    })
}

fn char_dev(device: CharDevice) -> CharDev {
    CharDev { name: device.name, major: device.major, minor: device.minor, mode: None }
}

/// A GUID as sysfs prints it.
fn guid(guid: u64) -> String {
    let part = |shift: u32| (guid >> shift) & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0))
}

/// `enum rdma_node_type`
fn node_type_of(number: u8) -> Option<NodeType> {
    Some(match number {
        1 => NodeType::Ca,
        2 => NodeType::Switch,
        3 => NodeType::Router,
        4 => NodeType::Rnic,
        5 | 6 => NodeType::Usnic,
        7 => NodeType::Unspecified,
        _ => return None,
    })
}

/// `enum ib_port_state`
fn port_state_of(number: u8) -> Option<PortState> {
    Some(match number {
        0 => PortState::Nop,
        1 => PortState::Down,
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDefer,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn text(file: &Path) -> Option<String> {
        fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
    }

    #[test]
    fn only_what_sysfs_shows_may_be_asked_about() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("class/infiniband_verbs/abi_version", "6\n");
        write("class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
        write("class/infiniband_verbs/uverbs3/dev", "231:195\n");
        write("class/infiniband_mad/abi_version", "5\n");
        write("class/infiniband_mad/umad0/ibdev", "mlx5_0\n");
        write("class/infiniband_mad/umad0/dev", "231:0\n");
        write("class/infiniband_mad/umad0/port", "1\n");
        write("class/infiniband_mad/issm0/ibdev", "mlx5_0\n");
        write("class/infiniband_mad/issm0/dev", "231:64\n");
        write("class/infiniband_mad/issm0/port", "2\n");
        let shown = Shown::read(root.path(), &Focus::EVERYTHING);
        assert_eq!(shown.uverbs, BTreeSet::from(["mlx5_0".to_owned()]));
        assert_eq!(shown.umad, BTreeSet::from([("mlx5_0".to_owned(), 1)]));
        assert_eq!(shown.issm, BTreeSet::from([("mlx5_0".to_owned(), 2)]));
        assert!(!shown.rdma_cm);
        write("class/infiniband/mlx5_0/node_type", "1: CA\n");
        write("class/misc/rdma_cm/dev", "10:260\n");
        let shown = Shown::read(root.path(), &Focus::EVERYTHING);
        assert!(shown.rdma_cm);
        assert_eq!(Shown::read(Path::new("/nonexistent"), &Focus::EVERYTHING), Shown::default());
    }

    #[test]
    fn a_fixture_tree_has_no_netlink() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(&Roots::below(root.path())), Ok(None));
    }

    #[test]
    fn guids_are_written_as_sysfs_writes_them() {
        assert_eq!(guid(0xa088_c203_005f_c296), "a088:c203:005f:c296");
        assert_eq!(guid(0), "0000:0000:0000:0000");
    }

    /// The kernel's answers agree with its sysfs about the soft-RoCE device `rxe0`.
    #[test]
    #[ignore = "needs rxe0: run it in the test machine of integration/"]
    fn vm_the_view_is_what_sysfs_says() {
        let view = read(&Roots::below(Path::new("/"))).unwrap().unwrap();
        assert_eq!(view.remarks, [""; 0]);
        assert_eq!(view.netns_mode, Some(NetnsMode::Shared));
        assert!(view.monitor);
        let device = view.devices.iter().find(|device| device.name == "rxe0").unwrap();
        let sys = Path::new("/sys/class/infiniband/rxe0");
        assert_eq!(device.node_guid, text(&sys.join("node_guid")));
        assert_eq!(device.node_type, Some(NodeType::Ca));
        assert_eq!(device.protocol.as_deref(), Some("roce"));
        assert_eq!(device.driver_id, Some(14));
        let [port] = &device.ports[..] else { panic!("{:?}", device.ports) };
        assert_eq!((port.number, port.state), (1, Some(PortState::Active)));
        assert_eq!(port.netdev.as_deref(), Some("eth0"));
        assert_eq!((&port.umad, &port.issm), (&None, &None));
        let interfaces = view.interfaces.unwrap();
        let eth0 = interfaces.iter().find(|interface| interface.name == "eth0").unwrap();
        assert_eq!((port.netdev_index, eth0.up, &eth0.kind), (Some(eth0.index), true, &None));
        assert!(eth0.addresses.contains(&("10.77.0.1".parse().unwrap(), 24)), "{eth0:?}");
        for (node, class) in [(&device.uverbs, "infiniband_verbs"), (&view.rdma_cm, "misc")] {
            let node = node.as_ref().unwrap();
            let dev = text(&Path::new("/sys/class").join(class).join(&node.name).join("dev"));
            assert_eq!(dev, Some(format!("{}:{}", node.major, node.minor)));
        }
    }

    /// Asking about `rdma_cm` or a MAD node would load the module that makes it.
    #[test]
    #[ignore = "needs rxe0: run it in the test machine of integration/"]
    fn vm_c101_reading_loads_no_module() {
        let run = |program: &str, words: &str| {
            std::process::Command::new(program).args(words.split(' ')).status().unwrap().success()
        };
        assert!(run("rmmod", "rdma_ucm"));
        // It may not be there: soft-RoCE gets a MAD node only once somebody asks for it.
        run("rmmod", "ib_umad");
        let view = read(&Roots::below(Path::new("/"))).unwrap().unwrap();
        let loaded = fs::read_to_string("/proc/modules").unwrap();
        assert!(run("modprobe", "rdma_ucm"));
        assert_eq!((view.rdma_cm, view.remarks), (None, vec![]));
        assert!(view.devices[0].uverbs.is_some());
        assert!(!loaded.contains("rdma_ucm ") && !loaded.contains("ib_umad "), "{loaded}");
    }
}
