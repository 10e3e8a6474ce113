//! `cdi`: the createRuntime hook of the node's CDI file. A CDI file is the same for every container,
//! so what depends on this one is done here: its locked-memory limit is raised, and which adapters
//! it has is written to its /etc/nccl.conf, told by the nodes that are really in it.
//!
//! The limit is that of the container's first process, which hands it on; a session of `exec` has
//! the runtime's own.
//!
//! The file goes into the container's root, which may be another container's too, or the host's
//! (`--rootfs`): so no file is written where the root is to be read only or is the host's, and none
//! replaced that was written for another container.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use super::super::OciError;
use super::super::admit::Station;
use super::super::container::{self, Beside, Network};
use super::super::create;
use super::super::document::Document;
use super::super::engine::Engine;
use super::super::json::{self, JsonError};
use super::super::ledger::Ledger;
use super::Call;
use super::state::{LONGEST, State};
use crate::grant::{Grant, Inventory, MemlockGrant, Outcome, decide};
use crate::inventory::runtime_limits::{in_user_namespace, of_process};
use crate::inventory::{self, Focus, Node, PodView, rdma_netlink};
use crate::netns::pod_view;
use crate::policy::{self, Policy};
use crate::request::{
    Carrier, CarrierPath, Container, Devices, EnvFamily, EnvMode, MARKER, NumaMode, Request,
    Selector,
};
use crate::rootfs::Rootfs;
use crate::roots::Roots;

/// How long GIDs of new addresses are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Beginning of a file of ours, in a line that NCCL passes over.
const OURS: &str = "# Made by rdma-ctk from the CDI devices of container ";
/// The only file that is written.
const NCCL_CONF: &str = "/etc/nccl.conf";

/// `cdi`
pub(super) fn run(call: &Call<'_>) -> Result<(), OciError> {
    let state = State::parse(&call.input(LONGEST)?)?;
    let roots = &call.surroundings.roots;
    let document = Document::read(&state.bundle.join("config.json"))?;
    let document = read_document(&document)
        .map_err(|error| refused(format!("{}: {error}", state.bundle.display())))?;
    let mut annotations = container::annotations(&document);
    // Anybody can write one: it is believed where it is on record.
    if annotations.remove(MARKER).is_some_and(|mark| is_granted(call, &state, &mark)) {
        // The plugin or the wrapper has given it more than this could.
        return Ok(());
    }
    let policy =
        policy::load(roots).map_err(|why| refused(format!("the policy is broken: {why}")))?;
    let station = Station::here(roots, CarrierPath::Cdi, None);
    // Those of the container's own process are there by now.
    let limits = of_process(roots, state.pid);
    let beside = Beside {
        id: &state.id,
        inherited: limits.memlock,
        user_namespace: station.user_namespace,
        engine: Engine::of(&document, &state.bundle, &state.id),
        ..Beside::default()
    };
    let mut container = container::read(&document, &annotations, &beside)
        .map_err(|problem| refused(problem.to_string()))?;
    container.memlock_hard = limits.hard;
    let here = read(roots, &Focus { gids: Some(BTreeSet::new()), ..focus(None) });
    let names = held(&container, &here)?;
    let node = read(roots, &focus(Some(names.clone())));
    let view = match container::network(&document) {
        Network::Host => PodView::Host,
        Network::Own(_) | Network::Later => {
            let path = Path::new("/proc").join(state.pid.to_string()).join("ns/net");
            pod_view(roots, &path, &node, PATIENCE)
        }
    };
    let carrier = Carrier {
        name: "the CDI hook".to_owned(),
        path: CarrierPath::Cdi,
        memlock_ceiling: station.limits.ceiling,
        ..Carrier::default()
    };
    let pod = container.pod.clone();
    let mut grant = grant(&names, container, carrier, &Inventory::of(&node, &view), &policy)?;
    grant.warnings.extend(policy.doubts(&pod));
    for warning in &grant.warnings {
        call.warn(&format!("container {}: {warning}", state.id));
    }
    if let Some(limit) = grant.memlock {
        raise(state.pid, limit)?;
    }
    let told = match Place::of(&document, &state.bundle) {
        Place::Root(root) => tell(&root, &grant, &state.id),
        Place::None(why) => Ok(Told::Nowhere(why)),
    };
    match told {
        Ok(Told::Nothing) => {}
        Ok(Told::Written) => {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            call.note(&format!("container {}: {names} in its nccl.conf", state.id));
        }
        Ok(Told::Theirs) => {
            call.note(&format!("container {}: the nccl.conf of its image stays", state.id));
        }
        Ok(Told::Anothers) => call.warn(&format!(
            "container {}: no nccl.conf: the one that is there was written for another container",
            state.id
        )),
        Ok(Told::Nowhere(_)) if grant.files.is_empty() => {}
        Ok(Told::Nowhere(why)) => {
            call.warn(&format!("container {}: no nccl.conf: {why}", state.id));
        }
        Err(why) => call.warn(&format!("container {}: no nccl.conf: {why}", state.id)),
    }
    Ok(())
}

