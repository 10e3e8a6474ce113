//! The test machine, whose kernel is a real one: its two sources against each other, and against
//! what the fixture made from it says.

use super::*;

#[test]
#[ignore = "needs rxe0 and two NUMA nodes: run it in the test machine of integration/"]
fn vm_both_sources_agree_and_the_fixture_is_true() {
    let roots = Roots::below(Path::new("/"));
    let sysfs = snapshot(&roots, None);
    let view = rdma_netlink::read(&roots).unwrap().unwrap();
    let mut merged = snapshot(&roots, Some(&view));
    assert_eq!((&sysfs.remarks, &merged.remarks), (&vec![], &vec![]));

    // What /proc tells of the interfaces is what rtnetlink tells, kinds apart.
    assert_eq!(sysfs.interfaces.len(), merged.interfaces.len());
    for seen in &sysfs.interfaces {
        let told = merged.interfaces.iter().find(|told| told.name == seen.name).unwrap();
        let sorted = |interface: &Interface| {
            let mut addresses = interface.addresses.clone();
            addresses.sort();
            addresses
        };
        assert_eq!(sorted(seen), sorted(told), "{}", seen.name);
        assert_eq!(
            (seen.index, seen.lower, seen.default_route, seen.up),
            (told.index, told.lower, told.default_route, told.up),
            "{}",
            seen.name
        );
    }
    assert!(merged.hcas.iter_mut().all(|hca| hca.index.take().is_some()));
    assert_eq!(merged.hcas, sysfs.hcas);
    let rxe = sysfs.hca("rxe0").unwrap();
    assert_eq!(gids(&roots, "rxe0")[0].gids, rxe.ports[0].gids);

    // Not read from the repository, which is not there.
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("soft-roce.tree");
    std::fs::write(&text, include_str!("../../../integration/fixtures/soft-roce.tree")).unwrap();
    fixture::unpack(&text, dir.path()).unwrap();
    let recorded = snapshot(&Roots::below(dir.path()), None);
    let mut expected = recorded.hca("rxe0").unwrap().clone();
    // This boot's own numbers.
    expected.node_guid.clone_from(&rxe.node_guid);
    expected.ports[0].gids.clone_from(&rxe.ports[0].gids);
    assert_eq!(*rxe, expected);
    assert_eq!(rxe.ports[0].gids.len(), 3);
    assert_eq!((&sysfs.numa, &sysfs.online), (&recorded.numa, &recorded.online));
    let rdma_cm = sysfs.rdma_cm.unwrap();
    assert_eq!((rdma_cm.major, rdma_cm.mode), (10, Some(0o666)));
}
