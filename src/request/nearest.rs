//! Which known word somebody may have meant.

/// The candidate that is fewest slips of the keyboard away, where that is few enough to be worth
/// saying: at most a third of the word, and always one. Of several equally near the first.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A tenant may have typed kilobytes, and the distance takes time by the square.
    if word.len() > 64 {
        return None;
    }
    let word: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
    let most = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
            (distance(&word, &letters), candidate)
        })
        .filter(|(slips, _)| *slips <= most)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// Slips between two words: a letter left out, added, changed, or two neighbours swapped (optimal
/// string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = above[j] + usize::from(a[i] != b[j]);
            let mut slips = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                slips = slips.min(before[j - 1] + 1);
            }
            row.push(slips);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (a, b, slips) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("devices", "devices", 0),
            ("device", "devices", 1),
            ("devcies", "devices", 1),
            ("dveices", "devices", 1),
            ("memlok", "memlock", 1),
            ("numa", "nodes", 4),
        ] {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(distance(&letters(a), &letters(b)), slips, "{a:?} {b:?}");
        }
    }

    #[test]
    fn the_nearest_is_named_only_when_it_is_near() {
        let keys = ["devices", "nodes", "memlock", "numa", "env"];
        for (word, expected) in [
            ("device", Some("devices")),
            ("Devices", Some("devices")),
            ("memlok", Some("memlock")),
            ("enb", Some("env")),
            ("node", Some("nodes")),
            ("gpu", None),
            ("", None),
            ("schedule", None),
        ] {
            assert_eq!(nearest(word, keys), expected, "{word:?}");
        }
        assert_eq!(nearest(&"devices".repeat(100), keys), None);
    }
}
