//! What an OCI document says of a container, as the request wants it.
//!
//! Who the container's pod is, is told by annotations that the engine sets itself, after those which
//! it hands on from the pod: containerd's by names of its own, CRI-O's by others. Outside Kubernetes
//! they are the user's, and not looked at. A tenant can write the names of the engine that is not
//! there, so a document with both kinds names nobody.
//!
//! Neither engine writes the pod's runtime handler or its labels into the documents of containers.
//! (`io.containerd.cri.runtime-handler` is the pod's own annotation, which containerd reads.)

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::engine::Engine;
use crate::edit::oci::differs_in_case;
use crate::inventory::CpuSet;
use crate::request::{Container, Device, Limit, Mount, Pod, Unknown};

/// Names by which one engine tells whose a container is.
struct Names {
    uid: &'static str,
    pod: &'static str,
    namespace: &'static str,
    container: &'static str,
    kind: &'static str,
}

/// containerd's CRI (`pkg/cri/annotations`).
const CONTAINERD: Names = Names {
    uid: "io.kubernetes.cri.sandbox-uid",
    pod: "io.kubernetes.cri.sandbox-name",
    namespace: "io.kubernetes.cri.sandbox-namespace",
    container: "io.kubernetes.cri.container-name",
    kind: "io.kubernetes.cri.container-type",
};

/// CRI-O, which writes the kubelet's labels into the document (`pkg/annotations`).
const CRIO: Names = Names {
    uid: "io.kubernetes.pod.uid",
    pod: "io.kubernetes.pod.name",
    namespace: "io.kubernetes.pod.namespace",
    container: "io.kubernetes.container.name",
    kind: "io.kubernetes.cri-o.ContainerType",
};

/// The kubelet's labels as CRI-O writes them last, in one JSON text.
const CRIO_LABELS: &str = "io.kubernetes.cri-o.Labels";
/// nerdctl's name for a container.
const NERDCTL_NAME: &str = "nerdctl/name";
/// The annotation by which containers carry CDI names.
const CDI: &str = "cdi.k8s.io/";
/// Members that are read, by the objects that they are in; `*` for every item of a list.
const MEMBERS: [(&str, &[&str]); 14] = [
    ("", &["annotations", "hooks", "linux", "mounts", "process", "root"]),
    ("/hooks", &["createRuntime", "poststop"]),
    ("/linux", &["cgroupsPath", "devices", "namespaces", "resources", "sysctl"]),
    ("/linux/devices/*", &["major", "minor", "path", "type"]),
    ("/linux/namespaces/*", &["path", "type"]),
    ("/linux/resources", &["cpu", "devices", "unified"]),
    ("/linux/resources/cpu", &["cpus", "mems", "period", "quota", "shares"]),
    ("/linux/resources/devices/*", &["access", "allow", "major", "minor", "type"]),
    ("/mounts/*", &["destination", "options", "source", "type"]),
    ("/process", &["args", "capabilities", "env", "rlimits", "user"]),
    ("/process/capabilities", &["ambient", "bounding", "effective", "inheritable", "permitted"]),
    ("/process/rlimits/*", &["hard", "soft", "type"]),
    ("/process/user", &["uid"]),
    ("/root", &["path", "readonly"]),
];

/// The document's annotations; members that are no strings are left out.
pub fn annotations(document: &Value) -> BTreeMap<String, String> {
    told(document).map(|(key, value)| (key.clone(), value.to_owned())).collect()
}

/// The same where a look is enough: large pods have hundreds, which take time to copy and to sort.
pub fn told(document: &Value) -> impl Iterator<Item = (&String, &str)> {
    let members = document.get("annotations").and_then(Value::as_object);
    members.into_iter().flatten().filter_map(|(key, value)| Some((key, value.as_str()?)))
}

/// One of the document's annotations; `None` too where it is no string.
pub fn annotation<'a>(document: &'a Value, key: &str) -> Option<&'a str> {
    document.get("annotations")?.get(key)?.as_str()
}

/// The member, as a JSON pointer, whose name differs from one that is read here only in case: a
/// runtime in Go would read it, and other readers not. `None`: there is none.
pub fn ambiguous(document: &Value) -> Option<String> {
    let differs = |value: &Value, members: &[&str]| {
        let object = value.as_object()?;
        let found = members.iter().find_map(|member| differs_in_case(object, member));
        found.map(str::to_owned)
    };
    MEMBERS.iter().find_map(|(at, members)| match at.strip_suffix("/*") {
        None => Some(format!("{at}/{}", differs(document.pointer(at)?, members)?)),
        Some(at) => list(document.pointer(at)?)
            .enumerate()
            .find_map(|(item, value)| Some(format!("{at}/{item}/{}", differs(value, members)?))),
    })
}

