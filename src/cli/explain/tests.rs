//! Manifests, and what is made of them.

use super::manifest::subjects;
use super::*;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: train
  namespace: ml
  annotations:
    devices.rdma-ctk.io: all
  labels:
    app: train
spec:
  runtimeClassName: rdma
  hostUsers: false
  securityContext:
    runAsUser: 1000
  initContainers:
  - name: fetch
    command: [sh, -c]
    args: [wget]
  containers:
  - name: trainer
    env:
    - name: NCCL_DEBUG
      value: INFO
    - name: TOKEN
      valueFrom: {secretKeyRef: {name: s, key: k}}
    - name: EMPTY
    envFrom: [{configMapRef: {name: c}}]
    resources:
      limits: {cpu: 1500m, memory: 1Gi, rdma/hca: 1}
      requests: {cpu: 1}
    volumeMounts:
    - {name: dev, mountPath: /dev/infiniband}
    - {name: scratch, mountPath: /scratch}
  - name: root
    securityContext: {privileged: true, runAsUser: 0}
    volumeMounts: null
  volumes:
  - name: dev
    hostPath: {path: /dev/infiniband}
  - name: scratch
    emptyDir: {}
";

#[test]
fn a_pod_has_all_its_containers() {
    let subjects = subjects(POD).unwrap();
    let names: Vec<_> = subjects.iter().map(|s| s.container.name.as_str()).collect();
    assert_eq!(names, ["fetch", "trainer", "root"]);
    for subject in &subjects {
        assert_eq!(subject.sandbox.namespace, "ml");
        assert_eq!(subject.sandbox.runtime_handler, "rdma");
        assert_eq!(subject.sandbox.annotations["devices.rdma-ctk.io"], "all");
    }
    assert_eq!(subjects[0].container.args, ["sh", "-c", "wget"]);
}

#[test]
fn a_container_is_as_a_runtime_would_show_it() {
    let subjects = subjects(POD).unwrap();
    let runtime = Runtime::detect("containerd", "2.3.0", "");
    let seen = |at: usize| {
        let Subject { sandbox, container, .. } = &subjects[at];
        container::container(sandbox, container, &runtime, RuntimeLimits::default())
    };
    let trainer = seen(1);
    assert_eq!(trainer.uid, Some(1000));
    assert!(trainer.user_namespace && !trainer.pod.host_network && !trainer.all_devices);
    assert_eq!(trainer.cpu_limit_milli, Some(1500));
    assert_eq!(trainer.cpu_shares, Some(1024));
    assert_eq!(trainer.env[0], ("NCCL_DEBUG".to_owned(), "INFO".to_owned()));
    assert_eq!(trainer.env[2], ("EMPTY".to_owned(), String::new()));
    assert_eq!(trainer.mounts[0].source, "/dev/infiniband");
    assert_eq!(trainer.mounts[1].source, "volume:scratch");
    let root = seen(2);
    assert!(root.all_devices);
    assert_eq!(root.uid, Some(0));
}

