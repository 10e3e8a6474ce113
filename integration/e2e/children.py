"""Sub-interfaces: pods with addresses and GIDs of their own on the host's adapter, on the kernel whose
soft-RoCE works in network namespaces. There its packets stay within the adapter where both ends have
its link-layer address: so ipvlans of two pods reach each other, and a macvlan itself."""
import json
import signal
import threading
import time

from harness import (CONFIG, PROGRAM, Pod, command, contains, cri, equal, expect, lacks, read,
                     wait_for, write)

POLICY = """
[links]
children = 4
[[links.pools]]
adapters = ["rxe0"]
range = "10.77.0.64-10.77.0.71"
routes = ["10.78.0.0/16"]
[default]
keys = ["devices", "nodes", "memlock", "numa", "env", "netns", "address", "smc", "limits", "require"]
netns = ["auto", "shared", "host", "ipvlan", "macvlan"]
"""
CHILDREN = "/run/rdma-ctk/children"
LEASES = "/run/rdma-ctk/leases"


def prepare(node):
    write(CONFIG, POLICY)
    node.containerd_up()
    node.daemon_up()


def pod(name, kind="ipvlan", **keys):
    return Pod(name, {"devices": "rxe0", "netns": kind, **keys}, host_network=False)


def container(pod, name="main"):
    """A running container, asked for as the kubelet does it: again while its network is made."""
    for _ in range(60):
        try:
            return pod.run(name)
        except cri.CriError as e:
            if "created again" not in e.text:
                raise
            time.sleep(0.2)
    expect(False, f"{pod.spec.name}: its sub-interfaces are never done")


def refused(pod):
    """What a container of it is told, once it is decided; the pod is removed."""
    text = pod.refusal()
    for _ in range(60):
        if "created again" not in text:
            break
        time.sleep(0.2)
        text = pod.refusal()
    remove(pod)
    return text


def remove(pod):
    for call in ("StopPodSandbox", "RemovePodSandbox"):
        cri.call(call, cri.data(1, pod.id.encode()))


def address(container, interface="rdma0"):
    words = container.sh(f"ip -4 -o addr show {interface}").split()
    return words[words.index("inet") + 1].split("/")[0]


def seen_from_host(container):
    """The interface with all that only iproute2 shows."""
    for line in command("ctr", "-n", "k8s.io", "tasks", "ls").splitlines():
        if line.startswith(container.id):
            return command("nsenter", "-t", line.split()[1], "-n", "ip", "-d", "link", "show", "rdma0")
    return expect(False, "it does not run")


def index(container):
    return container.sh("echo $NCCL_IB_GID_INDEX").strip()


def on_record():
    return sorted(json.loads(command(PROGRAM, "inspect", "-o", "json"))["sub_interfaces"],
                  key=lambda child: child["pod"])


def ping_pong(server, client, at):
    """Messages from one to the other, each with its own GID."""
    words = "ibv_rc_pingpong -d rxe0 -g %s -n 50"
    served = []
    thread = threading.Thread(target=lambda: served.append(
        cri.exec_sync(server.id, (words % index(server)).split(), 100)))
    thread.start()
    wait_for("the server's port",
             lambda: ":4853" in server.sh("grep ' 0A ' /proc/net/tcp || true"))
    out = client.sh(words % index(client) + " " + at)
    thread.join()
    contains(out, "50 iters in")
    contains(served[0][1].decode(), "50 iters in")


# -- what a pod gets --------------------------------------------------------------------------------
def an_ipvlan_with_an_address_and_a_gid_of_the_pods_own(node):
    node.pods["a"] = pod("a")
    a = node.pods["a-main"] = container(node.pods["a"])
    ip = address(a)
    contains(ip, "10.77.0.")
    expect(64 <= int(ip.split(".")[3]) <= 71, f"{ip} is not of the pool")
    gid = a.sh(f"cat /sys/class/infiniband/rxe0/ports/1/gids/{index(a)}").strip()
    equal(gid, "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(map(int, ip.split("."))),
          "the GID")
    contains(seen_from_host(a), "ipvlan  mode l2")
    contains(a.sh("ip route"), "10.77.0.0/24 dev rdma0", "10.78.0.0/16 dev rdma0")
    # The way out is still that of the pod network.
    contains(a.sh("ip route show default"), "eth0")
    lacks(command("ip", "-o", "link"), "rdma0")


def two_pods_exchange_messages_with_their_own_gids(node):
    node.pods["b"] = pod("b")
    b = node.pods["b-main"] = container(node.pods["b"])
    a = node.pods["a-main"]
    expect(address(a) != address(b), f"both have {address(a)}")
    ping_pong(a, b, address(a))


def inspect_tells_interface_address_and_mac(node):
    a = node.pods["a-main"]
    mac = a.sh("cat /sys/class/net/rdma0/address").strip()
    text = node.ctk("inspect")
    contains(text, f"rxe0: rdma0 (ipvlan on eth0, {mac}) {address(a)}/24 in pod default/a")
    contains(node.ctk("inspect", "a"), "rdma0, ipvlan on eth0")
    equal(node.metric("rdma_ctk_sub_interfaces"), 2, "the gauge")


def a_second_container_of_the_pod_uses_the_same(node):
    second = container(node.pods["a"], "second")
    equal(address(second), address(node.pods["a-main"]), "the address")
    equal(index(second), index(node.pods["a-main"]), "the index")


