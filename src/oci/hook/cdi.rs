//! `cdi`: the createRuntime hook of the node's CDI file. A CDI file is the same for every container,
//! so what depends on this one is done here: its locked-memory limit is raised, and which adapters
//! it has is written to its /etc/nccl.conf, told by the nodes that are really in it.
//!
//! The limit is that of the container's first process, which hands it on; a session of `exec` has
//! the runtime's own.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use super::super::OciError;
use super::super::admit::Station;
use super::super::container::{self, Beside, Network};
use super::super::document::Document;
use super::Call;
use super::state::{LONGEST, State};
use crate::grant::{Grant, Inventory, MemlockGrant, Outcome, decide};
use crate::inventory::runtime_limits::of_process;
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
/// First line of a file of ours, which NCCL passes over.
const HEAD: &str = "# Made by rdma-ctk from the CDI devices of this container.\n";

/// `cdi`
pub(super) fn run(call: &Call<'_>) -> Result<(), OciError> {
    let state = State::parse(&call.input(LONGEST)?)?;
    let roots = &call.surroundings.roots;
    let document = Document::read(&state.bundle.join("config.json"))?;
    let document: Value = serde_json::from_slice(&document.text)
        .map_err(|error| refused(format!("{}: {error}", state.bundle.display())))?;
    let mut annotations = container::annotations(&document);
    if annotations.remove(MARKER).is_some() {
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
    let grant = grant(&names, container, carrier, &Inventory::of(&node, &view), &policy)?;
    for warning in &grant.warnings {
        call.warn(&format!("container {}: {warning}", state.id));
    }
    if let Some(limit) = grant.memlock {
        raise(state.pid, limit)?;
    }
    match root_of(&document, &state.bundle).map(|root| tell(&root, &grant)) {
        None => call.warn(&format!("container {}: its root is not to be seen here", state.id)),
        Some(Ok(Told::Nothing)) => {}
        Some(Ok(Told::Written)) => {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            call.note(&format!("container {}: {names} in its nccl.conf", state.id));
        }
        Some(Ok(Told::Theirs)) => {
            call.note(&format!("container {}: the nccl.conf of its image stays", state.id));
        }
        Some(Err(why)) => call.warn(&format!("container {}: no nccl.conf: {why}", state.id)),
    }
    Ok(())
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

/// The container's root, as the document says it.
fn root_of(document: &Value, bundle: &Path) -> Option<Rootfs> {
    let path = document["root"]["path"].as_str().filter(|path| !path.is_empty())?;
    Rootfs::open(&bundle.join(path))
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
}

/// Writes the grant's files into the container's root.
fn tell(root: &Rootfs, grant: &Grant) -> io::Result<Told> {
    let mut told = Told::Nothing;
    for file in grant.files.iter().filter(|file| file.path == "/etc/nccl.conf") {
        told = if root.put(&file.path, &format!("{HEAD}{}", file.content), HEAD)? {
            Told::Written
        } else {
            Told::Theirs
        };
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::grant::GrantedFile;
    use crate::grant::tests::machines::{infiniband, roce};
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
            files: vec![GrantedFile { path: "/etc/nccl.conf".into(), content: content.into() }],
            ..Grant::default()
        };
        assert_eq!(tell(&root, &Grant::default()).unwrap(), Told::Nothing);
        assert_eq!(tell(&root, &grant("A=1\n")).unwrap(), Told::Written);
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{HEAD}A=1\n"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(tell(&root, &grant("B=2\n")).unwrap(), Told::Written);
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{HEAD}B=2\n"));
        fs::remove_file(&file).unwrap();
        fs::write(&file, "C=3\n").unwrap();
        assert_eq!(tell(&root, &grant("B=2\n")).unwrap(), Told::Theirs);
        assert_eq!(fs::read_to_string(&file).unwrap(), "C=3\n");
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
