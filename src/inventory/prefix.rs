//! An address with the length of its prefix, and the addresses around it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address with the length of its prefix: `10.1.0.7/24`. Of a network as a whole the address is
/// any one in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    /// Address.
    pub address: IpAddr,
    /// Bits that are the same for the whole network, at most 32 or 128.
    pub length: u8,
}

/// A text is no address with a prefix length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address with a prefix length, such as 10.1.0.7/24 or fd00::7/64")]
pub struct PrefixError(pub String);

impl Prefix {
    /// That address with that length; `None`: it has not as many bits.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        (length <= width(address)).then_some(Self { address, length })
    }

    /// First address of the network, of IPv4 the network's own name.
    pub fn first(self) -> IpAddr {
        let (number, _) = number(self.address);
        of_number(number & !self.rest(), self.address.is_ipv4())
    }

    /// Last address of the network, of IPv4 that of everybody in it.
    pub fn last(self) -> IpAddr {
        let (number, _) = number(self.address);
        of_number(number | self.rest(), self.address.is_ipv4())
    }

    /// Whether that address is one of the network's.
    pub fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && (self.first()..=self.last()).contains(&address)
    }

    /// Whether that address stands for the network or for everybody in it, so that nobody can have
    /// it: the first and last one of IPv4, but in networks of one or two; the first one of IPv6
    /// (RFC 4291: the subnet's routers), likewise.
    pub fn reserves(self, address: IpAddr) -> bool {
        let wide = self.length < width(self.address).saturating_sub(1);
        let last = self.address.is_ipv4() && address == self.last();
        wide && (address == self.first() || last)
    }

    /// Whether it holds that address and [reserves](Self::reserves) it.
    pub fn reserves_in(self, address: IpAddr) -> bool {
        self.holds(address) && self.reserves(address)
    }

    /// The bits that differ within the network.
    fn rest(self) -> u128 {
        let free = u32::from(width(self.address).saturating_sub(self.length));
        1u128.checked_shl(free).map_or(u128::MAX, |beyond| beyond - 1)
    }
}

/// How many bits an address of that family has.
pub fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An address as a number, and whether it is of IPv4.
pub fn number(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), true),
        IpAddr::V6(address) => (address.to_bits(), false),
    }
}

/// The address of that number; of IPv4 the last 32 bits count.
pub fn of_number(number: u128, ipv4: bool) -> IpAddr {
    if ipv4 {
        let low = u32::try_from(number & u128::from(u32::MAX)).unwrap_or(u32::MAX);
        Ipv4Addr::from_bits(low).into()
    } else {
        Ipv6Addr::from_bits(number).into()
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let plain = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            Self::new(address.parse().ok()?, length.parse().ok().filter(|_| plain)?)
        };
        parse().ok_or_else(|| PrefixError(text.to_owned()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;

    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_a_first_and_a_last_address() {
        for (text, first, last) in [
            ("10.1.0.7/24", "10.1.0.0", "10.1.0.255"),
            ("10.1.0.7/32", "10.1.0.7", "10.1.0.7"),
            ("10.1.0.7/31", "10.1.0.6", "10.1.0.7"),
            ("10.1.0.7/0", "0.0.0.0", "255.255.255.255"),
            ("fd00::7/64", "fd00::", "fd00::ffff:ffff:ffff:ffff"),
            ("fd00::7/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), text);
            assert_eq!(prefix.first().to_string(), first, "{text}");
            assert_eq!(prefix.last().to_string(), last, "{text}");
            assert!(prefix.holds(prefix.address));
        }
        for text in ["10.1.0.7", "10.1.0.7/33", "fd00::/129", "10.1.0.7/+4", "/24", "", "a/1"] {
            assert!(text.parse::<Prefix>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_stands_for_the_network_is_nobodys() {
        for (prefix, address, reserved) in [
            ("10.1.0.7/24", "10.1.0.0", true),
            ("10.1.0.7/24", "10.1.0.255", true),
            ("10.1.0.7/24", "10.1.0.1", false),
            ("10.1.0.7/31", "10.1.0.6", false),
            ("10.1.0.7/32", "10.1.0.7", false),
            ("fd00::7/64", "fd00::", true),
            ("fd00::7/64", "fd00::ffff:ffff:ffff:ffff", false),
            ("fd00::7/127", "fd00::6", false),
        ] {
            let prefix: Prefix = prefix.parse().unwrap();
            assert_eq!(prefix.reserves(address.parse().unwrap()), reserved, "{prefix} {address}");
        }
        let prefix: Prefix = "10.1.0.7/24".parse().unwrap();
        assert!(!prefix.holds("10.1.1.0".parse().unwrap()));
        assert!(!prefix.holds("fd00::".parse().unwrap()));
    }
}
