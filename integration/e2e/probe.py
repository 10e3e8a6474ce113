"""rdma-ctk-probe in containers: granted, not opted in, and broken in each way that can be made here."""
import json
import os
import subprocess

from harness import Failed, Pod, cri, command, contains, equal, expect, short

PROBE = "/usr/local/bin/rdma-ctk-probe"
MOUNT = [(PROBE, "/probe")]
NODES = ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
PROVIDER = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"


def prepare(node):
    command("cp", "/mnt/bin/rdma-ctk-probe", PROBE)      # 9p would be slow to start from
    text = command("file", "-L", PROBE, check=False) if os.path.exists("/usr/bin/file") else ""
    expect("dynamically" not in text, f"the probe is not static: {text}")
    node.containerd_up()
    node.daemon_up()


def probe(container, *options):
    """Run it in the container: the exit status and the report."""
    status, out, err = cri.exec_sync(container.id, ["/probe", "--json", *options], 120)
    try:
        report = json.loads(out)
    except ValueError:
        raise Failed(f"status {status}, no report: {short(out + err)}") from None
    equal(report["exit"], status, "the exit status in the report")
    return status, report


def ends(container, wanted, result, *parts):
    """It ends with that status, and the first failure's sentence has those parts."""
    status, report = probe(container)
    why = short(report["first_failure"] or report, 600)
    expect(status == wanted, f"status {status}, not {wanted}: {why}")
    equal(report["result"], result, "the result")
    contains(report["first_failure"]["sentence"], *parts)
    expect(report["first_failure"]["fix"], "nothing to do about it")
    return report


def works(container, registered=256 << 20):
    status, report = probe(container)
    expect(status == 0 and report["works"], f"status {status}: {short(report['first_failure'], 600)}")
    (adapter,) = report["adapters"]
    equal((adapter["name"], adapter["port"]), ("rxe0", 1), "the adapter")
    equal(adapter["registered"], registered, "the memory registered")
    expect(adapter["latency"]["nanoseconds"] > 0 and adapter["latency"]["rounds"] > 0, "no latency")
    expect(adapter["bandwidth"]["bytes"] > 0, "no bandwidth")
    return report, adapter


def stage(report, name):
    return [finding for finding in report["findings"] if finding["stage"] == name]


# -- who asked ------------------------------------------------------------------------------
def a_granted_container_works_in_everything(node):
    container = Pod("granted", {"devices": "all"}).run("main", mounts=MOUNT)
    report, adapter = works(container)
    equal((adapter["gid_index"], adapter["gid_is_own"]), (1, True), "the GID")
    contains(container.sh("env"), f"NCCL_IB_GID_INDEX={adapter['gid_index']}")
    (cm,) = stage(report, "rdma_cm")
    contains(cm["sentence"], "10.77.0.1 is rxe0's")
    equal({finding["level"] for finding in report["findings"]}, {"ok"}, "the levels")
    screen = container.sh("/probe")
    contains(screen, "Everything that this container was given works.", "pingpong  ok")


def a_granted_container_works_for_a_user_without_capabilities(node):
    pod = Pod("user", {"devices": "all"})
    works(pod.run("main", mounts=MOUNT, user=1000, drop=["ALL"]))


def in_its_own_network_namespace_it_has_the_hosts_gid_and_says_so(node):
    container = Pod("own", {"devices": "all"}, host_network=False).run("main", mounts=MOUNT)
    report, adapter = works(container)
    expect(not adapter["gid_is_own"], "the host's GID is taken for its own")
    (gid,) = stage(report, "gid")
    equal(gid["level"], "warn", "the level of the GID")
    contains(gid["sentence"], "the host's")
    (cm,) = stage(report, "rdma_cm")
    equal(cm["level"], "warn", "the level of rdma_cm")


# -- who did not, and what goes wrong --------------------------------------------------------
def c10_not_opted_in(node):
    container = Pod("plain").run("main", mounts=MOUNT)
    ends(container, 3, "no-device", "no adapter was given", "/dev/infiniband/uverbs0 (rxe0)")
    status, out, _ = container.attempt("/probe")
    equal(status, 3, "the status")
    contains(out, "devices.rdma-ctk.io: all")


def c08_nodes_by_a_mount_have_no_cgroup_rule(node):
    mounts = MOUNT + [("/dev/infiniband", "/dev/infiniband")]
    container = Pod("mounted").run("main", mounts=mounts)
    ends(container, 4, "node", "EPERM", "device cgroup has no rule for 231:192")


def a_mode_that_keeps_the_user_out(node):
    container = Pod("mode").run("main", mounts=MOUNT, devices=NODES, user=1000)
    init = command("ctr", "-n", "k8s.io", "tasks", "ls")
    pid = next(line.split()[1] for line in init.splitlines() if line.startswith(container.id))
    os.chmod(f"/proc/{pid}/root/dev/infiniband/uverbs0", 0o600)
    ends(container, 4, "node", "EACCES", "mode 0600, and this is user 1000")


def c02_a_low_memlock_limit(node):
    # Nodes from elsewhere, and nobody who raises the limit.
    pod = Pod("low", {"devices": "none"})
    container = pod.run("main", mounts=MOUNT, devices=NODES, user=1000, drop=["ALL"])
    report = ends(container, 7, "memory", "8 MiB registered", "memlock limit 8 MiB")
    equal(report["adapters"][0]["registered"], 8 << 20, "the memory registered")
    expect(report["adapters"][0]["latency"], "no ping-pong")


def c91_an_image_without_libibverbs(node):
    pod = Pod("bare", {"devices": "all"})
    container = pod.run("main", image="localhost/pause:1", mounts=MOUNT)
    report = ends(container, 5, "no-library", "image has no libibverbs")
    equal([f["level"] for f in stage(report, "nodes")], ["ok"], "the node")


# -- on the node itself -----------------------------------------------------------------------
def on_node():
    done = subprocess.run([PROBE, "--json"], capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


def c91_a_provider_is_missing(node):
    os.rename(PROVIDER, PROVIDER + ".away")
    try:
        status, report = on_node()
    finally:
        os.rename(PROVIDER + ".away", PROVIDER)
    equal(status, 6, "the status")
    contains(report["first_failure"]["sentence"], "no provider for rxe (librxe-rdmav*.so is not in")


def a_port_that_is_down(node):
    command("ip", "link", "add", "down0", "type", "dummy")
    command("ip", "link", "set", "down0", "up")
    command("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "down0")
    try:
        command("ip", "link", "set", "down0", "down")
        done = subprocess.run([PROBE, "--json", "--device", "rxe9"], capture_output=True, text=True,
                              timeout=120)
        report = json.loads(done.stdout)
    finally:
        command("ip", "link", "del", "down0")
    equal(done.returncode, 8, "the status")
    contains(report["first_failure"]["sentence"], "rxe9 has no port that is up: port 1 is DOWN")


CASES = [
    a_granted_container_works_in_everything,
    a_granted_container_works_for_a_user_without_capabilities,
    in_its_own_network_namespace_it_has_the_hosts_gid_and_says_so,
    c10_not_opted_in,
    c08_nodes_by_a_mount_have_no_cgroup_rule,
    a_mode_that_keeps_the_user_out,
    c02_a_low_memlock_limit,
    c91_an_image_without_libibverbs,
    c91_a_provider_is_missing,
    a_port_that_is_down,
]
