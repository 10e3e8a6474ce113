//! Why a connection fell back to TCP: the kernel's codes (`net/smc/smc_clc.h`) in words, with what
//! is usually wrong and what to do.

use std::fmt;

/// The peer says why it did not want; its own code is the peer's diagnosis.
pub const PEER_DECLINED: u32 = 0x0500_0000;

/// What is known of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The kernel's number.
    pub code: u32,
    /// One word for metrics.
    pub word: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub fix: &'static str,
}

const fn reason(code: u32, word: &'static str, meaning: &'static str, fix: &'static str) -> Reason {
    Reason { code, word, meaning, fix }
}

/// All codes of 6.12, ascending.
const REASONS: [Reason; 36] = [
    reason(
        0x0101_0000,
        "no_memory",
        "no memory, buffer or queue pair left",
        "set net.smc.smcr_buf_type=2, since buffers of one physical piece run out first; look at \
         the adapter's limits",
    ),
    reason(
        0x0201_0000,
        "confirm_link_timeout",
        "the first RDMA message did not arrive in time",
        "let UDP port 4791 through between the nodes; a soft-RoCE adapter serves the host's network \
         namespace only",
    ),
    reason(
        0x0202_0000,
        "add_link_timeout",
        "the second link was not answered in time",
        "let UDP port 4791 through between the nodes, for the second port too",
    ),
    reason(
        0x0300_0000,
        "configuration",
        "the configuration does not allow it",
        "ask rdma-ctk doctor",
    ),
    reason(
        0x0301_0000,
        "peer_without_smc",
        "the other side did not offer SMC",
        "switch the other side too (smc.rdma-ctk.io: auto); a load balancer or firewall between \
         them may take TCP option 254 away",
    ),
    reason(
        0x0302_0000,
        "ipsec",
        "the connection is encrypted by IPsec",
        "leave IPsec out between these addresses",
    ),
    reason(
        0x0303_0000,
        "no_device",
        "no device for SMC in this network namespace (PNET id? user EID?)",
        "add a user EID on both nodes; where the pod's interface is a veth, an adapter has to be \
         named for it by a PNET id; IPv6 sockets and adapters without a RoCE v2 GID have none",
    ),
    reason(0x0303_0001, "no_ism_device", "no SMC-D device", "none is needed for SMC-R"),
    reason(
        0x0303_0002,
        "no_rdma_device",
        "no RDMA device for SMC-R in this network namespace (PNET id?)",
        "where the pod's interface is a veth, an adapter has to be named for it by a PNET id; the \
         port has to be ACTIVE, with a GID of the right type",
    ),
    reason(0x0303_0003, "no_ism_v2", "no SMC-Dv2", "none is needed for SMC-R"),
    reason(
        0x0303_0004,
        "peer_without_v2",
        "the other side does not offer version 2",
        "both kernels need 5.16 or later, and a user EID",
    ),
    reason(
        0x0303_0005,
        "no_ism_v2_extension",
        "the other side has no SMC-Dv2",
        "none is needed for SMC-R",
    ),
    reason(0x0303_0006, "no_system_eid", "no system EID", "none is needed for SMC-R"),
    reason(0x0303_0007, "no_ism_v2_device", "no SMC-Dv2 device", "none is needed for SMC-R"),
    reason(
        0x0303_0008,
        "no_common_eid",
        "the two nodes have no user EID in common",
        "give both the same one; rdma-ctk's is set by policy: [smc] eid",
    ),
    reason(
        0x0303_0009,
        "release",
        "the two kernels agree on no release",
        "use the same kernel on both nodes",
    ),
    reason(
        0x0303_000a,
        "max_connections",
        "the two sides agree on no number of connections for a link group",
        "set net.smc.smcr_max_conns_per_lgr alike on both",
    ),
    reason(
        0x0303_000b,
        "max_links",
        "the two sides agree on no number of links for a link group",
        "set net.smc.smcr_max_links_per_lgr alike on both",
    ),
    reason(
        0x0304_0000,
        "mode",
        "one side offers SMC-R only, the other SMC-D only",
        "give both an RDMA adapter",
    ),
    reason(
        0x0305_0000,
        "eyecatcher",
        "the other side wants eyecatchers in its buffer",
        "none; it is an old system",
    ),
    reason(
        0x0306_0000,
        "socket_option",
        "the program uses a socket option that SMC lacks (TCP_FASTOPEN)",
        "switch TCP fast open off in the program",
    ),
    reason(
        0x0307_0000,
        "different_subnet",
        "the two addresses are in different subnets, which version 1 cannot cross",
        "use version 2: a RoCE v2 GID and a user EID; a mask of /32 never matches",
    ),
    reason(
        0x0308_0000,
        "vlan",
        "the VLAN of the connection cannot be found",
        "look at the pod's interface: ip -d link",
    ),
    reason(0x0309_0000, "ism_vlan", "SMC-D does not know the VLAN", "none is needed for SMC-R"),
    reason(
        0x030a_0000,
        "no_active_link",
        "no link of the group is up",
        "look at the port: rdma link",
    ),
    reason(
        0x030b_0000,
        "no_server_link",
        "the server's link cannot be found",
        "look at the port: rdma link",
    ),
    reason(
        0x030c_0000,
        "version",
        "the two sides speak different versions",
        "use the same kernel on both nodes",
    ),
    reason(0x030d_0000, "max_dmb", "SMC-D has no buffer left", "none is needed for SMC-R"),
    reason(
        0x030e_0000,
        "no_route",
        "no route to the other side's GID",
        "the adapter's interface needs a route to the other adapter's address: ip route get",
    ),
    reason(
        0x030f_0000,
        "indirect",
        "one side is reached directly and the other by a router",
        "make the routes of both alike",
    ),
    reason(0x0400_0000, "synchronisation", "the two sides lost step", "try again"),
    reason(
        PEER_DECLINED,
        "peer_declined",
        "the other side declined",
        "its own code says why: look at the other side",
    ),
    reason(0x0999_0000, "internal", "an error inside the kernel", "look at dmesg"),
    reason(
        0x0999_0001,
        "rtoken",
        "the other side's memory could not be registered",
        "look at the adapter's limits",
    ),
    reason(
        0x0999_0002,
        "ready_link",
        "the link could not be made ready",
        "look at dmesg and the port",
    ),
    reason(
        0x0999_0003,
        "register_buffer",
        "a buffer could not be registered",
        "look at the adapter's limits for memory regions",
    ),
];

