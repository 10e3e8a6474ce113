//! SMC-R: whether containers that ask for it can have it.

use super::{Context, Finding, Unable};
use crate::daemon::records::Verdict;
use crate::daemon::smc_view;
use crate::inventory::{LinkLayer, NodeType};
use crate::policy;
use crate::request::Can;
use crate::smc::probe;

/// What the kernel and the adapters have. A node on which nobody asks for SMC-R lacks nothing.
pub fn available(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let wanted = context.records.containers.iter().any(|record| {
        matches!(&record.verdict, Verdict::Granted { grant } if grant.smc.is_some())
            || matches!(&record.verdict, Verdict::Refused { sentence } if sentence.starts_with("smc."))
    });
    let policy = policy::load(context.roots).unwrap_or_default();
    let facts = probe::probe(context.roots, &policy.smc);
    if !facts.loaded {
        return if wanted {
            Ok(vec![Finding::warn(
                "containers ask for SMC-R, and the module smc is not loaded",
                "modprobe -a smc smc_diag (and name both in /etc/modules-load.d); or policy: [smc] \
                 load_module = true",
            )])
        } else {
            Err(Unable::Absent("the module smc is not loaded, and no container asks for SMC-R"))
        };
    }
    let mut findings = Vec::new();
    let methods = [("tcp2smc", &facts.tcp2smc), ("bpf", &facts.bpf), ("preload", &facts.preload)];
    let can: Vec<&str> =
        methods.iter().filter(|(_, can)| **can == Can::Yes).map(|(name, _)| *name).collect();
    findings.push(if can.is_empty() {
        Finding::warn(
            format!("no method turns sockets here: {}", smc_view::methods(&facts).join("; ")),
            "kernel 6.11 or later with BTF; or a library that policy names: [smc] preload_library",
        )
    } else {
        Finding::ok(format!("sockets can be turned by {}", can.join(", ")))
    });
    let takes = context.node.hcas.iter().any(|hca| {
        hca.node_type == NodeType::Ca
            && hca.active_ports().any(|port| port.link_layer == LinkLayer::Ethernet)
    });
    if !takes && facts.tcp2smc != Can::Yes {
        findings.push(Finding::warn(
            "no adapter that SMC-R takes: it wants an ACTIVE RoCE port of node type CA",
            "see rdma-ctk list; adapters in iWARP mode need a kernel of Alibaba Cloud",
        ));
    }
    if context.live.is_some() && facts.eids.is_empty() && policy.smc.eid.is_empty() {
        findings.push(Finding::warn(
            "there is no user EID, so that version 2 of SMC-R cannot be spoken",
            "policy: [smc] eid = \"RDMA-CTK\", the same on all nodes",
        ));
    }
    Ok(findings)
}

/// How the connections go of containers that have it.
pub fn connections(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    context.live()?;
    let policy = policy::load(context.roots).unwrap_or_default();
    let view = smc_view::look(context.roots, context.records, &policy);
    if view.containers.is_empty() {
        return Err(Unable::Absent("no container has SMC-R"));
    }
    let mut findings: Vec<Finding> = Vec::new();
    for container in &view.containers {
        let sentence = format!("{} {}: {}", container.pod, container.name, container.summary);
        let fix = container.connections.iter().find_map(|connection| connection.fix);
        findings.push(match fix {
            Some(fix) => Finding::warn(sentence, fix),
            None => Finding::ok(sentence),
        });
    }
    for problem in view.problems {
        findings.push(Finding::warn(problem, "run it as root"));
    }
    Ok(findings)
}
