//! What is settled before any adapter is looked at: whose container this is, what its pod may
//! ask for, and what the path that carries the grant is able to carry.

use super::words::{asked, list, quote, refuse};
use super::{Case, Notes, Refusal, children, exclusive};
use crate::policy::{Allowance, Policy, Sandbox};
use crate::request::{
    AddressRequest, Can, CarrierPath, Devices, Key, NetnsRequest, NodeKind, Pod, Request,
    Requirement, Selector, SmcMethod,
};

/// How the mode of RDMA namespaces is changed.
pub(super) const NETNS_MODE: &str = "set `options ib_core netns_mode=0` in /etc/modprobe.d and \
                                     reboot (the mode changes only while there is no other \
                                     network namespace)";

/// Why a container that asks is not ours to change; `None`: it is.
pub(super) fn not_ours(request: &Request, policy: &Policy) -> Option<String> {
    let handler = &request.container.pod.runtime_handler;
    if request.container.granted_before {
        return Some("the container already carries its grant".to_owned());
    }
    let wrapped =
        request.carrier.path == CarrierPath::Nri && policy.wrapper_handlers.contains(handler);
    wrapped.then(|| {
        format!("runtime handler {handler} belongs to the runtime wrapper, which makes the grant")
    })
}

/// Everything that can be refused before the node is looked at.
pub(super) fn check(case: &Case<'_>, notes: &mut Notes) -> Result<(), Refusal> {
    let request = case.request;
    runtime(case, notes)?;
    keys(case)?;
    netns(case, notes)?;
    address(case)?;
    capabilities(case)?;
    if let Can::No(lacks) = &request.carrier.devices {
        return Err(refuse(
            request,
            Key::Devices,
            format!("{} cannot add device nodes: {lacks}", carrier(request)),
        ));
    }
    node_kinds(case)?;
    gpudirect(case)?;
    if request.container.all_devices {
        notes.warn("devices", "privileged is not needed for RDMA and disables device isolation");
    }
    for remark in &request.remarks {
        notes.warn("request", remark.as_str());
    }
    Ok(())
}

/// The same for who asks for no device, but for SMC-R.
pub(super) fn check_without_devices(case: &Case<'_>, notes: &mut Notes) -> Result<(), Refusal> {
    let request = case.request;
    if case.policy.sandboxes.of(&request.container.pod.runtime_handler) != Sandbox::None {
        let why = format!(
            "runtime handler {}: sockets of a kernel of its own cannot be turned",
            quote(&request.container.pod.runtime_handler)
        );
        return Err(refuse(request, Key::Smc, why));
    }
    keys(case)?;
    netns(case, notes)?;
    address(case)?;
    for remark in &request.remarks {
        notes.warn("request", remark.as_str());
    }
    Ok(())
}

/// `NRI on containerd 2.1.9`, or some words where nobody said.
pub(super) fn carrier(request: &Request) -> &str {
    if request.carrier.name.is_empty() { "this runtime" } else { &request.carrier.name }
}

/// `namespace team-a`, or the container itself outside Kubernetes.
pub(super) fn whose(pod: &Pod) -> String {
    if pod.namespace.is_empty() {
        "this container".to_owned()
    } else {
        format!("namespace {}", quote(&pod.namespace))
    }
}

/// Where the policy file keeps something from this pod: `config.toml, [default] keys`.
pub(super) fn place(case: &Case<'_>, setting: &str, has: impl Fn(&Allowance) -> bool) -> String {
    format!("config.toml, {}", case.policy.place(&case.request.container.pod, setting, has))
}

/// Why device nodes are not enough under that runtime handler.
pub(super) fn virtual_machine(case: &Case<'_>) -> Option<String> {
    let handler = &case.request.container.pod.runtime_handler;
    (case.policy.sandboxes.of(handler) == Sandbox::Machine).then(|| {
        let what = if handler.starts_with("kata") { "Kata" } else { "a virtual machine" };
        format!(
            "runtime handler {}: {what} needs VFIO passthrough; device nodes are not enough",
            quote(handler)
        )
    })
}

