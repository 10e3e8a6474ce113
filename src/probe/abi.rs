//! The image's library, its provider for an adapter, and the kernel's ABI.

use std::path::Path;

use nix::errno::Errno;

use super::verbs::{Ended, Fault, Missing, Transcript, errno_text};
use super::{Exit, Finding, Place, Stage};
use crate::inventory::Hca;

/// How to get a library.
const INSTALL: &str = "install libibverbs and its providers in the image (Debian: libibverbs1 \
                       ibverbs-providers; Fedora, RHEL: libibverbs; Alpine: rdma-core-libs)";

/// Ages of the kernel's interface that libibverbs knows (`IB_USER_VERBS_MIN_ABI_VERSION` to
/// `..._MAX_...` of rdma-core).
const KERNEL_ABI: std::ops::RangeInclusive<u32> = 3..=6;

/// Judges the library, and tells for which of the adapters it has a provider.
pub(super) fn check<'a>(
    place: &Place<'_>,
    given: &[&'a Hca],
    listing: &Transcript,
    findings: &mut Vec<Finding>,
) -> Vec<&'a Hca> {
    let stage = Stage::Library;
    let Some(library) = &listing.library else {
        findings.push(none(listing));
        return Vec::new();
    };
    let file = resolved(place.image, library);
    if let Some(Missing::Function(name)) = &listing.missing {
        findings.push(Finding::fail(
            stage,
            Exit::NoLibrary,
            format!("{file} lacks {name}"),
            INSTALL,
        ));
        return Vec::new();
    }
    let kernel = abi_version(place, "class/infiniband_verbs/abi_version");
    let libc = listing.loader.as_deref().map_or("", |loader| match loader.contains("musl") {
        true => ", musl",
        false => ", glibc",
    });
    let sentence = match kernel {
        Some(kernel) => format!("{file}{libc}; kernel ABI {kernel}"),
        None => format!("{file}{libc}"),
    };
    match kernel {
        Some(kernel) if !KERNEL_ABI.contains(&kernel) => findings.push(Finding::warn(
            stage,
            format!("{sentence}, which libibverbs may not know"),
            "use an image with a later rdma-core",
        )),
        _ => findings.push(Finding::ok(stage, sentence)),
    }
    let mut known = Vec::new();
    for hca in given.iter().copied() {
        if listing.devices.contains(&hca.name) {
            let abi = hca.uverbs.as_ref().and_then(|device| {
                abi_version(place, &format!("class/infiniband_verbs/{}/abi_version", device.name))
            });
            let abi = abi.map_or(String::new(), |abi| format!("; ABI {abi} of its driver"));
            let sentence = format!("{}: provider for {}{abi}", hca.name, hca.driver);
            findings.push(Finding::ok(stage, sentence).of(hca));
            known.push(hca);
        } else {
            findings.push(unlisted(place, hca, library, listing).of(hca));
        }
    }
    known
}

/// There is no library to work with.
fn none(listing: &Transcript) -> Finding {
    let fail =
        |sentence: String, fix: &str| Finding::fail(Stage::Library, Exit::NoLibrary, sentence, fix);
    match (&listing.missing, &listing.ended) {
        (Some(Missing::Library(why)), _) if is_absent(why) => fail(
            "image has no libibverbs: NCCL will use TCP, verbs programs do not start".into(),
            INSTALL,
        ),
        (Some(Missing::Library(why)), _) => {
            fail(format!("libibverbs cannot be loaded: {why}"), INSTALL)
        }
        (_, Ended::NoLoader) => fail(
            "image has no libibverbs, and no dynamic loader that could load one".into(),
            "use an image with a C library and libibverbs; static programs cannot use RDMA. Where \
             the loader is at an unusual place, name it with --loader",
        ),
        (_, Ended::NotStarted(why)) => fail(
            format!("libibverbs cannot be tried: {why}"),
            "name the image's dynamic loader with --loader",
        ),
        (_, ended) => {
            let noise = noise(listing);
            fail(
                format!("libibverbs cannot be tried: {}{noise}", Fault::Died(ended.clone())),
                INSTALL,
            )
        }
    }
}

/// Whether the loader missed libibverbs itself, in glibc's words or musl's; else it is something
/// that libibverbs needs.
fn is_absent(why: &str) -> bool {
    why.starts_with("libibverbs.so.1: cannot open shared object file")
        || why.starts_with("Error loading shared library libibverbs.so.1:")
}

