//! The registry: a row for each check, in the order of the report.

use super::{Check, adapters, containers, daemon, memory, place, ports, registered, runtime, smc};

/// All checks.
pub const CHECKS: &[Check] = &[
    Check {
        name: "adapters",
        what: "RDMA adapters, and PCI functions that should be some",
        run: adapters::present,
    },
    Check {
        name: "ib_uverbs",
        what: "the module without which nobody can use an adapter",
        run: adapters::uverbs_module,
    },
    Check { name: "rdma_cm", what: "the module that librdmacm needs", run: adapters::rdma_cm },
    Check { name: "nodes", what: "device nodes: modes, and opening them", run: adapters::nodes },
    Check { name: "ports", what: "port states", run: ports::states },
    Check {
        name: "interfaces",
        what: "RoCE ports without an interface or an address",
        run: ports::interfaces,
    },
    Check { name: "gid-room", what: "room in GID tables", run: ports::gid_room },
    Check { name: "identity", what: "iWARP mode and missing GUIDs", run: ports::identity },
    Check {
        name: "netns-mode",
        what: "whether adapters can be used from every network namespace",
        run: place::netns_mode,
    },
    Check { name: "numa", what: "NUMA nodes of adapters", run: place::numa },
    Check { name: "gpudirect", what: "memory shared with NVIDIA GPUs", run: place::gpudirect },
    Check {
        name: "inventory",
        what: "what the inventory's sources disagree about",
        run: place::remarks,
    },
    Check { name: "memlock", what: "locked memory, by locking some", run: memory::locking },
    Check {
        name: "runtime-memlock",
        what: "locked memory that the runtime passes on",
        run: memory::of_runtime,
    },
    Check {
        name: "runtime",
        what: "the runtime's version, and what it lacks",
        run: runtime::versions,
    },
    Check { name: "nri", what: "NRI's settings and socket", run: runtime::nri },
    Check { name: "timeouts", what: "NRI's timeouts as they hold", run: runtime::timeouts },
    Check {
        name: "validator",
        what: "whether containers are refused while the plugin is away",
        run: runtime::validator,
    },
    Check { name: "daemon", what: "whether a daemon serves", run: daemon::serving },
    Check {
        name: "events",
        what: "whether the daemon is told of containers that appear",
        run: daemon::told,
    },
    Check { name: "policy", what: "the policy file", run: daemon::policy },
    Check {
        name: "slipped",
        what: "containers that run without what they asked for",
        run: daemon::slipped,
    },
    Check {
        name: "containers",
        what: "running containers that hold an adapter",
        run: containers::running,
    },
    Check { name: "smc", what: "whether SMC-R can be had", run: smc::available },
    Check {
        name: "smc-connections",
        what: "connections of containers with SMC-R",
        run: smc::connections,
    },
    Check { name: "capabilities", what: "what NRI cannot give", run: runtime::capabilities },
    Check { name: "engines", what: "engines that do not pass through NRI", run: runtime::others },
    Check { name: "cdi", what: "the CDI file", run: registered::cdi_file },
    Check {
        name: "wrapper",
        what: "the runtime wrapper among the engines' runtimes",
        run: registered::runtimes,
    },
    Check { name: "hooks", what: "folders of hooks", run: registered::hooks },
];
