"""The guest's image: the Debian userland, two kernels, an initrd, two small container images.

Made once by `vm build` with mmdebstrap and kept in the cache, under a hash of what goes in.
"""
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

# --------------------------------------------------------------------------------------
# What goes into the image.  Changing anything in this block changes the cache key.
# --------------------------------------------------------------------------------------
RECIPE = 9                       # bump when the build steps below change their result
SUITE = "trixie"                 # userland and the "stable" kernel
NEXT_SUITE = "forky"             # a newer containerd and runc, and the "next" kernel
IMAGE_SLACK_MIB = 1536           # free space inside the image (it is a sparse file)

PACKAGES = """
    busybox-static kmod procps iproute2 iputils-ping ethtool util-linux
    rdma-core ibverbs-utils ibverbs-providers rdmacm-utils perftest numactl
    containerd runc crun podman docker.io docker-cli containernetworking-plugins nftables iptables
    uidmap fuse-overlayfs slirp4netns passt
    umoci python3-minimal python3-grpcio strace jq bpftool ca-certificates
""".split()

NEXT_PACKAGES = ["containerd", "runc"]

# Programs of the container image localhost/test:1, next to busybox.
IMAGE_PROGRAMS = """
    ibv_devices ibv_devinfo ibv_rc_pingpong rping ib_write_bw ib_send_lat numactl strace
""".split()

# Modules kept in the image, with everything they depend on.  All are stored uncompressed:
# unpacking xz under emulation would dominate the boot time.
MODULES = """
    virtio_blk virtio_net virtio_rng ext4 9p 9pnet_virtio overlay fuse loop
    rdma_rxe siw ib_uverbs ib_umad ib_core ib_cm iw_cm rdma_cm rdma_ucm
    smc smc_diag tcp_diag udp_diag inet_diag unix_diag netlink_diag af_packet_diag
    rds rds_rdma rds_tcp
    macvlan macvtap ipvlan ipvtap veth dummy bridge br_netfilter bonding ifb vxlan
    8021q tun team netdevsim vrf vcan sch_fq sch_fq_codel sch_netem sch_ingress cls_bpf
    act_mirred nf_tables nft_chain_nat nft_masq nft_nat nft_ct nft_compat nft_reject_inet
    nft_fib_inet nft_fib_ipv4 nft_fib_ipv6 nft_limit nft_log nft_numgen nft_hash
    xt_MASQUERADE xt_comment xt_conntrack xt_addrtype xt_mark xt_nat xt_tcpudp
    xt_multiport xt_CHECKSUM xt_LOG ip_tables iptable_nat iptable_filter iptable_mangle
    ip6_tables ip6table_nat ip6table_filter nf_conntrack nf_nat
    vhost_net vsock vmw_vsock_virtio_transport qemu_fw_cfg configfs
    raid6_pq crc32_generic crc32c_generic libcrc32c crc16 crc32c-intel crc32_pclmul
    sha256_generic sha256_ssse3 algif_hash autofs4 efi_pstore
""".split()

# Loaded by the initrd, before the root file system can be mounted.
EARLY_MODULES = ["crc32c_generic", "virtio_blk", "ext4"]


def cache_root() -> Path:
    base = os.environ.get("CTK_VM_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ctk-vm"


def die(msg: str, code: int = 125):
    print(f"vm: {msg}", file=sys.stderr)
    sys.exit(code)


def say(msg: str):
    print(f"vm: {msg}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------
# build
# --------------------------------------------------------------------------------------
def cache_key() -> str:
    parts = [RECIPE, SUITE, NEXT_SUITE, IMAGE_SLACK_MIB, PACKAGES, NEXT_PACKAGES, MODULES,
             EARLY_MODULES, IMAGE_PROGRAMS]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def mirror() -> str:
    """The Debian mirror: $CTK_VM_MIRROR, or the first one this system's apt is set up with."""
    env = os.environ.get("CTK_VM_MIRROR")
    if env:
        return env.rstrip("/")
    out = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
         "Origin: Debian"], capture_output=True, text=True).stdout.split()
    for uri in out:
        if "security" not in uri:
            return uri.rstrip("/")
    die("no Debian mirror found in the apt configuration; run apt-get update, or set "
        "CTK_VM_MIRROR")


