//! Where the addresses of sub-interfaces come from.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::matches_any;
use crate::inventory::prefix::width;
use crate::inventory::{Hca, Prefix};

/// Addresses from the first to the last, both of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Range {
    first: IpAddr,
    last: IpAddr,
    /// Prefix length, where it was written as a network.
    length: Option<u8>,
}

/// A text is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no range of addresses: expected FIRST-LAST of one family, such as \
     10.1.0.64-10.1.0.127, or a network such as 10.1.0.64/26"
)]
pub struct RangeError(pub String);

impl Range {
    /// That of a network.
    pub fn of(network: Prefix) -> Self {
        Self { first: network.first(), last: network.last(), length: Some(network.length) }
    }

    /// First address.
    pub const fn first(self) -> IpAddr {
        self.first
    }

    /// Last address, not below the first.
    pub const fn last(self) -> IpAddr {
        self.last
    }

    /// Prefix length that it was written with; `None`: it was written as FIRST-LAST.
    pub const fn length(self) -> Option<u8> {
        self.length
    }

    /// Whether that address is in it.
    pub fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last).contains(&address)
    }

    /// Whether both hold an address.
    fn overlaps(self, other: Self) -> bool {
        self.holds(other.first) || other.holds(self.first)
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let parse = || {
            let Some((first, last)) = text.split_once('-') else {
                return text.parse::<Prefix>().ok().map(Self::of);
            };
            let range = Self {
                first: first.trim().parse().ok()?,
                last: last.trim().parse().ok()?,
                length: None,
            };
            range.holds(range.last).then_some(range)
        };
        parse().ok_or_else(|| RangeError(text.to_owned()))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => write!(f, "{}/{length}", self.first),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl TryFrom<String> for Range {
    type Error = RangeError;

    fn try_from(text: String) -> Result<Self, RangeError> {
        text.parse()
    }
}

impl From<Range> for String {
    fn from(range: Range) -> Self {
        range.to_string()
    }
}

/// Addresses that the sub-interfaces of some adapters are given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Pool {
    /// The adapters, by kernel name or PCI address, `*` for any run of characters.
    pub adapters: BTreeSet<String>,
    /// The addresses; `None` with `own_prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
    /// The addresses are those of the adapter's own prefixes, which are this node's alone.
    pub own_prefix: bool,
    /// Prefix length of an address in the pod; `None`: that of the adapter's own prefix around it,
    /// else that of the range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<u8>,
    /// Router on the adapter's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Networks that are reached over the adapter: by the router, or directly without one.
    pub routes: Vec<Prefix>,
}

/// The pools of one adapter, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pools(pub Vec<Pool>);

impl Pool {
    /// Whether it is for that adapter.
    fn is_for(&self, hca: &Hca) -> bool {
        matches_any(&self.adapters, &hca.name)
            || hca.pci.is_some_and(|address| matches_any(&self.adapters, &address.to_string()))
    }

    /// What is wrong with it by itself.
    fn problem(&self) -> Option<String> {
        if self.adapters.is_empty() {
            return Some("a pool names no adapters".to_owned());
        }
        let range = match (self.range, self.own_prefix) {
            (None, false) => {
                return Some("a pool has neither a range nor own_prefix = true".to_owned());
            }
            (Some(_), true) => {
                return Some("a pool has a range and own_prefix, of which one counts".to_owned());
            }
            (range, _) => range,
        };
        let families = self.gateway.into_iter().chain(self.routes.iter().map(|to| to.address));
        let ipv4 = range
            .map(|range| range.first.is_ipv4())
            .or_else(|| self.gateway.map(|gateway| gateway.is_ipv4()));
        let foreign = |address: &IpAddr| ipv4.is_some_and(|ipv4| address.is_ipv4() != ipv4);
        if let Some(address) = families.into_iter().find(foreign) {
            return Some(format!("{address} is of another family than the rest of its pool"));
        }
        if let (Some(range), Some(length)) = (range, self.prefix_length) {
            if length > width(range.first) {
                return Some(format!("prefix_length {length} is longer than an address"));
            }
            let whole = Prefix { address: range.first, length };
            if !whole.holds(range.last) {
                return Some(format!("{range} is no part of one network with /{length}"));
            }
        }
        let zero = self.prefix_length == Some(0) || self.prefix_length > Some(128);
        zero.then(|| "prefix_length is from 1 to 32, of IPv6 to 128".to_owned())
    }
}

impl super::Links {
    /// The pools of that adapter.
    pub fn pools_of(&self, hca: &Hca) -> Pools {
        Pools(self.pools.iter().filter(|pool| pool.is_for(hca)).cloned().collect())
    }
}

/// Reads the pools of a file: none of them overlaps one before it.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pool>, D::Error> {
    deserializer.deserialize_seq(List)
}

struct List;

impl<'de> Visitor<'de> for List {
    type Value = Vec<Pool>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of pools, each [[links.pools]]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Pool>, A::Error> {
        let mut pools = Vec::new();
        while let Some(pool) = list.next_element_seed(Beside(&pools))? {
            pools.push(pool);
        }
        Ok(pools)
    }
}

/// Reads a pool that stands behind these: inside, so that an error carries the pool's place.
struct Beside<'a>(&'a [Pool]);

