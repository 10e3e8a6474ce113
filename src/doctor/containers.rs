//! Running containers that hold an adapter: whether they can use it.

use std::fs;

use super::bundles::{Bundle, read_all};
use super::memory::size;
use super::{Context, Finding, Unable};
use crate::cdi::PROVIDERS;
use crate::daemon::runtime_limits::memlock as memlock_of;
use crate::rootfs::Rootfs;
use crate::roots::Roots;

/// Below this, not even a queue of usual size can be registered.
const HOPELESS: u64 = 1 << 20;

/// Checks every running container that has device nodes of adapters, or an annotation of ours.
pub fn running(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let bundles = read_all(context.roots);
    if bundles.is_empty() {
        return Err(Unable::Absent("containerd runs no container here"));
    }
    let mut findings = Vec::new();
    let mut fine = 0_usize;
    for bundle in &bundles {
        let rootfs = bundle
            .pid
            .and_then(|pid| Rootfs::open(&context.roots.proc.join(pid.to_string()).join("root")));
        let inside = rootfs.as_ref().map(|root| root.list("dev/infiniband")).unwrap_or_default();
        if bundle.nodes.is_empty() && inside.is_empty() && bundle.annotations.is_empty() {
            continue;
        }
        let mut found: Vec<Finding> = Vec::new();
        found.extend(went_unheard(bundle).map(|sentence| {
            Finding::warn(
                sentence,
                "start it through CRI (Kubernetes, crictl), or give it the nodes by `--device` \
                 and the limit by `--ulimit memlock=-1`",
            )
        }));
        found.extend(outside_of_document(bundle, &inside));
        if !bundle.nodes.is_empty() || !inside.is_empty() {
            found.extend(memlock(context, bundle, rootfs.as_ref()));
            if let Some(root) = &rootfs {
                found.extend(library(context, bundle, root));
            }
        }
        if found.is_empty() {
            fine += 1;
        }
        findings.extend(found);
    }
    if fine > 0 || findings.is_empty() {
        findings.push(Finding::ok(match fine {
            0 => "no container here holds an adapter".to_owned(),
            1 => "1 container holds an adapter and can use it".to_owned(),
            _ => format!("{fine} containers hold an adapter and can use it"),
        }));
    }
    Ok(findings)
}

/// Running containers with an annotation of ours that nobody heard, a sentence each.
pub fn unheard(roots: &Roots) -> Vec<String> {
    read_all(roots).iter().filter_map(went_unheard).collect()
}

/// An annotation of ours on a container that did not come through CRI: nobody heard it.
fn went_unheard(bundle: &Bundle) -> Option<String> {
    if bundle.cri || bundle.annotations.is_empty() || !bundle.nodes.is_empty() {
        return None;
    }
    Some(format!(
        "{} has {}, without effect: containers of nerdctl and ctr do not pass through NRI",
        bundle.title,
        bundle.annotations.join(", ")
    ))
}

/// Nodes that somebody made in a container behind its runtime's back.
fn outside_of_document(bundle: &Bundle, inside: &[String]) -> Vec<Finding> {
    if bundle.mounted || bundle.all_devices {
        return Vec::new();
    }
    let extra: Vec<&str> =
        inside.iter().filter(|name| !bundle.nodes.contains(name)).map(String::as_str).collect();
    if extra.is_empty() {
        return Vec::new();
    }
    vec![Finding::fail(
        format!(
            "{}: device access is not in the runtime spec ({}); a systemctl daemon-reload will \
             revoke it",
            bundle.title,
            extra.join(", ")
        ),
        "have the nodes added by NRI or the runtime (devices.rdma-ctk.io), not by a hook",
    )]
}

/// The limit that holds in the container, and a file in the image that was meant to raise it.
fn memlock(context: &Context<'_>, bundle: &Bundle, rootfs: Option<&Rootfs>) -> Vec<Finding> {
    let of_process = bundle.pid.and_then(|pid| {
        let path = context.roots.proc.join(pid.to_string()).join("limits");
        memlock_of(&fs::read_to_string(path).ok()?)
    });
    let Some((soft, hard)) = of_process.or(bundle.memlock) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let ask = "ask with devices.rdma-ctk.io, which raises the limit, or with memlock.rdma-ctk.io";
    if soft < HOPELESS {
        findings.push(Finding::fail(
            format!(
                "{}: memlock {}: ibv_create_cq / ibv_reg_mr will fail",
                bundle.title,
                size(soft)
            ),
            ask,
        ));
    } else if soft != u64::MAX && bundle.memlock.is_none() {
        findings.push(Finding::warn(
            format!(
                "{}: memlock {}, as its runtime has it: larger registrations will fail",
                bundle.title,
                size(soft)
            ),
            ask,
        ));
    }
    let in_image = rootfs
        .and_then(|root| root.read("etc/security/limits.conf"))
        .is_some_and(|text| names_memlock(&text));
    if hard != u64::MAX && in_image && !findings.is_empty() {
        findings.push(Finding::warn(
            format!(
                "{}: limits.conf in the image is not read for the entry process; hard limit {} \
                 comes from the runtime",
                bundle.title,
                size(hard)
            ),
            ask,
        ));
    }
    findings
}

/// Whether a limits.conf has a line for memlock.
fn names_memlock(text: &str) -> bool {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .any(|line| line.split_whitespace().nth(2) == Some("memlock"))
}

/// Whether the image has libibverbs, and the provider for the drivers of its adapters.
fn library(context: &Context<'_>, bundle: &Bundle, root: &Rootfs) -> Vec<Finding> {
    if !root.has_libibverbs() {
        return vec![Finding::warn(
            format!("{}: image has no libibverbs: NCCL will use TCP", bundle.title),
            "install libibverbs1 and ibverbs-providers (Debian) or libibverbs (Fedora) in the image",
        )];
    }
    let mut drivers: Vec<&str> = context
        .node
        .hcas
        .iter()
        .filter(|hca| hca.uverbs.as_ref().is_some_and(|node| bundle.nodes.contains(&node.name)))
        .map(|hca| hca.driver.0.as_str())
        .collect();
    drivers.sort_unstable();
    drivers.dedup();
    // The node's own may have been given by CDI.
    let provided = |driver: &str| {
        root.names_provider(driver)
            || root.has_provider(driver)
            || root.has_provider_in(PROVIDERS, driver)
    };
    drivers
        .into_iter()
        .filter(|driver| !provided(driver))
        .map(|driver| {
            Finding::warn(
                format!("{}: no provider for {driver} (lib{driver}) in the image", bundle.title),
                "install ibverbs-providers of a version that knows the adapter",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_conf_is_read_by_its_third_word() {
        for (text, expected) in [
            ("* soft memlock unlimited\n", true),
            ("* hard nofile 10 # memlock\n", false),
            ("# * soft memlock unlimited\n", false),
            ("", false),
        ] {
            assert_eq!(names_memlock(text), expected, "{text:?}");
        }
    }
}
