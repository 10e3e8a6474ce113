//! The containers that live and have something to do with us: what each was given, which records
//! there are, and which containers the runtime has told us of at all.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ids::{Ids, Key};
use super::metrics::node::Holder;
use super::records::{PodName, Record, Verdict};
use crate::grant::{Adapter, Grant, SmcGrant};
use crate::inventory::{CpuSet, Node};
use crate::nri::container::Network;
use crate::request::Request;

/// What a living container was given, as far as that is needed later.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Its pod.
    pub pod: PodName,
    /// Its name.
    pub name: String,
    /// Kernel names of its adapters.
    pub adapters: Vec<String>,
    /// Paths of the device nodes that were added.
    pub devices: Vec<String>,
    /// CPUs that it was narrowed to.
    pub cpus: Option<CpuSet>,
    /// Of the grant: what tells how a CPU set is to be narrowed that the kubelet sends later.
    pub narrowing: Option<Box<Grant>>,
    /// Adapters to which none of its CPUs is next.
    pub far: Vec<String>,
    /// Files of ours are bound into it.
    pub files: bool,
    /// SMC-R.
    pub smc: Option<Box<SmcGrant>>,
    /// What it asked, kept where there are files, to write them anew.
    pub asked: Option<Asked>,
    /// It has been let start.
    pub started: bool,
}

impl Granted {
    /// What is kept of a grant.
    pub fn new(pod: PodName, name: &str, grant: &Grant) -> Self {
        Self {
            pod,
            name: name.to_owned(),
            adapters: grant.adapters.iter().map(|adapter| adapter.name.clone()).collect(),
            devices: grant
                .devices
                .iter()
                .filter(|device| !device.rule_only)
                .map(|device| device.path.clone())
                .collect(),
            cpus: grant.cpus.clone(),
            narrowing: grant.near.as_ref().map(|near| {
                let bare = |adapter: &Adapter| Adapter { gids: Vec::new(), ..adapter.clone() };
                Box::new(Grant {
                    adapters: grant.adapters.iter().map(bare).collect(),
                    near: Some(near.clone()),
                    ..Grant::default()
                })
            }),
            far: Vec::new(),
            files: !grant.files.is_empty(),
            smc: grant.smc.clone().map(Box::new),
            asked: None,
            started: false,
        }
    }

    /// Notes which adapters are not next to any of the CPUs that the container has.
    pub fn measure(&mut self, node: &Node, cpus: Option<&CpuSet>) {
        let Some(cpus) = self.cpus.as_ref().or(cpus) else { return };
        let far = |name: &&String| {
            node.hca(name).is_some_and(|hca| {
                !hca.local_cpus.is_empty() && hca.local_cpus.intersection(cpus).is_empty()
            })
        };
        self.far = self.adapters.iter().filter(far).cloned().collect();
    }
}

/// What a container asked, and where its pod's network is.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The request, as it was decided about.
    pub request: Arc<Request>,
    /// The network.
    pub network: Network,
}

/// The book of containers.
#[derive(Debug)]
pub struct Containers {
    key: Key,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    granted: HashMap<String, Granted>,
    /// Containers on record.
    recorded: HashSet<String>,
    /// Of these, the ones that run without what they asked for, and are known to.
    excused: HashSet<String>,
    /// By sandbox and name: the identifier under which the last refusal is on record. Each try
    /// has another one.
    refused: HashMap<(String, String), String>,
    /// All containers that the runtime has told of.
    told: Ids,
    /// Sandboxes of pods that calls went wrong about.
    troubled: HashSet<String>,
}

impl Default for Containers {
    fn default() -> Self {
        let key = Key::default();
        let inner = Inner { told: Ids::new(&key), ..Inner::default() };
        Self { key, inner: Mutex::new(inner) }
    }
}

impl Containers {
    /// What the hashes of identifiers depend on.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Takes over what is on record from before this process.
    pub fn recall(&self, records: Vec<Record>) {
        let mut inner = self.inner();
        for record in records {
            match record.verdict {
                Verdict::Granted { grant } => {
                    let mut granted = Granted::new(record.pod, &record.name, &grant);
                    // Whether it was is not known, and no longer matters.
                    granted.started = true;
                    inner.granted.insert(record.id.clone(), granted);
                }
                Verdict::Refused { .. } => {
                    inner.refused.insert((record.pod.sandbox, record.name), record.id.clone());
                }
                Verdict::Waived { .. } | Verdict::Slipped { .. } | Verdict::Left { .. } => {
                    inner.excused.insert(record.id.clone());
                }
            }
            inner.recorded.insert(record.id);
        }
    }

    /// A call about the pod with that sandbox went wrong, and is on record.
    pub fn trouble(&self, sandbox: &str) {
        self.inner().troubled.insert(sandbox.to_owned());
    }

