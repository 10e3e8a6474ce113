"""Engines that are driven by their command lines: nerdctl, ctr, podman and docker.

Each is an Engine; what it runs is a Running. All give containers of localhost/test:1.
"""
import itertools
import json
import os
import shutil
import subprocess

from harness import Failed, command, expect, read, short, wait_for, write

IMAGE = "localhost/test:1"
KEY = "devices.rdma-ctk.io"
ASKS = f"--annotation={KEY}=all"
# An RC ping-pong between two processes of one container, over the adapter's IPv4 GID.
PINGPONG = """
ibv_rc_pingpong -d rxe0 -g 1 -n 100 >/dev/null & server=$!
until grep -q ':4853 .* 0A ' /proc/net/tcp; do kill -0 $server || exit 9; sleep 0.1; done
ibv_rc_pingpong -d rxe0 -g 1 -n 100 127.0.0.1 && wait $server
"""
USER = "worker"                                   # of rootless podman
HOME = f"/home/{USER}"


class Done:
    """A program that has ended: status, standard output, standard error."""

    def __init__(self, words, done):
        self.words, self.status, self.out, self.err = words, done.returncode, done.stdout, done.stderr

    def good(self):
        """Its output; fails with another status than 0."""
        expect(self.status == 0, f"status {self.status}: {self.said()} ({self.line()})")
        return self.out

    def said(self):
        """The end of what it said on both, which is where the reason is."""
        return short((self.out + self.err)[-300:])

    def line(self):
        """The command line without scripts and what comes before `run`."""
        words = [word if "\n" not in word else "..." for word in self.words]
        return " ".join(words[words.index("run"):] if "run" in words else words)

    def refused(self, *parts):
        """All that it said, which has to hold these parts; fails with status 0."""
        expect(self.status != 0, f"it ran: {self.said()} ({self.line()})")
        for part in parts:
            expect(part in self.err + self.out, f"{part!r} is not in {self.said()!r}")
        return self.err + self.out


def attempt(*words, timeout=180):
    """Run it. What it writes to is the ordinary user's where it is run as that, as a terminal is."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace")
    if words[0] == "setpriv":
        os.fchown(process.stderr.fileno(), 1000, 1000)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(words, subprocess.CompletedProcess(words, process.returncode, out, err))


class Engine:
    """An engine with the words that every command begins with and those that go after `run`."""

    def __init__(self, name, words, run=(), image=IMAGE):
        self.name, self.words, self.options, self.image = name, list(words), list(run), image
        self.numbers = itertools.count()

    def __repr__(self):
        return self.name

    def call(self, *words, timeout=180):
        return attempt(*self.words, *words, timeout=timeout)

    def run(self, *options, script, timeout=240):
        """Run a script in a container of its own, in the foreground; a Done."""
        return self.call("run", "--rm", *self.options, *options, self.image, "sh", "-c", script,
                         timeout=timeout)

    def start(self, *options):
        """A container that sleeps; a Running."""
        name = f"{self.name}-{next(self.numbers)}"
        self.call("run", "--detach", f"--name={name}", *self.options, *options, self.image,
                  "sleep", "100000").good()
        return Running(self, name)


class Running:
    """A container in the background; also for a `with`, at whose end it is removed."""

    def __init__(self, engine, name):
        self.engine, self.name = engine, name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def attempt(self, script, *options, timeout=180):
        return self.engine.call("exec", *options, self.name, "sh", "-c", script, timeout=timeout)

    def sh(self, script, *options, timeout=180):
        """Run it in an exec session; its output."""
        return self.attempt(script, *options, timeout=timeout).good()

    def remove(self):
        self.engine.call("rm", "--force", self.name)


class Ctr(Engine):
    """containerd's own client, whose words are different."""

    def run(self, *options, script, timeout=240):
        return self.call("run", "--rm", *self.options, *options, self.image,
                         f"run-{next(self.numbers)}", "sh", "-c", script, timeout=timeout)

    def start(self, *options):
        name = f"ctr-{next(self.numbers)}"
        self.call("run", "--detach", *self.options, *options, self.image, name,
                  "sleep", "100000").good()
        return CtrRunning(self, name)


class CtrRunning(Running):
    def attempt(self, script, *options, timeout=180):
        return self.engine.call("task", "exec", "--exec-id", f"e{next(self.engine.numbers)}", *options,
                                self.name, "sh", "-c", script, timeout=timeout)

    def remove(self):
        self.engine.call("task", "rm", "--force", self.name)
        self.engine.call("container", "rm", self.name)


