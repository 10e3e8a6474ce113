//! A configuration file of an engine, its name on the first line: `containerd`, `crio`, `podman` or
//! `docker`. What `rdma-ctk configure` would make of it.
//!
//! Besides not panicking: what is written can be read, and doing it again changes nothing.
#![no_main]

use std::fs;
use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use rdma_ctk::configure::containerd::{RuntimeOptions, runtime_plan};
use rdma_ctk::configure::{Content, Plan, crio, docker, podman};
use rdma_ctk::roots::Roots;

/// The engine's file, and the plan for a node that has it.
fn plan(engine: &str, roots: &Roots, share: &Path) -> Option<Plan> {
    match engine {
        "containerd" => {
            let options = RuntimeOptions { version: "2.1.9".parse().ok(), ..Default::default() };
            runtime_plan(roots, &options).ok()
        }
        "containerd-1.7" => {
            let options = RuntimeOptions {
                version: "1.7.34".parse().ok(),
                default: true,
                ..Default::default()
            };
            runtime_plan(roots, &options).ok()
        }
        "crio" => crio::plan(roots, &crio::Options::default()).ok(),
        "podman" => {
            let options = podman::Options { share: share.to_owned(), ..Default::default() };
            podman::plan(roots, &options).ok()
        }
        _ => {
            let options = docker::Options {
                version: "26.1.5".parse().ok(),
                default: true,
                ..Default::default()
            };
            docker::plan(roots, &options).ok()
        }
    }
}

fuzz_target!(|text: &str| -> Corpus {
    let Some((engine, text)) = text.split_once('\n') else { return Corpus::Reject };
    let file = match engine {
        "containerd" | "containerd-1.7" => "etc/containerd/config.toml",
        "crio" => "etc/crio/crio.conf",
        "podman" => "etc/containers/containers.conf",
        "docker" => "etc/docker/daemon.json",
        _ => return Corpus::Reject,
    };
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let Ok(folder) = folder else { return Corpus::Reject };
    let path = folder.path().join(file);
    let Some(parent) = path.parent() else { return Corpus::Reject };
    if fs::create_dir_all(parent).is_err() || fs::write(&path, text).is_err() {
        return Corpus::Reject;
    }
    let (roots, share) = (Roots::below(folder.path()), folder.path().join("usr/share"));
    let Some(made) = plan(engine, &roots, &share) else { return Corpus::Keep };
    for change in &made.files {
        let Some(Content::Text(text)) = &change.after else { continue };
        fs::create_dir_all(change.path.parent().unwrap()).unwrap();
        fs::write(&change.path, text).unwrap();
    }
    let again = plan(engine, &roots, &share).expect("what was written cannot be read");
    assert!(again.files.is_empty(), "a second time changes {:?}", again.files);
    Corpus::Keep
});
