//! Containers as a runtime would show them, made from a manifest before anything runs.
//!
//! What the kubelet and the runtime add later (another plugin's devices, CPUs of the static CPU
//! manager, variables from ConfigMaps) is not in a manifest; each such thing is noted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::nri::proto::{
    Container, LinuxContainer, LinuxCpu, LinuxDeviceCgroup, LinuxNamespace, LinuxPodSandbox,
    LinuxResources, Mount, OptionalInt64, OptionalUInt64, PodSandbox, User,
};

/// Period of a CPU quota, in microseconds: the kubelet's.
const PERIOD: u64 = 100_000;

/// Deepest nesting of lists and templates that is followed.
const DEEPEST: usize = 8;

/// One container to explain.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// Its pod.
    pub sandbox: PodSandbox,
    /// Itself.
    pub container: Container,
    /// Names of all containers of the pod.
    pub siblings: Vec<String>,
    /// What had to be assumed or left out.
    pub notes: Vec<String>,
}

/// Why a manifest is none.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// No YAML.
    #[error("{0}")]
    Yaml(String),
    /// A document that is no such object.
    #[error("document {document} is no {kind}: {error}")]
    Shape {
        /// Which, from 1.
        document: usize,
        /// What it claims to be.
        kind: String,
        /// What does not fit.
        error: serde_json::Error,
    },
    /// An annotation that the API server would not take.
    #[error("annotation {key} is {value}, which YAML takes for no text: put it in quotes")]
    Annotation {
        /// Key.
        key: String,
        /// Value as JSON.
        value: Value,
    },
    /// Nothing to explain.
    #[error("it holds no pod, and nothing that makes pods")]
    NoPod,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    generate_name: String,
    namespace: String,
    uid: String,
    annotations: BTreeMap<String, Value>,
    labels: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    runtime_class_name: Option<String>,
    host_network: bool,
    #[serde(rename = "hostUsers")]
    host_users: Option<bool>,
    security_context: SecurityContext,
    init_containers: Vec<Entry>,
    containers: Vec<Entry>,
    ephemeral_containers: Vec<Entry>,
    volumes: Vec<Volume>,
    resource_claims: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SecurityContext {
    run_as_user: Option<u32>,
    privileged: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    name: String,
    command: Vec<String>,
    args: Vec<String>,
    env: Vec<Variable>,
    env_from: Vec<Value>,
    security_context: SecurityContext,
    resources: Resources,
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variable {
    name: String,
    value: Option<String>,
    value_from: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: BTreeMap<String, Value>,
    requests: BTreeMap<String, Value>,
    claims: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    name: String,
    host_path: Option<HostPath>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HostPath {
    path: String,
}

/// Every container, init and ephemeral ones too, of the pods in `text`: pods themselves, lists, and
/// what makes pods by a template.
///
/// # Errors
/// It is no YAML, holds no pod, or a pod that the API server would not take.
pub fn subjects(text: &str) -> Result<Vec<Subject>, ManifestError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError::Yaml(first_line(&error.to_string())))?;
    let mut subjects = Vec::new();
    for (at, mut document) in documents.into_iter().enumerate() {
        drop_nulls(&mut document);
        collect(&document, at + 1, DEEPEST, &mut subjects)?;
    }
    if subjects.is_empty() { Err(ManifestError::NoPod) } else { Ok(subjects) }
}

/// A container of which nothing is known but its name.
pub fn bare(name: &str) -> Subject {
    let mut pod = Pod::default();
    "pod".clone_into(&mut pod.metadata.name);
    // Without annotations there is nothing that could be wrong with it.
    let sandbox = sandbox(&pod).unwrap_or_default();
    subject(&pod, &sandbox, &Entry { name: name.to_owned(), ..Entry::default() })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The API server takes `key: null` for no key.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn collect(
    document: &Value,
    number: usize,
    depth: usize,
    subjects: &mut Vec<Subject>,
) -> Result<(), ManifestError> {
    let kind = document["kind"].as_str().unwrap_or("object");
    if kind == "List" && depth > 0 {
        for item in document["items"].as_array().into_iter().flatten() {
            collect(item, number, depth - 1, subjects)?;
        }
        return Ok(());
    }
    let spec = &document["spec"];
    let template = match kind {
        "Pod" => Some(document),
        "CronJob" => Some(&spec["jobTemplate"]["spec"]["template"]),
        _ => Some(&spec["template"]).filter(|template| template.is_object()),
    };
    let Some(template) = template else { return Ok(()) };
    let mut pod: Pod = serde_json::from_value(template.clone())
        .map_err(|error| ManifestError::Shape { document: number, kind: kind.to_owned(), error })?;
    let outer = |key: &str| document["metadata"][key].as_str().unwrap_or_default().to_owned();
    if pod.metadata.name.is_empty() {
        pod.metadata.name = pod.metadata.generate_name.clone();
    }
    for (own, key) in [(&mut pod.metadata.name, "name"), (&mut pod.metadata.namespace, "namespace")]
    {
        if own.is_empty() {
            *own = outer(key);
        }
    }
    subjects.extend(of_pod(&pod)?);
    Ok(())
}

fn of_pod(pod: &Pod) -> Result<Vec<Subject>, ManifestError> {
    let sandbox = sandbox(pod)?;
    let spec = &pod.spec;
    let all = spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers);
    let mut subjects: Vec<Subject> = all.map(|entry| subject(pod, &sandbox, entry)).collect();
    let names: Vec<String> = subjects.iter().map(|s| s.container.name.clone()).collect();
    for subject in &mut subjects {
        subject.siblings.clone_from(&names);
    }
    Ok(subjects)
}

