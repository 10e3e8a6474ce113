"""Pods whose runtime handler is the wrapper, with the NRI daemon beside it: each has one owner."""
import os

from harness import (DAEMON_LOG, Log, Pod, contains, cri, equal, expect, install, lacks, read)
from oci import PINGPONG, allow_capabilities, has_capabilities

UVERBS = "/dev/infiniband/uverbs0"
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    allow_capabilities()
    node.containerd_up(config="only")
    node.configure("containerd", "--nri")
    node.configure("containerd", "--runtime")
    node.containerd_up(config="keep")
    node.daemon_up()


def pod(name, keys, **options):
    return Pod(name, keys, runtime="rdma", **options)


def start_refusal(pod, **options):
    """The wrapper refuses where the runtime makes the container: when it is started."""
    return pod.create("main", **options).start_refusal()


def document(container_id):
    return read(f"{BUNDLES}/{container_id}/config.json")


def works(container):
    contains(container.sh(PINGPONG), "100 iters in")


def a_pod_of_the_handler_has_devices_and_capabilities(node):
    log = Log(DAEMON_LOG)
    asked = pod("class", {"devices": "all", "capabilities": "IPC_LOCK,NET_RAW"})
    for name, user in (("main", 1000), ("root", 0)):
        container = asked.run(name, user=user, drop=["ALL"])
        works(container)
        contains(container.sh("id"), f"uid={user}")
        has_capabilities(container.sh("cat /proc/self/status"), f"an exec session of {user}")
        status = read(f"/proc/{pid(container)}/status")
        has_capabilities(status, f"the first process of {user}")
        contains(container.sh("env"), "NCCL_IB_HCA==rxe0:1\n")
        equal(container.sh("ulimit -l; ulimit -Hl").split(), ["unlimited"] * 2, "an exec session's limits")
        contains(read(f"/proc/{pid(container)}/limits"), "Max locked memory         unlimited")
        # One owner: what NRI would have given is in the stored spec.
        lacks(container.spec(), "uverbs0")
        equal(document(container.id).count("NCCL_IB_HCA="), 1, "the number of lists")
    lacks("".join(x for x in log.text().splitlines() if "default/class" in x), "granted pod")


def c09_a_capability_that_policy_does_not_give_is_refused_at_start(node):
    asked = pod("greedy", {"devices": "all", "capabilities": "IPC_LOCK,SYS_ADMIN"})
    contains(start_refusal(asked), "rdma-ctk: ", "capabilities.rdma-ctk.io=IPC_LOCK,SYS_ADMIN",
             "policy does not give SYS_ADMIN to namespace default",
             "config.toml, [default] capabilities: IPC_LOCK, NET_RAW")


def c89_c90_a_user_namespace_has_usable_nodes_and_the_limit(node):
    container = pod("users", {"devices": "all", "capabilities": "NET_RAW"},
                    host_network=False, host_users=False).run("main", user=1000)
    contains(container.sh("cat /proc/self/uid_map"), "100000")
    works(container)
    equal(container.sh("ulimit -l; ulimit -Hl").split(), ["unlimited"] * 2, "the limits")
    # The node is the host's own, whose owner is nobody there.
    contains(container.sh("stat -c '%a %u' /dev/infiniband/uverbs0"), "666 65534")


def c90_a_node_that_a_user_namespace_cannot_open_is_refused_with_its_mode(node):
    mode = os.stat(UVERBS).st_mode & 0o777
    os.chmod(UVERBS, 0o600)
    try:
        asked = pod("closed", {"devices": "all"}, host_network=False, host_users=False)
        contains(start_refusal(asked), "rdma-ctk: ", "uverbs0 has mode 0600",
                 "in a user namespace cannot open it", "udev")
    finally:
        os.chmod(UVERBS, mode)


def pid(container):
    """Of the first process."""
    return read(f"{BUNDLES}/{container.id}/init.pid").strip()


