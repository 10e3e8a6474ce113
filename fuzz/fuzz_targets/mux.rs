//! What a runtime sends: the trunk's frames, cut anywhere, and the messages in them.
//!
//! Besides not panicking: where the bytes are cut makes no difference, and no byte is invented.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use rdma_ctk::nri::Runtime;
use rdma_ctk::nri::container::{RuntimeLimits, carrier, container, network};
use rdma_ctk::nri::frame::{Deframer, FrameError};
use rdma_ctk::nri::proto::{CreateContainerRequest, SynchronizeRequest};

/// Each connection's bytes in order of arrival, pieces that follow each other joined.
fn deframe<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<(u32, Vec<u8>)>, Option<FrameError>) {
    let mut deframer = Deframer::default();
    let mut streams: Vec<(u32, Vec<u8>)> = Vec::new();
    for mut bytes in pieces {
        loop {
            match deframer.next(&mut bytes) {
                Ok(None) => break,
                Ok(Some(piece)) => match streams.last_mut() {
                    Some((last, stream)) if *last == piece.connection => {
                        stream.extend_from_slice(piece.bytes);
                    }
                    _ => streams.push((piece.connection, piece.bytes.to_vec())),
                },
                Err(error) => return (streams, Some(error)),
            }
        }
    }
    (streams, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, data)) = data.split_first() else { return };
    let whole = deframe(std::iter::once(data));
    assert_eq!(deframe(data.chunks(usize::from(cut) + 1)), whole);
    let taken: usize = whole.0.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(taken <= data.len());

    for (_, stream) in whole.0.iter().chain([&(0, data.to_vec())]) {
        // Behind ttrpc's header of ten bytes, and as it is.
        for bytes in [stream.get(10..).unwrap_or_default(), stream] {
            let _ = SynchronizeRequest::decode(bytes);
            let Ok(request) = CreateContainerRequest::decode(bytes) else { continue };
            let (Some(pod), Some(made)) = (request.pod, request.container) else { continue };
            for version in ["1.7.34", "2.1.9", "2.4.2"] {
                let runtime = Runtime::detect("containerd", version, "");
                let limits = RuntimeLimits::default();
                let _ = (container(&pod, &made, &runtime, limits), carrier(&runtime, limits));
                let _ = network(&pod, Some(&made));
            }
        }
    }
});
