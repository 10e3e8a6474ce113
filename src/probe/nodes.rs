//! Device nodes, opened one by one.
//!
//! The texts of verbs programs do not tell an absent node from a forbidden one or from one whose
//! mode keeps this user out; only opening it does.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

use super::verbs::errno_text;
use super::{Exit, Finding, Machine, Options, Place, Stage};
use crate::inventory::{CharDev, Hca, NetnsMode};

/// What came of opening a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It opens.
    Opens,
    /// There is none.
    Absent,
    /// It is another device than the kernel's of that name: its numbers.
    Stale(u64, u64),
    /// It does not open.
    Refused(Errno),
}

/// Opens the node of a device.
pub(super) fn open(machine: &dyn Machine, place: &Place<'_>, device: &CharDev) -> Access {
    let path = place.roots.dev.join("infiniband").join(&device.name);
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) => {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            let absent = matches!(errno, Errno::ENOENT | Errno::ENOTDIR);
            return if absent { Access::Absent } else { Access::Refused(errno) };
        }
    };
    if metadata.file_type().is_char_device() {
        let numbers = (major(metadata.rdev()), minor(metadata.rdev()));
        if numbers != (u64::from(device.major), u64::from(device.minor)) {
            return Access::Stale(numbers.0, numbers.1);
        }
    }
    match machine.open(&path) {
        Ok(()) => Access::Opens,
        Err(Errno::ENOENT) => Access::Absent,
        Err(errno) => Access::Refused(errno),
    }
}

/// What is wrong with a node that is there and does not open, and what to do; `who` is whose it is.
pub(super) fn refusal(
    machine: &dyn Machine,
    place: &Place<'_>,
    device: &CharDev,
    who: &str,
    access: Access,
) -> Option<(String, String)> {
    let path = device.path();
    let numbers = format!("{}:{}", device.major, device.minor);
    let opening =
        |errno: Errno| format!("{path} ({who}): open fails with {}", errno_text(errno as i32));
    Some(match access {
        Access::Opens | Access::Absent => return None,
        Access::Stale(major, minor) => (
            format!("{path} ({who}): it is device {major}:{minor}, the kernel's is {numbers}"),
            "the node is stale: start the container anew, with devices.rdma-ctk.io instead of a \
             node of its own"
                .to_owned(),
        ),
        Access::Refused(Errno::EPERM) => {
            let exclusive = place.node.netns_mode == NetnsMode::Exclusive;
            let other = if exclusive { ", or it is in another RDMA namespace" } else { "" };
            (
                format!(
                    "{}: the container's device cgroup has no rule for {numbers}{other}",
                    opening(Errno::EPERM)
                ),
                "a mount of /dev/infiniband or a hook brings nodes without a rule: ask with \
                 devices.rdma-ctk.io instead, which brings both"
                    .to_owned(),
            )
        }
        Access::Refused(Errno::EACCES) => {
            let mode = device.mode.map_or(String::new(), |mode| format!("mode {mode:04o}, "));
            (
                format!("{}: {mode}and this is user {}", opening(Errno::EACCES), machine.user()),
                "on the host, give the node mode 0666 (the kernel's default; a udev rule has \
                 changed it), or run as its owner"
                    .to_owned(),
            )
        }
        Access::Refused(Errno::ENXIO) => (
            format!("{}: no driver serves {numbers}", opening(Errno::ENXIO)),
            "the node is stale or the module is gone: `rdma-ctk doctor` on the host".to_owned(),
        ),
        Access::Refused(errno) => (opening(errno), "`rdma-ctk doctor` on the host".to_owned()),
    })
}

/// The adapters to look at; those that were named and are not there are findings.
pub(super) fn wanted<'a>(
    place: &Place<'a>,
    options: &Options,
    findings: &mut Vec<Finding>,
) -> Vec<&'a Hca> {
    if options.devices.is_empty() {
        return place.node.hcas.iter().collect();
    }
    let mut wanted = Vec::new();
    for name in &options.devices {
        match place.node.hca(name) {
            Some(hca) => wanted.push(hca),
            None => findings.push(Finding::fail(
                Stage::Nodes,
                Exit::NoDevice,
                format!("there is no adapter {name}; there {}", names(place)),
                "name another",
            )),
        }
    }
    wanted
}

fn names(place: &Place<'_>) -> String {
    let names: Vec<&str> = place.node.hcas.iter().map(|hca| hca.name.as_str()).collect();
    match names[..] {
        [] => "is none".to_owned(),
        [one] => format!("is {one}"),
        _ => format!("are {}", names.join(", ")),
    }
}

/// Opens the node of each adapter; those whose node opens.
pub(super) fn check<'a>(
    machine: &dyn Machine,
    place: &Place<'a>,
    wanted: &[&'a Hca],
    findings: &mut Vec<Finding>,
) -> Vec<&'a Hca> {
    let mut opened = Vec::new();
    let mut absent: Vec<&Hca> = Vec::new();
    let mut refused = false;
    for hca in wanted.iter().copied() {
        let Some(device) = &hca.uverbs else {
            findings.push(
                Finding::note(
                    Stage::Nodes,
                    format!(
                        "{} has no uverbs device: ib_uverbs is not loaded on the host",
                        hca.name
                    ),
                )
                .of(hca),
            );
            continue;
        };
        let access = open(machine, place, device);
        match refusal(machine, place, device, &hca.name, access) {
            Some((sentence, fix)) => {
                refused = true;
                findings.push(Finding::fail(Stage::Nodes, Exit::Node, sentence, fix).of(hca));
            }
            None if access == Access::Absent => absent.push(hca),
            None => {
                let sentence = format!("{} ({}) opens", device.path(), hca.name);
                findings.push(Finding::ok(Stage::Nodes, sentence).of(hca));
                opened.push(hca);
            }
        }
    }
    if opened.is_empty() && !refused && findings.iter().all(|finding| finding.exit.is_none()) {
        findings.push(nothing(place, &absent));
    } else if !absent.is_empty() {
        let names: Vec<&str> = absent.iter().map(|hca| hca.name.as_str()).collect();
        findings.push(Finding::note(
            Stage::Nodes,
            format!("not given to this container: {}", names.join(", ")),
        ));
    }
    opened
}

/// The container has no adapter at all.
fn nothing(place: &Place<'_>, absent: &[&Hca]) -> Finding {
    let fail =
        |sentence: String, fix: &str| Finding::fail(Stage::Nodes, Exit::NoDevice, sentence, fix);
    if !place.roots.sys.join("class").is_dir() {
        return fail(
            "/sys is not mounted here: libibverbs finds no adapter without it".to_owned(),
            "mount sysfs (read-only will do)",
        );
    }
    if absent.is_empty() {
        return fail(
            "the kernel shows no RDMA adapter here".to_owned(),
            "`rdma-ctk doctor` on the host tells why: no hardware, no driver, or (in exclusive \
             mode) an adapter that was not moved into this namespace",
        );
    }
    let nodes: Vec<String> = absent
        .iter()
        .filter_map(|hca| Some(format!("{} ({})", hca.uverbs.as_ref()?.path(), hca.name)))
        .collect();
    fail(
        format!("no adapter was given to this container: there is no {}", nodes.join(", ")),
        "ask with the annotation `devices.rdma-ctk.io: all`; if it is there, `rdma-ctk inspect` on \
         the host tells what came of it",
    )
}
