//! The node's adapters as a CDI specification (Container Device Interface, `SPEC.md` of
//! cncf-tags/container-device-interface): one device for each adapter by its kernel name and by its
//! PCI address, and one for all of them.
//!
//! What can be given is decided where it is decided for every other path, for a container of which
//! nothing is known: each device is the grant of a request for it. A node is written by its path
//! alone. The engine looks its numbers up when a container starts, so that a file that has grown
//! old ends in an error and not in somebody else's device.
//!
//! Two devices of one file are put into one container by laying one over the other, so there is no
//! variable here that lists adapters: the hook writes down what was really given.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::grant::{Grant, Inventory, Outcome, decide};
use crate::inventory::{CharDev, Hca, Home, NetnsMode, Node, PodView};
use crate::policy::Policy;
use crate::request::{
    Can, Carrier, CarrierPath, Container, Devices, EnvMode, NumaMode, Request, Selector,
};

/// Vendor and class.
pub const KIND: &str = "rdma-ctk.io/hca";
/// Name of the device that stands for all adapters.
pub const ALL: &str = "all";
/// Name of the file, as CDI's own library would name it.
pub const FILE: &str = "rdma-ctk.io-hca.json";
/// Seconds for the hook, which takes milliseconds: no container is to hang for ever.
const TIMEOUT: u32 = 10;

/// What CDI cannot carry, a sentence each: for `rdma-ctk cdi list` and the documentation.
pub const LIMITS: [&str; 4] = [
    "the locked-memory limit is raised by a hook, for the container's first process and what it \
     starts; a session of `exec` does not have it",
    "not rootless: the hook cannot raise a limit there above the user's own",
    "no environment: what was given is written to /etc/nccl.conf by the hook, unless the image has \
     that file; UCX and NVSHMEM are not told",
    "no CPU set, no capabilities, no rdma cgroup: the wrapper and podman's hook can give these",
];

/// A CDI file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the specification.
    pub cdi_version: String,
    /// `vendor/class`
    pub kind: String,
    /// Devices, which have to be some.
    pub devices: Vec<Device>,
    /// What is done once, whichever devices are taken.
    #[serde(default, skip_serializing_if = "Edits::is_nothing")]
    pub container_edits: Edits,
}

/// A device by the name that users type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Name, unique in its kind.
    pub name: String,
    /// What it is.
    pub container_edits: Edits,
}

/// What is done to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// Device nodes to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files of the node to bind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Hooks to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

impl Edits {
    fn is_nothing(&self) -> bool {
        self.device_nodes.is_empty() && self.mounts.is_empty() && self.hooks.is_empty()
    }
}

/// A file of the node, bound into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Path on the node.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// As of mount(8).
    pub options: Vec<String>,
}

impl Mount {
    /// One that the container cannot write to.
    pub fn read_only(host_path: String, container_path: String) -> Self {
        let options = ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).to_vec();
        Self { host_path, container_path, options }
    }
}

/// A device node, by its path on the host and in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Path.
    pub path: String,
    /// What its cgroup rule allows: `rw`; none would be `rwm`.
    pub permissions: String,
}

/// A hook of the OCI runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// Stage.
    pub hook_name: String,
    /// Program, on the host.
    pub path: String,
    /// Its arguments, with its name as the first.
    pub args: Vec<String>,
    /// Seconds after which it is killed, and the container with it.
    pub timeout: u32,
}

/// A specification, and what it leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// `None`: no adapter can be given. A file without a device would be an invalid one.
    pub spec: Option<Spec>,
    /// What is not in it and why, a sentence each.
    pub notes: Vec<String>,
}

