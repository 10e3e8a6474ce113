//! What the kernel tells of SMC and of itself: answers of its two families, sockets, its types (BTF); and
//! the head of a container's program. The first byte chooses what the rest is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::NetlinkDeserializable;
use rdma_ctk::netlink::{generic, messages};
use rdma_ctk::smc::{answers, btf::Btf, diag, entry, pnet};

fn body(choice: u8, bytes: &[u8]) {
    match choice % 7 {
        0 => _ = answers::gather(&mut Vec::new(), bytes),
        1 => _ = answers::device(bytes),
        2 => _ = answers::stats(bytes),
        3 => _ = answers::fallen(bytes),
        4 => _ = answers::eid(&mut Vec::new(), bytes),
        5 => _ = pnet::Entry::parse(bytes),
        _ => _ = diag::parse(bytes),
    }
}

/// Two descriptions that lie behind each other, the kernel's and a module's.
fn types(bytes: &[u8]) {
    let Some((&at, bytes)) = bytes.split_first() else { return };
    let (base, module) = bytes.split_at(bytes.len() * usize::from(at) / 256);
    if let Ok(kernel) = Btf::parse(base) {
        let _ = kernel.function("update_socket_protocol");
        if let Ok(module) = Btf::parse(module) {
            let _ = module.function_of_module(&kernel, "smc_bind");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice {
        0xc0.. => _ = entry::linked(data),
        0x80.. => types(data),
        // Messages, and then their bodies.
        0x40.. => {
            for (header, payload) in messages(data).flatten() {
                if let Ok(message) = generic::Message::deserialize(&header, payload) {
                    body(choice, &message.attributes);
                }
                body(choice, payload);
            }
        }
        _ => body(choice, data),
    }
});
