//! Error texts of programs, drivers and runtimes, and what is usually behind them.
//!
//! The texts of verbs programs do not tell a missing device from a forbidden one, nor a limit from
//! a real lack of memory, so each cause names the checks that do.

use serde::Serialize;

/// A usual cause of an error text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Parts of texts, of which one must occur; `*` stands for anything on the same line. Case
    /// does not matter.
    #[serde(skip)]
    texts: &'static [&'static str],
    /// What is usually behind it.
    pub cause: &'static str,
    /// What to do, the first thing first.
    pub advice: &'static str,
    /// Checks of [`super::CHECKS`] that tell whether it is so on this node.
    pub checks: &'static [&'static str],
}

/// Causes of that text, in the order of the table; empty for a text that is not in it.
pub fn explain(text: &str) -> Vec<&'static Cause> {
    let text = text.to_lowercase();
    let line_matches = |part: &str| {
        let pattern = format!("*{}*", part.to_lowercase());
        text.lines().any(|line| crate::policy::wildcard(&pattern, line))
    };
    CAUSES.iter().filter(|cause| cause.texts.iter().any(|part| line_matches(part))).collect()
}

/// The table: memory first, since it is the commonest and the least visible.
const CAUSES: &[Cause] = &[
    Cause {
        texts: &[
            "ibv_create_cq*Cannot allocate memory",
            "ibv_reg_mr*Cannot allocate memory",
            "ibv_create_qp*Cannot allocate memory",
            "max locked memory",
            "RLIMIT_MEMLOCK",
            "Couldn't register MR",
            "Couldn't allocate MR",
            "failed to create mr",
            "Failed to create a completion queue",
            "rdma_buf reg_mr failed",
            "rping_setup_buffers failed: 12",
            "EFA internal error: (4112)",
            "Failure to post internal receive buffers",
            "Libfabric error: (-12)",
        ],
        cause: "the locked-memory limit (memlock) of the container is too low: every registered \
                buffer and every queue counts against it",
        advice: "check memlock first (`ulimit -l` in the container): ask for devices with \
                 devices.rdma-ctk.io, which raises it for any user. IPC_LOCK does not help a user \
                 other than root, and limits.conf in the image is not read",
        checks: &["memlock", "runtime-memlock", "containers"],
    },
    Cause {
        texts: &[
            "No IB devices found",
            "IB device * not found",
            "No RDMA devices were detected",
            "NET/IB : No device found",
            "No valid EFA devices found",
            "-61*No data available",
            "Using network Socket",
            "NET/Socket",
        ],
        cause: "the container has no uverbs node of any adapter (sysfs shows adapters to everybody, \
                the node is what counts)",
        advice: "annotate the pod with `devices.rdma-ctk.io: all`; if it is annotated, `rdma-ctk \
                 inspect` tells what it was given. A mount of the host's /dev/infiniband brings \
                 nodes that the device cgroup forbids, and the EFA provider gives up at the first",
        checks: &["adapters", "ib_uverbs", "daemon", "slipped", "containers"],
    },
    Cause {
        texts: &[
            "Failed to open device",
            "Couldn't get context for",
            "ibv_open_device failed",
            "Unable to open device",
            "/dev/infiniband/*Operation not permitted",
            "/dev/infiniband/*Permission denied",
        ],
        cause: "a uverbs node is there and cannot be opened: the device cgroup forbids it (added \
                outside the runtime's document, or taken away by systemctl daemon-reload), its mode \
                keeps this user out, or the adapter is in another RDMA namespace",
        advice: "remove mounts of /dev/infiniband and hooks that make nodes, and ask with \
                 devices.rdma-ctk.io instead: node and rule then stand in the runtime's document",
        checks: &["nodes", "netns-mode", "containers"],
    },
    Cause {
        texts: &["Failed to initialize NVML: Unknown Error"],
        cause: "a systemctl daemon-reload took away devices that were added to the container's \
                cgroup behind the runtime's back; adapters added that way are lost alike",
        advice: "restart the container; let devices be added by NRI, the runtime or CDI",
        checks: &["containers"],
    },
    Cause {
        texts: &[
            "failed to create RDMA CM event channel",
            "rdma_create_event_channel failed",
            "Unable to create RDMA_CM resources",
            "RDMA device \"rdma_cm\" not found",
        ],
        cause: "/dev/infiniband/rdma_cm is missing in the container or cannot be opened: the \
                module rdma_ucm is not loaded on the host, or the node was not granted",
        advice: "on the host, `modprobe rdma_ucm`; in the pod, keep `rdma_cm` in \
                 nodes.rdma-ctk.io (it is there by default)",
        checks: &["rdma_cm", "nodes"],
    },
    Cause {
        texts: &["RDMA device \"issm\" not found", "RDMA device \"umad\" not found"],
        cause: "another plugin wants management nodes, which only InfiniBand ports have and only a \
                subnet manager or a diagnosis tool needs",
        advice: "nothing is wrong with the adapter: rdma-ctk needs its uverbs node only",
        checks: &["adapters"],
    },
    Cause {
        texts: &[
            "couldn't open config directory '/etc/libibverbs.d'",
            "no userspace device-specific driver found",
            "couldn't load driver",
            "libibverbs.so.1: cannot open shared object file",
            "Failed to open libibverbs.so",
        ],
        cause: "the image lacks libibverbs or the provider of this adapter's driver",
        advice: "install libibverbs1 and ibverbs-providers (Debian) or libibverbs (Fedora) in the \
                 image, of a version that knows the adapter",
        checks: &["adapters", "containers"],
    },
    Cause {
        texts: &[
            "Failed to modify QP * to RTR",
            "Failed to modify QP to RTR",
            "Unable to Connect the HCA's through the link",
            "rdma_create_ep: No such device",
            "ibv_modify_qp failed with*No such device",
            "ibv_modify_qp failed with*Network is unreachable",
            "ibv_modify_qp failed with*Invalid argument",
            "ibv_modify_qp() failed*Invalid argument",
            "Invalid gid[",
            "n_gids_found=0",
            "Invalid GID index",
        ],
        cause: "the GID in use is empty or another's: a RoCE adapter needs a network interface of \
                its own (or macvlan, ipvlan, VF on it) in the pod; a veth is none",
        advice: "attach an interface of the adapter to the pod, or use hostNetwork; drop fixed \
                 values of NCCL_IB_GID_INDEX and let `env.rdma-ctk.io: auto` find the index",
        checks: &["interfaces", "gid-room", "ports"],
    },
    Cause {
        texts: &[
            "network device*is not available, please use one or more of",
            "net device*is not available, please use one or more of",
            "no usable transports/devices",
        ],
        cause: "UCX_NET_DEVICES names an adapter that UCX cannot use here: its node is not in the \
                container, its port is not ACTIVE, or the name is another node's. If only (tcp) \
                devices are offered, no adapter opens, or the image's UCX is without InfiniBand \
                (libuct_ib)",
        advice: "annotate the pod with `devices.rdma-ctk.io: all` and leave UCX_NET_DEVICES to it; \
                 if it was granted, `rdma-ctk-probe` in the container tells which adapter opens, \
                 and `ucx_info -d` which of them the image's UCX knows",
        checks: &["adapters", "ports", "containers"],
    },
    Cause {
        texts: &["no active messages transport to", "ucp_ep_create*Destination is unreachable"],
        cause: "UCX has no transport that reaches the other process: the adapters of the two sides \
                are in different subnets or of different link layers, only one side has an adapter, \
                or UCX_TLS leaves out what is needed. 'Unsupported operation' instead of a list \
                means that UCX has no usable device at all",
        advice: "give both pods adapters (devices.rdma-ctk.io) of the same fabric, compare the GID \
                 of both with `rdma-ctk-probe`, and unset UCX_TLS and UCX_NET_DEVICES if they were \
                 set by hand",
        checks: &["adapters", "interfaces", "ports", "containers"],
    },
    Cause {
        texts: &[
            "ibv_modify_qp failed with*Connection timed out",
            "Failed to modify QP*Connection timed out",
            "Got completion with error 12",
            "completion with error*status=12",
            "IBV_WC_RETRY_EXC_ERR",
            "Transport retry count exceeded",
            "vendor err 129",
        ],
        cause: "the peer did not answer: a link-local GID was chosen, the two GIDs are of different \
                subnets or RoCE versions, the two adapters are of rails that do not reach each \
                other, or the fabric drops this traffic class",
        advice: "compare the GID index on both sides: it has to be a RoCE v2 entry with a routed \
                 address, the family the same on both; where only adapters of one rail reach each \
                 other, set NCCL_CROSS_NIC=0",
        checks: &["interfaces", "ports"],
    },
    Cause {
        texts: &[
            "rdma_bind_addr: Cannot assign requested address",
            "rdma_resolve_addr: Network is unreachable",
            "rdma_resolve_addr: No such device",
            "RDMA_CM_EVENT_ADDR_ERROR",
        ],
        cause: "librdmacm works within the pod's network namespace, and no interface there belongs \
                to an adapter",
        advice: "attach an interface of the adapter to the pod, or use hostNetwork; programs that \
                 exchange addresses by themselves (NCCL, ibv_rc_pingpong) do not need it",
        checks: &["interfaces", "netns-mode"],
    },
    Cause {
        texts: &["Bootstrap : no socket interface found"],
        cause: "NCCL_SOCKET_IFNAME names no interface of this namespace that has an address: it \
                was copied from another node, or excludes too little",
        advice: "unset it and let `env.rdma-ctk.io: auto` name the interface of the default route",
        checks: &["containers"],
    },
    Cause {
        texts: &[
            "Couldn't allocate PD",
            "Couldn't create QP",
            "ibv_*Resource temporarily unavailable",
        ],
        cause: "the rdma cgroup's limit is reached (rdma.max of the container or above it)",
        advice: "compare rdma.max with rdma.current in the container's cgroup; leave out \
                 limits.rdma-ctk.io or raise it",
        checks: &["containers"],
    },
    Cause {
        texts: &["rdma*Device or resource busy", "netns*Device or resource busy"],
        cause: "the RDMA namespace mode cannot change while any other network namespace exists",
        advice: "set `options ib_core netns_mode=0` (exclusive) or `=1` (shared) in \
                 /etc/modprobe.d and reboot",
        checks: &["netns-mode"],
    },
    Cause {
        texts: &["incorrect RDMA subsystem network namespace"],
        cause: "another plugin works in shared mode only, and this node is in exclusive mode",
        advice: "rdma-ctk works in both; see what the mode means for pods with a network namespace \
                 of their own",
        checks: &["netns-mode"],
    },
    Cause {
        texts: &["could not insert*Exec format error", "insmod*invalid module format"],
        cause: "a container's modprobe cannot read the host's compressed modules (zstd), or the \
                module is for another kernel",
        advice: "run modprobe on the host itself (`modprobe erdma`), and name the module in \
                 /etc/modules-load.d; rdma-ctk loads no modules",
        checks: &["adapters", "ib_uverbs"],
    },
    Cause {
        texts: &["both tried to set"],
        cause: "two NRI plugins set the same thing of one container; each has one owner",
        advice: "the text names both plugins: let one of them leave it, for instance with \
                 `numa.rdma-ctk.io: off` or `env.rdma-ctk.io: off`",
        checks: &["nri"],
    },
    Cause {
        texts: &[
            "failed to synchronize plugin",
            "failed to discard after receiving oversized message",
            "closing plugin*failed to handle event",
        ],
        cause: "an NRI plugin was cut off: it did not answer in time, or the node has more \
                containers than fit into the time or into one message",
        advice: "raise plugin_request_timeout in the runtime's NRI settings (the right table: see \
                 the check), and update a runtime with NRI before 0.8",
        checks: &["timeouts", "nri", "daemon", "slipped"],
    },
    Cause {
        texts: &["required plugin*not present", "required plugins*not present"],
        cause: "the runtime's validator requires a plugin that is not connected",
        advice: "start it: `systemctl start rdma-ctk`, or look why its DaemonSet does not run here",
        checks: &["daemon", "validator"],
    },
    Cause {
        texts: &["nri.sock*no such file or directory", "nri.sock*connection refused"],
        cause: "the runtime offers no NRI socket: NRI is off, connections are disabled, or another \
                runtime took the socket",
        advice: "`rdma-ctk configure containerd --nri`, then restart containerd",
        checks: &["nri"],
    },
    Cause {
        texts: &["invalid plugin events"],
        cause: "a plugin subscribed to events that this runtime's NRI does not know",
        advice: "update the plugin or the runtime; rdma-ctk asks for what the runtime knows",
        checks: &["runtime"],
    },
    Cause {
        texts: &["tcp2smc", "SMC module not loaded"],
        cause: "the kernel has no transparent switch to SMC-R (a sysctl of Alibaba Cloud kernels) \
                or its smc module does not fit; verbs are not touched by that",
        advice: "ask for smc.rdma-ctk.io: auto, which takes another method where there is one",
        checks: &["smc"],
    },
];

