//! Ranges of addresses, and which GID NCCL takes by itself within one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::inventory::{Gid, GidKind};

/// A range of addresses: `10.1.0.4/30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    first: IpAddr,
    length: u32,
}

impl Range {
    /// The narrowest range that holds all of them; `None` for none, or for two families.
    pub(super) fn around(addresses: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let mut addresses = addresses.into_iter();
        let first = addresses.next()?;
        addresses.try_fold(Self { first, length: bits(first).1 }, |range, address| {
            let ((ours, width), (other, other_width)) = (bits(range.first), bits(address));
            let differing = 128 - (ours ^ other).leading_zeros();
            let length = range.length.min(width.checked_sub(differing)?);
            (width == other_width).then(|| Self { first: masked(range.first, length), length })
        })
    }

    /// Whether it is every address of its family.
    pub(super) const fn is_everything(self) -> bool {
        self.length == 0
    }

    /// Whether it holds that address.
    pub(super) fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.length) == self.first
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

/// An address as a number, and how many bits it has.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), Ipv4Addr::BITS),
        IpAddr::V6(address) => (address.to_bits(), Ipv6Addr::BITS),
    }
}

/// The first address of the range of that length around `address`.
fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(Ipv4Addr::BITS.saturating_sub(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(Ipv6Addr::BITS.saturating_sub(length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

/// The slot that NCCL 2.21 and newer takes when no index is set: starting from slot 0, an entry
/// replaces the present one when it is the first of the wanted family in the range, of whatever
/// version; or when it is RoCE v2 there and the present one is not.
pub(super) fn nccl_takes(table: &[Gid], ipv6: bool, range: Option<Range>) -> u32 {
    let wanted = |address: IpAddr| {
        address.is_ipv6() == ipv6 && range.is_none_or(|range| range.holds(address))
    };
    let first = table.iter().find(|gid| gid.index == 0);
    let mut taken = 0;
    let mut family = first.is_none_or(|gid| gid.address().is_ipv6());
    let mut kind = first.and_then(|gid| gid.kind);
    let mut valid = first.is_some_and(valid_for_nccl);
    for gid in table.iter().filter(|gid| gid.index > 0 && wanted(gid.address())) {
        let other_family = family != ipv6;
        let better =
            valid_for_nccl(gid) && gid.kind == Some(GidKind::V2) && (kind != gid.kind || !valid);
        if other_family || better {
            taken = gid.index;
            family = ipv6;
            kind = gid.kind;
            valid = valid_for_nccl(gid);
        }
    }
    taken
}

/// Neither empty nor link-local.
fn valid_for_nccl(gid: &Gid) -> bool {
    !gid.value.is_unspecified() && !gid.value.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::tests::machines::gid_table;

    fn around(addresses: &[&str]) -> Option<String> {
        Range::around(addresses.iter().map(|text| text.parse().unwrap()))
            .map(|range| range.to_string())
    }

    #[test]
    fn the_narrowest_range_is_found() {
        for (addresses, range) in [
            (&["10.1.0.7"][..], Some("10.1.0.7/32")),
            (&["10.1.0.4", "10.1.0.7"], Some("10.1.0.4/30")),
            (&["10.1.0.7", "10.1.0.4", "10.1.0.5"], Some("10.1.0.4/30")),
            (&["10.0.0.1", "192.168.0.1"], Some("0.0.0.0/0")),
            (&["fd93::12", "fd93::13"], Some("fd93::12/127")),
            (&["fd93::12", "8000::"], Some("8000::/1")),
            (&["7000::", "8000::"], Some("::/0")),
            (&["::1", "ffff::"], Some("::/0")),
            (&["10.0.0.1", "fd93::12"], None),
            (&[], None),
        ] {
            assert_eq!(around(addresses).as_deref(), range, "{addresses:?}");
        }
    }

    #[test]
    fn a_range_holds_what_is_in_it() {
        let range = Range::around(["10.1.0.4", "10.1.0.7"].map(|text| text.parse().unwrap()));
        let range = range.unwrap();
        for (address, held) in
            [("10.1.0.4", true), ("10.1.0.6", true), ("10.1.0.8", false), ("::ffff:1:2", false)]
        {
            assert_eq!(range.holds(address.parse().unwrap()), held, "{address}");
        }
    }

    #[test]
    fn nccl_takes_the_first_v2_of_its_family() {
        let table = gid_table(
            "0 v1 fe80::1 eth0\n1 v2 fe80::1 eth0\n2 v1 ::ffff:10.0.0.1 eth0\n\
             3 v2 ::ffff:10.0.0.1 eth0\n4 v1 ::ffff:10.1.0.7 net1\n5 v2 ::ffff:10.1.0.7 net1\n\
             6 v1 fd93::1 net1\n7 v2 fd93::1 net1",
        );
        let range = |text: &str| Range::around([text.parse().unwrap()]);
        assert_eq!(nccl_takes(&table, false, None), 3);
        assert_eq!(nccl_takes(&table, false, range("10.1.0.7")), 5);
        assert_eq!(nccl_takes(&table, true, None), 7);
        assert_eq!(nccl_takes(&table, false, range("10.2.0.7")), 0);
        assert_eq!(nccl_takes(&[], false, None), 0);
    }
}