    /// A pod is gone. True: calls about it went wrong.
    pub fn calm(&self, sandbox: &str) -> bool {
        self.inner().troubled.remove(sandbox)
    }

    /// The runtime has told of that container.
    pub fn tell(&self, id: &str) {
        self.inner().told.insert(id);
    }

    /// The runtime has told of these containers. Returned is of how many for the first time.
    pub fn tell_all(&self, ids: &Ids) -> usize {
        self.inner().told.absorb(ids)
    }

    /// A container was given something. Returned is the identifier of a refusal that is history.
    pub fn grant(&self, id: &str, granted: Granted) -> Option<String> {
        let mut inner = self.inner();
        let key = (granted.pod.sandbox.clone(), granted.name.clone());
        inner.granted.insert(id.to_owned(), granted);
        inner.recorded.insert(id.to_owned());
        inner.excused.remove(id);
        let old = inner.refused.remove(&key);
        old.inspect(|old| {
            inner.recorded.remove(old);
        })
    }

    /// A container was refused. Returned is the identifier of an earlier refusal that it replaces.
    pub fn refuse(&self, id: &str, pod: &PodName, name: &str) -> Option<String> {
        let mut inner = self.inner();
        inner.granted.remove(id);
        inner.excused.remove(id);
        inner.recorded.insert(id.to_owned());
        let old = inner.refused.insert((pod.sandbox.clone(), name.to_owned()), id.to_owned());
        old.filter(|old| old != id).inspect(|old| {
            inner.recorded.remove(old);
        })
    }

    /// A container is on record for another reason: it runs without, and that is known.
    pub fn record(&self, id: &str) {
        let mut inner = self.inner();
        inner.granted.remove(id);
        inner.recorded.insert(id.to_owned());
        inner.excused.insert(id.to_owned());
    }

    /// Whether a container that does not carry our mark may run, because it is known to run without
    /// or because it has all the nodes that it was given. That it is on record is not enough: the
    /// runtime may have given up the call whose answer was written down.
    pub fn excuses(&self, id: &str, has: impl Fn(&str) -> bool) -> bool {
        let inner = self.inner();
        let given = inner.granted.get(id).map(|granted| &granted.devices);
        inner.excused.contains(id)
            || given.is_some_and(|paths| !paths.is_empty() && paths.iter().all(|path| has(path)))
    }

    /// Whether a container is on record.
    pub fn is_recorded(&self, id: &str) -> bool {
        self.inner().recorded.contains(id)
    }

    /// What a container was given.
    pub fn granted(&self, id: &str) -> Option<Granted> {
        self.inner().granted.get(id).cloned()
    }

    /// What a container was given of SMC-R.
    pub fn smc(&self, id: &str) -> Option<SmcGrant> {
        self.inner().granted.get(id)?.smc.as_deref().cloned()
    }

    /// A container starts.
    pub fn start(&self, id: &str) {
        if let Some(granted) = self.inner().granted.get_mut(id) {
            granted.started = true;
        }
    }

    /// A container does not hold anything any more; what it held.
    pub fn stop(&self, id: &str) -> Option<Granted> {
        self.inner().granted.remove(id)
    }

    /// A container is gone. True: its record has to go too. A refused one was never there, and its
    /// refusal stays to be asked for as long as its pod.
    pub fn remove(&self, id: &str) -> bool {
        let mut inner = self.inner();
        inner.told.remove(id);
        inner.granted.remove(id);
        inner.excused.remove(id);
        let refused = inner.refused.values().any(|refused| refused == id);
        !refused && inner.recorded.remove(id)
    }

    /// A pod is gone; the refusals whose records have to go with it.
    pub fn remove_pod(&self, sandbox: &str) -> Vec<String> {
        let mut inner = self.inner();
        let mut gone = Vec::new();
        inner.refused.retain(|(of, _), id| {
            let keep = of != sandbox;
            if !keep {
                gone.push(id.clone());
            }
            keep
        });
        for id in &gone {
            inner.recorded.remove(id);
        }
        gone
    }

    /// These containers and pods are all that there are. Returned are the containers whose records
    /// are to stay.
    pub fn retain(&self, containers: Ids, sandboxes: &Ids) -> Ids {
        let mut inner = self.inner();
        inner.granted.retain(|id, _| containers.contains(id));
        inner.granted.shrink_to_fit();
        inner.refused.retain(|(sandbox, _), _| sandboxes.contains(sandbox));
        inner.refused.shrink_to_fit();
        let mut kept = containers.clone();
        for refused in inner.refused.values() {
            kept.insert(refused);
        }
        inner.recorded.retain(|id| kept.contains(id));
        inner.recorded.shrink_to_fit();
        inner.excused.retain(|id| containers.contains(id));
        inner.excused.shrink_to_fit();
        inner.told = containers;
        inner.troubled.retain(|sandbox| sandboxes.contains(sandbox));
        inner.troubled.shrink_to_fit();
        kept
    }

