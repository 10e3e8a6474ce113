"""The guest's side of the end-to-end tests: run cases, print a line for each.

A batch is a module with a list CASES of functions and a function prepare(node); its name is what
`cargo xtask test --batch` takes. A case is a function of a Node that returns when all is well and
raises Failed or Skip otherwise. What is printed:

    plan N
    ok NAME (4.2 s)
    FAIL NAME: why
        and indented what the logs say
    skip NAME: why
"""
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback

sys.path.insert(0, "/run/ctk")
import cri  # noqa: E402

PROGRAM = "/usr/local/bin/rdma-ctk"               # a copy: 9p would be slow to start from
CONFIG = "/etc/rdma-ctk/config.toml"
METRICS = "127.0.0.1:9409"
CONTAINERD_LOG = "/var/log/containerd.log"
DAEMON_LOG = "/var/log/rdma-ctk.log"


class Failed(Exception):
    """The product did not do what it should; the text says what was seen."""


class Skip(Exception):
    """The case cannot be run here; the text says why."""


# -- looking -----------------------------------------------------------------------------
def short(text, limit=400):
    """One line of it, for a result line."""
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[:limit] + "..."


def expect(condition, why):
    if not condition:
        raise Failed(why)


def equal(seen, wanted, what):
    expect(seen == wanted, f"{what} is {short(seen)!r}, not {short(wanted)!r}")


def contains(text, *parts):
    for part in parts:
        expect(part in text, f"{part!r} is not in {short(text)!r}")


def lacks(text, *parts):
    for part in parts:
        expect(part not in text, f"{part!r} is in {short(text)!r}")


def wait_for(what, function, seconds=30, step=0.2):
    """Call the function until its result is true, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        result = function()
        if result:
            return result
        expect(time.monotonic() < deadline, f"{what}: not within {seconds} s")
        time.sleep(step)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def install(*programs):
    """Copies of our programs in /usr/bin: from 9p they would be slow to start."""
    for program in programs:
        command("cp", f"/mnt/bin/{program}", "/usr/bin/")


def confined(*drop_ins):
    """Words before a program that run it with no more than our unit and these drop-ins give."""
    units = "/mnt/systemd/rdma-ctk.service"
    return ["python3", "/mnt/e2e/confined.py", units,
            *(f"{units}.d/{name}" for name in drop_ins), "--"]


class Log:
    """A log file from a moment on, or the whole of it."""

    def __init__(self, path, whole=False):
        self.path, self.start = path, 0 if whole else len(read(path))

    def text(self):
        return read(self.path)[self.start:]

    def wait(self, pattern, seconds=30):
        """The first match of a regular expression."""
        return wait_for(f"{pattern!r} in {self.path}", lambda: re.search(pattern, self.text()),
                        seconds)


def command(*words, timeout=60, check=True):
    """Run a program; its standard output. A status other than 0 is a failure, unless check is off."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode:
        raise Failed(f"{' '.join(words)}: status {done.returncode}: {short(done.stderr)}")
    return done.stdout


# -- pods and containers -----------------------------------------------------------------
class Pod:
    """A running sandbox."""

    def __init__(self, name, keys=None, **options):
        """keys: our annotations, with `.rdma-ctk.io` put in: {"devices": "all"}, or with a scope
        {"devices/container.main": "all"}."""
        notes = {}
        for key, value in (keys or {}).items():
            word, slash, scope = key.partition("/")
            notes[f"{word}.rdma-ctk.io{slash}{scope}"] = value
        notes.update(options.pop("annotations", {}))
        options.setdefault("host_network", True)
        self.spec = cri.Pod(name, annotations=notes, **options)
        self.id = cri.run_pod(self.spec)

    def create(self, name, *cmd, **options):
        """A container that is not started; by default it would sleep."""
        options = cri.Container(name, list(cmd) or ["sleep", "100000"], **options)
        return Container(self, name, cri.create(self.id, options, self.spec))

    def run(self, name, *cmd, **options):
        container = self.create(name, *cmd, **options)
        container.start()
        return container

    def refusal(self, name="main", **options):
        """The text with which CreateContainer is refused."""
        try:
            self.create(name, **options)
        except cri.CriError as e:
            return e.text
        raise Failed("the container was created, not refused")


