//! Adapters, the kernel modules behind them and their device nodes.

use std::fs;

use nix::errno::Errno;

use super::{Context, Finding, Unable};
use crate::inventory::{CharDev, Hca, Home, PciAddress, Role};

/// Adapters of the node, and PCI functions that should be some.
pub fn present(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let node = context.node;
    let mut findings = Vec::new();
    if node.hcas.is_empty() {
        findings.push(Finding::ok("no RDMA adapter on this node"));
    } else {
        let mut drivers: Vec<(&str, usize)> = Vec::new();
        for hca in &node.hcas {
            match drivers.iter_mut().find(|(driver, _)| hca.driver.is(driver)) {
                Some((_, count)) => *count += 1,
                None => drivers.push((&hca.driver.0, 1)),
            }
        }
        let list: Vec<String> =
            drivers.iter().map(|(driver, count)| format!("{count} by {driver}")).collect();
        findings.push(Finding::ok(format!("RDMA adapters: {}", list.join(", "))));
    }
    findings.extend(idle_functions(context));
    Ok(findings)
}

/// A PCI function that only serves RDMA, or mostly: vendor, device (`None`: any), driver.
const RDMA_FUNCTIONS: [(u16, Option<u16>, &str); 6] = [
    (0x1d0f, Some(0xefa0), "efa"),
    (0x1d0f, Some(0xefa1), "efa"),
    (0x1d0f, Some(0xefa2), "efa"),
    (0x1d0f, Some(0xefa3), "efa"),
    (0x1ded, Some(0x107f), "erdma"),
    (0x15b3, None, "mlx5_ib"),
];

