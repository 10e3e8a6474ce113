"""The unit tests that are ignored elsewhere, since they want a kernel with RDMA: each is a case."""
import os
import shutil

from harness import command, expect, short

PROGRAM = "/usr/local/bin/units"


def prepare(_):
    shutil.copy(os.environ["CTK_UNITS"], PROGRAM)


def case(name):
    def test(_):
        out = command(PROGRAM, "--ignored", "--exact", name, timeout=120, check=False)
        expect("1 passed" in out, short(out, 900))
    test.__name__ = name.replace("::", ".")
    return test


LIST = command(os.environ["CTK_UNITS"], "--ignored", "--list", "vm_").splitlines()
CASES = [case(line.removesuffix(": test")) for line in LIST if line.endswith(": test")]
