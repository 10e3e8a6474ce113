//! What a container cannot do for itself and needs for SMC-R: a user EID of the machine, names for
//! adapters, sysctls of its network namespace.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::eid::{Eid, EidError};
use super::kernel::{Kernel, KernelError};
use super::pnet::{Entry, Member, PnetTable};
use crate::grant::{PNET_OURS, SmcGrant};
use crate::roots::Roots;

/// A preparation failed.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Policy's EID is none.
    #[error(transparent)]
    Eid(#[from] EidError),
    /// The kernel does not do it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Somebody else has named an adapter or interface meanwhile.
    #[error("PNET id {wanted} of {of}: it is not in the kernel's table, where {of} has {has}")]
    Named {
        /// The name that was to be given.
        wanted: String,
        /// To whom.
        of: String,
        /// The name that it has.
        has: String,
    },
    /// A sysctl cannot be set.
    #[error("sysctl {name}={value}: {path}: {source}", path = path.display())]
    Sysctl {
        /// Its name.
        name: String,
        /// The value.
        value: String,
        /// Its file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Does what is to be done in the host's network namespace: that of the calling thread.
///
/// # Errors
/// As [`PrepareError`] says.
pub fn on_host(grant: &SmcGrant) -> Result<(), PrepareError> {
    if let Some(eid) = &grant.eid {
        Kernel::open()?.add_eid(&eid.parse::<Eid>()?)?;
    }
    let entries = grant.pnet.iter().map(|pnet| Entry {
        name: pnet.name.clone(),
        // No adapter that SMC takes has more than two ports.
        to: Member::Adapter {
            name: pnet.adapter.clone(),
            port: u8::try_from(pnet.port).unwrap_or(u8::MAX),
        },
    });
    name(entries.collect())
}

/// Does what is to be done in the pod's network namespace: that of the calling thread.
///
/// # Errors
/// As [`PrepareError`] says.
pub fn in_pod(roots: &Roots, grant: &SmcGrant) -> Result<(), PrepareError> {
    let entries = grant.pnet.iter().map(|pnet| Entry {
        name: pnet.name.clone(),
        to: Member::Interface(pnet.interface.clone()),
    });
    name(entries.collect())?;
    if grant.by_runtime {
        return Ok(());
    }
    for (sysctl, value) in &grant.sysctls {
        // Names come from a list of our own (`request`), and have dots for nothing but folders.
        let path = roots.proc.join("sys").join(sysctl.replace('.', "/"));
        fs::write(&path, value).map_err(|source| PrepareError::Sysctl {
            name: sysctl.clone(),
            value: value.clone(),
            path,
            source,
        })?;
    }
    Ok(())
}

/// Enters names. What is named already by the same name is left as it is, by whomever.
fn name(entries: Vec<Entry>) -> Result<(), PrepareError> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut table = PnetTable::open()?;
    for entry in entries {
        if table.add(&entry)? {
            continue;
        }
        let there = table.entries()?;
        let has = there.iter().find(|other| same(&other.to, &entry.to)).map(|other| &other.name);
        if has != Some(&entry.name) {
            return Err(PrepareError::Named {
                wanted: entry.name,
                of: match entry.to {
                    Member::Interface(name) | Member::Adapter { name, .. } => name,
                },
                has: has.cloned().unwrap_or_else(|| "one by hardware".to_owned()),
            });
        }
    }
    Ok(())
}

/// The kernel tells entries of an adapter apart by its name alone.
fn same(a: &Member, b: &Member) -> bool {
    match (a, b) {
        (Member::Interface(a), Member::Interface(b)) => a == b,
        (Member::Adapter { name: a, .. }, Member::Adapter { name: b, .. }) => a == b,
        _ => false,
    }
}

/// Names of ours in the host's table.
///
/// # Errors
/// As [`PrepareError`] says.
pub fn ours() -> Result<BTreeSet<String>, PrepareError> {
    let entries = PnetTable::open()?.entries()?;
    let names = entries.into_iter().map(|entry| entry.name);
    Ok(names.filter(|name| name.starts_with(PNET_OURS)).collect())
}

/// Takes a name of ours back from the host's table, once no container uses it.
///
/// # Errors
/// As [`PrepareError`] says.
pub fn forget(name: &str) -> Result<(), PrepareError> {
    PnetTable::open()?.remove(name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SmcMethod;

    #[test]
    fn sysctls_are_written_below_the_given_root_unless_the_runtime_does() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let file = roots.proc.join("sys/net/smc/wmem");
        let mut grant = SmcGrant {
            method: SmcMethod::Bpf,
            eid: None,
            pnet: Vec::new(),
            sysctls: vec![("net.smc.wmem".into(), "262144".into())],
            by_runtime: false,
            mptcp: false,
            later: false,
        };
        let error = in_pod(&roots, &grant).unwrap_err().to_string();
        assert!(error.starts_with("sysctl net.smc.wmem=262144: "), "{error}");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "65536").unwrap();
        grant.by_runtime = true;
        in_pod(&roots, &grant).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "65536");
        grant.by_runtime = false;
        in_pod(&roots, &grant).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "262144");
    }

    #[test]
    fn entries_are_the_same_by_what_they_name() {
        let adapter = |name: &str, port| Member::Adapter { name: name.into(), port };
        let interface = |name: &str| Member::Interface(name.into());
        assert!(same(&adapter("mlx5_0", 1), &adapter("mlx5_0", 2)));
        assert!(!same(&adapter("mlx5_0", 1), &adapter("mlx5_1", 1)));
        assert!(same(&interface("eth0"), &interface("eth0")));
        assert!(!same(&interface("eth0"), &adapter("eth0", 1)));
    }
}