fn runtime(case: &Case<'_>, notes: &mut Notes) -> Result<(), Refusal> {
    if let Some(why) = virtual_machine(case) {
        return Err(refuse(case.request, Key::Devices, why));
    }
    let handler = &case.request.container.pod.runtime_handler;
    if case.policy.sandboxes.of(handler) == Sandbox::Kernel {
        notes.warn(
            "devices",
            format!(
                "runtime handler {}: gVisor passes RDMA through only when started with --rdmaproxy",
                quote(handler)
            ),
        );
    }
    Ok(())
}

/// Every key that was typed, or that has an effect, must be allowed.
fn keys(case: &Case<'_>) -> Result<(), Refusal> {
    let request = case.request;
    let in_use = |key: Key| match key {
        Key::Devices => request.devices.is_some(),
        Key::Capabilities => !request.capabilities.is_empty(),
        Key::Netns => request.netns != NetnsRequest::Auto,
        Key::Address => matches!(request.address, AddressRequest::Fixed(_)),
        Key::Smc => request.smc != SmcMethod::Off,
        Key::Limits => request.limits.is_some(),
        Key::Require => !request.require.is_empty(),
        // Their defaults come with the devices.
        Key::Nodes | Key::Memlock | Key::Numa | Key::Env => false,
    };
    let denied = Key::ALL.into_iter().find(|key| {
        (request.asked_by.contains_key(key) || in_use(*key)) && !case.allowance.keys.contains(key)
    });
    match denied {
        None => Ok(()),
        Some(key) => Err(refuse(
            request,
            key,
            format!(
                "policy does not let {} use this key ({}: {})",
                whose(&request.container.pod),
                place(case, "keys", |allowance| allowance.keys.contains(&key)),
                list(case.allowance.keys.iter().map(|key| key.word()))
            ),
        )),
    }
}

fn netns(case: &Case<'_>, notes: &mut Notes) -> Result<(), Refusal> {
    let request = case.request;
    let why = match request.netns {
        NetnsRequest::Host if !request.container.pod.host_network => {
            "the pod has a network namespace of its own; set hostNetwork: true in its spec"
        }
        NetnsRequest::Exclusive if request.carrier.path != CarrierPath::Nri => {
            "adapters are moved into pods by the NRI plugin only"
        }
        NetnsRequest::Exclusive => {
            return exclusive::gate(case, notes).map_err(|why| refuse(request, Key::Netns, why));
        }
        NetnsRequest::Ipvlan | NetnsRequest::Macvlan => {
            return children::gate(case, notes).map_err(|why| refuse(request, Key::Netns, why));
        }
        // The default of who did not ask; there is nothing in it that policy could deny.
        NetnsRequest::Auto if !request.asked_by.contains_key(&Key::Netns) => return Ok(()),
        way @ (NetnsRequest::Auto | NetnsRequest::Shared | NetnsRequest::Host) => {
            if case.allowance.netns.contains(&way) {
                return Ok(());
            }
            return Err(refuse(request, Key::Netns, denied_way(case, way)));
        }
    };
    Err(refuse(request, Key::Netns, why))
}

/// Addresses are those of sub-interfaces; on anything else the key would do nothing.
fn address(case: &Case<'_>) -> Result<(), Refusal> {
    let request = case.request;
    let children = matches!(request.netns, NetnsRequest::Ipvlan | NetnsRequest::Macvlan);
    if children || !request.asked_by.contains_key(&Key::Address) {
        return Ok(());
    }
    let why = "it gives addresses to sub-interfaces; add netns.rdma-ctk.io: ipvlan (or macvlan)";
    Err(refuse(request, Key::Address, why))
}