fn sandbox(pod: &Pod) -> Result<PodSandbox, ManifestError> {
    let Pod { metadata, spec } = pod;
    let mut annotations = BTreeMap::new();
    for (key, value) in &metadata.annotations {
        let Some(text) = value.as_str() else {
            return Err(ManifestError::Annotation { key: key.clone(), value: value.clone() });
        };
        annotations.insert(key.clone(), text.to_owned());
    }
    let namespace = if metadata.namespace.is_empty() { "default" } else { &metadata.namespace };
    let labels = metadata.labels.iter();
    Ok(PodSandbox {
        id: "explained".to_owned(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        namespace: namespace.to_owned(),
        labels: labels
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
        annotations,
        runtime_handler: spec.runtime_class_name.clone().unwrap_or_default(),
        linux: Some(LinuxPodSandbox {
            namespaces: namespaces(spec.host_network, spec.host_users == Some(false)),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    })
}

/// Namespaces of a pod's own, as a runtime lists them.
pub fn namespaces(host_network: bool, own_users: bool) -> Vec<LinuxNamespace> {
    let own =
        |kind: &str| LinuxNamespace { r#type: kind.to_owned(), path: format!("/proc/0/ns/{kind}") };
    let mut namespaces = Vec::new();
    if !host_network {
        namespaces.push(own("network"));
    }
    if own_users {
        namespaces.push(own("user"));
    }
    namespaces
}

fn subject(pod: &Pod, sandbox: &PodSandbox, entry: &Entry) -> Subject {
    let mut notes = Vec::new();
    if let Some(class) = &pod.spec.runtime_class_name {
        notes.push(format!(
            "runtime class {class} is taken to have a handler of that name (--runtime-handler)"
        ));
    }
    for variable in entry.env.iter().filter(|variable| variable.value_from.is_some()) {
        notes.push(format!("the value of variable {} is not in the manifest", variable.name));
    }
    if !entry.env_from.is_empty() {
        notes.push("variables of envFrom are not in the manifest".to_owned());
    }
    for name in entry.resources.limits.keys().filter(|name| name.contains('/')) {
        notes.push(format!("what another plugin gives for {name} is known on the node only"));
    }
    if !entry.resources.claims.is_empty() || !pod.spec.resource_claims.is_empty() {
        notes.push("what resource claims give is known on the node only".to_owned());
    }
    let uid = entry.security_context.run_as_user.or(pod.spec.security_context.run_as_user);
    let container = Container {
        id: format!("explained-{}", entry.name),
        name: entry.name.clone(),
        args: entry.command.iter().chain(&entry.args).cloned().collect(),
        env: entry
            .env
            .iter()
            .map(|v| format!("{}={}", v.name, v.value.as_deref().unwrap_or_default()))
            .collect(),
        mounts: entry.volume_mounts.iter().map(|mount| of_volume(pod, mount)).collect(),
        user: uid.map(|uid| User { uid, ..User::default() }),
        linux: Some(LinuxContainer {
            resources: Some(resources(&entry.resources, entry.security_context.privileged)),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    };
    let siblings = vec![entry.name.clone()];
    Subject { sandbox: sandbox.clone(), container, siblings, notes }
}

fn of_volume(pod: &Pod, mount: &VolumeMount) -> Mount {
    let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name);
    let source = volume
        .and_then(|volume| volume.host_path.as_ref())
        .map_or_else(|| format!("volume:{}", mount.name), |path| path.path.clone());
    Mount {
        destination: mount.mount_path.clone(),
        r#type: "bind".to_owned(),
        source,
        options: vec!["rbind".to_owned()],
    }
}

fn resources(resources: &Resources, privileged: bool) -> LinuxResources {
    let milli = |of: &BTreeMap<String, Value>| of.get("cpu").and_then(milli);
    let limit = milli(&resources.limits);
    let request = milli(&resources.requests).or(limit);
    let cpu = LinuxCpu {
        shares: request.map(|milli| OptionalUInt64 { value: (milli * 1024 / 1000).max(2) }),
        quota: limit.map(|milli| OptionalInt64 {
            value: i64::try_from(milli * PERIOD / 1000).unwrap_or(i64::MAX),
        }),
        period: limit.map(|_| OptionalUInt64 { value: PERIOD }),
        ..LinuxCpu::default()
    };
    LinuxResources {
        cpu: Some(cpu),
        devices: if privileged {
            vec![LinuxDeviceCgroup {
                allow: true,
                access: "rwm".to_owned(),
                ..LinuxDeviceCgroup::default()
            }]
        } else {
            Vec::new()
        },
        ..LinuxResources::default()
    }
}

/// Thousandths of a CPU in a Kubernetes quantity: `2`, `1.5`, `500m`.
fn milli(value: &Value) -> Option<u64> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let (number, scale) = match text.strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (text.as_str(), 1000.0),
    };
    let milli = number.parse::<f64>().ok()? * scale;
    // More CPUs than any machine has are no quantity; below, the conversion is exact enough.
    if !(0.0..=1e9).contains(&milli) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just bounded")]
    Some(milli.ceil() as u64)
}
