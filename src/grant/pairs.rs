//! Which adapter for which GPU of the container.

use super::Case;
use super::gid::Placed;
use super::gpus;
use crate::inventory::{Nearness, PciAddress};

/// For each GPU of the container, by PCI function, the nearest of its adapters: of several that
/// are equally near the one that has the fewest GPUs yet. GPUs that no adapter is near are left
/// out.
pub(super) fn pairs(case: &Case<'_>, placed: &[Placed<'_>]) -> Vec<(PciAddress, PciAddress)> {
    let gpus = gpus::of_container(case.request, case.node);
    let mut uses = vec![0_usize; placed.len()];
    let mut pairs = Vec::with_capacity(gpus.len());
    for gpu in gpus {
        let near = gpus::nearest(case.node, &[gpu]);
        let candidates = placed.iter().enumerate().filter_map(|(place, placed)| {
            let nearness = *near.get(placed.hca.name.as_str())?;
            let pci = placed.hca.pci.filter(|_| placed.adapter.usable)?;
            (nearness < Nearness::Other).then_some((nearness, uses[place], place, pci))
        });
        if let Some((_, _, place, nic)) = candidates.min() {
            uses[place] += 1;
            pairs.push((gpu.pci, nic));
        }
    }
    pairs
}