#[cfg(test)]
mod tests {
    use super::super::CHECKS;
    use super::*;

    fn first(text: &str) -> &'static Cause {
        let found = explain(text);
        assert!(!found.is_empty(), "{text}");
        found[0]
    }

    #[test]
    fn every_check_that_a_cause_names_exists() {
        for cause in CAUSES {
            assert!(!cause.checks.is_empty());
            for name in cause.checks {
                assert!(CHECKS.iter().any(|check| check.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn every_text_finds_its_own_cause() {
        for cause in CAUSES {
            for text in cause.texts {
                let said = text.replace('*', " something ");
                assert!(explain(&said).contains(&cause), "{text}");
            }
        }
    }

    #[test]
    fn c03_efa_internal_error_is_memlock() {
        for text in [
            "EFA internal error: (4112)",
            "Libfabric error: (-12) Cannot allocate memory",
            "EFA internal error: (4112) Failure to post internal receive buffers",
        ] {
            let cause = first(text);
            assert!(cause.advice.starts_with("check memlock first"), "{text}");
            assert_eq!(cause.checks[0], "memlock");
        }
    }

    #[test]
    fn c101_a_module_that_cannot_be_inserted_is_compressed() {
        let cause = first("modprobe: ERROR: could not insert 'erdma': Exec format error");
        assert!(cause.cause.contains("compressed modules"));
        assert!(cause.advice.contains("modprobe on the host"));
    }

    /// Texts as the tools of rdma-core and perftest print them, by what was wrong.
    #[test]
    fn texts_of_verbs_tools_are_known() {
        for (text, check) in [
            ("No IB devices found", "adapters"),
            ("IB device rxe0 not found", "adapters"),
            ("No RDMA devices were detected", "adapters"),
            ("Failed to open device", "nodes"),
            ("Couldn't get context for rxe0", "nodes"),
            ("failed to create RDMA CM event channel: No such file or directory", "rdma_cm"),
            (" rdma_create_event_channel failed\n Unable to create RDMA_CM resources", "rdma_cm"),
            ("Couldn't register MR", "memlock"),
            ("Couldn't allocate MR\nfailed to create mr", "memlock"),
            ("rdma_buf reg_mr failed\nrping_setup_buffers failed: 12", "memlock"),
            ("rdma_bind_addr: Cannot assign requested address", "interfaces"),
            ("rdma_resolve_addr: Network is unreachable", "interfaces"),
            ("Couldn't allocate PD", "containers"),
            (
                "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev \
                 mlx5_0:1, curr state INIT, next state RTR, local GID index 3",
                "interfaces",
            ),
            ("NCCL WARN Call to ibv_modify_qp failed with error Invalid argument", "interfaces"),
            ("NCCL WARN Call to ibv_modify_qp failed with 19 No such device", "interfaces"),
            (
                "ucp_context.c:1321 UCX  WARN  network device 'mlx5_bond_0:1' is not available, \
                 please use one or more of: 'bond0'(tcp), 'eth0'(tcp), 'lo'(tcp)",
                "adapters",
            ),
            (
                "select.c:649 UCX  ERROR   no active messages transport to <no debug data>: \
                 rc_verbs/mlx5_bond_1:1 - Destination is unreachable",
                "adapters",
            ),
            ("no active messages transport to <no debug data>: Unsupported operation", "adapters"),
            (
                "mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked \
                 memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
                "memlock",
            ),
        ] {
            assert_eq!(first(text).checks[0], check, "{text}");
        }
    }

    #[test]
    fn texts_of_runtimes_and_plugins_are_known() {
        for (text, check) in [
            ("plugins \"20-b\" and \"10-a\" both tried to set Env NCCL_IB_HCA", "nri"),
            ("failed to synchronize plugin: context deadline exceeded", "timeouts"),
            (
                "closing plugin 10-x, failed to handle event 11: context deadline exceeded",
                "timeouts",
            ),
            ("validation error: required plugin \"rdma-ctk\" not present", "daemon"),
            ("invalid plugin events: 0x3fff", "runtime"),
        ] {
            assert_eq!(first(text).checks[0], check, "{text}");
        }
    }

    #[test]
    fn an_unknown_text_has_no_cause() {
        assert!(explain("segmentation fault").is_empty());
        assert!(explain("").is_empty());
    }
}
