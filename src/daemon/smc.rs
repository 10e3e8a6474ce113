//! SMC-R of containers while they live: what is prepared when they are created, switched when they
//! start, and taken back when they stop. Everything here that asks the kernel does so on a
//! blocking thread.
//!
//! Nothing of it can take the daemon down: what fails, fails the container that asked for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::gate;
use super::plugin::Daemon;
use super::records::PodName;
use crate::grant::{SmcFacts, SmcGrant};
use crate::netns::Namespace;
use crate::nri::container::{Network, pod};
use crate::nri::proto::{Container, PodSandbox};
use crate::policy::Policy;
use crate::request::{Can, SmcMethod};
use crate::rootfs::Rootfs;
use crate::roots::Roots;
use crate::smc::bpf::{Group, Switch};
use crate::smc::claims::{Claim, Claims, Keeper};
use crate::smc::{entry, group, prepare, probe};

/// SMC-R of the node's containers; clones share it.
#[derive(Debug, Clone)]
pub struct Smc {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    roots: Roots,
    /// The kernel takes the program: it was tried.
    tried: Mutex<bool>,
    turned: Mutex<HashMap<String, Turned>>,
    /// Held while the switch and the book of containers are made to agree.
    switching: Mutex<()>,
}

/// A container that has SMC-R.
#[derive(Debug, Clone)]
struct Turned {
    grant: SmcGrant,
    group: Option<Group>,
    /// What the runtime calls its control group; empty before it starts.
    called: String,
}

/// A container that runs with SMC-R, as a runtime tells of it when a session begins.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its identifier.
    pub id: String,
    /// What the runtime calls its control group.
    pub group: String,
    /// What it was given.
    pub grant: SmcGrant,
}

impl Smc {
    /// None yet.
    pub fn new(roots: &Roots) -> Self {
        Self {
            inner: Arc::new(Inner {
                roots: roots.clone(),
                tried: Mutex::new(false),
                turned: Mutex::default(),
                switching: Mutex::default(),
            }),
        }
    }

    /// What the kernel has of SMC, for a container that asks for it.
    pub async fn facts(&self, policy: &Arc<Policy>) -> SmcFacts {
        let (inner, policy) = (Arc::clone(&self.inner), Arc::clone(policy));
        let facts = spawn_blocking(move || inner.facts(&policy)).await;
        facts.unwrap_or_else(|error| SmcFacts {
            bpf: Can::No(format!("looking at the kernel failed badly: {error}")),
            ..SmcFacts::default()
        })
    }

    /// Does what a container with that grant needs before it is created.
    ///
    /// # Errors
    /// A sentence.
    pub async fn prepare(
        &self,
        id: &str,
        grant: &SmcGrant,
        network: &Network,
    ) -> Result<(), String> {
        let (inner, id) = (Arc::clone(&self.inner), id.to_owned());
        let (grant, network) = (grant.clone(), network.clone());
        blocking(move || {
            let (begun, method) = (Instant::now(), grant.method);
            let done = inner.prepare(id.clone(), grant, &network);
            let took_us = begun.elapsed().as_micros();
            if done.is_err() {
                // The runtime tells nothing more of a container that was refused.
                let turned = inner.turned().remove(&id);
                if let Some(turned) = turned {
                    inner.stop(&id, &turned);
                }
            }
            done.inspect(|()| info!(id, %method, took_us, "prepared for SMC-R"))
        })
        .await
    }

    /// Switches a container that is about to start.
    ///
    /// # Errors
    /// A sentence.
    pub async fn start(&self, grant: &SmcGrant, container: &Container) -> Result<(), String> {
        let (inner, grant) = (Arc::clone(&self.inner), grant.clone());
        let id = container.id.clone();
        let called = container.linux.as_ref().map(|linux| linux.cgroups_path.clone());
        let env = container.env.iter().filter_map(|variable| variable.split_once('='));
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let program = Program { args: container.args.clone(), env };
        blocking(move || inner.start(id, grant, &called.unwrap_or_default(), &program)).await
    }

    /// Takes back what a container had, which has stopped.
    pub fn stop(&self, id: &str) {
        let Some(turned) = self.inner.turned().remove(id) else { return };
        let inner = Arc::clone(&self.inner);
        let id = id.to_owned();
        spawn_blocking(move || inner.stop(&id, &turned));
    }

    /// A process of each container that has SMC-R and runs, those of hooks among them. Reads a file
    /// for each.
    pub fn processes(&self) -> Vec<u32> {
        let called: Vec<String> =
            self.inner.turned().values().map(|turned| turned.called.clone()).collect();
        let own = called.iter().filter(|called| !called.is_empty());
        let own = own.filter_map(|called| group::first_process(&self.inner.roots, called));
        let others = Claims::open(&self.inner.roots).map(|claims| claims.all());
        let others = others.unwrap_or_default().into_iter();
        let others = others.filter(|(_, _, claim)| claim.group.is_some());
        own.chain(others.filter_map(|(_, _, claim)| group::process_in(&claim.place))).collect()
    }

