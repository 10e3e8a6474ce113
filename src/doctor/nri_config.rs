//! NRI's settings as containerd and CRI-O will read them: the main file, what it imports, and
//! settings that sit in a table where nobody looks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use crate::configure::containerd::{ContainerdError, File, Merge, Tree, load, settings, stray};

/// NRI's settings; `None` where the files leave the runtime's default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NriConfig {
    /// `version` of containerd's main file; 1 where it has none.
    pub version: i64,
    /// Files read, in the order in which they are merged.
    pub files: Vec<PathBuf>,
    /// NRI is on.
    pub enabled: Option<bool>,
    /// Plugins may connect from outside.
    pub connections: Option<bool>,
    /// Socket.
    pub socket: Option<String>,
    /// Longest time for an answer.
    pub request_timeout: Option<Duration>,
    /// Longest time from connection to registration.
    pub registration_timeout: Option<Duration>,
    /// The default validator is on.
    pub validator: Option<bool>,
    /// Plugins without which no container is created.
    pub required_plugins: Vec<String>,
    /// Settings without effect, by their path in the file.
    pub stray: Vec<String>,
}

/// Why the settings are not known.
#[derive(Debug, thiserror::Error)]
pub enum NriConfigError {
    /// A file could not be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is no TOML.
    #[error("{path}: {error}", path = path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Where in it.
        error: Box<toml::de::Error>,
    },
    /// A file of containerd's.
    #[error(transparent)]
    Containerd(#[from] ContainerdError),
}

/// containerd's settings: `main` and its imports. `locate` turns a path of the node into the file
/// to read. `old`: containerd 1.x, in which an imported table replaces the one before.
///
/// # Errors
/// A file of them cannot be read or parsed.
pub fn containerd(
    main: &Path,
    locate: &dyn Fn(&Path) -> PathBuf,
    old: bool,
) -> Result<NriConfig, NriConfigError> {
    let merge = if old { Merge::Whole } else { Merge::Deep };
    let files = load(main, Tree { locate, with: None }, merge)?;
    let settings = settings(&files, merge);
    let timeout = |text: &Option<String>| text.as_deref().and_then(duration);
    Ok(NriConfig {
        version: files.first().map_or(0, File::version),
        enabled: settings.disable.map(|off| !off),
        connections: settings.disable_connections.map(|off| !off),
        request_timeout: timeout(&settings.request_timeout),
        registration_timeout: timeout(&settings.registration_timeout),
        socket: settings.socket_path,
        validator: settings.validator,
        required_plugins: settings.required_plugins,
        stray: files.iter().flat_map(stray).collect(),
        files: files.into_iter().map(|file| file.path).collect(),
    })
}

/// CRI-O's settings: `crio.conf` and the files of `crio.conf.d` in `folder`, either of which may be
/// missing.
///
/// # Errors
/// A file of them cannot be read or parsed.
pub fn crio(folder: &Path) -> Result<NriConfig, NriConfigError> {
    let mut files = vec![folder.join("crio.conf")];
    let mut drop_ins: Vec<PathBuf> = fs::read_dir(folder.join("crio.conf.d"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    drop_ins.sort();
    files.extend(drop_ins);
    files.retain(|path| path.is_file());
    let mut merged = Table::new();
    for path in &files {
        merge(&mut merged, read(path)?);
    }
    let nri = merged.get("crio").and_then(|v| v.get("nri"));
    let boolean = |table: Option<&Value>, key: &str| table?.get(key)?.as_bool();
    let text = |key: &str| nri.and_then(|table| table.get(key)).and_then(Value::as_str);
    let validator = nri.and_then(|table| table.get("default_validator"));
    Ok(NriConfig {
        version: 0,
        files,
        enabled: boolean(nri, "enable_nri"),
        connections: boolean(nri, "nri_disable_connections").map(|off| !off),
        socket: text("nri_listen").map(str::to_owned),
        request_timeout: text("nri_plugin_request_timeout").and_then(duration),
        registration_timeout: text("nri_plugin_registration_timeout").and_then(duration),
        validator: boolean(validator, "nri_enable_default_validator"),
        required_plugins: validator
            .map(|table| strings(table, "nri_validator_required_plugins"))
            .unwrap_or_default(),
        stray: Vec::new(),
    })
}

fn read(path: &Path) -> Result<Table, NriConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| NriConfigError::Read { path: path.to_owned(), error })?;
    toml::from_str(&text)
        .map_err(|error| NriConfigError::Parse { path: path.to_owned(), error: Box::new(error) })
}