/// That policy does not allow a way of the network side.
pub(super) fn denied_way(case: &Case<'_>, way: NetnsRequest) -> String {
    format!(
        "policy does not allow this way ({}: {})",
        place(case, "netns", |allowance| allowance.netns.contains(&way)),
        list(case.allowance.netns.iter().map(ToString::to_string))
    )
}

/// That adapters are not to be chosen by GPUs where that is done before there are containers: when
/// `then`.
pub(super) fn no_gpus_yet(request: &Request, then: &str) -> Result<(), String> {
    match &request.devices {
        Some(Devices::Select(selectors)) if selectors.contains(&Selector::Gpu) => Err(format!(
            "the GPUs of a container are not known yet when {then}; name the adapters, or ask for a \
             count"
        )),
        _ => Ok(()),
    }
}

fn capabilities(case: &Case<'_>) -> Result<(), Refusal> {
    let request = case.request;
    if request.capabilities.is_empty() {
        return Ok(());
    }
    if let Can::No(lacks) = &request.carrier.capabilities {
        return Err(refuse(
            request,
            Key::Capabilities,
            format!("{} cannot change capabilities: {lacks}", carrier(request)),
        ));
    }
    let allowed = &case.allowance.capabilities;
    match request.capabilities.iter().find(|name| !allowed.contains(*name)) {
        None => Ok(()),
        Some(name) => Err(refuse(
            request,
            Key::Capabilities,
            format!(
                "policy does not give {} to {} ({}: {})",
                quote(name),
                whose(&request.container.pod),
                place(case, "capabilities", |allowance| allowance.capabilities.contains(name)),
                list(allowed)
            ),
        )),
    }
}

fn node_kinds(case: &Case<'_>) -> Result<(), Refusal> {
    let request = case.request;
    let typed = request.asked_by.contains_key(&Key::Nodes);
    for kind in &request.nodes {
        if case.allowance.nodes.contains(kind) {
            continue;
        }
        let why = match kind {
            NodeKind::Umad | NodeKind::Issm => "MAD devices are not allowed by node policy",
            NodeKind::Uverbs => "uverbs nodes are not allowed by node policy",
            // Part of the default; who did not name it goes without, see `nodes`.
            NodeKind::RdmaCm if !typed => continue,
            NodeKind::RdmaCm => "the rdma_cm node is not allowed by node policy",
        };
        let key = if typed { Key::Nodes } else { Key::Devices };
        let why = format!(
            "{why} for {} ({}: {})",
            whose(&request.container.pod),
            place(case, "nodes", |allowance| allowance.nodes.contains(kind)),
            list(case.allowance.nodes.iter().map(ToString::to_string))
        );
        return Err(refuse(request, key, why));
    }
    // rdma_cm alone opens no adapter: it would be a container without one.
    if request.nodes.iter().all(|kind| *kind == NodeKind::RdmaCm) {
        let why = "without uverbs (or umad) no adapter can be opened";
        return Err(refuse(request, Key::Nodes, why));
    }
    let cm = NodeKind::RdmaCm;
    let kept = request.nodes.contains(&cm) && case.allowance.nodes.contains(&cm);
    if request.require.contains(&Requirement::RdmaCm) && !kept {
        return Err(refuse(
            request,
            Key::Require,
            format!("rdma_cm is not among the nodes given ({})", asked(request, Key::Nodes)),
        ));
    }
    Ok(())
}

fn gpudirect(case: &Case<'_>) -> Result<(), Refusal> {
    if !case.request.require.contains(&Requirement::Gpudirect) || !case.node.gpudirect.is_empty() {
        return Ok(());
    }
    let why = if case.node.gpus.is_empty() {
        "this node has no GPU"
    } else {
        "adapters cannot reach the memory of this node's GPUs: load nvidia_peermem, or use GPU \
         kernel modules that export dma-buf"
    };
    Err(refuse(case.request, Key::Require, why))
}
