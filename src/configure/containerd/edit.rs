//! Text in, text out: NRI's settings in one configuration file. What is not set here keeps its
//! place, its comments and its form.

use toml_edit::{Array, DocumentMut, value};

use super::super::tables::{put, table};
use super::ContainerdError;
use super::merged::{File, TABLE};

/// What is to be set; `None` leaves a setting alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `disable`
    pub disable: Option<bool>,
    /// `disable_connections`
    pub disable_connections: Option<bool>,
    /// `default_validator.enable`
    pub validator: Option<bool>,
    /// `default_validator.required_plugins`, the whole list.
    pub required_plugins: Option<Vec<String>>,
    /// `default_validator.tolerate_missing_plugins_annotation`
    pub tolerate: Option<String>,
}

impl Wanted {
    /// Whether there is anything to set.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The file's text with the settings in it.
///
/// # Errors
/// There is something else than a table where NRI's is to be.
pub fn set(file: &File, wanted: &Wanted) -> Result<String, ContainerdError> {
    let mut document = file.document.clone();
    let no_table =
        |key: &str| ContainerdError::NoTable { path: file.path.clone(), key: key.into() };
    let plugins =
        table(document.as_table_mut(), "plugins", true).ok_or_else(|| no_table("plugins"))?;
    // A header of its own only where something is to stand below it.
    let direct = wanted.disable.is_some() || wanted.disable_connections.is_some();
    let nri = table(plugins, TABLE, !direct).ok_or_else(|| no_table(TABLE))?;
    put(nri, "disable", wanted.disable);
    put(nri, "disable_connections", wanted.disable_connections);
    let Wanted { validator, required_plugins, tolerate, .. } = wanted;
    if validator.is_some() || required_plugins.is_some() || tolerate.is_some() {
        let inner =
            table(nri, "default_validator", false).ok_or_else(|| no_table("default_validator"))?;
        put(inner, "enable", *validator);
        put(inner, "required_plugins", required_plugins.as_ref().map(Array::from_iter));
        put(inner, "tolerate_missing_plugins_annotation", tolerate.as_deref());
    }
    Ok(document.to_string())
}

/// The text of a file of our own with the settings, for a main file of that version.
pub fn drop_in(version: i64, wanted: &Wanted) -> String {
    let mut document = DocumentMut::new();
    document.insert("version", value(version));
    let empty = File { path: "".into(), text: String::new(), document };
    // A document of ours has a table everywhere.
    let settings = set(&empty, wanted).unwrap_or_default();
    format!(
        "# Made by `rdma-ctk configure containerd --nri`; `--undo` takes it away. It is read\n\
         # after the other files, and its settings win over theirs.\n{settings}"
    )
}

/// The text of a main file where there is none, or one that says nothing.
pub fn first(text: &str, version: i64, wanted: &Wanted) -> Result<String, ContainerdError> {
    let head = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let file = File::parse("".into(), format!("{text}{head}version = {version}\n"))?;
    set(&file, wanted)
}
