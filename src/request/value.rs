//! The values of our keys, each from its text.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Problem, shown};
use super::is_unprintable;
use super::words::{Words, unknown};
use super::{
    Devices, EnvFamily, EnvMode, Limits, Memlock, Requirement, Selector, SmcMethod, capability,
    quantity,
};
use crate::inventory::PciAddress;

/// What `devices` takes, for messages.
const DEVICES: &str = "all, none, a count, or selectors such as mlx5_0,link:roce";
/// Kinds of selectors that take a value.
const KINDS: [&str; 6] = ["pci", "netdev", "driver", "link", "numa", "rail"];
/// More adapters than any node has.
const MOST: u32 = 4096;
/// Most selectors, and places of a rail. A runtime waits while they are read, and an annotation
/// may have 256 KiB.
const MOST_ITEMS: usize = 256;

/// Sysctls below `net.smc.` that a pod may ask for, with what the kernel takes
/// (`net/smc/smc_sysctl.c`).
const SMC_SYSCTLS: [(&str, u32, u32); 8] = [
    ("autocorking_size", 0, u32::MAX),
    ("limit_smc_hs", 0, 1),
    ("rmem", 16_384, i32::MAX.cast_unsigned() / 2),
    ("smcr_buf_type", 0, 2),
    ("smcr_max_conns_per_lgr", 16, 255),
    ("smcr_max_links_per_lgr", 1, 2),
    ("smcr_testlink_time", 0, i32::MAX.cast_unsigned()),
    ("wmem", 16_384, i32::MAX.cast_unsigned() / 2),
];

/// `smc`: a method, and sysctls of the pod's network namespace: `auto,wmem=262144`.
pub(super) fn smc(text: &str) -> Result<(SmcMethod, BTreeMap<String, u32>), Problem> {
    let mut parts = text.split(',').map(str::trim);
    let method = word(parts.next().unwrap_or_default())?;
    let mut sysctls = BTreeMap::new();
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (name, value) = (name.trim(), value.trim());
        let name = name.strip_prefix("net.smc.").unwrap_or(name);
        let known = SMC_SYSCTLS.into_iter().find(|(known, ..)| *known == name);
        let Some((known, from, to)) = known else {
            return Err(unknown(name, SMC_SYSCTLS.into_iter().map(|(known, ..)| known)));
        };
        if method == SmcMethod::Off {
            return Err(Problem::Alone("off".to_owned()));
        }
        if sysctls.insert(known.to_owned(), number(value, from, to)?).is_some() {
            return Err(Problem::Twice(known.to_owned()));
        }
    }
    Ok((method, sysctls))
}

/// `devices`: `all`, `none`, a count, or a list of selectors.
pub(super) fn devices(text: &str) -> Result<Devices, Problem> {
    match text.trim() {
        "" => return Err(Problem::Empty(DEVICES)),
        "all" => return Ok(Devices::All),
        "none" => return Ok(Devices::None),
        count if is_number(count) => return number(count, 1, MOST).map(Devices::Count),
        _ => {}
    }
    let mut selectors: Vec<Selector> = Vec::new();
    if text.split(',').nth(MOST_ITEMS).is_some() {
        return Err(Problem::TooLong("256 selectors"));
    }
    for item in text.split(',').map(str::trim) {
        // The places of a rail are separated by the same comma as selectors are.
        if let (true, Some(Selector::Rail(places))) = (is_number(item), selectors.last_mut()) {
            places.push(number(item, 0, MOST)?);
            continue;
        }
        let selector = selector(item)?;
        if !selectors.contains(&selector) {
            selectors.push(selector);
        }
    }
    Ok(Devices::Select(selectors))
}

fn selector(item: &str) -> Result<Selector, Problem> {
    let wrong = |reason: String| Problem::Selector { item: shown(item), reason };
    match item {
        "" => return Err(Problem::EmptyItem(DEVICES)),
        "all" | "none" => return Err(Problem::Alone(item.to_owned())),
        "gpu" => return Ok(Selector::Gpu),
        count if is_number(count) => return Err(Problem::Alone(shown(count))),
        _ => {}
    }
    let Some((kind, value)) = item.split_once(':') else {
        return name(item, true).map(Selector::Name).ok_or_else(|| {
            wrong("a device name has up to 63 letters, digits, _ - . and * for any run".into())
        });
    };
    match kind {
        "pci" => value
            .parse()
            .map(Selector::Pci)
            .map_err(|error: crate::inventory::PciAddressError| wrong(shown(&error.to_string()))),
        "netdev" => netdev(value)
            .map(Selector::Netdev)
            .ok_or_else(|| wrong("expected the name of a network interface behind netdev:".into())),
        "driver" => name(value, false)
            .map(Selector::Driver)
            .ok_or_else(|| wrong("expected the name of a driver, such as driver:mlx5".into())),
        "link" => Words::from_word(value).map(Selector::Link),
        "numa" => number(value, 0, MOST).map(Selector::Numa),
        "rail" => number(value, 0, MOST).map(|place| Selector::Rail(vec![place])),
        "gpu" => Err(wrong("gpu takes no value: it means the GPUs of the container".into())),
        _ if item.parse::<PciAddress>().is_ok() => {
            Err(wrong(format!("a PCI address is written pci:{item}")))
        }
        kind => {
            let Problem::Word { known, meant, .. } = unknown(kind, KINDS.into_iter()) else {
                return Err(wrong("its kind is unknown".into()));
            };
            let hint = meant.map(|kind| format!("; did you mean {kind}:{}?", shown(value)));
            Err(wrong(format!("its kind is none of {known}{}", hint.unwrap_or_default())))
        }
    }
}

