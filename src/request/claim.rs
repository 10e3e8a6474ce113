//! Adapters that somebody else's plugin has already put into a container: a device plugin, a DRA
//! driver, another NRI plugin.
//!
//! What proves an allocation is what the kubelet and the runtime put there and a tenant cannot: a
//! uverbs node in the specification, or a CDI name. Variables that such plugins set say who it was
//! but prove nothing, since anybody can write them into a pod. A container that may open every
//! device holds nothing in particular, and has claimed nothing.

use std::collections::BTreeSet;

use super::error::shown;
use super::{Claim, Container, Mount};
use crate::inventory::{Hca, Node, PciAddress};

/// CDI vendor of our own devices.
const OURS: &str = "rdma-ctk.io";

/// What another plugin has given to that container; `None`: nothing.
pub fn recognise(container: &Container, node: &Node) -> Option<Claim> {
    if container.all_devices || container.mounts.iter().any(shows_every_node) {
        return None;
    }
    let mut held: Vec<&Hca> = node.hcas.iter().filter(|hca| holds(container, hca)).collect();
    let cdi: Vec<(&str, &Hca)> = container
        .cdi
        .iter()
        .filter_map(|name| Some((name.as_str(), of_cdi(name, node)?)))
        .collect();
    let plugin = plugin(container);
    if plugin.is_none() && cdi.is_empty() && injects_every_node(container) {
        held.clear();
    }
    if held.is_empty() && cdi.is_empty() {
        return None;
    }
    let by = match (cdi.first(), plugin) {
        (Some((name, _)), _) => format!("CDI device {}", shown(name)),
        (None, Some(plugin)) => plugin,
        (None, None) => {
            let nodes: Vec<_> = held
                .iter()
                .filter_map(|hca| hca.uverbs.as_ref())
                .map(|uverbs| uverbs.name.as_str())
                .collect();
            format!("another plugin, by {}", nodes.join(", "))
        }
    };
    let names: BTreeSet<String> =
        held.iter().copied().chain(cdi.iter().map(|(_, hca)| *hca)).map(name_of).collect();
    let uverbs = held
        .iter()
        .filter_map(|hca| hca.uverbs.as_ref())
        .map(|uverbs| (uverbs.major, uverbs.minor))
        .collect();
    Some(Claim { by, uverbs, names })
}

fn name_of(hca: &Hca) -> String {
    hca.name.clone()
}

/// Whether the adapter's uverbs node is in the container, whatever it is called there.
fn holds(container: &Container, hca: &Hca) -> bool {
    hca.uverbs.as_ref().is_some_and(|uverbs| {
        container
            .devices
            .iter()
            .any(|device| (device.major, device.minor) == (uverbs.major, uverbs.minor))
    })
}

/// Whether a mount brings the host's nodes in as a whole. Every container has a `/dev` of its own,
/// a tmpfs, which is none of that.
fn shows_every_node(mount: &Mount) -> bool {
    let destination = mount.destination.trim_end_matches('/');
    matches!(destination, "/dev" | "/dev/infiniband") && mount.source.starts_with('/')
}

/// The adapter that a CDI name stands for, when it is of a kind for RDMA that is not ours:
/// `nvidia.com/net-rdma=0000:3b:00.0`.
fn of_cdi<'a>(name: &str, node: &'a Node) -> Option<&'a Hca> {
    let (kind, device) = name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    if vendor == OURS || !class.contains("rdma") {
        return None;
    }
    let address: Option<PciAddress> = device.parse().ok();
    node.hcas.iter().find(|hca| hca.name == device || (address.is_some() && hca.pci == address))
}

/// The plugin that marks its allocations with a variable of the container.
fn plugin(container: &Container) -> Option<String> {
    container.env.iter().find_map(|(name, _)| {
        let plugin = match name.as_str() {
            "SMCR_PNET" => "the eRDMA device plugin of ACK",
            name if name.starts_with("PCIDEVICE_") => "the SR-IOV network device plugin",
            name if name.starts_with("SRIOVNETWORK_") => "the SR-IOV DRA driver",
            _ => return None,
        };
        Some(format!("{plugin}, by {}", shown(name)))
    })
}

