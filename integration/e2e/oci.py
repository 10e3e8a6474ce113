"""The runtime wrapper under nerdctl, ctr and docker: what containers get, and do not get, without NRI."""
import json
import os
import re

import engines
from engines import ASKS, KEY, PINGPONG
from harness import command, contains, equal, expect, install, lacks, read, write

WRAPPER = "/usr/bin/rdma-ctk-runtime"
DAEMON_JSON = '{ "exec-opts": ["native.cgroupdriver=cgroupfs"] }\n'
SPECS = "/run/containerd/io.containerd.runtime.v2.task"


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    node.containerd_up()
    node.engines = {"ctr": engines.ctr(), "nerdctl": engines.nerdctl()}
    node.engines["ctr"].options.append(f"--runc-binary={WRAPPER}")
    node.engines["nerdctl"].options.append("--runtime=rdma-ctk-runtime")
    write("/etc/docker/daemon.json", DAEMON_JSON)
    command("rdma-ctk", "configure", "docker")
    node.dockerd = engines.docker_up()
    node.engines["docker"] = engines.docker()
    node.engines["docker"].options.append("--runtime=rdma")


def works(said):
    """A ping-pong went round in a container, whose limit is not in the way."""
    contains(said, "100 iters in")


def each(function):
    """A case for each engine."""
    def of(name):
        def case(node):
            function(node.engines[name])
        case.__name__ = f"{name}_{function.__name__}"
        return case
    return [of(name) for name in ("nerdctl", "ctr", "docker")]


LOOK = "ls /dev/infiniband; ulimit -l; env"


@each
def gives_devices_limit_and_environment(engine):
    out = engine.run(ASKS, script=LOOK + PINGPONG).good()
    works(out)
    contains(out, "uverbs0\n", "rdma_cm\n", "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")


@each
def c10_refuses_an_unknown_adapter_in_words(engine):
    engine.run(f"--annotation={KEY}=mlx5_9", script="echo it runs").refused(
        "rdma-ctk: ", "mlx5_9", "rxe0")


@each
def a_misspelt_key_is_refused_with_the_nearest(engine):
    engine.run("--annotation=device.rdma-ctk.io=all", script="echo it runs").refused(
        "rdma-ctk: ", "devices.rdma-ctk.io")


@each
def c07_leaves_who_did_not_ask_alone(engine):
    """The document is neither changed nor written anew: its inode stays."""
    with engine.start() as container:
        expect(container.attempt("ibv_devinfo").status != 0, "ibv_devinfo works")
        lacks(container.sh("env"), "NCCL", "UCX")
        lacks(document(engine, container), "uverbs", "MEMLOCK")


def document(engine, container):
    """The container's config.json as the runtime read it."""
    if engine.name == "docker":
        folder = f"{SPECS}/moby/" + engine.call("inspect", "--format={{.Id}}", container.name).good()
    elif engine.name == "nerdctl":
        folder = f"{SPECS}/default/" + engine.call("inspect", "--format={{.ID}}",
                                                   container.name).good()
    else:
        folder = f"{SPECS}/default/{container.name}"
    text = read(folder.strip() + "/config.json")
    if not text and engine.name == "docker":      # dockerd's own containerd
        text = command("sh", "-c", "cat /var/run/docker/containerd/daemon/io.containerd.runtime.v2"
                       f".task/moby/{os.path.basename(folder.strip())}/config.json", check=False)
    expect(text, f"no config.json in {folder}")
    return text


@each
def exec_sessions_have_the_environment_and_the_limit(engine):
    with engine.start(ASKS) as container:
        out = container.sh(LOOK)
        contains(out, "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")
        works(container.sh(PINGPONG))


def exec_of_a_user_has_the_capabilities(node):
    allow_capabilities()
    for name in ("nerdctl", "docker"):
        engine = node.engines[name]
        with engine.start(ASKS, "--annotation=capabilities.rdma-ctk.io=IPC_LOCK,NET_RAW",
                          "--user=1000", "--cap-drop=ALL") as container:
            for user in ((), ("--user=0",)):
                has_capabilities(container.sh("cat /proc/self/status", *user), user)


