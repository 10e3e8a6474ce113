//! `xtask proto`: the Rust types of the messages in `nri/nri.proto`, without protoc.

use std::path::{Path, PathBuf};

/// What precedes the generated code.
const HEADER: &str = "\
// Made from nri/nri.proto by `cargo xtask proto`; do not edit.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

";

/// Writes `src/nri/proto.rs`, or with `check` fails when the file is not what would be written.
///
/// # Errors
/// In words: the protocol file does not compile, the target cannot be written, or is stale.
pub fn run(check: bool) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask has no parent folder")?
        .to_path_buf();
    let target = root.join("src/nri/proto.rs");
    let wanted = generate(&root)?;
    if check {
        let present = std::fs::read_to_string(&target)
            .map_err(|e| format!("cannot read {}: {e}", target.display()))?;
        return if present == wanted {
            Ok(())
        } else {
            Err("src/nri/proto.rs is not what nri/nri.proto gives: run `cargo xtask proto`".into())
        };
    }
    std::fs::write(&target, wanted).map_err(|e| format!("cannot write {}: {e}", target.display()))
}

fn generate(root: &Path) -> Result<String, String> {
    let set = protox::compile(["nri.proto"], [root.join("nri")])
        .map_err(|e| format!("nri/nri.proto: {e}"))?;
    let out = Scratch::new()?;
    let mut config = prost_build::Config::new();
    // Maps in the order of their keys: equal messages are equal bytes. `explain` prints messages.
    config
        .btree_map(["."])
        .message_attribute(".", r#"#[cfg_attr(feature = "cli", derive(::serde::Serialize))]"#)
        .out_dir(&out.0)
        .compile_fds(set)
        .map_err(|e| e.to_string())?;
    let file = out.0.join("nri.pkg.api.v1alpha1.rs");
    let code = std::fs::read_to_string(&file)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Ok(format!("{HEADER}{code}"))
}

/// A folder that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("xtask-proto-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|e| format!("cannot create {}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder left in /tmp is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_code_is_current() {
        assert_eq!(super::run(true), Ok(()));
    }
}
