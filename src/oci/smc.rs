//! SMC-R of containers that the wrapper or podman's hook gave it, without a daemon: what only can be
//! done once the container's namespaces and control group are there, in `createRuntime`, and what
//! has to go with it, in `poststop`.
//!
//! What is to be taken back is put down before it is done (`smc::claims`), so that a container whose
//! `poststop` nobody called leaves nothing for long either.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hook::state::State;
use super::ledger::Entry;
use crate::grant::{Inventory, Outcome, SmcFacts, SmcGrant, decide};
use crate::inventory::runtime_limits::in_user_namespace;
use crate::inventory::{self, Focus, rdma_netlink};
use crate::netns::{Namespace, pod_view};
use crate::policy::Policy;
use crate::records::{Record, Store, Verdict};
use crate::request::{Can, Request, SmcMethod};
use crate::rootfs::Rootfs;
use crate::roots::Roots;
use crate::smc::bpf::Switch;
use crate::smc::claims::{Claim, Claims, Keeper};
use crate::smc::{entry, group, prepare, probe};

/// How long GIDs of new addresses are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a user who is not the machine's administrator cannot do.
const ROOTLESS: &str = "a rootless engine prepares nothing on the machine: user EIDs, PNET ids and \
                        programs in the kernel are root's";

/// What the kernel has of SMC, for a container that asks for it.
pub(super) fn facts(roots: &Roots, policy: &Policy) -> SmcFacts {
    let rootless =
        !nix::unistd::geteuid().is_root() || in_user_namespace(roots, std::process::id());
    if rootless && roots.is_live() {
        let no = || Can::No(ROOTLESS.to_owned());
        let facts = probe::probe(roots, &policy.smc);
        return SmcFacts { tcp2smc: no(), bpf: no(), preload: no(), ..facts };
    }
    // Whether the module could be loaded is told by the facts.
    let (mut facts, _) = probe::probe_for(roots, &policy.smc);
    probe::try_out(roots, &policy.smc, &mut facts);
    facts
}

/// Why the library of method `preload` does not reach the container's program.
pub(super) fn out_of_reach(
    grant: &SmcGrant,
    root: Option<&Rootfs>,
    args: &[String],
    env: &[(String, String)],
) -> Option<String> {
    let root = root.filter(|_| grant.method == SmcMethod::Preload)?;
    let why = entry::of(root, args, env).refusal()?;
    Some(format!("smc.rdma-ctk.io: {}: {why}", grant.method))
}

/// Does what the container with that record needs before its program runs.
///
/// # Errors
/// A sentence. Then nothing of it is left.
pub(super) fn turn_on(
    roots: &Roots,
    policy: &Policy,
    key: &str,
    entry: &Entry,
    state: &State,
) -> Result<(), String> {
    let Verdict::Granted { grant } = &entry.record.verdict else { return Ok(()) };
    let Some(smc) = &grant.smc else { return Ok(()) };
    let network = PathBuf::from(format!("/proc/{}/ns/net", state.pid));
    let settled = match (smc.later, &entry.request) {
        (true, Some(request)) => decide_again(roots, policy, request, &network)?,
        (true, None) => return Err("what was asked is not on record".to_owned()),
        (false, _) => smc.clone(),
    };
    let claims = Claims::open(roots).map_err(|problem| problem.to_string())?;
    let done = carry_out(roots, &claims, key, &settled, entry, state, &network);
    done.inspect_err(|_| drop(claims.give_back(Keeper::Hook, key)))
}

fn carry_out(
    roots: &Roots,
    claims: &Claims,
    key: &str,
    grant: &SmcGrant,
    entry: &Entry,
    state: &State,
    network: &Path,
) -> Result<(), String> {
    let switched = match grant.method {
        SmcMethod::Bpf => {
            Some(group::of_process(roots, state.pid).map_err(|problem| problem.to_string())?)
        }
        _ => None,
    };
    let place = switched.as_ref().map_or(&entry.bundle, |(_, folder)| folder);
    let group = switched.as_ref().map(|(group, _)| *group);
    let claim = Claim::of_hook(grant, place, group);
    claims.put(key, &claim).map_err(|problem| problem.to_string())?;
    prepare::on_host(grant).map_err(|problem| problem.to_string())?;
    if !grant.pnet.is_empty() {
        let namespace = Namespace::open(roots, network).map_err(|problem| problem.to_string())?;
        if namespace.is_current(roots) {
            return Err("its network namespace is the host's, which is never changed".to_owned());
        }
        namespace
            .run(|| prepare::in_pod(roots, grant))
            .map_err(|problem| problem.to_string())?
            .map_err(|problem| problem.to_string())?;
    }
    match group {
        Some(group) => {
            Switch::new(roots, grant.mptcp).add(group).map_err(|problem| problem.to_string())
        }
        None => Ok(()),
    }
}

/// Decides about SMC-R again with the network that there is now.
fn decide_again(
    roots: &Roots,
    policy: &Policy,
    request: &Request,
    network: &Path,
) -> Result<SmcGrant, String> {
    let focus = Focus { pkeys: false, gids: None, ..Focus::EVERYTHING };
    let view = rdma_netlink::read_part(roots, &focus).unwrap_or_default();
    let node = inventory::part(roots, view.as_ref(), &focus);
    let pod = pod_view(roots, network, &node, PATIENCE);
    let facts = facts(roots, policy);
    // Devices are settled.
    let request = Request {
        smc: request.smc,
        smc_sysctls: request.smc_sysctls.clone(),
        asked_by: request.asked_by.clone(),
        require: BTreeSet::new(),
        ..Request::nothing(request.container.clone(), request.carrier.clone())
    };
    let inventory = Inventory { smc: Some(&facts), ..Inventory::of(&node, &pod) };
    match decide(&request, &inventory, policy) {
        Outcome::Granted(grant) => grant.smc.ok_or_else(|| "it is no longer granted".to_owned()),
        Outcome::Refused(refusal) | Outcome::Waived(refusal) => Err(refusal.sentence),
        Outcome::NotAsked | Outcome::LeftAlone { .. } => {
            Err("the decision is another one now".to_owned())
        }
    }
}

/// Takes back what a container had that has gone, and what others left. Returned is what could not
/// be taken back, a sentence each.
pub(super) fn turn_off(roots: &Roots, key: &str) -> Vec<String> {
    match Claims::open(roots) {
        Ok(claims) => {
            let mut problems = claims.give_back(Keeper::Hook, key);
            problems.extend(claims.sweep());
            problems
        }
        Err(problem) => vec![problem.to_string()],
    }
}

/// Switches a container that the daemon has given SMC-R by the program in the kernel, for a runtime
/// that starts a container even where the daemon, which is asked later, could not: CRI-O. It is the
/// daemon's to switch off.
///
/// # Errors
/// A sentence.
pub(super) fn switch_for_daemon(roots: &Roots, state: &State) -> Result<(), String> {
    let record = Store::new(roots).read(&state.id).map_err(|problem| problem.to_string())?;
    let Some(Record { verdict: Verdict::Granted { grant }, .. }) = record else { return Ok(()) };
    match grant.smc {
        Some(smc) if smc.method == SmcMethod::Bpf && state.pid != 0 => {
            let (group, _) =
                group::of_process(roots, state.pid).map_err(|problem| problem.to_string())?;
            Switch::new(roots, smc.mptcp)
                .add(group)
                .map_err(|problem| format!("smc.rdma-ctk.io: {}: {problem}", smc.method))
        }
        _ => Ok(()),
    }
}