/// The library does not list an adapter whose node opens.
fn unlisted(place: &Place<'_>, hca: &Hca, library: &str, listing: &Transcript) -> Finding {
    let driver = &hca.driver.0;
    let provider = provider(driver);
    let folder = Path::new(library).parent().unwrap_or_else(|| Path::new("/")).join("libibverbs");
    let in_image = |path: &Path| place.image.join(path.strip_prefix("/").unwrap_or(path));
    let prefix = format!("lib{provider}-rdmav");
    let files = std::fs::read_dir(in_image(&folder)).into_iter().flatten().flatten();
    let present = files.map(|file| file.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name.starts_with(&prefix) && name.ends_with(".so")
    });
    let config = Path::new("/etc/libibverbs.d").join(format!("{provider}.driver"));
    let missing = if !present {
        format!("no provider for {driver} ({prefix}*.so is not in {})", folder.display())
    } else if !in_image(&config).exists() {
        format!("the provider for {driver} is there, but not {}", config.display())
    } else if let Some(Fault::Errno(errno)) = listing.fault {
        format!("it lists no adapter: {}", errno_text(errno))
    } else {
        format!("it has a provider for {driver} that does not take it, such as one that is older")
    };
    Finding::fail(
        Stage::Library,
        Exit::Device,
        format!("libibverbs does not see {}: {missing}{}", hca.name, noise(listing)),
        INSTALL,
    )
}

/// Name of a driver's provider.
fn provider(driver: &str) -> &str {
    match driver {
        "hfi1" => "hfi1verbs",
        "qib" => "ipathverbs",
        _ => driver,
    }
}

/// What the libraries printed, as the end of a sentence.
fn noise(said: &Transcript) -> String {
    if said.noise.is_empty() { String::new() } else { format!(" [{}]", said.noise.join(" / ")) }
}

/// Where a library's link leads: the file's name has the version.
fn resolved(image: &Path, library: &str) -> String {
    let path = Path::new(library);
    let target = std::fs::read_link(image.join(path.strip_prefix("/").unwrap_or(path)));
    match target.ok().as_deref().and_then(Path::file_name) {
        Some(name) => path.with_file_name(name).display().to_string(),
        None => library.to_owned(),
    }
}

fn abi_version(place: &Place<'_>, file: &str) -> Option<u32> {
    std::fs::read_to_string(place.roots.sys.join(file)).ok()?.trim().parse().ok()
}

/// Judges how the library opened an adapter.
pub(super) fn opened(hca: &Hca, said: &Transcript, findings: &mut Vec<Finding>) {
    let Some(fault) = said.fault_in(&["find", "open", "port", "pd"]) else {
        let port = said.port.map_or(String::new(), |port| match port.link_layer {
            2 => format!(", MTU {}", mtu(port.mtu)),
            _ => format!(", MTU {}, LID {}", mtu(port.mtu), port.lid),
        });
        findings.push(Finding::ok(Stage::Device, format!("{} opens{port}", hca.name)).of(hca));
        return;
    };
    let errno = match fault {
        Fault::Errno(errno) => Errno::from_raw(*errno),
        _ => Errno::UnknownErrno,
    };
    let fix = match errno {
        Errno::EAGAIN => {
            "the limit of the rdma cgroup is reached: leave out limits.rdma-ctk.io or raise it"
        }
        Errno::EPERM if hca.driver.is("erdma") => {
            "eRDMA hardware of the first generation needs CAP_SYS_RAWIO: ask with \
             capabilities.rdma-ctk.io: SYS_RAWIO (by the runtime wrapper)"
        }
        Errno::EPERM => {
            "the adapter may be in another RDMA namespace: `rdma-ctk doctor` on the host"
        }
        Errno::ENOMEM => "more memory for the container, or a higher memlock limit",
        _ => "use an image with a later rdma-core, and look into the kernel's log on the host",
    };
    let step = said.step.as_deref().unwrap_or("find");
    findings.push(
        Finding::fail(
            Stage::Device,
            Exit::Device,
            format!("{}: {step} fails: {fault}{}", hca.name, noise(said)),
            fix,
        )
        .of(hca),
    );
}

/// Bytes of an `enum ibv_mtu`.
fn mtu(number: u32) -> u32 {
    match number {
        1..=5 => 128 << number,
        _ => 0,
    }
}