/// `NVIDIA_MOFED=enabled` makes NVIDIA's runtime inject every node there is. The pod's owner writes
/// it, so the nodes are no allocation.
fn injects_every_node(container: &Container) -> bool {
    container
        .env
        .iter()
        .any(|(name, value)| name == "NVIDIA_MOFED" && value.eq_ignore_ascii_case("enabled"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{CharDev, CpuSet, Driver, Home, NodeType, Role};
    use crate::request::Device;

    fn node() -> Node {
        let hca = |name: &str, minor: u32, pci: &str| Hca {
            name: name.into(),
            index: None,
            driver: Driver("mlx5".into()),
            node_type: NodeType::Ca,
            node_guid: String::new(),
            firmware: None,
            pci: pci.parse().ok(),
            numa: None,
            local_cpus: CpuSet::default(),
            uverbs: Some(CharDev {
                name: format!("uverbs{}", minor - 192),
                major: 231,
                minor,
                mode: None,
            }),
            ports: Vec::new(),
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        };
        Node {
            hcas: vec![
                hca("mlx5_0", 192, "0000:3b:00.0"),
                hca("mlx5_1", 193, "0000:3b:00.1"),
                hca("rxe0", 194, ""),
            ],
            ..Node::default()
        }
    }

    fn holding(minors: &[u32]) -> Container {
        let devices = minors
            .iter()
            .map(|minor| Device {
                path: format!("/dev/infiniband/uverbs{}", minor - 192),
                major: 231,
                minor: *minor,
            })
            .collect();
        Container { devices, ..Container::default() }
    }

    fn with_env(container: Container, env: &[(&str, &str)]) -> Container {
        let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Container { env, ..container }
    }

    fn mounted(destination: &str, source: &str) -> Container {
        let mount = Mount {
            destination: destination.into(),
            source: source.into(),
            kind: if source.starts_with('/') { "bind" } else { source }.into(),
        };
        Container { mounts: vec![mount], ..holding(&[192]) }
    }

    fn claimed(container: &Container) -> Option<(String, Vec<u32>, Vec<String>)> {
        let claim = recognise(container, &node())?;
        let minors = claim.uverbs.into_iter().map(|(_, minor)| minor).collect();
        Some((claim.by, minors, claim.names.into_iter().collect()))
    }

    #[test]
    fn c78_every_adapter_whose_node_is_there_is_held() {
        assert_eq!(
            claimed(&holding(&[192, 194])),
            Some((
                "another plugin, by uverbs0, uverbs2".into(),
                vec![192, 194],
                vec!["mlx5_0".into(), "rxe0".into()]
            ))
        );
    }

    #[test]
    fn nodes_of_other_kinds_are_no_claim() {
        assert_eq!(claimed(&Container::default()), None);
        // 231:0 is umad0, 10:121 rdma_cm, 231:200 a uverbs node of no adapter that is here.
        let other = |major, minor| Device { path: "/dev/x".into(), major, minor };
        let devices = vec![other(231, 0), other(10, 121), other(231, 200), other(1, 3)];
        assert_eq!(claimed(&Container { devices, ..Container::default() }), None);
    }

    #[test]
    fn c94_privileged_containers_have_claimed_nothing() {
        let privileged = Container { all_devices: true, ..holding(&[192, 193, 194]) };
        assert_eq!(claimed(&privileged), None);
        for (destination, source, is_claim) in [
            ("/dev", "/dev", false),
            ("/dev/", "/host/dev", false),
            ("/dev/infiniband", "/dev/infiniband", false),
            ("/dev", "tmpfs", true),
            ("/dev/shm", "/run/shm", true),
            ("/data", "/dev", true),
        ] {
            let container = mounted(destination, source);
            assert_eq!(claimed(&container).is_some(), is_claim, "{destination} {source}");
        }
    }

    #[test]
    fn variables_say_who_it_was_and_prove_nothing() {
        for (name, value, by) in [
            ("SMCR_PNET", "00163E0A0B0C", "the eRDMA device plugin of ACK, by SMCR_PNET"),
            (
                "PCIDEVICE_NVIDIA_COM_VF",
                "0000:3b:00.0",
                "the SR-IOV network device plugin, by PCIDEVICE_NVIDIA_COM_VF",
            ),
            (
                "SRIOVNETWORK_vf0_RDMA_UVERB",
                "/dev/infiniband/uverbs0",
                "the SR-IOV DRA driver, by SRIOVNETWORK_vf0_RDMA_UVERB",
            ),
        ] {
            let env = [("PATH", "/bin"), (name, value)];
            let (found, minors, names) = claimed(&with_env(holding(&[192]), &env)).unwrap();
            assert_eq!((found.as_str(), minors, names), (by, vec![192], vec!["mlx5_0".into()]));
            assert_eq!(claimed(&with_env(Container::default(), &env)), None, "{name}");
        }
    }

    #[test]
    fn cdi_names_of_kinds_for_rdma_are_claims() {
        for (name, adapter) in [
            ("nvidia.com/net-rdma=0000:3b:00.1", Some("mlx5_1")),
            ("example.org/rdma=rxe0", Some("rxe0")),
            ("nvidia.com/net-rdma=0000:99:00.0", None),
            ("nvidia.com/gpu=0", None),
            ("k8s.example.org/net-pci=0000:3b:00.1", None),
            ("rdma-ctk.io/hca=mlx5_0", None),
            ("nvidia.com/net-rdma", None),
            ("=", None),
        ] {
            let container = Container { cdi: vec![name.into()], ..Container::default() };
            let expected = adapter.map(|adapter| {
                (format!("CDI device {name}"), Vec::new(), vec![adapter.to_owned()])
            });
            assert_eq!(claimed(&container), expected, "{name}");
        }
    }

    #[test]
    fn c70_the_nvidia_switch_is_no_claim() {
        let switch = ("NVIDIA_MOFED", "enabled");
        let all = || holding(&[192, 193, 194]);
        assert_eq!(claimed(&with_env(all(), &[switch])), None);
        assert!(claimed(&with_env(all(), &[("NVIDIA_MOFED", "disabled")])).is_some());
        assert!(claimed(&with_env(all(), &[switch, ("SMCR_PNET", "x")])).is_some());
    }
}
