//! The daemon: whether somebody serves, and what went by it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::bundles::read_all;
use super::{Context, Finding, Unable};
use crate::daemon::records::Verdict;
use crate::policy;

/// Whether a daemon runs and is connected.
pub fn serving(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let start = "`systemctl enable --now rdma-ctk` (or start `rdma-ctk nri`), and look at its log";
    let Some(state) = &context.records.daemon else {
        // A fixture without the folder says nothing about a daemon.
        context.live()?;
        return Ok(vec![Finding::fail(
            "no daemon has served since this node booted: annotations have no effect",
            start,
        )]);
    };
    let who = format!("rdma-ctk {} (pid {})", state.version, state.pid);
    let comm = fs::read_to_string(context.roots.proc.join(state.pid.to_string()).join("comm"));
    let runs = comm.is_ok_and(|name| name.contains("rdma-ctk"));
    let since = ago(state.since);
    Ok(vec![match (&state.runtime, runs, state.connected) {
        (_, false, _) => Finding::fail(
            format!("{who} is gone: annotations have no effect until it is back"),
            start,
        ),
        (Some(runtime), true, true) => Finding::ok(format!(
            "{who} has served {} {} for {since}",
            runtime.name, runtime.version
        )),
        (_, true, false) | (None, true, true) => Finding::fail(
            format!(
                "{who} runs, and has not been connected to a runtime for {since}: annotations have \
                 no effect"
            ),
            "see the check `nri`: is NRI on, and its socket there?",
        ),
    }])
}

/// How far a runtime's call may lag behind the bundle that it is about, in seconds.
const LAG: u64 = 30;

/// Whether the daemon is told of containers that appear: a runtime may keep a plugin connected and
/// call it no more (a synchronisation that did not finish, a lost connection that nobody noticed).
pub fn told(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let live = context.live()?;
    let state = context.records.daemon.as_ref().ok_or(Unable::Absent("no daemon has served"))?;
    let address = state.metrics.ok_or(Unable::Absent("the daemon's metrics are switched off"))?;
    let text = live.metrics(address).ok_or(Unable::Absent("no daemon serves metrics"))?;
    let last = last_event(&text).ok_or(Unable::Absent("no call of a runtime has been counted"))?;
    let newest = read_all(context.roots)
        .iter()
        .filter(|bundle| bundle.cri)
        .filter_map(|bundle| bundle.made?.duration_since(UNIX_EPOCH).ok())
        .max()
        .map_or(0, |made| made.as_secs());
    Ok(vec![if newest > last.saturating_add(LAG) {
        Finding::warn(
            format!(
                "containers appear that rdma-ctk is not told of: its runtime last called {} ago, a \
                 container was made {} ago",
                ago(last),
                ago(newest)
            ),
            "restart the daemon; if it comes again, raise plugin_request_timeout or update the \
             runtime",
        )
    } else {
        Finding::ok(format!("the runtime last called {} ago, and no container is newer", ago(last)))
    }])
}

/// Value of the gauge of the last call in seconds since 1970; `None` when it is 0 or absent.
fn last_event(text: &str) -> Option<u64> {
    let name = "rdma_ctk_nri_last_event_timestamp_seconds ";
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().parse().ok().filter(|&seconds| seconds > 0)
}

/// The policy file, as the daemon would read it.
pub fn policy(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let path = policy::path(context.roots);
    Ok(vec![match policy::load(context.roots) {
        Ok(_) if path.exists() => Finding::ok(format!("{} can be used", path.display())),
        Ok(_) => Finding::ok("no policy file: the default holds"),
        Err(error) => Finding::fail(
            format!("the policy cannot be used: {error}"),
            "mend it; a daemon that runs keeps the policy that it has, and none starts with this",
        ),
    }])
}

/// Containers that run without what they asked for, and other things that were noticed.
pub fn slipped(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let records = context.records;
    let mut findings = Vec::new();
    for record in &records.containers {
        let who = format!("{} container {}", record.pod, record.name);
        match &record.verdict {
            Verdict::Slipped { sentence } => findings.push(Finding::fail(
                format!("{who}: {sentence}"),
                "delete the pod, so that it is made anew",
            )),
            Verdict::Waived { sentence } => findings.push(Finding::warn(
                format!("{who} runs without, as policy lets it: {sentence}"),
                "see `rdma-ctk explain`, or set on_refusal = \"refuse\" in the policy",
            )),
            Verdict::Granted { .. } | Verdict::Refused { .. } | Verdict::Left { .. } => {}
        }
    }
    for pod in &records.pods {
        for annotation in &pod.unmatched {
            findings.push(Finding::warn(
                format!("{}: {annotation} names no container of the pod", pod.pod),
                "correct the container's name in the annotation",
            ));
        }
    }
    for error in &records.unreadable {
        findings.push(Finding::warn(error.to_string(), "run doctor as root"));
    }
    if findings.is_empty() {
        if records.daemon.is_none() && records.containers.is_empty() {
            return Err(Unable::Absent("no daemon has kept records here"));
        }
        findings.push(Finding::ok("no container on record runs without what it asked for"));
    }
    Ok(findings)
}

/// How long since that second of 1970, coarsely.
pub fn ago(then: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    span(now.saturating_sub(then))
}

fn span(seconds: u64) -> String {
    for (unit, name) in [(86_400, "day"), (3_600, "hour"), (60, "minute")] {
        if seconds >= unit {
            let count = seconds / unit;
            return format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        }
    }
    format!("{seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_coarse() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 minute"),
            (7_199, "1 hour"),
            (7_200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