/// What is known of a code.
pub fn look_up(code: u32) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| reason.code == code)
}

/// One word for metrics: of the code, or of its kind.
pub fn word(code: u32) -> &'static str {
    look_up(code).map_or(if code < 0x1000 { "system_error" } else { "other" }, |known| known.word)
}

/// A code with the other side's own, as `smc_diag` tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fallback {
    /// This side's code.
    pub reason: u32,
    /// The other side's own code, where it declined.
    pub peer: u32,
}

impl Fallback {
    /// What is usually to be done.
    pub fn fix(self) -> &'static str {
        let told = if self.reason == PEER_DECLINED { look_up(self.peer) } else { None };
        told.or_else(|| look_up(self.reason)).map_or("look at dmesg", |known| known.fix)
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tell = |f: &mut fmt::Formatter<'_>, code: u32| match look_up(code) {
            Some(known) => f.write_str(known.meaning),
            None if code < 0x1000 => {
                write!(f, "{}", nix::errno::Errno::from_raw(code.cast_signed()).desc())
            }
            None => write!(f, "code {code:#010x}"),
        };
        tell(f, self.reason)?;
        if self.reason == PEER_DECLINED && self.peer != 0 {
            f.write_str(": ")?;
            tell(f, self.peer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn c96_codes_are_told_in_words_with_the_fix() {
        for (reason, peer, words, fix) in [
            (
                0x0303_0002,
                0,
                "no RDMA device for SMC-R in this network namespace (PNET id?)",
                "where the pod's interface is a veth",
            ),
            (0x0301_0000, 0, "the other side did not offer SMC", "switch the other side too"),
            (
                0x0500_0000,
                0x0303_0008,
                "the other side declined: the two nodes have no user EID in common",
                "give both the same one",
            ),
            (0x0500_0000, 0, "the other side declined", "its own code says why"),
            (0x0307_0000, 0, "the two addresses are in different subnets", "use version 2"),
            (110, 0, "Connection timed out", "look at dmesg"),
            (0x0777_0000, 0, "code 0x07770000", "look at dmesg"),
        ] {
            let fallback = Fallback { reason, peer };
            assert!(fallback.to_string().starts_with(words), "{fallback}");
            assert!(fallback.fix().starts_with(fix), "{}", fallback.fix());
        }
    }

    #[test]
    fn every_code_is_there_once_with_a_word_of_its_own() {
        assert!(REASONS.is_sorted_by(|a, b| a.code < b.code));
        let words: BTreeSet<_> = REASONS.iter().map(|reason| reason.word).collect();
        assert_eq!(words.len(), REASONS.len());
        assert_eq!(
            (word(0x0303_0002), word(110), word(0x0777_0000)),
            ("no_rdma_device", "system_error", "other")
        );
    }
}
