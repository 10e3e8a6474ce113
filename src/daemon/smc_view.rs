//! SMC-R on the node at this moment, for people who ask: which containers have it, how their
//! connections go, and what was prepared. Nothing here needs the daemon to run.
//!
//! A socket belongs to a container if one of its processes holds it; a process belongs to a
//! container if its control group's path names it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

use super::records::{Record, Records, Verdict};
use crate::grant::SmcFacts;
use crate::netns::Namespace;
use crate::policy::Policy;
use crate::request::{Can, SmcMethod};
use crate::roots::Roots;
use crate::smc::bpf::Switch;
use crate::smc::kernel::{Kernel, LinkGroup, SmcDevice};
use crate::smc::pnet::{Member, PnetTable};
use crate::smc::reason;
use crate::smc::status::{self, Connection, Seen};
use crate::smc::{diag, probe};

/// The node.
#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    /// What the kernel has.
    pub facts: SmcFacts,
    /// Control groups that the program in the kernel switches; `None`: it is not loaded.
    pub switched: Option<usize>,
    /// Adapters that SMC takes, with their PNET ids.
    pub adapters: Vec<String>,
    /// Entries of the host's PNET table.
    pub pnet: Vec<String>,
    /// Groups of links that are up.
    pub link_groups: usize,
    /// Containers that have SMC-R.
    pub containers: Vec<ContainerView>,
    /// What could not be looked at.
    pub problems: Vec<String>,
}

/// A container that has SMC-R.
#[derive(Debug, Clone, Serialize)]
pub struct ContainerView {
    /// `NAMESPACE/POD`
    pub pod: String,
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub id: String,
    /// How its sockets are turned.
    pub method: String,
    /// How its connections go, in a sentence.
    pub summary: String,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// Counters of its network namespace.
    pub namespace: Option<Counters>,
}

/// Counters of a network namespace since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// It is the host's, and counts everybody's there.
    pub host: bool,
    /// Bytes received over SMC-R.
    pub received: u64,
    /// Bytes sent over SMC-R.
    pub sent: u64,
    /// Connections that were made over SMC-R.
    pub connections: u64,
    /// Connections that fell back, by reason.
    pub fallbacks: Vec<FallbackCount>,
}

/// Connections that fell back for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FallbackCount {
    /// The reason in a word, as the metric has it.
    pub word: &'static str,
    /// In words.
    pub reason: String,
    /// What to do.
    pub fix: &'static str,
    /// How many.
    pub count: u64,
}

/// Looks at the node.
pub fn look(roots: &Roots, records: &Records, policy: &Policy) -> Overview {
    let mut problems = Vec::new();
    let facts = probe::probe(roots, &policy.smc);
    let switched = Switch::new(roots, policy.smc.mptcp).groups();
    let switched = switched.unwrap_or_else(|problem| {
        problems.push(problem.to_string());
        None
    });
    let mut view = Overview {
        facts,
        switched: switched.map(|groups| groups.len()),
        adapters: Vec::new(),
        pnet: Vec::new(),
        link_groups: 0,
        containers: Vec::new(),
        problems,
    };
    let live = roots.is_live() && view.facts.loaded;
    if live {
        ask(&mut view);
    }
    let granted: Vec<(&Record, SmcMethod)> = records
        .containers
        .iter()
        .filter_map(|record| match &record.verdict {
            Verdict::Granted { grant } => Some((record, grant.smc.as_ref()?.method)),
            _ => None,
        })
        .collect();
    let ids: Vec<&str> = granted.iter().map(|(record, _)| record.id.as_str()).collect();
    let mut processes = if live { processes(roots, &ids) } else { HashMap::new() };
    let mut namespaces = Namespaces { roots, seen: HashMap::new() };
    for (record, method) in granted {
        let pids = processes.remove(record.id.as_str()).unwrap_or_default();
        view.containers.push(container(&mut namespaces, record, method, &pids, &mut view.problems));
    }
    view
}

