//! A look at a document's bytes, before it is parsed: most containers ask for nothing, and for them
//! the wrapper has to be as if it were not there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use memchr::{memchr, memchr_iter, memmem};

/// What the bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Nothing in there concerns us.
    Nothing,
    /// An adapter may be in there that somebody else has given.
    Perhaps,
    /// A key of ours is in there, or something else that asks.
    Mentioned,
}

/// Looks for what every request and every claim has in it. It says too much rather than too little:
/// a text in which letters are written as `\u00XX` may hold anything, though no engine writes so.
pub fn look(text: &[u8]) -> Look {
    // Two of the words that ask hold this one.
    let rdma = holds(text, b"rdma");
    let words = [&b"rdma-ctk.io"[..], b"erdma-smcr"];
    if rdma && words.iter().any(|word| holds(text, word))
        || holds(text, b"pod-networks")
        || has_escaped_letter(text)
    {
        return Look::Mentioned;
    }
    // Nodes of adapters have these paths, since libibverbs looks for them there; CDI names and
    // variables of other plugins have the other word.
    if rdma || holds(text, b"/dev/infiniband") {
        return Look::Perhaps;
    }
    // A key in other letters is a slip that is told.
    if holds_in_any_case(text, b"rdma-ctk.io") { Look::Mentioned } else { Look::Nothing }
}

/// Whether a file that is too long to be kept in memory has a key of ours in it; one that cannot be
/// read has none.
pub fn mentions_us(path: &Path) -> bool {
    const WORD: &[u8] = b"rdma-ctk.io";
    let Ok(mut file) = File::open(path) else { return false };
    let mut buffer = vec![0; 64 << 10];
    let mut kept = 0;
    while let Ok(read @ 1..) = file.read(&mut buffer[kept..]) {
        let filled = kept + read;
        if holds(&buffer[..filled], WORD) {
            return true;
        }
        // It may stand across two pieces.
        kept = filled.min(WORD.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
    false
}

fn holds(text: &[u8], word: &[u8]) -> bool {
    memmem::find(text, word).is_some()
}

fn holds_in_any_case(text: &[u8], word: &[u8]) -> bool {
    // The dash is rare, and has no case.
    let Some(dash) = word.iter().position(|byte| *byte == b'-') else { return false };
    memchr_iter(b'-', text).any(|at| {
        let found = at.checked_sub(dash).and_then(|start| text.get(start..start + word.len()));
        found.is_some_and(|found| found.eq_ignore_ascii_case(word))
    })
}

/// Whether an ASCII letter or digit, or one of `.`, `-` and `/`, is written as an escape.
fn has_escaped_letter(text: &[u8]) -> bool {
    let mut text = text;
    while let Some(at) = memchr(b'\\', text) {
        let escape = &text[at + 1..];
        if let Some(digits) = escape.strip_prefix(b"u00").and_then(|rest| rest.get(..2)) {
            let code = std::str::from_utf8(digits).ok();
            let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            if code.is_some_and(|code| code.is_ascii_alphanumeric() || b".-/".contains(&code)) {
                return true;
            }
        }
        // What is escaped by a backslash is no backslash of its own.
        text = escape.get(1..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_claims_are_seen_in_the_bytes() {
        for (text, expected) in [
            ("", Look::Nothing),
            (r#"{"annotations":{"a":"b"},"process":{"env":["A=-b"]}}"#, Look::Nothing),
            (r#"{"annotations":{"devices.rdma-ctk.io/pod":"all"}}"#, Look::Mentioned),
            (r#"{"annotations":{"Devices.RDMA-CTK.io":"all"}}"#, Look::Mentioned),
            (r#"{"annotations":{"network.alibabacloud.com/erdma-smcr":"true"}}"#, Look::Mentioned),
            (r#"{"annotations":{"k8s.volcengine.com/pod-networks":"[]"}}"#, Look::Mentioned),
            (r#"{"annotations":{"devices.\u0072dma-ctk.io":"all"}}"#, Look::Mentioned),
            (r#"{"env":["A=\u003c\u0026\\u0072"]}"#, Look::Nothing),
            (r#"{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0"}]}}"#, Look::Perhaps),
            (r#"{"annotations":{"cdi.k8s.io/x":"nvidia.com/net-rdma=0"}}"#, Look::Perhaps),
            (r#"{"a":"b\"#, Look::Nothing),
            (r#"{"a":"\u00"#, Look::Nothing),
        ] {
            assert_eq!(look(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_word_is_found_wherever_it_stands() {
        for (text, word, found) in [
            ("rrdma", "rdma", true),
            ("rdmrdm", "rdma", false),
            ("xrdma", "rdma", true),
            ("rdm", "rdma", false),
        ] {
            assert_eq!(holds(text.as_bytes(), word.as_bytes()), found, "{text}");
        }
    }
}
