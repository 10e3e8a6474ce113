//! The ways without NRI: the CDI file, the wrapper among the runtimes of the engines, and folders of
//! hooks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Context, Finding, Unable};
use crate::cdi::{self, Flaw};
use crate::configure::containerd::{self, Merge};
use crate::configure::{NAME, crio, docker, podman};
use crate::policy::{self, Policy};

/// Whether the CDI file is what it should be.
pub fn cdi_file(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let policy = policy(context);
    let path = cdi::path(context.roots);
    if !path.exists() && !policy.cdi.keep {
        return Err(Unable::Absent(
            "there is no CDI file: `rdma-ctk cdi generate` writes one, for --device of nerdctl, \
             docker and podman",
        ));
    }
    let flaws = cdi::judge(context.roots, context.node, &policy, &path);
    if flaws.is_empty() {
        return Ok(vec![Finding::ok(format!("{} is up to date", path.display()))]);
    }
    Ok(flaws
        .iter()
        .map(|flaw| match flaw {
            Flaw::Shared { .. } => Finding::ok(flaw.to_string()),
            Flaw::NoHook { .. } | Flaw::Duplicate { dropped: true, .. } => {
                Finding::fail(flaw.to_string(), "install the package again, or remove that file")
            }
            _ => Finding::warn(
                flaw.to_string(),
                "`rdma-ctk cdi generate`; to have it kept up to date, `systemctl enable --now \
                 rdma-ctk-cdi`, or keep = true in [cdi] of the policy",
            ),
        })
        .collect())
}

/// Where the wrapper stands among an engine's runtimes.
struct Entry {
    engine: &'static str,
    name: String,
    program: String,
    default: bool,
    /// What makes it of no use.
    lacks: Option<String>,
}

/// Whether engines have the wrapper among their runtimes, and whether it is there.
pub fn runtimes(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let policy = policy(context);
    let mut names: BTreeSet<String> = policy.wrapper_handlers.clone();
    names.insert(NAME.to_owned());
    let mut findings = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for name in &names {
        for found in [containerd(context, name), crio_or_docker(context, name)] {
            match found {
                Ok(found) => entries.extend(found),
                Err(why) => findings.push(Finding::warn(why, "mend the file that is named")),
            }
        }
    }
    if entries.is_empty() && findings.is_empty() {
        return Err(Unable::Absent(
            "no engine has the runtime wrapper: `rdma-ctk configure` registers it, for a \
             RuntimeClass or --runtime",
        ));
    }
    for entry in entries {
        let Entry { engine, name, program, default, lacks } = entry;
        let default = if default { ", and it is the default" } else { "" };
        let missing = context.live.is_some() && !Path::new(&program).is_file();
        findings.push(match lacks {
            _ if missing => Finding::fail(
                format!("{engine} has the runtime {name}{default}: {program}, which is not there"),
                "install it, or take the entry back with `rdma-ctk configure ... --undo`",
            ),
            Some(lacks) => Finding::warn(
                format!("{engine} has the runtime {name}{default}, but {lacks}"),
                "`rdma-ctk configure containerd --runtime`",
            ),
            None => Finding::ok(format!("{engine} has the runtime {name}{default}: {program}")),
        });
    }
    Ok(findings)
}

fn containerd(context: &Context<'_>, name: &str) -> Result<Vec<Entry>, String> {
    let roots = context.roots;
    let locate = |path: &Path| -> PathBuf {
        let rest = path.strip_prefix("/etc").map(|rest| roots.etc.join(rest));
        rest.unwrap_or_else(|_| path.to_owned())
    };
    let main = containerd::Options::default().config;
    let found = containerd::entry(&main, name, Merge::Deep, &locate);
    let found = found.map_err(|problem| problem.to_string())?;
    let ours = found.and_then(|entry| {
        let program = entry.program.filter(|program| program.contains("rdma-ctk"))?;
        let needed = ["*.rdma-ctk.io", "*.rdma-ctk.io/*"];
        let seen = needed.iter().all(|want| entry.annotations.iter().any(|has| has == want));
        let lacks = (!seen).then(|| "pods' annotations do not reach it (pod_annotations)".into());
        let (name, default) = (name.to_owned(), entry.default);
        Some(Entry { engine: "containerd", name, program, default, lacks })
    });
    Ok(ours.into_iter().collect())
}

fn crio_or_docker(context: &Context<'_>, name: &str) -> Result<Vec<Entry>, String> {
    let crio = crio::entry(context.roots, name).map_err(|problem| problem.to_string())?;
    let docker = docker::entry(context.roots, name).map_err(|problem| problem.to_string())?;
    let (_, podman) = podman::registered(context.roots, &share(context), name)
        .map_err(|problem| problem.to_string())?;
    let podman = podman.map(|program| (program, false));
    let found = [("CRI-O", crio), ("Docker", docker), ("podman", podman)];
    Ok(found
        .into_iter()
        .filter_map(|(engine, found)| {
            let (program, default) = found.filter(|(program, _)| program.contains("rdma-ctk"))?;
            Some(Entry { engine, name: name.to_owned(), program, default, lacks: None })
        })
        .collect())
}

/// Folders of hooks: podman reads ours, and CRI-O none with a stage that it does not know.
pub fn hooks(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let mut findings = Vec::new();
    match podman::registered(context.roots, &share(context), NAME) {
        Ok((true, _)) if context.live.is_some() && !Path::new(podman::OUR_HOOKS).is_dir() => {
            findings.push(Finding::warn(
                format!("podman is told of the hooks in {}, which is not there", podman::OUR_HOOKS),
                "install the package again",
            ));
        }
        Ok((true, _)) => findings.push(Finding::ok("podman reads our hooks")),
        Ok((false, _)) => {}
        Err(problem) => {
            findings.push(Finding::warn(problem.to_string(), "mend the file that is named"));
        }
    }
    match crio::with_precreate(context.roots) {
        Ok(files) => findings.extend(files.iter().map(|path| {
            Finding::fail(
                format!(
                    "{}: a hook of the stage precreate in a folder that CRI-O reads; CRI-O does \
                     not start with it",
                    path.display()
                ),
                "move the file to a folder that podman alone reads",
            )
        })),
        Err(problem) => {
            findings.push(Finding::warn(problem.to_string(), "mend the file that is named"));
        }
    }
    if findings.is_empty() {
        return Err(Unable::Absent(
            "podman is not told of our hooks: `rdma-ctk configure podman` does",
        ));
    }
    Ok(findings)
}

fn policy(context: &Context<'_>) -> Policy {
    // A broken one is another check's.
    policy::load(context.roots).unwrap_or_default()
}

fn share(context: &Context<'_>) -> PathBuf {
    context.roots.etc.with_file_name("usr").join("share")
}
