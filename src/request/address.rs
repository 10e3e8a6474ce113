//! The value of `address`: which addresses a pod's sub-interfaces are to have.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::error::{Problem, shown};
use super::value::name;
use super::words::unknown;
use crate::inventory::Prefix;

/// Most addresses that one annotation gives: each has to be found free.
const MOST: usize = 64;
const EXPECTED: &str =
    "auto, none, an address such as 10.1.0.7/24, or mlx5_0=10.1.0.7/24,mlx5_1=10.1.1.7/24";

/// Value of `address`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressRequest {
    /// From the pools that policy gives each adapter.
    #[default]
    Auto,
    /// None: somebody else gives them.
    None,
    /// These.
    Fixed(Vec<FixedAddress>),
}

/// An address that was named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedAddress {
    /// Kernel name of the adapter; `None`: the only one that is granted.
    pub hca: Option<String>,
    /// The address.
    pub address: Prefix,
}

impl AddressRequest {
    /// The addresses that were named.
    pub fn fixed(&self) -> &[FixedAddress] {
        match self {
            Self::Fixed(fixed) => fixed,
            Self::Auto | Self::None => &[],
        }
    }
}

/// `address`: a word, or addresses, each for an adapter.
pub(super) fn address(text: &str) -> Result<AddressRequest, Problem> {
    match text.trim() {
        "" => return Err(Problem::Empty(EXPECTED)),
        "auto" => return Ok(AddressRequest::Auto),
        "none" => return Ok(AddressRequest::None),
        _ => {}
    }
    if text.split(',').nth(MOST).is_some() {
        return Err(Problem::TooLong("64 addresses"));
    }
    let listed = text.contains(',');
    let mut fixed: Vec<FixedAddress> = Vec::new();
    for item in text.split(',').map(str::trim) {
        let one = match item {
            "" => return Err(Problem::EmptyItem(EXPECTED)),
            "auto" | "none" if listed => return Err(Problem::Alone(item.to_owned())),
            item => one(item)?,
        };
        if fixed.iter().any(|before| before.address.address == one.address.address) {
            return Err(Problem::Twice(one.address.address.to_string()));
        }
        // A sub-interface has one address of each family; which of two would be used is not ours to
        // guess.
        let ipv4 = one.address.address.is_ipv4();
        let again = |before: &&FixedAddress| {
            before.hca == one.hca && before.address.address.is_ipv4() == ipv4
        };
        if let Some(before) = fixed.iter().find(again) {
            let reason = format!(
                "{} is of the same family; an adapter gets one address of each",
                before.address
            );
            return Err(Problem::Address { item: shown(item), reason });
        }
        fixed.push(one);
    }
    let bare = fixed.iter().any(|one| one.hca.is_none());
    if let Some(named) = fixed.iter().find(|one| one.hca.is_some()).filter(|_| bare) {
        let reason = "either all addresses name their adapter, or none does".to_owned();
        return Err(Problem::Address { item: named.to_string(), reason });
    }
    Ok(AddressRequest::Fixed(fixed))
}

fn one(item: &str) -> Result<FixedAddress, Problem> {
    let wrong = |reason: String| Problem::Address { item: shown(item), reason };
    let (hca, text) = match item.split_once('=') {
        Some((hca, text)) => {
            let hca = name(hca.trim(), false).ok_or_else(|| {
                wrong("in front of = goes the kernel name of an adapter, such as mlx5_0".into())
            })?;
            (Some(hca), text.trim())
        }
        None => (None, item),
    };
    if let Ok(address) = text.parse::<Prefix>() {
        return match unfit(address) {
            Some(why) => Err(wrong(why)),
            None => Ok(FixedAddress { hca, address }),
        };
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let length = if address.is_ipv4() { 24 } else { 64 };
        return Err(wrong(format!(
            "its prefix length is missing; did you mean {address}/{length}?"
        )));
    }
    if text.contains(['.', ':', '/']) || hca.is_some() {
        return Err(wrong(
            "expected an address with its prefix length, such as 10.1.0.7/24".into(),
        ));
    }
    Err(unknown(text, ["auto", "none", "an address such as 10.1.0.7/24"].into_iter()))
}

/// Why nobody can have that address.
fn unfit(prefix: Prefix) -> Option<String> {
    let address = prefix.address;
    let link_local = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address.to_ipv4_mapped().is_some()
        }
    };
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local {
        return Some("no interface is given such an address".to_owned());
    }
    if prefix.length == 0 {
        return Some("a prefix length of 0 is the whole world".to_owned());
    }
    prefix.reserves(address).then(|| {
        "it stands for the network itself, or for everybody in it; no interface can have it"
            .to_owned()
    })
}

impl fmt::Display for FixedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(hca) = &self.hca {
            write!(f, "{hca}=")?;
        }
        write!(f, "{}", self.address)
    }
}

impl fmt::Display for AddressRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Fixed(fixed) => {
                for (at, one) in fixed.iter().enumerate() {
                    write!(f, "{}{one}", if at > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in [
            "auto",
            "none",
            "10.1.0.7/24",
            "10.1.0.7/24,fd00::7/64",
            "mlx5_0=10.1.0.7/24,mlx5_1=10.1.1.7/24",
            "mlx5_0=10.1.0.6/31",
        ] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
        assert_eq!(
            address(" mlx5_0 = 10.1.0.7/24 , mlx5_1=fd00::1/64 ").unwrap().to_string(),
            "mlx5_0=10.1.0.7/24,mlx5_1=fd00::1/64"
        );
    }

    #[test]
    fn what_is_no_address_is_told_with_what_was_meant() {
        for (text, error) in [
            ("", "empty value; expected auto, none, an address such as 10.1.0.7/24, or mlx5_0="),
            (
                "atuo",
                "\"atuo\" is none of auto, none, an address such as 10.1.0.7/24; did you mean \"auto\"?",
            ),
            ("10.1.0.7", "its prefix length is missing; did you mean 10.1.0.7/24?"),
            ("mlx5_0=fd00::7", "its prefix length is missing; did you mean fd00::7/64?"),
            ("10.1.0.7/33", "expected an address with its prefix length"),
            ("mlx5_0=auto", "expected an address with its prefix length"),
            ("../x=10.1.0.7/24", "in front of = goes the kernel name of an adapter"),
            ("10.1.0.0/24", "it stands for the network itself"),
            ("10.1.0.255/24", "it stands for the network itself"),
            ("fd00::/64", "it stands for the network itself"),
            ("127.0.0.1/8", "no interface is given such an address"),
            ("fe80::1/64", "no interface is given such an address"),
            ("224.0.0.1/24", "no interface is given such an address"),
            ("10.1.0.7/0", "a prefix length of 0"),
            ("10.1.0.7/24,auto", "\"auto\" stands alone"),
            ("10.1.0.7/24,", "empty selector beside a comma"),
            ("10.1.0.7/24,10.1.0.7/25", "\"10.1.0.7\" is given twice"),
            ("a=10.1.0.7/24,b=10.1.0.7/24", "\"10.1.0.7\" is given twice"),
            ("10.1.0.7/24,10.1.0.8/24", "an adapter gets one address of each"),
            ("a=10.1.0.7/24,10.1.0.8/24", "either all addresses name their adapter, or none does"),
        ] {
            let problem = address(text).unwrap_err().to_string();
            assert!(problem.contains(error), "{text}: {problem}");
        }
        assert!(address(&"10.1.0.7/24,".repeat(65)).is_err());
    }
}
