"""SMC-R for programs that know nothing of it: the switch in the kernel, its life, and what is told.

Soft-RoCE of this kernel has no listener in a pod's network namespace, so pods whose connections are
to go over RDMA have the host's, with an adapter on lo. What is prepared for pods with a namespace
of their own is looked at, with the reason that the kernel gives for the fallback.
"""
import json
import os
import re
import signal
import subprocess
import time

from harness import (Log, Pod, Skip, command, confined, contains, cri, equal, expect, lacks,
                     read, wait_for, write)

SMC, TCP = "256", "6"
PINS = "/sys/fs/bpf/rdma-ctk"
PYTHON = {"mounts": [("/usr", "/usr")]}
# Prints the protocol of a new socket.
ASK = "import socket; print(socket.socket().getsockopt(1, 38))"
# A server that answers what it is sent, and a client that sends, waits and stays. The first line
# that each prints is its socket's protocol.
SERVE = """
import socket, sys, threading
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
print(s.getsockopt(1, 38), flush=True)
s.setsockopt(1, 2, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(8)
def echo(c):
    while b := c.recv(65536):
        c.sendall(b)
while True:
    threading.Thread(target=echo, args=(s.accept()[0],), daemon=True).start()
"""
CONNECT = """
import socket, sys, time
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
print(s.getsockopt(1, 38), flush=True)
for option in sys.argv[3:]:
    s.setsockopt(6, int(option), 1)
for n in range(100):
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        break
    except ConnectionRefusedError:
        time.sleep(0.2)
while True:
    left = 100000
    s.sendall(b'x' * left)
    while left:
        left -= len(s.recv(65536))
    print('echoed', flush=True)
    time.sleep(1)
"""


def prepare(node):
    node.containerd_up()
    up(node)


def up(node):
    """Start the daemon with no more than its unit gives and the file that SMC-R adds to it."""
    node.daemon_up(under=confined("smc.conf"))


def python(pod, name, program, *words):
    return pod.run(name, "python3", "-uc", program, *words, **PYTHON)


def protocol(container, what=ASK):
    return container.sh(f'python3 -c "{what}"').strip()


def view(node):
    """What `smc status` says, and of its containers one by name."""
    seen = json.loads(node.ctk("smc", "status", "-o", "json"))
    return seen, {container["name"]: container for container in seen["containers"]}


def connection(node, name, seconds=30):
    """The first connection of that container, once it has one."""
    def first():
        found = view(node)[1].get(name, {}).get("connections")
        return found and found[0]
    return wait_for(f"a connection of {name}", first, seconds, step=1)


def switched(node):
    """How many containers the program in the kernel switches."""
    return view(node)[0]["switched"]


def gone(path):
    return wait_for(f"the end of {path}", lambda: not os.path.exists(path))


def stop(container):
    cri.call("StopContainer", cri.data(1, container.id))
    cri.call("RemoveContainer", cri.data(1, container.id))


def stop_pod(pod):
    cri.call("StopPodSandbox", cri.data(1, pod.id))
    cri.call("RemovePodSandbox", cri.data(1, pod.id))


# -- the two-pod example ----------------------------------------------------------------------
def two_pods_speak_smc_r_and_the_container_that_did_not_ask_tcp(node):
    before = int(read("/sys/module/smc/refcnt"))
    server = Pod("server", {"smc": "auto"})
    client = Pod("client", {"smc/container.client": "auto"})
    node.pods["server"] = python(server, "server", SERVE, "127.0.0.1", "7101")
    node.pods["client"] = python(client, "client", CONNECT, "127.0.0.1", "7101")
    node.pods["beside"] = client.run("beside", **PYTHON)
    for name in ("server", "client"):
        found = connection(node, name)
        equal(found["mode"], "SMC-R", f"the mode of {name}")
        equal(found["link"], "rxelo/1", f"the link of {name}")
        equal((found["gid"], found["peer_gid"]), ("::ffff:127.0.0.1",) * 2, "the GIDs")
        expect(found["received"] >= 100000, f"{name}: {found}")
    equal(protocol(node.pods["server"]), SMC, "a socket of who asked")
    equal(protocol(node.pods["beside"]), TCP, "a socket of who did not ask")
    text = node.ctk("smc", "status")
    contains(text, "SMC-R port", "GID ::ffff:127.0.0.1", "user EIDs: RDMA-CTK",
             "switches 2 containers", "bpf: can be had",
             "tcp2smc: this kernel has no net.smc.tcp2smc")
    lacks(text, "beside")
    # It holds the module, which so cannot go before it.
    expect(int(read("/sys/module/smc/refcnt")) > before, "the module smc is not held")
    done = subprocess.run(["rmmod", "smc_diag"], capture_output=True)
    done = subprocess.run(["rmmod", "smc"], capture_output=True, text=True)
    expect(done.returncode != 0, "the module smc could be removed")
    contains(done.stderr, "in use")


