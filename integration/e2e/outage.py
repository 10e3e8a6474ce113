"""The plugin or the runtime killed, stopped or restarted, with NRI's real request timeout of 2 s.

An opted-in container never runs without its grant unnoticed: it is refused, or named afterwards.
"""
import os
import re
import shutil
import signal
import threading
import time

from harness import (CONTAINERD_LOG, DAEMON_LOG, PROGRAM, Log, Pod, contains, cri, equal, expect,
                     lacks, read, wait_for, write)

SLIPPED = "rdma_ctk_slipped_through_total"  # containers that run without their grant
AUDIT_SECONDS = 5


def prepare(node):
    node.containerd_up()
    node.daemon_up()


def works(container):
    contains(container.sh("ibv_devinfo"), "PORT_ACTIVE")


# -- the plugin -----------------------------------------------------------------------------
def c61_created_while_we_were_dead_it_is_refused_at_start(node):
    pod = Pod("dead", {"devices": "all"})
    node.daemon_down(signal.SIGKILL)
    container = pod.create("main", "sh", "-c", "echo ran; sleep 100000")
    lacks(container.spec(), "uverbs0")            # the runtime went on without us
    node.daemon_up()
    contains(container.start_refusal(), "rdma-ctk: ", "devices.rdma-ctk.io")
    equal(container.log(), "", "what the first process has written")
    works(pod.run("again"))                       # what the kubelet does next


def c61_started_while_we_were_dead_it_is_named_within_5_seconds(node):
    pod = Pod("slipped", {"devices": "all"})
    bystander = Pod("bystander")
    node.daemon_down(signal.SIGKILL)
    # Where plugins validate, the runtime fails the very next container: it notices then that we
    # are gone.
    try:
        other = bystander.run("main")
    except cri.CriError:
        other = bystander.run("again")
    container = pod.run("main")
    container.refused_verbs()
    log = Log(DAEMON_LOG)
    node.daemon_up()
    log.wait(r"slipped through.*default/slipped", AUDIT_SECONDS)
    expect(node.metric(SLIPPED) >= 1, "it is not counted")
    shown = node.ctk("inspect")
    contains(shown, "SLIPPED THROUGH", "default/slipped")
    lacks(log.text() + shown, "bystander")
    cri.call("StopContainer", cri.data(1, container.id))
    cri.call("StopContainer", cri.data(1, other.id))


def c60_stopped_in_the_middle_it_is_refused_at_start(node):
    pod = Pod("stopped", {"devices": "all"})
    node.daemon.send_signal(signal.SIGSTOP)
    log = Log(CONTAINERD_LOG)
    started = time.monotonic()
    container = pod.create("main")                # after the timeout, without us
    expect(time.monotonic() - started >= 1.9, "the runtime did not wait for us")
    node.daemon.send_signal(signal.SIGCONT)
    node.wait_registered(log)                     # we notice that we were cut off
    contains(container.start_refusal(), "rdma-ctk: ")
    works(pod.run("again"))


def c60_stopped_while_a_pod_ends_nothing_of_it_is_left(node):
    pod = Pod("ending", {"devices": "all"})
    container = pod.run("main")
    contains(node.ctk("inspect"), "default/ending")
    log, said = Log(CONTAINERD_LOG), Log(DAEMON_LOG)
    node.daemon.send_signal(signal.SIGSTOP)
    try:
        cri.call("StopContainer", cri.data(1, container.id))
        time.sleep(3)                             # more than the request timeout
        cri.call("StopPodSandbox", cri.data(1, pod.id))
        cri.call("RemovePodSandbox", cri.data(1, pod.id))
    finally:
        node.daemon.send_signal(signal.SIGCONT)
    node.wait_registered(log)
    wait_for("the end of its record", lambda: "default/ending" not in node.ctk("inspect"))
    lacks(said.text(), "slipped")
    works(Pod("after-ending", {"devices": "all"}).run("main"))


def c60_restarted_while_pods_are_made_each_is_granted_refused_or_named(node):
    results, pods = {}, [Pod(f"race-{i}", {"devices": "all"}) for i in range(5)]

    def make():
        for pod in pods:
            try:
                container = pod.run("main")
                results[pod.spec.name] = container
            except cri.CriError as e:
                results[pod.spec.name] = e.text
    maker = threading.Thread(target=make)
    maker.start()
    while maker.is_alive():
        node.daemon_down(signal.SIGKILL)
        node.daemon_up()
        time.sleep(0.5)
    maker.join()
    time.sleep(AUDIT_SECONDS)
    equal(len(results), len(pods), "the number of results")
    shown = node.ctk("inspect")
    for name, result in results.items():
        if isinstance(result, str):
            contains(result, "rdma-ctk: ")
        elif result.attempt("ibv_devinfo")[0] != 0:
            named = [line for line in shown.splitlines() if name in line or result.id[:12] in line]
            expect(any("SLIPPED" in line for line in named), f"{name} runs without, unnoticed")


def a_clean_stop_ends_with_status_0(node):
    log = Log(CONTAINERD_LOG)
    equal(node.daemon_down(signal.SIGTERM), 0, "the status")
    log.wait(r'10-rdma-ctk.*closed|closing plugin', 10)
    node.daemon_up()


