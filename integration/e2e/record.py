"""Record what each engine hands to its runtime, for integration/fixtures/bundles: see its README.

    integration/vm run --share e2e=integration/e2e --share nerdctl=$(integration/go-tools nerdctl 2.3.5) \\
        --out integration/fixtures/bundles --memory 3072 -- python3 /mnt/e2e/record.py
"""
import os
import shutil
import sys

import engines
import harness
from harness import Node, Pod, command, write

BIN = "/run/record/bin"
REAL = {"runc": "/opt/next/bin/runc", "crun": "/usr/bin/crun"}
RUNTIME = """
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["*.rdma-ctk.io", "*.rdma-ctk.io/*"]
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = "/run/record/bin/runc"
"""


def prepare():
    os.makedirs(BIN)
    for name in ("runc", "crun", "keep-createRuntime", "keep-poststop", "keep-precreate"):
        shutil.copy("/mnt/e2e/keep", f"{BIN}/{name}")
    for name, path in REAL.items():
        write(f"/run/record/{name}", path)


def record(name, real=None):
    """From now on, keep under this name."""
    now = "/run/record/now"
    if os.path.islink(now):
        os.unlink(now)
    os.makedirs(f"/run/record/{name}")
    os.chmod(f"/run/record/{name}", 0o777)
    os.symlink(f"/run/record/{name}", now)
    if real:
        write("/run/record/runc", real)
    print(f"recording {name}", flush=True)


def of_engine(engine, *options):
    with engine.start(engines.ASKS, *options) as container:
        container.sh("echo in an exec session")


def main():
    only = sys.argv[1:]
    prepare()
    node = Node()

    def wanted(name):
        return not only or name in only
    if wanted("cri"):
        node.containerd_up(RUNTIME)
        record("cri")
        pod = Pod("recorded", {"devices": "all", "memlock/container.main": "unlimited"},
                  host_network=False)
        container = pod.run("main", user=1000, env={"A": "B"})
        container.sh("echo in an exec session")
        harness.cri.call("StopPodSandbox", harness.cri.data(1, pod.id))
        harness.cri.call("RemovePodSandbox", harness.cri.data(1, pod.id))
    elif wanted("ctr") or wanted("nerdctl"):
        node.containerd_up()
    if wanted("ctr"):
        record("ctr")
        of_engine(engines.ctr(), f"--runc-binary={BIN}/runc")
    if wanted("nerdctl"):
        record("nerdctl")
        of_engine(engines.nerdctl("bridge"), f"--runtime={BIN}/runc")
    for runtime in ("runc", "crun"):
        if not wanted(f"podman-{runtime}"):
            continue
        record(f"podman-{runtime}", "/usr/bin/runc")
        hooks = "/run/record/hooks.d"
        write(f"{hooks}/keep.json", '{"version": "1.0.0", "when": {"always": true}, "stages": '
              f'["precreate"], "hook": {{"path": "{BIN}/keep-precreate"}}}}')
        engine = engines.podman(f"{BIN}/{runtime}", "bridge")
        engine.words.append(f"--hooks-dir={hooks}")
        of_engine(engine)
    if wanted("podman-rootless"):
        record("podman-rootless")
        engine = engines.rootless(f"{BIN}/crun")
        of_engine(engine)
    if wanted("docker"):
        record("docker", "/usr/bin/runc")
        daemon = engines.docker_up({"runtimes": {"kept": {"path": f"{BIN}/runc"}}})
        of_engine(engines.docker("bridge"), "--runtime=kept")
        engines.docker_down(daemon)
    missing = []
    for name in sorted(os.listdir("/run/record")):
        folder = f"/run/record/{name}"
        if os.path.islink(folder) or not os.path.isdir(folder) or name in ("bin", "hooks.d"):
            continue
        for file in sorted(os.listdir(folder)):
            shutil.copyfile(f"{folder}/{file}", f"/mnt/out/{name}.{file}")
            print(f"{name}.{file}")
        for file in ("config.json", "process.json", "createRuntime.json", "poststop.json"):
            if not os.path.exists(f"{folder}/{file}"):
                missing.append(f"{name}.{file}")
    command("sync")
    if missing:
        sys.exit(f"record: not made: {', '.join(missing)}")


main()
