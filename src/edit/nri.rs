//! A grant as NRI's `ContainerAdjustment`.
//!
//! Every key is set once: the same one twice in a reply conflicts with itself and fails the
//! container. Limits are appended by the runtime, and the last of a kind wins in runc and crun.
//! Nodes of the kind `c` get their cgroup rule (`rw`) from the runtime.

use std::collections::BTreeMap;

use crate::grant::{DeviceNode, Grant};
use crate::nri::proto::{
    ContainerAdjustment, KeyValue, LinuxContainerAdjustment, LinuxCpu, LinuxDevice,
    LinuxDeviceCgroup, LinuxResources, Mount, OptionalFileMode, OptionalInt64, PosixRlimit,
};
use crate::request::MARKER;

/// How a file of the host appears in the container.
const BIND: [&str; 6] = ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"];

/// What the runtime is to change. `files` are the paths on the host at which the grant's files
/// were written, in their order. The container is marked in any case, with the grant's digest:
/// that is how it is known later to carry its grant.
///
/// An outcome without a grant has no adjustment; that is the caller's to keep to.
pub fn adjustment(grant: &Grant, files: &[String]) -> ContainerAdjustment {
    let written = grant.files.iter().zip(files).map(|(file, source)| bind(source, &file.path));
    let named = grant.mounts.iter().map(|mount| {
        let mut bound = bind(&mount.source, &mount.destination);
        bound.options.retain(|option| option != "noexec" || !mount.executable);
        bound
    });
    ContainerAdjustment {
        annotations: [(MARKER.to_owned(), grant.digest())].into(),
        mounts: written.chain(named).collect(),
        env: grant
            .env
            .iter()
            .map(|variable| KeyValue { key: variable.name.clone(), value: variable.value.clone() })
            .collect(),
        linux: linux(grant),
        rlimits: grant
            .memlock
            .iter()
            .map(|limit| PosixRlimit {
                r#type: "RLIMIT_MEMLOCK".to_owned(),
                hard: limit.hard(),
                soft: limit.bytes,
            })
            .collect(),
        ..ContainerAdjustment::default()
    }
}

fn linux(grant: &Grant) -> Option<LinuxContainerAdjustment> {
    let adjustment = LinuxContainerAdjustment {
        devices: grant.devices.iter().filter(|node| !node.rule_only).map(device).collect(),
        resources: resources(grant),
        sysctl: sysctls(grant),
        ..LinuxContainerAdjustment::default()
    };
    (adjustment != LinuxContainerAdjustment::default()).then_some(adjustment)
}

/// What the runtime is to set in the network namespace; what it cannot is set otherwise.
fn sysctls(grant: &Grant) -> BTreeMap<String, String> {
    let by_runtime = grant.smc.iter().filter(|smc| smc.by_runtime);
    by_runtime.flat_map(|smc| smc.sysctls.iter().cloned()).collect()
}

fn resources(grant: &Grant) -> Option<LinuxResources> {
    let set = |set: &Option<crate::inventory::CpuSet>| {
        // An empty text is no change.
        set.as_ref().map(ToString::to_string).unwrap_or_default()
    };
    let cpu = LinuxCpu { cpus: set(&grant.cpus), mems: set(&grant.mems), ..LinuxCpu::default() };
    let resources = LinuxResources {
        cpu: (cpu != LinuxCpu::default()).then_some(cpu),
        unified: grant.unified.iter().cloned().collect(),
        devices: grant.devices.iter().filter(|node| node.rule_only).map(rule).collect(),
        ..LinuxResources::default()
    };
    (resources != LinuxResources::default()).then_some(resources)
}

fn device(node: &DeviceNode) -> LinuxDevice {
    LinuxDevice {
        path: node.path.clone(),
        r#type: "c".to_owned(),
        major: i64::from(node.major),
        minor: i64::from(node.minor),
        file_mode: Some(OptionalFileMode { value: node.mode }),
        ..LinuxDevice::default()
    }
}

fn rule(node: &DeviceNode) -> LinuxDeviceCgroup {
    LinuxDeviceCgroup {
        allow: true,
        r#type: "c".to_owned(),
        major: Some(OptionalInt64 { value: i64::from(node.major) }),
        minor: Some(OptionalInt64 { value: i64::from(node.minor) }),
        access: "rw".to_owned(),
    }
}

