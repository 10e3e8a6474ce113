//! What addresses of sub-interfaces come from: frames of anybody on the wire, leases on disk by text
//! and by name, the annotation. The first byte chooses.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use rdma_ctk::netns::addresses::frames::{claimed, probe};
use rdma_ctk::netns::addresses::{Said, decode, encode, file_name};
use rdma_ctk::policy::{Policy, Range};
use rdma_ctk::request::{AddressRequest, Carrier, Container, parse};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn annotation(value: &str) {
    let annotations = BTreeMap::from([
        ("devices.rdma-ctk.io".to_owned(), "all".to_owned()),
        ("address.rdma-ctk.io".to_owned(), value.to_owned()),
    ]);
    let policy = Policy::default();
    let read = parse(&annotations, Container::default(), Carrier::default(), &policy, None);
    match read.map(|request| request.address) {
        Ok(AddressRequest::Fixed(fixed)) => {
            assert!(!fixed.is_empty());
            // What was read is written as it is read.
            let again = AddressRequest::Fixed(fixed.clone()).to_string();
            let annotations = BTreeMap::from([
                ("devices.rdma-ctk.io".to_owned(), "all".to_owned()),
                ("address.rdma-ctk.io".to_owned(), again),
            ]);
            let read = parse(&annotations, Container::default(), Carrier::default(), &policy, None);
            assert!(read.is_ok_and(|request| request.address == AddressRequest::Fixed(fixed)));
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => {
            // Whoever holds an address has it; our own question holds none.
            if let Some(address) = claimed(data, &[OURS]) {
                assert_eq!(claimed(&probe(OURS, address), &[OURS]), None);
                assert_eq!(claimed(&probe([2; 6], address), &[OURS]), Some(address));
            }
        }
        1 => {
            if let Ok(lease) = decode(data) {
                assert!(encode(&lease).is_ok_and(|text| decode(&text) == Ok(lease.clone())));
                let _ = Said::of(&file_name(&lease));
            }
        }
        2 => {
            let text = String::from_utf8_lossy(data);
            let _ = Said::of(&text);
            if let Ok(range) = text.parse::<Range>() {
                assert_eq!(range.to_string().parse::<Range>(), Ok(range));
            }
        }
        _ => annotation(&String::from_utf8_lossy(data)),
    }
});
