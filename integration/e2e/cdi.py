"""CDI: the file that we write, as nerdctl, podman, docker and containerd's CRI read it."""
import json
import os
import signal
import subprocess

import engines
from engines import PINGPONG
from harness import (Pod, command, contains, cri, equal, expect, install, lacks, read, wait_for)

FILE = "/var/run/cdi/rdma-ctk.io-hca.json"
DEVICE = "--device=rdma-ctk.io/hca="
LOOK = "ls /dev/infiniband; ulimit -l; cat /etc/nccl.conf; "


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    command("rdma-ctk", "cdi", "generate")
    node.containerd_up()
    node.engines = {"nerdctl": engines.nerdctl(), "podman_crun": engines.podman("crun"),
                    "podman_runc": engines.podman("runc")}
    command("rdma-ctk", "configure", "docker")    # before Docker 28 it is behind a switch
    engines.docker_up()
    node.engines["docker"] = engines.docker()


def each(function):
    """A case for each engine."""
    def of(name):
        def case(node):
            function(node.engines[name])
        case.__name__ = f"{name}_{function.__name__}"
        return case
    return [of(name) for name in ("nerdctl", "podman_crun", "podman_runc", "docker")]


@each
def gives_an_adapter_by_its_name(engine):
    out = engine.run(f"{DEVICE}rxe0", script=LOOK + PINGPONG).good()
    contains(out, "100 iters in", "uverbs0\n", "rdma_cm\n", "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")


@each
def gives_all_to_a_user_without_capabilities(engine):
    out = engine.run(f"{DEVICE}all", "--user=1000", "--cap-drop=ALL", script=LOOK + PINGPONG).good()
    contains(out, "100 iters in", "unlimited\n")


@each
def refuses_what_there_is_not(engine):
    engine.run(f"{DEVICE}mlx5_9", script="echo it runs").refused("rdma-ctk.io/hca=mlx5_9")


def two_names_of_one_adapter_do_not_overwrite_each_other(node):
    out = node.engines["nerdctl"].run(f"{DEVICE}rxe0", f"{DEVICE}all", script=LOOK).good()
    equal(out.count("NCCL_IB_HCA="), 1, "the number of lists")
    contains(out, "NCCL_IB_HCA==rxe0:1\n")


def a_rootless_container_has_the_nodes_and_its_users_limit(node):
    out = engines.rootless().run(f"{DEVICE}rxe0", script=LOOK + PINGPONG).good()
    contains(out, "100 iters in", "uverbs0\n")


def c93_an_image_without_a_provider_takes_the_nodes_when_asked_for(node):
    """An empty folder stands where the image has its providers."""
    os.makedirs("/run/nothing", exist_ok=True)
    for name in ("nerdctl", "podman_crun", "docker"):
        engine = node.engines[name]
        hidden = "--volume=/run/nothing:/usr/lib/x86_64-linux-gnu/libibverbs"
        command("rdma-ctk", "cdi", "generate")
        without = engine.run(f"{DEVICE}rxe0", hidden, script="ibv_devinfo")
        expect(without.status != 0, f"{name}: without a provider it works")
        command("rdma-ctk", "cdi", "generate", "--with-libs")
        command("rdma-ctk", "cdi", "validate", "--with-libs")
        out = engine.run(f"{DEVICE}rxe0", f"{DEVICE}all", hidden, script=LOOK + PINGPONG).good()
        contains(out, "100 iters in", "unlimited\n")
        # Beside the image's own it is not in the way.
        contains(engine.run(f"{DEVICE}rxe0", "--user=1000", script=PINGPONG).good(), "100 iters in")
    command("rdma-ctk", "cdi", "generate")


def a_pod_gets_it_by_its_containers_names(node):
    container = Pod("cdi").run("main", cdi=["rdma-ctk.io/hca=rxe0"])
    contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")
    try:
        Pod("cdi-unknown").run("main", cdi=["rdma-ctk.io/hca=mlx5_9"])
    except cri.CriError as e:
        contains(e.text, "rdma-ctk.io/hca=mlx5_9")
    else:
        expect(False, "a container with an unknown device was made")


def the_file_follows_the_node(node):
    watch = subprocess.Popen(["rdma-ctk", "cdi", "generate", "--watch"], stdin=subprocess.DEVNULL)
    try:
        command("ip", "link", "add", "card9", "type", "dummy")
        command("ip", "addr", "add", "10.99.0.1/24", "dev", "card9")
        command("ip", "link", "set", "card9", "up")
        command("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "card9")
        wait_for("rxe9 in the file", lambda: "rxe9" in names())
        command("rdma", "dev", "set", "rxe9", "name", "renamed9")
        wait_for("its new name", lambda: "renamed9" in names() and "rxe9" not in names())
        out = node.engines["nerdctl"].run(f"{DEVICE}renamed9", script=LOOK).good()
        contains(out, "uverbs1\n")
        lacks(out, "uverbs0\n")
        command("ip", "link", "del", "card9")
        wait_for("its end", lambda: "renamed9" not in names())
    finally:
        command("ip", "link", "del", "card9", check=False)
        watch.send_signal(signal.SIGTERM)
        watch.wait(timeout=20)


def names():
    return [device["name"] for device in json.loads(read(FILE))["devices"]]


def what_is_listed_is_valid_and_duplicates_are_found(node):
    command("rdma-ctk", "cdi", "generate")
    contains(command("rdma-ctk", "cdi", "list"), "rdma-ctk.io/hca=rxe0", "rdma-ctk.io/hca=all")
    command("rdma-ctk", "cdi", "validate")
    other = "/etc/cdi/other.json"
    os.makedirs("/etc/cdi", exist_ok=True)
    command("cp", FILE, other)
    try:
        done = engines.attempt("rdma-ctk", "cdi", "validate")
        expect(done.status != 0, "a duplicate is valid")
        contains(done.out + done.err, other, "rxe0")
    finally:
        os.unlink(other)


CASES = [
    *gives_an_adapter_by_its_name,
    *gives_all_to_a_user_without_capabilities,
    *refuses_what_there_is_not,
    two_names_of_one_adapter_do_not_overwrite_each_other,
    a_rootless_container_has_the_nodes_and_its_users_limit,
    c93_an_image_without_a_provider_takes_the_nodes_when_asked_for,
    a_pod_gets_it_by_its_containers_names,
    the_file_follows_the_node,
    what_is_listed_is_valid_and_duplicates_are_found,
]
