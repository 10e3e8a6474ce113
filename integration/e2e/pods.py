"""What pods get and do not get, with the daemon on the NRI socket."""
import json
import os
import re
import subprocess
import threading

from engines import PINGPONG
from harness import (DAEMON_LOG, PROGRAM, Log, Neighbour, Pod, command, contains, cri, equal, expect,
                     lacks, read, wait_for, write)

UVERBS = "/dev/infiniband/uverbs0"
# Containers of which one is made before the daemon runs and one after: their specs must be equal.
BYSTANDERS = {
    "plain": {},
    "privileged": {"privileged": True},
    "configured": {"user": 1000, "env": {"A": "B"}, "cpuset": "0", "add": ["IPC_LOCK"],
                   "devices": ["/dev/null"]},
}
SIDECAR_POD = {"devices/container.main": "all", "env/container.main": "file"}


def prepare(node):
    node.containerd_up()
    node.specs = {}
    for name, options in BYSTANDERS.items():
        pod = Pod(f"before-{name}", privileged=options.get("privileged", False))
        node.specs[name] = pod.create("main", **options).spec()
    # With nobody to read the annotation: what the sidecar must look like later, too.
    node.specs["sidecar"] = Pod("before-sidecar", SIDECAR_POD).create("sidecar").spec()
    node.daemon_up()


def granted(node):
    """A container that asked for everything, made once for the cases that only look at it."""
    if "granted" not in node.pods:
        pod = Pod("granted", {"devices": "all"})
        node.pods["granted"] = pod.run("main", "sh", "-c", "ulimit -l; env; sleep 100000")
    return node.pods["granted"]


# -- who did not ask ------------------------------------------------------------------------
def c07_pods_that_did_not_ask_are_left_byte_for_byte(node):
    for name, options in BYSTANDERS.items():
        if name == "privileged":
            continue
        container = Pod(f"after-{name}").run("main", **options)
        equal(container.spec(), node.specs[name], f"the spec of {name}")
        if name == "plain":
            container.refused_verbs()
            equal(container.sh("ulimit -l").strip(), "8192", "the limit")


def c94_privileged_is_not_a_claim(node):
    pod = Pod("after-privileged", privileged=True)
    container = pod.create("main", **BYSTANDERS["privileged"])
    equal(container.spec(), node.specs["privileged"], "the spec")


def c73_a_sidecar_beside_an_opted_in_container_is_unchanged(node):
    pod = Pod("after-sidecar", SIDECAR_POD)
    sidecar = pod.run("sidecar")
    equal(sidecar.spec(), node.specs["sidecar"], "the spec of the sidecar")
    sidecar.refused_verbs()
    equal(sidecar.sh("ulimit -l").strip(), "8192", "the limit of the sidecar")
    node.pods["beside"] = pod.run("main")         # see the case of nccl.conf
    contains(node.pods["beside"].sh("ibv_devinfo"), "PORT_ACTIVE")


def none_takes_a_container_out(node):
    pod = Pod("none", {"devices": "all", "devices/container.out": "none"})
    pod.run("out").refused_verbs()
    contains(pod.run("in").sh("ibv_devinfo"), "PORT_ACTIVE")


def injected_sidecars_stay_out_of_pod_wide_keys(node):
    Pod("mesh", {"devices": "all"}).run("istio-proxy").refused_verbs()


# -- who asked ------------------------------------------------------------------------------
def c10_one_annotation_gives_devices_limit_and_environment(node):
    container = granted(node)
    contains(container.sh("ibv_devinfo"), "hca_id:\trxe0", "PORT_ACTIVE")
    contains(container.sh("ls /dev/infiniband"), "uverbs0", "rdma_cm")
    equal(container.log().split()[0], "unlimited", "the limit of the first process")
    contains(container.log(), "NCCL_IB_HCA==rxe0:1\n")
    spec = json.loads("{" + container.spec())["Spec"]
    rules = [r for r in spec["linux"]["resources"]["devices"] if r["allow"]]
    equal(sorted((r["major"], r["access"]) for r in rules), [(10, "rw"), (231, "rw")],
          "the rules of the device cgroup")


def exchange(server, client):
    """Ten messages of 1 MiB each way between two containers; what the client says."""
    words = "ibv_rc_pingpong -d rxe0 -g 1 -s 1048576 -n 10".split()
    served = []
    thread = threading.Thread(target=lambda: served.append(cri.exec_sync(server.id, words, 100)))
    thread.start()
    # Port 18515 (0x4853) in state LISTEN.
    wait_for("the server's port", lambda: re.search(r":4853 0+:0000 0A", read("/proc/net/tcp")))
    out = client.sh(" ".join([*words, "127.0.0.1"]))
    thread.join()
    contains(out, "10 iters in")
    contains(served[0][1].decode(), "10 iters in")
    return out


