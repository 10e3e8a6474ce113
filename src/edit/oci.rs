//! A grant, written into an OCI document (`config.json`), in place: what the grant does not name
//! stays as it was, in the order in which it was, whatever its version.
//!
//! The names are those of the runtime specification 1.3. An editor decides nothing: a member that
//! is there already is left or completed by what the grant says, never set twice.

use serde_json::{Map, Value, json};

use crate::grant::{DeviceNode, Grant, MemlockGrant};
use crate::request::MARKER;

/// A document whose shape does not allow the edit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OciEditError {
    /// A member is of another type than the specification gives it.
    #[error("{at} is no {expected} in the OCI document")]
    Type {
        /// JSON pointer.
        at: String,
        /// What it would have to be.
        expected: &'static str,
    },
    /// A member's name differs from the specification's only in case: the runtime would take it
    /// for that member.
    #[error("{at}/{found} in the OCI document differs from {expected} only in case")]
    Case {
        /// JSON pointer of the object.
        at: String,
        /// Name that was found.
        found: String,
        /// Name of the specification.
        expected: &'static str,
    },
}

/// What is put into a document beside the grant itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Paths on the host at which the grant's files were written, in their order.
    pub files: &'a [String],
    /// Hooks that go behind those that are there.
    pub hooks: &'a [Hook],
}

/// A hook of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Where in the container's life: `createRuntime`, `poststop`.
    pub stage: &'static str,
    /// The program, on the host.
    pub path: String,
    /// Its arguments, the first being its name.
    pub args: Vec<String>,
    /// Seconds after which the runtime gives up on it.
    pub timeout: u32,
}

/// How a file of the host appears in the container.
const BIND: [&str; 6] = ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"];

/// Writes `grant` into `document`, marks it with the grant's digest, and adds what goes with it.
///
/// # Errors
/// [`OciEditError`], with the document in an undefined state: it must not be written then.
pub fn apply(document: &mut Value, grant: &Grant, beside: Beside<'_>) -> Result<(), OciEditError> {
    annotations(Object::root(document)?, &grant.digest())?;
    process(Object::root(document)?, grant)?;
    mounts(Object::root(document)?, grant, beside.files)?;
    hooks(Object::root(document)?, beside.hooks)?;
    sysctls(Object::root(document)?, grant)?;
    linux(Object::root(document)?, grant)
}

/// Completes the document of an exec session: environment, limit and capabilities as its container
/// has them. `limits` are all limits of the container, for a session that names none: a runtime
/// takes either the session's or the container's, never some of each.
///
/// # Errors
/// As [`apply`].
pub fn apply_process(
    process: &mut Value,
    grant: &Grant,
    limits: &[Value],
) -> Result<(), OciEditError> {
    let mut session = Object::root(process)?;
    if grant.memlock.is_some() {
        let (own, _) = session.list("rlimits")?;
        if own.is_empty() {
            own.extend_from_slice(limits);
        }
    }
    edit_process(session, grant)
}

/// A member of `object` whose name is `member` but for its case.
pub fn differs_in_case<'a>(object: &'a Map<String, Value>, member: &str) -> Option<&'a str> {
    object.keys().map(String::as_str).find(|found| *found != member && is_folded(found, member))
}

/// Whether a reader in Go takes that name for `member`, which is ASCII (`encoding/json`, `foldName`):
/// Unicode folds two letters beyond ASCII into it, the long s and the kelvin sign.
fn is_folded(name: &str, member: &str) -> bool {
    if name.is_ascii() {
        return name.eq_ignore_ascii_case(member);
    }
    let folded = name.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    });
    folded.eq(member.chars().map(|letter| letter.to_ascii_lowercase()))
}

fn annotations(mut root: Object<'_>, digest: &str) -> Result<(), OciEditError> {
    root.object("annotations")?.set(MARKER, digest.into());
    Ok(())
}

fn process(mut root: Object<'_>, grant: &Grant) -> Result<(), OciEditError> {
    if grant.env.is_empty() && grant.memlock.is_none() && grant.capabilities.is_empty() {
        return Ok(());
    }
    edit_process(root.object("process")?, grant)
}

fn edit_process(mut process: Object<'_>, grant: &Grant) -> Result<(), OciEditError> {
    if !grant.env.is_empty() {
        let (env, at) = process.list("env")?;
        for variable in &grant.env {
            let prefix = format!("{}=", variable.name);
            let granted = format!("{prefix}{}", variable.value);
            let mut present = false;
            for entry in env.iter_mut() {
                let Some(text) = entry.as_str() else {
                    return Err(OciEditError::Type { at, expected: "list of strings" });
                };
                if text.starts_with(&prefix) {
                    present = true;
                    if extends(&granted, text) {
                        *entry = granted.as_str().into();
                    }
                }
            }
            if !present {
                env.push(granted.into());
            }
        }
    }
    if let Some(memlock) = grant.memlock {
        limit(process.list("rlimits")?.0, memlock);
    }
    if !grant.capabilities.is_empty() {
        capabilities(process, grant)?;
    }
    Ok(())
}

