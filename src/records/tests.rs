use std::os::unix::fs::MetadataExt;

use super::*;

fn store() -> (tempfile::TempDir, Roots, Store) {
    let folder = tempfile::tempdir().unwrap();
    let roots = Roots::below(folder.path());
    let store = Store::new(&roots);
    store.prepare().unwrap();
    (folder, roots, store)
}

fn record(id: &str, verdict: Verdict) -> Record {
    let pod = PodName {
        namespace: "ml".into(),
        name: "train-0".into(),
        uid: "4711".into(),
        sandbox: "box".into(),
    };
    Record {
        id: id.into(),
        name: "worker".into(),
        pod,
        runtime: "containerd 2.1.9 (NRI 0.8.0)".into(),
        at: 1_764_500_000,
        verdict,
    }
}

#[test]
fn what_is_written_is_read_back_and_can_be_removed() {
    let (_folder, roots, store) = store();
    let granted = record("b2", Verdict::Granted { grant: Box::default() });
    let refused = record("a1", Verdict::Refused { sentence: "no mlx5_9".into() });
    store.write(&granted).unwrap();
    store.write(&refused).unwrap();
    let pod = PodRecord {
        pod: granted.pod.clone(),
        at: 1,
        unmatched: vec!["k".into()],
        mishaps: Vec::new(),
    };
    store.write_pod(&pod).unwrap();

    let all = read_all(&roots);
    assert_eq!(all.containers, [refused, granted.clone()]);
    assert_eq!(all.pods, [pod]);
    assert_eq!(all.daemon, None);
    assert!(all.unreadable.is_empty(), "{:?}", all.unreadable);
    assert_eq!(store.read("b2").unwrap(), Some(granted));

    store.remove("a1").unwrap();
    store.remove("a1").unwrap();
    store.remove_pod("box").unwrap();
    let left = store.identifiers();
    assert_eq!((left.containers, left.pods), (vec!["b2".to_owned()], Vec::new()));
}

#[test]
fn nothing_on_record_is_an_empty_answer() {
    let folder = tempfile::tempdir().unwrap();
    let all = read_all(&Roots::below(folder.path()));
    assert!(all.containers.is_empty() && all.pods.is_empty() && all.unreadable.is_empty());
}

#[test]
fn a_broken_file_is_named_and_hides_no_other() {
    let (_folder, roots, store) = store();
    store.write(&record("a1", Verdict::Left { sentence: "wrapper".into() })).unwrap();
    fs::write(roots.run.join("rdma-ctk/containers/b2.json"), "{").unwrap();
    let all = read_all(&roots);
    assert_eq!(all.containers.len(), 1);
    let [error] = &all.unreadable[..] else { panic!("{:?}", all.unreadable) };
    assert!(error.to_string().contains("b2.json is no record"), "{error}");
}

#[test]
fn writers_of_one_record_at_once_leave_a_whole_one() {
    let (_folder, roots, store) = store();
    let written: Vec<Record> = (0..4_usize)
        .map(|writer| record("a1", Verdict::Refused { sentence: "x".repeat(1 + 20_000 * writer) }))
        .collect();
    store.write(&written[0]).unwrap();
    std::thread::scope(|scope| {
        for record in &written {
            scope.spawn(|| {
                for _ in 0..50 {
                    store.write(record).unwrap();
                    assert!(written.contains(&store.read("a1").unwrap().unwrap()));
                }
            });
        }
    });
    let folder = roots.run.join("rdma-ctk/containers");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // What cannot be put in place does not stay beside it either.
    fs::create_dir(folder.join("b2.json")).unwrap();
    store.write(&record("b2", Verdict::Left { sentence: "wrapper".into() })).unwrap_err();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn an_identifier_never_becomes_a_path() {
    let (_folder, _, store) = store();
    for id in ["", ".", "..", "../x", "a/b", "a b", "ä", "a\0", &"x".repeat(201)] {
        let error = store.write(&record(id, Verdict::Left { sentence: String::new() }));
        assert!(matches!(error, Err(RecordError::Identifier(_))), "{id:?}");
        assert!(matches!(store.remove(id), Err(RecordError::Identifier(_))), "{id:?}");
        let file = GrantedFile { path: "/etc/nccl.conf".into(), content: String::new() };
        assert!(store.write_file(id, &file).is_err(), "{id:?}");
    }
}

#[test]
fn a_bound_file_keeps_its_identity_and_loses_its_old_tail() {
    let (_folder, _, store) = store();
    let file =
        |content: &str| GrantedFile { path: "/etc/nccl.conf".into(), content: content.into() };
    let path = store.write_file("a1", &file("NCCL_IB_GID_INDEX=3\n")).unwrap();
    let before = fs::metadata(&path).unwrap();
    assert_eq!(before.permissions().mode() & 0o777, 0o444);
    let folder = fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o755);

    store.write_file("a1", &file("A=1\n")).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(before.ino(), after.ino());
    assert_eq!(fs::read_to_string(&path).unwrap(), "A=1\n");

    store.remove("a1").unwrap();
    assert!(!path.parent().unwrap().exists());
}
