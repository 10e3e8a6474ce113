//! Changes of files, as values.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use similar::TextDiff;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A file with this text.
    Text(String),
    /// A symbolic link to this path.
    Link(PathBuf),
}

/// One file to write, replace or take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file itself (in a fixture tree: there).
    pub path: PathBuf,
    /// What is there now; `None`: nothing.
    pub before: Option<Content>,
    /// What is to be there; `None`: nothing.
    pub after: Option<Content>,
}

/// What is to be done, and what the admin should know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes, in the order in which they are made; empty: everything is as it should be.
    pub files: Vec<FileChange>,
    /// What follows from them, and what was noticed on the way, a sentence each.
    pub notes: Vec<String>,
}

impl Plan {
    /// The changes as a unified diff, a line for each symbolic link.
    pub fn diff(&self) -> String {
        let mut text = String::new();
        for change in &self.files {
            change.diff(&mut text);
        }
        text
    }
}

impl FileChange {
    fn diff(&self, text: &mut String) {
        let path = self.path.display();
        let side = |content: &Option<Content>| match content {
            Some(Content::Text(text)) => (text.clone(), format!("{path}")),
            Some(Content::Link(_)) | None => (String::new(), "/dev/null".to_owned()),
        };
        for (sign, content) in [('-', &self.before), ('+', &self.after)] {
            if let Some(Content::Link(target)) = content {
                // Writing to a String does not fail.
                let _ = writeln!(text, "{sign}{path} -> {}", target.display());
            }
        }
        let ((before, from), (after, to)) = (side(&self.before), side(&self.after));
        if before != after {
            let diff = TextDiff::from_lines(&before, &after);
            text.push_str(&diff.unified_diff().header(&from, &to).to_string());
        }
    }
}