/// Whether the grant has the list that is there with more behind it. Nothing is taken from who set
/// that variable; of the loader's an empty one is an empty list.
fn extends(granted: &str, present: &str) -> bool {
    let more = granted.strip_prefix(present);
    more.is_some_and(|more| more.starts_with(':') || present == "LD_PRELOAD=")
}

/// One entry for locked memory, where the first one was: the specification forbids two of a type.
/// Nothing that is there is lowered; of several entries the last one counts.
fn limit(rlimits: &mut Vec<Value>, memlock: MemlockGrant) {
    let is_memlock =
        |entry: &Value| entry.get("type").and_then(Value::as_str) == Some("RLIMIT_MEMLOCK");
    let Some(first) = rlimits.iter().position(is_memlock) else {
        let (hard, soft) = (memlock.hard(), memlock.bytes);
        rlimits.push(json!({ "type": "RLIMIT_MEMLOCK", "hard": hard, "soft": soft }));
        return;
    };
    let last = rlimits.iter().rfind(|entry| is_memlock(entry));
    let present = |name: &str| last.and_then(|entry| entry.get(name)?.as_u64()).unwrap_or(0);
    let (hard, soft) = (present("hard").max(memlock.hard()), present("soft").max(memlock.bytes));
    rlimits[first]["hard"] = hard.into();
    rlimits[first]["soft"] = soft.into();
    let mut index = 0;
    rlimits.retain(|entry| {
        index += 1;
        index - 1 <= first || !is_memlock(entry)
    });
}

/// For a process that is not root a capability lasts through execve only when it is inheritable
/// and ambient too (capabilities(7)).
fn capabilities(mut process: Object<'_>, grant: &Grant) -> Result<(), OciEditError> {
    let uid = process.value.get("user").and_then(|user| user.get("uid")).and_then(Value::as_u64);
    let sets: &[&'static str] = if uid.unwrap_or(0) == 0 {
        &["bounding", "effective", "permitted"]
    } else {
        &["bounding", "effective", "permitted", "inheritable", "ambient"]
    };
    let mut members = process.object("capabilities")?;
    for set in sets {
        let (list, _) = members.list(set)?;
        for capability in &grant.capabilities {
            let name = format!("CAP_{capability}");
            if !list.iter().any(|present| present.as_str() == Some(&name)) {
                list.push(name.into());
            }
        }
    }
    Ok(())
}

fn mounts(mut root: Object<'_>, grant: &Grant, files: &[String]) -> Result<(), OciEditError> {
    let written = grant.files.iter().zip(files).map(|(file, source)| (source, &file.path, false));
    let named = grant.mounts.iter().map(|m| (&m.source, &m.destination, m.executable));
    for (source, destination, executable) in written.chain(named) {
        let options: Vec<&str> =
            BIND.into_iter().filter(|option| *option != "noexec" || !executable).collect();
        root.list("mounts")?.0.push(json!({
            "destination": destination,
            "type": "bind",
            "source": source,
            "options": options,
        }));
    }
    Ok(())
}

fn hooks(mut root: Object<'_>, ours: &[Hook]) -> Result<(), OciEditError> {
    for hook in ours {
        root.object("hooks")?.list(hook.stage)?.0.push(json!({
            "path": hook.path,
            "args": hook.args,
            "timeout": hook.timeout,
        }));
    }
    Ok(())
}

