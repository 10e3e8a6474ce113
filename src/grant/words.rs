//! How decisions are worded: short lists, sizes, and tenants' text made fit for one line.

use super::Refusal;
use crate::request::{Key, Request, SUFFIX, is_unprintable};

/// Names in a list before the rest is only counted.
const LISTED: usize = 16;

/// Characters of a tenant's text that are quoted.
const QUOTED: usize = 120;

/// A refusal that begins with what was asked: `devices.rdma-ctk.io=mlx5_9: …`.
pub(super) fn refuse(request: &Request, key: Key, why: impl AsRef<str>) -> Refusal {
    Refusal { sentence: format!("{}: {}", asked(request, key), why.as_ref()) }
}

/// The annotation and its value as typed, or just the key where none was.
pub(super) fn asked(request: &Request, key: Key) -> String {
    request.asked_by.get(&key).map_or_else(
        || format!("{}.{SUFFIX}", key.word()),
        |asked| format!("{}={}", quote(&asked.annotation), quote(&asked.value)),
    )
}

/// A tenant's text on one line: what does not print as itself is escaped, the end of a long one left
/// out.
pub(super) fn quote(text: &str) -> String {
    let printable =
        |c: char| if is_unprintable(c) { c.escape_default().to_string() } else { c.into() };
    let mut quoted: String = text.chars().take(QUOTED).map(printable).collect();
    if text.chars().nth(QUOTED).is_some() {
        quoted.push('…');
    }
    quoted
}

/// `a, b, c`, long lists cut: `a, b and 30 more`; `none` for an empty one.
pub(super) fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    let mut left_off = 0_usize;
    for (place, item) in items.into_iter().enumerate() {
        if place >= LISTED {
            left_off += 1;
            continue;
        }
        if place > 0 {
            text.push_str(", ");
        }
        text.push_str(item.as_ref());
    }
    if left_off > 0 {
        text.push_str(&format!(" and {left_off} more"));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

/// A limit in bytes: `unlimited`, `64 GiB`, `65000 bytes`.
pub(super) fn size(bytes: u64) -> String {
    if bytes == u64::MAX {
        return "unlimited".to_owned();
    }
    [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_worded_exactly() {
        for (bytes, worded) in [
            (u64::MAX, "unlimited"),
            (0, "0 bytes"),
            (1, "1 bytes"),
            (65_536, "64 KiB"),
            (65_000, "65000 bytes"),
            (8 << 20, "8 MiB"),
            (68_719_476_736, "64 GiB"),
            (3 << 39, "1536 GiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(size(bytes), worded, "{bytes}");
        }
    }

    #[test]
    fn lists_are_short() {
        assert_eq!(list::<&str>([]), "none");
        assert_eq!(list(["a"]), "a");
        assert_eq!(list(["a", "b"]), "a, b");
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert!(list(&many).ends_with("14, 15 and 4 more"), "{}", list(&many));
    }

    #[test]
    fn tenants_text_stays_on_one_line() {
        assert_eq!(quote("a\nb\u{7}"), "a\\nb\\u{7}");
        assert_eq!(quote("größe"), "größe");
        assert_eq!(quote("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
        let long = "x".repeat(500);
        assert_eq!(quote(&long).chars().count(), QUOTED + 1);
    }
}
