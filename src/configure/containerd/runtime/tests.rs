use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::configure::tables::plain;
use crate::configure::tests::Fixture;
use crate::configure::{ApplyError, Owner, apply, undo, undo_plan};

const MAIN: &str = "etc/containerd/config.toml";

const V2: &str = r#"version = 2
# The node team owns this file.
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9" # pinned
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "/etc/containerd/base.json"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true # kubelet too

[metrics]
  address = ""
"#;

const V3: &str = "version = 3

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'nvidia'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
runtime_type = 'io.containerd.runc.v2'
pod_annotations = ['a.example/*', '*.rdma-ctk.io']
options = { BinaryName = '/usr/bin/nvidia-container-runtime', SystemdCgroup = true }
";

const V4: &str = "version = 4
imports = ['/etc/containerd/conf.d/*.toml']

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
";

fn version(text: &str) -> RuntimeOptions {
    RuntimeOptions { version: text.parse().ok(), ..RuntimeOptions::default() }
}

fn diff(fixture: &Fixture, options: &RuntimeOptions) -> String {
    fixture.shown(&runtime_plan(&fixture.roots, options).unwrap())
}

fn there_and_back(fixture: &Fixture, options: &RuntimeOptions) {
    fixture.there_and_back(Owner::Containerd, |roots| runtime_plan(roots, options).unwrap());
}

#[test]
fn version_2_is_edited_in_place_and_copies_the_cgroup_driver() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    assert_snapshot!(diff(&fixture, &version("1.7.34")));
    there_and_back(&fixture, &version("1.7.34"));
}

#[test]
fn version_3_derives_from_the_default_and_becomes_it() {
    let fixture = Fixture::new(&[(MAIN, V3)]);
    let options = RuntimeOptions { default: true, ..version("2.1.9") };
    assert_snapshot!(diff(&fixture, &options));
    there_and_back(&fixture, &options);
}

#[test]
fn version_4_with_imports_gets_a_file_of_our_own() {
    let fixture = Fixture::new(&[(MAIN, V4)]);
    assert_snapshot!(diff(&fixture, &version("2.3.4")));
    there_and_back(&fixture, &version("2.3.4"));
}

#[test]
fn a_node_without_a_file_keeps_runc() {
    // Up to 1.7 a file with any runtime in it has no others.
    let fixture = Fixture::new(&[]);
    assert_snapshot!(diff(&fixture, &version("1.7.34")));
    there_and_back(&fixture, &version("1.7.34"));
    let fixture = Fixture::new(&[(MAIN, "version = 3\n")]);
    assert_snapshot!(diff(&fixture, &version("2.2.0")));
}

#[test]
fn an_entry_of_the_admins_is_completed() {
    let theirs = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdma]\n  \
                  runtime_type = 'io.containerd.runc.v2' # ours\n  snapshotter = 'zfs'\n  \
                  pod_annotations = [\n    'x/*',\n  ]\n";
    let fixture = Fixture::new(&[(MAIN, theirs)]);
    assert_snapshot!(diff(&fixture, &version("2.1.9")));
    there_and_back(&fixture, &version("2.1.9"));
}

