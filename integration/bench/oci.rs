//! The runtime wrapper against runc without it, and against a static program that only executes
//! runc: `cargo bench --bench oci`. Each kind is called in turn, so that a busy machine is busy for
//! all of them. Needs root, runc, and cgroups that runc can use.
//!
//! The wrapper is the static one that is shipped, built here; `RDMA_CTK_RUNTIME` names another. It
//! finds a node of eight RoCE adapters with 256 GIDs each: the bench runs in a mount namespace of its
//! own, in which a fixture lies over `/sys` (but for cgroups), `/dev/infiniband` and the folders of
//! rdma-ctk in `/etc` and `/run`. `RDMA_CTK_PROFILE` is a shell command to run in there instead, such as
//! `strace -fr $WRAPPER create --bundle $BUNDLE x`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use rdma_ctk::inventory::fixture;
use serde_json::{Value, json};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Containers of each kind that runc makes.
const CREATES: usize = 200;
/// Calls of each kind that end at once.
const CALLS: usize = 1000;
/// Bytes of the document.
const DOCUMENT: usize = 33_000;
/// The machine, unless `RDMA_CTK_MACHINE` names another, and what is asked of it.
const MACHINE: &str = "gpu-roce";
const ADAPTER: &str = "mlx5_0";

/// Programs that are needed beside the wrapper, in Rust without crates.
const PROGRAMS: [(&str, &str); 3] = [
    ("ends", "fn main() {}"),
    (
        "executes",
        r#"
        use std::os::unix::process::CommandExt as _;
        fn main() {
            let error = std::process::Command::new(env!("RUNTIME")).args(std::env::args_os().skip(1)).exec();
            panic!("{error}");
        }
        "#,
    ),
    (
        // A small program, since a child begins with the size of whoever starts it.
        "weighs",
        r#"
        extern "C" { fn getrusage(who: i32, usage: *mut [i64; 18]) -> i32; }
        fn main() {
            let mut words = std::env::args_os().skip(1);
            let status = std::process::Command::new(words.next().unwrap()).args(words).status().unwrap();
            assert!(status.success());
            let mut usage = [0; 18];
            // SAFETY: `struct rusage` is 18 words on 64-bit Linux; -1 is RUSAGE_CHILDREN.
            assert_eq!(unsafe { getrusage(-1, &mut usage) }, 0);
            println!("{}", usage[4]);
        }
        "#,
    ),
];

fn main() -> Fallible<()> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("inside") {
        let words: Vec<String> = arguments.collect();
        let [folder, wrapper] = &words[..] else { return Err("two words after inside".into()) };
        return inside(Path::new(folder), Path::new(wrapper));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err("the bench of the wrapper needs root: runc makes containers".into());
    }
    let folder = tempfile::tempdir()?;
    let target = target();
    let wrapper = match std::env::var_os("RDMA_CTK_RUNTIME") {
        Some(path) => path.into(),
        None => build(&target)?,
    };
    for (name, source) in PROGRAMS {
        compile(folder.path(), &target, name, source)?;
    }
    // Only what was not there before goes afterwards.
    let places = ["/dev/infiniband", "/etc/rdma-ctk", "/run/rdma-ctk"].map(Path::new);
    let made: Vec<&Path> = places.into_iter().filter(|place| !place.exists()).collect();
    for place in &made {
        fs::create_dir_all(place)?;
    }
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe()?)
        .arg("inside")
        .args([folder.path(), &wrapper])
        .status()?;
    for place in made {
        fs::remove_dir(place)?;
    }
    if status.success() { Ok(()) } else { Err(format!("inside: {status}").into()) }
}

/// The target of static programs: musl where rustc has it, which is what is shipped.
fn target() -> String {
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let print = ["--print", "target-libdir", "--target", &musl];
    let output = Command::new("rustc").args(print).output();
    let folder = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let has = folder.is_some_and(|folder| Path::new(folder.trim()).is_dir());
    if has { musl } else { format!("{}-unknown-linux-gnu", std::env::consts::ARCH) }
}

