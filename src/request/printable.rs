//! Which characters of a tenant's text can stand in a line that somebody reads.

/// Whether a character does not print as itself: controls (Unicode category Cc), the two separators
/// that end a line (Zl, Zp), and those of format (Cf), which reorder or hide what stands around
/// them. As of Unicode 16; tags are taken as a whole block.
pub(crate) fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_reorders_is_no_text() {
        for letter in
            ['\n', '\u{1b}', '\u{85}', '\u{200b}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}']
        {
            assert!(is_unprintable(letter), "{letter:?}");
        }
        for letter in ['a', ' ', 'é', '中', 'ש', '\u{2027}', '\u{2030}', '…', '🙂'] {
            assert!(!is_unprintable(letter), "{letter:?}");
        }
    }
}