def two_pods_exchange_messages(node):
    exchange(granted(node), Pod("client", {"devices": "rxe0"}).run("main"))


def c01_a_user_without_capabilities_registers_64_mib(node):
    pod = Pod("user", {"devices": "all"})
    container = pod.run("main", user=1000, drop=["ALL"])
    contains(container.sh("id; grep CapBnd /proc/self/status"), "uid=1000", "0000000000000000\n")
    # Nobody listens at that port: the memory is registered before the program notices.
    script = "ibv_rc_pingpong -d rxe0 -g 1 -s 67108864 -p 19999 127.0.0.1"
    _, out, err = container.attempt(script)
    contains(out, "local address:")
    contains(err, "Couldn't connect")
    equal(container.sh("ulimit -l; ulimit -Hl").split(), ["unlimited"] * 2, "the limits")


def c75_an_init_container_has_it_too(node):
    pod = Pod("init", {"devices": "all"})
    first = pod.run("init", "sh", "-c", "ulimit -l; ibv_devinfo | grep state; echo done")
    wait_for("the end of the init container", lambda: "done" in first.log())
    contains(first.log(), "unlimited", "PORT_ACTIVE")


def exec_sessions_see_environment_and_limit(node):
    container = granted(node)
    equal(container.sh("ulimit -l").strip(), "unlimited", "the limit")
    contains(container.sh("env"), "NCCL_IB_HCA==rxe0:1\n")


def an_own_limit_below_the_ceiling_is_kept(node):
    pod = Pod("limited", {"devices": "all", "memlock": "64MiB"})
    equal(pod.run("main").sh("ulimit -l").strip(), str(64 * 1024), "the limit")


def variables_of_the_container_are_not_overridden(node):
    pod = Pod("own-env", {"devices": "all"})
    env = pod.run("main", env={"NCCL_IB_HCA": "=mine:1"}).sh("env")
    contains(env, "NCCL_IB_HCA==mine:1\n")
    equal(env.count("NCCL_IB_HCA="), 1, "the number of settings")


def env_off_sets_nothing(node):
    env = Pod("no-env", {"devices": "all", "env": "off"}).run("main").sh("env")
    lacks(env, "NCCL", "UCX", "NVSHMEM", "OMPI")


def nccl_conf_is_seen_without_the_environment(node):
    container = node.pods.get("beside") or Pod("conf", {"devices": "all", "env": "file"}).run("main")
    path = container.sh("for f in /etc/nccl.conf /root/.nccl.conf; do [ -f $f ] && echo $f; done; "
                        "true").strip()
    equal(path, "/etc/nccl.conf", "the path of nccl.conf")
    text = container.sh("env -i cat /etc/nccl.conf")
    contains(text, "NCCL_IB_HCA==rxe0:1\n")
    equal(container.sh("stat -c %a /etc/nccl.conf").strip(), "444", "its mode")


# -- user namespaces --------------------------------------------------------------------------
def c89_c90_a_user_namespace_has_usable_nodes_and_the_limit(node):
    pod = Pod("users", {"devices": "all", "env": "file"}, host_network=False, host_users=False)
    container = pod.run("main", user=1000, add=["IPC_LOCK"])
    contains(container.sh("cat /proc/self/uid_map"), "100000")
    # The node is the host's own, whose owner is nobody there.
    contains(container.sh("stat -c '%a %u' /dev/infiniband/uverbs0"), "666 65534")
    contains(container.sh(PINGPONG), "100 iters in")
    equal(container.sh("ulimit -l; ulimit -Hl").split(), ["unlimited"] * 2, "the limits")
    contains(container.sh("env -i cat /etc/nccl.conf"), "NCCL_IB_HCA==rxe0:1\n")


def c90_a_node_that_a_user_namespace_cannot_open_is_warned_of_with_its_mode(node):
    mode = os.stat(UVERBS).st_mode & 0o777
    os.chmod(UVERBS, 0o600)                       # which no event tells; a start looks anew
    node.daemon_down()
    node.daemon_up()
    try:
        Pod("closed", {"devices": "all"}, host_network=False, host_users=False).run("main")
        wait_for("the warning", lambda: "uverbs0 has mode 0600" in node.ctk("inspect", "closed"), 10)
    finally:
        os.chmod(UVERBS, mode)
        node.daemon_down()
        node.daemon_up()


# -- RoCE without an interface in the pod ----------------------------------------------------
def c26_roce_behind_veth_works_with_a_warning(node):
    log = Log(DAEMON_LOG)
    container = Pod("veth", {"devices": "all"}, host_network=False).run("main")
    contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")
    wait_for("a warning that names the adapter", lambda: re.search(
        r"rxe0.*interface|interface.*rxe0", log.text()), 10)
    contains(node.ctk("inspect", "veth"), "interface")


