//! What a container's own `NCCL_IB_HCA` means, as NCCL reads it.

/// The value of `NCCL_IB_HCA`, in any of its four forms: a list of names that are beginnings, or
/// with `=` whole names, of devices to use, or with `^` in front of devices to leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcaList {
    /// `^`: everything but these.
    pub except: bool,
    /// `=`: whole names.
    pub exact: bool,
    /// Names, each with the port that it is limited to.
    pub items: Vec<(String, Option<u32>)>,
}

impl HcaList {
    /// Reads a value. What is no list at all is one without items.
    pub fn parse(text: &str) -> Self {
        let (except, text) = mark(text, '^');
        let (exact, text) = mark(text, '=');
        let items = text
            .split(',')
            .filter(|item| !item.is_empty())
            .map(|item| match item.split_once(':') {
                Some((name, port)) => (name.to_owned(), port.parse().ok()),
                None => (item.to_owned(), None),
            })
            .collect();
        Self { except, exact, items }
    }

    /// Whether NCCL uses that port of that device. A list without items names every one.
    pub fn selects(&self, device: &str, port: u32) -> bool {
        if self.items.is_empty() {
            return true;
        }
        let named = self.items.iter().any(|(name, only)| {
            let same = if self.exact { device == name } else { device.starts_with(name.as_str()) };
            same && only.is_none_or(|only| only == port)
        });
        named != self.except
    }
}

fn mark(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign).map_or((false, text), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c41_every_form_is_read() {
        let eight: Vec<String> = (0..8).map(|n| format!("mlx5_{n}")).collect();
        let eight: Vec<&str> = eight.iter().map(String::as_str).collect();
        let close = ["mlx5_1", "mlx5_10", "mlx5_2"];
        for (text, devices, expected) in [
            (
                "^=mlx5_0,mlx5_5",
                &eight[..],
                &["mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_6", "mlx5_7"][..],
            ),
            ("^mlx5_1", &close, &["mlx5_2"]),
            ("^=mlx5_1", &close, &["mlx5_10", "mlx5_2"]),
            ("mlx5_1", &close, &["mlx5_1", "mlx5_10"]),
            ("=mlx5_1", &close, &["mlx5_1"]),
            ("=mlx5_1:1,mlx5_2:2", &close, &["mlx5_1"]),
            ("mlx5", &close, &close),
            ("", &close, &close),
            ("=", &close, &close),
            ("rdma0,rdma1", &close, &[]),
        ] {
            let list = HcaList::parse(text);
            let selected: Vec<_> =
                devices.iter().copied().filter(|device| list.selects(device, 1)).collect();
            assert_eq!(selected, expected, "{text:?}");
        }
    }
}