fn ask(view: &mut Overview) {
    let asked = Kernel::open()
        .and_then(|mut kernel| Ok((kernel.devices()?, kernel.groups()?)))
        .and_then(|answers| Ok((answers, PnetTable::open()?.entries()?)));
    match asked {
        Ok(((devices, groups), entries)) => {
            view.adapters = devices.iter().flat_map(ports).collect();
            view.link_groups =
                groups.iter().filter(|group: &&LinkGroup| group.connections > 0).count();
            view.pnet = entries
                .iter()
                .map(|entry| match &entry.to {
                    Member::Interface(name) => format!("{} for interface {name}", entry.name),
                    Member::Adapter { name, port } => format!("{} for {name}/{port}", entry.name),
                })
                .collect();
        }
        Err(problem) => view.problems.push(problem.to_string()),
    }
}

fn ports(device: &SmcDevice) -> Vec<String> {
    let port = |(port, number): (&crate::smc::kernel::SmcPort, u32)| {
        let state = if port.active { "" } else { " (not active)" };
        let pnet =
            if port.pnet.is_empty() { String::new() } else { format!(", PNET id {}", port.pnet) };
        format!("{}/{number}{state}{pnet}", device.name)
    };
    device.ports.iter().zip(1..).map(port).collect()
}

/// Processes of these containers.
fn processes<'a>(roots: &Roots, ids: &[&'a str]) -> HashMap<&'a str, Vec<u32>> {
    let mut found: HashMap<&str, Vec<u32>> = HashMap::new();
    let Ok(all) = fs::read_dir(&roots.proc) else { return found };
    for pid in all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let Ok(group) = fs::read_to_string(roots.proc.join(format!("{pid}/cgroup"))) else {
            continue;
        };
        if let Some(id) = ids.iter().find(|id| !id.is_empty() && names(&group, id)) {
            found.entry(id).or_default().push(pid);
        }
    }
    found
}

/// Whether a part of the path is the identifier, or ends with it as a scope does.
fn names(group: &str, id: &str) -> bool {
    group.lines().filter_map(|line| line.rsplit(':').next()).flat_map(|path| path.split('/')).any(
        |part| {
            let part = part.strip_suffix(".scope").unwrap_or(part);
            part == id || part.strip_suffix(id).is_some_and(|rest| rest.ends_with('-'))
        },
    )
}

/// What was seen of each namespace, by its inode.
struct Namespaces<'a> {
    roots: &'a Roots,
    seen: HashMap<u64, Result<Seen, String>>,
}

impl Namespaces<'_> {
    /// The namespace of a process: whether it is the host's, and what is in there.
    fn of(&mut self, pid: u32) -> Result<(bool, &Seen), String> {
        let path = self.roots.proc.join(format!("{pid}/ns/net"));
        let inode = |path: &Path| fs::metadata(path).map(|file| file.ino());
        let own = inode(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let host = inode(&self.roots.proc.join("1/ns/net")).ok() == Some(own);
        let roots = self.roots;
        let seen = self.seen.entry(own).or_insert_with(|| {
            let namespace = Namespace::open(roots, Path::new(&format!("/proc/{pid}/ns/net")))
                .map_err(|error| error.to_string())?;
            if namespace.is_current(roots) {
                return status::look().map_err(|error| error.to_string());
            }
            namespace
                .run(status::look)
                .map_err(|error| error.to_string())?
                .map_err(|error| error.to_string())
        });
        seen.as_ref().map(|seen| (host, seen)).map_err(Clone::clone)
    }
}

fn container(
    namespaces: &mut Namespaces<'_>,
    record: &Record,
    method: SmcMethod,
    pids: &[u32],
    problems: &mut Vec<String>,
) -> ContainerView {
    let mut view = ContainerView {
        pod: record.pod.to_string(),
        name: record.name.clone(),
        id: record.id.clone(),
        method: method.to_string(),
        summary: "it does not run".to_owned(),
        connections: Vec::new(),
        namespace: None,
    };
    let Some(pid) = pids.first() else { return view };
    let sockets = held(namespaces.roots, pids);
    match namespaces.of(*pid) {
        Ok((host, seen)) => {
            view.connections = connections(&seen.sockets, &sockets);
            view.summary = status::summary(&view.connections);
            view.namespace = Some(counters(host, seen));
        }
        Err(problem) => {
            view.summary = "its network namespace cannot be looked at".to_owned();
            problems.push(format!("{} {}: {problem}", view.pod, view.name));
        }
    }
    view
}

