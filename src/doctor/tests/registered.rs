//! The ways without NRI.

use super::super::registered::{cdi_file, hooks, runtimes};
use super::*;

/// Findings of a check on made-up files, or why it could not look.
fn told(
    files: &[(&str, &str)],
    check: fn(&Context<'_>) -> Result<Vec<Finding>, Unable>,
) -> (Option<Level>, String) {
    let folder = tree(files);
    let roots = Roots::below(folder.path());
    let (node, records) = (Node::default(), Records::default());
    let context = Context { roots: &roots, node: &node, records: &records, live: None };
    match check(&context) {
        Ok(findings) => {
            let worst = findings.iter().map(|finding| finding.level).max();
            let all: Vec<&str> = findings.iter().map(|f| f.sentence.as_str()).collect();
            (worst, all.join("\n").replace(folder.path().to_str().unwrap(), ""))
        }
        Err(why) => (None, why.to_string()),
    }
}

#[test]
fn c79_an_old_cdi_file_is_found() {
    let (level, text) = told(&[], cdi_file);
    assert_eq!(level, None);
    assert!(text.contains("cdi generate"), "{text}");
    let old = r#"{"cdiVersion": "0.3.0", "kind": "rdma-ctk.io/hca", "devices": [
        {"name": "mlx5_0", "containerEdits": {"deviceNodes": [
            {"path": "/dev/infiniband/uverbs0", "permissions": "rw"}]}}]}"#;
    let (level, text) = told(&[("run/cdi/rdma-ctk.io-hca.json", old)], cdi_file);
    assert_eq!(level, Some(Level::Warn));
    assert!(text.contains("is out of date; it still has mlx5_0"), "{text}");
    let twin = [("run/cdi/rdma-ctk.io-hca.json", old), ("run/cdi/a.json", old)];
    assert_eq!(told(&twin, cdi_file).0, Some(Level::Fail));
}

#[test]
fn the_wrapper_is_found_among_runtimes() {
    assert_eq!(told(&[], runtimes).0, None);
    let v3 = |annotations: &str| {
        format!(
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma]\n\
             pod_annotations = [{annotations}]\noptions.BinaryName = '/usr/bin/rdma-ctk-runtime'\n"
        )
    };
    let full = v3("'*.rdma-ctk.io', '*.rdma-ctk.io/*'");
    let docker =
        r#"{"default-runtime": "rdma", "runtimes": {"rdma": {"path": "/x/rdma-ctk-runtime"}}}"#;
    let files = [("etc/containerd/config.toml", full.as_str()), ("etc/docker/daemon.json", docker)];
    let (level, text) = told(&files, runtimes);
    assert_eq!(level, Some(Level::Ok), "{text}");
    assert!(text.contains("Docker has the runtime rdma, and it is the default"), "{text}");
    // Scoped keys do not reach it.
    let part = v3("'*.rdma-ctk.io'");
    let (level, text) = told(&[("etc/containerd/config.toml", part.as_str())], runtimes);
    assert_eq!(level, Some(Level::Warn));
    assert!(text.contains("annotations do not reach it"), "{text}");
}

#[test]
fn a_precreate_hook_where_crio_looks_is_found() {
    assert_eq!(told(&[], hooks).0, None);
    let crio = ("etc/crio/crio.conf", "[crio.runtime]\nhooks_dir = ['/etc/hooks']\n");
    let hook = ("etc/hooks/a.json", "{\"stages\": [\"precreate\"]}");
    let (level, text) = told(&[crio, hook], hooks);
    assert_eq!(level, Some(Level::Fail));
    assert!(text.starts_with("/etc/hooks/a.json: a hook of the stage precreate"), "{text}");
    let ours = "[engine]\nhooks_dir = ['/usr/share/rdma-ctk/hooks.d/podman']\n";
    let (level, _) = told(&[("etc/containers/containers.conf", ours)], hooks);
    assert_eq!(level, Some(Level::Ok));
}
