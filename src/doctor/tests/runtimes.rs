//! Runtimes, and the daemon.

use super::*;
use crate::daemon::records::{DaemonState, PodName, PodRecord, Record, RuntimeState, Verdict};

fn session(name: &str, version: &str) -> Records {
    let runtime = RuntimeState {
        name: name.into(),
        version: version.into(),
        nri: String::new(),
        request_timeout_ms: 2000,
        registration_timeout_ms: 5000,
    };
    let daemon = DaemonState {
        pid: 900,
        version: "0.1.0".into(),
        runtime: Some(runtime),
        connected: true,
        since: 0,
        metrics: Some("127.0.0.1:9471".parse().unwrap()),
    };
    Records { daemon: Some(daemon), ..Records::default() }
}

#[test]
fn c66_nri_that_is_off_is_told_by_what_switched_it_off() {
    let nri = "[plugins.'io.containerd.nri.v1.nri']\n";
    for (version, config, level, text) in [
        (
            "1.7.24",
            "version = 2\n".to_owned(),
            Level::Fail,
            "NRI is disabled in containerd 1.7.24 by default: set disable=false under \
             io.containerd.nri.v1.nri",
        ),
        ("2.1.9", "version = 3\n".to_owned(), Level::Ok, "NRI is on in containerd 2.1.9"),
        (
            "2.1.9",
            format!("version = 3\n{nri}disable = true\n"),
            Level::Fail,
            "NRI is switched off in containerd 2.1.9: disable = true in ",
        ),
        (
            "2.1.9",
            format!("version = 3\n{nri}disable_connections = true\n"),
            Level::Fail,
            "takes no NRI plugin from outside: connections are disabled",
        ),
    ] {
        let folder = tree(&[("etc/containerd/config.toml", &config)]);
        let findings =
            look("nri", folder.path(), &Node::default(), &session("containerd", version));
        assert_eq!(findings[0].level, level, "{findings:?}");
        assert!(findings[0].sentence.contains(text), "{findings:?}");
    }
}

#[test]
fn c66_a_missing_socket_is_told_only_of_a_runtime_that_runs() {
    let files =
        [("etc/containerd/config.toml", "version = 3\n"), ("proc/812/comm", "containerd\n")];
    let folder = tree(&files);
    let findings = look("nri", folder.path(), &Node::default(), &session("containerd", "2.1.9"));
    assert_eq!(findings[0].level, Level::Fail);
    assert!(findings[0].sentence.contains("/var/run/nri/nri.sock is not there"), "{findings:?}");
    fs::create_dir_all(folder.path().join("run/nri")).unwrap();
    fs::write(folder.path().join("run/nri/nri.sock"), "").unwrap();
    let findings = look("nri", folder.path(), &Node::default(), &session("containerd", "2.1.9"));
    assert_eq!(findings[0].level, Level::Ok);
}

#[test]
fn a_version_that_nobody_told_is_not_guessed() {
    let folder = tree(&[("etc/containerd/config.toml", "version = 2\n")]);
    let findings = look("nri", folder.path(), &Node::default(), &Records::default());
    assert_eq!(findings[0].level, Level::Warn);
    // The program tells it, with what its vendor appended.
    let (roots, node) = (Roots::below(folder.path()), Node::default());
    let (records, door) = (Records::default(), Door(Errno::EIO, None));
    let context = Context { roots: &roots, node: &node, records: &records, live: Some(&door) };
    let findings = runtime::nri(&context).unwrap();
    assert_eq!(findings[0].level, Level::Fail);
    assert!(findings[0].sentence.contains("containerd 1.7.24~ds1"), "{findings:?}");
}

#[test]
fn two_runtimes_on_one_socket_are_told() {
    let folder = tree(&[
        ("etc/containerd/config.toml", "version = 3\n"),
        ("etc/crio/crio.conf", "[crio.nri]\nenable_nri = true\n"),
        ("proc/812/comm", "containerd\n"),
        ("proc/813/comm", "crio\n"),
    ]);
    let findings = look("nri", folder.path(), &Node::default(), &session("containerd", "2.1.9"));
    let shared: Vec<_> = findings.iter().filter(|f| f.sentence.contains("share")).collect();
    assert_eq!(shared.len(), 1, "{findings:?}");
}

#[test]
fn settings_in_the_wrong_table_have_no_effect() {
    let folder =
        tree(&[("etc/containerd/config.toml", "version = 3\nplugin_request_timeout = '10s'\n")]);
    let records = session("containerd", "2.1.9");
    let findings = look("nri", folder.path(), &Node::default(), &records);
    assert!(findings[1].sentence.starts_with("plugin_request_timeout in "), "{findings:?}");
    assert!(findings[1].sentence.ends_with("has no effect there"), "{findings:?}");
    let findings = look("timeouts", folder.path(), &Node::default(), &records);
    assert_eq!(
        findings[0].sentence,
        "containerd 2.1.9 waits 2 s for an answer (as it told the daemon) and 5 s for a \
         registration"
    );
}

#[test]
fn timeouts_that_hold_are_told_from_those_in_files() {
    let config =
        "version = 3\n[plugins.'io.containerd.nri.v1.nri']\nplugin_request_timeout = '10s'\n";
    let folder = tree(&[("etc/containerd/config.toml", config)]);
    let findings =
        look("timeouts", folder.path(), &Node::default(), &session("containerd", "2.1.9"));
    assert_eq!(findings[0].level, Level::Warn);
    assert!(findings[0].sentence.contains("says 10 s"), "{findings:?}");
    let config = config.replace("10s", "500ms");
    let folder = tree(&[("etc/containerd/config.toml", &config)]);
    let findings = look("timeouts", folder.path(), &Node::default(), &Records::default());
    assert!(findings[0].sentence.contains("too short"), "{findings:?}");
}