/// Puts `from` over `into`: tables are merged, other values replaced.
fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn strings(table: &Value, key: &str) -> Vec<String> {
    let list = table.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A duration as Go writes it: `2s`, `500ms`, `1m30s`, `1.5s`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn read_containerd(files: &[(&str, &str)], whole: bool) -> Result<NriConfig, NriConfigError> {
        let folder = tree(files);
        let root = folder.path().to_owned();
        let locate = move |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        containerd(Path::new("/etc/containerd/config.toml"), &locate, whole)
    }

    #[test]
    fn durations_are_gos() {
        for (text, millis) in [
            ("2s", Some(2000)),
            ("500ms", Some(500)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            ("2", None),
            ("", None),
            ("s", None),
            ("2x", None),
            ("-2s", None),
        ] {
            assert_eq!(duration(text), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn imports_are_merged_in_order() {
        let files = [
            (
                "etc/containerd/config.toml",
                "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n\
                 [plugins.'io.containerd.nri.v1.nri']\ndisable = true\nsocket_path = '/run/a.sock'\n",
            ),
            (
                "etc/containerd/conf.d/20-b.toml",
                "[plugins.'io.containerd.nri.v1.nri']\nplugin_request_timeout = '3s'\n",
            ),
            (
                "etc/containerd/conf.d/10-a.toml",
                "[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n\
                 plugin_request_timeout = '1s'\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\n\
                 enable = true\nrequired_plugins = ['rdma-ctk']\n",
            ),
            ("etc/containerd/conf.d/readme.txt", "not read"),
        ];
        let config = read_containerd(&files, false).unwrap();
        assert_eq!(config.enabled, Some(true));
        assert_eq!(config.socket.as_deref(), Some("/run/a.sock"));
        assert_eq!(config.request_timeout, Some(Duration::from_secs(3)));
        assert_eq!(config.validator, Some(true));
        assert_eq!(config.required_plugins, ["rdma-ctk"]);
        assert_eq!(config.files.len(), 3);
        // containerd 1.x takes the last table of a plugin as a whole.
        let config = read_containerd(&files, true).unwrap();
        assert_eq!(config.enabled, None);
        assert_eq!(config.socket, None);
        assert_eq!(config.request_timeout, Some(Duration::from_secs(3)));
    }

    #[test]
    fn settings_in_the_wrong_table_are_named() {
        let config = read_containerd(
            &[(
                "etc/containerd/config.toml",
                "version = 2\nplugin_request_timeout = '10s'\n[plugins.'io.containerd.nri.v1.nri']\n\
                 disable = false\n[plugins.'io.containerd.grpc.v1.cri']\n\
                 plugin_registration_timeout = '10s'\n",
            )],
            false,
        )
        .unwrap();
        assert_eq!(config.request_timeout, None);
        assert_eq!(
            config.stray,
            [
                "plugin_request_timeout",
                "plugins.io.containerd.grpc.v1.cri.plugin_registration_timeout"
            ]
        );
    }

    #[test]
    fn a_broken_file_is_named_with_its_place() {
        let error =
            read_containerd(&[("etc/containerd/config.toml", "version = [")], false).unwrap_err();
        assert!(error.to_string().starts_with("/etc/containerd/config.toml: "), "{error}");
        let error =
            read_containerd(&[("etc/containerd/config.toml", "imports = ['gone.toml']")], false)
                .unwrap_err();
        assert!(error.to_string().starts_with("/etc/containerd/gone.toml: "), "{error}");
    }

    #[test]
    fn crio_has_its_own_words() {
        let folder = tree(&[
            ("crio.conf", "[crio.nri]\nenable_nri = true\n"),
            (
                "crio.conf.d/10-nri.conf",
                "[crio.nri]\nnri_plugin_request_timeout = '4s'\nnri_disable_connections = true\n\
                 [crio.nri.default_validator]\nnri_enable_default_validator = true\n",
            ),
        ]);
        let config = crio(folder.path()).unwrap();
        assert_eq!(config.enabled, Some(true));
        assert_eq!(config.connections, Some(false));
        assert_eq!(config.request_timeout, Some(Duration::from_secs(4)));
        assert_eq!(config.validator, Some(true));
        assert_eq!(crio(Path::new("/nowhere")).unwrap(), NriConfig::default());
    }
}