/// A specification would have a hole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CdiError {
    /// The adapter has no uverbs device.
    #[error("{hca} has no uverbs device on this node: load ib_uverbs, and generate again")]
    NoUverbs {
        /// The adapter.
        hca: String,
    },
    /// The kernel has the device and `/dev` has not.
    #[error(
        "{path} is missing, while the kernel has the device ({major}:{minor}): look at /dev and \
         udev, and generate again"
    )]
    NoNode {
        /// The node.
        path: String,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// The specification of a node. `hook`: the program that a container's start is to run, on the
/// host; `None`: the locked-memory limit and nccl.conf are left alone. `libraries`: what comes with
/// adapters of a driver.
///
/// # Errors
/// An adapter that could be given lacks a device node: no specification is better than one that
/// starts containers without what they name.
pub fn spec(
    node: &Node,
    policy: &Policy,
    hook: Option<&str>,
    libraries: &BTreeMap<String, Vec<Mount>>,
) -> Result<Made, CdiError> {
    let mut notes = Vec::new();
    let mut devices: Vec<Device> = Vec::new();
    let mut taken: BTreeSet<String> = BTreeSet::from([ALL.to_owned()]);
    let mut add = |name: String, edits: &Edits, devices: &mut Vec<Device>| {
        let free = taken.insert(name.clone());
        if free {
            devices.push(Device { name, container_edits: edits.clone() });
        }
        free
    };
    for hca in &node.hcas {
        let grant =
            match granted(node, policy, Devices::Select(vec![Selector::Name(hca.name.clone())])) {
                Ok(grant) => grant,
                Err(_) if lacks_only_its_node(node, policy, hca) => {
                    return Err(CdiError::NoUverbs { hca: hca.name.clone() });
                }
                Err(why) => {
                    notes.push(format!("{} is left out: {}", hca.name, bare(&hca.name, &why)));
                    continue;
                }
            };
        let edits = edits(node, &grant, libraries)?;
        if !is_device_name(&hca.name) {
            notes.push(format!("{:?} cannot be the name of a CDI device", hca.name));
        } else if !add(hca.name.clone(), &edits, &mut devices) {
            notes.push(format!("{} is no device of its own: the name is taken", hca.name));
        }
        if let Some(pci) = hca.pci {
            // Of several adapters on one function the first has its address, as in a selector.
            add(pci.to_string(), &edits, &mut devices);
        }
    }
    match granted(node, policy, Devices::All) {
        Ok(grant) => {
            let edits = edits(node, &grant, libraries)?;
            devices.push(Device { name: ALL.to_owned(), container_edits: edits });
        }
        Err(why) if !devices.is_empty() => {
            notes.push(format!("there is no device {ALL}: {}", bare(ALL, &why)));
        }
        Err(_) => {}
    }
    if devices.is_empty() {
        return Ok(Made { spec: None, notes });
    }
    if node.rdma_cm.is_none() {
        notes
            .push("there is no rdma_cm node: load rdma_ucm for programs that use librdmacm".into());
    }
    if node.netns_mode == NetnsMode::Exclusive {
        notes.push(
            "this node runs RDMA in exclusive mode: only containers in the host's network \
             namespace can use these devices"
                .into(),
        );
    }
    let hooks = hook.map(|path| Hook {
        hook_name: "createRuntime".into(),
        path: path.into(),
        args: vec!["rdma-ctk-hook".into(), "cdi".into()],
        timeout: TIMEOUT,
    });
    let mut spec = Spec {
        cdi_version: String::new(),
        kind: KIND.to_owned(),
        devices,
        container_edits: Edits { hooks: hooks.into_iter().collect(), ..Edits::default() },
    };
    spec.cdi_version = spec.least_version().to_owned();
    Ok(Made { spec: Some(spec), notes })
}

impl Spec {
    /// The lowest version that has everything which is in it: older readers refuse newer ones.
    /// 0.3.0 has nodes with permissions, and hooks; a name that begins with a digit came with
    /// 0.5.0.
    pub fn least_version(&self) -> &'static str {
        let by_letter =
            |device: &Device| device.name.starts_with(|c: char| c.is_ascii_alphabetic());
        if self.devices.iter().all(by_letter) { "0.3.0" } else { "0.5.0" }
    }

    /// As it is written to a file.
    ///
    /// # Errors
    /// Not with a value of this type.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Nodes of all devices.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let edits = self.devices.iter().map(|device| &device.container_edits);
        edits.flat_map(|edits| &edits.device_nodes).map(|node| node.path.as_str()).collect()
    }
}

