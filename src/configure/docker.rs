//! Registration with Docker: the wrapper among the runtimes of `daemon.json`, and CDI where Docker
//! has it and leaves it off.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::change::{Content, Plan};
use super::containerd::Version;
use super::json::{self, JsonError};
use super::record::{ApplyError, content, locate, replace};
use super::{NAME, WRAPPER};
use crate::roots::Roots;

/// Docker takes CDI devices, if told to.
const CDI: Version = Version(25, 0, 0);
/// It takes them unless told not to.
const CDI_ON: Version = Version(28, 2, 0);
/// Docker's own entry.
const RESERVED: &str = "runc";

/// `daemon.json` cannot be understood, or must not be changed by us.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// It is no JSON, or not of Docker's form.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: JsonError,
    },
    /// A member has a name in other letters, which Docker does not know.
    #[error("{}: the member {member:?} is {known:?} in other letters, and Docker refuses it; correct it first", path.display())]
    Case {
        /// The file.
        path: PathBuf,
        /// What stands there.
        member: String,
        /// What Docker knows.
        known: &'static str,
    },
    /// The name is Docker's own.
    #[error("the runtime name {RESERVED} is Docker's own; name another with --name")]
    Reserved,
    /// There is a runtime by that name that is none of ours.
    #[error("{}: the runtime {name} is another one ({what}); name another with --name", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// What it is.
        what: String,
    },
    /// It cannot be read.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// `daemon.json`, as Docker knows it.
    pub config: PathBuf,
    /// Docker's version; `None` where it is not known.
    pub version: Option<Version>,
    /// Name of the runtime.
    pub name: String,
    /// The wrapper.
    pub program: String,
    /// Make it the default.
    pub default: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: "/etc/docker/daemon.json".into(),
            version: None,
            name: NAME.to_owned(),
            program: WRAPPER.to_owned(),
            default: false,
        }
    }
}

/// What the Docker of this node says of its version; `None` where it cannot be asked.
pub fn installed_version() -> Option<Version> {
    let output = Command::new("dockerd").arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).parse().ok()
}

/// What has to change. Reads, and changes nothing.
///
/// # Errors
/// `daemon.json` cannot be understood, or must not be changed by us.
pub fn plan(roots: &Roots, options: &Options) -> Result<Plan, DockerError> {
    if options.name == RESERVED {
        return Err(DockerError::Reserved);
    }
    let path = locate(roots, &options.config);
    let text = read(&path)?;
    let failed = |source| DockerError::Json { path: path.clone(), source };
    let mut plan = Plan::default();
    let edited = edit(&text, options, &mut plan.notes).map_err(|problem| match problem {
        Problem::Json(source) => failed(source),
        Problem::Case(member, known) => DockerError::Case { path: path.clone(), member, known },
        Problem::Taken(what) => {
            DockerError::Taken { path: path.clone(), name: options.name.clone(), what }
        }
    })?;
    if edited != text {
        replace(&path, Some(Content::Text(edited)), &mut plan)?;
    }
    advise(options, &mut plan);
    Ok(plan)
}

/// The file's text, by way of a link too; empty where there is none.
fn read(path: &Path) -> Result<String, ApplyError> {
    let there = match content(path)? {
        Some(Content::Link(_)) => std::fs::canonicalize(path)
            .map_err(|source| ApplyError::Io { path: path.to_owned(), source })
            .and_then(|target| content(&target))?,
        there => there,
    };
    Ok(match there {
        Some(Content::Text(text)) => text,
        Some(Content::Link(_)) | None => String::new(),
    })
}

/// Why a text cannot be edited.
#[derive(Debug)]
enum Problem {
    Json(JsonError),
    /// A member, and how Docker writes it.
    Case(String, &'static str),
    /// What the runtime of that name is.
    Taken(String),
}

/// Text in, text out.
fn edit(text: &str, options: &Options, notes: &mut Vec<String>) -> Result<String, Problem> {
    let name = options.name.as_str();
    let mut text = text.to_owned();
    let now = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_default() };
    let old = now(&text);
    for known in ["runtimes", "default-runtime", "features"] {
        let slip = |member: &&String| *member != known && member.eq_ignore_ascii_case(known);
        if let Some(member) = old.as_object().and_then(|members| members.keys().find(slip)) {
            return Err(Problem::Case(member.clone(), known));
        }
    }
    // Docker's reader takes null for none.
    for null in ["runtimes", "features"] {
        if old.get(null).is_some_and(Value::is_null) {
            text = json::remove(&text, &[null]).map_err(Problem::Json)?;
        }
    }
    match &old["runtimes"][name] {
        Value::Null => {
            let entry = json!({"path": options.program});
            text = json::set(&text, &["runtimes", name], &entry).map_err(Problem::Json)?;
        }
        entry if entry["path"] == options.program.as_str() => {}
        entry if entry.get("runtimeType").is_some() => {
            return Err(Problem::Taken(format!("the shim {}", entry["runtimeType"])));
        }
        entry => return Err(Problem::Taken(entry["path"].to_string())),
    }
    if options.default && old["default-runtime"] != name {
        text = json::set(&text, &["default-runtime"], &json!(name)).map_err(Problem::Json)?;
    }
    let cdi = &old["features"]["cdi"];
    match options.version {
        Some(version) if version < CDI => notes.push(format!(
            "Docker {version} has no CDI (25 has): --device rdma-ctk.io/hca=NAME does not work"
        )),
        _ if *cdi == false => notes.push(
            "features.cdi is false, and stays: --device rdma-ctk.io/hca=NAME does not work".into(),
        ),
        Some(version) if version < CDI_ON && *cdi != true => {
            text = json::set(&text, &["features", "cdi"], &json!(true)).map_err(Problem::Json)?;
        }
        Some(_) => {}
        None if *cdi == true => {}
        None => notes.push(
            "Docker's version is not known, so CDI is left as it is: on from 28.2 on; name the \
             version with --docker-version"
                .into(),
        ),
    }
    Ok(text)
}

