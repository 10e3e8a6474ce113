//! The CDI file beside a node that changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::rig::{Plan, Rig};
use crate::daemon::cdi;
use crate::inventory::{self, fixture};
use crate::roots::Roots;

/// A daemon on a node that gets its adapter when the switch is turned.
fn growing(policy: &'static str) -> (Rig, Arc<AtomicBool>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/integration/fixtures/soft-roce.tree");
    fixture::unpack(Path::new(file), folder.path()).unwrap();
    let with = Roots::below(folder.path());
    let plugged = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&plugged);
    let read = move || {
        let mut node = inventory::snapshot(&with, None);
        node.hcas.retain(|_| seen.load(Ordering::SeqCst));
        Ok(node)
    };
    let rig =
        Rig::plan(Plan { node: "none", policy, read: Some(Box::new(read)), ..Plan::default() });
    tokio::spawn(cdi::run(Arc::clone(&rig.daemon), Arc::clone(&rig.read)));
    (rig, plugged, folder)
}

async fn holds(path: &Path, name: &str) -> bool {
    for _ in 0..20 {
        if std::fs::read_to_string(path).is_ok_and(|text| text.contains(name)) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

#[tokio::test]
async fn c79_an_adapter_that_comes_is_in_the_file_within_two_seconds() {
    let (rig, plugged, _folder) = growing("[cdi]\nkeep = true\n");
    let path = crate::cdi::path(&rig.roots);
    rig.daemon.keeper.node(Duration::from_secs(10)).await.unwrap();
    assert!(!path.exists());
    plugged.store(true, Ordering::SeqCst);
    rig.daemon.keeper.poke();
    assert!(holds(&path, "\"rxe0\"").await);
    // It goes, and the file with it.
    plugged.store(false, Ordering::SeqCst);
    rig.daemon.keeper.poke();
    for _ in 0..20 {
        if !path.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{} is still there", path.display());
}

#[tokio::test]
async fn without_the_policy_nothing_is_written() {
    let (rig, plugged, _folder) = growing("");
    plugged.store(true, Ordering::SeqCst);
    rig.daemon.keeper.poke();
    assert!(!holds(&crate::cdi::path(&rig.roots), "rxe0").await);
}