def the_daemon_says_whose_the_pod_is(node):
    pod("whose", {"devices": "all"}).run("main")
    shown = "".join(line for line in node.ctk("inspect").splitlines() if "default/whose" in line)
    contains(shown, "wrapper")
    lacks(shown, "SLIPPED")


def c10_an_unknown_adapter_is_refused_at_start(node):
    contains(start_refusal(pod("unknown", {"devices": "mlx5_9"})), "rdma-ctk: ", "mlx5_9", "rxe0")


def a_scoped_key_reaches_its_container_only(node):
    scoped = pod("scoped", {"devices/container.main": "all"})
    works(scoped.run("main"))
    side = scoped.run("side")
    side.refused_verbs()
    lacks(side.sh("env"), "NCCL")


def c07_pods_of_the_handler_that_did_not_ask_are_left_alone(node):
    plain = pod("plain", {})
    container = plain.run("main")
    container.refused_verbs()
    lacks(document(container.id), "uverbs", "MEMLOCK")
    lacks(document(plain.id), "uverbs")


def a_sandbox_is_left_alone(node):
    asked = pod("sandbox", {"devices": "all"})
    lacks(document(asked.id), "uverbs", "MEMLOCK", "NCCL")


def c09_through_nri_a_capability_is_refused(node):
    text = Pod("nri", {"devices": "all", "capabilities": "IPC_LOCK"}).refusal()
    contains(text, "rdma-ctk: ", "capabilities.rdma-ctk.io", "runtime wrapper")


def while_the_daemon_is_away_pods_of_the_handler_are_served(node):
    node.daemon_down()
    try:
        works(pod("alone", {"devices": "all"}).run("main"))
    finally:
        node.daemon_up()
    lacks("".join(x for x in node.ctk("inspect").splitlines() if "default/alone" in x), "SLIPPED")


def as_the_default_runtime_it_is_the_second_line(node):
    """NRI gives, and the wrapper finds it given; where NRI was not asked the wrapper gives."""
    node.daemon_down()
    node.containerd_down()
    node.configure("containerd", "--runtime", "--default")
    node.containerd_up(config="keep")
    try:
        container = Pod("second", {"devices": "all"}).run("main")
        works(container)
        lacks(container.spec(), "uverbs0")
    finally:
        node.daemon_up()
    container = Pod("first", {"devices": "all"}).run("main")
    works(container)
    contains(container.spec(), "uverbs0")
    for once in ("NCCL_IB_HCA=", '"/dev/infiniband/uverbs0"', "RLIMIT_MEMLOCK"):
        equal(document(container.id).count(once), 1, f"the number of {once}")


def undone_the_handler_is_gone(node):
    node.daemon_down()
    node.containerd_down()
    node.configure("containerd", "--undo")
    lacks(read("/etc/containerd/config.toml"), "rdma-ctk")
    node.containerd_up(config="keep")
    node.daemon_up()
    try:
        pod("undone", {"devices": "all"})
    except cri.CriError as e:
        contains(e.text, "rdma")
    else:
        expect(False, "there is still a handler")


CASES = [
    a_pod_of_the_handler_has_devices_and_capabilities,
    c09_a_capability_that_policy_does_not_give_is_refused_at_start,
    c89_c90_a_user_namespace_has_usable_nodes_and_the_limit,
    c90_a_node_that_a_user_namespace_cannot_open_is_refused_with_its_mode,
    the_daemon_says_whose_the_pod_is,
    c10_an_unknown_adapter_is_refused_at_start,
    a_scoped_key_reaches_its_container_only,
    c07_pods_of_the_handler_that_did_not_ask_are_left_alone,
    a_sandbox_is_left_alone,
    c09_through_nri_a_capability_is_refused,
    while_the_daemon_is_away_pods_of_the_handler_are_served,
    as_the_default_runtime_it_is_the_second_line,
    undone_the_handler_is_gone,
]
