//! Fixture trees as text: a whole machine's `sys`, `proc` and `dev` in one file that a person can
//! read, unpacked into a folder that [`Roots::below`](crate::roots::Roots::below) takes.
//!
//! ```text
//! # A word for a text, used as `$(root)`.
//! $root = {15,37}
//! # The folder that the following paths are in. `{…}` gives every lane of the block its own part;
//! # parts that have commas in them are separated by `|`.
//! [sys/devices/pci0000:$(root)/0000:$(root):01.0/0000:{18,40}:00.0]
//! vendor = 0x15b3
//! infiniband/mlx5_{0,3}/node_type = 1: CA
//! # `<a..b>` is every number of a range, on top of the lanes; `<a..b/2>` is every second one.
//! infiniband/mlx5_{0,3}/ports/1/gids/<2..255> = 0000:0000:0000:0000:0000:0000:0000:0000
//! # On the right `<>` is that number, `<-1>` and `<+1>` are its neighbours.
//! infiniband/mlx5_{0,3}/ports/1/gids/<1..1> = fe80:0000:0000:0000:0000:0000:0000:000<>
//! # A path from the fixture's root, and a link, which becomes a relative one as in sysfs; `@` is
//! # the folder of the block.
//! /sys/class/infiniband/mlx5_{0,3} -> @/infiniband/mlx5_{0,3}
//! # A device node: a plain file with that mode, since a real one could be opened.
//! /dev/infiniband/uverbs{0,3} : 0666
//! # An empty folder.
//! net/
//! ```
//!
//! A text after `=` gets a line feed, as sysfs gives; `\n` in it is one more, and `\t` is a tab.
//! An empty one is an empty line.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// More files than any machine needs; a range typed wrongly must not fill the disk.
const MOST_FILES: usize = 1_000_000;

/// Why a fixture could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// The text cannot be read, or a file of the tree not be written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A line is not in the format.
    #[error("{path}:{line}: {reason}")]
    Line {
        /// The fixture's text.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// One file, link, folder or node of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A file and its text.
    File(String),
    /// A link and where it points, from the root of the tree if it begins with `/`.
    Link(String),
    /// A device node's mode.
    Node(u32),
    /// A folder that may be empty.
    Folder,
}

/// Unpacks the fixture text `file` into the folder `dir`, which need not exist.
pub fn unpack(file: &Path, dir: &Path) -> Result<(), FixtureError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| FixtureError::Io { path, source }
    };
    let text = fs::read_to_string(file).map_err(at(file))?;
    let entries = parse(&text).map_err(|(line, reason)| FixtureError::Line {
        path: file.to_owned(),
        line,
        reason,
    })?;
    fs::create_dir_all(dir).map_err(at(dir))?;
    for (path, entry) in entries {
        let place = dir.join(&path);
        write(&path, &entry, &place).map_err(at(&place))?;
    }
    Ok(())
}

fn write(path: &str, entry: &Entry, place: &Path) -> io::Result<()> {
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    match entry {
        Entry::File(text) => fs::write(place, text),
        Entry::Link(target) => symlink(relative(path, target), place),
        Entry::Folder => fs::create_dir_all(place),
        Entry::Node(mode) => {
            fs::write(place, "")?;
            fs::set_permissions(place, fs::Permissions::from_mode(*mode))
        }
    }
}

/// `target` as a link at `path` has to say it.
fn relative(path: &str, target: &str) -> String {
    let Some(target) = target.strip_prefix('/') else { return target.to_owned() };
    let mut from: Vec<&str> = path.split('/').collect();
    from.pop();
    let to: Vec<&str> = target.split('/').collect();
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", from.len() - common);
    up.chain(to.into_iter().skip(common)).collect::<Vec<_>>().join("/")
}

/// A text's entries by path, in the order of its lines; a mistake with its line's number.
pub fn parse(text: &str) -> Result<Vec<(String, Entry)>, (usize, &'static str)> {
    let mut folder = String::new();
    let mut entries = Vec::new();
    let mut words = Vec::new();
    let mut paths = HashSet::new();
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mistake = |reason| (number, reason);
        let line = with_words(line, &words).map_err(mistake)?;
        let line = line.as_str();
        if let Some((word, meaning)) =
            line.strip_prefix('$').and_then(|line| line.split_once(" = "))
        {
            words.push((word.to_owned(), meaning.to_owned()));
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let header = header.strip_suffix(']').ok_or((number, "a [folder] without its ]"))?;
            folder = header.trim_matches('/').to_owned();
            continue;
        }
        let before = entries.len();
        one(&folder, line, &mut entries).map_err(mistake)?;
        if entries.len() > MOST_FILES {
            return Err(mistake("the tree becomes too large here"));
        }
        for (path, _) in &entries[before..] {
            if !is_inside(path) {
                return Err(mistake("a path that is empty or leaves the tree"));
            }
            if !paths.insert(path.clone()) {
                return Err(mistake("a path that was there before"));
            }
        }
    }
    Ok(entries)
}