# -- bringing them up -------------------------------------------------------------------------
def ctr():
    """ctr with containerd's default namespace; containerd must be up."""
    command("ctr", "images", "import", "/opt/images/test.tar", timeout=120)
    return Ctr("ctr", ["ctr"])


def nerdctl(network="none"):
    """nerdctl; containerd must be up, and the batch must ask for the tool."""
    if not os.path.exists("/usr/local/bin/nerdctl"):
        shutil.copy("/mnt/nerdctl/nerdctl", "/usr/local/bin/nerdctl")
    write("/etc/nerdctl/nerdctl.toml", 'cni_path = "/usr/lib/cni"\ncgroup_manager = "cgroupfs"\n')
    if IMAGE not in command("ctr", "images", "ls", "-q"):
        command("ctr", "images", "import", "/opt/images/test.tar", timeout=120)
    return Engine("nerdctl", ["nerdctl"], ["--pull=never", f"--network={network}"])


CONTAINERS_CONF = """
[containers]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def podman(runtime="crun", network="none"):
    """podman as root, with that runtime: its name or its path."""
    write("/etc/containers/containers.conf", CONTAINERS_CONF)
    words = ["podman", f"--runtime={runtime}"]
    if IMAGE not in command(*words, "images", "--format={{.Repository}}:{{.Tag}}"):
        command(*words, "load", "--input", "/opt/images/test.tar", timeout=180)
    return Engine(f"podman-{os.path.basename(runtime)}", words,
                  ["--pull=never", f"--network={network}"])


def as_user(*words):
    """The words, run as the ordinary user with the folders that a login would give."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--reset-env", "env",
            f"--chdir={HOME}", "XDG_RUNTIME_DIR=/run/user/1000", f"PATH={os.environ['PATH']}", *words]


def rootless(runtime="crun", network="none"):
    """podman of an ordinary user with subordinate ids, with that runtime."""
    write("/etc/containers/containers.conf", CONTAINERS_CONF)
    if USER not in read("/etc/passwd"):
        for path, line in (("/etc/passwd", f"{USER}:x:1000:1000::{HOME}:/bin/sh"),
                           ("/etc/group", f"{USER}:x:1000:"),
                           ("/etc/subuid", f"{USER}:100000:65536"),
                           ("/etc/subgid", f"{USER}:100000:65536")):
            write(path, read(path) + line + "\n")
        for folder in (HOME, "/run/user/1000"):
            os.makedirs(folder, exist_ok=True)
            os.chown(folder, 1000, 1000)
        command("modprobe", "-a", "fuse", "tun")
        os.chmod("/dev/fuse", 0o666)              # as udev does
        os.chmod("/dev/net/tun", 0o666)
    words = as_user("podman", f"--runtime={runtime}")
    if IMAGE not in command(*words, "images", "--format={{.Repository}}:{{.Tag}}", timeout=180):
        command(*words, "load", "--input", "/opt/images/test.tar", timeout=300)
    return Engine(f"rootless-{os.path.basename(runtime)}", words,
                  ["--pull=never", f"--network={network}"])


def docker_up(settings=None):
    """Start dockerd with these settings more in its daemon.json, and load the image."""
    path = "/etc/docker/daemon.json"
    before = json.loads(read(path) or "{}")
    after = {**before, "exec-opts": ["native.cgroupdriver=cgroupfs"], **(settings or {})}
    if after != before:
        write(path, json.dumps(after))
    # Debian's containerd, which it was packaged with.
    environment = {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    with open("/var/log/dockerd.log", "a") as log:
        process = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env=environment)

    def up():
        if process.poll() is not None:
            raise Failed(f"dockerd ended with {process.returncode}: "
                         f"{short(read('/var/log/dockerd.log')[-900:], 900)}")
        return attempt("docker", "version").status == 0
    wait_for("dockerd", up, 120, step=0.5)
    if IMAGE not in command("docker", "images", "--format={{.Repository}}:{{.Tag}}"):
        command("docker", "load", "--input", "/opt/images/test.tar", timeout=180)
    return process


def docker_down(process):
    process.terminate()
    process.wait(timeout=60)


def docker(network="none"):
    return Engine("docker", ["docker"], ["--pull=never", f"--network={network}"])
