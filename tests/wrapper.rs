//! The program `rdma-ctk-runtime` itself, with a runtime below it that writes down how it was
//! called, and what the program is built from.

#![cfg(test)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder with a runtime called `runc`.
struct Rig(tempfile::TempDir);

/// Writes down arguments, environment, folder, what is open and what comes by standard input.
const RUNTIME: &str = "#!/bin/sh
{
printf 'name %s\\n' \"$0\"
for argument; do printf 'argument <%s>\\n' \"$argument\"; done
printf 'folder %s\\n' \"$PWD\"
printf 'variable <%s>\\n' \"$WRAPPER_TEST\"
printf 'variables %s\\n' \"$(env | wc -l)\"
ls /proc/self/fd | tr '\\n' ' '
printf '\\nsignals %s\\n' \"$(grep SigIgn /proc/self/status | tr -d '[:space:]')\"
printf 'input <%s>\\n' \"$(cat)\"
} > \"${0%/*}/told\"
exit 7
";

impl Rig {
    fn new() -> Self {
        let rig = Self(tempfile::tempdir().unwrap());
        let runc = rig.path("runc");
        fs::write(&runc, RUNTIME).unwrap();
        fs::set_permissions(&runc, fs::Permissions::from_mode(0o755)).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn call(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()))
            .env("WRAPPER_TEST", "a b\nc")
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn told(&self) -> String {
        fs::read_to_string(self.path("told")).unwrap()
    }
}

const WRAPPER: &str = env!("CARGO_BIN_EXE_rdma-ctk-runtime");

#[test]
fn everything_else_goes_to_the_real_runtime_untouched() {
    let rig = Rig::new();
    for arguments in [
        &["--version"][..],
        &["features"],
        &["--root", "/r", "state", "create"],
        &["--log", "create", "--log-format=json", "kill", "--all", "run", "9"],
        &["update", "--resources=-", "exec"],
        &["delete", "--force", "a b", "", "é"],
        &["exec", "c1", "sh", "-c", "exit 3"],
    ] {
        let direct = rig.call(rig.path("runc").to_str().unwrap(), arguments, "{\"x\":1}");
        let expected = rig.told();
        let wrapped = rig.call(WRAPPER, arguments, "{\"x\":1}");
        assert_eq!(rig.told(), expected, "{arguments:?}");
        assert_eq!(wrapped.status.code(), Some(7));
        assert_eq!(wrapped, direct);
    }
}

/// A runtime that is a script around the wrapper: it ends, and says by way of what.
#[test]
fn a_script_that_leads_back_is_no_endless_circle() {
    let rig = Rig::new();
    let script = |text: String| {
        fs::write(rig.path("runc"), text).unwrap();
    };
    for way in ["exec ", ""] {
        script(format!("#!/bin/sh\n# rdma-ctk\n{way}'{WRAPPER}' \"$@\"\n"));
        let output = rig.call(WRAPPER, &["delete", "x"], "");
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("rdma-ctk: ") && error.contains("leads back to"), "{error}");
    }
    // By two scripts, of which the first does not name it.
    let second = rig.path("second");
    fs::write(&second, format!("#!/bin/sh\nexec '{WRAPPER}' \"$@\"\n")).unwrap();
    fs::set_permissions(&second, fs::Permissions::from_mode(0o755)).unwrap();
    script("#!/bin/sh\nexec second \"$@\"\n".to_owned());
    let output = rig.call(WRAPPER, &["--version"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("leads back to"));
}

/// One that leads to another runtime by way of the wrapper is followed, and the mark is taken out.
#[test]
fn a_script_before_the_real_runtime_leaves_its_environment() {
    let rig = Rig::new();
    let script = |path: &str, text: String| {
        fs::write(rig.path(path), text).unwrap();
        fs::set_permissions(rig.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    };
    let tell = |path: &str| format!("env > '{}'\n", rig.path(path).display());
    fs::create_dir(rig.path("real")).unwrap();
    script("real/runc", format!("#!/bin/sh\n{}exit 7\n", tell("last")));
    script(
        "runc",
        format!(
            "#!/bin/sh\n{}PATH='{}':/usr/bin:/bin exec '{WRAPPER}' \"$@\"\n",
            tell("first"),
            rig.path("real").display()
        ),
    );
    let output = rig.call(WRAPPER, &["state", "x"], "");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let read = |name: &str| fs::read_to_string(rig.path(name)).unwrap();
    assert!(read("first").contains("RDMA_CTK_RUNTIME_TIMES=1\n"), "{}", read("first"));
    assert!(read("last").contains("WRAPPER_TEST=a b"), "{}", read("last"));
    assert!(!read("last").contains("RDMA_CTK_RUNTIME_TIMES"), "{}", read("last"));
}

#[test]
fn its_help_stands_before_that_of_the_real_runtime() {
    let rig = Rig::new();
    for arguments in [&["--help"][..], &["-h"], &["help"]] {
        let output = rig.call(WRAPPER, arguments, "");
        assert_eq!(output.status.code(), Some(7));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("rdma-ctk-runtime is an OCI runtime"), "{text}");
        assert!(rig.told().contains(&format!("argument <{}>", arguments[0])));
    }
    // Help of a subcommand, and a container of that name, are the real runtime's alone.
    for arguments in [&["create", "--help"][..], &["state", "help"]] {
        assert!(rig.call(WRAPPER, arguments, "").stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_wrapper_without_a_runtime_says_so_where_the_engine_looks() {
    let rig = Rig::new();
    fs::remove_file(rig.path("runc")).unwrap();
    let log = rig.path("log.json");
    let output = Command::new(WRAPPER)
        .args(["--log", log.to_str().unwrap(), "--log-format", "json", "state", "x"])
        .env("PATH", rig.0.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("rdma-ctk: no OCI runtime: none of runc, crun and youki"), "{error}");
    let line: serde_json::Value = serde_json::from_str(&fs::read_to_string(log).unwrap()).unwrap();
    assert_eq!(line["level"], "error");
    assert_eq!(line["msg"].as_str().unwrap(), error.trim_end());
}

#[test]
fn under_the_hooks_name_it_is_the_hook() {
    let output = Command::new(WRAPPER).arg0("/usr/bin/rdma-ctk-hook").arg("version").output();
    let output = output.unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("rdma-ctk-hook "));
    let wrong = Command::new(WRAPPER).arg0("rdma-ctk-hook").arg("fly").output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert!(error.contains("rdma-ctk: there is no action \"fly\""), "{error}");
}

#[test]
fn the_small_programs_are_built_without_what_makes_programs_large() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--no-default-features", "--package", "rdma-ctk"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"serde_json"), "{tree}");
    for heavy in
        ["tokio", "ttrpc", "kube", "rustls", "hyper", "clap", "tonic", "prost", "toml_edit"]
    {
        assert!(!crates.contains(&heavy), "{heavy} is in the wrapper: cargo tree -i {heavy}");
    }
}
