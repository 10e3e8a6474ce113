use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::*;

mod cases;
mod live;
mod merging;
mod robustness;

/// The fixture of that name, unpacked; in memory where that can be, since it is thousands of
/// small files.
fn fixture(name: &str) -> (tempfile::TempDir, Roots) {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
    let builder = tempfile::Builder::new();
    let dir = builder.tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    fixture::unpack(&text.join(format!("{name}.tree")), dir.path()).unwrap();
    let roots = Roots::below(dir.path());
    (dir, roots)
}

/// A snapshot as text: one line a thing, every field of it, long GID tables cut in the middle.
fn described(node: &Node) -> String {
    fn line(value: &impl serde::Serialize, without: &[&str]) -> String {
        let mut value = serde_json::to_value(value).unwrap();
        for field in without {
            value.as_object_mut().unwrap().shift_remove(*field).unwrap();
        }
        value.to_string()
    }
    let mut text = String::new();
    let parts = ["hcas", "gpus", "relations", "interfaces"];
    writeln!(text, "node {}", line(node, &parts)).unwrap();
    for hca in &node.hcas {
        writeln!(text, "hca {}", line(hca, &["ports"])).unwrap();
        for port in &hca.ports {
            writeln!(text, "  port {}", line(port, &["gids"])).unwrap();
            let gids: Vec<String> = port.gids.iter().map(|gid| line(gid, &[])).collect();
            let shown = if gids.len() > 12 { 8 } else { gids.len() };
            for gid in &gids[..shown] {
                writeln!(text, "    gid {gid}").unwrap();
            }
            if let (true, Some(last)) = (shown < gids.len(), gids.last()) {
                writeln!(text, "    … {} more … gid {last}", gids.len() - shown - 1).unwrap();
            }
        }
    }
    for gpu in &node.gpus {
        writeln!(text, "gpu {}", line(gpu, &[])).unwrap();
    }
    for hca in &node.hcas {
        let mut by_nearness: BTreeMap<Nearness, Vec<String>> = BTreeMap::new();
        for relation in node.relations.iter().filter(|relation| relation.hca == hca.name) {
            by_nearness.entry(relation.nearness).or_default().push(relation.gpu.to_string());
        }
        for (nearness, gpus) in by_nearness {
            writeln!(text, "{} {nearness:?} {}", hca.name, gpus.join(" ")).unwrap();
        }
    }
    for interface in &node.interfaces {
        writeln!(text, "interface {}", line(interface, &[])).unwrap();
    }
    text
}

macro_rules! machines {
    ($($test:ident $name:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            let (_dir, roots) = fixture($name);
            insta::assert_snapshot!($name, described(&snapshot(&roots, None)));
        }
    )*};
}

machines! {
    efa_node_with_nvlink_functions "efa-nvlink",
    efa_node_with_33_devices "efa-p5",
    erdma_node_in_iwarp_mode "erdma-iwarp",
    erdma_node_in_roce_mode "erdma-roce",
    flat_virtual_machine "flat-vm",
    gpu_node_with_infiniband "gpu-infiniband",
    gpu_node_with_full_gid_tables "gpu-roce",
    intel_node "irdma",
    azure_node_with_mana "mana",
    node_with_40_hcas "many-hcas",
    node_without_hcas "none",
    sriov_in_all_its_shapes "roce-sriov",
    soft_roce_as_recorded "soft-roce",
}