def need_tools():
    wanted = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "dpkg-deb": "dpkg",
              "depmod": "kmod", "apt-get": "apt", "zstd": "zstd"}
    missing = sorted({pkg for tool, pkg in wanted.items() if not shutil.which(tool)})
    if missing:
        die("build needs these Debian packages: " + " ".join(missing))


class PrivateApt:
    """An apt with its own sources and state, so the system's own is left as it is."""

    def __init__(self, top: Path, uri: str):
        self.top = top
        for d in ("lists/partial", "cache/archives/partial", "etc"):
            (top / d).mkdir(parents=True, exist_ok=True)
        (top / "status").write_text("")
        (top / "sources.list").write_text(
            "".join(f"deb {uri} {s} main\n" for s in (SUITE, NEXT_SUITE)))
        self.opts = []
        for k, v in {
            "Dir::Etc::sourcelist": top / "sources.list", "Dir::Etc::sourceparts": top / "etc",
            "Dir::Etc::preferencesparts": top / "etc", "Dir::State::Lists": top / "lists",
            "Dir::Cache": top / "cache", "Dir::State::status": top / "status",
            "APT::Sandbox::User": "root", "APT::Update::Error-Mode": "any", "Acquire::Languages": "none",
            "Acquire::Retries": "3", "APT::Default-Release": SUITE,
        }.items():
            self.opts += ["-o", f"{k}={v}"]

    def update(self):
        subprocess.run(["apt-get", *self.opts, "-q", "update"], check=True, stdout=sys.stderr)

    def download(self, into: Path, *pkgs: str):
        into.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", *self.opts, "-q", "download", *pkgs], check=True, cwd=into,
                       stdout=sys.stderr)
        return sorted(into.glob("*.deb"))

    def depends(self, pkg: str, pattern: str):
        out = subprocess.run(["apt-cache", *self.opts, "depends", pkg], capture_output=True,
                             text=True, check=True).stdout
        return re.findall(rf"Depends: ({pattern})", out)

    def kernel_packages(self, suite: str):
        """The version that linux-image-amd64 stands for, and the packages that make it up."""
        names = self.depends(f"linux-image-amd64/{suite}", r"linux-image-\d\S+")
        if not names:
            die(f"cannot tell the kernel package of {suite}")
        version = names[0].removeprefix("linux-image-")
        parts = self.depends(f"{names[0]}/{suite}",
                             rf"linux-(?:base|binary|modules)-{re.escape(version)}")
        return version, names + sorted(set(parts))


def unpack_vmlinux(bzimage: Path, out: Path):
    """Take the ELF kernel out of a bzImage, so that the guest need not decompress it."""
    data = bzimage.read_bytes()
    setup_sects = data[0x1F1] or 4
    off, length = struct.unpack_from("<II", data, 0x248)
    payload = data[(setup_sects + 1) * 512 + off:][:length]
    if payload[:6] == b"\xfd7zXZ\0":
        elf = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(payload)
    elif payload[:2] == b"\x1f\x8b":
        elf = gzip.GzipFile(fileobj=io.BytesIO(payload)).read()
    elif payload[:4] == b"\x28\xb5\x2f\xfd":
        elf = subprocess.run(["zstd", "-dc"], input=payload[:-4], capture_output=True).stdout
    else:
        die("unknown kernel compression: " + payload[:6].hex())
    if elf[:4] != b"\x7fELF":
        die("the kernel payload is no ELF file")
    out.write_bytes(elf)


