//! Frames of the trunk: how two byte streams share one socket.
//!
//! A frame is a connection's number and a length, both 32 bits and big-endian, and then so many
//! bytes. Frames mark no messages: each connection is a byte stream, cut anywhere.
//! (github.com/containerd/nri, pkg/net/multiplex)

/// Length of a frame's header.
pub const HEADER: usize = 8;

/// The longest payload that is accepted. Runtimes send up to 4 MiB + 10; those with NRI 0.6.1 or
/// older may send up to this.
pub const LONGEST: usize = 16 << 20;

/// Bytes that are no trunk of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes on connection {connection}: at most {LONGEST} are allowed")]
pub struct FrameError {
    /// The connection that the frame claims to be of.
    pub connection: u32,
    /// Bytes that the frame claims to have.
    pub length: usize,
}

/// A piece of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Number of the connection whose stream goes on with `bytes`.
    pub connection: u32,
    /// Never empty.
    pub bytes: &'a [u8],
}

/// Takes the trunk's bytes, cut anywhere, and tells which belong to which connection. Keeps no
/// payload, so what a header claims costs no memory.
#[derive(Debug, Default)]
pub struct Deframer {
    header: [u8; HEADER],
    /// Bytes of `header` that are there.
    have: usize,
    connection: u32,
    /// Bytes of the payload that are still to come.
    missing: usize,
}

impl Deframer {
    /// The next piece in `input`, which is advanced; `None` when all of it has been used.
    ///
    /// # Errors
    /// A frame is longer than [`LONGEST`]. There is no way to go on after that.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FrameError> {
        loop {
            if input.is_empty() {
                return Ok(None);
            }
            if self.missing > 0 {
                let (bytes, rest) = input.split_at(self.missing.min(input.len()));
                *input = rest;
                self.missing -= bytes.len();
                return Ok(Some(Piece { connection: self.connection, bytes }));
            }
            let (bytes, rest) = input.split_at((HEADER - self.have).min(input.len()));
            self.header[self.have..self.have + bytes.len()].copy_from_slice(bytes);
            *input = rest;
            self.have += bytes.len();
            if self.have == HEADER {
                self.have = 0;
                let [a, b, c, d, e, f, g, h] = self.header;
                self.connection = u32::from_be_bytes([a, b, c, d]);
                let length = u32::from_be_bytes([e, f, g, h]);
                // A length that no address can count is too long as well.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if length > LONGEST {
                    return Err(FrameError { connection: self.connection, length });
                }
                self.missing = length;
            }
        }
    }

    /// Whether the trunk may end here: no frame has begun that has not ended.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.have == 0 && self.missing == 0
    }
}

/// `payload` as a frame of `connection`.
///
/// # Errors
/// The payload is longer than [`LONGEST`].
pub fn frame(connection: u32, payload: &[u8]) -> Result<Vec<u8>, FrameError> {
    let error = FrameError { connection, length: payload.len() };
    if payload.len() > LONGEST {
        return Err(error);
    }
    let length = u32::try_from(payload.len()).map_err(|_| error)?;
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&connection.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(payload);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// All pieces of `input`, those that follow each other on one connection joined.
    fn joined(deframer: &mut Deframer, mut input: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut all: Vec<(u32, Vec<u8>)> = Vec::new();
        while let Some(piece) = deframer.next(&mut input).unwrap() {
            match all.last_mut() {
                Some((connection, bytes)) if *connection == piece.connection => {
                    bytes.extend_from_slice(piece.bytes);
                }
                _ => all.push((piece.connection, piece.bytes.to_vec())),
            }
        }
        all
    }

    #[test]
    fn bytes_of_a_frame() {
        let bytes = frame(2, b"abc").unwrap();
        assert_eq!(bytes, [0, 0, 0, 2, 0, 0, 0, 3, b'a', b'b', b'c']);
        let mut deframer = Deframer::default();
        assert_eq!(joined(&mut deframer, &bytes), [(2, b"abc".to_vec())]);
        assert!(deframer.at_boundary());
    }

    #[test]
    fn empty_frame_is_no_piece() {
        let mut deframer = Deframer::default();
        assert_eq!(joined(&mut deframer, &frame(1, b"").unwrap()), []);
        assert!(deframer.at_boundary());
    }

    #[test]
    fn unfinished_frames_are_no_boundary() {
        let bytes = frame(1, b"abc").unwrap();
        for end in 1..bytes.len() {
            let mut deframer = Deframer::default();
            joined(&mut deframer, &bytes[..end]);
            assert!(!deframer.at_boundary(), "{end}");
        }
    }

    #[test]
    fn too_long_a_frame_is_an_error() {
        let longest = u32::try_from(LONGEST).unwrap();
        let too_long = (longest + 1).to_be_bytes();
        let longest = longest.to_be_bytes();
        let mut input: &[u8] = &[&[0, 0, 0, 1], &longest[..]].concat();
        assert_eq!(Deframer::default().next(&mut input), Ok(None));
        let mut input: &[u8] = &[&[0, 0, 0, 7], &too_long[..]].concat();
        assert_eq!(
            Deframer::default().next(&mut input),
            Err(FrameError { connection: 7, length: LONGEST + 1 })
        );
        assert_eq!(
            frame(1, &vec![0; LONGEST + 1]),
            Err(FrameError { connection: 1, length: LONGEST + 1 })
        );
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_streams(
            frames in vec((1u32..4, vec(any::<u8>(), 0..40)), 0..12),
            cuts in vec(1usize..30, 1..40),
        ) {
            let trunk: Vec<u8> =
                frames.iter().flat_map(|(id, payload)| frame(*id, payload).unwrap()).collect();
            let mut whole = Deframer::default();
            let expected = joined(&mut whole, &trunk);
            prop_assert!(whole.at_boundary());

            let mut deframer = Deframer::default();
            let mut rest: &[u8] = &trunk;
            let mut streams: [Vec<u8>; 4] = Default::default();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (mut chunk, tail) = rest.split_at((*cut).min(rest.len()));
                rest = tail;
                while let Some(piece) = deframer.next(&mut chunk).unwrap() {
                    streams[piece.connection as usize].extend_from_slice(piece.bytes);
                }
            }
            prop_assert!(deframer.at_boundary());
            for id in 1u32..4 {
                let stream: Vec<u8> = expected
                    .iter()
                    .filter(|(connection, _)| *connection == id)
                    .flat_map(|(_, bytes)| bytes.clone())
                    .collect();
                prop_assert_eq!(&streams[id as usize], &stream);
            }
        }

        #[test]
        fn no_bytes_panic(mut bytes in vec(any::<u8>(), 0..200), zero in any::<bool>()) {
            if zero && bytes.len() > 4 {
                bytes[4] = 0;
            }
            let mut deframer = Deframer::default();
            let mut input: &[u8] = &bytes;
            while let Ok(Some(_)) = deframer.next(&mut input) {}
        }
    }
}