def c26_roce_behind_veth_is_refused_where_required(node):
    pod = Pod("veth-strict", {"devices": "all", "require": "roce-interface"}, host_network=False)
    contains(pod.refusal(), "rdma-ctk: ", "rxe0", "require.rdma-ctk.io")


# -- refusals -------------------------------------------------------------------------------
def c10_an_unknown_adapter_is_refused(node):
    text = Pod("unknown", {"devices": "mlx5_9"}).refusal()
    contains(text, "rdma-ctk: ", "devices.rdma-ctk.io", "mlx5_9", "rxe0")
    expect("\n" not in text.strip(), "the text has several lines")


def a_misspelt_key_is_refused(node):
    text = Pod("misspelt", {"device": "all"}).refusal()
    contains(text, "rdma-ctk: ", "device.rdma-ctk.io", "devices.rdma-ctk.io")


def a_value_that_does_not_parse_is_refused(node):
    text = Pod("misvalued", {"devices": "all", "numa": "stritc"}).refusal()
    contains(text, "rdma-ctk: ", "numa.rdma-ctk.io", "stritc", "strict")


def a_key_without_devices_is_refused(node):
    text = Pod("alone", {"memlock": "unlimited"}).refusal()
    contains(text, "rdma-ctk: ", "memlock.rdma-ctk.io", "devices.rdma-ctk.io")


def c09_a_capability_through_nri_is_refused(node):
    text = Pod("capable", {"devices": "all", "capabilities": "IPC_LOCK"}).refusal()
    contains(text, "rdma-ctk: ", "capabilities.rdma-ctk.io")


def c17_mad_nodes_need_policy(node):
    text = Pod("mad", {"devices": "all", "nodes": "uverbs,umad"}).refusal()
    contains(text, "rdma-ctk: ", "nodes.rdma-ctk.io", "umad")


# -- the node changes -------------------------------------------------------------------------
def c11_without_rdma_cm_the_rest_is_given_with_a_warning(node):
    command("modprobe", "-r", "rdma_ucm")
    try:
        log = Log(DAEMON_LOG)
        pod = Pod("no-cm", {"devices": "all", "require/container.strict": "rdma_cm"})
        container = pod.run("main")
        equal(container.sh("ls /dev/infiniband").split(), ["uverbs0"], "the device nodes")
        contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")
        contains(log.text(), "rdma_ucm")
        contains(pod.refusal("strict"), "rdma-ctk: ", "require.rdma-ctk.io", "rdma_cm")
    finally:
        command("modprobe", "rdma_ucm")
    wait_for("the node of rdma_cm", lambda: os.path.exists("/dev/infiniband/rdma_cm"))
    container = Pod("cm-again", {"devices": "all", "require": "rdma_cm"}).run("main")
    equal(container.sh("stat -c %t:%T /dev/infiniband/rdma_cm"),
          command("stat", "-c", "%t:%T", "/dev/infiniband/rdma_cm"), "the numbers of rdma_cm")


