use std::collections::BTreeSet;

use proptest::prelude::*;

use super::book::{Book, Event, Found, Hands, Order};
use super::simulated::{Hand, World, child, entry, place};
use super::*;
use crate::netns::addresses::{Wanted, Wish};
use crate::policy::Pools;

fn wish(sandbox: &str, hca: &str, wanted: Wanted) -> Wish {
    Wish {
        boot: "boot-0".into(),
        sandbox: sandbox.into(),
        pod: format!("ml/{sandbox}"),
        uid: String::new(),
        hca: hca.into(),
        parent: "eth0".into(),
        parent_index: 10,
        own: Vec::new(),
        others: Vec::new(),
        wanted,
    }
}

fn orders(sandbox: &str, count: u32, wanted: &Wanted) -> Vec<Order> {
    let order = |number| Order {
        child: child(number),
        wish: wish(sandbox, &format!("mlx5_{number}"), wanted.clone()),
        pools: Pools::default(),
    };
    (0..count).map(order).collect()
}

fn empty(sandbox: &str, inode: u64) -> Entry {
    Entry { namespace: place(inode), children: Vec::new(), state: State::Making, ..entry(sandbox) }
}

fn open(hand: &Hand) -> Book {
    found(hand, "boot-0", true).0
}

fn found(hand: &Hand, boot: &str, whole: bool) -> (Book, Vec<String>) {
    let entries = hand.world().journal.values().cloned().collect();
    Book::new(boot, Found { entries, whole }, hands(hand))
}

fn hands(hand: &Hand) -> Hands {
    Hands {
        ground: Box::new(hand.clone()),
        journal: Box::new(hand.clone()),
        leases: Box::new(hand.clone()),
    }
}

fn attach(book: &mut Book, entry: Entry, orders: Vec<Order>) -> Result<(), String> {
    let (entry, made) = book.begin(entry, orders)?.run();
    book.finish(entry, made)
}

fn with_namespace(inode: u64) -> Hand {
    let hand = Hand::default();
    hand.world().namespaces.insert(inode, [].into());
    hand
}

#[test]
fn a_pod_gets_all_of_them_in_order_with_addresses_of_their_own() {
    let hand = with_namespace(1);
    hand.world().foreign.insert("10.1.0.1".into());
    let mut book = open(&hand);
    attach(&mut book, empty("one", 1), orders("one", 2, &Wanted::Pool)).unwrap();
    let entry = book.of("one").unwrap();
    let told: Vec<String> = entry
        .children
        .iter()
        .map(|c| format!("{} {} {}", c.hca, c.interface, c.addresses[0]))
        .collect();
    assert_eq!(told, ["mlx5_0 rdma0 10.1.0.0/24", "mlx5_1 rdma1 10.1.0.2/24"]);
    assert_eq!(entry.state, State::Made);
    assert_eq!(hand.world().journal["one"], *entry);
    assert_eq!(hand.world().set[..2], ["rdma0 10.1.0.0/24", "rdma1 10.1.0.2/24"]);
    assert_eq!(book.counts(), (2, 0));
    book.end("one");
    let gone = Event::Gone { pod: "ml/one".into(), hcas: vec!["mlx5_0".into(), "mlx5_1".into()] };
    assert_eq!(book.tend(), [gone]);
    let world = hand.world();
    assert!(world.journal.is_empty() && world.leased.is_empty());
    assert!(world.namespaces[&1].is_empty());
}

#[test]
fn names_that_are_taken_are_passed_over() {
    let hand = with_namespace(1);
    hand.world().namespaces.get_mut(&1).unwrap().insert("rdma0".into(), child(7));
    let mut book = open(&hand);
    attach(&mut book, empty("one", 1), orders("one", 1, &Wanted::None)).unwrap();
    assert_eq!(book.of("one").unwrap().children[0].interface, "rdma1");
    book.end("one");
    book.tend();
    assert_eq!(hand.world().namespaces[&1].keys().collect::<Vec<_>>(), ["rdma0"], "the pod's own");
}

