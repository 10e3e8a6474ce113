"""The runtime wrapper under nerdctl, ctr and docker: what containers get, and do not get, without NRI."""
import ipaddress
import json
import os
import re
import shutil

import engines
from engines import ASKS, KEY, PINGPONG
from harness import command, contains, equal, expect, install, lacks, read, wait_for, write

WRAPPER = "/usr/bin/rdma-ctk-runtime"
DAEMON_JSON = """{
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "runtimes": { "fake-nvidia": { "path": "/usr/bin/fake-nvidia-container-runtime" } }
}
"""
SPECS = "/run/containerd/io.containerd.runtime.v2.task"
RECORDS = "/run/rdma-ctk/wrapper"
# Stands for nvidia-container-runtime, which wants a GPU: see the file.
FAKE_NVIDIA = "/usr/bin/fake-nvidia-container-runtime"


def prepare(node):
    install("rdma-ctk", "rdma-ctk-runtime")
    os.symlink("rdma-ctk-runtime", "/usr/bin/rdma-ctk-hook")
    node.containerd_up()
    node.engines = {"ctr": engines.ctr(), "nerdctl": engines.nerdctl()}
    node.engines["ctr"].options.append(f"--runc-binary={WRAPPER}")
    node.engines["nerdctl"].options.append("--runtime=rdma-ctk-runtime")
    fake_nvidia_becomes(WRAPPER)
    write("/etc/docker/daemon.json", DAEMON_JSON)
    command("rdma-ctk", "configure", "docker")
    node.dockerd = engines.docker_up()
    node.engines["docker"] = engines.docker()
    node.engines["docker"].options.append("--runtime=rdma")


def works(said):
    """A ping-pong went round in a container, whose limit is not in the way."""
    contains(said, "100 iters in")


def each(function, names=("nerdctl", "ctr", "docker")):
    """A case for each engine."""
    def of(name):
        def case(node):
            function(node.engines[name])
        case.__name__ = f"{name}_{function.__name__}"
        return case
    return [of(name) for name in names]


def each_but_ctr(function):
    """The same of those that are more than containerd's own words: they start a container once more."""
    return each(function, ("nerdctl", "docker"))


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


def otherwise(engine, option):
    """The engine with that option in place of the one of its name."""
    flag = option.partition("=")[0] + "="
    options = [word for word in engine.options if not word.startswith(flag)]
    other = engines.Engine(engine.name, engine.words, [*options, option])
    other.numbers = engine.numbers
    return other


def fake_nvidia_becomes(*runtimes):
    """Install the fake, and tell it its low-level runtimes as the real one is told."""
    shutil.copy("/mnt/e2e/fake-nvidia-container-runtime", FAKE_NVIDIA)
    write("/etc/fake-nvidia-container-runtime/config.toml",
          f"[nvidia-container-runtime]\nruntimes = {json.dumps(runtimes)}\n")


def has_both(engine):
    """A container of the engine has what the fake gives and what is granted, each once."""
    theirs, ours = "FAKE_NVIDIA_VISIBLE_DEVICES=0\n", "NCCL_IB_HCA==rxe0:1\n"
    out = engine.run(ASKS, script=LOOK + PINGPONG).good()
    works(out)
    contains(out, "uverbs0\n", "rdma_cm\n", "unlimited\n", theirs, ours)
    before = set(os.listdir("/run/fake-nvidia-container-runtime"))
    with engine.start(ASKS) as container:
        contains(container.sh(LOOK), "uverbs0\n", "unlimited\n", ours)
        text = document(engine, container)
        for once in (theirs[:-1], "NCCL_IB_HCA=", f'"{FAKE_NVIDIA}"', "RLIMIT_MEMLOCK"):
            equal(text.count(once), 1, f"the number of {once}")
        seen = set(os.listdir("/run/fake-nvidia-container-runtime")) - before
        equal(len(seen), 1, "how many containers the fake's hook was called for")
    engine.run(f"--annotation={KEY}=mlx5_9", script="echo it runs").refused(
        "rdma-ctk: ", "mlx5_9", "rxe0")
    plain = engine.run(script=LOOK).good()
    contains(plain, theirs)
    lacks(plain, "NCCL", "uverbs")
    equal(on_record(), ([], []), "what is on record when all are gone")


