"""RoCE with an interface in the pod, on the kernel whose soft-RoCE works in network namespaces.

A chained CNI plugin puts an adapter on the macvlan interface of each pod that has a network of its
own, as SR-IOV would give it one. Not on a veth: the addresses of those stand for nobody's GIDs.
"""
import json
import shutil
import threading

from harness import Pod, command, contains, cri, equal, lacks, wait_for, write


NETWORK = {
    "cniVersion": "0.4.0", "name": "roce", "plugins": [
        {"type": "macvlan", "master": "wire", "mode": "bridge", "ipam": {
            "type": "host-local", "ranges": [[{"subnet": "10.89.0.0/16"}]]}},
        {"type": "cni-rxe"}]}


def prepare(node):
    shutil.copy("/mnt/e2e/cni-rxe", "/usr/lib/cni/cni-rxe")
    command("ip", "link", "add", "wire", "type", "dummy")
    command("ip", "link", "set", "wire", "up")
    write("/etc/cni/net.d/05-roce.conflist", json.dumps(NETWORK))   # the first one is taken
    node.containerd_up()
    node.daemon_up()


def pod_with_adapter(name):
    return Pod(name, {"devices": f"rx-{name}", "require": "roce-interface,gid"}, host_network=False)


def address(container):
    """The pod's IPv4 address."""
    return container.sh("ip -4 -o addr show eth0").split()[3].split("/")[0]


def index(container):
    return container.sh("echo $NCCL_IB_GID_INDEX").strip()


def c26_the_index_is_that_of_the_pods_own_address(node):
    node.pods["a"] = pod_with_adapter("a").run("main")
    container = node.pods["a"]
    gid = container.sh("cat /sys/class/infiniband/rx-a/ports/1/gids/" + index(container)).strip()
    ip = [int(n) for n in address(container).split(".")]
    equal(gid, "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(ip), "the GID")
    contains(container.sh("env"), "NCCL_IB_HCA==rx-a:1\n")


def pods_exchange_messages_over_their_own_adapters(node):
    server = node.pods["a"]
    client = pod_with_adapter("b").run("main")
    words = "ibv_rc_pingpong -d rx-%s -g %s -n 100"
    served = []
    command_line = (words % ("a", index(server))).split()
    thread = threading.Thread(
        target=lambda: served.append(cri.exec_sync(server.id, command_line, 100)))
    thread.start()
    wait_for("the server's port",
             lambda: ":4853" in server.sh("grep ' 0A ' /proc/net/tcp || true"))
    out = client.sh(words % ("b", index(client)) + " " + address(server))
    thread.join()
    contains(out, "100 iters in")
    contains(served[0][1].decode(), "100 iters in")


def all_takes_no_adapter_of_another_pod(node):
    container = Pod("host", {"devices": "all"}).run("main")
    contains(container.sh("env"), "NCCL_IB_HCA==rxe0:1\n")
    lacks(container.sh("env"), "rx-a", "rx-b")
    nodes = [n for n in container.sh("ls /dev/infiniband").split() if n.startswith("uverbs")]
    equal(len(nodes), 1, "the number of adapters")


def c37_an_adapter_whose_interface_is_elsewhere_is_refused_where_required(node):
    pod = Pod("c", {"devices": "rxe0", "require": "roce-interface"}, host_network=False)
    contains(pod.refusal(), "rdma-ctk: ", "rxe0", "require.rdma-ctk.io")


CASES = [
    c26_the_index_is_that_of_the_pods_own_address,
    pods_exchange_messages_over_their_own_adapters,
    all_takes_no_adapter_of_another_pod,
    c37_an_adapter_whose_interface_is_elsewhere_is_refused_where_required,
]
