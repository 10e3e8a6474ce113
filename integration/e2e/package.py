"""The Debian package: installed, used, removed. Nothing starts and nothing is configured unasked."""
import glob
import os
import subprocess

import engines
from engines import ASKS, KEY, PINGPONG
from harness import contains, command, equal, expect, lacks, read, write

CONFIGS = ["/etc/containerd", "/etc/containers", "/etc/docker", "/etc/nri", "/etc/cdi", "/run/cdi"]


def prepare(node):
    node.containerd_up()
    node.ctr = engines.ctr()
    write("/etc/containers/containers.conf", engines.CONTAINERS_CONF)
    node.before = state()


def state():
    """All files of runtimes' configurations with what is in them."""
    files = [f for folder in CONFIGS for f in glob.glob(folder + "/**", recursive=True)]
    return {f: read(f) for f in files if os.path.isfile(f)}


def running():
    return command("pgrep", "-l", "rdma-ctk", check=False)


def installed_it_starts_and_configures_nothing(node):
    (package,) = glob.glob("/mnt/dist/*.deb")
    command("dpkg", "--install", package, timeout=120)
    equal(running(), "", "what runs")
    equal(state(), node.before, "the runtimes' configuration")
    contains(command("rdma-ctk", "--version"), "rdma-ctk ")
    contains(command("rdma-ctk-hook", "version"), "rdma-ctk-hook ")
    expect(read("/etc/rdma-ctk/config.toml"), "there is no policy file")


def manual_pages_units_and_hooks_are_in_it(_):
    files = command("dpkg", "--listfiles", "rdma-ctk")
    contains(files, "/usr/share/man/man1/rdma-ctk.1", "/usr/share/bash-completion/completions/rdma-ctk",
             "/usr/share/man/man1/rdma-ctk-probe.1", "/usr/share/bash-completion/completions/rdma-ctk-probe",
             "/usr/share/rdma-ctk/hooks.d/podman/rdma-ctk.json", "/systemd/system/rdma-ctk.service",
             "/systemd/system/rdma-ctk-cdi.service", "runtimeclass.yaml")


def the_wrapper_works_as_installed(node):
    runtime = "--runc-binary=/usr/bin/rdma-ctk-runtime"
    contains(node.ctr.run(runtime, ASKS, script=PINGPONG).good(), "100 iters in")
    node.ctr.run(runtime, f"--annotation={KEY}=mlx5_9", script="echo it runs").refused("rdma-ctk: ")


def the_probe_works_in_a_container_as_installed(node):
    path = "/usr/bin/rdma-ctk-probe"
    mount = f"--mount=type=bind,src={path},dst={path},options=rbind:ro"
    runtime = "--runc-binary=/usr/bin/rdma-ctk-runtime"
    out = node.ctr.run(runtime, ASKS, mount, "--net-host", script=path).good()
    contains(out, "Everything that this container was given works.", "pingpong  ok")
    # Without the opt-in it says so, with a status of its own.
    done = node.ctr.run(runtime, mount, "--net-host", script=f"{path}; exit $?")
    equal(done.status, 3, "the status without an adapter")
    contains(done.out, "devices.rdma-ctk.io")


def podman_works_as_configured(_):
    command("rdma-ctk", "configure", "podman")
    contains(engines.podman("crun").run(ASKS, script=PINGPONG).good(), "100 iters in")


def removed_it_names_what_is_still_configured(node):
    command("rdma-ctk", "cdi", "generate")
    done = subprocess.run(["dpkg", "--remove", "rdma-ctk"], capture_output=True, text=True, timeout=120)
    equal(done.returncode, 0, "the status of dpkg")
    contains(done.stdout + done.stderr, "rdma-ctk: ", "/etc/rdma-ctk/configured.json", "--undo")
    expect(not os.path.exists("/usr/bin/rdma-ctk-runtime"), "the wrapper is still there")
    expect(not glob.glob("/run/cdi/rdma-ctk*"), "the CDI file is still there")


def installed_again_it_can_be_taken_back_and_purged(node):
    (package,) = glob.glob("/mnt/dist/*.deb")
    command("dpkg", "--install", package, timeout=120)
    command("rdma-ctk", "configure", "podman", "--undo")
    equal(state(), node.before, "the runtimes' configuration")
    done = command("dpkg", "--purge", "rdma-ctk", timeout=120)
    lacks(done, "configured.json")
    for path in ("/etc/rdma-ctk/config.toml", "/run/rdma-ctk", "/usr/share/rdma-ctk"):
        expect(not os.path.exists(path), f"{path} is still there")


CASES = [
    installed_it_starts_and_configures_nothing,
    manual_pages_units_and_hooks_are_in_it,
    the_wrapper_works_as_installed,
    the_probe_works_in_a_container_as_installed,
    podman_works_as_configured,
    removed_it_names_what_is_still_configured,
    installed_again_it_can_be_taken_back_and_purged,
]