def on_record():
    """Names of the containers that are on record as granted, and of those with files."""
    granted = [name.removesuffix(".json") for name in os.listdir(f"{RECORDS}/containers")
               if '"granted"' in read(f"{RECORDS}/containers/{name}")]
    return sorted(granted), sorted(os.listdir(f"{RECORDS}/files"))


@each_but_ctr
def before_the_fake_of_nvidia_container_runtime_both_give(engine):
    fake_nvidia_becomes("runc", "crun")
    write("/etc/rdma-ctk/config.toml", f'[wrapper]\nruntime = "{FAKE_NVIDIA}"\n')
    try:
        has_both(engine)
    finally:
        write("/etc/rdma-ctk/config.toml", "")


@each_but_ctr
def behind_the_fake_of_nvidia_container_runtime_both_give(engine):
    fake_nvidia_becomes(WRAPPER)
    has_both(otherwise(engine, {"nerdctl": f"--runtime={FAKE_NVIDIA}",
                                "docker": "--runtime=fake-nvidia"}[engine.name]))


def macvlan(engine):
    """A network that the engine makes after the document was read, on the adapter's own interface, so
    that each container's address has a GID of its own. Its name."""
    if engine.name == "docker":
        engine.call("network", "create", "--driver=macvlan", "--opt=parent=eth0",
                    "--subnet=10.77.0.0/24", "--ip-range=10.77.0.192/28", "near").good()
    else:
        write("/etc/cni/net.d/05-near.conflist", json.dumps(
            {"cniVersion": "1.0.0", "name": "near", "plugins": [
                {"type": "macvlan", "master": "eth0", "ipam": {"type": "host-local", "ranges": [[{
                    "subnet": "10.77.0.0/24", "rangeStart": "10.77.0.210",
                    "rangeEnd": "10.77.0.220"}]]}}]}))
    return "near"


def no_macvlan(engine):
    if engine.name == "docker":
        engine.call("network", "rm", "near")
    else:
        os.remove("/etc/cni/net.d/05-near.conflist")


@each_but_ctr
def a_container_that_is_started_again_has_it_again(engine):
    """By stop and start, and by restart. Meanwhile another one has taken the GID of its address, so that
    what its nccl.conf told before would be wrong."""
    again = otherwise(engine, f"--network={macvlan(engine)}")

    def has_it(container):
        """Its GID index, and the record that is its."""
        works(container.sh(PINGPONG))
        contains(container.sh(LOOK), "uverbs0\n", "unlimited\n", "NCCL_IB_HCA==rxe0:1\n")
        pid = engine.call("inspect", "--format={{.State.Pid}}", container.name).good().strip()
        contains(read(f"/proc/{pid}/environ"), "NCCL_IB_HCA==rxe0:1\0")
        conf = container.sh("cat /etc/nccl.conf")
        address = command("nsenter", "-t", pid, "-n", "ip", "-4", "-o", "addr", "show",
                          "eth0").split()[3].split("/")[0]
        index = re.search(r"NCCL_IB_GID_INDEX=(\d+)\n", conf)
        expect(index, f"no index in {conf!r}")
        gid = read(f"/sys/class/infiniband/rxe0/ports/1/gids/{index[1]}").strip()
        equal(str(ipaddress.ip_address(gid).ipv4_mapped), address, "the address of its GID")
        granted, files = on_record()
        equal(granted, files, "who is on record and who has files")
        return index[1], set(granted)

    try:
        with again.start(ASKS) as container:
            first, records = has_it(container)
            equal(len(records), 1, "the number of records")
            engine.call("stop", "--time=1", container.name).good()
            if engine.name == "docker":           # nerdctl deletes it when it is started again
                wait_for("the record's end", lambda: on_record() == ([], []))
            with again.start(ASKS) as other:
                index, others = has_it(other)
                equal(index, first, "the index that has become free")
                engine.call("start", container.name).good()
                second, both = has_it(container)
                expect(second != first, f"its index is {first} as before, which is the other's now")
                equal(both, records | others, "the records")
                engine.call("restart", "--time=1", container.name).good()
                equal(has_it(container), (second, both), "index and records after a restart")
        equal(on_record(), ([], []), "what is on record when all are gone")
    finally:
        no_macvlan(engine)


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
    *before_the_fake_of_nvidia_container_runtime_both_give,
    *behind_the_fake_of_nvidia_container_runtime_both_give,
    *a_container_that_is_started_again_has_it_again,
    docker_with_the_wrapper_by_default,
    docker_is_as_before_after_undo,
]
