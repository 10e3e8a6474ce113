//! The inventory against a bare loop that opens and reads the same files.
//!
//! `cargo bench --bench inventory` prints the times, then both as one ratio for each size, from
//! alternating rounds of the same run.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divan::{Bencher, black_box};
use rdma_ctk::inventory::{self, fixture};
use rdma_ctk::roots::Roots;

/// Virtual functions of the node.
const SIZES: [usize; 5] = [1, 4, 16, 64, 256];

/// GID slots of a virtual function: what mlx5 leaves to one of many.
const SLOTS: usize = 16;

fn main() {
    divan::main();
    println!("\nsnapshot : bare loop (median of 41 alternating rounds)");
    for vfs in SIZES {
        ratio(&format!("{vfs} VFs"), &Machine::with_vfs(vfs));
    }
    ratio("8 HCAs, 256 GIDs each", &Machine::with_full_gid_tables());
}

#[divan::bench(args = SIZES)]
fn snapshot(bencher: Bencher<'_, '_>, vfs: usize) {
    let machine = Machine::with_vfs(vfs);
    bencher.bench_local(|| machine.snapshot());
}

#[divan::bench(args = SIZES)]
fn bare_loop(bencher: Bencher<'_, '_>, vfs: usize) {
    let machine = Machine::with_vfs(vfs);
    bencher.bench_local(|| machine.bare_loop());
}

#[divan::bench]
fn snapshot_of_full_gid_tables(bencher: Bencher<'_, '_>) {
    let machine = Machine::with_full_gid_tables();
    bencher.bench_local(|| machine.snapshot());
}

#[divan::bench]
fn bare_loop_over_full_gid_tables(bencher: Bencher<'_, '_>) {
    let machine = Machine::with_full_gid_tables();
    bencher.bench_local(|| machine.bare_loop());
}

/// The table of one HCA of that machine, as a pod's preparation reads it.
#[divan::bench]
fn gids_of_one_full_table(bencher: Bencher<'_, '_>) {
    let machine = Machine::with_full_gid_tables();
    bencher.bench_local(|| inventory::gids(&machine.roots, "mlx5_0"));
}

/// A machine's trees in memory, and the files that a snapshot of it reads.
struct Machine {
    /// Removed with it.
    _dir: tempfile::TempDir,
    roots: Roots,
    files: Vec<PathBuf>,
}

impl Machine {
    fn unpacked(text: &Path) -> Self {
        let dir = memory();
        fixture::unpack(text, dir.path()).expect("the fixture is in order");
        let roots = Roots::below(dir.path());
        let files = inventory::files(&roots);
        Self { _dir: dir, roots, files }
    }

    fn with_full_gid_tables() -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
        Self::unpacked(&fixtures.join("gpu-roce.tree"))
    }

    /// Eight GPUs, one physical function, and that many virtual ones with an interface each.
    fn with_vfs(vfs: usize) -> Self {
        let text = memory();
        let file = text.path().join("vfs.tree");
        fs::write(&file, vf_machine(vfs)).expect("memory is writable");
        Self::unpacked(&file)
    }

    fn snapshot(&self) -> usize {
        black_box(inventory::snapshot(&self.roots, None)).hcas.len()
    }

    fn bare_loop(&self) -> usize {
        let mut buffer = vec![0; 4096];
        let read = |path: &PathBuf| {
            File::open(path).and_then(|mut file| file.read(&mut buffer)).unwrap_or_default()
        };
        black_box(self.files.iter().map(read).sum())
    }
}

