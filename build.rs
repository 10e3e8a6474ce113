//! Makes the verbs part of `rdma-ctk-probe`: a small program without a C library of its own, which
//! the probe carries and hands to the dynamic loader of whatever image it finds itself in.
//!
//! It names `libc.so.6` and `libdl.so.2`, and asks nothing of their versions: every glibc has the
//! symbols, and musl's loader answers to both names itself. What it is linked with are two stubs,
//! since the real libraries would stamp the build machine's versions on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Library names, and the functions that the program takes from each.
const STUBS: [(&str, &[&str]); 2] = [
    (
        "libc.so.6",
        &[
            "__errno_location",
            "__libc_start_main",
            "_exit",
            "bcmp",
            "clock_gettime",
            "memcmp",
            "memcpy",
            "memmove",
            "memset",
            "mmap",
            "munmap",
            "strlen",
            "write",
        ],
    ),
    ("libdl.so.2", &["dladdr", "dlerror", "dlopen", "dlsym"]),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_PROBE").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=src/probe/program");
    let out = PathBuf::from(variable("OUT_DIR"));
    let stubs: Vec<PathBuf> =
        STUBS.iter().map(|(name, symbols)| stub(&out, name, symbols)).collect();
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
        .args(&stubs));
}

/// An empty library of that name: symbols without versions.
fn stub(out: &Path, name: &str, symbols: &[&str]) -> PathBuf {
    let source = out.join(format!("{name}.s"));
    let mut text = String::from(".text\n");
    for symbol in symbols {
        text.push_str(&format!(".globl {symbol}\n.type {symbol},%function\n{symbol}:\n"));
    }
    fs::write(&source, text).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let library = out.join(name);
    run(linker()
        .args(["-shared", "-nostdlib"])
        .arg(format!("-Wl,-soname,{name}"))
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
