//! What NRI's messages say of a pod and a container, in the engine's words.
//!
//! Only the cgroup's CPUs are read from the node ([`parent_cpus`]); all else is what the runtime
//! has sent, and what it does not send is unknown, never assumed.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::proto::{Container, LinuxNamespace, LinuxResources, PodSandbox};
use super::version::{Feature, Runtime};
pub use crate::inventory::runtime_limits::RuntimeLimits;
use crate::inventory::{CpuSet, Node, cgroup};
use crate::request::{self, Can, Carrier, CarrierPath, Device, Limit, Mount, Pod, carries_grant};
use crate::roots::Roots;

/// Annotations by which the kubelet hands CDI names to runtimes that have no field for them.
const CDI_ANNOTATION: &str = "cdi.k8s.io/";
/// The limit that this is all about.
const MEMLOCK: &str = "RLIMIT_MEMLOCK";

/// Where a pod's network is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// It is the host's.
    Host,
    /// A namespace of its own, under this path.
    Own(PathBuf),
    /// The runtime does not say.
    Unknown,
}

/// The path from a grant to the containers of that runtime.
pub fn carrier(runtime: &Runtime, limits: RuntimeLimits) -> Carrier {
    let can = |has: bool, feature: Feature| {
        if has { Can::Yes } else { Can::No(feature.needs()) }
    };
    Carrier {
        name: format!("NRI on {} {}", runtime.name, runtime.version),
        path: CarrierPath::Nri,
        devices: can(runtime.can.devices, Feature::Devices),
        device_rules: can(runtime.can.device_rules, Feature::DeviceRules),
        rlimits: can(runtime.can.rlimits, Feature::Rlimits),
        capabilities: Can::No(
            "no version of NRI can add capabilities: the pod's securityContext or the runtime \
             wrapper can"
                .to_owned(),
        ),
        cpuset: can(runtime.can.cpuset, Feature::Cpuset),
        unified: can(runtime.can.unified, Feature::Unified),
        sysctl: can(runtime.can.sysctl, Feature::Sysctl),
        unified_lines: Can::No(
            "limits for several need runc 1.2, and NRI does not tell what runs below the runtime: \
             ask for one adapter"
                .to_owned(),
        ),
        memlock_ceiling: limits.ceiling,
    }
}

/// That pod.
pub fn pod(sandbox: &PodSandbox) -> Pod {
    let uid = if sandbox.uid.is_empty() { &sandbox.id } else { &sandbox.uid };
    Pod {
        uid: uid.clone(),
        name: sandbox.name.clone(),
        namespace: sandbox.namespace.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
        labels: sandbox.labels.clone(),
        host_network: network(sandbox, None) == Network::Host,
        ..Pod::default()
    }
}

/// That container, before we touch it. `parent_cpus` and `cpus_owned` are left unknown: they are
/// not in the message.
pub fn container(
    sandbox: &PodSandbox,
    container: &Container,
    runtime: &Runtime,
    limits: RuntimeLimits,
) -> request::Container {
    let linux = container.linux.as_ref();
    let resources = linux.and_then(|linux| linux.resources.as_ref());
    let cpu = resources.and_then(|resources| resources.cpu.as_ref());
    let set = |list: &str| list.parse().ok().filter(|set: &CpuSet| !set.is_empty());
    let (memlock, memlock_hard) = memlock(container, runtime, limits);
    let mut pod = pod(sandbox);
    pod.host_network = network(sandbox, Some(container)) == Network::Host;
    request::Container {
        id: container.id.clone(),
        name: container.name.clone(),
        pod,
        uid: container.user.as_ref().filter(|_| runtime.can.user_visible).map(|user| user.uid),
        user_namespace: namespaces(sandbox, Some(container), "user").next().is_some(),
        args: container.args.clone(),
        env: container.env.iter().map(|entry| variable(entry)).collect(),
        mounts: container
            .mounts
            .iter()
            .map(|mount| Mount {
                destination: mount.destination.clone(),
                source: mount.source.clone(),
                kind: mount.r#type.clone(),
            })
            .collect(),
        devices: linux.map(devices).unwrap_or_default(),
        all_devices: resources.is_some_and(allows_all),
        capabilities: None,
        memlock,
        memlock_hard,
        cpus: cpu.and_then(|cpu| set(&cpu.cpus)),
        mems: cpu.and_then(|cpu| set(&cpu.mems)),
        cpu_limit_milli: cpu.and_then(|cpu| {
            let quota = u64::try_from(cpu.quota.as_ref()?.value).ok().filter(|&quota| quota > 0)?;
            let period = cpu.period.as_ref().map(|period| period.value).filter(|&p| p > 0)?;
            quota.checked_mul(1000).map(|quota| quota / period)
        }),
        cpu_shares: cpu.and_then(|cpu| cpu.shares.as_ref()).map(|shares| shares.value),
        cdi: cdi(container),
        // On CRI-O a container carries its pod's annotations, which are the tenant's.
        granted_before: carries_grant(&container.annotations)
            && !carries_grant(&sandbox.annotations),
        ..request::Container::default()
    }
}