#[test]
fn c61_a_validator_that_does_not_require_us_is_told() {
    let table = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n";
    for (version, config, level, text) in [
        ("2.1.9", String::new(), Level::Warn, "cannot require a plugin"),
        ("2.3.1", String::new(), Level::Warn, "is off"),
        ("2.3.1", format!("{table}enable = true\n"), Level::Warn, "does not require rdma-ctk"),
        (
            "2.3.1",
            format!("{table}enable = true\nrequired_plugins = ['10-rdma-ctk']\n"),
            Level::Ok,
            "refuses containers while rdma-ctk is away",
        ),
    ] {
        let folder = tree(&[("etc/containerd/config.toml", &format!("version = 3\n{config}"))]);
        let findings =
            look("validator", folder.path(), &Node::default(), &session("containerd", version));
        assert_eq!(findings[0].level, level, "{findings:?}");
        assert!(findings[0].sentence.contains(text), "{findings:?}");
    }
}

#[test]
fn a_version_is_told_with_what_it_lacks() {
    for (name, version, level, text) in [
        ("containerd", "1.7.3", Level::Fail, "resource limits through NRI need containerd 1.7.7"),
        ("containerd", "2.1.9", Level::Ok, "required plugins need containerd 2.2"),
        ("containerd", "2.3.1", Level::Ok, "carries all that a grant needs"),
    ] {
        let folder = tree(&[("etc/containerd/config.toml", "version = 2\n")]);
        let findings = look("runtime", folder.path(), &Node::default(), &session(name, version));
        assert_eq!(findings[0].level, level, "{findings:?}");
        assert!(findings[0].sentence.contains(text), "{findings:?}");
    }
}

#[test]
fn a_daemon_is_told_by_its_process_and_its_session() {
    let folder = tree(&[("proc/900/comm", "10-rdma-ctk\n")]);
    let mut records = session("containerd", "2.1.9");
    let findings = look("daemon", folder.path(), &Node::default(), &records);
    assert_eq!(findings[0].level, Level::Ok);
    let findings = look("daemon", Path::new("/nowhere"), &Node::default(), &records);
    assert!(findings[0].sentence.contains("is gone"), "{findings:?}");
    records.daemon.as_mut().unwrap().connected = false;
    let findings = look("daemon", folder.path(), &Node::default(), &records);
    assert!(findings[0].sentence.contains("has not been connected"), "{findings:?}");
}

#[test]
fn c61_what_slipped_through_is_named() {
    let mut records = session("containerd", "2.1.9");
    let pod = PodName { namespace: "ml".into(), name: "train-0".into(), ..PodName::default() };
    records.containers.push(Record {
        id: "abc".into(),
        name: "trainer".into(),
        pod: pod.clone(),
        runtime: "containerd 2.1.9 (NRI 0.8.0)".into(),
        at: 0,
        verdict: Verdict::Slipped { sentence: "started without RDMA".into() },
    });
    let unmatched = vec!["devices.rdma-ctk.io/container.trianer".to_owned()];
    records.pods.push(PodRecord { pod, at: 0, unmatched, mishaps: Vec::new() });
    let findings = look("slipped", Path::new("/nowhere"), &Node::default(), &records);
    assert_eq!(
        sentences(&findings),
        [
            "ml/train-0 container trainer: started without RDMA",
            "ml/train-0: devices.rdma-ctk.io/container.trianer names no container of the pod",
        ]
    );
    assert_eq!(findings[0].level, Level::Fail);
}

#[test]
fn c63_a_daemon_that_is_not_told_of_containers_is_noticed() {
    let config = "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/config.json";
    let cri = r#"{"annotations": {"io.kubernetes.cri.container-name": "app"}}"#;
    let folder = tree(&[(config, cri)]);
    let made = fs::metadata(folder.path().join(config)).unwrap().modified().unwrap();
    let made = made.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let look = |metrics: Option<String>| {
        let (roots, node) = (Roots::below(folder.path()), Node::default());
        let records = session("containerd", "2.1.9");
        let door = Door(Errno::EIO, metrics);
        let context = Context { roots: &roots, node: &node, records: &records, live: Some(&door) };
        daemon::told(&context)
    };
    let gauge = |seconds: u64| {
        Some(format!(
            "HTTP/1.0 200 OK\r\n\r\nrdma_ctk_nri_last_event_timestamp_seconds {seconds}\n"
        ))
    };
    assert_eq!(look(gauge(made - 5)).unwrap()[0].level, Level::Ok);
    let finding = look(gauge(made - 600)).unwrap().remove(0);
    assert_eq!(finding.level, Level::Warn);
    assert!(finding.sentence.starts_with("containers appear that rdma-ctk is not told of"));
    assert!(look(gauge(0)).is_err() && look(None).is_err());
}

#[test]
fn a_policy_that_cannot_be_used_is_told_with_its_place() {
    let folder = tree(&[("etc/rdma-ctk/config.toml", "nonsense = 1\n")]);
    let findings = look("policy", folder.path(), &Node::default(), &Records::default());
    assert_eq!(findings[0].level, Level::Fail);
    assert!(findings[0].sentence.contains("line 1, column 1: "), "{findings:?}");
    let findings = look("policy", Path::new("/nowhere"), &Node::default(), &Records::default());
    assert_eq!(findings, [Finding::ok("no policy file: the default holds")]);
}
