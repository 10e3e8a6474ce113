"""SMC-R without the daemon: by the wrapper under nerdctl and docker, and by hooks under podman.

As in the batch smc, connections go over RDMA in the host's network namespace, over an adapter on lo;
for containers with a namespace of their own it is looked at what was prepared.
"""
import glob
import json
import os
import re
import subprocess

import engines
from harness import (command, contains, equal, expect, install, lacks, read, wait_for, write)
from smc import ASK, CONNECT, NEAR, PINS, SERVE, SMC, TCP, gone

ASKS = "--annotation=smc.rdma-ctk.io=bpf"
PYTHON = "--volume=/usr:/usr:ro"
HOST = "--network=host"
CLAIMS = "/run/rdma-ctk/smc"
RECORDS = "/run/rdma-ctk/wrapper/containers"


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    command("cp", "/usr/bin/rdma-ctk", "/usr/local/bin/rdma-ctk")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    os.makedirs("/usr/share/rdma-ctk")
    command("cp", "-r", "/mnt/hooks", "/usr/share/rdma-ctk/hooks.d")
    node.containerd_up()
    write("/etc/containers/containers.conf", engines.CONTAINERS_CONF)
    command("rdma-ctk", "configure", "podman")
    command("rdma-ctk", "configure", "docker")
    node.dockerd = engines.docker_up()
    node.engines = {
        "nerdctl": engines.nerdctl("host"),
        "docker": engines.docker("host"),
        "podman": engines.podman("crun", "host"),
        "podman_runc": engines.podman("runc", "host"),
        "rootless": engines.rootless(network="host"),
    }
    node.engines["nerdctl"].options.append("--runtime=/usr/bin/rdma-ctk-runtime")
    node.engines["docker"].options.append("--runtime=rdma")


def each(*names):
    """A case for each of these engines."""
    def decorate(function):
        def of(name):
            def case(node):
                function(node, node.engines[name])
            case.__name__ = f"{name}_{function.__name__}"
            return case
        return [of(name) for name in names]
    return decorate


EVERY = ("nerdctl", "docker", "podman", "podman_runc")


def program(text, *words):
    """A shell's words that run a Python program in the background of a container."""
    quoted = text.replace("'", "'\\''")
    return f"python3 -uc '{quoted}' {' '.join(words)} >/tmp/said-$$ 2>&1 & "


def protocol(container):
    return container.sh(f'python3 -c "{ASK}"').strip()


def status(node):
    return json.loads(node.ctk("smc", "status", "-o", "json"))


def nothing_is_left(node):
    gone(PINS)
    wait_for("the end of claims", lambda: not glob.glob(f"{CLAIMS}/*.json"))
    equal(status(node)["containers"], [], "who has SMC-R")


@each(*EVERY)
def one_annotation_turns_sockets_and_nothing_is_left(node, engine):
    with engine.start(ASKS, PYTHON) as container, engine.start(PYTHON) as beside:
        equal(protocol(container), SMC, "a socket of who asked")
        equal(protocol(beside), TCP, "a socket of who did not ask")
        container.sh(program(SERVE, "127.0.0.1", "7301") + program(CONNECT, "127.0.0.1", "7301")
                     + "sleep 1")

        def connected():
            (found,) = status(node)["containers"]
            return [one for one in found["connections"] if one["mode"] == "SMC-R"]
        found = wait_for("connections over RDMA", connected, 60, step=1)[0]
        equal((found["link"], found["gid"]), ("rxelo/1", "::ffff:127.0.0.1"), "link and GID")
        equal(status(node)["switched"], 1, "how many are switched")
        (record,) = status(node)["containers"]
        equal(record["method"], "bpf", "the method")
        contains(node.ctk("inspect", record["id"]), "connections on SMC-R")
    nothing_is_left(node)


@each(*EVERY)
def what_the_kernel_would_not_do_is_refused_before_the_program_runs(node, engine):
    engine.options = [option for option in engine.options if option != HOST] + ["--network=none"]
    try:
        engine.run(ASKS, script="echo it runs").refused(
            "rdma-ctk: ", "smc.rdma-ctk.io=bpf: ", "the pod has no IPv4 address")
        lacks(engine.run(ASKS, script="echo it runs").out, "it runs")
    finally:
        engine.options = [option for option in engine.options if option != "--network=none"] + [HOST]
    engine.run("--annotation=smc.rdma-ctk.io=tcp2smc", script="true").refused(
        "policy does not allow it")
    nothing_is_left(node)


def a_rootless_engine_is_refused_in_words(node):
    node.engines["rootless"].run(ASKS, script="echo it runs").refused(
        "rdma-ctk: ", "smc.rdma-ctk.io=bpf: a rootless engine prepares nothing on the machine")


def preload_sees_the_program_before_it_runs(node):
    """In the document: nothing is created for one that cannot be reached."""
    if not os.path.exists("/mnt/bin/libsmc-preload.so"):
        raise engines.Failed("there is no C compiler to build the library with")
    command("cp", "/mnt/bin/libsmc-preload.so", "/usr/local/lib/libsmc-preload.so")
    write("/etc/rdma-ctk/config.toml",
          '[smc]\npreload_library = "/usr/local/lib/libsmc-preload.so"\n')
    asks = "--annotation=smc.rdma-ctk.io=preload"
    try:
        for name in ("nerdctl", "podman"):
            engine = node.engines[name]
            engine.run(asks, script="echo it runs").refused(
                "entry binary is statically linked: preload cannot switch it to SMC")
            out = engine.call("run", "--rm", *engine.options, asks, PYTHON, "--env=LD_PRELOAD=",
                              engine.image, "python3", "-c",
                              f"import os; print(os.environ['LD_PRELOAD']); {ASK}").good()
            equal(out.split()[0], "/run/rdma-ctk/libsmc-preload.so", "the variable")
    finally:
        write("/etc/rdma-ctk/config.toml", "")
    nothing_is_left(node)


