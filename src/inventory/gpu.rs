//! GPUs of the node, and how near each HCA is to each of them.

use std::path::Path;

use super::attribute::{Folder, Reader};
use super::interface::hexadecimal;
use super::node::{Gpu, Hca, PciAddress, Relation};
use super::pci::{self, Place, Seat};

const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;

/// A GPU and its place in the tree.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) gpu: Gpu,
    pub(super) place: Place,
}

/// Reads every PCI function's class, and the rest of those that are GPUs. The NUMA node is left
/// to the caller.
pub(super) fn gpus(reader: &mut Reader, sys: &Folder, proc: &Path) -> Vec<Found> {
    let base = "bus/pci/devices";
    let Some(functions) = reader.folder(sys, base) else { return Vec::new() };
    let mut found = Vec::new();
    for name in reader.names(&functions) {
        let Ok(pci) = name.parse::<PciAddress>() else { continue };
        let class = reader.parsed(&functions, &format!("{name}/class"), HEX, hexadecimal);
        if !class.is_some_and(may_be_gpu) {
            continue;
        }
        let vendor = reader.parsed(&functions, &format!("{name}/vendor"), HEX, hexadecimal);
        let Some(vendor @ (NVIDIA | AMD)) = vendor else { continue };
        // A virtual function of a GPU is a virtual machine's, not a container's.
        if reader.link(&functions, &format!("{name}/physfn")).is_some() {
            continue;
        }
        let Some(place) =
            reader.link(&functions, &name).and_then(|target| Place::of_link(base, &target))
        else {
            continue;
        };
        let vendor = u16::try_from(vendor).unwrap_or_default();
        found.push(Found { gpu: Gpu { pci, vendor, numa: None, minor: None, uuid: None }, place });
    }
    found.sort_by_key(|found| found.gpu.pci);
    if !found.is_empty() {
        join_nvidia(reader, proc, &mut found);
    }
    found
}

const HEX: &str = "a hexadecimal number";

/// VGA controller, 3D controller, processing accelerator (`pci_ids.h`).
fn may_be_gpu(class: u32) -> bool {
    matches!(class >> 8, 0x0300 | 0x0302 | 0x1200)
}

/// Adds what NVIDIA's driver says in `driver/nvidia/gpus/*/information`.
fn join_nvidia(reader: &mut Reader, proc: &Path, found: &mut [Found]) {
    let Some(folder) = reader.open(&proc.join("driver/nvidia/gpus")) else { return };
    for name in reader.names(&folder) {
        let Ok(pci) = name.parse::<PciAddress>() else { continue };
        let Some(found) = found.iter_mut().find(|found| found.gpu.pci == pci) else { continue };
        let Some(text) = reader.text(&folder, &format!("{name}/information")) else { continue };
        (found.gpu.minor, found.gpu.uuid) = information(text);
    }
}

/// By what adapters reach the memory of those GPUs: a peer memory module by its name, or dma-buf
/// where the GPU's driver exports it. Whether an adapter's driver imports it is not told.
pub(super) fn direct(
    reader: &mut Reader,
    sys: &Folder,
    proc: &Path,
    found: &[Found],
) -> Vec<String> {
    let vendor = |vendor: u32| found.iter().any(|found| u32::from(found.gpu.vendor) == vendor);
    let mut ways = Vec::new();
    if vendor(NVIDIA) {
        // The three places in which NCCL looks.
        for (module, path) in [
            ("nvidia_peermem", "module/nvidia_peermem/version"),
            ("nv_peer_mem", "kernel/mm/memory_peers/nv_mem/version"),
            ("nv_peer_mem_nc", "kernel/mm/memory_peers/nv_mem_nc/version"),
        ] {
            if reader.text(sys, path).is_some() {
                ways.push(module.to_owned());
            }
        }
        let driver = reader.open(&proc.join("driver/nvidia"));
        let driver = driver.and_then(|folder| reader.text(&folder, "version").map(exports_dmabuf));
        if driver == Some(true) {
            ways.push("dma-buf".to_owned());
        }
    }
    if vendor(AMD) && reader.folder(sys, "module/amdgpu").is_some() {
        ways.push("dma-buf".to_owned());
    }
    ways.dedup();
    ways
}

/// NVIDIA's open kernel modules export dma-buf, the closed ones do not.
fn exports_dmabuf(version: &str) -> bool {
    version.contains("Open Kernel Module")
}

/// Device minor and UUID. Before a GPU was first used its UUID reads `GPU-????????-…`.
fn information(text: &str) -> (Option<u32>, Option<String>) {
    let field = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == wanted).then(|| value.trim())
        })
    };
    let uuid = field("GPU UUID").filter(|uuid| !uuid.is_empty() && !uuid.contains('?'));
    (field("Device Minor").and_then(|minor| minor.parse().ok()), uuid.map(str::to_owned))
}

/// How near each HCA of `hcas` that has a place is to each GPU.
pub(super) fn relations<'a>(
    hcas: impl Iterator<Item = (&'a Hca, &'a Place)>,
    gpus: &[Found],
) -> Vec<Relation> {
    hcas.flat_map(|(hca, place)| {
        gpus.iter().map(move |found| Relation {
            hca: hca.name.clone(),
            gpu: found.gpu.pci,
            nearness: pci::nearness(
                Seat { place, numa: hca.numa },
                Seat { place: &found.place, numa: found.gpu.numa },
            ),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_information_is_read_by_field() {
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n\
                    GPU UUID: \t GPU-2a1b3c4d-0000-1111-2222-333344445555\n\
                    Bus Location: \t 0000:1b:00.0\nDevice Minor: \t 3\n";
        let uuid = "GPU-2a1b3c4d-0000-1111-2222-333344445555".to_owned();
        assert_eq!(information(text), (Some(3), Some(uuid)));
        assert_eq!(information("GPU UUID: GPU-????????-????-????-????-????????????"), (None, None));
        assert_eq!(information("nonsense"), (None, None));
    }

    #[test]
    fn only_the_open_modules_export_dma_buf() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 26";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release";
        assert!(exports_dmabuf(open) && !exports_dmabuf(closed));
    }

    #[test]
    fn a_gpu_is_a_display_or_an_accelerator() {
        for (class, expected) in [
            (0x0003_0000, true),
            (0x0003_0200, true),
            (0x0012_0000, true),
            (0x0002_0700, false),
            (0x0006_0400, false),
            (0x0003_8000, false),
        ] {
            assert_eq!(may_be_gpu(class), expected, "{class:06x}");
        }
    }
}
