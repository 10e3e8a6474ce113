"""containerd with NRI 0.12: plugins validate, some are required, limits and users are visible."""
import json
import signal

import outage
import pods
from harness import CONTAINERD_LOG, Log, Neighbour, Pod, command, contains, equal, write

REQUIRED = """
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
  required_plugins = ["rdma-ctk"]
  tolerate_missing_plugins_annotation = "tolerate-missing-plugins.test"
"""
TOLERANT = {"tolerate-missing-plugins.test": "true"}


def prepare(node):
    pods.prepare(node)


def with_us_required(node):
    """Restart the runtime with its validator on and us on its list; once."""
    if "required" not in node.pods:
        log = Log(CONTAINERD_LOG)
        node.containerd_down()
        node.containerd_up(REQUIRED)
        node.wait_registered(log)
        node.pods["required"] = True


def the_official_client_sees_the_same(node):
    """All else here speaks through our own small CRI client; once, Kubernetes' own does."""
    write("/run/pod.json", json.dumps({
        "metadata": {"name": "official", "namespace": "default", "uid": "official"},
        "annotations": {"devices.rdma-ctk.io": "all"}, "log_directory": "/var/log/pods/official",
        "linux": {"security_context": {"namespace_options": {"network": 2}}}}))
    write("/run/container.json", json.dumps({
        "metadata": {"name": "main"}, "image": {"image": "localhost/test:1"},
        "command": ["sleep", "100000"], "linux": {}}))

    def crictl(*words):
        return command("/mnt/crictl/crictl", "--timeout", "60s", "--runtime-endpoint",
                       "unix:///run/containerd/containerd.sock", *words).strip()
    pod = crictl("runp", "/run/pod.json")
    container = crictl("create", pod, "/run/container.json", "/run/pod.json")
    crictl("start", container)
    contains(crictl("exec", "--sync", container, "ibv_devinfo"), "PORT_ACTIVE")
    limits = crictl("exec", "--sync", container, "grep", "locked", "/proc/self/limits")
    equal(limits.split()[3:5], ["unlimited"] * 2, "the limit")
    nodes = json.loads(crictl("inspect", container))["info"]["runtimeSpec"]["linux"]["devices"]
    contains(str([n["path"] for n in nodes]), "/dev/infiniband/uverbs0")


def a_limit_that_suffices_is_not_set_again(node):
    """This runtime shows the limits of a container, those of earlier plugins too."""
    with Neighbour("05", "memlock=18446744073709551615"):
        pod = Pod("enough", {"devices": "all"}, annotations={"neighbour.test": "n05"})
        container = pod.run("main")
        equal(container.spec().count("RLIMIT_MEMLOCK"), 1, "the number of limits")
        equal(container.sh("ulimit -l").strip(), "unlimited", "the limit")


def required_and_there_pods_are_made(node):
    with_us_required(node)
    outage.works(Pod("required", {"devices": "all"}).run("main"))
    Pod("required-plain").run("main").refused_verbs()


def c61_required_and_dead_containers_are_refused(node):
    with_us_required(node)
    node.daemon_down(signal.SIGKILL)
    try:
        contains(Pod("dead", {"devices": "all"}).refusal(), "rdma-ctk")
        Pod("tolerant", annotations=TOLERANT).run("main")
    finally:
        node.daemon_up()


def c60_required_and_stopped_in_the_middle_the_container_is_refused(node):
    """The runtime counts a plugin that ran late as consulted; our part in validation closes that."""
    with_us_required(node)
    pod = Pod("late", {"devices": "all"})
    log = Log(CONTAINERD_LOG)
    node.daemon.send_signal(signal.SIGSTOP)
    try:
        pod.refusal()
    finally:
        node.daemon.send_signal(signal.SIGCONT)
        node.wait_registered(log)
    outage.works(pod.run("again"))


CASES = [
    pods.c07_pods_that_did_not_ask_are_left_byte_for_byte,
    pods.c94_privileged_is_not_a_claim,
    pods.c10_one_annotation_gives_devices_limit_and_environment,
    pods.two_pods_exchange_messages,
    pods.c01_a_user_without_capabilities_registers_64_mib,
    pods.c10_an_unknown_adapter_is_refused,
    pods.c14_a_host_path_over_the_nodes_gets_rules_only,
    the_official_client_sees_the_same,
    a_limit_that_suffices_is_not_set_again,
    outage.c61_started_while_we_were_dead_it_is_named_within_5_seconds,
    required_and_there_pods_are_made,
    c61_required_and_dead_containers_are_refused,
    c60_required_and_stopped_in_the_middle_the_container_is_refused,
]