fn linux(mut root: Object<'_>, grant: &Grant) -> Result<(), OciEditError> {
    if grant.devices.is_empty()
        && grant.cpus.is_none()
        && grant.mems.is_none()
        && grant.unified.is_empty()
    {
        return Ok(());
    }
    let mut linux = root.object("linux")?;
    let nodes: Vec<&DeviceNode> = grant.devices.iter().filter(|node| !node.rule_only).collect();
    if !nodes.is_empty() {
        let (devices, _) = linux.list("devices")?;
        for node in nodes {
            let path = |entry: &Value| {
                entry.get("path").and_then(Value::as_str) == Some(node.path.as_str())
            };
            if !devices.iter().any(path) {
                devices.push(json!({
                    "path": node.path,
                    "type": "c",
                    "major": node.major,
                    "minor": node.minor,
                    "fileMode": node.mode,
                    "uid": 0,
                    "gid": 0,
                }));
            }
        }
    }
    let mut resources = linux.object("resources")?;
    if !grant.devices.is_empty() {
        let (rules, _) = resources.list("devices")?;
        // The last rule that matches counts, so these go behind what denies everything.
        for node in &grant.devices {
            rules.push(json!({
                "allow": true,
                "type": "c",
                "major": node.major,
                "minor": node.minor,
                "access": "rw",
            }));
        }
    }
    if grant.cpus.is_some() || grant.mems.is_some() {
        let mut cpu = resources.object("cpu")?;
        for (name, set) in [("cpus", &grant.cpus), ("mems", &grant.mems)] {
            if let Some(set) = set {
                cpu.set(name, set.to_string().into());
            }
        }
    }
    if !grant.unified.is_empty() {
        let mut unified = resources.object("unified")?;
        for (name, value) in &grant.unified {
            unified.set(name, value.as_str().into());
        }
    }
    Ok(())
}

/// Sysctls of the container's network namespace, which the runtime sets.
fn sysctls(mut root: Object<'_>, grant: &Grant) -> Result<(), OciEditError> {
    let granted = grant.smc.iter().filter(|smc| smc.by_runtime).flat_map(|smc| &smc.sysctls);
    for (name, value) in granted {
        root.object("linux")?.object("sysctl")?.set(name, value.as_str().into());
    }
    Ok(())
}

/// An object of the document and where it stands.
struct Object<'a> {
    value: &'a mut Map<String, Value>,
    at: String,
}

impl<'a> Object<'a> {
    fn root(document: &'a mut Value) -> Result<Self, OciEditError> {
        Self::of(document, String::new())
    }

    fn of(value: &'a mut Value, at: String) -> Result<Self, OciEditError> {
        match value {
            Value::Object(value) => Ok(Self { value, at }),
            _ => Err(OciEditError::Type { at, expected: "object" }),
        }
    }

    /// The member by that name, made as `empty` where it is absent or null. `null` stands for
    /// absent in Go's writers.
    fn member(
        &mut self,
        name: &'static str,
        empty: Value,
    ) -> Result<(&mut Value, String), OciEditError> {
        if let Some(found) = differs_in_case(self.value, name) {
            return Err(OciEditError::Case {
                at: self.at.clone(),
                found: found.to_owned(),
                expected: name,
            });
        }
        let member = self.value.entry(name).or_insert(Value::Null);
        if member.is_null() {
            *member = empty;
        }
        Ok((member, format!("{}/{name}", self.at)))
    }

    fn object(&mut self, name: &'static str) -> Result<Object<'_>, OciEditError> {
        let (member, at) = self.member(name, Value::Object(Map::new()))?;
        Object::of(member, at)
    }

    fn list(&mut self, name: &'static str) -> Result<(&mut Vec<Value>, String), OciEditError> {
        match self.member(name, Value::Array(Vec::new()))? {
            (Value::Array(list), at) => Ok((list, at)),
            (_, at) => Err(OciEditError::Type { at, expected: "list" }),
        }
    }

    fn set(&mut self, name: &str, value: Value) {
        self.value.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::{GrantedMount, MemlockGrant, SmcGrant, Variable};
    use crate::request::SmcMethod;

    fn grant() -> Grant {
        Grant {
            devices: vec![
                DeviceNode {
                    path: "/dev/infiniband/uverbs40".into(),
                    major: 511,
                    minor: 8,
                    mode: 0o666,
                    rule_only: false,
                },
                DeviceNode {
                    path: "/dev/infiniband/rdma_cm".into(),
                    major: 10,
                    minor: 260,
                    mode: 0o666,
                    rule_only: true,
                },
            ],
            memlock: Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }),
            capabilities: vec!["IPC_LOCK".into()],
            cpus: Some("2-3".parse().unwrap()),
            env: vec![
                Variable { name: "NCCL_IB_HCA".into(), value: "=mlx5_0:1".into() },
                Variable { name: "PATH".into(), value: "never".into() },
            ],
            mounts: vec![GrantedMount {
                source: "/t.xml".into(),
                destination: "/t.xml".into(),
                executable: false,
            }],
            unified: vec![("rdma.max".into(), "mlx5_0 hca_handle=2".into())],
            ..Grant::default()
        }
    }

    fn edited(document: Value) -> Value {
        let mut document = document;
        apply(&mut document, &grant(), Beside::default()).unwrap();
        document
    }

