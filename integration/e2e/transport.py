"""What a real runtime makes of our transport: frames, long replies, late ones, none, no session.

The plugin here is `integration/conformance.rs`: the product's transport without its engine, which
does what a pod's annotation says.
"""
import os
import re
import shutil
import signal
import subprocess
import time

from harness import (CONTAINERD_LOG, DAEMON_LOG, Log, Pod, contains, cri, equal, expect, lacks,
                     read, wait_for)

PROGRAM = "/usr/local/bin/conformance"
LAUNCHED_LOG = "/var/log/conformance.log"         # of the one that the runtime starts
REGISTERED = r'plugin \\?"10-conformance\\?" connected'


def prepare(node):
    if not os.path.exists(PROGRAM):
        shutil.copy("/mnt/bin/examples/conformance", PROGRAM)
    node.ensure_up = lambda: ensure_up(node)
    ensure_up(node)


def ensure_up(node):
    """containerd and the plugin, which stands in for the daemon."""
    if not running("containerd", exactly=True):
        node.containerd_up()
    if node.daemon is None or node.daemon.poll() is not None:
        up(node)


def running(name, exactly=False):
    words = ["pgrep", "-x" if exactly else "-f", name]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def spawn(**environment):
    with open(DAEMON_LOG, "a") as log:
        return subprocess.Popen([PROGRAM], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                env={**os.environ, **environment})


def up(node, **environment):
    """Start the plugin and wait for its first session."""
    log = Log(DAEMON_LOG)
    node.daemon = spawn(**environment)
    log.wait(r"synchronized \d+ \d+")


def wishing(name, wish):
    return Pod(name, annotations={"conformance": wish})


def still_connected(log):
    lacks(log.text(), "closing plugin", "connection to plugin lost")


def devices_limit_and_verbs(node):
    container = wishing("grant", "grant").run("main")
    contains(container.sh("ls /dev/infiniband"), "uverbs0", "rdma_cm")
    equal(container.sh("ulimit -l").strip(), "unlimited", "the limit")
    out = container.sh("ibv_rc_pingpong -d rxe0 -g 1 -n 10 >/dev/null & sleep 2; "
                       "ibv_rc_pingpong -d rxe0 -g 1 -n 10 127.0.0.1; wait")
    contains(out, "10 iters in")
    plain = Pod("plain").run("main")
    plain.refused_verbs()
    equal(plain.sh("ulimit -l").strip(), "8192", "the limit of a pod that did not ask")


def all_events_of_a_container(node):
    log = Log(DAEMON_LOG)
    pod = Pod("events")
    container = pod.run("main")
    cri.call("UpdateContainerResources", cri.data(1, container.id) + cri.data(2, cri.data(6, "0")))
    cri.call("StopContainer", cri.data(1, container.id))
    cri.call("RemoveContainer", cri.data(1, container.id))
    cri.call("StopPodSandbox", cri.data(1, pod.id))
    cri.call("RemovePodSandbox", cri.data(1, pod.id))
    log.wait("(?m)^remove events$")
    seen = re.findall(r"(?m)^((?:\S+) events\S*)", log.text())
    nri = re.search(r"\(NRI 0\.(\d+)", read(DAEMON_LOG))
    validated = ["validate events/main"] if int(nri[1]) >= 10 else []
    equal(seen, ["run events", "create events/main", *validated, "post-create events/main",
                 "start events/main", "post-start events/main", "update events/main",
                 "post-update events/main", "stop events/main", "remove events/main",
                 "stop events", "remove events"], "what the plugin heard")


def a_reply_of_20_kb(node):
    container = wishing("long", "env 20000").run("main")
    equal(container.sh("printf %s \"$CONFORMANCE\" | wc -c").strip(), "20000", "its length")


def a_reply_of_3_mb(node):
    # Hearing of such a container again and again takes an emulated machine too long at times.
    node.daemon_down()
    up(node, CONFORMANCE_CREATE_ONLY="1")
    log = Log(CONTAINERD_LOG)
    for n in range(3):
        container = wishing(f"longest{n}", "annotations 3000000").create("main")
        equal(container.spec().count("a" * 3000), 1000, "the annotations that arrived")
        # Two of them are more than a runtime can tell a plugin that comes later.
        cri.call("RemoveContainer", cri.data(1, container.id))
    still_connected(log)
    node.daemon_down()


def a_refusal_is_the_users_text(node):
    text = 'rdma-ctk: no adapter "mlx5_9"; this node has rxe0'
    contains(wishing("refused", f"refuse {text}").refusal(), text)


def a_refusal_at_start_is_the_users_text(node):
    text = "rdma-ctk: it lacks its grant"
    container = wishing("late", f"refuse-start {text}").create("main", "sh", "-c", "echo ran")
    contains(container.start_refusal(), text)
    equal(container.log(), "", "what the first process has written")


