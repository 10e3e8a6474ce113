"""confined.py UNIT [DROP-IN...] -- PROGRAM [ARGUMENT...]: run a program with as little as its unit gives.

For a machine without systemd. Taken from the files are CapabilityBoundingSet, NoNewPrivileges,
SystemCallFilter with SystemCallErrorNumber=EPERM, and RestrictAddressFamilies. What system calls a
group has is what systemd-analyze of the machine that runs the tests says (/mnt/bin/syscall-groups),
and their numbers are those of its headers (/mnt/bin/unistd_64.h); without these files there is no filter.
"""
import ctypes
import os
import re
import struct
import sys

GROUPS, NUMBERS = "/mnt/bin/syscall-groups", "/mnt/bin/unistd_64.h"
# linux/capability.h
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22
ALLOW, EPERM, UNSUPPORTED = 0x7FFF0000, 0x00050001, 0x00050000 | 97
AUDIT_ARCH_X86_64, SOCKET = 0xC000003E, 41


def settings(files):
    """Values of the lists in these files, added up as systemd does."""
    found = {}
    for path in files:
        for line in open(path, encoding="utf-8"):
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith("#"):
                found.setdefault(name, []).extend(value.split())
    return found


def members(groups, name):
    if not name.startswith("@"):
        return {name}
    return set().union(*(members(groups, one) for one in groups[name]))


def calls(names):
    """Numbers of the calls that these names and groups allow."""
    groups, current = {}, None
    for line in open(GROUPS, encoding="utf-8"):
        word = line.strip()
        if word.startswith("@") and not line.startswith(" "):
            current = groups.setdefault(word, [])
        elif word and not word.startswith("#") and current is not None:
            current.append(word)
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", open(NUMBERS, encoding="utf-8").read()))
    allowed = set().union(*(members(groups, name) for name in names))
    return sorted(int(numbers[name]) for name in allowed if name in numbers)


def program(allowed, families):
    """A filter of linux/filter.h: system call, architecture, first argument are at 0, 4 and 16."""
    def instruction(code, yes, no, value):
        return struct.pack("HBBI", code, yes, no, value)
    load, equal, answer = 0x20, 0x15, 0x06
    code = [instruction(load, 0, 0, 4), instruction(equal, 1, 0, AUDIT_ARCH_X86_64),
            instruction(answer, 0, 0, EPERM), instruction(load, 0, 0, 0)]
    for number in allowed:
        if number != SOCKET:
            code += [instruction(equal, 0, 1, number), instruction(answer, 0, 0, ALLOW)]
    code += [instruction(equal, 1, 0, SOCKET), instruction(answer, 0, 0, EPERM),
             instruction(load, 0, 0, 16)]
    for family in families:
        code += [instruction(equal, 0, 1, family), instruction(answer, 0, 0, ALLOW)]
    code.append(instruction(answer, 0, 0, UNSUPPORTED))
    return b"".join(code), len(code)


def main():
    split = sys.argv.index("--")
    wanted = settings(sys.argv[1:split])
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words):
        if libc.prctl(*(ctypes.c_ulong(word) for word in words)) != 0:
            sys.exit(f"confined: prctl{words}: {os.strerror(ctypes.get_errno())}")
    kept = {CAPABILITIES[name] for name in wanted["CapabilityBoundingSet"]}
    for number in range(int(open("/proc/sys/kernel/cap_last_cap").read()) + 1):
        if number not in kept:
            prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    if wanted.get("NoNewPrivileges") != ["yes"]:
        sys.exit("confined: the unit does not set NoNewPrivileges")
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.path.exists(GROUPS) and os.path.exists(NUMBERS):
        families = [FAMILIES[name] for name in wanted["RestrictAddressFamilies"]]
        code, length = program(calls(wanted["SystemCallFilter"]), families)
        space = ctypes.create_string_buffer(code, len(code))
        whole = struct.pack("HxxxxxxQ", length, ctypes.addressof(space))
        holder = ctypes.create_string_buffer(whole, len(whole))
        prctl(PR_SET_SECCOMP, 2, ctypes.addressof(holder), 0, 0)
    else:
        print("confined: no filter of system calls, since no systemd-analyze was there", flush=True)
    os.execv(sys.argv[split + 1], sys.argv[split + 1:])


main()