/// Whether another plugin may have given adapters to a container: what a claim is made of is there.
/// Says yes too often rather than too rarely, and costs next to nothing.
pub fn may_claim(container: &Container, node: &Node) -> bool {
    let named = |name: &str| name.contains("rdma");
    container.cdi_devices.iter().any(|device| named(&device.name))
        || container
            .annotations
            .iter()
            .any(|(key, names)| key.starts_with(CDI_ANNOTATION) && named(names))
        || container.linux.iter().flat_map(|linux| &linux.devices).any(|device| {
            let mut nodes = node.hcas.iter().filter_map(|hca| hca.uverbs.as_ref());
            nodes.any(|uverbs| {
                (device.major, device.minor) == (i64::from(uverbs.major), i64::from(uverbs.minor))
            })
        })
}

/// Where that pod's network is, as the pod says it or, failing that, one of its containers. The
/// host's may be there as one of its own too: containerd 2.1 names `/proc/PID/ns/net` of a process
/// that is in the host's namespace. Whoever looks into it will see.
pub fn network(sandbox: &PodSandbox, container: Option<&Container>) -> Network {
    let mut entries = namespaces(sandbox, container, "network").peekable();
    if entries.peek().is_none() {
        // Docker sends pods without anything in them.
        return if sandbox.linux.is_none() { Network::Unknown } else { Network::Host };
    }
    // An entry without a path is a namespace of its own that is still to be made
    // (`linux.namespaces` of the OCI runtime specification).
    match entries.find(|path| !path.is_empty()) {
        Some(path) if plain(Path::new(path)) => Network::Own(path.into()),
        _ => Network::Unknown,
    }
}