def it_needs_no_node_no_limit_and_no_capability(node):
    container = node.pods["server"]
    container.refused_verbs()
    equal(container.sh("ulimit -l").strip(), "8192", "the limit")
    lacks(container.sh("cat /proc/self/status"), "CapEff:\t000001ffffffffff")


# -- programs ----------------------------------------------------------------------------------
def busybox_that_is_static_is_turned(node):
    pod = Pod("static", {"smc": "bpf"})
    pod.run("nc-server", "sh", "-c", "sleep 1000 | nc -l -p 7102")
    pod.run("nc-client", "sh", "-c",
            "sleep 2; (echo hello; sleep 1000) | nc 127.0.0.1 7102")
    equal(connection(node, "nc-client")["mode"], "SMC-R", "the mode")
    stop_pod(pod)


def go(pod, name, *words, **options):
    return pod.run(name, "/usr/local/bin/smc-go", *words, **options)


def with_policy(node, text):
    """Let the daemon take that policy."""
    write("/etc/rdma-ctk/config.toml", text)
    log = Log("/var/log/rdma-ctk.log")
    node.daemon.send_signal(signal.SIGHUP)
    log.wait("policy")


def go_programs_are_turned_which_call_the_kernel_themselves(node):
    if not os.path.exists("/mnt/bin/smc-go"):
        raise Skip("there is no Go toolchain to build the program with")
    command("cp", "/mnt/bin/smc-go", "/usr/local/bin/smc-go")
    multipath = {"env": {"GODEBUG": "multipathtcp=1"}, **PYTHON}
    with_policy(node, "[smc]\nmptcp = false\n")
    pod = Pod("go", {"smc": "bpf"})
    go(pod, "go-server", "serve", "127.0.0.1:7103", **PYTHON)
    go(pod, "go-client", "connect", "127.0.0.1:7103", **PYTHON)
    equal(connection(node, "go-client")["mode"], "SMC-R", "the mode")
    # As programs of Go 1.24 and later do by themselves: listen on a socket of MPTCP.
    go(pod, "go-mptcp", "serve", "127.0.0.1:7104", **multipath)
    go(pod, "go-refused", "connect", "127.0.0.1:7104", **PYTHON)
    contains(json.dumps(connection(node, "go-refused")), "the other side did not offer SMC")
    stop_pod(pod)
    with_policy(node, "[smc]\nmptcp = true\n")
    pod = Pod("go2", {"smc": "bpf"})
    go(pod, "go2-server", "serve", "127.0.0.1:7105", **multipath)
    go(pod, "go2-client", "connect", "127.0.0.1:7105", **PYTHON)
    equal(connection(node, "go2-client")["mode"], "SMC-R", "the mode")
    stop_pod(pod)
    with_policy(node, "")


def fork_exec_and_nested_groups_are_the_containers_own(node):
    loop = f"while true; do python3 -c '{ASK}'; sh -c \"exec python3 -c '{ASK}'\"; sleep 1; done"
    pod = Pod("nested", {"smc": "bpf"})
    container = pod.run("loop", "sh", "-c", loop, **PYTHON)
    wait_for("two children", lambda: container.log().split()[:2] == [SMC, SMC])
    group = f"/sys/fs/cgroup/k8s.io/{container.id}"
    os.makedirs(f"{group}/child/grandchild")
    first = read(f"{group}/cgroup.procs").split()[0]
    write(f"{group}/child/grandchild/cgroup.procs", first)
    seen = len(container.log().split())
    wait_for("more children", lambda: len(container.log().split()) > seen + 4)
    equal(set(container.log().split()), {SMC}, "what the children's sockets are")
    stop_pod(pod)


def ipv6_sockets_fall_back_with_the_reason(node):
    pod = Pod("six", {"smc": "bpf"})
    python(pod, "six-server", SERVE, "::1", "7105")
    client = python(pod, "six-client", CONNECT, "::1", "7105")
    found = connection(node, "six-client")
    equal(client.log().split()[0], SMC, "the protocol")
    equal(found["mode"], "TCP", "the mode")
    contains(found["reason"], "no device for SMC")
    contains(found["fix"], "IPv6 sockets")
    wait_for("data all the same", lambda: "echoed" in client.log())
    stop_pod(pod)


