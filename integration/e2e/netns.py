"""What moves into pods and what does not, and limits of the rdma cgroup. Soft-RoCE cannot move: what
it is told is what is tested here; the rest of a move runs in `units` and on a simulated kernel."""
from harness import CONFIG, Pod, command, confined, contains, cri, equal, lacks, wait_for, write

POLICY = """
[links]
movable = ["rxe*"]
[default]
keys = ["devices", "nodes", "memlock", "numa", "env", "netns", "limits", "require"]
netns = ["auto", "shared", "host", "exclusive"]
"""
EXCLUSIVE = {"devices": "rxe0", "netns": "exclusive"}
LOOPBACK = """
ibv_rc_pingpong -d rxe0 -g 1 -n 20 -p 1%s > /dev/null & server=$!
sleep 2
ibv_rc_pingpong -d rxe0 -g 1 -n 20 -p 1%s 127.0.0.1 && wait $server
"""


def prepare(node):
    node.containerd_up()
    node.daemon_up(under=confined("exclusive.conf"))


def policy(node, text):
    """Another policy, once the daemon has it."""
    write(CONFIG, text)
    node.daemon_down()
    node.daemon_up(under=confined("exclusive.conf"))


def refused(name):
    """What a pod with a namespace of its own is told that asks for a move; the pod is removed."""
    pod = Pod(name, EXCLUSIVE, host_network=False)
    # As the kubelet does it: asked again while it is being decided.
    text = pod.refusal()
    for _ in range(20):
        if "on their way into the pod" not in text:
            break
        text = pod.refusal()
    for call in ("StopPodSandbox", "RemovePodSandbox"):
        cri.call(call, cri.data(1, pod.id.encode()))
    return text


# -- limits of the rdma cgroup ------------------------------------------------------------------
def c_limits_exhausted_in_one_container_the_neighbour_works(node):
    """Objects of one container are used up; another on the same adapter does not notice."""
    policy(node, POLICY)
    small = Pod("small", {"devices": "rxe0", "limits": "hca_object=3"}).run("main")
    large = Pod("large", {"devices": "rxe0"}).run("main")
    equal(small.cgroup("rdma.max"), "rxe0 hca_handle=max hca_object=3", "the limit")
    equal(large.cgroup("rdma.max"), "rxe0 hca_handle=max hca_object=max", "the neighbour's")
    exhausted = small.attempt("ibv_rc_pingpong -d rxe0 -g 1 -p 18600 2>&1; echo status $?")
    contains(str(exhausted), "Couldn't create QP")
    contains(large.sh(LOOPBACK % ("8601", "8601")), "20 iters")
    # And with the neighbour's objects in use, the small one has as many as before.
    contains(str(small.attempt("ibv_devinfo -d rxe0")), "hca_id")


# -- what does not move -----------------------------------------------------------------------------
def c53_in_shared_mode_the_boot_parameter_is_named(node):
    policy(node, POLICY)
    contains(refused("shared"), "rdma-ctk: ", "netns.rdma-ctk.io", "options ib_core netns_mode=0", "reboot")
    contains(command("rdma", "system"), "netns shared")


def without_policy_nobody_may_ask(node):
    policy(node, "")
    contains(refused("nobody"), "policy does not allow this way")


def c54_in_exclusive_mode_the_driver_is_named(node):
    """The kernel changes the mode only while there is no other network namespace; those of the pods
    above are gone by now."""
    def changed():
        command("rdma", "system", "set", "netns", "exclusive", check=False)
        return "netns exclusive" in command("rdma", "system")
    wait_for("the exclusive mode", changed, 60, 2)
    policy(node, POLICY)
    contains(refused("exclusive"), "rdma-ctk: ", "rxe0 cannot be given", "driver rxe cannot move")
    contains(command("rdma", "dev"), "rxe0")


def without_being_listed_an_adapter_stays(node):
    policy(node, POLICY.replace('"rxe*"', '"mlx5_*"'))
    contains(refused("unlisted"), "policy does not list it as movable")


def c56_a_pod_in_the_hosts_namespace_gets_its_devices_and_nothing_moves(node):
    policy(node, POLICY)
    container = Pod("host", EXCLUSIVE).run("main")
    contains(container.sh("ibv_devinfo -d rxe0"), "hca_id")
    contains(command("rdma", "dev"), "rxe0")
    lacks(node.ctk("inspect"), "on its way")


def explain_tells_the_same(node):
    policy(node, POLICY)
    out = node.ctk("explain", "--annotation", "devices.rdma-ctk.io=rxe0",
                   "--annotation", "netns.rdma-ctk.io=exclusive", check=False)
    contains(out, "driver rxe cannot move")


CASES = [
    c_limits_exhausted_in_one_container_the_neighbour_works,
    without_policy_nobody_may_ask,
    c53_in_shared_mode_the_boot_parameter_is_named,
    c54_in_exclusive_mode_the_driver_is_named,
    without_being_listed_an_adapter_stays,
    c56_a_pod_in_the_hosts_namespace_gets_its_devices_and_nothing_moves,
    explain_tells_the_same,
]