#[test]
fn without_an_address_nothing_stays() {
    let hand = with_namespace(1);
    hand.world().foreign = (0..10).map(|n| format!("10.1.0.{n}")).collect();
    let mut book = open(&hand);
    let why = attach(&mut book, empty("one", 1), orders("one", 2, &Wanted::Pool)).unwrap_err();
    assert_eq!(why, "no address is free");
    assert!(book.of("one").is_none());
    let world = hand.world();
    assert!(world.journal.is_empty() && world.namespaces[&1].is_empty());
}

#[test]
fn addresses_are_kept_until_their_interfaces_are_gone() {
    let hand = with_namespace(1);
    let mut book = open(&hand);
    attach(&mut book, empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap();
    hand.world().sticky = true;
    book.retain(|_| false);
    let reason = "rdma0: it stays; nobody seen holds it".to_owned();
    assert_eq!(book.tend(), [Event::Stuck { pod: "ml/one".into(), reason: reason.clone() }]);
    assert_eq!(book.tend(), [], "told once");
    assert_eq!(book.counts(), (1, 1));
    assert_eq!(hand.world().leased.len(), 1);
    assert_eq!(hand.world().journal["one"].stuck, Some(reason));
    // Not even for the pod itself.
    let again = attach(&mut book, empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap_err();
    assert!(again.contains("goes first (rdma0: it stays"), "{again}");
    // With their namespace they go in any case.
    hand.world().namespaces.clear();
    assert!(matches!(book.tend()[..], [Event::Gone { .. }]));
    assert!(hand.world().leased.is_empty() && book.is_quiet());
}

#[test]
fn what_was_made_is_there_after_a_restart_and_what_is_of_another_boot_is_not() {
    let hand = with_namespace(1);
    attach(&mut open(&hand), empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap();
    hand.world().leased.insert("nobody".into(), ["10.1.0.9".into()].into());
    let mut book = open(&hand);
    assert_eq!((book.counts(), book.is_quiet()), ((1, 0), true));
    assert_eq!(hand.world().leased.keys().collect::<Vec<_>>(), ["one"]);
    // Its address is not given again.
    hand.world().namespaces.insert(2, [].into());
    attach(&mut book, empty("two", 2), orders("two", 1, &Wanted::Pool)).unwrap();
    assert_eq!(book.of("two").unwrap().children[0].addresses[0].to_string(), "10.1.0.1/24");
    let (book, problems) = found(&hand, "boot-1", true);
    assert_eq!((book.counts(), problems.len()), ((0, 0), 0));
    assert!(hand.world().journal.is_empty() && hand.world().leased.is_empty());
}

/// An entry that cannot be read is one of a pod that runs: its addresses are not another's before the
/// runtime tells that it is gone.
#[test]
fn what_cannot_be_read_of_the_journal_keeps_its_addresses() {
    let hand = with_namespace(1);
    attach(&mut open(&hand), empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap();
    hand.world().journal.clear();
    let (mut book, _) = found(&hand, "boot-0", false);
    assert_eq!(hand.world().leased.keys().collect::<Vec<_>>(), ["one"]);
    book.retain(|sandbox| sandbox == "one");
    assert_eq!(hand.world().leased.len(), 1, "it is there");
    book.retain(|_| false);
    assert!(hand.world().leased.is_empty());
}

#[test]
fn where_nobody_knows_the_boot_everything_stays() {
    let hand = with_namespace(1);
    attach(&mut open(&hand), empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap();
    let (book, problems) = found(&hand, "", true);
    assert_eq!((book.counts(), problems), ((1, 0), Vec::new()));
    let world = hand.world();
    assert_eq!((world.leased.len(), world.journal.len()), (1, 1));
}

/// The kernel gives the number of a namespace that has ended to the next one.
#[test]
fn what_another_pod_has_by_the_same_number_is_not_touched() {
    let hand = with_namespace(1);
    let mut book = open(&hand);
    let old = Entry {
        namespace: Place { path: "/run/netns/gone".into(), ..place(1) },
        ..empty("old", 1)
    };
    attach(&mut book, old, orders("old", 1, &Wanted::Pool)).unwrap();
    hand.world().namespaces.insert(1, [].into());
    attach(&mut book, empty("new", 1), orders("new", 1, &Wanted::Pool)).unwrap();
    book.end("old");
    assert!(matches!(book.tend()[..], [Event::Gone { .. }]));
    assert_eq!(hand.world().namespaces[&1].len(), 1, "it is the other pod's");
    assert_eq!(hand.world().leased.keys().collect::<Vec<_>>(), ["new"]);
    book.end("new");
    assert!(matches!(book.tend()[..], [Event::Gone { .. }]));
    assert!(hand.world().namespaces[&1].is_empty());
}

/// What is being made counts, is not ended before it is done, and ends then.
#[test]
fn pods_are_served_beside_each_other() {
    let hand = with_namespace(1);
    hand.world().namespaces.insert(2, [].into());
    let mut book = open(&hand);
    let one = book.begin(empty("one", 1), orders("one", 1, &Wanted::Pool)).unwrap();
    let two = book.begin(empty("two", 2), orders("two", 1, &Wanted::Pool)).unwrap();
    assert_eq!((book.counts().0, book.is_quiet()), (2, true));
    assert!(book.begin(empty("one", 1), Vec::new()).is_err());
    let ((first, first_made), (second, second_made)) = (one.run(), two.run());
    book.end("one");
    assert_eq!(book.tend(), []);
    assert_eq!(hand.world().namespaces[&1].len(), 1);
    book.finish(second, second_made).unwrap();
    assert_eq!(book.finish(first, first_made).unwrap_err(), "the pod has ended");
    let world = hand.world();
    assert!(world.namespaces[&1].is_empty());
    assert_eq!(world.leased.keys().collect::<Vec<_>>(), ["two"]);
    assert_eq!(world.journal.keys().collect::<Vec<_>>(), ["two"]);
}

/// Every address of every namespace is leased, and nobody has one twice.
fn consistent(world: &World) {
    let leased: Vec<&String> = world.leased.values().flatten().collect();
    assert_eq!(leased.iter().collect::<BTreeSet<_>>().len(), leased.len(), "{leased:?}");
    let used: Vec<String> = world
        .namespaces
        .values()
        .flat_map(|room| room.values())
        .flat_map(|child| child.addresses.iter().map(|prefix| prefix.address.to_string()))
        .collect();
    assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), used.len(), "{used:?}");
    assert!(used.iter().all(|address| leased.contains(&address)), "{used:?} {leased:?}");
}

proptest! {
    /// Whatever fails, and wherever the daemon dies: no address is used twice or without a lease,
    /// and when all pods have ended nothing is left of them.
    #[test]
    fn no_address_is_given_twice_whatever_fails(
        steps in prop::collection::vec((0..6_u8, 0..4_u64, 0..20_u32), 1..40)
    ) {
        let hand = Hand::default();
        for inode in 0..4 {
            hand.world().namespaces.insert(inode, [].into());
        }
        let mut book = open(&hand);
        for (what, pod, budget) in steps {
            let sandbox = format!("pod-{pod}");
            match what {
                // Refused at some step, or not at all.
                0 | 1 => {
                    hand.world().budget = (what == 0).then_some(budget);
                    let _ = attach(&mut book, empty(&sandbox, pod), orders(&sandbox, 2, &Wanted::Pool));
                }
                // Killed at some step.
                2 => {
                    hand.world().budget = Some(budget);
                    let done =
                        attach(&mut book, empty(&sandbox, pod), orders(&sandbox, 2, &Wanted::Pool));
                    hand.world().crashed = done.is_err();
                }
                3 => book.end(&sandbox),
                4 => {
                    hand.world().budget = Some(budget % 6);
                    book.tend();
                }
                _ => {
                    // Its namespace dies without a word.
                    hand.world().namespaces.insert(pod, [].into());
                    book.retain(|other| other != sandbox);
                }
            }
            hand.world().budget = None;
            consistent(&hand.world());
            if hand.world().crashed || budget == 0 {
                hand.world().crashed = false;
                book = open(&hand);
                consistent(&hand.world());
            }
        }
        book.retain(|_| false);
        book.tend();
        let world = hand.world();
        prop_assert!(world.journal.is_empty() && world.leased.is_empty());
        prop_assert!(world.namespaces.values().all(|room| room.is_empty()));
    }
}
