"""What the project does, shown: a pod without the annotation, the same pod with it, two that talk.

Run by `cargo xtask demo`. Ends with status 0 only if everything was as it should be.
"""
import sys

import harness
from harness import Node, Pod, command, contains, cri, expect
from pods import exchange

KEY = "devices.rdma-ctk.io"


def say(text=""):
    print(text, flush=True)


def shown(container, script):
    """Run it in the container, and show it with what it says; its output."""
    _, out, err = container.attempt(script)
    say(f"  $ {script}")
    for line in (out + err).rstrip().replace("\t", "    ").splitlines():
        say(f"    {line}")
    return out + err


def before_and_after(keys, name):
    say(f"  annotations: {KEY}: {keys['devices']}" if keys else "  annotations: none")
    container = Pod(name, keys).run("main", user=1000, drop=["ALL"])
    seen = {script: shown(container, script) for script in (
        "id -u; grep CapEff /proc/self/status", "ls /dev/infiniband", "ulimit -l",
        "ibv_devinfo | head -12", "env | grep -E 'NCCL|UCX|NVSHMEM|OMPI' | sort")}
    say()
    return container, seen


def main():
    node = Node()
    say("Starting containerd and rdma-ctk on a machine with one soft-RoCE adapter ...")
    node.containerd_up()
    node.daemon_up()
    name, version, _ = cri.version()
    kernel = command("uname", "-r").strip()
    say(f"Linux {kernel}, {name} {version}, {node.ctk('--version').strip()}, adapter rxe0\n")

    say("1. A pod that does not ask, as user 1000 without any capability")
    _, seen = before_and_after({}, "before")
    contains(seen["ibv_devinfo | head -12"], "No IB devices found")
    expect(seen["ulimit -l"].strip() == "8192", "the limit is not containerd's own")

    say("2. The same pod with one annotation")
    server, seen = before_and_after({"devices": "all"}, "after")
    contains(seen["ibv_devinfo | head -12"], "PORT_ACTIVE")
    expect(seen["ulimit -l"].strip() == "unlimited", "the limit was not raised")

    say("3. A message of 1 MiB, ten times between that pod and another one like it")
    client = Pod("peer", {"devices": "all"}).run("main", user=1000, drop=["ALL"])
    for line in exchange(server, client).splitlines():
        say(f"    {line}")
    say("\nThat was it: no privileged pod, no capability, no host path.")


if __name__ == "__main__":
    try:
        main()
    except (harness.Failed, cri.CriError) as e:
        say(f"\nNot as it should be: {harness.short(e)}")
        harness.show_logs([harness.Log(harness.CONTAINERD_LOG, whole=True),
                           harness.Log(harness.DAEMON_LOG, whole=True)])
        sys.exit(1)
