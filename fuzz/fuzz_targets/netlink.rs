//! What the kernel sends: datagrams of messages, attributes in them, uevents. The first byte
//! chooses how the rest is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::NetlinkDeserializable;
use rdma_ctk::netlink::attribute::{self, Attribute, Malformed};
use rdma_ctk::netlink::{kobject, messages, nldev, route};

/// Walks attributes to a depth that the kernel does not reach.
fn walk<'a>(attributes: impl Iterator<Item = Result<Attribute<'a>, Malformed>>, depth: usize) {
    for attribute in attributes.flatten() {
        let _ = (attribute.number(), attribute.text(), attribute.small::<u8>());
        if depth > 0 {
            walk(attribute.nested(), depth - 1);
        }
    }
}

fn body(choice: u8, bytes: &[u8]) {
    match choice % 8 {
        0 => walk(attribute::parse(bytes), 4),
        1 => _ = nldev::Device::parse(bytes),
        2 => _ = nldev::Port::parse(bytes),
        3 => _ = nldev::CharDevice::parse(bytes),
        4 => _ = nldev::System::parse(bytes),
        5 => _ = nldev::Event::parse(bytes),
        6 => _ = route::Link::parse(bytes),
        _ => _ = route::Address::parse(bytes),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice {
        0x80.. => _ = kobject::parse(data),
        // Messages, and then their bodies.
        0x40.. => {
            for (header, payload) in messages(data).flatten() {
                let _ = route::Answer::deserialize(&header, payload);
                body(choice, payload);
            }
        }
        _ => body(choice, data),
    }
});