def copy_modules(src: Path, dst: Path, version: str) -> list:
    """Copy MODULES and their dependencies, uncompressed; returns the early ones in load order."""
    base = src / version
    files, deps = {}, {}
    subprocess.run(["depmod", "-b", str(src.parent.parent), version], check=False,
                   stderr=subprocess.DEVNULL)
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        name = Path(path).name.split(".ko")[0].replace("-", "_")
        files[name] = path
        deps[name] = [Path(p).name.split(".ko")[0].replace("-", "_") for p in rest.split()]
    builtin = {Path(p).stem.replace("-", "_")
               for p in (base / "modules.builtin").read_text().split()}
    soft = {}                                    # "softdep X pre: a b" hints
    softfile = base / "modules.softdep"
    if softfile.exists():
        for line in softfile.read_text().splitlines():
            m = re.match(r"softdep (\S+) (?:pre|post): (.*)", line)
            if m:
                soft.setdefault(m[1].replace("-", "_"), []).extend(
                    m[2].replace("-", "_").split())
    keep, todo = set(), [m.replace("-", "_") for m in MODULES]
    while todo:
        m = todo.pop()
        if m in keep or m in builtin:
            continue
        if m not in files:
            continue                             # not in this kernel: nothing to copy
        keep.add(m)
        todo += deps[m] + soft.get(m, [])
    for m in sorted(keep):
        rel = files[m]
        raw = (base / rel).read_bytes()
        if rel.endswith(".xz"):
            raw, rel = lzma.decompress(raw), rel[:-3]
        to = dst / version / rel
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(raw)
    for extra in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        if (base / extra).exists():
            shutil.copy(base / extra, dst / version / extra)
    order = []

    def visit(m):
        for d in reversed(deps.get(m, [])):
            if d not in order:
                visit(d)
        if m not in order:
            order.append(m)
    for m in EARLY_MODULES:
        if m in files and m not in builtin:
            for s in soft.get(m, []):
                if s in files and s not in builtin:
                    visit(s)
            visit(m)
    return [re.sub(r"\.xz$", "", files[m]) for m in order]


def add_bytes(tar, name, raw: bytes, mode=0o644):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(raw), mode
    tar.addfile(info, io.BytesIO(raw))


