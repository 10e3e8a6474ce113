//! Which GPUs a container has, and how near the node's adapters are to them.
//!
//! A container's GPUs show as device nodes, as CDI names, or as NVIDIA_VISIBLE_DEVICES: in that
//! order, since a node is a fact and an image may carry the variable with the value `all`.
//! Only NVIDIA's can be told apart: their nodes are mapped by `/proc/driver/nvidia/gpus`.

use std::collections::HashMap;

use crate::inventory::{Gpu, Nearness, Node};
use crate::request::Request;

/// PCI vendor of the GPUs that are counted by NVIDIA_VISIBLE_DEVICES.
const NVIDIA: u16 = 0x10de;

/// GPUs of that container, in PCI order; empty when it has none or they cannot be told.
pub(super) fn of_container<'a>(request: &Request, node: &'a Node) -> Vec<&'a Gpu> {
    let nvidia: Vec<&Gpu> = node.gpus.iter().filter(|gpu| gpu.vendor == NVIDIA).collect();
    if nvidia.is_empty() {
        return nvidia;
    }
    let container = &request.container;
    let minors: Vec<u32> = container
        .devices
        .iter()
        .filter_map(|device| device.path.strip_prefix("/dev/nvidia")?.parse().ok())
        .collect();
    let by_node = pick(&nvidia, |_, gpu| gpu.minor.is_some_and(|minor| minors.contains(&minor)));
    if !by_node.is_empty() {
        return by_node;
    }
    let named: Vec<&str> = container
        .cdi
        .iter()
        .filter_map(|name| {
            let (kind, device) = name.split_once('=')?;
            kind.ends_with("nvidia.com/gpu").then_some(device)
        })
        .collect();
    if !named.is_empty() {
        return chosen(&nvidia, &named);
    }
    let visible = container.env.iter().rev().find(|(name, _)| name == "NVIDIA_VISIBLE_DEVICES");
    let words: Vec<&str> =
        visible.map_or_else(Vec::new, |(_, value)| value.split(',').map(str::trim).collect());
    chosen(&nvidia, &words)
}

/// GPUs by the words of NVIDIA's dialect: `all`, an index in PCI order, or an identifier.
fn chosen<'a>(nvidia: &[&'a Gpu], words: &[&str]) -> Vec<&'a Gpu> {
    pick(nvidia, |place, gpu| {
        words.iter().any(|word| {
            *word == "all"
                || word.parse() == Ok(place)
                || gpu.uuid.as_deref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(word))
        })
    })
}

fn pick<'a>(gpus: &[&'a Gpu], mut wanted: impl FnMut(usize, &Gpu) -> bool) -> Vec<&'a Gpu> {
    gpus.iter()
        .enumerate()
        .filter(|(place, gpu)| wanted(*place, gpu))
        .map(|(_, gpu)| *gpu)
        .collect()
}

/// For each adapter that is related to one of `gpus`, how near the nearest of them is.
pub(super) fn nearest<'a>(node: &'a Node, gpus: &[&Gpu]) -> HashMap<&'a str, Nearness> {
    let mut nearest: HashMap<&str, Nearness> = HashMap::new();
    if gpus.is_empty() {
        return nearest;
    }
    for relation in &node.relations {
        if gpus.iter().any(|gpu| gpu.pci == relation.gpu) {
            let best = nearest.entry(&relation.hca).or_insert(relation.nearness);
            *best = relation.nearness.min(*best);
        }
    }
    nearest
}
