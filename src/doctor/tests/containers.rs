//! Running containers.

use super::*;

const BUNDLE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc";

/// A running container: what its document says, and what is in it.
fn container(document: &str, inside: &[(&str, &str)], limit: &str) -> tempfile::TempDir {
    let (config, pid) = (format!("{BUNDLE}/config.json"), format!("{BUNDLE}/init.pid"));
    let limits = format!("Max locked memory {limit} {limit} bytes\n");
    let mut files = vec![
        (config.as_str(), document),
        (pid.as_str(), "4711"),
        ("proc/4711/limits", limits.as_str()),
        ("proc/4711/root/etc/os-release", ""),
    ];
    let inside: Vec<(String, &str)> =
        inside.iter().map(|(path, text)| (format!("proc/4711/root/{path}"), *text)).collect();
    files.extend(inside.iter().map(|(path, text)| (path.as_str(), *text)));
    tree(&files)
}

const GIVEN: &str = r#"{"linux": {"devices": [{"path": "/dev/infiniband/uverbs0"}]},
    "annotations": {"io.kubernetes.cri.container-name": "app",
    "io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.sandbox-namespace": "ns"}}"#;
const LIBRARY: (&str, &str) = ("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
const PROVIDER: (&str, &str) = ("etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
const NODE: (&str, &str) = ("dev/infiniband/uverbs0", "");

#[test]
fn a_container_that_has_all_is_fine() {
    let folder = container(GIVEN, &[LIBRARY, PROVIDER, NODE], "unlimited");
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(findings, [Finding::ok("1 container holds an adapter and can use it")]);
}

#[test]
fn c02_c04_a_container_with_a_small_limit_is_told_whose_it_is() {
    let limits = ("etc/security/limits.conf", "* - memlock unlimited\n");
    let folder = container(GIVEN, &[LIBRARY, PROVIDER, NODE, limits], "65536");
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(
        sentences(&findings),
        [
            "ns/p container app: memlock 64 KiB: ibv_create_cq / ibv_reg_mr will fail",
            "ns/p container app: limits.conf in the image is not read for the entry process; hard \
             limit 64 KiB comes from the runtime",
        ]
    );
    assert_eq!(findings[0].level, Level::Fail);
}

#[test]
fn c22_nodes_made_behind_the_runtimes_back_are_told() {
    let document = r#"{"linux": {"devices": []}}"#;
    let folder = container(document, &[LIBRARY, PROVIDER, NODE], "unlimited");
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(findings[0].level, Level::Fail);
    assert!(
        findings[0].sentence.contains(
            "device access is not in the runtime spec (uverbs0); a systemctl daemon-reload will \
             revoke it"
        ),
        "{findings:?}"
    );
    // With the node in the document the rule is there too.
    let folder = container(GIVEN, &[LIBRARY, PROVIDER, NODE], "unlimited");
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(findings[0].level, Level::Ok);
}

#[test]
fn c91_an_image_without_library_or_provider_is_told() {
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let folder = container(GIVEN, &[NODE], "unlimited");
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(
        sentences(&findings),
        ["ns/p container app: image has no libibverbs: NCCL will use TCP"]
    );
    let folder =
        container(GIVEN, &[NODE, LIBRARY, ("etc/libibverbs.d/efa.driver", "")], "unlimited");
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(
        sentences(&findings),
        ["ns/p container app: no provider for mlx5 (libmlx5) in the image"]
    );
}

#[test]
fn c93_a_provider_that_cdi_has_given_is_one() {
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let given = ("usr/lib/rdma-ctk/libmlx5-rdmav59.so", "");
    let folder = container(GIVEN, &[NODE, LIBRARY, given], "unlimited");
    let findings = look("containers", folder.path(), &node, &Records::default());
    assert_eq!(findings, [Finding::ok("1 container holds an adapter and can use it")]);
}

#[test]
fn c83_an_annotation_that_nobody_heard_is_told() {
    let document = r#"{"annotations": {"devices.rdma-ctk.io": "mlx5_0"}}"#;
    let folder = container(document, &[], "unlimited");
    let findings = look("containers", folder.path(), &Node::default(), &Records::default());
    assert_eq!(findings[0].level, Level::Warn);
    assert!(findings[0].sentence.contains("do not pass through NRI"), "{findings:?}");
}