def image_layer(root: Path, programs) -> bytes:
    """A tar with busybox, and the given programs of the root with the libraries they load."""
    libdir = root / "usr/lib/x86_64-linux-gnu"
    files = {"bin/busybox": root / "usr/bin/busybox"}
    found = [next(p for d in ("usr/bin", "usr/sbin") if (p := root / d / n).exists())
             for n in programs]
    plugins = sorted((libdir / "libibverbs").glob("librxe-*.so")) if programs else []
    for f in found + plugins:
        files[str(f.relative_to(root))] = f
        listing = subprocess.run(
            [str(libdir / "ld-linux-x86-64.so.2"), "--inhibit-cache", "--library-path",
             str(libdir), "--list", str(f)], capture_output=True, text=True, check=True).stdout
        for so in re.findall(rf"({re.escape(str(libdir))}/\S+)", listing):
            files[str(Path(so).relative_to(root))] = Path(so)
    if programs:
        files["lib64/ld-linux-x86-64.so.2"] = libdir / "ld-linux-x86-64.so.2"
        for conf in (root / "etc/libibverbs.d").glob("rxe.driver"):
            files["etc/libibverbs.d/rxe.driver"] = conf
    buf = io.BytesIO()
    with tarfile.open(fileobj=buf, mode="w") as tar:
        for d, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("proc", 0o755),
                        ("sys", 0o755), ("dev", 0o755), ("root", 0o700)):
            info = tarfile.TarInfo(d)
            info.type, info.mode = tarfile.DIRTYPE, mode
            tar.addfile(info)
        for name, src in sorted(files.items()):
            add_bytes(tar, name, src.read_bytes(), 0o755)
        add_bytes(tar, "etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
        add_bytes(tar, "etc/group", b"root:x:0:\nuser:x:1000:\n")
        applets = subprocess.run([str(root / "usr/bin/busybox"), "--list"], check=True,
                                 capture_output=True, text=True).stdout.split()
        for a in applets:
            if a != "busybox":
                info = tarfile.TarInfo(f"bin/{a}")
                info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(info)
    return buf.getvalue()


def oci_archive(out: Path, images):
    """Write one-layer OCI images, given as (name, layer, command), to one archive, as "ctr images
    import" and, by the list beside the index, "docker load" take it."""
    blobs, manifests, listed = {}, [], []

    def blob(raw, media):
        digest = hashlib.sha256(raw).hexdigest()
        blobs[digest] = raw
        return {"mediaType": media, "digest": "sha256:" + digest, "size": len(raw)}

    def path(blob):
        return "blobs/" + blob["digest"].replace(":", "/")
    kind = "application/vnd.oci.image."
    for name, layer, cmd in images:
        lay = blob(layer, kind + "layer.v1.tar")
        conf = blob(json.dumps({
            "architecture": "amd64", "os": "linux",
            "config": {"Cmd": cmd, "Env": ["PATH=/usr/bin:/usr/sbin:/bin:/sbin"]},
            "rootfs": {"type": "layers", "diff_ids": [lay["digest"]]}}).encode(),
            kind + "config.v1+json")
        man = blob(json.dumps({
            "schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
            "config": conf, "layers": [lay]}).encode(), kind + "manifest.v1+json")
        man["annotations"] = {"io.containerd.image.name": name,
                              "org.opencontainers.image.ref.name": name}
        manifests.append(man)
        listed.append({"RepoTags": [name], "Config": path(conf), "Layers": [path(lay)]})
    with tarfile.open(out, "w") as tar:
        add_bytes(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add_bytes(tar, "index.json",
                  json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
        add_bytes(tar, "manifest.json", json.dumps(listed).encode())
        for digest, raw in blobs.items():
            add_bytes(tar, "blobs/sha256/" + digest, raw)


class Cpio:
    """A newc cpio archive, just enough for an initramfs.  Archives may be concatenated."""

    def __init__(self):
        self.buf, self.ino, self.dirs = bytearray(), 1, set()

    def _entry(self, name, mode, data=b"", nlink=1):
        n = name.encode() + b"\0"
        fields = (self.ino, mode, 0, 0, nlink, 0, len(data), 0, 0, 0, 0, len(n), 0)
        self.ino += 1
        self.buf += b"070701" + b"".join(b"%08X" % f for f in fields) + n
        self.buf += b"\0" * (-len(self.buf) % 4) + data
        self.buf += b"\0" * (-len(self.buf) % 4)

    def mkdir(self, name):
        name = name.strip("/")
        if name in self.dirs or not name:
            return
        self.mkdir(os.path.dirname(name))
        self.dirs.add(name)
        self._entry(name, stat.S_IFDIR | 0o755, nlink=2)

    def add(self, name, data: bytes, mode=0o644):
        name = name.strip("/")
        self.mkdir(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | mode, data)

    def done(self) -> bytes:
        self._entry("TRAILER!!!", 0)
        self.buf += b"\0" * (-len(self.buf) % 512)
        return bytes(self.buf)


def add_kernel(apt: PrivateApt, which: str, suite: str, work: Path, root: Path) -> str:
    """Put a kernel's modules into the root, and its vmlinux-WHICH and cpio-WHICH into work."""
    version, packages = apt.kernel_packages(suite)
    top = work / which
    for deb in apt.download(work / f"deb-{which}", *(f"{p}/{suite}" for p in packages)):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(top)], check=True)
    if not (top / "usr/lib").exists():           # where depmod looks, whatever the package says
        (top / "usr").mkdir(exist_ok=True)
        os.rename(top / "lib", top / "usr/lib")
    if not (top / "lib").exists():
        os.symlink("usr/lib", top / "lib")
    modules = top / "lib/modules"
    image = next(p for p in (top / f"boot/vmlinuz-{version}", modules / version / "vmlinuz")
                 if p.exists())
    unpack_vmlinux(image, work / f"vmlinux-{which}")
    target = root / "usr/lib/modules"
    early = copy_modules(modules, target, version)
    subprocess.run(["depmod", "-b", str(root), version], check=True)
    config = next(p for p in (top / f"boot/config-{version}", modules / version / "config")
                  if p.exists())
    shutil.copy(config, root / f"boot/config-{version}")
    # The initrd: busybox and the few modules that reaching the root needs.
    cp = Cpio()
    for d in ("dev", "proc", "sys", "newroot"):
        cp.mkdir(d)
    cp.add("bin/busybox", (root / "usr/bin/busybox").read_bytes(), 0o755)
    for rel in early:
        cp.add("mod/" + Path(rel).name, (target / version / rel).read_bytes())
    cp.add("mod/order", "".join(Path(rel).name + "\n" for rel in early).encode())
    (work / f"cpio-{which}").write_bytes(cp.done())
    return f"kernel {which}: {version}\n"


def build(force=False) -> Path:
    """The folder of the image; made if it is not there, or in any case with force."""
    out = cache_root() / cache_key()
    if (out / "complete").exists() and not force:
        return out
    need_tools()
    t0 = time.monotonic()
    cache_root().mkdir(parents=True, exist_ok=True)
    lock = open(cache_root() / "lock", "w")      # of two builds at once, one does the work
    fcntl.flock(lock, fcntl.LOCK_EX)
    if (out / "complete").exists() and not force:
        return out
    for stale in [*cache_root().glob("build.*"), *cache_root().glob("new.*")]:
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="build.", dir=cache_root()))
    try:
        uri = mirror()
        apt = PrivateApt(work / "apt", uri)
        apt.update()
        # 1. userland
        root = work / "root"
        say(f"bootstrapping {SUITE} ({len(PACKAGES)} packages and what they need)")
        log = open(work / "mmdebstrap.log", "w+")
        excl = [f"--dpkgopt=path-exclude=/usr/share/{d}/*"
                for d in ("man", "doc", "info", "locale", "lintian", "bash-completion")]
        rc = subprocess.run(
            ["mmdebstrap", "--variant=minbase", "--include=" + ",".join(PACKAGES), *excl,
             "--aptopt=Acquire::Languages \"none\"", SUITE, str(root), f"deb {uri} {SUITE} main"],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
        if rc:
            log.seek(0)
            sys.stderr.write("".join(log.readlines()[-40:]))
            die(f"mmdebstrap failed with {rc}")
        say(f"userland done after {time.monotonic() - t0:.0f}s")
        # 2. two kernels with modules, unpacked rather than installed: no initramfs-tools run
        kernels = ""
        for which, suite in (("stable", SUITE), ("next", NEXT_SUITE)):
            kernels += add_kernel(apt, which, suite, work, root)
        # 3. the newer containerd and runc
        for d in apt.download(work / "next", *(f"{p}/{NEXT_SUITE}" for p in NEXT_PACKAGES)):
            subprocess.run(["dpkg-deb", "-x", str(d), str(work / "nextx")], check=True)
        nextbin = root / "opt/next/bin"
        nextbin.mkdir(parents=True)
        for name in ("containerd", "containerd-shim-runc-v2", "ctr", "runc"):
            hit = [p for d in ("usr/bin", "usr/sbin") for p in [work / "nextx" / d / name]
                   if p.exists()]
            shutil.copy2(hit[0], nextbin / name)
        # 4. small repairs a package manager would otherwise leave to systemd or an admin
        (root / "etc/hostname").write_text("guest\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        (root / "etc/machine-id").write_text("c0ffee00c0ffee00c0ffee00c0ffee00\n")
        for d in ("mnt/share", "mnt/out", "var/lib/containerd", "var/lib/containers"):
            (root / d).mkdir(parents=True, exist_ok=True)
        pause = ("localhost/pause:1", image_layer(root, []), ["/bin/sleep", "infinity"])
        test = ("localhost/test:1", image_layer(root, IMAGE_PROGRAMS), ["/bin/sh"])
        (root / "opt/images").mkdir()
        oci_archive(root / "opt/images/all.tar", [pause, test])
        oci_archive(root / "opt/images/test.tar", [test])      # podman load wants a single one
        manifest = subprocess.run(
            ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f",
             "${Package} ${Version}\n"], capture_output=True, text=True, check=True).stdout
        manifest += kernels
        for d in sorted((work / "next").glob("*.deb")):
            manifest += f"/opt/next {d.name}\n"
        (work / "manifest.txt").write_text(manifest)
        # 5. the root image: plain ext4, no journal; runs mount it through a throw-away overlay
        used = int(subprocess.run(["du", "-sm", str(root)], capture_output=True,
                                  text=True).stdout.split()[0])
        img = work / "root.ext4"
        subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum", "-m", "0",
             "-E", "lazy_itable_init=1,nodiscard", "-L", "ctkroot", "-d", str(root), str(img),
             f"{used + IMAGE_SLACK_MIB}M"], check=True)
        # 6. publish
        final = Path(tempfile.mkdtemp(prefix="new.", dir=cache_root()))
        for f in ("root.ext4", "manifest.txt", *(f"{k}-{w}" for k in ("vmlinux", "cpio")
                                                 for w in ("stable", "next"))):
            os.rename(work / f, final / f)
        final.chmod(0o755)
        (final / "complete").write_text(f"{time.monotonic() - t0:.1f}\n")
        shutil.rmtree(out, ignore_errors=True)
        os.rename(final, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sz = (out / "root.ext4").stat().st_blocks * 512 >> 20
    say(f"built in {time.monotonic() - t0:.0f}s: root image {sz} MiB on disk in {out}")
    return out