/// Whether the document is that of a pod's sandbox, which runs no program of the tenant. Only the
/// word of the engine that made it counts: the value of its annotation, as `annotation` has it.
pub fn is_sandbox<'a>(
    engine: Engine,
    annotation: impl FnOnce(&'static str) -> Option<&'a str>,
) -> bool {
    let names = match engine {
        Engine::Containerd => &CONTAINERD,
        Engine::Crio => &CRIO,
        Engine::Other => return false,
    };
    annotation(names.kind) == Some("sandbox")
}

/// Where a container's network is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// It is the host's.
    Host,
    /// A namespace under this path.
    Own(PathBuf),
    /// One that the runtime makes, and that the engine fills afterwards.
    Later,
}

/// Where the container's network is.
pub fn network(document: &Value) -> Network {
    let namespace = list(&document["linux"]["namespaces"]).find(|ns| ns["type"] == "network");
    match namespace.map(|namespace| namespace["path"].as_str().unwrap_or_default()) {
        None => Network::Host,
        Some("") => Network::Later,
        Some(path) => Network::Own(path.into()),
    }
}

/// What is known of a container beside its document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beside<'a> {
    /// Its identifier.
    pub id: &'a str,
    /// Locked-memory limit of the process that starts it, soft, in bytes.
    pub inherited: Option<u64>,
    /// Who made the document.
    pub engine: Engine,
    /// We ourselves are in a user namespace, and so will the container be.
    pub user_namespace: bool,
    /// It carries a grant already.
    pub granted_before: bool,
}

/// Somebody else's word for who the container is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the container has annotations of two engines ({0} and {1}): whose it is cannot be told; take \
     those out of the pod that it sets itself"
)]
pub struct TwoEngines(&'static str, &'static str);

