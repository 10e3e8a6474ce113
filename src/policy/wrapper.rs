//! What the policy file says of the runtime wrapper itself.

use serde::{Deserialize, Serialize};

/// How the runtime wrapper behaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Wrapper {
    /// The real runtime: a path, or a name in `PATH`; `None`: the first of runc, crun and youki.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

/// The real runtime that the text of a policy file names, whatever else is in the file.
///
/// The wrapper is in the way of every call, those that stop a container too. So a mistake anywhere
/// in the file does not hide this one line: if the text is no TOML at all it is looked for by itself.
pub fn wrapped_runtime(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Partly {
        wrapper: Option<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        runtime: Option<String>,
    }
    if !text.contains("wrapper") {
        return None;
    }
    if let Some(plain) = plain(text) {
        return Some(plain.to_owned());
    }
    match toml::from_str::<Partly>(text.trim_start_matches('\u{feff}')) {
        Ok(read) => read.wrapper.and_then(|wrapper| wrapper.runtime),
        Err(_) => line(text),
    }
    .filter(|name| !name.is_empty())
}

/// The same in a file that writes it as everybody does, without reading the rest: under the heading
/// `[wrapper]` the line `runtime = "NAME"`. `None`: it may be written otherwise.
fn plain(text: &str) -> Option<&str> {
    // Only in a text of several lines could these be something else.
    if text.contains("\"\"\"") || text.contains("'''") {
        return None;
    }
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[wrapper]").skip(1);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let value = line.strip_prefix("runtime")?.trim_start().strip_prefix('=')?.trim();
    let name = value.strip_prefix('"')?.strip_suffix('"')?;
    (!name.is_empty() && !name.contains(['"', '\\'])).then_some(name)
}

/// The value of `runtime` behind the heading `[wrapper]`, as a quoted text on one line.
fn line(text: &str) -> Option<String> {
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.split('#').next().map(str::trim) == Some("[wrapper]");
            continue;
        }
        let value = line.strip_prefix("runtime").filter(|_| inside);
        let value = value.and_then(|rest| rest.trim_start().strip_prefix('=')).map(str::trim);
        let Some(value) = value else { continue };
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        return value[1..].split_once(quote).map(|(name, _)| name.to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_found_in_a_broken_file_too() {
        for (text, expected) in [
            ("", None),
            ("# wrapper\n", None),
            ("[wrapper]\n", None),
            ("[wrapper]\nruntime = \"crun\"\n", Some("crun")),
            ("[wrapper]\nruntime = ''\n", None),
            ("# [wrapper]\n[wrapper]\n# which\n\n runtime = \"a b\"\n[x]\n", Some("a b")),
            ("a = \"\"\"\n[wrapper]\nruntime = \"x\"\n\"\"\"\n[wrapper]\nruntime = 'y'", Some("y")),
            ("[wrapper]\nruntime = \"a\\u0062\"\n", Some("ab")),
            ("wrapper.runtime = '/usr/bin/crun'\n", Some("/usr/bin/crun")),
            ("[wrapper]\nnew = 1\nruntime = \"crun\" # fast\n[default]\nkeys = 7\n", Some("crun")),
            ("[default\nx\n[wrapper] # ours\n  runtime=\"crun\" # fast\n", Some("crun")),
            ("[default\n[wrapper]\nruntime = crun\n", None),
            ("[default\nruntime = \"crun\"\n[wrapper]\n", None),
            ("runtime = \"crun\"\nwrapper", None),
        ] {
            assert_eq!(wrapped_runtime(text).as_deref(), expected, "{text:?}");
        }
    }
}