#[test]
fn what_cannot_be_wrapped_is_named() {
    let shim = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n\
                runtime_type = 'io.containerd.kata.v2'\n";
    for (text, from, part) in [
        (V4, "crun", "no runtime \"crun\" to derive from (have: runc)"),
        (shim, "kata", "of the type \"io.containerd.kata.v2\""),
        ("# do not edit\nversion = 3\n", "runc", "says that it is generated"),
        ("[grpc]\nuid = 0\n", "runc", "configuration version 1"),
        ("version = 3\nplugins = 1\n", "runc", "\"plugins\" is no table"),
    ] {
        let fixture = Fixture::new(&[(MAIN, text)]);
        let options = RuntimeOptions { from: Some(from.to_owned()), ..version("2.1.9") };
        let error = runtime_plan(&fixture.roots, &options).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn it_stands_beside_the_settings_for_nri_and_goes_with_them() {
    let disabled =
        V4.replace("[plugins", "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n[plugins");
    let fixture = Fixture::new(&[(MAIN, &disabled)]);
    let nri = super::super::Options { version: "2.3.4".parse().ok(), ..Default::default() };
    let before = super::super::plan(&fixture.roots, &nri).unwrap();
    apply(&fixture.roots, Owner::Containerd, &before).unwrap();
    let plan = runtime_plan(&fixture.roots, &version("2.3.4")).unwrap();
    apply(&fixture.roots, Owner::Containerd, &plan).unwrap();
    assert_eq!(super::super::plan(&fixture.roots, &nri).unwrap().files, []);
    assert_eq!(runtime_plan(&fixture.roots, &version("2.3.4")).unwrap().files, []);
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    assert_eq!(back.files.len(), 2);
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert!(matches!(
        undo_plan(&fixture.roots, Owner::Containerd),
        Err(ApplyError::NoRecord { .. })
    ));
}

#[test]
fn the_entry_is_told() {
    let fixture = Fixture::new(&[(MAIN, V3)]);
    let main = Path::new("/etc/containerd/config.toml");
    let told = |name| entry(main, name, Merge::Deep, &|path| locate(&fixture.roots, path)).unwrap();
    assert_eq!(told("rdma"), None);
    let options = RuntimeOptions { default: true, ..version("2.1.9") };
    let plan = runtime_plan(&fixture.roots, &options).unwrap();
    apply(&fixture.roots, Owner::Containerd, &plan).unwrap();
    let entry = told("rdma").unwrap();
    assert_eq!(entry.program.as_deref(), Some(WRAPPER));
    assert!(entry.default && entry.annotations.contains(&"*.rdma-ctk.io/*".to_owned()));
    assert!(!told("nvidia").unwrap().default);
}

#[test]
fn c10_the_patterns_reach_scoped_and_vendors_keys() {
    // path.Match of Go: `*` ends at `/`.
    let matches = |pattern: &str, key: &str| {
        pattern.split('/').count() == key.split('/').count()
            && pattern
                .split('/')
                .zip(key.split('/'))
                .all(|(pattern, part)| super::super::glob(pattern, part))
    };
    for key in [
        "devices.rdma-ctk.io",
        "memlock.rdma-ctk.io/pod",
        "devices.rdma-ctk.io/container.trainer",
        "network.alibabacloud.com/erdma-smcr",
        "k8s.volcengine.com/pod-networks",
    ] {
        assert!(ANNOTATIONS.iter().any(|pattern| matches(pattern, key)), "{key}");
    }
    assert!(!ANNOTATIONS.iter().any(|pattern| matches(pattern, "example.org/x")));
}

/// Lines of a file, some of which may stand in one.
fn documents() -> impl Strategy<Value = String> {
    let blocks = [
        "# a comment\n",
        "root = '/var/lib/containerd'   # there\n",
        "oom_score=0\n",
        "[grpc]\n  uid = 0\n\n",
        "[plugins.\"io.containerd.cri.v1.images\"]\n\tsnapshotter = \"zfs\"\n",
        "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true # yes\n",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]\n  runtime_type = 'io.containerd.runc.v2'\n",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\n  SystemdCgroup = true\n",
        "[timeouts]\n'io.containerd.timeout.x' = '1s'\n# the end\n",
    ];
    prop::collection::vec(any::<bool>(), blocks.len()).prop_map(move |which| {
        let chosen = blocks.iter().zip(which).filter(|(_, chosen)| *chosen);
        let body: String = chosen.map(|(block, _)| *block).collect();
        // Top-level keys come before tables.
        format!("version = 3\n{body}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every line of the file is still there, in its order; what is new is the entry alone.
    #[test]
    fn nothing_else_is_changed(text in documents(), default in any::<bool>()) {
        let fixture = Fixture::new(&[(MAIN, &text)]);
        let options = RuntimeOptions { default, ..version("2.1.9") };
        let Ok(plan) = runtime_plan(&fixture.roots, &options) else { return Ok(()) };
        let [change] = plan.files.as_slice() else { return Err(TestCaseError::fail("no change")) };
        let Some(Content::Text(after)) = &change.after else { return Err(TestCaseError::fail("gone")) };
        let mut lines = after.lines();
        for line in text.lines() {
            prop_assert!(lines.any(|new| new == line), "{line:?} is lost in\n{after}");
        }
        let mut new = after.parse::<DocumentMut>().unwrap();
        let entries = ["plugins", "io.containerd.cri.v1.runtime", "containerd"];
        let mut at: &mut dyn TableLike = new.as_table_mut();
        for key in entries {
            at = table(at, key, true).unwrap();
        }
        if default {
            at.remove("default_runtime_name");
        }
        table(at, "runtimes", true).unwrap().remove("rdma");
        let mut values = Vec::new();
        let mut olds = Vec::new();
        leaves(new.as_table(), "", &mut values);
        leaves(text.parse::<DocumentMut>().unwrap().as_table(), "", &mut olds);
        prop_assert_eq!(values, olds);
    }
}

/// Every value by its path.
fn leaves(table: &dyn TableLike, path: &str, found: &mut Vec<String>) {
    for (key, item) in table.iter() {
        let path = format!("{path}/{key}");
        match item.as_table_like() {
            Some(inner) => leaves(inner, &path, found),
            None => found.push(format!("{path} = {}", plain(item))),
        }
    }
}