    /// Makes these containers the only ones that are switched: after a restart, when the runtime
    /// has told what there is.
    pub fn resume(&self, running: Vec<Running>) {
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || inner.resume(running));
    }
}

async fn blocking(
    work: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("it failed badly: {error}")))
}

/// What a container begins with.
struct Program {
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Inner {
    fn turned(&self) -> MutexGuard<'_, HashMap<String, Turned>> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switching(&self) -> MutexGuard<'_, ()> {
        self.switching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn facts(&self, policy: &Policy) -> SmcFacts {
        let (mut facts, problem) = probe::probe_for(&self.roots, &policy.smc);
        if let Some(problem) = problem {
            warn!("{problem}");
        }
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if facts.bpf == Can::Yes && !*tried {
            probe::try_out(&self.roots, &policy.smc, &mut facts);
            *tried = facts.bpf == Can::Yes;
        }
        facts
    }

    fn prepare(&self, id: String, grant: SmcGrant, network: &Network) -> Result<(), String> {
        let claims = Claims::open(&self.roots).map_err(|problem| problem.to_string())?;
        if let Some(claim) = Claim::of_daemon(&grant) {
            claims.put(&id, &claim).map_err(|problem| problem.to_string())?;
        }
        // From here on it has to be taken back, whether or not the rest succeeds.
        self.turned()
            .insert(id, Turned { grant: grant.clone(), group: None, called: String::new() });
        prepare::on_host(&grant).map_err(|problem| problem.to_string())?;
        drop(claims);
        let Network::Own(path) = network else { return Ok(()) };
        if grant.pnet.is_empty() && (grant.sysctls.is_empty() || grant.by_runtime) {
            return Ok(());
        }
        let namespace =
            Namespace::open(&self.roots, path).map_err(|problem| problem.to_string())?;
        if namespace.is_current(&self.roots) {
            return Err(format!(
                "{} is the host's network namespace, which is never changed",
                path.display()
            ));
        }
        namespace
            .run(|| prepare::in_pod(&self.roots, &grant))
            .map_err(|problem| problem.to_string())?
            .map_err(|problem| problem.to_string())
    }

    fn start(
        &self,
        id: String,
        grant: SmcGrant,
        called: &str,
        program: &Program,
    ) -> Result<(), String> {
        let mut group = None;
        let _switching = self.switching();
        match grant.method {
            SmcMethod::Bpf => {
                let found =
                    group::group(&self.roots, called).map_err(|problem| problem.to_string())?;
                let switch = Switch::new(&self.roots, grant.mptcp);
                switch.add(found).map_err(|problem| problem.to_string())?;
                group = Some(found);
            }
            SmcMethod::Preload => {
                // The runtime's own process waits in there for the start; no user code has run.
                let root = group::first_process(&self.roots, called)
                    .map(|pid| self.roots.proc.join(format!("{pid}/root")))
                    .and_then(|root| Rootfs::open(&root));
                let linked = root.map(|root| entry::of(&root, &program.args, &program.env));
                if let Some(why) = linked.and_then(entry::Linked::refusal) {
                    return Err(why.to_owned());
                }
            }
            // It is in the pod's namespace by now, or the container would not have been created.
            SmcMethod::Tcp2smc | SmcMethod::Auto | SmcMethod::Off => {}
        }
        self.turned().insert(id, Turned { grant, group, called: called.to_owned() });
        Ok(())
    }

    fn stop(&self, id: &str, turned: &Turned) {
        if let Some(group) = turned.group
            && let Err(problem) = Switch::new(&self.roots, turned.grant.mptcp).remove(group.id)
        {
            warn!("a stopped container stays in the switch of SMC-R: {problem}");
        }
        match Claims::open(&self.roots) {
            Ok(claims) => {
                for problem in claims.give_back(Keeper::Daemon, id) {
                    warn!(id, "{problem}");
                }
            }
            Err(problem) => warn!(id, "what it had of SMC-R stays: {problem}"),
        }
    }

    fn resume(&self, running: Vec<Running>) {
        let _switching = self.switching();
        let mut now = HashMap::new();
        for Running { id, group: called, grant } in running {
            let found = (grant.method == SmcMethod::Bpf)
                .then(|| group::group(&self.roots, &called))
                .transpose();
            // One that cannot be told has stopped meanwhile.
            let group = found.unwrap_or_else(|problem| {
                warn!(id, "not switched to SMC-R: {problem}");
                None
            });
            now.insert(id, Turned { grant, group, called });
        }
        // Before the book is looked at: who prepares a container has a claim, and then is in it.
        let claims = Claims::open(&self.roots);
        let mut groups: Vec<Group> = {
            let mut known = self.turned();
            for (id, turned) in std::mem::take(&mut *known) {
                // Of whom nothing was told: made since the runtime began to tell, or gone.
                if turned.called.is_empty() || group::group(&self.roots, &turned.called).is_ok() {
                    now.entry(id).or_insert(turned);
                }
            }
            *known = now;
            known.values().filter_map(|turned| turned.group).collect()
        };
        let theirs = claims.and_then(|claims| {
            for problem in self.agree(&claims) {
                warn!("{problem}");
            }
            Ok((claims.groups()?, claims))
        });
        // The claims are locked until the switch is set by them.
        let _claims = match theirs {
            Ok((theirs, claims)) => {
                groups.extend(theirs);
                claims
            }
            // Then it is not known whose the other groups are, and nothing of theirs is dropped.
            Err(problem) => {
                warn!("SMC-R of running containers cannot be looked after: {problem}");
                return;
            }
        };
        let mptcp = self.turned().values().any(|turned| turned.grant.mptcp);
        match Switch::new(&self.roots, mptcp).keep_only(&groups) {
            Ok(0) if groups.is_empty() => {}
            Ok(dropped) => {
                info!(containers = groups.len(), dropped, "SMC-R goes on where it was");
            }
            Err(problem) => warn!("SMC-R of running containers cannot be looked after: {problem}"),
        }
    }

    /// Makes the daemon's claims those of the containers that it knows, and takes back what an earlier
    /// daemon left and nobody claims. Returned is what could not be done, a sentence each.
    fn agree(&self, claims: &Claims) -> Vec<String> {
        let known: HashMap<String, Option<Claim>> = {
            let turned = self.turned();
            let claim = |turned: &Turned| Claim::of_daemon(&turned.grant);
            turned.iter().map(|(id, turned)| (id.clone(), claim(turned))).collect()
        };
        let mut problems = claims.sweep();
        for (keeper, id, _) in claims.all() {
            if keeper == Keeper::Daemon && !known.contains_key(&id) {
                problems.extend(claims.give_back(keeper, &id));
            }
        }
        for (id, claim) in known {
            let put = claim.map(|claim| claims.put(&id, &claim));
            problems.extend(put.and_then(Result::err).map(|problem| problem.to_string()));
        }
        if self.roots.is_live() {
            // Where SMC is not there, there is nothing to take back.
            problems.extend(claims.forget(&prepare::ours().unwrap_or_default()));
        }
        problems
    }
}

impl Daemon {
    /// What a container has of SMC-R that the runtime tells of when a session begins.
    pub(super) fn running_smc(&self, container: &Container) -> Option<Running> {
        let group = container.linux.as_ref().map(|linux| linux.cgroups_path.clone());
        let (id, group) = (container.id.clone(), group.unwrap_or_default());
        self.containers.smc(&id).map(|grant| Running { id, group, grant })
    }

    /// Switches a container that starts and was granted SMC-R.
    ///
    /// # Errors
    /// The sentence with which it is refused.
    pub(super) async fn start_smc(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
    ) -> Result<(), String> {
        let name = || PodName::new(&pod(sandbox), &sandbox.id);
        let Some(grant) = self.containers.smc(&container.id) else {
            // One that is on record was given something else, or runs without.
            if self.containers.is_recorded(&container.id) {
                return Ok(());
            }
            let (annotations, policy) = (&sandbox.annotations, self.policies.now());
            let asked = gate::asked_smc(annotations, &pod(sandbox), &container.name, &policy);
            let left = self.session().is_some_and(|session| session.left.is_some());
            let Some(asked) = asked.filter(|_| !left) else { return Ok(()) };
            let sentence = format!(
                "{asked}: what the container was given is not on record, so that its sockets would \
                 stay on TCP; it has to be created again"
            );
            return self.refuse_start(sandbox, container, name(), sentence);
        };
        let Err(why) = self.smc.start(&grant, container).await else { return Ok(()) };
        let sentence = format!("smc.rdma-ctk.io: {}: {why}", grant.method);
        self.refuse_start(sandbox, container, name(), sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::PnetGrant;

    #[tokio::test]
    async fn what_could_not_be_prepared_leaves_no_claim() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let smc = Smc::new(&roots);
        let pnet = PnetGrant {
            name: "RCTK1".into(),
            adapter: "mlx5_0".into(),
            port: 1,
            interface: "eth0".into(),
        };
        let grant = SmcGrant {
            method: SmcMethod::Bpf,
            eid: Some("no user EID!".into()),
            pnet: vec![pnet],
            sysctls: Vec::new(),
            by_runtime: false,
            mptcp: false,
            later: false,
        };
        assert!(smc.prepare("c1", &grant, &Network::Host).await.is_err());
        assert!(smc.inner.turned().is_empty());
        assert_eq!(Claims::open(&roots).unwrap().all(), []);
    }
}