/// Reads a container out of a document.
///
/// # Errors
/// Two engines say whose it is.
pub fn read(
    document: &Value,
    annotations: &BTreeMap<String, String>,
    beside: &Beside<'_>,
) -> Result<Container, TwoEngines> {
    let process = &document["process"];
    let linux = &document["linux"];
    let namespaces: Vec<&Value> = list(&linux["namespaces"]).collect();
    let namespace = |kind: &str| namespaces.iter().any(|ns| ns["type"] == kind);
    let cpu = &linux["resources"]["cpu"];
    let set = |name: &str| {
        cpu[name].as_str().filter(|set| !set.is_empty()).and_then(|set| set.parse::<CpuSet>().ok())
    };
    let (name, pod) = whose(annotations, beside)?;
    Ok(Container {
        id: beside.id.to_owned(),
        name,
        pod: Pod { host_network: !namespace("network"), ..pod },
        uid: process["user"]["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok()),
        user_namespace: beside.user_namespace || namespace("user"),
        args: list(&process["args"]).filter_map(Value::as_str).map(str::to_owned).collect(),
        env: list(&process["env"])
            .filter_map(Value::as_str)
            .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        mounts: list(&document["mounts"]).map(mount).collect(),
        devices: list(&linux["devices"]).filter_map(device).collect(),
        all_devices: allows_everything(&linux["resources"]["devices"]),
        capabilities: process["capabilities"]["bounding"].as_array().map(|set| {
            set.iter()
                .filter_map(Value::as_str)
                .map(|name| name.strip_prefix("CAP_").unwrap_or(name).to_owned())
                .collect::<BTreeSet<_>>()
        }),
        memlock: list(&process["rlimits"])
            .rfind(|entry| entry["type"] == "RLIMIT_MEMLOCK")
            .and_then(|entry| entry["soft"].as_u64())
            .map_or(Limit::Inherited(beside.inherited), Limit::Own),
        memlock_hard: list(&process["rlimits"])
            .rfind(|entry| entry["type"] == "RLIMIT_MEMLOCK")
            .and_then(|entry| entry["hard"].as_u64()),
        cpus: set("cpus"),
        mems: set("mems"),
        cpu_limit_milli: cpu_limit(cpu),
        cpu_shares: cpu["shares"].as_u64(),
        cdi: cdi(annotations),
        granted_before: beside.granted_before,
        ..Container::default()
    })
}

/// The container's name and its pod; outside Kubernetes it is its own pod.
fn whose(
    annotations: &BTreeMap<String, String>,
    beside: &Beside<'_>,
) -> Result<(String, Pod), TwoEngines> {
    let has =
        |keys: &[&'static str]| keys.iter().find(|key| annotations.contains_key(**key)).copied();
    let theirs = |names: &Names| has(&[names.kind, names.namespace]);
    let labels: BTreeMap<String, String>;
    let (names, told, other) = match beside.engine {
        // nerdctl can be told to make its containers where those of Kubernetes are.
        Engine::Containerd if !annotations.contains_key(CONTAINERD.kind) => {
            return Ok(own_pod(annotations, beside));
        }
        Engine::Containerd => {
            (&CONTAINERD, annotations, theirs(&CRIO).or_else(|| has(&[NERDCTL_NAME])))
        }
        Engine::Crio => {
            // The same names as annotations may be the pod's own.
            let text = annotations.get(CRIO_LABELS).map_or("{}", String::as_str);
            labels = serde_json::from_str(text).unwrap_or_default();
            (&CRIO, &labels, theirs(&CONTAINERD))
        }
        Engine::Other => return Ok(own_pod(annotations, beside)),
    };
    if let Some(other) = other {
        return Err(TwoEngines(names.kind, other));
    }
    let named = |key: &str| told.get(key).cloned();
    let own = || beside.id.to_owned();
    let pod = Pod {
        uid: named(names.uid).unwrap_or_else(own),
        name: named(names.pod).unwrap_or_else(own),
        namespace: named(names.namespace).unwrap_or_default(),
        unknown: Unknown { runtime_handler: true, labels: true },
        ..Pod::default()
    };
    Ok((named(names.container).unwrap_or_else(own), pod))
}

/// A container that is its own pod: it has no namespace and no runtime handler, and labels that are
/// not in its document.
fn own_pod(annotations: &BTreeMap<String, String>, beside: &Beside<'_>) -> (String, Pod) {
    let own = || beside.id.to_owned();
    let pod = Pod {
        uid: own(),
        name: own(),
        unknown: Unknown { runtime_handler: false, labels: true },
        ..Pod::default()
    };
    (annotations.get(NERDCTL_NAME).cloned().unwrap_or_else(own), pod)
}

fn cdi(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let values = annotations.iter().filter(|(key, _)| key.starts_with(CDI));
    let names = values.flat_map(|(_, names)| names.split(',')).map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn list(value: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn mount(entry: &Value) -> Mount {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let bind = list(&entry["options"]).any(|option| option == "bind" || option == "rbind");
    Mount {
        destination: text("destination"),
        source: text("source"),
        kind: if bind { "bind".to_owned() } else { text("type") },
    }
}

fn device(entry: &Value) -> Option<Device> {
    let number = |name: &str| entry[name].as_u64().and_then(|number| u32::try_from(number).ok());
    Some(Device {
        path: entry["path"].as_str()?.to_owned(),
        major: number("major")?,
        minor: number("minor")?,
    })
}

/// The last rule that speaks of every device of every kind decides; the kernel's default is no.
fn allows_everything(rules: &Value) -> bool {
    list(rules)
        .rfind(|rule| {
            let any = |name: &str| rule.get(name).is_none_or(|v| v.is_null() || v == -1);
            let every_kind =
                rule.get("type").is_none_or(|kind| kind.is_null() || kind == "" || kind == "a");
            every_kind && any("major") && any("minor")
        })
        .is_some_and(|rule| rule["allow"] == true)
}

/// Quota over period in thousandths of a CPU.
fn cpu_limit(cpu: &Value) -> Option<u64> {
    let quota = cpu["quota"].as_u64().filter(|quota| *quota > 0)?;
    let period = cpu["period"].as_u64().filter(|period| *period > 0).unwrap_or(100_000);
    quota.checked_mul(1000).map(|milli| milli / period)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made_by(engine: Engine, document: &Value) -> Result<Container, TwoEngines> {
        let beside = Beside { id: "c1", inherited: Some(8 << 20), engine, ..Beside::default() };
        read(document, &annotations(document), &beside)
    }

    fn container(document: Value) -> Container {
        made_by(Engine::Containerd, &document).unwrap()
    }

    #[test]
    fn an_empty_document_is_a_plain_container_on_the_hosts_network() {
        let container = container(json!({}));
        assert_eq!((container.name.as_str(), container.pod.uid.as_str()), ("c1", "c1"));
        assert_eq!(container.pod.unknown, Unknown { runtime_handler: false, labels: true });
        assert!(container.pod.host_network && !container.all_devices && !container.granted_before);
        assert_eq!(container.memlock, Limit::Inherited(Some(8 << 20)));
    }

    #[test]
    fn a_containerd_document_names_its_pod() {
        let container = container(json!({
            "annotations": {
                "io.kubernetes.cri.container-name": "trainer",
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-uid": "u",
                "io.kubernetes.cri.sandbox-name": "p",
                "io.kubernetes.cri.sandbox-namespace": "ml",
                "cdi.k8s.io/x": "nvidia.com/gpu=0, nvidia.com/gpu=1",
            },
            "process": {
                "user": { "uid": 1000 },
                "env": ["A=b=c", "D"],
                "rlimits": [{ "type": "RLIMIT_MEMLOCK", "soft": 1, "hard": 2 }],
                "capabilities": { "bounding": ["CAP_IPC_LOCK"] },
            },
            "mounts": [
                { "destination": "/dev/infiniband", "source": "/dev/infiniband", "options": ["rbind"] },
            ],
            "linux": {
                "namespaces": [{ "type": "network" }, { "type": "user" }],
                "devices": [
                    { "path": "/dev/infiniband/uverbs0", "major": 231, "minor": 192 },
                    { "path": 1 },
                ],
                "resources": {
                    "cpu": { "cpus": "0-3", "quota": 150000, "period": 100000, "shares": 1024 },
                },
            },
        }));
        assert_eq!(container.name, "trainer");
        assert_eq!(container.pod.namespace, "ml");
        assert_eq!(container.pod.unknown, Unknown { runtime_handler: true, labels: true });
        assert!(!container.pod.host_network && container.user_namespace);
        assert_eq!(container.env, [("A".into(), "b=c".into()), ("D".into(), String::new())]);
        assert_eq!(container.memlock, Limit::Own(1));
        assert_eq!(container.capabilities.unwrap().len(), 1);
        assert_eq!(container.mounts[0].kind, "bind");
        assert_eq!(container.devices.len(), 1);
        assert_eq!(container.cpu_limit_milli, Some(1500));
        assert_eq!(container.cdi, ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]);
    }

    #[test]
    fn a_tenant_cannot_name_another_namespace() {
        let labels = r#"{"io.kubernetes.pod.namespace":"mine","io.kubernetes.container.name":"c"}"#;
        // CRI-O hands every annotation of a pod on.
        let crio = json!({ "annotations": {
            "io.kubernetes.cri-o.ContainerType": "container",
            "io.kubernetes.cri-o.Labels": labels,
            "io.kubernetes.pod.namespace": "admins",
        }});
        let found = made_by(Engine::Crio, &crio).unwrap();
        assert_eq!((found.pod.namespace.as_str(), found.name.as_str()), ("mine", "c"));
        // Without its word there is nobody's.
        let bare = json!({ "annotations": { "io.kubernetes.pod.namespace": "admins" } });
        assert_eq!(made_by(Engine::Crio, &bare).unwrap().pod.namespace, "");
        let both = json!({ "annotations": {
            "io.kubernetes.cri-o.ContainerType": "container",
            "io.kubernetes.cri-o.Labels": labels,
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-namespace": "admins",
        }});
        for engine in [Engine::Crio, Engine::Containerd] {
            let error = made_by(engine, &both).unwrap_err();
            assert!(error.to_string().contains("annotations of two engines"), "{error}");
        }
    }

    #[test]
    fn outside_kubernetes_nobody_names_a_namespace() {
        let mut annotations = json!({
            "io.kubernetes.cri.sandbox-namespace": "admins",
            "io.kubernetes.cri.container-name": "istio-proxy",
            "io.kubernetes.pod.namespace": "admins",
            "io.kubernetes.cri-o.Labels": r#"{"io.kubernetes.pod.namespace":"admins"}"#,
            "io.containerd.cri.runtime-handler": "rdma",
        });
        let plain = |annotations: &Value, engine| {
            let found = made_by(engine, &json!({ "annotations": annotations })).unwrap();
            assert_eq!((found.pod.namespace.as_str(), found.pod.uid.as_str()), ("", "c1"));
            assert_eq!(found.pod.runtime_handler, "");
            found.name
        };
        // nerdctl in the namespace of Kubernetes, too.
        for engine in [Engine::Other, Engine::Containerd] {
            assert_eq!(plain(&annotations, engine), "c1", "{engine:?}");
        }
        annotations["nerdctl/name"] = "n".into();
        assert_eq!(plain(&annotations, Engine::Containerd), "n");
        annotations["io.kubernetes.cri.container-type"] = "container".into();
        assert_eq!(plain(&annotations, Engine::Other), "n");
        let both = |annotations: &Value| {
            let document = json!({ "annotations": annotations });
            made_by(Engine::Containerd, &document).unwrap_err().to_string()
        };
        assert!(both(&annotations).contains("io.kubernetes.pod.namespace"));
        annotations.as_object_mut().unwrap().remove("io.kubernetes.pod.namespace");
        assert!(both(&annotations).contains("nerdctl/name"));
    }

    #[test]
    fn sandboxes_are_known_by_the_word_of_their_own_engine() {
        let (containerd, crio) =
            ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType");
        for (engine, key, value, expected) in [
            (Engine::Containerd, containerd, "sandbox", true),
            (Engine::Crio, crio, "sandbox", true),
            (Engine::Containerd, containerd, "container", false),
            (Engine::Containerd, "devices.rdma-ctk.io", "sandbox", false),
            (Engine::Containerd, crio, "sandbox", false),
            (Engine::Crio, containerd, "sandbox", false),
            (Engine::Other, containerd, "sandbox", false),
            (Engine::Other, crio, "sandbox", false),
        ] {
            let document = json!({ "annotations": { (key): value } });
            let found = is_sandbox(engine, |name| annotation(&document, name));
            assert_eq!(found, expected, "{engine:?} {key}={value}");
        }
    }

    #[test]
    fn the_network_is_the_hosts_a_paths_or_made_later() {
        for (namespaces, expected) in [
            (json!([]), Network::Host),
            (json!([{ "type": "pid" }]), Network::Host),
            (json!([{ "type": "network" }]), Network::Later),
            (json!([{ "type": "network", "path": "" }]), Network::Later),
            (
                json!([{ "type": "network", "path": "/proc/7/ns/net" }]),
                Network::Own("/proc/7/ns/net".into()),
            ),
        ] {
            let document = json!({ "linux": { "namespaces": namespaces } });
            assert_eq!(network(&document), expected, "{namespaces}");
        }
    }

    #[test]
    fn names_that_only_a_go_program_would_know_are_found() {
        for (document, found) in [
            (json!({ "annotations": {}, "process": { "env": [] } }), None),
            (json!({ "Annotations": {} }), Some("/Annotations")),
            (json!({ "process": { "RLIMITS": [] } }), Some("/process/RLIMITS")),
            (
                json!({ "linux": { "resources": { "Devices": [] } } }),
                Some("/linux/resources/Devices"),
            ),
            (json!({ "annotations": { "Process": "x" } }), None),
            // Unicode folds two letters into ASCII, and Go does so with names.
            (json!({ "annotation\u{17f}": {} }), Some("/annotation\u{17f}")),
            (json!({ "annotation\u{df}": {} }), None),
            (json!({ "process": { "User": {} } }), Some("/process/User")),
            (json!({ "process": { "user": { "UID": 1 } } }), Some("/process/user/UID")),
            (json!({ "root": { "Path": "x" } }), Some("/root/Path")),
            (
                json!({ "linux": { "namespaces": [{ "type": "pid" }, { "Type": "network" }] } }),
                Some("/linux/namespaces/1/Type"),
            ),
            (
                json!({ "linux": { "resources": { "cpu": { "CPUs": "0" } } } }),
                Some("/linux/resources/cpu/CPUs"),
            ),
            (json!({ "mounts": [{ "\u{17f}ource": "/" }] }), Some("/mounts/0/\u{17f}ource")),
            (json!({ "process": { "rlimits": [{ "Soft": 1 }] } }), Some("/process/rlimits/0/Soft")),
            (json!({ "mounts": { "Source": "/" }, "linux": [], "root": null }), None),
            (json!([]), None),
        ] {
            assert_eq!(ambiguous(&document).as_deref(), found, "{document}");
        }
    }

    #[test]
    fn only_a_last_rule_for_everything_makes_a_container_privileged() {
        for (rules, expected) in [
            (json!(null), false),
            (json!([{ "allow": false, "access": "rwm" }]), false),
            (json!([{ "allow": false }, { "allow": true, "access": "rwm" }]), true),
            (json!([{ "allow": true, "type": "a", "major": -1, "minor": -1 }]), true),
            (json!([{ "allow": true }, { "allow": false }]), false),
            (json!([{ "allow": true, "type": "c", "access": "m" }]), false),
            (json!([{ "allow": true, "type": "c", "major": 1, "minor": 3 }]), false),
        ] {
            assert_eq!(allows_everything(&rules), expected, "{rules}");
        }
    }
}