/// Whether CDI takes that as the name of a device: letters and digits, and between them `_`, `-`,
/// `.` and `:` too.
pub fn is_device_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(word)
        && name.ends_with(word)
        && name.chars().all(|c| word(c) || matches!(c, '_' | '-' | '.' | ':'))
}

/// The grant of a container of which nothing is known but the devices that it wants.
fn granted(node: &Node, policy: &Policy, devices: Devices) -> Result<Grant, String> {
    let lacks = |what: &str| Can::No(format!("CDI cannot carry {what}"));
    let carrier = Carrier {
        name: "CDI".into(),
        path: CarrierPath::Cdi,
        device_rules: lacks("a device rule without a node"),
        capabilities: lacks("capabilities"),
        cpuset: lacks("a CPU set"),
        unified: lacks("limits of the rdma cgroup"),
        ..Carrier::default()
    };
    let request = Request {
        devices: Some(devices),
        env: EnvMode { families: BTreeSet::new(), file: false },
        numa: NumaMode::Off,
        ..Request::nothing(Container::default(), carrier)
    };
    // Nodes are the same in every namespace; where they are of use is told apart.
    match decide(&request, &Inventory::of(node, &PodView::Host), policy) {
        Outcome::Granted(grant) => Ok(*grant),
        Outcome::Refused(refusal) | Outcome::Waived(refusal) => Err(refusal.sentence),
        Outcome::LeftAlone { reason } => Err(reason),
        Outcome::NotAsked => Err("nothing was asked".into()),
    }
}

/// Whether the adapter would be given if it had a uverbs device.
fn lacks_only_its_node(node: &Node, policy: &Policy, hca: &Hca) -> bool {
    if hca.uverbs.is_some() || hca.home != Home::Host {
        return false;
    }
    let mut whole = node.clone();
    for other in whole.hcas.iter_mut().filter(|other| other.name == hca.name) {
        other.uverbs = Some(CharDev { name: "uverbs".into(), major: 0, minor: 0, mode: Some(0) });
    }
    granted(&whole, policy, Devices::Select(vec![Selector::Name(hca.name.clone())])).is_ok()
}

/// The nodes of a grant, each of which `/dev` has to have, and the libraries of its drivers.
fn edits(
    node: &Node,
    grant: &Grant,
    libraries: &BTreeMap<String, Vec<Mount>>,
) -> Result<Edits, CdiError> {
    let all = node.hcas.iter().flat_map(|hca| &hca.uverbs).chain(&node.rdma_cm);
    let seen: BTreeMap<String, Option<u32>> = all.map(|dev| (dev.path(), dev.mode)).collect();
    let mut device_nodes = Vec::with_capacity(grant.devices.len());
    for device in &grant.devices {
        if seen.get(&device.path).copied().flatten().is_none() {
            let (path, major, minor) = (device.path.clone(), device.major, device.minor);
            return Err(CdiError::NoNode { path, major, minor });
        }
        device_nodes.push(DeviceNode { path: device.path.clone(), permissions: "rw".into() });
    }
    let drivers: BTreeSet<&str> = grant
        .adapters
        .iter()
        .filter_map(|adapter| Some(node.hca(&adapter.name)?.driver.0.as_str()))
        .collect();
    let mounts = drivers.into_iter().filter_map(|driver| libraries.get(driver)).flatten();
    Ok(Edits { device_nodes, mounts: mounts.cloned().collect(), hooks: Vec::new() })
}

/// A refusal without the annotation that nobody has typed here, and without what else there is.
fn bare<'a>(name: &str, sentence: &'a str) -> &'a str {
    let why = sentence.strip_prefix("devices.rdma-ctk.io: ").unwrap_or(sentence);
    let why = why.strip_prefix(&format!("{name} cannot be given: ")).unwrap_or(why);
    why.split(" (can be given: ").next().unwrap_or(why)
}

#[cfg(test)]
mod tests;