def a_namespace_that_is_made_later_is_prepared_in_the_hook(node):
    """nerdctl's own hook makes the network, after the document was read."""
    write("/etc/cni/net.d/05-near.conflist", json.dumps(NEAR))
    write("/etc/rdma-ctk/config.toml", '[default]\nsmc_sysctls = ["wmem"]\n')
    engine = node.engines["nerdctl"]
    before = engine.options
    engine.options = [option for option in before if option != HOST] + ["--network=near"]
    try:
        with engine.start("--annotation=smc.rdma-ctk.io=bpf,wmem=262144", PYTHON) as container:
            equal(protocol(container), SMC, "a socket")
            equal(container.sh("cat /proc/sys/net/smc/wmem").strip(), "262144", "the sysctl")
            text = node.ctk("smc", "status")
            name = re.search(r"(RCTK[0-9A-F]{12}) for rxe0/1", text)
            expect(name, f"no PNET id for rxe0: {text}")
            pid = engine.call("inspect", "--format={{.State.Pid}}", container.name).good().strip()
            contains(command("nsenter", "-t", pid, "-n", "smc", "pnet"), f"{name[1]} eth0")
        wait_for("the name's end", lambda: name[1] not in node.ctk("smc", "status"))
    finally:
        engine.options = before
        write("/etc/rdma-ctk/config.toml", "")
        os.remove("/etc/cni/net.d/05-near.conflist")
    nothing_is_left(node)


def the_daemon_leaves_them_alone_and_drops_what_nobody_took_back(node):
    engine = node.engines["podman"]
    with engine.start(ASKS, PYTHON) as container:
        node.daemon_up()
        wait_for("the daemon's look", lambda: "SMC-R goes on where it was" in read(
            "/var/log/rdma-ctk.log"))
        equal(protocol(container), SMC, "a socket beside the daemon")
        equal(status(node)["switched"], 1, "how many are switched")
        expect(node.metric(r'rdma_ctk_smc_connections\{mode="SMC-R"\}') == 0, "a connection")
        node.daemon_down()
        equal(protocol(container), SMC, "a socket after the daemon")
        # Its hook will find nothing that it could take back.
        for record in glob.glob(f"{RECORDS}/*.json"):
            os.remove(record)
    equal(status(node)["switched"], 1, "what is left")
    node.daemon_up()
    nothing_is_left(node)
    node.daemon_down()
    node.wanted = False


def a_hook_is_no_daemons_second_hand(node):
    """Called for a container of the daemon, as CRI-O calls it: the switch is the daemon's."""
    state = {"ociVersion": "1.2.0", "id": "none-of-ours", "status": "created",
             "pid": os.getpid(), "bundle": "/", "annotations": {
                 "smc.rdma-ctk.io": "bpf", "grant.rdma-ctk.io": "0fac37c0a5e33e5b"}}
    done = subprocess.run(["rdma-ctk-hook", "createRuntime"], input=json.dumps(state), text=True,
                          capture_output=True)
    equal(done.returncode, 0, "the status for who is not on record")
    with node.engines["nerdctl"].start(ASKS):
        (record,) = (json.loads(read(path)) for path in glob.glob(f"{RECORDS}/*.json")
                     if '"granted"' in read(path))
    record["id"] = "of-the-daemon"
    group = "/sys/fs/cgroup/e2e-crio/ctr"
    os.makedirs(group)
    sleeper = subprocess.Popen(["sleep", "1000"])
    write(f"{group}/cgroup.procs", str(sleeper.pid))
    os.makedirs("/run/rdma-ctk/containers", exist_ok=True)
    path = "/run/rdma-ctk/containers/of-the-daemon.json"
    write(path, json.dumps(record))
    state.update(id="of-the-daemon", pid=sleeper.pid)
    try:
        done = subprocess.run(["rdma-ctk-hook", "createRuntime"], input=json.dumps(state), text=True,
                              capture_output=True)
        equal((done.returncode, done.stderr), (0, ""), "the status")
        equal(status(node)["switched"], 1, "how many are switched")
        expect(not glob.glob(f"{CLAIMS}/*.json"), "the hook claims what is the daemon's")
    finally:
        os.remove(path)
        sleeper.kill()
        sleeper.wait()
        command("rdma-ctk", "smc", "release")
    os.rmdir(group)
    gone(PINS)


CASES = [
    *one_annotation_turns_sockets_and_nothing_is_left,
    *what_the_kernel_would_not_do_is_refused_before_the_program_runs,
    a_rootless_engine_is_refused_in_words,
    preload_sees_the_program_before_it_runs,
    a_namespace_that_is_made_later_is_prepared_in_the_hook,
    the_daemon_leaves_them_alone_and_drops_what_nobody_took_back,
    a_hook_is_no_daemons_second_hand,
]