/// A line in which every `$(word)` is what it stands for.
fn with_words(line: &str, words: &[(String, String)]) -> Result<String, &'static str> {
    let mut seen = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("$(") {
        let (word, after) = after.split_once(')').ok_or("a $( without its )")?;
        let known = words.iter().rev().find(|(known, _)| known == word);
        let (_, meaning) = known.ok_or("a $(word) that was not given a meaning before")?;
        seen.push_str(before);
        seen.push_str(meaning);
        rest = after;
    }
    seen.push_str(rest);
    Ok(seen)
}

fn is_inside(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn one(folder: &str, line: &str, into: &mut Vec<(String, Entry)>) -> Result<(), &'static str> {
    let (path, kind, value) = split(line)?;
    let path = match path.strip_prefix('/') {
        Some(rooted) => rooted.to_owned(),
        None if folder.is_empty() => path.to_owned(),
        None => format!("{folder}/{path}"),
    };
    let value = match (kind, value.strip_prefix('@')) {
        (Kind::Link, Some(rest)) => format!("/{folder}{rest}"),
        _ => value.to_owned(),
    };
    let lanes = match (lanes(&path)?, lanes(&value)?) {
        (Some(left), Some(right)) if left != right => return Err(LANES),
        (left, right) => left.or(right),
    };
    for lane in 0..lanes.unwrap_or(1) {
        let (path, value) = (in_lane(&path, lane)?, in_lane(&value, lane)?);
        for (path, value) in each(&path, &value)? {
            let entry = match kind {
                Kind::File => {
                    let text = value.replace("\\n", "\n").replace("\\t", "\t");
                    Entry::File(text + "\n")
                }
                Kind::Link => Entry::Link(value),
                Kind::Folder => Entry::Folder,
                Kind::Node => {
                    Entry::Node(u32::from_str_radix(&value, 8).map_err(|_| "no octal mode")?)
                }
            };
            into.push((path, entry));
        }
    }
    Ok(())
}

const LANES: &str = "the {…} of this line and of its [folder] do not have equally many parts";

#[derive(Clone, Copy)]
enum Kind {
    File,
    Link,
    Folder,
    Node,
}

/// A line's path, what it makes, and of what.
fn split(line: &str) -> Result<(&str, Kind, &str), &'static str> {
    for (separator, kind) in [(" = ", Kind::File), (" -> ", Kind::Link), (" : ", Kind::Node)] {
        // The value may hold another separator, the path none.
        if let Some((path, value)) = line.split_once(separator)
            && !path.contains(' ')
        {
            return Ok((path, kind, value.trim()));
        }
    }
    if let Some(path) = line.strip_suffix(" =") {
        return Ok((path, Kind::File, ""));
    }
    match line.strip_suffix('/') {
        Some(path) => Ok((path, Kind::Folder, "")),
        None => Err("neither `path = text`, `path -> target`, `path : mode` nor `path/`"),
    }
}

/// The `{…}` of a text, from its first one on: what is before, inside and after.
fn group(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('{')?;
    let (inside, after) = rest.split_once('}')?;
    Some((before, inside, after))
}

/// The parts that one `{…}` lists: `a,b,c` or the numbers `0..7`.
fn parts(inside: &str) -> Result<Vec<String>, &'static str> {
    match range(inside)? {
        Some(range) => Ok(range.map(|number| number.to_string()).collect()),
        None => {
            let separator = if inside.contains('|') { '|' } else { ',' };
            Ok(inside.split(separator).map(str::to_owned).collect())
        }
    }
}

fn range(text: &str) -> Result<Option<std::ops::RangeInclusive<u32>>, &'static str> {
    let Some((low, high)) = text.split_once("..") else { return Ok(None) };
    let number = |text: &str| text.parse::<u32>().map_err(|_| "a range that is not of numbers");
    let range = number(low)?..=number(high)?;
    if range.is_empty() || range.clone().nth(MOST_FILES).is_some() {
        return Err("a range that is empty or too long");
    }
    Ok(Some(range))
}

/// How many lanes a text has; `None` if it does not say.
fn lanes(text: &str) -> Result<Option<usize>, &'static str> {
    let mut rest = text;
    let mut lanes = None;
    while let Some((_, inside, after)) = group(rest) {
        let here = parts(inside)?.len();
        if lanes.is_some_and(|lanes| lanes != here) {
            return Err(LANES);
        }
        lanes = Some(here);
        rest = after;
    }
    Ok(lanes)
}