def a_second_instance_stands_by_and_takes_over(node):
    log, runtime = Log(DAEMON_LOG), Log(CONTAINERD_LOG)
    second = node.spawn(metrics="127.0.0.1:9410")
    try:
        log.wait(r"(?i)stand(s|ing)? ?by|another instance", 20)
        lacks(runtime.text(), "10-rdma-ctk")
        equal(second.poll(), None, "the status of the second instance")
        node.daemon_down(signal.SIGKILL)
        node.daemon, second = second, None
        node.wait_registered(runtime)
        works(Pod("taken-over", {"devices": "all"}).run("main"))
    finally:
        if second:
            second.kill()
    node.daemon_down()
    node.daemon_up()


# -- privileges ---------------------------------------------------------------------------------
def with_the_capabilities_of_the_service_nothing_is_missing(node):
    """Those of packaging/systemd/rdma-ctk.service."""
    few = "-all,+sys_admin,+sys_ptrace"
    node.daemon_down()
    log = Log(DAEMON_LOG)
    node.daemon_up(under=["setpriv", "--no-new-privs", "--bounding-set", few, "--inh-caps", few])
    works(Pod("few-host", {"devices": "all"}).run("main"))
    container = Pod("few-own", {"devices": "all", "env": "file"}, host_network=False).run("main")
    works(container)
    contains(container.sh("cat /etc/nccl.conf"), "NCCL_IB_HCA==rxe0:1\n")
    # What a look into the pod has shown, not that it failed.
    wait_for("a warning", lambda: re.search(r"no network interface on it.*few-own", log.text()), 10)
    lacks(log.text(), "not known", "Operation not permitted", "Permission denied")
    node.daemon_down()
    node.daemon_up()


# -- the runtime ------------------------------------------------------------------------------
def the_runtime_restarted_we_are_back_without_a_restart(node):
    before = Pod("before", {"devices": "all"}).run("main")
    node.containerd_down()
    shutil.rmtree("/run/nri")                     # as a fresh runtime directory has it
    log, said = Log(CONTAINERD_LOG), Log(DAEMON_LOG)
    node.containerd_up()
    node.wait_registered(log)
    works(before)
    works(Pod("behind", {"devices": "all"}).run("main"))
    time.sleep(AUDIT_SECONDS)
    lacks("".join(x for x in said.text().splitlines() if "before" in x), "slipped")


# -- registration -----------------------------------------------------------------------------
def registered_by_configure_and_taken_back(node):
    """containerd 1.7 has NRI off where it is not mentioned, later ones where they are told."""
    off = "" if os.environ["CTK_CONTAINERD"] == "1" else (
        '[plugins."io.containerd.nri.v1.nri"]\n  disable = true  # for now\n')
    path = "/etc/containerd/config.toml"
    if node.daemon:
        node.daemon_down()
    node.containerd_down()
    shutil.rmtree("/run/nri", ignore_errors=True)
    try:
        node.containerd_up(off, config="only")
        before = read(path)
        node.ctk("configure", "containerd", "--nri")
        after = read(path)
        expect(after != before, "nothing was changed")
        node.ctk("configure", "containerd", "--nri")
        equal(read(path), after, "the configuration after the second time")
        node.containerd_up(config="keep")
        node.daemon_up()
        works(Pod("configured", {"devices": "all"}).run("main"))
        node.ctk("configure", "containerd", "--undo")
        equal(read(path), before, "the configuration after undo")
    finally:
        node.containerd_down()
        node.containerd_up()
    if node.daemon:
        node.daemon.kill()
    node.daemon_up()


# -- pre-installed: the runtime starts us ------------------------------------------------------
def pre_installed_the_runtime_starts_us_with_its_configuration(node):
    if node.daemon:
        node.daemon_down()
    os.makedirs("/opt/nri/plugins", exist_ok=True)
    shutil.copy(PROGRAM, "/opt/nri/plugins/10-rdma-ctk")
    write("/etc/nri/conf.d/10-rdma-ctk.conf", "[default]\nmemlock_max = \"32MiB\"\n")
    node.containerd_down()
    node.containerd_up()
    try:
        container = Pod("installed", {"devices": "all"}).run("main")
        works(container)
        equal(container.sh("ulimit -l").strip(), "32768", "the limit that the policy sets")
        contains(node.ctk("inspect"), "installed")
        text = Pod("installed-bad", {"devices": "mlx5_9"}).refusal()
        contains(text, "rdma-ctk: ", "mlx5_9")
    finally:
        os.unlink("/opt/nri/plugins/10-rdma-ctk")
        node.containerd_down()
        wait_for("the end of the pre-installed plugin", lambda: not running("10-rdma-ctk"))
        node.containerd_up()
    node.daemon_up()


def running(name):
    """Whether a program by that name runs."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == name:
                return True
        except OSError:
            continue
    return False


CASES = [
    c61_created_while_we_were_dead_it_is_refused_at_start,
    c61_started_while_we_were_dead_it_is_named_within_5_seconds,
    c60_stopped_in_the_middle_it_is_refused_at_start,
    c60_stopped_while_a_pod_ends_nothing_of_it_is_left,
    c60_restarted_while_pods_are_made_each_is_granted_refused_or_named,
    a_clean_stop_ends_with_status_0,
    a_second_instance_stands_by_and_takes_over,
    with_the_capabilities_of_the_service_nothing_is_missing,
    the_runtime_restarted_we_are_back_without_a_restart,
    registered_by_configure_and_taken_back,
    pre_installed_the_runtime_starts_us_with_its_configuration,
]