/// The document, if all readers would see the same in it.
fn read_document(document: &Document) -> Result<Value, JsonError> {
    let value = json::read(&document.text)?;
    container::ambiguous(&value).map_or(Ok(value), |member| Err(JsonError::Case(member)))
}

/// Whether that mark is one that was given: by the daemon, by the wrapper, or by podman's hook.
fn is_granted(call: &Call<'_>, state: &State, mark: &str) -> bool {
    let roots = &call.surroundings.roots;
    let user = in_user_namespace(roots, std::process::id()) || !nix::unistd::geteuid().is_root();
    create::granted_by_daemon(roots, &state.id, mark)
        || Ledger::of(call.surroundings, user).has_granted(&state.id, &state.bundle, mark)
}

fn refused(sentence: String) -> OciError {
    OciError::Refused { sentence }
}

/// Those adapters, their GID tables, and nothing else that is slow to read.
fn focus(names: Option<BTreeSet<String>>) -> Focus {
    Focus {
        adapters: names.clone(),
        gids: names,
        pkeys: false,
        mads: false,
        numa: false,
        ..Focus::EVERYTHING
    }
}

fn read(roots: &Roots, focus: &Focus) -> Node {
    let view = rdma_netlink::read_part(roots, focus).unwrap_or_default();
    inventory::part(roots, view.as_ref(), focus)
}

/// Adapters whose nodes the container has.
fn held(container: &Container, node: &Node) -> Result<BTreeSet<String>, OciError> {
    let numbers: BTreeSet<(u32, u32)> =
        container.devices.iter().map(|device| (device.major, device.minor)).collect();
    let held = node.hcas.iter().filter(|hca| {
        hca.uverbs.as_ref().is_some_and(|node| numbers.contains(&(node.major, node.minor)))
    });
    let names: BTreeSet<String> = held.map(|hca| hca.name.clone()).collect();
    if names.is_empty() {
        return Err(refused(
            "the container was given a CDI device of ours, and none of its nodes is an adapter's of \
             this node: `rdma-ctk cdi generate` writes the CDI file anew"
                .to_owned(),
        ));
    }
    Ok(names)
}

/// What the container gets beside its nodes.
fn grant(
    names: &BTreeSet<String>,
    container: Container,
    carrier: Carrier,
    inventory: &Inventory<'_>,
    policy: &Policy,
) -> Result<Grant, OciError> {
    let request = Request {
        devices: Some(Devices::Select(names.iter().cloned().map(Selector::Name).collect())),
        env: EnvMode { families: BTreeSet::from([EnvFamily::Nccl]), file: true },
        numa: NumaMode::Off,
        ..Request::nothing(container, carrier)
    };
    match decide(&request, inventory, policy) {
        Outcome::Granted(grant) => Ok(*grant),
        Outcome::Waived(_) | Outcome::NotAsked | Outcome::LeftAlone { .. } => Ok(Grant::default()),
        Outcome::Refused(refusal) => Err(refused(refusal.sentence)),
    }
}

/// Sets the limit of the container's first process.
fn raise(pid: u32, limit: MemlockGrant) -> Result<(), OciError> {
    let bounded = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return Ok(()) };
    let new = Rlimit { current: bounded(limit.bytes), maximum: bounded(limit.hard()) };
    prlimit(Some(pid), Resource::Memlock, new).map(drop).map_err(|errno| {
        refused(format!(
            "cannot set the locked-memory limit of the container's process {pid}: {errno}; without \
             it registering memory fails",
            pid = pid.as_raw_nonzero()
        ))
    })
}

