"""Two NUMA nodes (CPUs 0-1 and 2-3) with a card each: rxe0 is near node 0, rxe1 near node 1."""
import os
import re

from harness import (DAEMON_LOG, Log, Neighbour, Pod, command, contains, cri, equal, expect, lacks,
                     wait_for, write)


def prepare(node):
    node.containerd_up()
    node.daemon_up()


def placed(name, keys, **options):
    """A running container that asked."""
    return Pod(name, keys).run("main", **options)


def cpus(container):
    return container.cgroup("cpuset.cpus")


# -- CPUs -----------------------------------------------------------------------------------
def c45_cpus_are_those_of_the_adapters_node(node):
    container = placed("near", {"devices": "rxe1"})
    equal(cpus(container), "2-3", "the CPUs")
    equal(container.cgroup("cpuset.mems"), "", "the memory nodes")
    contains(container.sh("grep Cpus_allowed_list /proc/self/status"), "2-3")


def c45_strict_sets_memory_nodes_too(node):
    container = placed("strict", {"devices": "rxe1", "numa": "strict"})
    equal((cpus(container), container.cgroup("cpuset.mems")), ("2-3", "1"), "CPUs and memory")


def off_leaves_cpus_alone(node):
    equal(cpus(placed("off", {"devices": "rxe1", "numa": "off"})), "", "the CPUs")


def adapters_of_both_nodes_leave_all_cpus(node):
    seen = cpus(placed("both", {"devices": "all"}))
    expect(seen in ("", "0-3"), f"the CPUs are {seen}")


def a_given_set_is_narrowed(node):
    equal(cpus(placed("given", {"devices": "rxe1"}, cpuset="1-3")), "2-3", "the CPUs")


def a_given_set_elsewhere_stays_with_a_warning(node):
    log = Log(DAEMON_LOG)
    equal(cpus(placed("elsewhere", {"devices": "rxe1"}, cpuset="0-1")), "0-1", "the CPUs")
    wait_for("a warning", lambda: re.search(r"(?i)warn.*cpu", log.text()), 10)


def fewer_cpus_than_the_limit_are_not_forced(node):
    container = placed("wide", {"devices": "rxe1"}, cpuset="0-3", cpus=3, shares=1024)
    equal(cpus(container), "0-3", "the CPUs")


def exclusive_cpus_stay(node):
    """What the static CPU manager gives a guaranteed pod of 2 CPUs."""
    log = Log(DAEMON_LOG)
    container = placed("exclusive", {"devices": "rxe1"}, cpuset="1-2", cpus=2, shares=2048)
    equal(cpus(container), "1-2", "the CPUs")
    wait_for("a warning", lambda: re.search(r"(?i)warn.*cpu", log.text()), 10)


def cpus_of_an_earlier_plugin_stay(node):
    """The kubelet's own record tells that it has not given them; without one nobody could tell."""
    record = "/var/lib/kubelet/cpu_manager_state"
    write(record, '{"policyName":"none","defaultCpuSet":""}')
    try:
        with Neighbour("05", "cpus=0-2"):
            pod = Pod("owned", {"devices": "rxe1"}, annotations={"neighbour.test": "n05"})
            equal(cpus(pod.run("main")), "0-2", "the CPUs")
    finally:
        os.unlink(record)


def c24_cpus_that_are_sent_again_are_narrowed_again(node):
    container = placed("resent", {"devices": "rxe1"}, cpuset="0-3")
    equal(cpus(container), "2-3", "the CPUs")
    cri.update(container.id, "1-3")
    equal(cpus(container), "2-3", "the CPUs after the update")
    contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")


# -- which adapter ----------------------------------------------------------------------------
def c78_only_the_nodes_of_the_granted_adapter_are_there(node):
    container = placed("one", {"devices": "rxe1"})
    nodes = container.sh("ls /dev/infiniband").split()
    equal(sorted(nodes), ["rdma_cm", "uverbs1"], "the device nodes")
    contains(container.sh("ibv_devinfo -d rxe1"), "PORT_ACTIVE")
    expect(container.attempt("ibv_devinfo -d rxe0")[0] != 0, "rxe0 opens")
    contains(container.sh("env"), "NCCL_IB_HCA==rxe1:1\n")


def selectors_find_their_adapter(node):
    for i, (selector, wanted, other) in enumerate([
            ("netdev:eth0", "uverbs0", "uverbs1"), ("numa:1", "uverbs1", "uverbs0")]):
        nodes = placed(f"selector-{i}", {"devices": selector}).sh("ls /dev/infiniband")
        contains(nodes, wanted)
        lacks(nodes, other)


def a_count_gives_as_many(node):
    nodes = placed("count", {"devices": "1"}).sh("ls /dev/infiniband").split()
    equal(len([n for n in nodes if n.startswith("uverbs")]), 1, "the number of adapters")


def both_are_in_one_list(node):
    container = placed("list", {"devices": "link:roce"})
    contains(container.sh("env"), "NCCL_IB_HCA==rxe0:1,rxe1:1\n")
    contains(container.sh("ibv_devinfo"), "rxe0", "rxe1")


# -- the mode of the RDMA namespace -----------------------------------------------------------
def c54_in_exclusive_mode_an_adapter_outside_the_pod_is_refused(node):
    """The kernel changes the mode only while no other network namespace exists: all pods above
    share the host's."""
    command("rdma", "system", "set", "netns", "exclusive")
    node.daemon_down()
    node.daemon_up()
    contains(placed("same", {"devices": "rxe1"}).sh("ibv_devinfo"), "rxe1")
    text = Pod("other", {"devices": "rxe1"}, host_network=False).refusal()
    contains(text, "rdma-ctk: ", "rxe1", "exclusive")


CASES = [
    c45_cpus_are_those_of_the_adapters_node,
    c45_strict_sets_memory_nodes_too,
    off_leaves_cpus_alone,
    adapters_of_both_nodes_leave_all_cpus,
    a_given_set_is_narrowed,
    a_given_set_elsewhere_stays_with_a_warning,
    fewer_cpus_than_the_limit_are_not_forced,
    exclusive_cpus_stay,
    cpus_of_an_earlier_plugin_stay,
    c24_cpus_that_are_sent_again_are_narrowed_again,
    c78_only_the_nodes_of_the_granted_adapter_are_there,
    selectors_find_their_adapter,
    a_count_gives_as_many,
    both_are_in_one_list,
    c54_in_exclusive_mode_an_adapter_outside_the_pod_is_refused,
]