    /// Who holds which adapter.
    pub fn holders(&self) -> Vec<Holder> {
        let inner = self.inner();
        let mut holders: Vec<Holder> = inner
            .granted
            .values()
            .flat_map(|granted| {
                granted.adapters.iter().map(|hca| Holder {
                    namespace: granted.pod.namespace.clone(),
                    pod: granted.pod.name.clone(),
                    container: granted.name.clone(),
                    hca: hca.clone(),
                    far: granted.far.contains(hca),
                })
            })
            .collect();
        holders.sort_unstable();
        // Two containers of one name: one that ended and the one that took its place.
        holders.dedup();
        holders
    }

    /// Whether there are files of ours in that container, and it is not known what they come from.
    pub fn wants_asked(&self, id: &str) -> bool {
        self.inner().granted.get(id).is_some_and(|granted| granted.files && granted.asked.is_none())
    }

    /// What a container asked is known again.
    pub fn set_asked(&self, id: &str, asked: Asked) {
        if let Some(granted) = self.inner().granted.get_mut(id) {
            granted.asked = Some(asked);
        }
    }

    /// Containers into which a file of ours is bound, with what they asked.
    pub fn with_files(&self) -> Vec<(String, PodName, Asked)> {
        let inner = self.inner();
        let kept = inner.granted.iter().filter_map(|(id, granted)| {
            Some((id.clone(), granted.pod.clone(), granted.asked.clone()?))
        });
        kept.collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(sandbox: &str) -> PodName {
        PodName { sandbox: sandbox.into(), ..PodName::default() }
    }

    fn granted(sandbox: &str, name: &str) -> Granted {
        Granted::new(pod(sandbox), name, &Grant::default())
    }

    fn set(book: &Containers, ids: &[&str]) -> Ids {
        let mut set = Ids::new(book.key());
        for id in ids {
            set.insert(id);
        }
        set
    }

    #[test]
    fn one_refusal_is_kept_of_many_tries() {
        let book = Containers::default();
        assert_eq!(book.refuse("c1", &pod("box"), "main"), None);
        assert_eq!(book.refuse("c2", &pod("box"), "main").as_deref(), Some("c1"));
        assert_eq!(book.refuse("c3", &pod("box"), "other"), None);
        // The runtime takes back what it had begun: the refusal is still to be asked for.
        assert!(!book.remove("c2") && book.is_recorded("c2"));
        assert_eq!(book.grant("c4", granted("box", "main")).as_deref(), Some("c2"));
        assert!(!book.is_recorded("c1") && !book.is_recorded("c2") && book.is_recorded("c4"));
        assert_eq!(book.remove_pod("box"), ["c3"]);
        assert!(book.remove("c4"));
        assert!(!book.remove("c4"));
    }

    #[test]
    fn what_is_gone_is_forgotten_and_refusals_stay_with_their_pods() {
        let book = Containers::default();
        for (id, sandbox) in [("a", "box"), ("b", "gone")] {
            book.grant(id, granted(sandbox, id));
            book.refuse(&format!("{id}-refused"), &pod(sandbox), "x");
        }
        let kept = book.retain(set(&book, &["a", "new"]), &set(&book, &["box"]));
        assert!(kept.contains("a") && kept.contains("a-refused") && !kept.contains("b-refused"));
        assert!(book.is_recorded("a-refused") && !book.is_recorded("b"));
        assert!(book.granted("b").is_none());
        assert_eq!(book.tell_all(&set(&book, &["new", "newer"])), 1);
    }

    #[test]
    fn c46_cpus_far_from_the_adapter_are_measured() {
        let mut container = granted("box", "main");
        container.adapters = vec!["mlx5_4".into(), "unknown".into()];
        let mut node = Node::default();
        let mut hca: crate::inventory::Hca = serde_json::from_value(serde_json::json!({
            "name": "mlx5_4", "index": null, "driver": "mlx5", "node_type": "ca",
            "node_guid": "", "firmware": null, "pci": null, "numa": 1, "local_cpus": "32-63",
            "uverbs": null, "ports": [], "role": {"role": "physical", "vfs": 0},
            "home": {"home": "host"}
        }))
        .unwrap();
        node.hcas.push(hca.clone());
        for (given, far) in [(Some("0-7"), true), (Some("0-32"), false), (None, false)] {
            let mut measured = container.clone();
            measured.measure(&node, given.map(|list| list.parse().unwrap()).as_ref());
            assert_eq!(measured.far == ["mlx5_4"], far, "{given:?}");
        }
        hca.local_cpus = CpuSet::new();
        node.hcas = vec![hca];
        container.measure(&node, Some(&"0-7".parse().unwrap()));
        assert!(container.far.is_empty());
    }
}