class Container:
    """A created container."""

    def __init__(self, pod, name, container_id):
        self.pod, self.name, self.id = pod, name, container_id

    def start(self):
        cri.start(self.id)

    def start_refusal(self):
        """The text with which StartContainer is refused."""
        try:
            self.start()
        except cri.CriError as e:
            return e.text
        raise Failed("the container was started, not refused")

    def sh(self, script, timeout=120):
        """Run it in the container; its standard output. Fails with another status than 0."""
        status, out, err = self.attempt(script, timeout)
        expect(status == 0, f"in {self.name}: {script!r}: status {status}: {short(out + err)}")
        return out

    def attempt(self, script, timeout=120):
        """Run it in the container; status, standard output, standard error."""
        status, out, err = cri.exec_sync(self.id, ["sh", "-c", script], timeout)
        return status, out.decode(errors="replace"), err.decode(errors="replace")

    def refused_verbs(self):
        """Fail unless the container has no RDMA device."""
        status, out, err = self.attempt("ibv_devinfo")
        expect(status != 0, "ibv_devinfo works")
        contains(out + err, "No IB devices found")

    def spec(self):
        """The stored OCI spec as text, with what differs between two equal containers taken out."""
        info = command("ctr", "-n", "k8s.io", "containers", "info", self.id)
        text = info[info.index('"Spec": '):]
        for own in (self.id, self.pod.id):
            text = text.replace(own, "ID")
        text = text.replace(self.pod.spec.name, "POD")
        return re.sub(r"/proc/\d+/ns|/var/run/netns/cni-[0-9a-f-]+", "NS", text)

    def cgroup(self, file):
        """A file of its cgroup."""
        return read(f"/sys/fs/cgroup/k8s.io/{self.id}/{file}").strip()

    def log(self):
        """What its first process has written, without the CRI's prefix."""
        lines = read(f"/var/log/pods/{self.pod.spec.name}/{self.name}.log").splitlines()
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    def state(self):
        """CREATED, RUNNING, STOPPED, or nothing if there is no task."""
        for line in command("ctr", "-n", "k8s.io", "tasks", "ls").splitlines():
            if line.startswith(self.id):
                return line.split()[-1]
        return ""