/// Functions of [`RDMA_FUNCTIONS`] that are no adapter. Those handed to VFIO are left out, as are
/// Mellanox functions without `mlx5_core` (bridges, management functions).
fn idle_functions(context: &Context<'_>) -> Vec<Finding> {
    let Ok(entries) = fs::read_dir(context.roots.sys.join("bus/pci/devices")) else {
        return Vec::new();
    };
    let mut idle: Vec<(PciAddress, &str)> = Vec::new();
    for entry in entries.flatten() {
        let Some(address) =
            entry.file_name().to_str().and_then(|name| name.parse::<PciAddress>().ok())
        else {
            continue;
        };
        let number = |file: &str| {
            let text = fs::read_to_string(entry.path().join(file)).ok()?;
            u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let (Some(vendor), Some(device)) = (number("vendor"), number("device")) else { continue };
        let bound = fs::read_link(entry.path().join("driver"))
            .ok()
            .and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
        let bound = bound.as_deref();
        let wanted = RDMA_FUNCTIONS
            .iter()
            .find(|(of, id, _)| *of == vendor && id.is_none_or(|id| id == device));
        let Some((_, id, driver)) = wanted else { continue };
        let expected = match (id, bound) {
            (_, Some("vfio-pci")) => false,
            (None, bound) => bound == Some("mlx5_core"),
            (Some(_), _) => true,
        };
        // A bond's device stands for every function of its card.
        let served =
            context.node.hcas.iter().filter_map(|hca| Some((hca, hca.pci?))).any(|(hca, pci)| {
                pci == address
                    || matches!(hca.role, Role::Bond { .. })
                        && PciAddress { function: 0, ..pci }
                            == PciAddress { function: 0, ..address }
            });
        if expected && !served {
            idle.push((address, driver));
        }
    }
    idle.sort();
    idle.into_iter()
        .map(|(address, driver)| {
            Finding::warn(
                format!(
                    "{address} can do RDMA but has no adapter: {driver} is not loaded or failed"
                ),
                format!(
                    "on the host, `modprobe {driver}` and look at `dmesg`; if it is meant to be \
                     without RDMA, leave it"
                ),
            )
        })
        .collect()
}

/// `ib_uverbs`, without which an adapter is there and nobody can use it.
pub fn uverbs_module(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = usable(context)?;
    let without: Vec<&str> =
        here.iter().filter(|hca| hca.uverbs.is_none()).map(|hca| hca.name.as_str()).collect();
    if without.is_empty() {
        return Ok(vec![Finding::ok("every adapter has its uverbs device")]);
    }
    let names = without.join(", ");
    Ok(vec![if context.roots.sys.join("class/infiniband_verbs").is_dir() {
        Finding::warn(
            format!("no uverbs device for {names}, although ib_uverbs is loaded"),
            "a management sub-device has none; for any other adapter look at `dmesg`",
        )
    } else {
        Finding::fail(
            format!(
                "ib_uverbs is not loaded (Talos: machine.kernel.modules), so nobody can use {names}"
            ),
            "on the host, `modprobe ib_uverbs` and name it in /etc/modules-load.d/rdma.conf",
        )
    }])
}

/// `rdma_ucm`, which some programs need and most do without.
pub fn rdma_cm(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = usable(context)?;
    Ok(vec![match &context.node.rdma_cm {
        Some(device) => {
            Finding::ok(format!("rdma_cm is there ({}:{})", device.major, device.minor))
        }
        None if here.iter().all(|hca| hca.driver.is("efa")) => {
            Finding::ok("rdma_cm is missing, and EFA has no use for it")
        }
        None => Finding::warn(
            "rdma_cm missing: load rdma_ucm; programs using librdmacm (-R, UCX rdmacm, NFS/iSER \
             tools) will fail",
            "on the host, `modprobe rdma_ucm` and name it in /etc/modules-load.d/rdma.conf",
        ),
    }])
}

/// Device nodes: their modes, and on the running node whether they can be opened.
pub fn nodes(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let here = usable(context)?;
    let mut findings = Vec::new();
    let mut fine = 0_usize;
    for device in here.iter().filter_map(|hca| hca.uverbs.as_ref()).chain(&context.node.rdma_cm) {
        match node(context, device) {
            Some(finding) => findings.push(finding),
            None => fine += 1,
        }
    }
    if fine > 0 {
        let how = if context.live.is_some() { "opened" } else { "there, for everybody" };
        let count = if fine == 1 { "1 device node".into() } else { format!("{fine} device nodes") };
        findings.push(Finding::ok(format!("{count} {how}")));
    }
    Ok(findings)
}

/// What is wrong with that node.
fn node(context: &Context<'_>, device: &CharDev) -> Option<Finding> {
    let (path, numbers) = (device.path(), format!("{}:{}", device.major, device.minor));
    let missing = || {
        Finding::fail(
            format!("{path} is missing, although the kernel has the device {numbers}"),
            "on the host, `udevadm trigger --subsystem-match=infiniband_verbs` or mount devtmpfs \
             on /dev; inside a container, that adapter was not granted",
        )
    };
    let outcome = context
        .live
        .map(|live| live.open(&context.roots.dev.join("infiniband").join(&device.name)));
    match (outcome, device.mode) {
        (Some(Err(Errno::ENOENT)), _) | (None, None) => Some(missing()),
        (Some(Err(Errno::EPERM)), _) => Some(Finding::fail(
            format!(
                "{path} cannot be opened (EPERM): the device cgroup forbids it, or the adapter is \
                 in another RDMA namespace"
            ),
            "in a container, get the adapter by devices.rdma-ctk.io, so that the rule is in the \
             runtime's document and outlives a systemctl daemon-reload",
        )),
        (Some(Err(Errno::EACCES)), mode) => Some(Finding::warn(
            format!(
                "{path} cannot be opened (EACCES): its mode is {}",
                mode.map_or_else(|| "unknown".to_owned(), octal)
            ),
            "run doctor as root, or give the node mode 0666 by a udev rule",
        )),
        (Some(Err(Errno::ENXIO | Errno::ENODEV)), _) => Some(Finding::fail(
            format!("{path} is stale: no driver serves its number"),
            "remove the node; if it comes back, look for a tool that makes nodes by computed \
             numbers",
        )),
        (Some(Err(error)), _) => Some(Finding::fail(
            format!("{path} cannot be opened ({error:?})"),
            "look at `dmesg` for the adapter's driver",
        )),
        (_, Some(mode)) if mode & 0o006 != 0o006 => Some(Finding::warn(
            format!(
                "{path} has mode {}: programs of others on the host cannot open it",
                octal(mode)
            ),
            "if they are meant to, set mode 0666 by a udev rule",
        )),
        (Some(Ok(())), _) | (None, Some(_)) => None,
    }
}

fn octal(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

/// Adapters that can be used from here.
pub fn usable<'a>(context: &Context<'a>) -> Result<Vec<&'a Hca>, Unable> {
    if context.node.hcas.is_empty() {
        return Err(Unable::Absent("no RDMA adapter on this node"));
    }
    let here: Vec<&Hca> =
        context.node.hcas.iter().filter(|hca| hca.home != Home::Elsewhere).collect();
    if here.is_empty() {
        return Err(Unable::Absent("every RDMA adapter is in another RDMA namespace"));
    }
    Ok(here)
}
