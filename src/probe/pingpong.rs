//! The adapter's talk with itself: two RC queue pairs, messages to and fro, writes.

use super::gid::Choice;
use super::memory::size;
use super::verbs::{Bandwidth, Fault, Latency, Transcript};
use super::{Exit, Finding, Stage};
use crate::inventory::{Hca, LinkLayer, NodeType};

/// Steps of the verbs part that belong to it.
const STEPS: [&str; 6] = ["gid", "cq", "qp", "connect", "latency", "bandwidth"];

/// Judges it.
pub(super) fn check(
    hca: &Hca,
    choice: &Choice,
    traffic: u64,
    said: &Transcript,
    findings: &mut Vec<Finding>,
) {
    let stage = Stage::Pingpong;
    let name = &hca.name;
    let finding = if let Some(fault) = said.fault_in(&STEPS) {
        let step = said.step.as_deref().unwrap_or_default();
        let (what, fix) = words(step, fault, choice);
        Finding::fail(stage, Exit::Traffic, format!("{name}: {what}: {fault}"), fix)
    } else if let (Some(latency), Some(bandwidth)) = (said.latency, said.bandwidth) {
        Finding::ok(stage, format!("{name}: {}, {}", time(latency), speed(bandwidth)))
    } else if said.fault.is_some() {
        // It did not come so far, which is a finding of its own.
        return;
    } else if choice.port.is_some() && !choice.has_traffic {
        match (hca.node_type, choice.index) {
            (NodeType::Rnic, _) => {
                Finding::note(stage, format!("{name}: not tried, iWARP connects by rdma_cm only"))
            }
            _ if hca.ports.iter().any(|port| port.link_layer == LinkLayer::Unknown) => {
                Finding::note(stage, format!("{name}: not tried, EFA has no RC connections"))
            }
            _ => Finding::note(stage, format!("{name}: not tried without a GID")),
        }
    } else if choice.port.is_none() {
        Finding::note(stage, format!("{name}: not tried without a port that is up"))
    } else if traffic == 0 {
        Finding::note(stage, format!("{name}: not tried, as asked"))
    } else {
        Finding::note(stage, format!("{name}: not tried without memory"))
    };
    findings.push(finding.of(hca));
}

/// What fails and what to do.
fn words(step: &str, fault: &Fault, choice: &Choice) -> (String, &'static str) {
    const LIMITS: &str = "memlock first: queues count against it too; then rdma.max of the cgroup";
    let gid = choice.index.map_or(String::new(), |index| format!(" with GID index {index}"));
    match step {
        "gid" => (
            format!("the library cannot read the GID{gid}"),
            "the table has changed meanwhile: try again",
        ),
        "cq" => ("a completion queue cannot be made".to_owned(), LIMITS),
        "qp" => ("a queue pair cannot be made".to_owned(), LIMITS),
        "connect" => (
            format!("two queue pairs cannot be connected{gid}"),
            "the slot is empty or another's: attach an interface of the adapter, or use hostNetwork",
        ),
        _ => match fault {
            Fault::Status { status: 5 | 12, .. } | Fault::TimedOut => (
                format!("the adapter does not answer itself{gid}"),
                "link or switch port down, an interface that was moved between namespaces \
                 (soft-RoCE before 6.13 then answers nobody), or a firewall on UDP port 4791",
            ),
            _ => (format!("traffic fails{gid}"), "look into the kernel's log on the host"),
        },
    }
}

fn time(latency: Latency) -> String {
    let tenths = (latency.nanoseconds + 50) / 100;
    format!("{}.{} us one way ({} bytes)", tenths / 10, tenths % 10, latency.message)
}

fn speed(bandwidth: Bandwidth) -> String {
    let per_second =
        u128::from(bandwidth.bytes) * 1_000_000_000 / u128::from(bandwidth.nanoseconds.max(1));
    let tenths = per_second * 10 / (1 << 20);
    format!("{}.{} MiB/s (writes of {})", tenths / 10, tenths % 10, size(bandwidth.message))
}
