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

/// Whether a file that is too long to be kept in memory has in it what [`look`] takes for a request;
/// one that cannot be read has nothing.
pub fn mentions_us(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| asks(file, &mut vec![0; 64 << 10]))
}

/// The same by way of a buffer, which must be longer than every word.
fn asks(mut text: impl Read, buffer: &mut [u8]) -> bool {
    /// As long as the longest word, and more than an escape.
    const KEPT: usize = 16;
    let mut kept = 0;
    while let Ok(read @ 1..) = text.read(&mut buffer[kept..]) {
        let filled = kept + read;
        let piece = &buffer[..filled];
        if look(piece) == Look::Mentioned || holds_in_any_case(piece, b"rdma-ctk.io") {
            return true;
        }
        // A word may stand across two pieces; a piece must not begin within an escape.
        let mut start = filled.saturating_sub(KEPT);
        let backslashes = piece[..start].iter().rev().take_while(|byte| **byte == b'\\').count();
        start -= backslashes % 2;
        buffer.copy_within(start..filled, 0);
        kept = filled - start;
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

    /// Hands its bytes out a few at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = self.1.min(buffer.len()).min(self.0.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    #[test]
    fn a_text_in_pieces_is_looked_at_like_a_whole_one() {
        for (word, asked) in [
            (r"devices.rdma-ctk.io", true),
            (r"devices.RDMA-ctk.io/pod", true),
            (r"network.alibabacloud.com/erdma-smcr", true),
            (r"k8s.volcengine.com/pod-networks", true),
            (r"devices.\u0072dma-ctk.io", true),
            (r"\\\u0072", true),
            (r"\\u0072", false),
            (r"\\\\u0072\u003c", false),
            (r"/dev/infiniband rdma", false),
        ] {
            for before in 0..70 {
                let text = format!("{}{word}{}", "x".repeat(before), "\"".repeat(70 - before));
                for step in [1, 3, 17, 32] {
                    let text = Slowly(text.as_bytes(), step);
                    assert_eq!(
                        asks(text, &mut [0; 33]),
                        asked,
                        "{word} behind {before}, by {step}"
                    );
                }
            }
        }
    }
}