/// Paths of a namespace, the pod's first, empty for one that is not made yet; none: the host's is
/// shared.
fn namespaces<'a>(
    sandbox: &'a PodSandbox,
    container: Option<&'a Container>,
    kind: &str,
) -> impl Iterator<Item = &'a str> {
    let pods = sandbox.linux.iter().flat_map(|linux| &linux.namespaces);
    let own = container.and_then(|container| container.linux.as_ref());
    let all = pods.chain(own.into_iter().flat_map(|linux| &linux.namespaces));
    all.filter(move |LinuxNamespace { r#type, .. }| r#type == kind).map(|entry| entry.path.as_str())
}

/// An entry of the environment; one without `=` has no value.
fn variable(entry: &str) -> (String, String) {
    let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
    (name.to_owned(), value.to_owned())
}

fn devices(linux: &super::proto::LinuxContainer) -> Vec<Device> {
    let character = linux.devices.iter().filter(|device| device.r#type != "b");
    character
        .filter_map(|device| {
            let (major, minor) =
                (u32::try_from(device.major).ok()?, u32::try_from(device.minor).ok()?);
            Some(Device { path: device.path.clone(), major, minor })
        })
        .collect()
}

/// Whether the device cgroup ends up with everything allowed. Rules count in order; one for all
/// devices has the type `a`, or none, and no number.
fn allows_all(resources: &LinuxResources) -> bool {
    let any = |number: &Option<super::proto::OptionalInt64>| {
        number.as_ref().is_none_or(|number| number.value < 0)
    };
    resources
        .devices
        .iter()
        .filter(|rule| matches!(rule.r#type.as_str(), "" | "a"))
        .filter(|rule| any(&rule.major) && any(&rule.minor))
        .rfind(|rule| rule.access.is_empty() || rule.access.contains("rw"))
        .is_some_and(|rule| rule.allow)
}

/// The soft limit of locked memory, and the hard one.
fn memlock(
    container: &Container,
    runtime: &Runtime,
    limits: RuntimeLimits,
) -> (Limit, Option<u64>) {
    let own = container.rlimits.iter().rev().find(|limit| limit.r#type == MEMLOCK);
    match own {
        // Of several entries the last one counts, and an entry seen is an entry there.
        Some(limit) => (Limit::Own(limit.soft), Some(limit.hard)),
        None if runtime.can.rlimits_visible => (Limit::Inherited(limits.memlock), limits.hard),
        None => (Limit::Invisible, None),
    }
}

fn cdi(container: &Container) -> Vec<String> {
    let fields = container.cdi_devices.iter().map(|device| device.name.as_str());
    let annotated = container
        .annotations
        .iter()
        .filter(|(key, _)| key.starts_with(CDI_ANNOTATION))
        .flat_map(|(_, names)| names.split(','))
        .map(str::trim);
    let mut names: Vec<String> = Vec::new();
    for name in fields.chain(annotated).filter(|name| !name.is_empty()) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// CPUs of the group in which the container will be made: those of its pod. `None`: there is no
/// cpuset controller, or the runtime does not say where.
///
/// # Errors
/// The group's file is there but cannot be read.
pub fn parent_cpus(
    roots: &Roots,
    sandbox: &PodSandbox,
    container: &Container,
) -> io::Result<Option<CpuSet>> {
    let parent = sandbox.linux.as_ref().map(|linux| linux.cgroup_parent.as_str());
    let own = container.linux.as_ref().map(|linux| linux.cgroups_path.as_str());
    cgroup::parent_cpus(roots, parent.unwrap_or_default(), own.unwrap_or_default())
}

/// Whether a path leads nowhere but down.
fn plain(path: &Path) -> bool {
    path.components().all(|part| !matches!(part, Component::ParentDir))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::nri::proto::{
        CdiDevice, LinuxContainer, LinuxCpu, LinuxDevice, LinuxDeviceCgroup, LinuxPodSandbox,
        OptionalInt64, OptionalUInt64, PosixRlimit, User,
    };

    fn containerd(version: &str) -> Runtime {
        Runtime::detect("containerd", version, "")
    }

    fn sandbox(namespaces: &[(&str, &str)], parent: &str) -> PodSandbox {
        let namespaces = namespaces
            .iter()
            .map(|(kind, path)| LinuxNamespace {
                r#type: (*kind).to_owned(),
                path: (*path).to_owned(),
            })
            .collect();
        PodSandbox {
            id: "box".into(),
            name: "train-0".into(),
            namespace: "ml".into(),
            linux: Some(LinuxPodSandbox {
                namespaces,
                cgroup_parent: parent.into(),
                ..LinuxPodSandbox::default()
            }),
            ..PodSandbox::default()
        }
    }

    fn with_resources(resources: LinuxResources) -> Container {
        let linux = LinuxContainer { resources: Some(resources), ..LinuxContainer::default() };
        Container { linux: Some(linux), ..Container::default() }
    }

    fn rule(allow: bool, kind: &str, major: Option<i64>, access: &str) -> LinuxDeviceCgroup {
        LinuxDeviceCgroup {
            allow,
            r#type: kind.into(),
            major: major.map(|value| OptionalInt64 { value }),
            minor: None,
            access: access.into(),
        }
    }

    fn seen(container: &Container, version: &str) -> request::Container {
        let limits = RuntimeLimits { memlock: Some(8 << 20), ceiling: None, hard: Some(9 << 20) };
        super::container(&sandbox(&[], ""), container, &containerd(version), limits)
    }

    #[test]
    fn the_network_is_what_the_namespaces_say() {
        let own = Network::Own("/run/netns/cni-1".into());
        for (namespaces, expected) in [
            (&[("network", "/run/netns/cni-1"), ("pid", "")][..], own),
            (&[("pid", "")], Network::Host),
            (&[("network", "")], Network::Unknown),
            (&[], Network::Host),
            (&[("network", "/run/netns/../x")], Network::Unknown),
        ] {
            assert_eq!(network(&sandbox(namespaces, ""), None), expected, "{namespaces:?}");
        }
        assert_eq!(network(&PodSandbox::default(), None), Network::Unknown);
        let entry = LinuxNamespace { r#type: "network".into(), path: "/run/netns/cni-2".into() };
        let linux = LinuxContainer { namespaces: vec![entry], ..LinuxContainer::default() };
        let container = Container { linux: Some(linux), ..Container::default() };
        let found = network(&sandbox(&[("network", "")], ""), Some(&container));
        assert_eq!(found, Network::Own("/run/netns/cni-2".into()));
        assert!(!pod(&sandbox(&[("network", "")], "")).host_network);
        assert!(pod(&sandbox(&[], "")).host_network);
        assert!(!pod(&PodSandbox::default()).host_network);
    }

    #[test]
    fn a_pod_without_uid_is_known_by_its_sandbox() {
        assert_eq!(pod(&sandbox(&[], "")).uid, "box");
    }

    #[test]
    fn a_device_cgroup_allows_all_when_its_last_rule_for_all_says_so() {
        let deny = rule(false, "", None, "rwm");
        for (rules, expected) in [
            (vec![], false),
            (vec![deny.clone()], false),
            (vec![deny.clone(), rule(true, "c", Some(231), "rw")], false),
            (vec![deny.clone(), rule(true, "c", None, "m")], false),
            (vec![deny.clone(), rule(true, "", None, "rwm")], true),
            (vec![deny.clone(), rule(true, "a", Some(-1), "rwm")], true),
            (vec![rule(true, "a", None, ""), deny.clone()], false),
            (vec![deny.clone(), rule(true, "a", None, "m")], false),
        ] {
            let container =
                with_resources(LinuxResources { devices: rules.clone(), ..Default::default() });
            assert_eq!(seen(&container, "2.1.9").all_devices, expected, "{rules:?}");
        }
    }

    #[test]
    fn limits_are_unknown_where_the_runtime_does_not_show_them() {
        let limit = |hard, soft| PosixRlimit { r#type: MEMLOCK.into(), hard, soft };
        let other = PosixRlimit { r#type: "RLIMIT_NOFILE".into(), hard: 9, soft: 9 };
        let none = Container::default();
        let twice = Container {
            rlimits: vec![limit(1, 1), other, limit(u64::MAX, 65536)],
            ..Container::default()
        };
        for (container, version, expected, hard) in [
            (&none, "2.1.9", Limit::Invisible, None),
            (&none, "2.3.0", Limit::Inherited(Some(8 << 20)), Some(9 << 20)),
            (&twice, "2.3.0", Limit::Own(65536), Some(u64::MAX)),
            (&twice, "2.1.9", Limit::Own(65536), Some(u64::MAX)),
        ] {
            let seen = seen(container, version);
            assert_eq!((seen.memlock, seen.memlock_hard), (expected, hard), "{version}");
        }
    }

    #[test]
    fn users_are_unknown_where_the_runtime_does_not_show_them() {
        let container = Container { user: Some(User::default()), ..Container::default() };
        assert_eq!(seen(&container, "2.1.9").uid, None);
        assert_eq!(seen(&container, "2.3.0").uid, Some(0));
    }

    #[test]
    fn cpus_and_their_limit_are_read_and_nonsense_is_unknown() {
        let cpu = |cpus: &str, quota, period| LinuxCpu {
            cpus: cpus.into(),
            mems: "0".into(),
            shares: Some(OptionalUInt64 { value: 2048 }),
            quota: Some(OptionalInt64 { value: quota }),
            period: Some(OptionalUInt64 { value: period }),
            ..LinuxCpu::default()
        };
        for (cpu, cpus, limit) in [
            (cpu("0-3", 150_000, 100_000), Some("0-3"), Some(1500)),
            (cpu("", -1, 100_000), None, None),
            (cpu("all", 0, 0), None, None),
            (cpu("1", i64::MAX, 1), Some("1"), None),
        ] {
            let container = with_resources(LinuxResources { cpu: Some(cpu), ..Default::default() });
            let seen = seen(&container, "2.1.9");
            assert_eq!(seen.cpus, cpus.map(|list| list.parse().unwrap()));
            assert_eq!((seen.cpu_limit_milli, seen.cpu_shares), (limit, Some(2048)));
            assert_eq!(seen.mems.unwrap().to_string(), "0");
        }
    }

    #[test]
    fn cdi_names_come_from_field_and_annotation_once_each() {
        let container = Container {
            cdi_devices: vec![CdiDevice { name: "a/b=c".into() }],
            annotations: BTreeMap::from([
                ("cdi.k8s.io/x".to_owned(), "a/b=c, a/b=d".to_owned()),
                ("other".to_owned(), "a/b=e".to_owned()),
            ]),
            ..Container::default()
        };
        assert_eq!(seen(&container, "2.1.9").cdi, ["a/b=c", "a/b=d"]);
    }

    #[test]
    fn devices_and_variables_are_taken_over_as_they_are() {
        let device = |path: &str, kind: &str, major| LinuxDevice {
            path: path.into(),
            r#type: kind.into(),
            major,
            minor: 192,
            ..LinuxDevice::default()
        };
        let container = Container {
            env: vec!["A=b=c".into(), "D".into()],
            linux: Some(LinuxContainer {
                devices: vec![
                    device("/dev/infiniband/uverbs0", "c", 231),
                    device("/dev/sda", "b", 8),
                    device("/dev/odd", "c", -1),
                ],
                ..LinuxContainer::default()
            }),
            ..Container::default()
        };
        let seen = seen(&container, "2.1.9");
        assert_eq!(seen.env, [("A".into(), "b=c".into()), ("D".into(), String::new())]);
        let uverbs = Device { path: "/dev/infiniband/uverbs0".into(), major: 231, minor: 192 };
        assert_eq!(seen.devices, [uverbs]);
    }

    #[test]
    fn the_groups_cpus_are_those_of_the_nearest_that_tells() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let write = |path: &str, text: &str| {
            let path = roots.sys.join("fs/cgroup").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let of = |parent: &str| {
            let set = parent_cpus(&roots, &sandbox(&[], parent), &Container::default());
            set.unwrap().map(|set| set.to_string())
        };
        assert_eq!(of("/kubepods/pod1"), None);
        write("cpuset/cpuset.effective_cpus", "0-7\n");
        write("cpuset/kubepods/cpuset.effective_cpus", "4-7\n");
        assert_eq!(of("/kubepods/pod1").as_deref(), Some("4-7"));
        write("cpuset.cpus.effective", "0-15\n");
        write("kubepods/pod1/cpuset.cpus.effective", "2-3\n");
        write("kubepods/pod2/cpuset.cpus.effective", "\n");
        assert_eq!(of("/kubepods/pod1").as_deref(), Some("2-3"));
        assert_eq!(of("/kubepods/pod2"), None);
        assert_eq!(of("/kubepods/pod3").as_deref(), Some("0-15"));
        assert_eq!(of("/kubepods/../../pod3"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_carrier_says_what_would_have_what_it_lacks() {
        let carrier = carrier(&containerd("1.7.3"), RuntimeLimits::default());
        assert_eq!(carrier.name, "NRI on containerd 1.7.3");
        let Can::No(needs) = carrier.rlimits else { panic!("limits since 1.7.7 only") };
        assert!(needs.contains("containerd 1.7.7"), "{needs}");
        assert!(matches!(carrier.capabilities, Can::No(_)));
        assert_eq!(carrier.cpuset, Can::Yes);
    }
}
