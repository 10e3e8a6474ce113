"""How long the sandboxes of pods take to start that did not ask, with the daemon and without, in turns.
A measurement: it prints, and fails only where a pod does not start."""
import statistics
import time

from harness import Pod, cri, tell

ROUNDS, PODS = 3, 10


def prepare(node):
    node.containerd_up()


def start(name):
    began = time.monotonic()
    pod = Pod(name, host_network=False)
    took = time.monotonic() - began
    for call in ("StopPodSandbox", "RemovePodSandbox"):
        cri.call(call, cri.data(1, pod.id.encode()))
    return took


def sandboxes_of_pods_that_did_not_ask(node):
    start("warm-up")
    times = {"with": [], "without": []}
    for number in range(ROUNDS):
        node.daemon_up()
        times["with"] += [start(f"with-{number}-{pod}") for pod in range(PODS)]
        node.daemon_down()
        node.wanted = False
        times["without"] += [start(f"without-{number}-{pod}") for pod in range(PODS)]
    for word, seconds in times.items():
        quarters = statistics.quantiles(seconds, n=4)
        tell(f"    {word}: median {quarters[1]:.3f} s, quartiles {quarters[0]:.3f} and "
             f"{quarters[2]:.3f} s, {len(seconds)} pods")
    ratio = statistics.median(times["with"]) / statistics.median(times["without"])
    tell(f"    ratio of the medians: {ratio:.2f}")


CASES = [sandboxes_of_pods_that_did_not_ask]