/// A text as the lane of that number sees it.
fn in_lane(text: &str, lane: usize) -> Result<String, &'static str> {
    let mut seen = String::new();
    let mut rest = text;
    while let Some((before, inside, after)) = group(rest) {
        seen.push_str(before);
        seen.push_str(parts(inside)?.get(lane).ok_or(LANES)?);
        rest = after;
    }
    seen.push_str(rest);
    Ok(seen)
}

/// Every number of the path's `<a..b>`, with the `<…>` of the value replaced by it.
fn each(path: &str, value: &str) -> Result<Vec<(String, String)>, &'static str> {
    let Some((before, rest)) = path.split_once('<') else {
        return Ok(vec![(path.to_owned(), value.to_owned())]);
    };
    let (inside, after) = rest.split_once('>').ok_or("a < without its >")?;
    let (inside, step) = match inside.split_once('/') {
        Some((inside, step)) => (inside, step.parse().map_err(|_| "a step that is no number")?),
        None => (inside, 1),
    };
    let range = range(inside)?.ok_or("a <…> that is no range")?;
    if step == 0 {
        return Err("a step of nothing");
    }
    range
        .step_by(step)
        .map(|number| Ok((format!("{before}{number}{after}"), with_number(value, number)?)))
        .collect()
}

/// A value in which `<>` is that number, `<-1>` and `<+1>` its neighbours.
fn with_number(value: &str, number: u32) -> Result<String, &'static str> {
    const OFFSET: &str = "a <…> in the text that is neither <>, <+n> nor <-n>";
    let mut seen = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('<') {
        let (offset, after) = after.split_once('>').ok_or(OFFSET)?;
        let offset =
            if offset.is_empty() { 0 } else { offset.parse::<i32>().map_err(|_| OFFSET)? };
        let number = number.checked_add_signed(offset).ok_or(OFFSET)?;
        seen.push_str(before);
        seen.push_str(&number.to_string());
        rest = after;
    }
    seen.push_str(rest);
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Entry {
        Entry::File(text.to_owned())
    }

    #[test]
    fn lanes_and_ranges_are_expanded() {
        let text = "# comment\n$ab = {1,2}\n[sys/a$(ab)]\nw = {0,1|2}\nx = v{3,4}\n/dev/d{0..1} : 0666\n\
                    g/<0..2/2> = n<>,<+1>\nl -> @/b\n\n[]\ntop/\nempty =\n";
        let entries: Vec<(String, Entry)> = [
            ("sys/a1/w", file("0,1\n")),
            ("sys/a2/w", file("2\n")),
            ("sys/a1/x", file("v3\n")),
            ("sys/a2/x", file("v4\n")),
            ("dev/d0", Entry::Node(0o666)),
            ("dev/d1", Entry::Node(0o666)),
            ("sys/a1/g/0", file("n0,1\n")),
            ("sys/a1/g/2", file("n2,3\n")),
            ("sys/a2/g/0", file("n0,1\n")),
            ("sys/a2/g/2", file("n2,3\n")),
            ("sys/a1/l", Entry::Link("/sys/a1/b".into())),
            ("sys/a2/l", Entry::Link("/sys/a2/b".into())),
            ("top", Entry::Folder),
            ("empty", file("\n")),
        ]
        .map(|(path, entry)| (path.to_owned(), entry))
        .into();
        assert_eq!(parse(text).unwrap(), entries);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, line) in [
            ("x", 1),
            ("\n[sys", 2),
            ("[a{1,2}]\nx = {1,2,3}", 2),
            ("../x = 1", 1),
            ("/ = 1", 1),
            ("a//b = 1", 1),
            ("a/<0..99999999> = 1", 1),
            ("a/<5..3> = 1", 1),
            ("a/<x..3> = 1", 1),
            ("a/<0 = 1", 1),
            ("a/<0..9/0> = 1", 1),
            ("a/<0..9> = <-1>", 1),
            ("a/<0..9> = <x>", 1),
            ("a : rw", 1),
            ("a = $(b", 1),
            ("a = $(b)", 1),
            ("a = 1\n[]\n/a = 2", 3),
        ] {
            assert_eq!(parse(text).unwrap_err().0, line, "{text:?}");
        }
    }

    #[test]
    fn links_are_relative_as_in_sysfs() {
        for (path, target, link) in [
            ("sys/class/net/eth0", "/sys/devices/x/net/eth0", "../../devices/x/net/eth0"),
            ("sys/devices/x/physfn", "/sys/devices/y", "../y"),
            ("sys/devices/x/physfn", "../y", "../y"),
        ] {
            assert_eq!(relative(path, target), link);
        }
    }
}