fn build(target: &str) -> Fallible<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["rustc", "--release", "--no-default-features", "--bin=rdma-ctk-runtime"];
    let status = Command::new(cargo)
        .args(words)
        .args(["--target", target, "--", "-Ctarget-feature=+crt-static"])
        // As it is shipped: see xtask.
        .arg("-Crelocation-model=static")
        .status()?;
    if !status.success() {
        return Err("the wrapper cannot be built".into());
    }
    // We are TARGET/release/deps/oci-….
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(3).ok_or("not in a target folder")?;
    Ok(folder.join(target).join("release/rdma-ctk-runtime"))
}

fn compile(folder: &Path, target: &str, name: &str, source: &str) -> Fallible<()> {
    let file = folder.join(format!("{name}.rs"));
    fs::write(&file, source)?;
    let status = Command::new("rustc")
        .args(["--edition=2021", "-O", "-Cpanic=abort", "-Cstrip=symbols", "--target", target])
        .arg("-Ctarget-feature=+crt-static")
        .arg("-o")
        .arg(folder.join(name))
        .arg(&file)
        .env("RUNTIME", folder.join("ends"))
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("{name} cannot be compiled").into()) }
}

/// What a container asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Nothing,
    OneAdapter,
    /// The same in the host's network, so that the adapter's GID table is read.
    OnTheHost,
}

impl Asks {
    const ALL: [Self; 3] = [Self::Nothing, Self::OneAdapter, Self::OnTheHost];

    /// Its document in [`Rig::documents`].
    const fn place(self) -> usize {
        self as usize
    }
}

/// The bundle, and the programs.
struct Rig {
    folder: PathBuf,
    bundle: PathBuf,
    /// Where runc keeps what it knows.
    state: PathBuf,
    wrapper: PathBuf,
    runc: PathBuf,
    /// The documents, in the order of [`Asks::ALL`].
    documents: Vec<Vec<u8>>,
}

fn inside(folder: &Path, wrapper: &Path) -> Fallible<()> {
    // As sysfs, and the bundles and state folders of engines: in memory.
    let memory = folder.join("memory");
    fs::create_dir(&memory)?;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(&memory))?;
    cover(&memory)?;
    let bundle = memory.join("bundle");
    fs::create_dir_all(bundle.join("rootfs/bin"))?;
    fs::copy(folder.join("ends"), bundle.join("rootfs/bin/ends"))?;
    let runc = ["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc"];
    let runc = runc.map(Path::new).into_iter().find(|path| path.exists());
    let runc = runc.ok_or("there is no runc")?.to_owned();
    run(Command::new(&runc).arg("spec").current_dir(&bundle))?;
    let spec = fs::read(bundle.join("config.json"))?;
    let documents = Asks::ALL.into_iter().map(|asks| document(&spec, asks));
    let documents = documents.collect::<Fallible<Vec<_>>>()?;
    let (folder, wrapper, state) = (folder.to_owned(), wrapper.to_owned(), memory.join("state"));
    let rig = Rig { folder, bundle, state, wrapper, runc, documents };

    if let Some(command) = std::env::var_os("RDMA_CTK_PROFILE") {
        return rig.profile(&command);
    }
    let wrapper = fs::metadata(&rig.wrapper)?.len();
    println!("wrapper of {wrapper} bytes; documents of {} bytes", rig.documents[0].len());
    println!("| what | median | p90 | ratio | bound |\n|---|---|---|---|---|");
    rig.policy(&rig.runc)?;
    rig.creates()?;
    rig.policy(&rig.folder.join("ends"))?;
    rig.calls()?;
    rig.memory()
}