# -- fallback reasons --------------------------------------------------------------------------
def c96_reasons_are_told_in_words_and_counted(node):
    plain = Pod("plain")
    python(plain, "plain-server", SERVE, "127.0.0.1", "7106")
    pod = Pod("reasons", {"smc": "bpf"})
    python(pod, "peer", CONNECT, "127.0.0.1", "7106")
    python(pod, "far-server", SERVE, "10.77.0.1", "7107")
    python(pod, "far", CONNECT, "10.77.0.1", "7107")
    python(pod, "fast", CONNECT, "127.0.0.1", "7101", "30")      # TCP_FASTOPEN_CONNECT
    for name, reason in (("peer", "the other side did not offer SMC"),
                         ("far", "no device for SMC in this network namespace"),
                         ("far-server", "the other side declined: no device for SMC"),
                         ("fast", "a socket option that SMC lacks (TCP_FASTOPEN)")):
        found = connection(node, name)
        equal(found["mode"], "TCP", f"the mode of {name}")
        contains(found["reason"], reason)
        expect(found["fix"], f"no fix for {name}")
    contains(node.ctk("smc", "status", "peer"),
             "1 of 1 connections on TCP: the other side did not offer SMC", "to do: switch the other")
    contains(node.ctk("inspect", "peer"), "SMC-R by bpf: 1 of 1 connections on TCP: the other side did not "
             "offer SMC", "to do: switch the other")
    # The client of the first case, and the one with the option.
    contains(node.ctk("inspect", "server"), "SMC-R by bpf: 1 of 2 connections on TCP: the other side",
             "SMC-R port 7101", "rxelo/1")
    contains(node.ctk("doctor", "smc-connections", check=False), "did not offer SMC")
    for word in ("peer_without_smc", "no_device", "socket_option"):
        expect(node.metric(rf'rdma_ctk_smc_fallback_total\{{reason="{word}"\}}') >= 1,
               f"{word} is not counted")
    expect(node.metric(r'rdma_ctk_smc_bytes_total\{direction="receive"\}') >= 100000, "no bytes")
    contains(node.ctk("smc", "explain", "0x03010000"), "peer_without_smc", "did not offer SMC")
    stop_pod(pod)
    stop_pod(plain)


def c99_what_cannot_be_had_is_refused_in_words(node):
    pod = Pod("sysctl", {"smc": "tcp2smc"}, host_network=False)
    contains(pod.refusal(), "smc.rdma-ctk.io", "policy does not allow it")
    stop_pod(pod)
    pod = Pod("overlay", {"smc": "auto"}, host_network=False)
    contains(pod.refusal(), "a veth, whose address lies in no adapter's subnet")
    stop_pod(pod)


def c98_preload_is_refused_for_a_static_program(node):
    if not os.path.exists("/mnt/bin/libsmc-preload.so"):
        raise Skip("there is no C compiler to build the library with")
    command("cp", "/mnt/bin/libsmc-preload.so", "/usr/local/lib/libsmc-preload.so")
    with_policy(node, '[smc]\npreload_library = "/usr/local/lib/libsmc-preload.so"\n')
    pod = Pod("preload", {"smc": "preload"})
    static = pod.create("static")
    contains(static.start_refusal(),
             "entry binary is statically linked: preload cannot switch it to SMC")
    dynamic = python(pod, "dynamic", CONNECT, "127.0.0.1", "7101")
    equal(connection(node, "dynamic")["mode"], "SMC-R", "the mode")
    contains(dynamic.sh("env"), "LD_PRELOAD=/run/rdma-ctk/libsmc-preload.so")
    stop_pod(pod)
    with_policy(node, "")


# -- a pod's own namespace ----------------------------------------------------------------------
NEAR = {"cniVersion": "0.4.0", "name": "near", "plugins": [
    {"type": "bridge", "bridge": "cni7", "isGateway": False, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.200",
                                           "rangeEnd": "10.77.0.220"}]]}}]}


def a_veth_in_the_adapters_subnet_gets_a_name_and_the_kernels_reason_is_told(node):
    write("/etc/cni/net.d/05-near.conflist", json.dumps(NEAR))   # the first one is taken
    time.sleep(1)
    pod = Pod("near", {"smc": "bpf"}, host_network=False)
    peer = Pod("near-peer", {"smc": "bpf"}, host_network=False)
    server = python(peer, "near-server", SERVE, "0.0.0.0", "7108")
    address = server.sh("ip -4 -o addr show eth0").split()[3].split("/")[0]
    python(pod, "near-client", CONNECT, address, "7108")
    text = node.ctk("smc", "status")
    found = re.search(r"(RCTK[0-9A-F]{12}) for rxe0/1", text)
    expect(found, f"no PNET id for rxe0: {text}")
    first = read(f"/sys/fs/cgroup/k8s.io/{server.id}/cgroup.procs").split()[0]
    table = command("nsenter", "-t", first, "-n", "smc", "pnet")
    contains(table, f"{found[1]} eth0")
    seen = connection(node, "near-client", 60)
    # The client has found the adapter by its name and proposed it; without one it would have said
    # itself that there is none. Both have the same GID here, to which the server finds no way.
    equal(seen["mode"], "TCP", "the mode")
    contains(seen["reason"], "the other side declined: no RDMA device for SMC-R")
    stop_pod(pod)
    contains(node.ctk("smc", "status"), f"{found[1]} for rxe0/1")
    stop_pod(peer)
    wait_for("the name's end", lambda: found[1] not in node.ctk("smc", "status"))
    os.remove("/etc/cni/net.d/05-near.conflist")


