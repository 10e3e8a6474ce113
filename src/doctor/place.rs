//! Where adapters are: RDMA namespace, NUMA node, nearness to GPUs; and what the inventory noted.

use std::fs;

use super::adapters::usable;
use super::{Context, Finding, Unable};
use crate::inventory::{Home, NetnsMode};

/// RDMA namespace mode.
pub fn netns_mode(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let node = context.node;
    if node.hcas.is_empty() {
        return Err(Unable::Absent("no RDMA adapter on this node"));
    }
    if node.netns_mode == NetnsMode::Shared {
        return Ok(vec![Finding::ok(
            "shared mode: an adapter can be used from every network namespace",
        )]);
    }
    let away: Vec<&str> = node
        .hcas
        .iter()
        .filter(|hca| hca.home == Home::Elsewhere)
        .map(|hca| hca.name.as_str())
        .collect();
    let mut findings = vec![Finding::warn(
        "this node runs RDMA in exclusive mode: an adapter can belong to one pod only, and pods \
         with a network namespace of their own are refused; those in the host's are served",
        "for shared use, `options ib_core netns_mode=1` in /etc/modprobe.d and reboot; the kernel \
         does not change the mode while any other network namespace exists",
    )];
    if !away.is_empty() {
        findings.push(Finding::ok(format!("in another namespace: {}", away.join(", "))));
    }
    Ok(findings)
}

/// NUMA nodes of adapters.
pub fn numa(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = usable(context)?;
    if context.node.numa.len() < 2 {
        return Ok(vec![Finding::ok("one NUMA node: every CPU is as near as any other")]);
    }
    let mut findings: Vec<Finding> = here
        .iter()
        .filter(|hca| hca.numa.is_none())
        .map(|hca| {
            Finding::warn(
                format!(
                    "{} reports no NUMA node: CPUs are left alone for it, and `numa: strict` is \
                     refused",
                    hca.name
                ),
                "in a virtual machine the hypervisor has to tell it; on hardware, look for a \
                 firmware setting",
            )
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("every adapter reports its NUMA node"));
    }
    Ok(findings)
}

/// PCI vendor of NVIDIA.
const NVIDIA: u16 = 0x10de;

/// Whether NVIDIA GPUs can share memory with adapters: by the peer-memory module, or by dma-buf,
/// which the open kernel module offers.
pub fn gpudirect(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    usable(context)?;
    if !context.node.gpus.iter().any(|gpu| gpu.vendor == NVIDIA) {
        return Err(Unable::Absent("no NVIDIA GPU on this node"));
    }
    let peer = [
        "module/nvidia_peermem",
        "kernel/mm/memory_peers/nv_mem",
        "kernel/mm/memory_peers/nv_mem_nc",
    ];
    if let Some(found) = peer.iter().find(|path| context.roots.sys.join(path).exists()) {
        return Ok(vec![Finding::ok(format!("GPUDirect RDMA by peer memory (/sys/{found})"))]);
    }
    let path = context.roots.proc.join("driver/nvidia/version");
    let open = fs::read_to_string(&path).is_ok_and(|text| text.contains("Open Kernel Module"));
    Ok(vec![if open {
        Finding::ok("GPUDirect RDMA by dma-buf (open kernel module)")
    } else {
        Finding::warn(
            "GPUDirect RDMA is not possible: nvidia_peermem is not loaded, and the GPU driver is \
             not the open kernel module",
            "on the host, `modprobe nvidia_peermem`, or install the open kernel module",
        )
    }])
}

/// What the inventory noted while reading.
pub fn remarks(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    if context.node.remarks.is_empty() {
        return Ok(vec![Finding::ok("the sources of the inventory agree")]);
    }
    Ok(context
        .node
        .remarks
        .iter()
        .map(|remark| {
            Finding::warn(
                remark.as_str(),
                if remark.starts_with("the PCI tree is flat") {
                    "name the vendor's topology file in the policy (topology_file), if there is one"
                } else {
                    "run doctor again: what came of a device that came or went is gone then; for \
                     what stays, look at `dmesg`"
                },
            )
        })
        .collect())
}