def who_did_not_ask_gets_nothing(node):
    plain = Pod("plain", host_network=False).run("main")
    lacks(plain.sh("ip -o link; env"), "rdma0", "NCCL")
    beside = Pod("beside", {"devices/container.main": "rxe0", "netns/container.main": "ipvlan"},
                 host_network=False)
    beside.run("other").refused_verbs()
    remove(beside)


def a_pod_in_the_hosts_namespace_gets_its_devices_and_nothing_is_made(node):
    before = command("ip", "-o", "link")
    host = Pod("host", {"devices": "rxe0", "netns": "ipvlan"}).run("main")
    contains(host.sh("ibv_devinfo -d rxe0"), "hca_id")
    equal(command("ip", "-o", "link"), before, "the host's interfaces")


# -- what is refused ----------------------------------------------------------------------------------
def a_macvlan_beside_an_ipvlan_is_refused_in_words(node):
    contains(refused(pod("clash", "macvlan")),
             "rdma-ctk: ", "eth0 carries the ipvlan of pod default/", "no macvlan beside it")


def explain_tells_what_would_be_made(node):
    contains(node.ctk("explain", "--annotation", "devices.rdma-ctk.io=rxe0",
                      "--annotation", "netns.rdma-ctk.io=ipvlan"), "rxe0: ipvlan on eth0")


# -- restarts ---------------------------------------------------------------------------------------
def killed_and_started_again_no_address_is_given_twice(node):
    """And no more are made than policy allows."""
    a, b = node.pods["a-main"], node.pods["b-main"]
    held = {address(a), address(b)}
    # Killed while others are made.
    half = [pod(f"half-{n}") for n in range(2)]
    node.daemon_down(signal.SIGKILL)
    node.daemon_up()
    equal({address(a), address(b)}, held, "the addresses of those that run")
    for other in half:
        mine = address(container(other))
        expect(mine not in held, f"{mine} is given twice")
        held.add(mine)
    contains(refused(pod("fifth")), "policy allows 4 (links.children)")
    # A container that starts anew finds what its pod has.
    again = container(node.pods["a"], "again")
    equal(address(again), address(a), "the address")
    ping_pong(a, b, address(a))
    for other in half:
        remove(other)
    wait_for("what is left", lambda: len(on_record()) == 2)


def an_address_that_is_in_use_on_the_wire_is_passed_over(node):
    remove(node.pods["a"])
    remove(node.pods["b"])
    wait_for("what is left", lambda: not on_record())
    # All but one of the pool, held by somebody who is no pod of ours.
    command("ip", "netns", "add", "wire")
    command("ip", "link", "add", "link", "eth0", "name", "w0", "netns", "wire", "type", "ipvlan",
            "mode", "l2")
    command("ip", "-n", "wire", "link", "set", "w0", "up")
    for last in (64, 65, 66, 68, 69, 70, 71):
        command("ip", "-n", "wire", "addr", "add", f"10.77.0.{last}/24", "dev", "w0")
    c = pod("c")
    equal(address(container(c)), "10.77.0.67", "the address")
    remove(c)
    command("ip", "netns", "del", "wire")


def at_the_end_of_the_pod_all_is_gone(node):
    wait_for("what is left", lambda: not on_record())
    equal(command("find", CHILDREN, LEASES, "-type", "f"), "", "the journal")
    wait_for("the gauge", lambda: node.metric("rdma_ctk_sub_interfaces") == 0)


# -- macvlan ------------------------------------------------------------------------------------------
def a_macvlan_with_a_mac_of_its_own(node):
    d = pod("d", "macvlan", address="10.77.0.70/24")
    main = node.pods["d-main"] = container(d)
    node.pods["d"] = d
    equal(address(main), "10.77.0.70", "the address")
    mac = main.sh("cat /sys/class/net/rdma0/address").strip()
    expect(mac != read("/sys/class/net/eth0/address").strip(), "it is the host's")
    contains(seen_from_host(main), "macvlan mode bridge")
    ping_pong(main, main, address(main))


def without_an_address_the_interface_is_there_all_the_same(node):
    bare = pod("bare", "macvlan", address="none")
    main = container(bare)
    lacks(main.sh("ip -o -4 addr"), "rdma0")
    contains(main.sh("ip -o link show rdma0"), "UP")
    remove(bare)


def the_next_pod_has_the_address_of_the_last(node):
    """What was static, somebody else may have once it is free."""
    remove(node.pods["d"])
    e = pod("e", "macvlan", address="rxe0=10.77.0.70/24")
    equal(address(container(e)), "10.77.0.70", "the address")
    f = pod("f", "macvlan", address="rxe0=10.77.0.70/24")
    contains(refused(f), "10.77.0.70", "held by default/e")
    remove(e)
    wait_for("what is left", lambda: not on_record())


CASES = [
    an_ipvlan_with_an_address_and_a_gid_of_the_pods_own,
    two_pods_exchange_messages_with_their_own_gids,
    inspect_tells_interface_address_and_mac,
    a_second_container_of_the_pod_uses_the_same,
    who_did_not_ask_gets_nothing,
    a_pod_in_the_hosts_namespace_gets_its_devices_and_nothing_is_made,
    a_macvlan_beside_an_ipvlan_is_refused_in_words,
    explain_tells_what_would_be_made,
    killed_and_started_again_no_address_is_given_twice,
    an_address_that_is_in_use_on_the_wire_is_passed_over,
    at_the_end_of_the_pod_all_is_gone,
    a_macvlan_with_a_mac_of_its_own,
    without_an_address_the_interface_is_there_all_the_same,
    the_next_pod_has_the_address_of_the_last,
]
