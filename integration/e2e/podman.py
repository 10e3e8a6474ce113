"""podman with our hooks, with runc, with crun and rootless: no --runtime, one annotation."""
import os

import engines
from engines import ASKS, KEY, PINGPONG
from harness import command, contains, equal, expect, install, lacks, read, write

LOOK = "ls /dev/infiniband; ulimit -l; env; "


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    os.makedirs("/usr/share/rdma-ctk")
    command("cp", "-r", "/mnt/hooks", "/usr/share/rdma-ctk/hooks.d")
    write("/etc/containers/containers.conf", engines.CONTAINERS_CONF)
    node.before = read("/etc/containers/containers.conf")
    command("rdma-ctk", "configure", "podman")
    node.engines = {"crun": engines.podman("crun"), "runc": engines.podman("runc"),
                    "rootless": engines.rootless()}


def each(*names):
    """A case for each of these engines."""
    def decorate(function):
        def of(name):
            def case(node):
                function(node.engines[name])
            case.__name__ = f"{name}_{function.__name__}"
            return case
        return [of(name) for name in names]
    return decorate


@each("crun", "runc")
def gives_devices_limit_and_environment(engine):
    out = engine.run(ASKS, script=LOOK + PINGPONG).good()
    contains(out, "100 iters in", "uverbs0\n", "rdma_cm\n", "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")


@each("crun", "runc", "rootless")
def c10_refuses_an_unknown_adapter_in_words(engine):
    engine.run(f"--annotation={KEY}=mlx5_9", script="echo it runs").refused(
        "rdma-ctk: ", "mlx5_9", "rxe0")


@each("crun", "runc", "rootless")
def c07_leaves_who_did_not_ask_alone(engine):
    out = engine.run(script="env; ls /dev; ibv_devinfo 2>&1; true").good()
    lacks(out, "NCCL", "UCX", "infiniband", "uverbs")
    contains(out, "No IB devices found")


@each("crun", "runc")
def c01_a_user_without_capabilities_on_a_read_only_root_exchanges_messages(engine):
    out = engine.run(ASKS, "--user=1000", "--cap-drop=all", "--read-only",
                     script="id -u; ulimit -l; " + PINGPONG).good()
    contains(out, "1000\n", "unlimited\n", "100 iters in")


@each("crun", "runc")
def in_a_user_namespace_it_exchanges_messages(engine):
    out = engine.run(ASKS, "--uidmap=0:100000:65536", "--gidmap=0:100000:65536",
                     script="cat /proc/self/uid_map; ulimit -l; " + PINGPONG).good()
    contains(out, "100000", "unlimited\n", "100 iters in")


@each("crun", "runc", "rootless")
def exec_sessions_have_the_nodes(engine):
    """And no more: podman makes them from what it was asked for, and no hook is asked again."""
    with engine.start(ASKS) as container:
        contains(container.sh("ls /dev/infiniband"), "uverbs0\n", "rdma_cm\n")
        contains(container.sh(PINGPONG), "100 iters in")


def a_container_that_is_started_again_has_it_again(node):
    engine = node.engines["crun"]
    name = "again"
    try:
        engine.call("run", f"--name={name}", *engine.options, ASKS, engine.image, "sh", "-c", LOOK).good()
        out = engine.call("start", "--attach", name).good()
        contains(out, "uverbs0\n", "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")
    finally:
        engine.call("rm", "--force", name)


def a_rootless_container_has_its_users_limit_and_is_told(node):
    """8 MiB here: enough for a ping-pong, and no start that works may fail for it."""
    out = node.engines["rootless"].run(ASKS, script=LOOK + PINGPONG).good()
    contains(out, "uverbs0\n", "8192\n", "100 iters in", "NCCL_IB_HCA==rxe0:1\n")


def a_node_that_the_user_may_not_open_is_refused_with_its_mode(node):
    path = "/dev/infiniband/uverbs0"
    os.chmod(path, 0o600)
    try:
        node.engines["rootless"].run(ASKS, script="echo it runs").refused("rdma-ctk: ", path, "0600")
    finally:
        os.chmod(path, 0o666)


def the_systems_own_hooks_still_run(node):
    write("/usr/share/containers/oci/hooks.d/other.json",
          '{"version": "1.0.0", "when": {"always": true}, "stages": ["createRuntime"], '
          '"hook": {"path": "/bin/sh", "args": ["sh", "-c", "touch /run/other-ran"]}}')
    try:
        node.engines["crun"].run(ASKS, script="true").good()
    finally:
        os.unlink("/usr/share/containers/oci/hooks.d/other.json")
    expect(os.path.exists("/run/other-ran"), "the other hook did not run")


def with_the_wrapper_too_it_is_given_once(node):
    out = engines.podman("/usr/bin/rdma-ctk-runtime").run(ASKS, script=LOOK + PINGPONG).good()
    contains(out, "100 iters in")
    equal(out.count("NCCL_IB_HCA="), 1, "the number of lists")


def with_the_wrapper_too_exec_sessions_have_all_of_it(node):
    """The hook's grant is on record, so that the wrapper completes sessions; it goes at the end."""
    folder = "/run/rdma-ctk/wrapper/containers"
    with engines.podman("/usr/bin/rdma-ctk-runtime").start(ASKS) as container:
        contains(container.sh(LOOK), "NCCL_IB_HCA==rxe0:1\n", "unlimited\n")
        records = os.listdir(folder)
        equal(len(records), 1, "the number of records")
        _, _, identifier = records[0].removesuffix(".json").partition("-")
        contains(command("rdma-ctk", "inspect", identifier), "podman's hooks", "rxe0")
    equal(os.listdir(folder), [], "the records that are left")


def with_the_wrapper_instead_exec_sessions_have_all_of_it(node):
    os.makedirs("/run/no-hooks", exist_ok=True)
    engine = engines.podman("/usr/bin/rdma-ctk-runtime")
    engine.words.append("--hooks-dir=/run/no-hooks")
    with engine.start(ASKS) as container:
        contains(container.sh(LOOK), "NCCL_IB_HCA==rxe0:1\n", "unlimited\n")
    engine.run(f"--annotation={KEY}=mlx5_9", script="echo it runs").refused("rdma-ctk: ", "mlx5_9")


def undone_it_is_as_before(node):
    command("rdma-ctk", "configure", "podman", "--undo")
    equal(read("/etc/containers/containers.conf"), node.before, "containers.conf")
    out = node.engines["crun"].run(ASKS, script="ibv_devinfo 2>&1; true").good()
    contains(out, "No IB devices found")


CASES = [
    *gives_devices_limit_and_environment,
    *c10_refuses_an_unknown_adapter_in_words,
    *c07_leaves_who_did_not_ask_alone,
    *c01_a_user_without_capabilities_on_a_read_only_root_exchanges_messages,
    *in_a_user_namespace_it_exchanges_messages,
    *exec_sessions_have_the_nodes,
    a_container_that_is_started_again_has_it_again,
    a_rootless_container_has_its_users_limit_and_is_told,
    a_node_that_the_user_may_not_open_is_refused_with_its_mode,
    the_systems_own_hooks_still_run,
    with_the_wrapper_too_it_is_given_once,
    with_the_wrapper_too_exec_sessions_have_all_of_it,
    with_the_wrapper_instead_exec_sessions_have_all_of_it,
    undone_it_is_as_before,
]
