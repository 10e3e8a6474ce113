"""Two nodes, a pod on each: they reach each other over the wire between the nodes.

Runs in both guests. The first one is the client and has its results counted.
"""
import json
import os
import re
import signal

from harness import Log, Pod, command, contains, cri, equal, wait_for, write

FIRST = os.environ["CTK_NODE"] == "0"
PEER = os.environ["CTK_PEER"]
WORDS = "ibv_rc_pingpong -d rxe0 -g 1 -s 65536 -n 50"


def prepare(node):
    node.containerd_up()
    node.daemon_up()
    node.pod = Pod(f"node-{os.environ['CTK_NODE']}", {"devices": "all"}).run(
        "main", user=1000, drop=["ALL"])


def pods_on_two_nodes_exchange_messages(node):
    if not FIRST:
        contains(node.pod.sh(WORDS, timeout=300), "50 iters in")
        return

    def connected():
        status, out, err = node.pod.attempt(f"{WORDS} {PEER}", timeout=300)
        if "Couldn't connect" in err:             # the other node is not that far
            return ""
        equal(status, 0, "the status")
        return out
    contains(wait_for("the other node", connected, 300, step=2), "50 iters in")


# Sends so many MiB to who connects, then waits for its end; and the other side.
SEND = """
import socket, sys
s = socket.socket()
s.setsockopt(1, 2, 1)
s.bind(('0.0.0.0', int(sys.argv[1])))
s.listen(1)
c = s.accept()[0]
block = b'x' * (1 << 20)
for _ in range(int(sys.argv[2])):
    c.sendall(block)
while c.recv(1):
    pass
"""
RECEIVE = """
import socket, sys, time
for n in range(600):
    s = socket.socket()
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        break
    except OSError:
        time.sleep(0.5)
left = int(sys.argv[3]) << 20
begun = time.monotonic()
while left:
    read = len(s.recv(min(left, 1 << 18)))
    left -= read
    if not read:
        sys.exit('the connection has ended')
print('rate %.1f' % (int(sys.argv[3]) / (time.monotonic() - begun)), flush=True)
time.sleep(600)
"""


USR = {"mounts": [("/usr", "/usr")]}


def falls_back(node, name, port, *reasons):
    """A connection between the nodes that falls back for this reason, and works."""
    pod = Pod(f"{name}-{os.environ['CTK_NODE']}", {"smc": "auto"})
    if not FIRST:
        sender = pod.run(name, "python3", "-uc", SEND, port, "1", **USR)
        wait_for("the other node", lambda: sender.state() == "STOPPED", 240, step=2)
        return
    receiver = pod.run(name, "python3", "-uc", RECEIVE, PEER, port, "1", **USR)
    said = wait_for("the other node", lambda: re.search(r"rate|ended|Error", receiver.log()), 240, step=2)
    equal(said[0], "rate", f"what the program says ({receiver.log()[-300:]})")
    seen = json.loads(node.ctk("smc", "status", name, "-o", "json"))["containers"][0]
    (connection,) = seen["connections"]
    equal(connection["mode"], "TCP", "the mode")
    print(f"    {name}: {connection['reason']}", flush=True)
    contains(connection["reason"], *reasons)
    contains(connection["fix"], "user EID")
    cri.call("StopContainer", cri.data(1, receiver.id))


def c96_nodes_that_share_no_eid_are_told_so(node):
    def policy(text):
        log = Log("/var/log/rdma-ctk.log")
        write("/etc/rdma-ctk/config.toml", text)
        node.daemon.send_signal(signal.SIGHUP)
        log.wait("policy")
    # The kernel of 6.12 answers for that as if it had no device.
    if not FIRST:
        policy('[smc]\neid = "OTHER"\n')
        command("smc", "ueid-remove", "RDMA-CTK", check=False)
    try:
        falls_back(node, "strangers", "7204", "the other side declined",
                   "no device for SMC in this network namespace (PNET id? user EID?)")
    finally:
        if not FIRST:
            policy("")
            command("smc", "ueid-remove", "OTHER")


def plain_tcp_programs_of_two_nodes_speak_smc_r(node):
    """The rates are told, not promised: soft-RoCE is slower than the TCP that it goes over."""
    for name, keys, port, size in (("smc", {"smc": "auto"}, "7201", "16"), ("tcp", {}, "7202", "64")):
        pod = Pod(f"{name}-{os.environ['CTK_NODE']}", keys)
        if not FIRST:
            sender = pod.run(name, "python3", "-uc", SEND, port, size, **USR)
            wait_for("the other node", lambda: sender.state() == "STOPPED", 500, step=2)
            continue
        receiver = pod.run(name, "python3", "-uc", RECEIVE, PEER, port, size, **USR)
        rate = wait_for("the other node",
                        lambda: re.search(r"rate (\S+)", receiver.log()), 500, step=2)[1]
        print(f"    {name}: {rate} MiB/s", flush=True)
        if keys:
            seen = json.loads(node.ctk("smc", "status", name, "-o", "json"))["containers"][0]
            equal([one["mode"] for one in seen["connections"]], ["SMC-R"], "the mode")
            equal(seen["connections"][0]["link"], "rxe0/1", "the link")
        cri.call("StopContainer", cri.data(1, receiver.id))     # the other side waits for that


CASES = [
    pods_on_two_nodes_exchange_messages,
    c96_nodes_that_share_no_eid_are_told_so,
    plain_tcp_programs_of_two_nodes_speak_smc_r,
]