/// Where the container's file could go.
enum Place {
    /// Into its root.
    Root(Rootfs),
    /// Nowhere, and why.
    None(&'static str),
}

impl Place {
    fn of(document: &Value, bundle: &Path) -> Self {
        let root = &document["root"];
        if root["readonly"] == true {
            return Self::None("its root is read-only");
        }
        let Some(path) = root["path"].as_str().filter(|path| !path.is_empty()) else {
            return Self::None("its root is not in its document");
        };
        let path = bundle.join(path);
        let is = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        match (Rootfs::open(&path), is(&path)) {
            (Some(_), found) if found == is(Path::new("/")) => Self::None("its root is the host's"),
            (Some(root), _) => Self::Root(root),
            (None, _) => Self::None("its root is not to be seen here"),
        }
    }
}

/// What became of nccl.conf.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// There was nothing to write.
    Nothing,
    /// It is written.
    Written,
    /// The image has one, which stays.
    Theirs,
    /// One of ours stays that tells another container something else.
    Anothers,
    /// There is no place for it, and why.
    Nowhere(&'static str),
}

/// Writes the grant's file into the container's root.
fn tell(root: &Rootfs, grant: &Grant, id: &str) -> io::Result<Told> {
    let Some(file) = grant.files.iter().find(|file| file.path == NCCL_CONF) else {
        return Ok(Told::Nothing);
    };
    let head = format!("{OURS}{}.\n", id.escape_default());
    if root.put(NCCL_CONF, &format!("{head}{}", file.content), &head)? {
        return Ok(Told::Written);
    }
    let present = root.read(NCCL_CONF).filter(|text| text.starts_with(OURS));
    Ok(match present.as_deref().and_then(|text| text.split_once('\n')) {
        Some((_, content)) if content == file.content => Told::Written,
        Some(_) => Told::Anothers,
        None => Told::Theirs,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::super::super::Surroundings;
    use super::super::super::ledger::{Entry, key};
    use super::*;
    use crate::grant::GrantedFile;
    use crate::grant::tests::machines::{infiniband, roce};
    use crate::records::{PodName, Record, Store, Verdict};
    use crate::request::{Device, Limit};

    fn node() -> Node {
        Node {
            hcas: vec![
                infiniband("mlx5_0", 0),
                infiniband("mlx5_1", 1),
                roce("rxe0", 2, "eth0", "0 v2 fe80::1 eth0"),
            ],
            ..Node::default()
        }
    }

    fn container(minors: &[u32]) -> Container {
        let device = |minor: &u32| Device {
            path: format!("/dev/infiniband/uverbs{}", minor - 192),
            major: 231,
            minor: *minor,
        };
        Container {
            devices: minors.iter().map(device).collect(),
            memlock: Limit::Inherited(Some(8 << 20)),
            ..Container::default()
        }
    }

    fn limit(bytes: u64) -> MemlockGrant {
        MemlockGrant { bytes, higher_hard: None }
    }

    fn given(minors: &[u32], policy: &str) -> Result<Grant, String> {
        let (container, node) = (container(minors), node());
        let names = held(&container, &node).map_err(|error| error.to_string())?;
        let policy = Policy::from_toml(policy).unwrap();
        let inventory = Inventory::of(&node, &PodView::Host);
        grant(&names, container, Carrier::default(), &inventory, &policy)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn c10_what_was_really_given_is_told_and_the_limit_raised() {
        let grant = given(&[192, 193], "").unwrap();
        assert_eq!(grant.memlock, Some(limit(u64::MAX)));
        // Nothing is added: the nodes are there.
        assert_eq!(grant.devices, []);
        assert_eq!(grant.files.len(), 1);
        assert!(grant.files[0].content.contains("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n"), "{grant:?}");
        let one = given(&[193], "default.memlock_max = '1GiB'\n").unwrap();
        assert_eq!(one.memlock, Some(limit(1 << 30)));
        assert!(one.files[0].content.contains("NCCL_IB_HCA==mlx5_1:1\n"), "{one:?}");
    }

    #[test]
    fn a_container_whose_nodes_are_no_adapters_is_refused() {
        let error = given(&[200], "").unwrap_err();
        assert!(error.contains("none of its nodes is an adapter's"), "{error}");
        let error = given(&[192], "default.adapters = ['mlx5_1']\n").unwrap_err();
        assert!(error.contains("policy does not give it"), "{error}");
    }

    #[test]
    fn the_file_of_the_image_stays_and_ours_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("etc/nccl.conf");
        fs::create_dir(folder.path().join("etc")).unwrap();
        let root = Rootfs::open(folder.path()).unwrap();
        let grant = |content: &str| Grant {
            files: vec![GrantedFile { path: NCCL_CONF.into(), content: content.into() }],
            ..Grant::default()
        };
        let text = |id: &str, content: &str| format!("{OURS}{id}.\n{content}");
        assert_eq!(tell(&root, &Grant::default(), "c1").unwrap(), Told::Nothing);
        assert_eq!(tell(&root, &grant("A=1\n"), "c1").unwrap(), Told::Written);
        assert_eq!(fs::read_to_string(&file).unwrap(), text("c1", "A=1\n"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(tell(&root, &grant("B=2\n"), "c1").unwrap(), Told::Written);
        assert_eq!(fs::read_to_string(&file).unwrap(), text("c1", "B=2\n"));
        // Another container in the same root, and one whose name would be a line of its own.
        assert_eq!(tell(&root, &grant("B=2\n"), "c2").unwrap(), Told::Written);
        for id in ["c2", "c", "c1.\nC=3"] {
            assert_eq!(tell(&root, &grant("C=3\n"), id).unwrap(), Told::Anothers, "{id}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text("c1", "B=2\n"));
        }
        fs::remove_file(&file).unwrap();
        // The place that a runtime has left in the container's layer.
        fs::write(&file, "").unwrap();
        assert_eq!(tell(&root, &grant("B=2\n"), "c1").unwrap(), Told::Written);
        fs::remove_file(&file).unwrap();
        fs::write(&file, "C=3\n").unwrap();
        assert_eq!(tell(&root, &grant("B=2\n"), "c1").unwrap(), Told::Theirs);
        assert_eq!(fs::read_to_string(&file).unwrap(), "C=3\n");
    }

    #[test]
    fn no_file_goes_into_a_root_that_is_not_the_containers_to_write() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("rootfs")).unwrap();
        let of = |root: Value| match Place::of(&json!({ "root": root }), folder.path()) {
            Place::Root(_) => "",
            Place::None(why) => why,
        };
        assert_eq!(of(json!({ "path": "rootfs" })), "");
        assert_eq!(of(json!({ "path": "rootfs", "readonly": false })), "");
        assert_eq!(of(json!({ "path": "rootfs", "readonly": true })), "its root is read-only");
        assert_eq!(of(json!({ "path": "/" })), "its root is the host's");
        assert_eq!(of(json!({ "path": "none" })), "its root is not to be seen here");
        assert_eq!(of(json!(null)), "its root is not in its document");
    }

    #[test]
    fn a_mark_is_believed_where_it_is_on_record() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let surroundings = Surroundings { roots: roots.clone(), variable: &|_| None };
        let call = Call { surroundings: &surroundings, from: None, record: None };
        let bundle = folder.path().join("bundle");
        fs::create_dir(&bundle).unwrap();
        let state = State { id: "c1".into(), bundle: bundle.clone(), ..State::default() };
        let granted = |mark: &str| is_granted(&call, &state, mark);
        let mark = Grant::default().digest();
        assert!(!granted(&mark) && !granted("forged") && !granted(""));
        let record = |id: &str| Record {
            id: id.into(),
            name: "main".into(),
            pod: PodName::default(),
            runtime: "x".into(),
            at: 1,
            verdict: Verdict::Granted { grant: Box::default() },
        };
        let entry = |id: &str, bundle: &Path| Entry {
            record: record(id),
            bundle: bundle.to_owned(),
            request: None,
            limits: Vec::new(),
        };
        // The wrapper's, or of podman's hook: of that container, in that folder.
        let ledger = Ledger::of(&surroundings, false);
        ledger.prepare().unwrap();
        let key = key(Some("/run/runc".as_ref()), "c1".as_ref());
        for (id, bundle, expected) in
            [("c1", bundle.as_path(), true), ("c2", &bundle, false), ("c1", folder.path(), false)]
        {
            ledger.write(&key, &entry(id, bundle)).unwrap();
            assert_eq!(granted(&mark), expected, "{id} {}", bundle.display());
            assert!(!granted("forged"));
        }
        ledger.remove(&key).unwrap();
        // The daemon's.
        let store = Store::new(&roots);
        store.prepare_containers().unwrap();
        store.write(&record("c1")).unwrap();
        assert!(granted(&mark) && !granted("forged"));
    }

    #[test]
    fn the_limit_of_a_process_is_set() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        raise(child.id(), limit(4096)).unwrap();
        let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("4096"), "{line}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(raise(0, limit(1)).is_ok());
    }
}