#[test]
fn what_a_manifest_does_not_hold_is_noted() {
    let notes = subjects(POD).unwrap().remove(1).notes.join("\n");
    for part in ["runtime class rdma", "variable TOKEN", "envFrom", "gives for rdma/hca"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn what_makes_pods_is_understood() {
    let template = "metadata: {annotations: {a: b}}\nspec: {containers: [{name: c}]}";
    let indented = template.replace('\n', "\n      ");
    for (text, name) in [
        (
            format!(
                "kind: Deployment\nmetadata: {{name: d, namespace: ns}}\nspec:\n  template:\n      {indented}\n"
            ),
            "d",
        ),
        (
            "kind: CronJob\nmetadata: {name: d, namespace: ns}\nspec: {jobTemplate: {spec: {template: \
             {spec: {containers: [{name: c}]}}}}}\n"
                .to_owned(),
            "d",
        ),
        (
            "kind: List\nitems:\n- kind: Pod\n  metadata: {generateName: d-, namespace: ns}\n  spec: \
             {containers: [{name: c}]}\n- kind: Service\n"
                .to_owned(),
            "d-",
        ),
        (
            "kind: Service\nspec: {}\n---\nkind: Pod\nmetadata: {name: d, namespace: ns}\nspec: \
             {containers: [{name: c}]}\n"
                .to_owned(),
            "d",
        ),
    ] {
        let subjects = subjects(&text).unwrap();
        assert_eq!(subjects.len(), 1, "{text}");
        assert_eq!(subjects[0].sandbox.name, name, "{text}");
        assert_eq!(subjects[0].sandbox.namespace, "ns", "{text}");
        assert_eq!(subjects[0].container.name, "c", "{text}");
    }
}

#[test]
fn what_the_api_server_would_refuse_is_refused_in_words() {
    let pod = |annotation: &str| {
        format!(
            "kind: Pod\nmetadata: {{annotations: {{{annotation}}}}}\nspec: {{containers: [{{name: c}}]}}\n"
        )
    };
    for (text, expected) in [
        (
            pod("devices.rdma-ctk.io: 2"),
            "annotation devices.rdma-ctk.io is 2, which YAML takes for no text: put it in quotes",
        ),
        ("kind: Service\n".to_owned(), "it holds no pod, and nothing that makes pods"),
        (String::new(), "it holds no pod, and nothing that makes pods"),
        ("kind: Pod\nspec: {containers: 3}\n".to_owned(), "document 1 is no Pod: "),
        ("a: [b".to_owned(), ""),
    ] {
        let error = subjects(&text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn arguments_are_checked() {
    assert_eq!(
        address("net1=10.0.0.5/24").unwrap(),
        PodAddress { interface: "net1".into(), address: "10.0.0.5".parse().unwrap(), length: 24 }
    );
    for text in ["10.0.0.5/24", "net1=10.0.0.5", "net1=10.0.0.5/33", "=10.0.0.5/24", "net1=x/24"] {
        assert!(address(text).is_err(), "{text}");
    }
    assert!(address("net1=fd00::1/64").is_ok());
    assert!(runtime("containerd 2.1.9").is_ok());
    for text in ["containerd", "docker 29.2", "containerd ", ""] {
        assert!(runtime(text).is_err(), "{text:?}");
    }
    assert!(pair("a=b=c").is_ok_and(|(_, value)| value == "b=c"));
    assert!(pair("=b").is_err() && pair("a").is_err());
}

/// A machine, with a bundle in it whose document is that.
fn bundle(document: &serde_json::Value) -> (tempfile::TempDir, Roots, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
    let tree = fixtures.join("erdma-iwarp.tree");
    crate::inventory::fixture::unpack(&tree, folder.path()).unwrap();
    // Where containerd has the bundles of Kubernetes.
    let bundle = folder.path().join("io.containerd.runtime.v2.task/k8s.io/c1");
    fs::create_dir_all(&bundle).unwrap();
    fs::write(bundle.join("config.json"), serde_json::to_vec(document).unwrap()).unwrap();
    let roots = Roots::below(folder.path());
    (folder, roots, bundle)
}

#[test]
fn a_bundle_is_explained_by_the_way_that_the_wrapper_goes() {
    let document = |annotations: &[(&str, &str)]| {
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        serde_json::json!({
            "annotations": annotations,
            "process": { "args": ["app"], "user": { "uid": 1000 } },
            "linux": { "namespaces": [{ "type": "network" }] },
        })
    };
    let all = ("devices.rdma-ctk.io", "all");
    let rawio = ("capabilities.rdma-ctk.io", "SYS_RAWIO");
    let open =
        "[default]\nkeys = [\"devices\", \"capabilities\"]\ncapabilities = [\"SYS_RAWIO\"]\n";
    for (annotations, policy, by, part) in [
        (&[all, rawio][..], open, CarrierPath::Wrapper, "\"CAP_SYS_RAWIO\""),
        (&[all, rawio], open, CarrierPath::Hook, "\"CAP_SYS_RAWIO\""),
        (&[all, rawio], "", CarrierPath::Wrapper, "Refused("),
        (&[all], "", CarrierPath::Wrapper, "opens for SYS_RAWIO only, which no path but"),
        (&[], "", CarrierPath::Wrapper, "NotAsked"),
        (
            &[all, ("io.kubernetes.cri.container-type", "sandbox")],
            "",
            CarrierPath::Wrapper,
            "the sandbox of a pod",
        ),
    ] {
        let (_folder, roots, bundle) = bundle(&document(annotations));
        let policy = Policy::from_toml(policy).unwrap();
        for path in [bundle.clone(), bundle.join("config.json")] {
            let told = bundle::explain(&roots, &policy, &path, by).unwrap();
            let text = format!("{} {:?}", serde_json::to_string(&told).unwrap(), told.decision);
            assert!(text.contains(part), "{annotations:?} {policy:?}: {text}");
            let asks = annotations.first() == Some(&all);
            let granted = matches!(told.decision, Outcome::Granted(_));
            assert_eq!(granted, told.adjustment.is_some());
            assert!(!granted || asks && text.contains("/dev/infiniband/uverbs0"), "{text}");
        }
    }
}

#[test]
fn what_the_wrapper_refuses_to_read_is_not_explained() {
    let (_folder, roots, path) = bundle(&serde_json::json!({ "Process": {} }));
    let told = bundle::explain(&roots, &Policy::default(), &path, CarrierPath::Wrapper);
    let error = told.err().unwrap().to_string();
    assert!(error.contains("config.json") && error.contains("only in case"), "{error}");
}