fn advise(options: &Options, plan: &mut Plan) {
    let note = if plan.files.is_empty() {
        format!("nothing to change: Docker has the runtime {}", options.name)
    } else {
        "reload Docker (`systemctl reload docker`), or restart it where features have changed"
            .to_owned()
    };
    plan.notes.push(note);
    if options.default {
        plan.notes.push("`docker build` does not go through the default runtime".into());
    }
}

/// What `daemon.json` has under a runtime's name: its program, and whether it is the default.
///
/// # Errors
/// The file cannot be read or is no JSON.
pub fn entry(roots: &Roots, name: &str) -> Result<Option<(String, bool)>, DockerError> {
    let path = locate(roots, &Options::default().config);
    let text = read(&path)?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    // A path of no members changes nothing, and is checked.
    json::set(&text, &[], &Value::Null)
        .map_err(|source| DockerError::Json { path: path.clone(), source })?;
    let now: Value = serde_json::from_str(&text).unwrap_or_default();
    let default = now["default-runtime"] == name;
    Ok(now["runtimes"][name]["path"].as_str().map(|program| (program.to_owned(), default)))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::tests::Fixture;
    use super::super::{Owner, apply};
    use super::*;

    const FILE: &str = "etc/docker/daemon.json";

    fn version(text: &str) -> Options {
        Options { version: text.parse().ok(), ..Options::default() }
    }

    fn diff(fixture: &Fixture, options: &Options) -> String {
        fixture.shown(&plan(&fixture.roots, options).unwrap())
    }

    #[test]
    fn a_node_without_a_file_gets_one() {
        let fixture = Fixture::new(&[]);
        assert_snapshot!(diff(&fixture, &version("29.7.2")));
        fixture.there_and_back(Owner::Docker, |roots| plan(roots, &version("29.7.2")).unwrap());
    }

    #[test]
    fn the_users_order_and_indentation_stay() {
        let text = "{\n    \"log-driver\": \"journald\",\n    \"features\": {\"buildkit\": true},\n    \
                    \"runtimes\": {\n        \"nvidia\": {\"path\": \"nvidia-container-runtime\", \
                    \"args\": []}\n    },\n    \"dns\": [\"10.0.0.1\",  \"10.0.0.2\"]\n}\n";
        let fixture = Fixture::new(&[(FILE, text)]);
        let options = Options { default: true, ..version("26.1.5+dfsg1") };
        assert_snapshot!(diff(&fixture, &options));
        fixture.there_and_back(Owner::Docker, |roots| plan(roots, &options).unwrap());
    }

    #[test]
    fn cdi_is_switched_on_where_it_is_off_by_default() {
        for (version_of, text, expected) in [
            ("24.0.7", "{}", None),
            ("25.0.0", "{}", Some(true)),
            ("28.1.1", "{}", Some(true)),
            ("28.2.0", "{}", None),
            ("27.0.0", "{\"features\": {\"cdi\": false}}", Some(false)),
            ("", "{}", None),
        ] {
            let mut notes = Vec::new();
            let edited = edit(text, &version(version_of), &mut notes).unwrap();
            let now: Value = serde_json::from_str(&edited).unwrap();
            assert_eq!(now["features"]["cdi"].as_bool(), expected, "{version_of}");
            let says = ["24.0.7", "27.0.0", ""].contains(&version_of);
            assert_eq!(!notes.is_empty(), says, "{version_of}: {notes:?}");
        }
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        for (text, part) in [
            (
                "{\"runtimes\": {\"rdma\": {\"path\": \"/opt/x\"}}}",
                "the runtime rdma is another one",
            ),
            ("{\"runtimes\": {\"rdma\": {\"runtimeType\": \"a\"}}}", "the shim \"a\""),
            ("{\"runtimes\": []}", "\"runtimes\" is no object"),
            ("{\"runtimes\": ", "line 1, column"),
            ("{\"Runtimes\": {}}", "the member \"Runtimes\" is \"runtimes\" in other letters"),
            ("[]", "is no object"),
        ] {
            let fixture = Fixture::new(&[(FILE, text)]);
            let error = plan(&fixture.roots, &version("29.0.0")).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let options = Options { name: "runc".into(), ..Options::default() };
        assert!(matches!(plan(&Fixture::new(&[]).roots, &options), Err(DockerError::Reserved)));
    }

    #[test]
    fn null_is_none() {
        let text = "{\"runtimes\": null, \"features\": null}";
        let edited = edit(text, &version("27.0.0"), &mut Vec::new()).unwrap();
        let now: Value = serde_json::from_str(&edited).unwrap();
        let entry = json!({"rdma": {"path": WRAPPER}});
        assert_eq!(now, json!({"runtimes": entry, "features": {"cdi": true}}));
        let fixture = Fixture::new(&[(FILE, text)]);
        let options = version("27.0.0");
        fixture.there_and_back(Owner::Docker, |roots| plan(roots, &options).unwrap());
    }

    #[test]
    fn the_entry_is_told() {
        let fixture = Fixture::new(&[(FILE, "{\"default-runtime\": \"rdma\"}")]);
        assert_eq!(entry(&fixture.roots, "rdma").unwrap(), None);
        let made = plan(&fixture.roots, &version("29.0.0")).unwrap();
        apply(&fixture.roots, Owner::Docker, &made).unwrap();
        assert_eq!(entry(&fixture.roots, "rdma").unwrap(), Some((WRAPPER.to_owned(), true)));
    }
}