def has_capabilities(status, what):
    """CAP_NET_RAW is 13 and CAP_IPC_LOCK 14."""
    effective = int(re.search(r"CapEff:\s*(\w+)", status)[1], 16)
    expect(effective & 0x6000 == 0x6000, f"{what}: effective capabilities are {effective:x}")


def allow_capabilities():
    write("/etc/rdma-ctk/config.toml",
          '[default]\nkeys = ["devices", "capabilities"]\ncapabilities = ["IPC_LOCK", "NET_RAW"]\n')


def c09_capabilities_are_given_where_policy_allows(node):
    asks = "--annotation=capabilities.rdma-ctk.io=IPC_LOCK"
    write("/etc/rdma-ctk/config.toml", "")
    nerdctl = node.engines["nerdctl"]
    nerdctl.run(ASKS, asks, script="echo it runs").refused("rdma-ctk: ", "IPC_LOCK")
    allow_capabilities()
    status = nerdctl.run(ASKS, "--annotation=capabilities.rdma-ctk.io=IPC_LOCK,NET_RAW",
                         "--user=1000", "--cap-drop=ALL", script="cat /proc/self/status").good()
    has_capabilities(status, "user 1000")


@each
def c01_a_user_without_capabilities_on_a_read_only_root_exchanges_messages(engine):
    options = [ASKS]
    if engine.name == "ctr":
        options += ["--user=1000", "--read-only"] + [
            f"--cap-drop=CAP_{name}" for name in ("NET_RAW", "MKNOD", "SYS_CHROOT", "SETFCAP")]
    else:
        options += ["--user=1000", "--read-only", "--cap-drop=ALL"]
    out = engine.run(*options, script="id -u; ulimit -l; touch /x; " + PINGPONG).good()
    works(out)
    contains(out, "1000\n", "unlimited\n")


def a_container_may_be_called_create(node):
    """And its options look like commands: the wrapper has to know which word is which."""
    engine = node.engines["nerdctl"]
    try:
        engine.call("run", "--detach", "--name=create", *engine.options, ASKS, "--hostname=exec",
                    engine.image, "sleep", "100000").good()
        works(engine.call("exec", "create", "sh", "-c", PINGPONG).good())
    finally:
        engine.call("rm", "--force", "create")


def the_runtime_behind_it_is_the_one_that_policy_names(node):
    """crun behind the same wrapper."""
    write("/etc/rdma-ctk/config.toml", '[wrapper]\nruntime = "/usr/bin/crun"\n')
    try:
        works(node.engines["nerdctl"].run(ASKS, script=PINGPONG).good())
        contains(command(WRAPPER, "--version"), "crun")
    finally:
        write("/etc/rdma-ctk/config.toml", "")
    contains(command(WRAPPER, "--version"), "runc version")
    expect(json.loads(command(WRAPPER, "features"))["ociVersionMax"], "features says nothing")


def docker_with_the_wrapper_by_default(node):
    engines.docker_down(node.dockerd)
    command("rdma-ctk", "configure", "docker", "--default")
    node.dockerd = engines.docker_up()
    engine = engines.docker()
    works(engine.run(ASKS, script=PINGPONG).good())
    expect(engine.run(script="ibv_devinfo").status != 0, "ibv_devinfo works without a key")


def docker_is_as_before_after_undo(node):
    engines.docker_down(node.dockerd)
    command("rdma-ctk", "configure", "docker", "--undo")
    equal(read("/etc/docker/daemon.json"), DAEMON_JSON, "daemon.json")
    node.dockerd = engines.docker_up()
    node.engines["docker"].run(ASKS, script="true").refused("rdma")
    engines.docker().run(script="true").good()


CASES = [
    *gives_devices_limit_and_environment,
    *c10_refuses_an_unknown_adapter_in_words,
    *a_misspelt_key_is_refused_with_the_nearest,
    *c07_leaves_who_did_not_ask_alone,
    *exec_sessions_have_the_environment_and_the_limit,
    *c01_a_user_without_capabilities_on_a_read_only_root_exchanges_messages,
    c09_capabilities_are_given_where_policy_allows,
    exec_of_a_user_has_the_capabilities,
    a_container_may_be_called_create,
    the_runtime_behind_it_is_the_one_that_policy_names,
    docker_with_the_wrapper_by_default,
    docker_is_as_before_after_undo,
]
