//! What a container gets, told from its document: the one way from there to a decision, for the
//! wrapper, the hook and `explain`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::container::{self, Beside, Network};
use super::engine::Engine;
use super::image;
use super::smc;
use super::survey::{self, Case};
use crate::grant::{Outcome, Refusal};
use crate::inventory::Node;
use crate::inventory::runtime_limits::{RuntimeLimits, in_user_namespace, of_process};
use crate::policy::{OnRefusal, Policy};
use crate::request::{Can, Carrier, CarrierPath, Container, MARKER, Request};
use crate::rootfs::Rootfs;
use crate::roots::Roots;

/// Who makes the edit, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Station {
    /// The wrapper or the hook.
    pub path: CarrierPath,
    /// What is known of the runtime below: `runc`, `crun`, `youki`, as its file is called.
    pub runtime: String,
    /// What this process may lock and raise.
    pub limits: RuntimeLimits,
    /// This process is in a user namespace of its own.
    pub user_namespace: bool,
}

impl Station {
    /// This process, with that runtime below.
    pub fn here(roots: &Roots, path: CarrierPath, runtime: Option<&Path>) -> Self {
        let pid = std::process::id();
        let name = runtime.and_then(Path::file_name).unwrap_or_default();
        Self {
            path,
            runtime: name.to_string_lossy().into_owned(),
            limits: of_process(roots, pid),
            user_namespace: in_user_namespace(roots, pid),
        }
    }

    /// The path from a grant to the container.
    pub fn carrier(&self, container: &Container) -> Carrier {
        // youki sets limits when it is in the container's user namespace already, where no
        // capability raises them.
        let ceiling = match (self.runtime.as_str(), container.user_namespace) {
            ("youki", true) => self.limits.ceiling.or(self.limits.memlock),
            _ => self.limits.ceiling,
        };
        Carrier {
            name: match self.path {
                CarrierPath::Hook => "the podman hook".to_owned(),
                _ => "the runtime wrapper".to_owned(),
            },
            path: self.path,
            unified: match self.runtime.as_str() {
                "youki" => Can::No("youki does not write it".to_owned()),
                _ => Can::Yes,
            },
            unified_lines: match self.runtime.as_str() {
                "crun" => Can::Yes,
                _ => Can::No(
                    "limits for several need runc 1.2, which cannot be told here: ask for one \
                     adapter"
                        .to_owned(),
                ),
            },
            memlock_ceiling: ceiling,
            ..Carrier::default()
        }
    }
}

/// A document about which is to be decided.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// The document.
    pub document: &'a Value,
    /// Folder of the document.
    pub bundle: &'a Path,
    /// The container's identifier.
    pub id: &'a str,
    /// It carries a grant of ours, and that is on record.
    pub granted_before: bool,
}

/// What was decided.
#[derive(Debug)]
pub struct Admission {
    /// What came of it, the warnings about the image among those of a grant.
    pub outcome: Outcome,
    /// What was asked; `None`: it could not be understood.
    pub request: Option<Box<Request>>,
    /// The container.
    pub container: Container,
    /// Whether its network comes after this.
    pub pending: bool,
}

/// Decides about a container by its document.
///
/// # Errors
/// A sentence: whose it is cannot be told.
pub fn admit(
    roots: &Roots,
    policy: &Policy,
    station: &Station,
    candidate: &Candidate<'_>,
) -> Result<Admission, Refusal> {
    let document = candidate.document;
    let mut annotations = container::annotations(document);
    // One that is on record is known by that; of others it is the tenant's own word.
    annotations.remove(MARKER);
    let beside = Beside {
        id: candidate.id,
        inherited: station.limits.memlock,
        engine: Engine::of(document, candidate.bundle, candidate.id),
        user_namespace: station.user_namespace,
        granted_before: candidate.granted_before,
    };
    let mut container = container::read(document, &annotations, &beside)
        .map_err(|problem| Refusal { sentence: problem.to_string() })?;
    let root = rootfs(document, candidate.bundle);
    let network = container::network(document);
    let pending = network == Network::Later;
    container.nccl_conf_later = pending && root.as_ref().is_none_or(image::has_room);
    let carrier = station.carrier(&container);
    let group = document["linux"]["cgroupsPath"].as_str().unwrap_or_default();
    let mut case =
        Case { roots, policy, annotations: &annotations, container, carrier, network, group };
    Ok(match survey::survey(&mut case) {
        Ok(decision) => {
            let mut outcome = decision.outcome;
            if let Outcome::Granted(grant) = &mut outcome {
                let found = image_lacks(root.as_ref(), &case.container, &decision.node, grant);
                grant.warnings.extend(found);
                grant.warnings.extend(policy.doubts(&case.container.pod));
                let (args, env) = (&case.container.args, &case.container.env);
                let smc = grant.smc.as_ref();
                if let Some(sentence) =
                    smc.and_then(|smc| smc::out_of_reach(smc, root.as_ref(), args, env))
                {
                    outcome = refused(policy, &case.container, Refusal { sentence });
                }
            }
            let request = Some(Box::new(decision.request));
            Admission { outcome, request, container: case.container, pending }
        }
        Err(problem) => {
            let refusal = Refusal { sentence: problem.to_string() };
            let outcome = refused(policy, &case.container, refusal);
            Admission { outcome, request: None, container: case.container, pending }
        }
    })
}

/// A refusal, or a warning where policy lets such a pod start without.
fn refused(policy: &Policy, container: &Container, refusal: Refusal) -> Outcome {
    match policy.allowance(&container.pod).on_refusal {
        OnRefusal::Warn => Outcome::Waived(refusal),
        _ => Outcome::Refused(refusal),
    }
}

/// The container's root, as the document says it.
fn rootfs(document: &Value, bundle: &Path) -> Option<Rootfs> {
    let path = document["root"]["path"].as_str().filter(|path| !path.is_empty())?;
    Rootfs::open(&bundle.join(path))
}

fn image_lacks(
    root: Option<&Rootfs>,
    container: &Container,
    node: &Node,
    grant: &crate::grant::Grant,
) -> Vec<String> {
    let Some(root) = root else { return Vec::new() };
    let variables: BTreeMap<&str, &str> =
        container.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let path = variables.get("PATH").copied();
    image::missing(root, &container.args, path, node, &grant.adapters)
}