fn bind(source: &str, destination: &str) -> Mount {
    Mount {
        destination: destination.to_owned(),
        r#type: "bind".to_owned(),
        source: source.to_owned(),
        options: BIND.map(str::to_owned).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::grant::proptests::inputs;
    use crate::grant::{GrantedFile, GrantedMount, MemlockGrant, Outcome, Variable};

    fn whole() -> Grant {
        let node = |name: &str, major, minor, rule_only| DeviceNode {
            path: format!("/dev/infiniband/{name}"),
            major,
            minor,
            mode: 0o666,
            rule_only,
        };
        Grant {
            devices: vec![node("uverbs0", 231, 192, false), node("rdma_cm", 10, 260, true)],
            memlock: Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }),
            cpus: Some("32-63".parse().unwrap()),
            mems: Some("1".parse().unwrap()),
            env: vec![Variable { name: "NCCL_IB_HCA".into(), value: "=mlx5_0:1".into() }],
            files: vec![GrantedFile { path: "/etc/nccl.conf".into(), content: "A=1\n".into() }],
            mounts: vec![GrantedMount {
                source: "/topo.xml".into(),
                destination: "/t.xml".into(),
                executable: false,
            }],
            unified: vec![("rdma.max".into(), "mlx5_0 hca_handle=2".into())],
            warnings: vec!["w".into()],
            ..Grant::default()
        }
    }

    /// As the runtime reads it.
    fn sent(grant: &Grant, files: &[String]) -> ContainerAdjustment {
        let sent = adjustment(grant, files).encode_to_vec();
        ContainerAdjustment::decode(sent.as_slice()).unwrap()
    }

    #[test]
    fn every_part_of_a_grant_arrives() {
        let grant = whole();
        let sent = sent(&grant, &["/run/rdma-ctk/4f1c/nccl.conf".to_owned()]);
        let options: Vec<String> = BIND.map(str::to_owned).into();
        let expected = ContainerAdjustment {
            annotations: [("grant.rdma-ctk.io".to_owned(), grant.digest())].into(),
            mounts: vec![
                Mount {
                    destination: "/etc/nccl.conf".into(),
                    r#type: "bind".into(),
                    source: "/run/rdma-ctk/4f1c/nccl.conf".into(),
                    options: options.clone(),
                },
                Mount {
                    destination: "/t.xml".into(),
                    r#type: "bind".into(),
                    source: "/topo.xml".into(),
                    options,
                },
            ],
            env: vec![KeyValue { key: "NCCL_IB_HCA".into(), value: "=mlx5_0:1".into() }],
            rlimits: vec![PosixRlimit {
                r#type: "RLIMIT_MEMLOCK".into(),
                hard: u64::MAX,
                soft: u64::MAX,
            }],
            linux: Some(LinuxContainerAdjustment {
                devices: vec![LinuxDevice {
                    path: "/dev/infiniband/uverbs0".into(),
                    r#type: "c".into(),
                    major: 231,
                    minor: 192,
                    file_mode: Some(OptionalFileMode { value: 0o666 }),
                    uid: None,
                    gid: None,
                }],
                resources: Some(LinuxResources {
                    cpu: Some(LinuxCpu {
                        cpus: "32-63".into(),
                        mems: "1".into(),
                        ..LinuxCpu::default()
                    }),
                    unified: [("rdma.max".to_owned(), "mlx5_0 hca_handle=2".to_owned())].into(),
                    devices: vec![LinuxDeviceCgroup {
                        allow: true,
                        r#type: "c".into(),
                        major: Some(OptionalInt64 { value: 10 }),
                        minor: Some(OptionalInt64 { value: 260 }),
                        access: "rw".into(),
                    }],
                    ..LinuxResources::default()
                }),
                ..LinuxContainerAdjustment::default()
            }),
            ..ContainerAdjustment::default()
        };
        assert_eq!(sent, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Each key once, and nothing but what a grant has.
        #[test]
        fn whatever_is_granted_is_set_once(inputs in inputs()) {
            let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
            let files: Vec<String> = (0..grant.files.len()).map(|n| format!("/run/{n}")).collect();
            let sent = sent(&grant, &files);
            let linux = sent.linux.clone().unwrap_or_default();
            let resources = linux.resources.clone().unwrap_or_default();
            let cpu = resources.cpu.clone().unwrap_or_default();
            let once = |keys: Vec<&String>| {
                keys.iter().collect::<BTreeSet<_>>().len() == keys.len()
            };
            prop_assert!(once(sent.env.iter().map(|variable| &variable.key).collect()));
            prop_assert!(once(sent.mounts.iter().map(|mount| &mount.destination).collect()));
            prop_assert!(once(linux.devices.iter().map(|device| &device.path).collect()));
            prop_assert!(sent.rlimits.len() <= 1);
            prop_assert_eq!(sent.env.len(), grant.env.len());
            prop_assert_eq!(sent.mounts.len(), grant.files.len() + grant.mounts.len());
            prop_assert_eq!(linux.devices.len() + resources.devices.len(), grant.devices.len());
            prop_assert_eq!(resources.unified.len(), grant.unified.len());
            prop_assert_eq!(cpu.cpus.is_empty(), grant.cpus.is_none());
            prop_assert_eq!(cpu.mems.is_empty(), grant.mems.is_none());
            // With these taken out, nothing is left.
            let rest = ContainerAdjustment {
                annotations: [].into(),
                mounts: Vec::new(),
                env: Vec::new(),
                rlimits: Vec::new(),
                linux: Some(LinuxContainerAdjustment {
                    devices: Vec::new(),
                    resources: Some(LinuxResources {
                        cpu: Some(LinuxCpu { cpus: String::new(), mems: String::new(), ..cpu }),
                        unified: [].into(),
                        devices: Vec::new(),
                        ..resources
                    }),
                    ..linux
                }),
                ..sent
            };
            let nothing = ContainerAdjustment {
                linux: Some(LinuxContainerAdjustment {
                    resources: Some(LinuxResources {
                        cpu: Some(LinuxCpu::default()),
                        ..LinuxResources::default()
                    }),
                    ..LinuxContainerAdjustment::default()
                }),
                ..ContainerAdjustment::default()
            };
            prop_assert_eq!(rest, nothing);
        }
    }

    #[test]
    fn what_is_not_granted_is_not_set() {
        let marked = ContainerAdjustment {
            annotations: [("grant.rdma-ctk.io".to_owned(), Grant::default().digest())].into(),
            ..ContainerAdjustment::default()
        };
        assert_eq!(sent(&Grant::default(), &[]), marked);
        let memlock = MemlockGrant { bytes: 1, higher_hard: None };
        let limit = Grant { memlock: Some(memlock), ..Grant::default() };
        assert_eq!(sent(&limit, &[]).linux, None);
        let cpus = Grant { cpus: Some("3".parse().unwrap()), ..Grant::default() };
        let linux = sent(&cpus, &[]).linux.unwrap();
        assert_eq!(linux.devices, []);
        assert_eq!(linux.resources.unwrap().unified.len(), 0);
    }
}