def adapters_that_come_change_their_name_and_go_are_known(node):
    command("ip", "link", "add", "card9", "type", "dummy")
    try:
        command("ip", "addr", "add", "10.99.0.1/24", "dev", "card9")
        command("ip", "link", "set", "card9", "up")
        command("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "card9")
        container = Pod("came", {"devices": "rxe9"}).run("main")
        equal(sorted(container.sh("ls /dev/infiniband").split()), ["rdma_cm", "uverbs1"],
              "the nodes")
        contains(container.sh("ibv_devinfo -d rxe9"), "PORT_ACTIVE")
        command("rdma", "dev", "set", "rxe9", "name", "renamed9")
        contains(Pod("renamed", {"devices": "renamed9"}).run("main").sh("env"), "renamed9:1")
        command("rdma", "link", "del", "renamed9")
        contains(Pod("gone", {"devices": "renamed9"}).refusal(), "rdma-ctk: ", "renamed9", "rxe0")
    finally:
        command("ip", "link", "del", "card9")     # and with it the adapter, whatever its name is


# -- neighbours -----------------------------------------------------------------------------
def c67_what_a_neighbour_has_set_is_not_set_twice(node):
    """Before us in order: a variable, a device and a limit that we would set ourselves."""
    with Neighbour("05", "env=NCCL_IB_HCA==theirs:1", "memlock=18446744073709551615",
                   "device=/dev/infiniband/uverbs0"):
        pod = Pod("neighbours", {"devices": "all"}, annotations={"neighbour.test": "n05"})
        container = pod.run("main")
        contains(container.sh("env"), "NCCL_IB_HCA==theirs:1\n")
        contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")
        contains(container.sh("ls /dev/infiniband"), "rdma_cm")
        equal(container.sh("ulimit -l").strip(), "unlimited", "the limit")


def c67_a_neighbour_after_us_fails_in_words_if_it_sets_ours(node):
    """After us in order, it conflicts: the runtime refuses and names both."""
    with Neighbour("90", "memlock=8388608"):
        pod = Pod("late-neighbour", {"devices": "all"}, annotations={"neighbour.test": "n90"})
        contains(pod.refusal(), "10-rdma-ctk", "90-n90")


HOST_PATH = [("/dev/infiniband", "/dev/infiniband")]


def c14_a_host_path_over_the_nodes_needs_a_newer_runtime(node):
    """A node would be made in the host's folder, and this runtime adds no rule without a node."""
    text = Pod("host-path", {"devices": "all"}).refusal(mounts=HOST_PATH)
    contains(text, "rdma-ctk: ", "/dev/infiniband/uverbs0", "containerd 2.2", "remove the mount")


def c14_a_host_path_over_the_nodes_gets_rules_only(node):
    pod = Pod("host-path", {"devices": "all"})
    container = pod.run("main", mounts=HOST_PATH)
    contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")
    lacks(container.spec(), '"path": "/dev/infiniband/uverbs0"')


# -- policy -----------------------------------------------------------------------------------
def a_broken_policy_stops_the_daemon_at_start(node):
    write("/run/broken.toml", "skip_containers = []\nclaims = 7\n")
    done = subprocess.run([PROGRAM, "nri", "--config", "/run/broken.toml"], capture_output=True,
                          text=True, timeout=20)
    expect(done.returncode not in (0, None), "it runs")
    contains(done.stdout + done.stderr, "/run/broken.toml", "line 2", "column")


# -- asking afterwards ------------------------------------------------------------------------
def decisions_can_be_asked_for(node):
    container = granted(node)
    shown = node.ctk("inspect")
    contains(shown, "granted", "rxe0")
    expect(container.id[:12] in shown or "main" in shown, "inspect does not show the container")
    contains(node.metrics_page(), "200 OK", "# TYPE rdma_ctk_")


def the_node_is_listed_and_examined(node):
    contains(node.ctk("list"), "rxe0")
    report = node.ctk("doctor", check=False)
    contains(report, "1 by rxe", "daemon")
    lacks(report, "FAIL")


# -- SMC-R: the rest of it is the batch smc ---------------------------------------------------
def smc_turns_the_sockets_of_who_asked(node):
    """By StartContainer, which older runtimes tell as a change of state."""
    ask = 'python3 -c "import socket; print(socket.socket().getsockopt(1, 38))"'
    usr = {"mounts": [("/usr", "/usr")]}
    pod = Pod("smc", {"smc/container.asked": "bpf"})
    asked, beside = pod.run("asked", **usr), pod.run("beside", **usr)
    equal(asked.sh(ask).strip(), "256", "a socket of who asked")
    equal(beside.sh(ask).strip(), "6", "a socket of who did not ask")
    cri.call("StopContainer", cri.data(1, asked.id))
    wait_for("the program's end", lambda: not os.path.exists("/sys/fs/bpf/rdma-ctk"))


CASES = [
    c07_pods_that_did_not_ask_are_left_byte_for_byte,
    c94_privileged_is_not_a_claim,
    c73_a_sidecar_beside_an_opted_in_container_is_unchanged,
    none_takes_a_container_out,
    injected_sidecars_stay_out_of_pod_wide_keys,
    c10_one_annotation_gives_devices_limit_and_environment,
    two_pods_exchange_messages,
    c01_a_user_without_capabilities_registers_64_mib,
    c75_an_init_container_has_it_too,
    exec_sessions_see_environment_and_limit,
    an_own_limit_below_the_ceiling_is_kept,
    variables_of_the_container_are_not_overridden,
    env_off_sets_nothing,
    nccl_conf_is_seen_without_the_environment,
    c89_c90_a_user_namespace_has_usable_nodes_and_the_limit,
    c90_a_node_that_a_user_namespace_cannot_open_is_warned_of_with_its_mode,
    c26_roce_behind_veth_works_with_a_warning,
    c26_roce_behind_veth_is_refused_where_required,
    c10_an_unknown_adapter_is_refused,
    a_misspelt_key_is_refused,
    a_value_that_does_not_parse_is_refused,
    a_key_without_devices_is_refused,
    c09_a_capability_through_nri_is_refused,
    c17_mad_nodes_need_policy,
    c11_without_rdma_cm_the_rest_is_given_with_a_warning,
    adapters_that_come_change_their_name_and_go_are_known,
    c67_what_a_neighbour_has_set_is_not_set_twice,
    c67_a_neighbour_after_us_fails_in_words_if_it_sets_ours,
    c14_a_host_path_over_the_nodes_needs_a_newer_runtime,
    a_broken_policy_stops_the_daemon_at_start,
    decisions_can_be_asked_for,
    the_node_is_listed_and_examined,
]
