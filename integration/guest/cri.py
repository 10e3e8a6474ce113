"""A very small CRI (runtime.v1) client for tests; there is no crictl in Debian. See `cri --help`.

Requests are encoded by hand: the few messages used here have few fields, and this way no
generated code and no protobuf library is needed. Tests import this module: one Python and one
channel for all calls, which saves more than a second a call under emulation.
"""
import os
from dataclasses import dataclass, field

import grpc

SOCKET = os.environ.get("CRI_SOCKET", "unix:///run/containerd/containerd.sock")
POD, CONTAINER, NODE = 0, 1, 2                    # NamespaceMode


# -- protobuf wire format ----------------------------------------------------------------
def varint(n):
    out = b""
    while True:
        b, n = n & 0x7F, n >> 7
        out += bytes([b | (0x80 if n else 0)])
        if not n:
            return out


def num(field, n):
    return varint(field << 3) + varint(n & (1 << 64) - 1) if n else b""


def data(field, b):
    b = b.encode() if isinstance(b, str) else b
    return varint(field << 3 | 2) + varint(len(b)) + b


def strings(field, items):
    return b"".join(data(field, i) for i in items)


def mapping(field, kv):
    return b"".join(data(field, data(1, k) + data(2, v)) for k, v in kv.items())


def parse(buf):
    """Fields of a message: {number: [values]}; a value is an int or bytes."""
    out, i = {}, 0

    def take():
        nonlocal i
        n = shift = 0
        while True:
            b = buf[i]
            i += 1
            n |= (b & 0x7F) << shift
            shift += 7
            if b < 0x80:
                return n
    while i < len(buf):
        key = take()
        if key & 7 == 0:
            v = take()
        elif key & 7 == 2:
            n = take()
            v, i = buf[i:i + n], i + n
        else:
            raise ValueError(f"wire type {key & 7}")
        out.setdefault(key >> 3, []).append(v)
    return out


# -- calls -------------------------------------------------------------------------------
class CriError(Exception):
    """The runtime refused: its method, the gRPC code's name, and the text that a pod's event shows."""

    def __init__(self, method, code, text):
        super().__init__(f"{method}: {code}: {text}")
        self.code, self.text = code, text


_channel = None


def call(method, request=b"", service="RuntimeService", timeout=120):
    """One unary call; the answer as parse() gives it."""
    global _channel
    if _channel is None:
        _channel = grpc.insecure_channel(SOCKET)
    rpc = _channel.unary_unary(f"/runtime.v1.{service}/{method}",
                               request_serializer=lambda b: b, response_deserializer=lambda b: b)
    try:
        return parse(rpc(request, timeout=timeout, wait_for_ready=True))
    except grpc.RpcError as e:
        raise CriError(method, e.code().name, e.details()) from None


def forget_connection():
    """Connect anew at the next call: after the runtime was restarted, gRPC would back off."""
    global _channel
    if _channel is not None:
        _channel.close()
    _channel = None


@dataclass
class Pod:
    """What a PodSandboxConfig is made of."""
    name: str
    annotations: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    sysctls: dict = field(default_factory=dict)
    host_network: bool = False
    privileged: bool = False
    namespace: str = "default"
    runtime: str = ""                             # handler
    host_users: bool = True                       # False: a user namespace, ids from 100000 on

    def namespaces(self):
        """NamespaceOption, as the kubelet sends it for the pod and for each container."""
        users = b""
        if not self.host_users:
            ids = num(1, 100000) + num(3, 65536)
            users = data(5, data(2, ids) + data(3, ids))
        return num(1, NODE if self.host_network else POD) + num(2, CONTAINER) + users

    def config(self):
        sec = data(1, self.namespaces()) + num(6, self.privileged)
        return (data(1, data(1, self.name) + data(2, f"uid-{self.name}") + data(3, self.namespace))
                + (b"" if self.host_network else data(2, self.name))
                + data(3, f"/var/log/pods/{self.name}")
                + mapping(6, self.labels) + mapping(7, self.annotations)
                + data(8, data(2, sec) + mapping(3, self.sysctls)))


@dataclass
class Container:
    """What a ContainerConfig is made of."""
    name: str
    cmd: list
    image: str = "localhost/test:1"
    env: dict = field(default_factory=dict)
    annotations: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    devices: list = field(default_factory=list)   # paths
    mounts: list = field(default_factory=list)    # (host path, container path)
    cdi: list = field(default_factory=list)       # names
    add: list = field(default_factory=list)       # capabilities
    drop: list = field(default_factory=list)
    user: int | None = None
    privileged: bool = False
    cpuset: str = ""
    cpus: float = 0                               # the limit in CPUs; 0 is none
    shares: int = 102                             # the request: 1024 is a CPU

    def config(self, namespaces):
        sec = (data(1, strings(1, self.add) + strings(2, self.drop)) + num(2, self.privileged)
               + data(3, namespaces))
        if self.user is not None:
            sec += data(5, num(1, self.user))
        if not self.privileged:                   # what kubelet sends by default
            sec += strings(13, ["/proc/kcore", "/proc/keys", "/sys/firmware"])
            sec += strings(14, ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"])
        res = num(1, 100000) + num(2, int(self.cpus * 100000)) + num(3, self.shares)
        if self.cpuset:
            res += data(6, self.cpuset)
        return (data(1, data(1, self.name)) + data(2, data(1, self.image)) + strings(3, self.cmd)
                + b"".join(data(6, data(1, k) + data(2, v)) for k, v in self.env.items())
                + b"".join(data(7, data(1, c) + data(2, h)) for h, c in self.mounts)
                + b"".join(data(8, data(1, d) + data(2, d) + data(3, "rwm")) for d in self.devices)
                + mapping(9, self.labels) + mapping(10, self.annotations)
                + data(11, f"{self.name}.log") + data(15, data(1, res) + data(2, sec))
                + b"".join(data(17, data(1, c)) for c in self.cdi))


def run_pod(pod):
    """RunPodSandbox; the pod's id."""
    return call("RunPodSandbox", data(1, pod.config()) + data(2, pod.runtime))[1][0].decode()


def create(pod_id, container, pod):
    """CreateContainer; the container's id."""
    return call("CreateContainer",
                data(1, pod_id) + data(2, container.config(pod.namespaces()))
                + data(3, pod.config()))[1][0].decode()


def start(container_id):
    call("StartContainer", data(1, container_id))


def exec_sync(container_id, cmd, timeout=60):
    """ExecSync: exit status, standard output, standard error."""
    r = call("ExecSync", data(1, container_id) + strings(2, cmd) + num(3, timeout),
             timeout=timeout + 30)
    return r.get(3, [0])[0] & 0xFF, r.get(1, [b""])[0], r.get(2, [b""])[0]


def update(container_id, cpuset):
    """UpdateContainerResources as the kubelet's CPU manager sends it: the set and nothing else."""
    call("UpdateContainerResources", data(1, container_id) + data(2, data(6, cpuset)))


def version():
    """The runtime's name, version and API version."""
    v = call("Version")
    return [v[i][0].decode() for i in (2, 3, 4)]