# -- the switch's life ---------------------------------------------------------------------------
def a_killed_daemon_changes_nothing_and_the_next_goes_on(node):
    client, count = node.pods["client"], switched(node)
    node.daemon_down(signal.SIGKILL)
    echoes = client.log().count("echoed")
    wait_for("more data", lambda: client.log().count("echoed") > echoes + 2)
    equal(protocol(node.pods["server"]), SMC, "a new socket without a daemon")
    equal(protocol(node.pods["beside"]), TCP, "a socket of who did not ask")
    contains(node.ctk("smc", "status"), "SMC-R port")
    up(node)
    equal(protocol(node.pods["server"]), SMC, "a new socket with the next daemon")
    equal(switched(node), count, "the number of switched containers")


def what_stopped_meanwhile_is_dropped_and_the_program_goes_with_the_last(node):
    wait_for("two containers", lambda: switched(node) == 2)
    node.daemon_down(signal.SIGKILL)
    stop(node.pods.pop("client"))
    equal(switched(node), 2, "the number of switched containers")
    up(node)
    wait_for("one container", lambda: switched(node) == 1)
    expect(os.path.exists(f"{PINS}/smc_link"), "the program is gone")
    stop(node.pods.pop("server"))
    gone(PINS)
    contains(node.ctk("smc", "status"), "none is loaded")
    expect("RDMA-CTK" in node.ctk("smc", "status"), "the EID is gone")


# -- numbers ---------------------------------------------------------------------------------------
def preparation_takes_at_most_half_of_the_scripts(node):
    took = [int(us) for us in re.findall(r"prepared for SMC-R.* took_us=(\d+)",
                                         read("/var/log/rdma-ctk.log"))]
    expect(took, "the daemon does not say how long it took")
    begun = time.monotonic()
    command("smc", "ueid-add", "SCRIPT")
    command("smc", "pnet-add", "SCRIPT", "lo", "rxelo")
    script = (time.monotonic() - begun) * 1e6
    ours = sorted(took)[len(took) // 2]
    print(f"    preparation: {ours} us (of {len(took)}), script {script:.0f} us: "
          f"{ours / script:.3f}", flush=True)
    expect(ours <= script / 2, f"{ours} us, the script {script:.0f} us")


def release_takes_the_program_away(node):
    container = Pod("last", {"smc": "bpf"}).run("last", **PYTHON)
    equal(protocol(container), SMC, "a socket")
    contains(node.ctk("smc", "release"), "1 containers")
    equal(protocol(container), TCP, "a socket after release")
    gone(PINS)


def c100_what_smc_lacks_takes_nothing_else_down(node):
    """Nowhere to pin the program: pods with devices are as they were, and who asks for it is refused."""
    command("umount", "/sys/fs/bpf")
    try:
        node.daemon_down()
        up(node)
        pod = Pod("devices", {"devices": "all"})
        contains(pod.run("main").sh("ibv_devinfo"), "PORT_ACTIVE")
        stop_pod(pod)
        pod = Pod("nowhere", {"smc": "bpf"})
        contains(pod.refusal(), "no BPF file system is mounted: mount -t bpf bpf /sys/fs/bpf")
        stop_pod(pod)
        contains(node.ctk("doctor", "smc", check=False), "no method turns sockets here",
                 "no BPF file system is mounted")
    finally:
        command("mount", "-t", "bpf", "bpf", "/sys/fs/bpf")
    container = Pod("again", {"smc": "bpf"}).run("again", **PYTHON)
    equal(protocol(container), SMC, "a socket once it is mounted")
    stop(container)
    gone(PINS)


CASES = [
    two_pods_speak_smc_r_and_the_container_that_did_not_ask_tcp,
    it_needs_no_node_no_limit_and_no_capability,
    busybox_that_is_static_is_turned,
    fork_exec_and_nested_groups_are_the_containers_own,
    ipv6_sockets_fall_back_with_the_reason,
    c96_reasons_are_told_in_words_and_counted,
    c99_what_cannot_be_had_is_refused_in_words,
    a_killed_daemon_changes_nothing_and_the_next_goes_on,
    go_programs_are_turned_which_call_the_kernel_themselves,
    c98_preload_is_refused_for_a_static_program,
    a_veth_in_the_adapters_subnet_gets_a_name_and_the_kernels_reason_is_told,
    what_stopped_meanwhile_is_dropped_and_the_program_goes_with_the_last,
    preparation_takes_at_most_half_of_the_scripts,
    release_takes_the_program_away,
    c100_what_smc_lacks_takes_nothing_else_down,
]
