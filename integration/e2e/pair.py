"""Two nodes, a pod on each: they reach each other over the wire between the nodes.

Runs in both guests. The first one is the client and has its results counted.
"""
import os

from harness import Pod, contains, equal, wait_for

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


CASES = [pods_on_two_nodes_exchange_messages]