def a_panic_refuses_the_container(node):
    log = Log(CONTAINERD_LOG)
    contains(wishing("panic", "panic").refusal(),
             "rdma-ctk: internal error: CreateContainer: as wished")
    Pod("after-panic").create("main")
    still_connected(log)


def a_panic_for_a_pod_does_not_refuse_it(node):
    log = Log(CONTAINERD_LOG)
    wishing("fail-pod", "fail-pod").create("main")
    still_connected(log)


def c60_slower_than_the_deadline_it_is_refused_in_time(node):
    log = Log(CONTAINERD_LOG)
    pod = wishing("slow", "sleep 3000")
    started = time.monotonic()
    text = pod.refusal()
    elapsed = time.monotonic() - started
    contains(text, "rdma-ctk: CreateContainer: no answer within 15")
    expect(elapsed < 3, f"it took {elapsed:.1f} s")
    Pod("after-slow").create("main")
    still_connected(log)


def the_runtime_restarted_it_is_back(node):
    pod = Pod("stays")
    pod.run("main")
    log = Log(DAEMON_LOG)
    node.containerd_down()
    log.wait("ended Synchronised: ")
    shutil.rmtree("/var/run/nri")
    time.sleep(2)
    node.containerd_up()
    found = log.wait(r"synchronized (\d+) (\d+)")
    expect(int(found[1]) >= 1 and int(found[2]) >= 1, f"it was told: {found[0]}")
    contains(wishing("again", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")


def a_synchronisation_that_fails_is_done_again(node):
    """NRI 0.6 keeps the connection of a plugin that it could not synchronise, and never calls it."""
    pod = wishing("refuse-once", "refuse-once")
    node.daemon_down()
    log = Log(DAEMON_LOG)
    up(node)
    contains(log.text(), "given this plugin up: the synchronisation failed: conformance: not yet")
    cri.call("RemovePodSandbox", cri.data(1, pod.id))
    contains(wishing("synchronised", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")


def a_second_instance_stands_by(node):
    log, runtime = Log(DAEMON_LOG), Log(CONTAINERD_LOG)
    second = spawn()
    log.wait("another instance is registered on this node, standing by")
    time.sleep(2)
    lacks(log.text(), "synchronized")
    still_connected(runtime)
    status = node.daemon_down()
    equal(status, 0, "the status of the first")
    node.daemon = second
    log.wait(r"synchronized \d+ \d+")
    contains(wishing("second", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")


def pre_installed_it_idles_or_serves(node):
    node.containerd_down()
    shutil.copy(PROGRAM, "/opt/nri/plugins/42-conformance")
    with open("/etc/nri/conf.d/42-conformance.conf", "w", encoding="utf-8") as f:
        f.write("any = 'text'\n")
    log, ours = Log(LAUNCHED_LOG), Log(DAEMON_LOG)
    try:
        # One that runs holds the lock and comes back by the socket; the runtime's own stands by.
        node.containerd_up()
        log.wait("another instance is registered on this node, standing by")
        ours.wait(r"synchronized \d+ \d+")
        contains(wishing("idle", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")
        lacks(log.text(), "create idle/main")
        # Then that goes, and the runtime's own takes its place, over the socket.
        node.daemon_down(signal.SIGKILL)
        log.wait("taking over by the socket")
        log.wait(r"synchronized \d+ \d+")
        contains(wishing("over", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")
        contains(log.text(), "create over/main")
        # It goes with the runtime.
        node.containerd_down()
        wait_for("its end", lambda: not running("42-conformance"))

        # Alone it serves on the connection that the runtime gave it.
        log = Log(LAUNCHED_LOG)
        node.containerd_up()
        contains(log.wait(r"configured by .*")[0], "config \"any = 'text'\\n\"")
        contains(wishing("alone", "grant").run("main").sh("ls /dev/infiniband"), "uverbs0")
        standby = Log(DAEMON_LOG)
        second = spawn()
        standby.wait("standing by")
        second.terminate()
        equal(second.wait(timeout=30), 0, "the status of who stood by")
        node.containerd_down()
        wait_for("its end", lambda: not running("42-conformance"))
    finally:
        os.unlink("/opt/nri/plugins/42-conformance")
        subprocess.run(["pkill", "-f", "42-conformance"], check=False)


CASES = [
    devices_limit_and_verbs,
    all_events_of_a_container,
    a_reply_of_20_kb,
    a_reply_of_3_mb,
    a_refusal_is_the_users_text,
    a_refusal_at_start_is_the_users_text,
    a_panic_refuses_the_container,
    a_panic_for_a_pod_does_not_refuse_it,
    c60_slower_than_the_deadline_it_is_refused_in_time,
    a_synchronisation_that_fails_is_done_again,
    the_runtime_restarted_it_is_back,
    a_second_instance_stands_by,
    pre_installed_it_idles_or_serves,
]