/// Connections among those sockets, by their inodes.
fn connections(all: &[diag::SmcSocket], held: &HashSet<u64>) -> Vec<Connection> {
    all.iter().filter(|socket| held.contains(&socket.inode)).filter_map(Connection::of).collect()
}

/// Inodes of the sockets that these processes hold.
fn held(roots: &Roots, pids: &[u32]) -> HashSet<u64> {
    let mut inodes = HashSet::new();
    for pid in pids {
        let Ok(files) = fs::read_dir(roots.proc.join(format!("{pid}/fd"))) else { continue };
        for file in files.flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            let inode = target.to_str().and_then(|text| text.strip_prefix("socket:["));
            inodes.extend(inode.and_then(|text| text.trim_end_matches(']').parse::<u64>().ok()));
        }
    }
    inodes
}

fn counters(host: bool, seen: &Seen) -> Counters {
    let mut by_code: BTreeMap<u32, u64> = BTreeMap::new();
    for fallen in &seen.fallen {
        *by_code.entry(fallen.code).or_default() += fallen.count;
    }
    Counters {
        host,
        received: seen.stats.received,
        sent: seen.stats.sent,
        connections: seen.stats.connections,
        fallbacks: by_code
            .into_iter()
            .map(|(code, count)| {
                let fallback = reason::Fallback { reason: code, peer: 0 };
                FallbackCount {
                    word: reason::word(code),
                    reason: fallback.to_string(),
                    fix: fallback.fix(),
                    count,
                }
            })
            .collect(),
    }
}

/// Which methods there are, in a line each, with what is lacking for the others.
pub fn methods(facts: &SmcFacts) -> Vec<String> {
    if !facts.loaded {
        return vec![
            "SMC-R is not available on this kernel (no smc module); load it: modprobe -a smc smc_diag"
                .to_owned(),
        ];
    }
    let line = |method: SmcMethod, can: &Can| match can {
        Can::Yes => format!("{method}: can be had"),
        Can::No(why) => format!("{method}: {why}"),
    };
    vec![
        line(SmcMethod::Tcp2smc, &facts.tcp2smc),
        line(SmcMethod::Bpf, &facts.bpf),
        line(SmcMethod::Preload, &facts.preload),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smc::kernel::{Fallen, Stats};

    #[test]
    fn a_process_belongs_to_the_container_that_its_group_names() {
        for (group, belongs) in [
            ("0::/k8s.io/4f1c\n", true),
            ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-4f1c.scope\n", true),
            ("0::/k8s.io/4f1c/child\n", true),
            ("0::/k8s.io/4f1c2\n", false),
            ("0::/k8s.io/a4f1c\n", false),
            ("0::/\n", false),
            ("", false),
        ] {
            assert_eq!(names(group, "4f1c"), belongs, "{group}");
        }
    }

    #[test]
    fn c96_counters_of_a_namespace_are_told_by_reason() {
        let fallen = |server, code, count| Fallen { server, code, count };
        let seen = Seen {
            stats: Stats { received: 5, sent: 6, connections: 2, failed: 0 },
            fallen: vec![
                fallen(true, 0x0303_0002, 1),
                fallen(false, 0x0303_0002, 2),
                fallen(false, 0x0301_0000, 4),
            ],
            ..Seen::default()
        };
        let counted = counters(false, &seen);
        let words: Vec<_> = counted.fallbacks.iter().map(|one| (one.word, one.count)).collect();
        assert_eq!(words, [("peer_without_smc", 4), ("no_rdma_device", 3)]);
        assert_eq!((counted.received, counted.sent, counted.connections), (5, 6, 2));
    }

    #[test]
    fn c99_a_kernel_without_the_module_says_so() {
        let lines = methods(&SmcFacts::default());
        assert!(lines[0].starts_with("SMC-R is not available on this kernel (no smc module)"));
        let facts =
            SmcFacts { loaded: true, tcp2smc: Can::No("no sysctl".into()), ..SmcFacts::default() };
        assert_eq!(
            methods(&facts),
            ["tcp2smc: no sysctl", "bpf: can be had", "preload: can be had"]
        );
    }
}