/// A kernel name of a device or driver, `*` in it where that is allowed.
pub(super) fn name(text: &str, star: bool) -> Option<String> {
    // IB_DEVICE_NAME_MAX counts the ending zero.
    let fits = (1..64).contains(&text.len());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b) || (star && b == b'*');
    (fits && text.bytes().all(plain)).then(|| text.to_owned())
}

/// A name that an interface can have (`dev_valid_name` of the kernel).
fn netdev(text: &str) -> Option<String> {
    let fits = (1..16).contains(&text.len()) && text != "." && text != "..";
    let plain = |c: char| !c.is_whitespace() && !is_unprintable(c) && c != '/' && c != ':';
    (fits && text.chars().all(plain)).then(|| text.to_owned())
}

/// A list of words.
pub(super) fn words<T: Words + Ord>(
    text: &str,
    expected: &'static str,
) -> Result<BTreeSet<T>, Problem> {
    if text.trim().is_empty() {
        return Err(Problem::Empty(expected));
    }
    text.split(',').map(str::trim).map(T::from_word).collect()
}

/// One word.
pub(super) fn word<T: Words>(text: &str) -> Result<T, Problem> {
    T::from_word(text.trim())
}

/// `memlock`: `unlimited`, or bytes with unit.
pub(super) fn memlock(text: &str) -> Result<Memlock, Problem> {
    match text.trim() {
        "" => Err(Problem::Empty("unlimited, or bytes with unit such as 64Gi")),
        "unlimited" => Ok(Memlock::Unlimited),
        text => match quantity::parse(text) {
            Ok(bytes) => Ok(Memlock::Bytes(bytes)),
            // What other programs write for it.
            Err(_) if matches!(text, "-1" | "infinity" | "max") => Err(Problem::Word {
                word: text.to_owned(),
                known: "unlimited, bytes with unit such as 64Gi".to_owned(),
                meant: Some("unlimited".to_owned()),
            }),
            Err(quantity::QuantityError::Number) => {
                Err(unknown(text, ["unlimited", "bytes with unit such as 64Gi"].into_iter()))
            }
            Err(error) => Err(error.into()),
        },
    }
}

/// `capabilities`: names, in any case, with or without `CAP_`.
pub(super) fn capabilities(text: &str) -> Result<BTreeSet<String>, Problem> {
    if text.trim().is_empty() {
        return Err(Problem::Empty("names such as IPC_LOCK,NET_RAW"));
    }
    text.split(',')
        .map(str::trim)
        .map(|item| {
            capability::canonical(item).map(str::to_owned).ok_or_else(|| {
                let bare = item.strip_prefix("CAP_").unwrap_or(item);
                Problem::Word {
                    word: shown(item),
                    known: "the capabilities of Linux".to_owned(),
                    meant: super::nearest::nearest(bare, capability::NAMES).map(str::to_owned),
                }
            })
        })
        .collect()
}

/// `env`: `auto`, `file`, `off`, or a list of libraries, `file` among them.
pub(super) fn env(text: &str) -> Result<EnvMode, Problem> {
    let every = || EnvFamily::ALL.into_iter().collect();
    match text.trim() {
        "" => return Err(Problem::Empty("auto, file, off, or a list of nccl, ucx, nvshmem, mpi")),
        "auto" => return Ok(EnvMode { families: every(), file: false }),
        "file" => return Ok(EnvMode { families: every(), file: true }),
        "off" => return Ok(EnvMode { families: BTreeSet::new(), file: false }),
        _ => {}
    }
    let mut mode = EnvMode { families: BTreeSet::new(), file: false };
    let listed = text.contains(',');
    for item in text.split(',').map(str::trim) {
        match item {
            "file" => mode.file = true,
            "auto" | "off" if listed => return Err(Problem::Alone(item.to_owned())),
            item => match EnvFamily::from_word(item) {
                Ok(family) => _ = mode.families.insert(family),
                Err(_) => {
                    let known = ["auto", "file", "off"].into_iter();
                    let families = EnvFamily::WORDS.iter().map(|(word, _)| *word);
                    return Err(unknown(item, known.chain(families)));
                }
            },
        }
    }
    Ok(mode)
}

/// `limits`: `hca_handle=N,hca_object=M`.
pub(super) fn limits(text: &str) -> Result<Limits, Problem> {
    const EXPECTED: &str = "hca_handle=N,hca_object=M";
    if text.trim().is_empty() {
        return Err(Problem::Empty(EXPECTED));
    }
    let mut limits = Limits { hca_handle: None, hca_object: None };
    for item in text.split(',').map(str::trim) {
        if item.is_empty() {
            return Err(Problem::EmptyItem(EXPECTED));
        }
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let slot = match name.trim() {
            "hca_handle" => &mut limits.hca_handle,
            "hca_object" => &mut limits.hca_object,
            name => return Err(unknown(name, ["hca_handle", "hca_object"].into_iter())),
        };
        // The kernel's counters are signed (rdmacg_parse_limits).
        let limit = number(value.trim(), 0, i32::MAX.unsigned_abs())?;
        if slot.replace(limit).is_some() {
            return Err(Problem::Twice(name.to_owned()));
        }
    }
    Ok(limits)
}

/// `require`: a list of what must not be missing.
pub(super) fn require(text: &str) -> Result<BTreeSet<Requirement>, Problem> {
    words(text, "rdma_cm, gpudirect, roce-interface, gid")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn number(text: &str, from: u32, to: u32) -> Result<u32, Problem> {
    Some(text)
        .filter(|text| is_number(text))
        .and_then(|text| text.parse().ok())
        .filter(|number| (from..=to).contains(number))
        .ok_or_else(|| Problem::Number { text: shown(text), from, to })
}