/// Lays the machine over this one.
fn cover(folder: &Path) -> Fallible<()> {
    let name = std::env::var("RDMA_CTK_MACHINE").unwrap_or_else(|_| MACHINE.to_owned());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
    let tree = fixtures.join(format!("{name}.tree"));
    let machine = folder.join("machine");
    fixture::unpack(&tree, &machine)?;
    let (real, sys) = (folder.join("sys"), machine.join("sys"));
    fs::create_dir_all(&real)?;
    fs::create_dir_all(sys.join("fs/cgroup"))?;
    run(Command::new("mount").arg("--rbind").args([Path::new("/sys"), &real]))?;
    let cgroups = [real.join("fs/cgroup"), sys.join("fs/cgroup")];
    run(Command::new("mount").arg("--rbind").args(cgroups))?;
    run(Command::new("mount").arg("--rbind").args([&sys, Path::new("/sys")]))?;
    for place in ["/dev/infiniband", "/etc/rdma-ctk", "/run/rdma-ctk"] {
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs", place]))?;
    }
    for class in ["infiniband_verbs", "misc"] {
        for entry in fs::read_dir(Path::new("/sys/class").join(class))? {
            let entry = entry?;
            // Not every name there is a device.
            let Ok(numbers) = fs::read_to_string(entry.path().join("dev")) else { continue };
            let (major, minor) = numbers.trim().split_once(':').ok_or("no device number")?;
            let number = makedev(major.parse()?, minor.parse()?);
            let node = Path::new("/dev/infiniband").join(entry.file_name());
            let mode = Mode::from_bits_truncate(0o666);
            mknod(&node, SFlag::S_IFCHR, mode, number)?;
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Fallible<()> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// runc's own document, filled up with the variables and annotations of a large pod.
fn document(spec: &[u8], asks: Asks) -> Fallible<Vec<u8>> {
    let mut document: Value = serde_json::from_slice(spec)?;
    document["process"]["terminal"] = json!(false);
    document["process"]["args"] = json!(["/bin/ends"]);
    let mut annotations = serde_json::Map::new();
    annotations.insert("io.kubernetes.cri.container-type".into(), json!("container"));
    if asks == Asks::OnTheHost {
        let namespaces = document["linux"]["namespaces"].as_array_mut();
        namespaces.ok_or("runc's document has no namespaces")?.retain(|ns| ns["type"] != "network");
    }
    if asks != Asks::Nothing {
        annotations.insert("devices.rdma-ctk.io".into(), json!(ADAPTER));
        // This machine has not the CPUs of the fixture.
        annotations.insert("numa.rdma-ctk.io".into(), json!("off"));
    }
    let mut variables = document["process"]["env"].as_array().cloned().unwrap_or_default();
    for number in 0.. {
        let length = serde_json::to_vec(&document)?.len();
        if length >= DOCUMENT {
            break;
        }
        variables.push(json!(format!("SERVICE_{number}_PORT_8443_TCP_ADDR=10.96.{number}.17")));
        annotations.insert(
            format!("team-{number}.example.org/checksum"),
            json!("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        );
        // In the order in which writers in Go have them.
        annotations.sort_keys();
        document["process"]["env"] = json!(variables);
        document["annotations"] = json!(annotations);
    }
    Ok(serde_json::to_vec(&document)?)
}

impl Rig {
    /// A policy that names the runtime and gives no more memory than this process may.
    fn policy(&self, runtime: &Path) -> Fallible<()> {
        let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
        let mut text = String::new();
        if hard != u64::MAX {
            text.push_str(&format!("[default]\nmemlock_max = \"{hard}\"\n"));
        }
        text.push_str(&format!("[wrapper]\nruntime = {runtime:?}\n"));
        fs::write("/etc/rdma-ctk/config.toml", text)?;
        Ok(())
    }

    /// Puts the document in place and calls a program with it; how long it took.
    fn call(&self, program: &Path, asks: Asks) -> Fallible<Duration> {
        let config = self.bundle.join("config.json");
        fs::write(&config, &self.documents[asks.place()])?;
        let mut command = Command::new(program);
        command.arg("--root").arg(&self.state).args(["create", "--bundle"]);
        command.arg(&self.bundle).arg("bench");
        // Who waits for a pipe's end would wait for the container.
        let errors = fs::File::create(self.folder.join("errors"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let started = Instant::now();
        let status = command.status()?;
        let took = started.elapsed();
        if !status.success() {
            let errors = fs::read_to_string(self.folder.join("errors"))?;
            return Err(format!("{}: {status}: {errors}", program.display()).into());
        }
        let document = fs::read_to_string(config)?;
        let edited = document.contains("/dev/infiniband/uverbs");
        let wants = asks != Asks::Nothing && program == self.wrapper;
        if edited != wants {
            return Err(format!("{}: the document is edited: {edited}", program.display()).into());
        }
        Ok(took)
    }

    fn in_turn(
        &self,
        kinds: &[(&str, &Path, Asks, Option<f64>)],
        rounds: usize,
        after: impl Fn() -> Fallible<()>,
    ) -> Fallible<()> {
        let mut times = vec![Vec::with_capacity(rounds); kinds.len()];
        for round in 0..rounds + rounds / 10 {
            for ((_, program, asks, _), times) in kinds.iter().zip(&mut times) {
                let took = self.call(program, *asks)?;
                after()?;
                if round >= rounds / 10 {
                    times.push(took);
                }
            }
        }
        let mut first = None;
        for ((name, _, _, bound), times) in kinds.iter().zip(&mut times) {
            times.sort_unstable();
            let median = times[times.len() / 2].as_secs_f64();
            let ratio = median / *first.get_or_insert(median);
            let bound = bound.map_or(String::new(), |bound| bound.to_string());
            println!(
                "| {name} | {:.0} us | {:.0} us | {ratio:.2} | {bound} |",
                median * 1e6,
                times[times.len() * 9 / 10].as_secs_f64() * 1e6
            );
        }
        Ok(())
    }

    /// `runc create`.
    fn creates(&self) -> Fallible<()> {
        self.in_turn(
            &[
                ("`create`, runc", &self.runc, Asks::Nothing, None),
                ("wrapper, did not ask", &self.wrapper, Asks::Nothing, Some(1.08)),
                ("wrapper, one adapter", &self.wrapper, Asks::OneAdapter, Some(1.15)),
                ("the same on the host's network", &self.wrapper, Asks::OnTheHost, None),
            ],
            CREATES,
            || self.delete(),
        )
    }

    /// `runc delete`. The container's group is busy for a moment after its last process.
    fn delete(&self) -> Fallible<()> {
        let mut last = String::new();
        for _ in 0..100 {
            let mut delete = Command::new(&self.runc);
            delete.arg("--root").arg(&self.state).args(["delete", "--force", "bench"]);
            let done = delete.stdin(Stdio::null()).output()?;
            if done.status.success() {
                return Ok(());
            }
            last = String::from_utf8_lossy(&done.stderr).into_owned();
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("runc delete: {last}").into())
    }

    /// The wrapper alone: the runtime ends at once.
    fn calls(&self) -> Fallible<()> {
        let executes = self.folder.join("executes");
        self.in_turn(
            &[
                ("a program that only executes one that ends", &executes, Asks::Nothing, None),
                ("wrapper, did not ask", &self.wrapper, Asks::Nothing, Some(1.5)),
                ("wrapper, one adapter", &self.wrapper, Asks::OneAdapter, Some(3.0)),
                ("the same on the host's network", &self.wrapper, Asks::OnTheHost, None),
            ],
            CALLS,
            || Ok(()),
        )
    }

    /// Runs a shell command in place of the measurements, before which the document asks.
    fn profile(&self, command: &std::ffi::OsStr) -> Fallible<()> {
        self.policy(&self.folder.join("ends"))?;
        fs::write(self.bundle.join("config.json"), &self.documents[1])?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).env("WRAPPER", &self.wrapper).env("BUNDLE", &self.bundle);
        run(shell.current_dir(&self.folder))
    }

    fn memory(&self) -> Fallible<()> {
        let executes = self.folder.join("executes");
        for (name, program, asks) in [
            ("a program that only executes", &executes, Asks::Nothing),
            ("wrapper, did not ask", &self.wrapper, Asks::Nothing),
            ("wrapper, one adapter", &self.wrapper, Asks::OneAdapter),
            ("the same on the host's network", &self.wrapper, Asks::OnTheHost),
        ] {
            fs::write(self.bundle.join("config.json"), &self.documents[asks.place()])?;
            let output = Command::new(self.folder.join("weighs"))
                .arg(program)
                .arg("--root")
                .arg(&self.state)
                .args(["create", "--bundle"])
                .arg(&self.bundle)
                .arg("bench")
                .stderr(Stdio::inherit())
                .output()?;
            let kib = String::from_utf8(output.stdout)?;
            println!("| {name}, peak resident | {} KiB | | | 4096 KiB |", kib.trim());
        }
        Ok(())
    }
}
