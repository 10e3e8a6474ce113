//! What a container gets that holds adapters by another plugin's doing: beside its nodes the
//! locked-memory limit, or that with CPUs and environment, as policy says. Whatever is wrong with
//! it is said and refuses nothing; it never gets an adapter more.

use super::words::{asked, list, quote};
use super::{Adapter, Case, Grant, Notes, Outcome, Refusal, cpuset, finish, gates, gid, memlock};
use crate::inventory::Hca;
use crate::policy::Claims;
use crate::request::{Claim, Key, NumaMode, Request};

/// Decides about a container that has a claim and asks for nothing by key.
pub(super) fn decide(case: &Case<'_>, claim: &Claim) -> Outcome {
    let left = |reason: String| Outcome::LeftAlone { reason };
    let by = quote(&claim.by);
    if case.policy.claims == Claims::Off {
        return left(format!(
            "policy gives nothing to what other plugins allocate ({by}; config.toml, claims = \"off\")"
        ));
    }
    if let Some(why) = gates::virtual_machine(case) {
        return left(why);
    }
    let held = held(case, claim);
    let hcas: Vec<&Hca> = held.iter().copied().filter(|hca| case.allowance.permits(hca)).collect();
    if hcas.is_empty() {
        let names = list(held.iter().map(|hca| &hca.name));
        return left(format!("policy gives none of its adapters ({names}) to this pod ({by})"));
    }
    let mut notes = Notes::default();
    let names = list(hcas.iter().map(|hca| &hca.name));
    notes.reason("claim", format!("holds {names} by {by}"));
    if hcas.len() < held.len() {
        let others = held.iter().filter(|hca| !case.allowance.permits(hca));
        let others = list(others.map(|hca| &hca.name));
        notes.warn("claim", format!("holds {others} by {by}, which policy does not give to it"));
    }
    for remark in &case.request.remarks {
        notes.warn("request", remark.as_str());
    }
    let full = case.policy.claims == Claims::Full;
    say_unserved(case.request, full, &mut notes);
    let memlock = said(memlock::raise(case, &mut notes), &mut notes).flatten();
    let mut grant = Grant { memlock, ..Grant::default() };
    if full {
        // Nobody asked for it, so nothing is insisted on.
        let request = Request {
            numa: if case.request.numa == NumaMode::Off { NumaMode::Off } else { NumaMode::Prefer },
            require: [].into(),
            ..case.request.clone()
        };
        let case = Case { request: &request, ..*case };
        if let Some(placed) = said(gid::choose(&case, &hcas, &mut notes), &mut notes) {
            finish(&case, placed, &mut grant, &mut notes);
        }
        let placement = cpuset::place(&case, &hcas, &mut notes);
        if let Some(placement) = said(placement, &mut notes) {
            placement.into_grant(&mut grant);
        }
    } else {
        grant.adapters = hcas.iter().map(|hca| Adapter::of(hca)).collect();
    }
    grant.warnings = notes.warnings;
    grant.reasons = notes.reasons;
    Outcome::Granted(Box::new(grant))
}

/// Adapters of this node that the claim names, in the node's order.
pub(super) fn held<'a>(case: &Case<'a>, claim: &Claim) -> Vec<&'a Hca> {
    let is_held = |hca: &&Hca| {
        let node = hca.uverbs.as_ref().map(|node| (node.major, node.minor));
        node.is_some_and(|numbers| claim.uverbs.contains(&numbers))
            || claim.names.contains(&hca.name)
            || !claim.names.is_empty()
                && hca.pci.is_some_and(|pci| claim.names.contains(&pci.to_string()))
    };
    case.node.hcas.iter().filter(is_held).collect()
}

/// Keys that were typed beside a claim and have no effect on it.
fn say_unserved(request: &Request, full: bool, notes: &mut Notes) {
    for key in request.asked_by.keys() {
        match key {
            Key::Memlock => {}
            Key::Env | Key::Numa if full => {}
            Key::Env | Key::Numa => notes.warn(
                "claim",
                format!(
                    "{}: policy gives only the memlock limit to what another plugin allocates",
                    asked(request, *key)
                ),
            ),
            _ => notes.warn(
                "claim",
                format!("{}: has no effect on what another plugin allocates", asked(request, *key)),
            ),
        }
    }
}

/// Turns a refusal into a warning.
fn said<T>(result: Result<T, Refusal>, notes: &mut Notes) -> Option<T> {
    result.map_err(|refusal| notes.warn("claim", refusal.sentence)).ok()
}
