//! The state of a container that a runtime hands to its hooks (runtime-spec, "State").

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::Error as _;

use super::HookError;

/// Longest state that is read: annotations are most of it.
pub const LONGEST: usize = 4 << 20;

/// A container's state. Members that are not needed here are not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The container's identifier.
    pub id: String,
    /// `creating`, `created`, `running` or `stopped`.
    pub status: String,
    /// Its first process, in the namespace of the hook; 0: there is none.
    pub pid: u32,
    /// Folder of its document.
    pub bundle: PathBuf,
    /// Its annotations; runtimes write `null` for none.
    pub annotations: Option<BTreeMap<String, String>>,
}

impl State {
    /// Reads a state.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<Self, HookError> {
        let read = serde_json::from_slice::<Self>(text).and_then(|state| match state.id.as_str() {
            "" => Err(serde_json::Error::custom("it names no container")),
            _ => Ok(state),
        });
        read.map_err(|source| HookError::State { source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_all_runtimes_are_read() {
        let runc = br#"{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":71,"bundle":"/b",
            "annotations":{"devices.rdma-ctk.io":"all"}}"#;
        let state = State::parse(runc).unwrap();
        assert_eq!((state.id.as_str(), state.pid), ("c1", 71));
        assert_eq!(state.annotations.unwrap()["devices.rdma-ctk.io"], "all");
        // crun adds its own; a stopped container has no process.
        let crun =
            br#"{"id":"c1","status":"stopped","root":"/r","bundle":"/b","annotations":null}"#;
        assert_eq!(State::parse(crun).unwrap().pid, 0);
        for text in [
            "",
            "[]",
            "{}",
            "{\"id\":\"a\",\"pid\":-1}",
            "{\"id\":\"a\",\"annotations\":{\"a\":1}}",
        ] {
            assert!(State::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
