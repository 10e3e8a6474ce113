//! Makes the verbs part of `rdma-ctk-probe`: a small program without a C library of its own, which
//! the probe carries and hands to the dynamic loader of whatever image it finds itself in.
//!
//! It names `libc.so.6` and asks nothing of its version: every glibc has the functions, and musl's
//! loader answers to that name itself. What it is linked with is a stub, since the real library
//! would stamp the build machine's versions on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The one library, and the functions that the program takes from it.
const LIBRARY: &str = "libc.so.6";
const FUNCTIONS: [&str; 18] = [
    "__errno_location",
    "__libc_start_main",
    "_exit",
    "bcmp",
    "clock_gettime",
    "dladdr",
    "dlerror",
    "dlopen",
    "dlsym",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "mmap",
    "munmap",
    "sched_yield",
    "strlen",
    "write",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_PROBE").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=src/probe/program");
    let out = PathBuf::from(variable("OUT_DIR"));
    let stub = stub(&out);
    let archive = out.join("libverbs_part.a");
    run(Command::new(variable("RUSTC"))
        .args(["--edition=2024", "--crate-type=staticlib", "--crate-name=verbs_part"])
        .args(["--target", &variable("TARGET")])
        .args(["-Copt-level=s", "-Cpanic=abort", "-Ccodegen-units=1", "-Crelocation-model=pic"])
        .arg("-o")
        .arg(&archive)
        .arg("src/probe/program/main.rs"));
    run(linker()
        .args(["-nostdlib", "-pie", "-Wl,--gc-sections", "-Wl,--strip-all", "-Wl,-z,noexecstack"])
        .arg("-o")
        .arg(out.join("verbs-part"))
        .arg(&archive)
        .arg(&stub));
}

/// An empty library of that name: symbols without versions.
fn stub(out: &Path) -> PathBuf {
    let source = out.join("stub.s");
    let mut text = String::from(".text\n");
    for function in FUNCTIONS {
        text.push_str(&format!(".globl {function}\n.type {function},%function\n{function}:\n"));
    }
    fs::write(&source, text).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let library = out.join(LIBRARY);
    run(linker()
        .args(["-shared", "-nostdlib"])
        .arg(format!("-Wl,-soname,{LIBRARY}"))
        .arg("-o")
        .arg(&library)
        .arg(&source));
    library
}

fn linker() -> Command {
    Command::new(env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into()))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
