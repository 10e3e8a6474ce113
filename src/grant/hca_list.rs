//! NCCL's lists of names, as in `NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME`: a comma list of names,
//! each with `:port` if wanted, that are prefixes, or whole names after `=`; after `^` those that
//! are not to be used (`^` comes before `=`).

/// A list in one of its four forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HcaList<'a> {
    exclude: bool,
    exact: bool,
    entries: Vec<(&'a str, Option<u32>)>,
}

impl<'a> HcaList<'a> {
    /// Reads a list; an empty one names nothing.
    pub(super) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entry = |entry: &'a str| match entry.split_once(':') {
            // A port that is no number is every port.
            Some((name, port)) => (name, port.parse().ok()),
            None => (entry, None),
        };
        let entries = text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(entry);
        Self { exclude, exact, entries: entries.collect() }
    }

    /// Whether NCCL takes that port of that device.
    pub(super) fn takes(&self, name: &str, port: Option<u32>) -> bool {
        let named = self.entries.iter().any(|(wanted, at)| {
            let same = if self.exact { name == *wanted } else { name.starts_with(wanted) };
            same && (at.is_none() || port.is_none() || *at == port)
        });
        // An empty list is no restriction.
        named != self.exclude || self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c41_all_four_forms_are_understood() {
        let eight: Vec<String> = (0..8).map(|n| format!("mlx5_{n}")).collect();
        let three = ["mlx5_1", "mlx5_10", "mlx5_2"].map(str::to_owned);
        for (text, names, taken) in [
            ("^=mlx5_0,mlx5_5", &eight[..], "mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_6 mlx5_7"),
            ("^mlx5_1", &three[..], "mlx5_2"),
            ("^=mlx5_1", &three[..], "mlx5_10 mlx5_2"),
            ("mlx5_1", &three[..], "mlx5_1 mlx5_10"),
            ("=mlx5_1", &three[..], "mlx5_1"),
            ("=mlx5_1:1,mlx5_2:2", &three[..], "mlx5_1"),
            ("mlx5_1:2", &three[..], ""),
            ("mlx5", &three[..], "mlx5_1 mlx5_10 mlx5_2"),
            ("", &three[..], "mlx5_1 mlx5_10 mlx5_2"),
            (" = mlx5_2 , ", &three[..], "mlx5_2"),
        ] {
            let list = HcaList::parse(text);
            let of_list: Vec<&str> =
                names.iter().map(String::as_str).filter(|name| list.takes(name, Some(1))).collect();
            assert_eq!(of_list.join(" "), taken, "{text:?}");
        }
    }
}
