//! The locked-memory limit. Registered memory is counted against `RLIMIT_MEMLOCK` of the process
//! (`ib_umem_get`); CAP_IPC_LOCK lifts that in the initial user namespace only, and never for a
//! user other than root, since nothing makes it ambient.

use super::gates::{carrier, place};
use super::words::{refuse, size};
use super::{Case, MemlockGrant, Notes, Refusal};
use crate::request::{Can, Key, Limit, Memlock};

/// The limit to set; `None` where the present one suffices.
pub(super) fn raise(case: &Case<'_>, notes: &mut Notes) -> Result<Option<MemlockGrant>, Refusal> {
    let request = case.request;
    // What another plugin allocates is never refused, whatever was typed beside it.
    let typed = request.devices.is_some() && request.asked_by.contains_key(&Key::Memlock);
    let mut bytes = match request.memlock {
        Memlock::Unlimited => u64::MAX,
        Memlock::Bytes(bytes) => bytes,
    };
    if let Some(most) = case.allowance.memlock_max.filter(|most| *most < bytes) {
        if typed {
            let place = place(case, "memlock_max", |a| a.memlock_max.is_none_or(|m| m >= bytes));
            let why = format!("policy allows at most {} ({place})", size(most));
            return Err(refuse(request, Key::Memlock, why));
        }
        notes.reason("memlock", format!("policy allows at most {}", size(most)));
        bytes = most;
    }
    if let Some(most) = request.carrier.memlock_ceiling.filter(|most| *most < bytes) {
        notes.warn(
            "memlock",
            format!(
                "{} runs without CAP_SYS_RESOURCE and cannot raise the memlock limit above {}; {} \
                 was wanted",
                carrier(request),
                size(most),
                size(bytes)
            ),
        );
        bytes = most;
    }
    let present = match request.container.memlock {
        Limit::Own(present) => Some((present, "the container's own")),
        Limit::Inherited(Some(present)) => Some((present, "the inherited")),
        Limit::Inherited(None) | Limit::Invisible => None,
    };
    if let Some((present, whose)) = present
        && present >= bytes
    {
        notes.reason("memlock", format!("{whose} limit suffices: {}", size(present)));
        return Ok(None);
    }
    if let Can::No(lacks) = &request.carrier.rlimits {
        let why = format!(
            "{} cannot set the memlock limit, without which registering memory fails: {lacks}",
            carrier(request)
        );
        return Err(refuse(request, if typed { Key::Memlock } else { Key::Devices }, why));
    }
    match present {
        Some((present, whose)) => {
            notes.reason("memlock", format!("{} instead of {whose} {}", size(bytes), size(present)))
        }
        None if bytes == u64::MAX => notes.reason("memlock", size(bytes)),
        None => notes.warn(
            "memlock",
            format!(
                "memlock limit set to {}: the present one cannot be seen here and may have been \
                 higher",
                size(bytes)
            ),
        ),
    }
    remark_on_ipc_lock(case, notes);
    let higher_hard = request.container.memlock_hard.filter(|hard| *hard > bytes);
    Ok(Some(MemlockGrant { bytes, higher_hard }))
}

/// Says why the capability that people know does not help.
fn remark_on_ipc_lock(case: &Case<'_>, notes: &mut Notes) {
    let container = &case.request.container;
    let held = container.capabilities.as_ref().is_some_and(|held| held.contains("IPC_LOCK"));
    if !held {
        return;
    }
    if container.user_namespace {
        notes.reason(
            "memlock",
            "IPC_LOCK has no effect in a user namespace; memlock limit raised instead",
        );
    } else if let Some(uid) = container.uid.filter(|uid| *uid != 0) {
        notes.reason(
            "memlock",
            format!("IPC_LOCK is not effective for uid {uid}; memlock limit raised instead"),
        );
    }
}
