//! Names of capabilities.

/// Capabilities of Linux, without `CAP_`, by number (`linux/capability.h`, as of 5.9; none has been
/// added since).
pub const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The name as [`NAMES`] has it, of one in any case, with or without `CAP_`; `None` when there is
/// no such capability.
pub fn canonical(text: &str) -> Option<&'static str> {
    let upper = text.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.into_iter().find(|name| *name == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_all_their_spellings() {
        for text in ["IPC_LOCK", "CAP_IPC_LOCK", "ipc_lock", "cap_ipc_lock"] {
            assert_eq!(canonical(text), Some("IPC_LOCK"), "{text:?}");
        }
        for text in ["", "CAP_", "ALL", "IPC-LOCK", "CAP_CAP_IPC_LOCK"] {
            assert_eq!(canonical(text), None, "{text:?}");
        }
    }

    #[test]
    fn names_stand_at_their_numbers() {
        for (number, name) in [(0, "CHOWN"), (14, "IPC_LOCK"), (24, "SYS_RESOURCE"), (39, "BPF")] {
            assert_eq!(NAMES[number], name);
        }
    }
}