fn memory() -> tempfile::TempDir {
    let builder = tempfile::Builder::new();
    builder.tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

fn vf_machine(vfs: usize) -> String {
    let mut text = String::from(
        "[sys/devices/system]\ncpu/online = 0-127\ncpu/isolated =\nnode/online = 0-1\n\
         node/node0/cpulist = 0-63\nnode/node1/cpulist = 64-127\n\
         [sys/devices/pci0000:9a/0000:9a:01.0/0000:9b:0{0..7}.0]\nvendor = 0x10de\n\
         class = 0x030200\nnuma_node = 1\nlocal_cpulist = 64-127\n\
         /sys/bus/pci/devices/0000:9b:0{0..7}.0 -> @\n",
    );
    for number in 0..=vfs {
        let pci = format!("0000:3b:{:02x}.{:x}", number / 8, number % 8);
        let address = format!("0a{:02x}:{:02x}{:02x}", 16 + number / 250, number % 250, 1);
        let kin = match number {
            0 => format!("sriov_totalvfs = 256\nsriov_numvfs = {vfs}\ndevice = 0x101d\n"),
            _ => "physfn -> ../0000:3b:00.0\ndevice = 0x101e\n".to_owned(),
        };
        let device = if number < 32 { (231, 192 + number) } else { (511, number - 32) };
        let written = writeln!(
            text,
            "[sys/devices/pci0000:3a/0000:3a:00.0/{pci}]\nvendor = 0x15b3\nclass = 0x020000\n{kin}\
             numa_node = 0\nlocal_cpulist = 0-63\ndriver -> /sys/bus/pci/drivers/mlx5_core\n\
             /sys/bus/pci/devices/{pci} -> @\n\
             /sys/class/infiniband/mlx5_{number} -> @/infiniband/mlx5_{number}\n\
             /sys/class/infiniband_verbs/uverbs{number} -> @/infiniband_verbs/uverbs{number}\n\
             /sys/class/net/eth{number} -> @/net/eth{number}\n\
             infiniband_verbs/uverbs{number}/ibdev = mlx5_{number}\n\
             infiniband_verbs/uverbs{number}/dev = {}:{}\n\
             net/eth{number}/ifindex = {}\nnet/eth{number}/iflink = {}\n\
             net/eth{number}/flags = 0x1003\nnet/eth{number}/type = 1\n\
             net/eth{number}/dev_port = 0\nnet/eth{number}/address = 0c:42:a1:00:{:02x}:{:02x}\n\
             /dev/infiniband/uverbs{number} : 0666\n\
             [sys/devices/pci0000:3a/0000:3a:00.0/{pci}/infiniband/mlx5_{number}]\n\
             node_type = 1: CA\nnode_guid = 0c42:a103:0000:{number:04x}\nfw_ver = 22.39.1002\n\
             [sys/devices/pci0000:3a/0000:3a:00.0/{pci}/infiniband/mlx5_{number}/ports/1]\n\
             state = 4: ACTIVE\nrate = 200 Gb/sec (4X HDR)\nlid = 0x0\nlink_layer = Ethernet\n\
             pkeys/0 = 0xffff\n\
             gids/<0..1> = fe80:0000:0000:0000:0e42:a1ff:fe00:{number:04x}\n\
             gids/<2..3> = 0000:0000:0000:0000:0000:ffff:{address}\n\
             gids/<4..{}> = 0000:0000:0000:0000:0000:0000:0000:0000\n\
             gid_attrs/types/<0..2/2> = IB/RoCE v1\ngid_attrs/types/<1..3/2> = RoCE v2\n\
             gid_attrs/ndevs/<0..3> = eth{number}",
            device.0,
            device.1,
            number + 2,
            number + 2,
            number / 256,
            number % 256,
            SLOTS - 1,
        );
        written.expect("a String takes everything");
    }
    text
}

fn ratio(name: &str, machine: &Machine) {
    let timed = |work: &dyn Fn() -> usize| {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    };
    let (mut ours, mut bare): (Vec<Duration>, Vec<Duration>) =
        (0..41).map(|_| (timed(&|| machine.snapshot()), timed(&|| machine.bare_loop()))).unzip();
    ours.sort();
    bare.sort();
    let (ours, bare) = (ours[ours.len() / 2], bare[bare.len() / 2]);
    println!(
        "{name:>24}  {:>6} files  {ours:>10.1?} : {bare:>10.1?} = {:.2}",
        machine.files.len(),
        ours.as_secs_f64() / bare.as_secs_f64()
    );
}
