"""neighbour.py NAME INDEX KEY=VALUE...: another NRI plugin, which adjusts every container that asks.

A container asks by its pod's annotation `neighbour.test: NAME`. Adjustments: env=NAME=VALUE,
memlock=BYTES, device=PATH, cpus=LIST, annotation=NAME=VALUE; a container's own settings are not
looked at. The plugin speaks to the runtime on the wire (multiplexer, ttrpc and protobuf by hand),
so it shares no code with what is tested. It prints a line for every call.
"""
import os
import socket
import struct
import sys

sys.path.insert(0, "/run/ctk")
from cri import data, num, parse  # noqa: E402

PLUGIN, RUNTIME = 1, 2                            # logical connections of the multiplexer
CREATE_CONTAINER = 1 << 3                         # its bit in the mask of events


def device(path):
    st = os.stat(path)
    return (data(1, path) + data(2, "c") + num(3, os.major(st.st_rdev))
            + num(4, os.minor(st.st_rdev)) + data(5, num(1, 0o666)))


def adjustment(wishes):
    """ContainerAdjustment of the wishes."""
    out, linux = b"", b""
    for kind, value in wishes:
        if kind in ("env", "annotation"):
            key, _, value = value.partition("=")
            out += data(4 if kind == "env" else 2, data(1, key) + data(2, value))
        elif kind == "memlock":
            out += data(7, data(1, "RLIMIT_MEMLOCK") + num(2, int(value)) + num(3, int(value)))
        elif kind == "device":
            linux += data(1, device(value))
        elif kind == "cpus":
            linux += data(2, data(2, data(6, value)))
        else:
            sys.exit(f"neighbour: unknown wish {kind}")
    return out + (data(6, linux) if linux else b"")


class Trunk:
    """The connection to the runtime."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.waiting = {PLUGIN: b"", RUNTIME: b""}

    def send(self, connection, stream, kind, payload):
        message = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
        # A frame above 4096 bytes must be the rest of one message.
        for part in (message[:4096], message[4096:]):
            if part:
                self.socket.sendall(struct.pack(">II", connection, len(part)) + part)

    def exactly(self, size):
        out = b""
        while len(out) < size:
            got = self.socket.recv(size - len(out))
            if not got:
                sys.exit("neighbour: the runtime has closed the connection")
            out += got
        return out

    def messages(self):
        """(connection, stream, type, payload), for ever."""
        while True:
            connection, size = struct.unpack(">II", self.exactly(8))
            buf = self.waiting[connection] + self.exactly(size)
            while len(buf) >= 10:
                size, stream, kind, _ = struct.unpack(">IIBB", buf[:10])
                if len(buf) < 10 + size:
                    break
                yield connection, stream, kind, buf[10:10 + size]
                buf = buf[10 + size:]
            self.waiting[connection] = buf


def main(name, index, *wishes):
    wishes = [w.split("=", 1) for w in wishes]
    trunk = Trunk("/var/run/nri/nri.sock")
    trunk.send(RUNTIME, 1, 1, data(1, "nri.pkg.api.v1alpha1.Runtime") + data(2, "RegisterPlugin")
               + data(3, data(1, name) + data(2, index)))
    for connection, stream, kind, payload in trunk.messages():
        if connection != PLUGIN or kind != 1:
            continue
        request = parse(payload)
        method, body = request[2][0].decode(), parse(request.get(3, [b""])[0])
        answer = b""
        if method == "Configure":
            answer = num(2, CREATE_CONTAINER)
        elif method == "CreateContainer":
            notes = [parse(entry) for entry in parse(body[1][0]).get(6, [])]
            if any(n[1][0] == b"neighbour.test" and n[2][0] == name.encode() for n in notes):
                answer = data(1, adjustment(wishes))
        trunk.send(PLUGIN, stream, 2, data(2, answer) if answer else b"")
        print(f"{method}: {len(answer)} bytes", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
