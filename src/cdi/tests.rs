use std::os::unix::fs::MetadataExt;

use super::*;
use crate::grant::tests::machines::infiniband;
use crate::inventory::CharDev;

/// A node's trees, and what the inventory would say of them.
struct Machine {
    roots: Roots,
    node: Node,
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(adapters: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        fs::create_dir_all(roots.dev.join("infiniband")).unwrap();
        let rdma_cm = CharDev { name: "rdma_cm".into(), major: 10, minor: 260, mode: Some(0o666) };
        let node = Node { rdma_cm: Some(rdma_cm), ..Node::default() };
        let mut machine = Self { roots, node, folder };
        for number in 0..adapters {
            machine.plug(number);
        }
        machine.touch("rdma_cm");
        machine
    }

    fn touch(&self, node: &str) {
        fs::write(self.roots.dev.join("infiniband").join(node), "").unwrap();
    }

    fn plug(&mut self, number: u32) {
        self.node.hcas.push(infiniband(&format!("mlx5_{number}"), number));
        self.touch(&format!("uverbs{number}"));
    }

    fn other(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn keep(&self) -> Result<Kept, KeepError> {
        keep(&self.roots, &self.node, &Policy::default())
    }

    /// The mounts of the last device that is written under a policy, and what is noted.
    fn mounts(&self, policy: &Policy) -> (Vec<(String, String)>, Vec<String>) {
        let kept = keep(&self.roots, &self.node, policy).unwrap();
        let spec: Spec = serde_json::from_slice(&fs::read(kept.path).unwrap()).unwrap();
        let mounts = spec.devices.last().unwrap().container_edits.mounts.iter();
        (mounts.map(|m| (m.host_path.clone(), m.container_path.clone())).collect(), kept.notes)
    }

    fn judge(&self) -> Vec<String> {
        let flaws = judge(&self.roots, &self.node, &Policy::default(), &path(&self.roots));
        let root = self.folder.path().to_str().unwrap();
        flaws.iter().map(|flaw| flaw.to_string().replace(root, "")).collect()
    }
}

#[test]
fn c79_the_file_follows_the_node() {
    let mut machine = Machine::new(0);
    assert_eq!(machine.keep().unwrap().done, Done::Nothing);
    assert_eq!(machine.judge(), Vec::<String>::new());
    machine.plug(0);
    assert_eq!(
        machine.judge(),
        ["/run/cdi/rdma-ctk.io-hca.json: there is no CDI file, and 3 devices could be in it"]
    );
    assert_eq!(machine.keep().unwrap().done, Done::Written(3));
    assert_eq!(machine.keep().unwrap().done, Done::Same);
    assert_eq!(machine.judge(), Vec::<String>::new());
    machine.plug(1);
    assert_eq!(
        machine.judge(),
        ["/run/cdi/rdma-ctk.io-hca.json: is out of date; it lacks 0000:11:00.0, mlx5_1"]
    );
    assert_eq!(machine.keep().unwrap().done, Done::Written(5));
    machine.node.hcas[1].name = "storage0".into();
    assert_eq!(
        machine.judge(),
        ["/run/cdi/rdma-ctk.io-hca.json: is out of date; it lacks storage0; it still has mlx5_1"]
    );
    machine.node.hcas.clear();
    assert_eq!(machine.keep().unwrap().done, Done::Removed);
    assert!(!path(&machine.roots).exists());
}

#[test]
fn c93_the_nodes_provider_comes_when_asked_for_and_hides_nothing() {
    let machine = Machine::new(2);
    let folder = "usr/lib/x86_64-linux-gnu/libibverbs";
    for name in ["libmlx5-rdmav34.so", "libefa-rdmav34.so", "libmlx5-rdmavx.so", "libmlx5.so.1"] {
        machine.other(&format!("{folder}/{name}"), "");
    }
    assert_eq!(machine.mounts(&Policy::default()), (vec![], vec![]));
    let driver = machine.roots.run.join("cdi/rdma-ctk.io-mlx5.driver");
    assert!(!driver.exists());

    let policy = Policy::from_toml("cdi.libraries = true").unwrap();
    let pair = |host: &str, inside: &str| (host.to_owned(), inside.to_owned());
    let mounts = [
        pair(&format!("/{folder}/libmlx5-rdmav34.so"), "/usr/lib/rdma-ctk/libmlx5-rdmav34.so"),
        pair("/run/cdi/rdma-ctk.io-mlx5.driver", "/etc/libibverbs.d/rdma-ctk.io-mlx5.driver"),
    ];
    assert_eq!(machine.mounts(&policy), (mounts.to_vec(), vec![]));
    assert_eq!(fs::read_to_string(&driver).unwrap(), "driver /usr/lib/rdma-ctk/libmlx5\n");
    assert_eq!(fs::metadata(&driver).unwrap().mode() & 0o777, 0o444, "everybody may read it");
    assert_eq!(judge(&machine.roots, &machine.node, &policy, &path(&machine.roots)), []);
    // One that is gone is written again.
    fs::remove_file(&driver).unwrap();
    machine.mounts(&policy);
    assert!(driver.exists());

    let mut other = Machine::new(1);
    other.node.hcas[0].driver = crate::inventory::Driver("ionic".into());
    let (mounts, notes) = other.mounts(&policy);
    assert_eq!(mounts, []);
    assert!(notes[0].contains("no provider for ionic (libionic-rdmav*.so)"), "{notes:?}");
    other.node.hcas[0].driver = crate::inventory::Driver("../x".into());
    assert_eq!(other.mounts(&policy), (vec![], vec![]));
}

#[test]
fn c79_a_hole_writes_nothing_and_takes_nothing_away() {
    let mut machine = Machine::new(1);
    machine.node.hcas[0].uverbs = None;
    let error = machine.keep().unwrap_err().to_string();
    assert!(error.contains("mlx5_0 has no uverbs device"), "{error}");
    assert!(!path(&machine.roots).exists());

    let mut machine = Machine::new(1);
    machine.keep().unwrap();
    let before = fs::read(path(&machine.roots)).unwrap();
    machine.plug(1);
    machine.node.hcas[1].uverbs.as_mut().unwrap().mode = None;
    let error = machine.keep().unwrap_err();
    assert!(matches!(error, KeepError::Hole { .. }), "{error}");
    assert_eq!(fs::read(path(&machine.roots)).unwrap(), before);
}

#[test]
fn the_file_appears_whole_and_for_everybody() {
    let machine = Machine::new(1);
    machine.keep().unwrap();
    let path = path(&machine.roots);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
    let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(names.len(), 1);
    let spec: Spec = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(spec.kind, "rdma-ctk.io/hca");
}

#[test]
fn duplicates_with_other_files_are_found() {
    let machine = Machine::new(1);
    let twin = "kind: rdma-ctk.io/hca\ncdiVersion: 0.5.0\ndevices:\n- name: mlx5_0\n  \
                containerEdits:\n    deviceNodes:\n    - path: /dev/infiniband/uverbs0\n";
    machine.other("etc/cdi/copy.yaml", twin);
    let kept = machine.keep().unwrap();
    assert_eq!(kept.done, Done::Written(3));
    assert!(
        kept.notes[0].ends_with(
            "/etc/cdi/copy.yaml defines rdma-ctk.io/hca=mlx5_0 too; the file in /var/run/cdi wins"
        ),
        "{:?}",
        kept.notes
    );
    // In the same folder engines would drop both.
    let twin = machine.other("run/cdi/copy.yaml", twin);
    let error = machine.keep().unwrap_err();
    assert!(matches!(&error, KeepError::Duplicate { other, .. } if *other == twin), "{error}");
    assert_eq!(
        machine.judge()[0],
        "/run/cdi/copy.yaml defines rdma-ctk.io/hca=mlx5_0 too, in the same folder: engines drop \
         both"
    );
}

#[test]
fn the_same_node_in_another_vendors_file_is_a_note() {
    let machine = Machine::new(1);
    machine.keep().unwrap();
    machine.other(
        "run/cdi/vendor.json",
        r#"{"cdiVersion": "0.6.0", "kind": "vendor.example/nic", "unknown": 1, "devices": [
            {"name": "a", "containerEdits": {"deviceNodes": [
                {"path": "/dev/x", "hostPath": "/dev/infiniband/uverbs0"}]}},
            {"name": "mlx5_0", "containerEdits": {"env": ["A=b"]}}]}"#,
    );
    machine.other("run/cdi/broken.json", "{");
    machine.other("run/cdi/readme.txt", "not read");
    let flaws = judge(&machine.roots, &machine.node, &Policy::default(), &path(&machine.roots));
    assert_eq!(flaws.len(), 1, "{flaws:?}");
    assert!(!flaws[0].is_wrong());
    assert!(flaws[0].to_string().contains("/dev/infiniband/uverbs0 as vendor.example/nic"));
    assert_eq!(others(&machine.roots, &path(&machine.roots)).unread.len(), 1);
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    let machine = Machine::new(1);
    machine.keep().unwrap();
    fs::remove_file(machine.roots.dev.join("infiniband/rdma_cm")).unwrap();
    assert_eq!(
        machine.judge(),
        ["/run/cdi/rdma-ctk.io-hca.json: names /dev/infiniband/rdma_cm, which is not there"]
    );
    machine.touch("rdma_cm");
    let good = fs::read_to_string(path(&machine.roots)).unwrap();
    for (from, to, expected) in [
        ("rdma-ctk.io/hca", "rdma-ctk.io/nic", "its kind is \"rdma-ctk.io/nic\""),
        ("0.5.0", "1.1.0", "its version is \"1.1.0\", and 0.5.0 has all that is in it"),
        ("\"rw\"", "\"rwm\"", "has the permissions \"rwm\", not rw"),
        ("\"all\"", "\"mlx5_0\"", "it has mlx5_0 twice"),
        ("\"all\"", "\"a/b\"", "\"a/b\" is no name of a device"),
        ("\"devices\"", "\"device\"", "no CDI file of ours: unknown field"),
    ] {
        fs::write(path(&machine.roots), good.replacen(from, to, 1)).unwrap();
        let flaws = machine.judge();
        assert!(flaws.iter().any(|flaw| flaw.contains(expected)), "{expected}: {flaws:?}");
    }
}
