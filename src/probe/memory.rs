//! How much memory can be registered, tried step by step.
//!
//! What is registered is pinned, and counts against `RLIMIT_MEMLOCK` (unless the process has
//! `CAP_IPC_LOCK` in the initial user namespace) and against the memory cgroup. The probe must not
//! bring a container to its end: it takes no more than half of what that cgroup leaves.

use super::verbs::{Transcript, errno_text};
use super::{Exit, Finding, Machine, Place, Stage};
use crate::inventory::Hca;

/// Below this limit programs fail: a single NCCL communicator registers more.
const ENOUGH: u64 = 64 << 20;

/// The least that is worth a try.
const LEAST: u64 = 64 << 10;

/// How much to try, and why not more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// `RLIMIT_MEMLOCK`, soft; `u64::MAX` is none.
    pub(super) limit: u64,
    /// Whether the process has `CAP_IPC_LOCK`, which lifts the limit.
    pub(super) ipc_lock: bool,
    /// Bytes to register at most.
    pub(super) most: u64,
    /// What else than the limit and the option bounds that, as part of a sentence.
    pub(super) bound: Option<&'static str>,
}

impl Plan {
    pub(super) fn of(machine: &dyn Machine, place: &Place<'_>, asked: u64) -> Self {
        let limit = machine.memlock();
        let ipc_lock = has_ipc_lock(place);
        let room = [
            (cgroup_room(place).map(|room| room / 2), "the container's memory limit"),
            (available(place).map(|room| room / 4), "the memory that is free"),
        ];
        let room = room.into_iter().filter_map(|(room, name)| Some((room?.max(LEAST), name)));
        let room = room.min_by_key(|(room, _)| *room);
        let most = if ipc_lock { asked } else { asked.min(limit) };
        match room {
            Some((room, name)) if room < most => {
                Self { limit, ipc_lock, most: pages(room), bound: Some(name) }
            }
            _ => Self { limit, ipc_lock, most: pages(most), bound: None },
        }
    }

    fn limit_text(&self) -> String {
        let limit = match self.limit {
            u64::MAX => "no memlock limit".to_owned(),
            limit => format!("memlock limit {}", size(limit)),
        };
        if self.ipc_lock && self.limit != u64::MAX {
            format!("{limit}, lifted by CAP_IPC_LOCK")
        } else {
            limit
        }
    }

    fn is_low(&self) -> bool {
        !self.ipc_lock && self.limit < ENOUGH
    }
}

/// Whole pages.
fn pages(bytes: u64) -> u64 {
    bytes & !4095
}

/// `CAP_IPC_LOCK` (14) among the effective capabilities, in the initial user namespace: in another
/// one it lifts nothing.
fn has_ipc_lock(place: &Place<'_>) -> bool {
    const ALL: [&str; 3] = ["0", "0", "4294967295"];
    let map = std::fs::read_to_string(place.roots.proc.join("self/uid_map")).unwrap_or_default();
    if !map.split_whitespace().eq(ALL) {
        return false;
    }
    let status = std::fs::read_to_string(place.roots.proc.join("self/status")).unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    set & (1 << 14) != 0
}

/// Bytes that the memory cgroup leaves, as the container sees it (version 2, else 1).
fn cgroup_room(place: &Place<'_>) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(place.roots.sys.join("fs/cgroup").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let pair = |most, now| Some(number(most)?.saturating_sub(number(now)?));
    pair("memory.max", "memory.current")
        .or_else(|| pair("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
}

/// Bytes that are free on the node.
fn available(place: &Place<'_>) -> Option<u64> {
    let text = std::fs::read_to_string(place.roots.proc.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The most that was registered at once.
pub(super) fn registered(said: &Transcript) -> u64 {
    let good = said.memory.iter().filter(|(_, errno)| *errno == 0);
    good.map(|(bytes, _)| *bytes).max().unwrap_or(0)
}

/// How to get more.
const RAISE: &str = "devices.rdma-ctk.io raises the limit for any user (memlock.rdma-ctk.io: \
                     unlimited is its default; policy may cap it). IPC_LOCK does not help a user \
                     other than root, and limits.conf in the image is not read";

/// Judges what one adapter registered.
pub(super) fn check(hca: &Hca, plan: &Plan, said: &Transcript, findings: &mut Vec<Finding>) {
    let fail = |sentence: String, fix: &str| {
        Finding::fail(Stage::Memory, Exit::Memory, sentence, fix).of(hca)
    };
    let limit = plan.limit_text();
    let good = registered(said);
    let failed = said.memory.iter().find(|(_, errno)| *errno != 0);
    let finding = if let Some(fault) = said.fault_in(&["memory", "register"]) {
        fail(format!("{}: registering memory fails: {fault}; {limit}", hca.name), RAISE)
    } else if let Some((bytes, errno)) = failed {
        let fix = match nix::errno::Errno::from_raw(*errno) {
            nix::errno::Errno::EAGAIN => {
                "the limit of the rdma cgroup is reached: leave out limits.rdma-ctk.io or raise it"
            }
            nix::errno::Errno::ENOMEM if plan.limit == u64::MAX => {
                "the limit is not in the way: the kernel may count it in another user namespace, or \
                 the adapter is out of room; `rdma-ctk doctor` on the host"
            }
            _ => RAISE,
        };
        let sentence = format!(
            "{}: {} registered, {} fails with {}; {limit}",
            hca.name,
            size(good),
            size(*bytes),
            errno_text(*errno)
        );
        fail(sentence, fix)
    } else if said.memory.is_empty() {
        // It did not come so far, which is a finding of its own.
        return;
    } else if plan.is_low() {
        let sentence = format!(
            "{}: {} registered, and that is all: {limit}, too low for NCCL, UCX and MPI",
            hca.name,
            size(good)
        );
        fail(sentence, RAISE)
    } else {
        let bound = plan.bound.map_or(String::new(), |name| format!(" ({name} allows no more)"));
        Finding::ok(
            Stage::Memory,
            format!("{}: {} registered{bound}; {limit}", hca.name, size(good)),
        )
        .of(hca)
    };
    findings.push(finding);
}

/// Without an adapter only the limit can be told.
pub(super) fn limit_only(plan: &Plan, findings: &mut Vec<Finding>) {
    let sentence = format!("not tried; {}", plan.limit_text());
    findings.push(if plan.is_low() {
        Finding::fail(
            Stage::Memory,
            Exit::Memory,
            format!("{sentence}, too low for NCCL, UCX and MPI"),
            RAISE,
        )
    } else {
        Finding::note(Stage::Memory, sentence)
    });
}

/// Bytes as people say them.
pub(super) fn size(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    if bytes >= 1 << 20 {
        return format!("{}.{} MiB", bytes >> 20, (bytes % (1 << 20)) * 10 / (1 << 20));
    }
    format!("{bytes} bytes")
}

/// Reads a size as `--memory` takes it: bytes, or with KiB, MiB, GiB.
///
/// # Errors
/// A sentence for anything else.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: bytes, or a number with KiB, MiB or GiB");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit {
        "" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(unit).ok_or_else(wrong)?;
    if bytes < LEAST { Err(format!("{text:?} is less than 64 KiB")) } else { Ok(bytes) }
}