    #[test]
    fn names_are_folded_as_go_folds_them() {
        for (name, member, expected) in [
            ("Env", "env", true),
            ("ENV", "env", true),
            ("envs", "env", false),
            ("acce\u{17f}\u{17f}", "access", true),
            ("memloc\u{212a}", "memlock", true),
            ("MEMLOC\u{212a}", "memlock", true),
            ("memloc\u{3ba}", "memlock", false),
            ("acce\u{df}", "access", false),
            ("acce\u{17f}", "access", false),
        ] {
            assert_eq!(is_folded(name, member), expected, "{name} {member}");
        }
    }

    #[test]
    fn an_empty_document_gets_what_the_grant_names() {
        let document = edited(json!({}));
        assert_eq!(document["process"]["env"], json!(["NCCL_IB_HCA==mlx5_0:1", "PATH=never"]));
        assert_eq!(document["process"]["rlimits"][0]["hard"], json!(u64::MAX));
        assert_eq!(document["linux"]["devices"].as_array().unwrap().len(), 1);
        assert_eq!(document["linux"]["resources"]["devices"][1]["minor"], json!(260));
        assert_eq!(document["linux"]["resources"]["cpu"]["cpus"], json!("2-3"));
        assert_eq!(document["linux"]["resources"]["unified"]["rdma.max"], "mlx5_0 hca_handle=2");
        assert_eq!(document["annotations"][MARKER], json!(grant().digest()));
    }

    #[test]
    fn sysctls_are_the_runtimes_and_a_list_is_extended() {
        let mut grant = Grant {
            env: vec![Variable { name: "LD_PRELOAD".into(), value: "/a.so:/lib.so".into() }],
            smc: Some(SmcGrant {
                method: SmcMethod::Preload,
                eid: None,
                pnet: Vec::new(),
                sysctls: vec![("net.smc.wmem".into(), "262144".into())],
                by_runtime: true,
                mptcp: false,
                later: false,
            }),
            ..Grant::default()
        };
        for (before, after) in [
            ("LD_PRELOAD=/a.so", "LD_PRELOAD=/a.so:/lib.so"),
            ("LD_PRELOAD=", "LD_PRELOAD=/a.so:/lib.so"),
            // Set by somebody since: theirs.
            ("LD_PRELOAD=/b.so", "LD_PRELOAD=/b.so"),
            ("LD_PRELOAD=/a", "LD_PRELOAD=/a"),
        ] {
            let mut document =
                json!({ "process": { "env": [before] }, "linux": { "sysctl": null } });
            apply(&mut document, &grant, Beside::default()).unwrap();
            assert_eq!(document["process"]["env"], json!([after]), "{before}");
            assert_eq!(document["linux"], json!({ "sysctl": { "net.smc.wmem": "262144" } }));
        }
        if let Some(smc) = &mut grant.smc {
            smc.by_runtime = false;
        }
        let mut document = json!({});
        apply(&mut document, &grant, Beside::default()).unwrap();
        assert!(document.get("linux").is_none(), "{document}");
    }

    #[test]
    fn what_is_there_is_completed_and_never_set_twice() {
        let document = edited(json!({
            "process": {
                "user": { "uid": 1000 },
                "env": ["PATH=/bin"],
                "capabilities": { "bounding": ["CAP_IPC_LOCK", "CAP_X"], "ambient": null },
                "rlimits": [
                    { "type": "RLIMIT_NOFILE", "hard": 1, "soft": 1 },
                    { "type": "RLIMIT_MEMLOCK", "hard": 1, "soft": 1, "new": true },
                    { "type": "RLIMIT_MEMLOCK", "hard": 2, "soft": 2 },
                ],
            },
            "linux": { "devices": [{ "path": "/dev/infiniband/uverbs40", "major": 511 }] },
        }));
        let process = &document["process"];
        assert_eq!(process["env"], json!(["PATH=/bin", "NCCL_IB_HCA==mlx5_0:1"]));
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_IPC_LOCK", "CAP_X"]));
        assert_eq!(process["capabilities"]["ambient"], json!(["CAP_IPC_LOCK"]));
        assert_eq!(process["rlimits"].as_array().unwrap().len(), 2);
        assert_eq!(process["rlimits"][1]["new"], json!(true));
        assert_eq!(document["linux"]["devices"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_document_of_another_shape_is_refused_with_the_place() {
        for (document, expected) in [
            (json!([]), " is no object in the OCI document"),
            (json!({ "process": { "env": "A=B" } }), "/process/env is no list in the OCI document"),
            (
                json!({ "process": { "env": [1] } }),
                "/process/env is no list of strings in the OCI document",
            ),
            (json!({ "linux": [] }), "/linux is no object in the OCI document"),
            (
                json!({ "Process": {} }),
                "/Process in the OCI document differs from process only in case",
            ),
        ] {
            let mut document = document;
            let error = apply(&mut document, &grant(), Beside::default()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
