use std::path::Path;

use super::*;

/// The fixture of that name, unpacked.
fn fixture(name: &str) -> (tempfile::TempDir, Roots) {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures");
    let dir = tempfile::tempdir().unwrap();
    fixture::unpack(&text.join(format!("{name}.tree")), dir.path()).unwrap();
    let roots = Roots::below(dir.path());
    (dir, roots)
}

#[test]
fn soft_roce_is_read_as_recorded() {
    let (_dir, roots) = fixture("soft-roce");
    let node = snapshot(&roots, None);
    let hca = node.hca("rxe0").unwrap();
    assert_eq!(hca.driver.0, "rxe");
    assert_eq!(hca.numa, Some(1));
    assert_eq!(hca.role, Role::Software { parent: Some("eth0".into()) });
    assert_eq!(hca.ports[0].gids.len(), 3);
    assert_eq!(node.remarks, Vec::<String>::new());
}