impl<'de> DeserializeSeed<'de> for Beside<'_> {
    type Value = Pool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Pool, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Beside<'_> {
    type Value = Pool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pool")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Pool, A::Error> {
        let pool = Pool::deserialize(MapAccessDeserializer::new(map))?;
        if let Some(problem) = pool.problem() {
            return Err(de::Error::custom(problem));
        }
        let overlapping = self
            .0
            .iter()
            .filter_map(|before| before.range)
            .find(|before| pool.range.is_some_and(|range| range.overlaps(*before)));
        match (pool.range, overlapping) {
            (Some(range), Some(before)) => Err(de::Error::custom(format!(
                "the range {range} overlaps {before} of a pool before it: an address belongs to \
                 one pool; name both adapters in one"
            ))),
            _ => Ok(pool),
        }
    }
}

/// Most children on one adapter at a time: none would be no sub-interfaces at all.
pub(super) fn children<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let most = i64::deserialize(deserializer)?;
    u32::try_from(most).ok().filter(|most| (1..=4096).contains(most)).ok_or_else(|| {
        de::Error::custom(format!("{most} is out of range: from 1 to 4096 sub-interfaces"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn read(text: &str) -> Result<Vec<Pool>, String> {
        Policy::from_toml(text).map(|policy| policy.links.pools).map_err(|error| error.to_string())
    }

    #[test]
    fn ranges_are_read() {
        for (text, written, first, last) in [
            ("10.1.0.64-10.1.0.127", "10.1.0.64-10.1.0.127", "10.1.0.64", "10.1.0.127"),
            ("10.1.0.64 - 10.1.0.64", "10.1.0.64-10.1.0.64", "10.1.0.64", "10.1.0.64"),
            ("10.1.0.70/26", "10.1.0.64/26", "10.1.0.64", "10.1.0.127"),
            ("fd00::/126", "fd00::/126", "fd00::", "fd00::3"),
        ] {
            let range: Range = text.parse().unwrap();
            assert_eq!(range.to_string(), written);
            assert_eq!(
                (range.first.to_string(), range.last.to_string()),
                (first.into(), last.into())
            );
        }
        for text in ["", "10.1.0.64", "10.1.0.9-10.1.0.8", "10.1.0.1-fd00::1", "a-b", "10.0.0.0/40"]
        {
            assert!(text.parse::<Range>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_pool_that_cannot_work_is_an_error_with_its_line() {
        let good = "[[links.pools]]\nadapters = [\"mlx5_0\"]\nrange = \"10.1.0.64-10.1.0.127\"\n";
        assert_eq!(read(good).unwrap().len(), 1);
        for (more, error) in [
            (
                "[[links.pools]]\nadapters = [\"mlx5_1\"]\nrange = \"10.1.0.127-10.1.1.1\"\n",
                "line 4, column 1: the range 10.1.0.127-10.1.1.1 overlaps 10.1.0.64-10.1.0.127 of a \
                 pool before it: an address belongs to one pool; name both adapters in one",
            ),
            ("[[links.pools]]\nown_prefix = true\n", "line 4, column 1: a pool names no adapters"),
            (
                "[[links.pools]]\nadapters = [\"*\"]\n",
                "line 4, column 1: a pool has neither a range nor own_prefix = true",
            ),
            (
                "[[links.pools]]\nadapters = [\"*\"]\nrange = \"fd00::/64\"\nown_prefix = true\n",
                "line 4, column 1: a pool has a range and own_prefix, of which one counts",
            ),
            (
                "[[links.pools]]\nadapters = [\"*\"]\nrange = \"10.2.0.0/24\"\ngateway = \"fd00::1\"\n",
                "line 4, column 1: fd00::1 is of another family than the rest of its pool",
            ),
            (
                "[[links.pools]]\nadapters = [\"*\"]\nrange = \"10.2.0.0/24\"\nprefix_length = 25\n",
                "line 4, column 1: 10.2.0.0/24 is no part of one network with /25",
            ),
        ] {
            assert_eq!(read(&format!("{good}{more}")).unwrap_err(), error);
        }
        let error = read("[[links.pools]]\nadapters = [\"*\"]\nrange = \"10.1.0.9-10.1.0.8\"\n");
        assert!(error.as_ref().unwrap_err().starts_with("line 3, "), "{error:?}");
        let error = read("[[links.pools]]\nadapters = [\"*\"]\nrnage = \"10.1.0.8/24\"\n");
        assert!(error.as_ref().unwrap_err().starts_with("line 3, "), "{error:?}");
        for children in ["0", "-1", "5000"] {
            assert!(Policy::from_toml(&format!("[links]\nchildren = {children}\n")).is_err());
        }
    }

    #[test]
    fn an_adapter_has_the_pools_that_name_it() {
        let policy = Policy::from_toml(
            "[[links.pools]]\nadapters = [\"mlx5_*\"]\nrange = \"10.1.0.0/24\"\n\
             [[links.pools]]\nadapters = [\"mlx5_1\"]\nrange = \"10.2.0.0/24\"\n",
        )
        .unwrap();
        let node = crate::grant::tests::machines::node([
            crate::grant::tests::machines::infiniband("mlx5_0", 0),
            crate::grant::tests::machines::infiniband("mlx5_1", 1),
        ]);
        let pools = |name: &str| policy.links.pools_of(node.hca(name).unwrap()).0.len();
        assert_eq!((pools("mlx5_0"), pools("mlx5_1")), (1, 2));
    }
}