# -- the programs on the node ---------------------------------------------------------------
class Node:
    """containerd and the daemon, and what the cases of a batch share."""

    def __init__(self):
        self.daemon, self.wanted = None, False
        self.pods = {}

    # containerd
    def containerd_up(self, toml="", config=""):
        """Start containerd, with more TOML appended to its configuration. config: "only" writes one
        that does not mention NRI and starts nothing, "keep" starts with the one that is there."""
        write("/run/e2e.toml", toml)
        cri.forget_connection()
        command("env", f"CTK_CONFIG={config}", "containerd-up", "/run/e2e.toml", timeout=180)

    def containerd_down(self):
        """Stop containerd; its containers stay."""
        command("pkill", "-x", "containerd", check=False)
        wait_for("containerd's end", lambda: not command("pgrep", "-x", "containerd", check=False))

    # the daemon
    def spawn(self, *options, metrics=METRICS, under=()):
        """Start `rdma-ctk nri`, with the words `under` before it; the process."""
        if not os.path.exists(PROGRAM):
            command("cp", "/mnt/bin/rdma-ctk", PROGRAM)
        with open(DAEMON_LOG, "a") as log:
            return subprocess.Popen([*under, PROGRAM, "nri", "--metrics", metrics, *options],
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def daemon_up(self, *options, under=()):
        """Start the daemon and wait until the runtime has it."""
        log = Log(CONTAINERD_LOG)
        self.wanted = True
        self.daemon = self.spawn(*options, under=under)
        self.wait_registered(log)

    def wait_registered(self, log, seconds=60):
        """Wait until containerd says in the log that it has us."""
        def seen():
            status = self.daemon.poll() if self.daemon else None
            expect(status is None, f"the daemon ended with {status}: {short(read(DAEMON_LOG)[-800:])}")
            return re.search(r'plugin \\?"10-rdma-ctk\\?" connected', log.text())
        wait_for("registration of the plugin", seen, seconds)

    def ensure_up(self):
        """Make good what a failed case has left: the daemon runs, and runs on, if there was one."""
        if not self.wanted:
            return
        if self.daemon is None or self.daemon.poll() is not None:
            self.daemon_up()
        else:
            self.daemon.send_signal(signal.SIGCONT)

    def daemon_down(self, how=signal.SIGTERM):
        """End the daemon; its status, as the shell counts."""
        self.daemon.send_signal(how)
        status = self.daemon.wait(timeout=30)
        self.daemon = None
        return status

    def ctk(self, *words, check=True, timeout=60):
        """Output of `rdma-ctk WORDS`."""
        return command(PROGRAM, *words, check=check, timeout=timeout)

    def configure(self, *words):
        """`rdma-ctk configure WORDS`, by the program in /usr/bin."""
        return command("rdma-ctk", "configure", *words)

    def metric(self, pattern):
        """The sum of the samples whose name and labels match the regular expression."""
        return sum(float(value) for value in re.findall(rf"(?m)^(?:{pattern})\S* (\S+)$",
                                                        self.metrics_page()))

    def metrics_page(self):
        """What the metrics endpoint answers, header included."""
        host, port = METRICS.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as s:
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            page = b""
            while chunk := s.recv(65536):
                page += chunk
        return page.decode(errors="replace").replace("\r\n", "\n")


class Neighbour:
    """Another NRI plugin (see neighbour.py), for the length of a `with`."""

    def __init__(self, index, *wishes):
        self.name, self.index, self.wishes = f"n{index}", index, wishes

    def __enter__(self):
        log = Log(CONTAINERD_LOG)
        self.process = subprocess.Popen(
            [sys.executable, "/mnt/e2e/neighbour.py", self.name, self.index, *self.wishes],
            stdout=subprocess.DEVNULL)
        log.wait(rf'plugin \\?"{self.index}-{self.name}\\?" connected')

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


# -- running a batch ------------------------------------------------------------------------
def tell(text):
    """Print a line of the result. Of several guests the first one's count; see xtask's e2e.rs."""
    print(text, flush=True)


def show_logs(marks):
    """After a failure: what the programs have said since the case began."""
    for mark in marks:
        lines = mark.text().splitlines()
        if mark.path == CONTAINERD_LOG:
            lines = [x for x in lines if re.search(r"level=(error|fatal)|[0-9]{2}-[a-z]", x)]
        for line in lines[-20:]:
            tell(f"    {os.path.basename(mark.path)}: {line[:600]}")


def run_case(name, function, node):
    """Run one, print its line; whether it did not fail."""
    marks = [Log(CONTAINERD_LOG), Log(DAEMON_LOG)]
    started = time.monotonic()
    try:
        function(node)
    except Skip as e:
        tell(f"skip {name}: {short(e)}")
    except (Failed, cri.CriError, subprocess.TimeoutExpired) as e:
        at = traceback.extract_tb(e.__traceback__)
        line = next((f.lineno for f in reversed(at) if f.name == function.__name__), 0)
        tell(f"FAIL {name}: {short(e)} (line {line})")
        show_logs(marks)
        return False
    except Exception as e:                        # a mistake in the case itself
        tell("    " + traceback.format_exc().rstrip().replace("\n", "\n    "))
        tell(f"FAIL {name}: {type(e).__name__}: {short(e)}")
        show_logs(marks)
        return False
    else:
        tell(f"ok {name} ({time.monotonic() - started:.1f} s)")
    return True


def run_batch(prepare, cases, part=""):
    """Run the cases with part in their name; the exit status."""
    cases = [case for case in cases if part in case.__name__]
    tell(f"plan {len(cases) + 1 if cases else 0}")
    node, good = Node(), True
    if not cases or not run_case("prepare", prepare, node):
        return 1                                  # the host counts what gave no result
    for case in cases:
        try:
            node.ensure_up()
        except Failed as e:
            tell(f"    {short(e)}")               # the case will say what that means for it
        good = run_case(case.__name__, case, node) and good
    if node.daemon and node.daemon.poll() is None:
        node.daemon.kill()
    return 0 if good else 1
