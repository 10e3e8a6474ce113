//! The kernel's side of a conversation: datagrams in, answers out. No socket in here.

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer,
    NetlinkDeserializable, NetlinkHeader, Parseable,
};
use nix::errno::Errno;

use super::{Error, Family, attribute};

/// `NLM_F_CAPPED`: a refusal quotes the header of the question only.
const NLM_F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow the quotation.
const NLM_F_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the reason in words.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;

/// What has been said so far in answer to one question.
#[derive(Debug)]
pub struct Reply<T> {
    request: &'static str,
    sequence: u32,
    limit: usize,
    /// What the visitor kept.
    pub kept: Vec<T>,
    /// Whether the list changed while it was made (`NLM_F_DUMP_INTR`).
    pub interrupted: bool,
}

impl<T> Reply<T> {
    /// Nothing yet, in answer to question number `sequence`; at most `limit` answers are kept.
    pub fn new(request: &'static str, sequence: u32, limit: usize) -> Self {
        Self { request, sequence, limit, kept: Vec::new(), interrupted: false }
    }

    /// Takes a datagram in. True when it was the last one: an acknowledgement or the end of a list.
    pub fn take<F: Family>(
        &mut self,
        datagram: &[u8],
        mut keep: impl FnMut(F::Answer) -> Option<T>,
    ) -> Result<bool, Error> {
        for message in messages(datagram) {
            let (header, payload) = message.map_err(|reason| self.malformed::<F>(reason))?;
            if header.sequence_number != self.sequence {
                // An answer that came too late for its question, which was given up. One from the
                // future is to a question of somebody else.
                if behind(header.sequence_number, self.sequence) {
                    continue;
                }
                return Err(Error::Sequence {
                    family: F::NAME,
                    request: self.request,
                    want: self.sequence,
                    got: header.sequence_number,
                });
            }
            self.interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
            match header.message_type {
                NLMSG_NOOP => {}
                NLMSG_OVERRUN => {
                    return Err(Error::Receive {
                        family: F::NAME,
                        request: self.request,
                        source: Errno::ENOBUFS,
                    });
                }
                NLMSG_ERROR => {
                    return self.verdict::<F>(payload, quotation(&header, payload)).map(|()| true);
                }
                NLMSG_DONE => {
                    // An empty one is a good end (kernels before 4.4 in some families).
                    let payload = if payload.is_empty() { &[0; 4] } else { payload };
                    return self.verdict::<F>(payload, 4).map(|()| true);
                }
                _ => {
                    let answer = F::Answer::deserialize(&header, payload)
                        .map_err(|error| self.malformed::<F>(error.to_string()))?;
                    if let Some(kept) = keep(answer) {
                        if self.kept.len() >= self.limit {
                            return Err(Error::Excess {
                                family: F::NAME,
                                request: self.request,
                                limit: self.limit,
                            });
                        }
                        self.kept.push(kept);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Reads the errno at the start of `payload` and the words in the attributes from `words` on.
    fn verdict<F: Family>(&self, payload: &[u8], words: usize) -> Result<(), Error> {
        let Some((code, _)) = payload.split_first_chunk::<4>() else {
            return Err(self.malformed::<F>("a verdict without a number".to_owned()));
        };
        match i32::from_ne_bytes(*code) {
            // A list ends with the number of bytes or a 0, depending on the family.
            0.. => Ok(()),
            code => Err(Error::Refused {
                family: F::NAME,
                request: self.request,
                errno: Errno::from_raw(code.saturating_neg()),
                text: payload.get(words..).and_then(explanation),
            }),
        }
    }

    fn malformed<F: Family>(&self, reason: String) -> Error {
        Error::Malformed { family: F::NAME, request: self.request, reason }
    }
}

/// Whether sequence number `a` was used before `b`, given that numbers wrap.
fn behind(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) < u32::MAX / 2
}

/// Where the attributes of a refusal begin: behind the errno and the quotation of the question.
fn quotation(header: &NetlinkHeader, payload: &[u8]) -> usize {
    if header.flags & NLM_F_ACK_TLVS == 0 {
        return payload.len();
    }
    let quoted = match payload.get(4..).and_then(|rest| rest.split_first_chunk::<4>()) {
        Some((length, _)) if header.flags & NLM_F_CAPPED == 0 => {
            usize::try_from(u32::from_ne_bytes(*length)).unwrap_or(usize::MAX)
        }
        _ => HEADER,
    };
    quoted
        .checked_next_multiple_of(4)
        .and_then(|quoted| quoted.checked_add(4))
        .unwrap_or(usize::MAX)
}

fn explanation(attributes: &[u8]) -> Option<String> {
    attribute::parse(attributes)
        .flatten()
        .find(|attribute| attribute.kind == NLMSGERR_ATTR_MSG)
        .and_then(|attribute| attribute.text().ok())
        .map(str::to_owned)
}

/// Takes a datagram apart into messages. Nothing follows an error.
pub fn messages(
    datagram: &[u8],
) -> impl Iterator<Item = Result<(NetlinkHeader, &[u8]), String>> + use<'_> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(rest)
            .and_then(|buffer| Ok((NetlinkHeader::parse(&buffer)?, buffer.payload())));
        Some(match message {
            Ok((header, payload)) => {
                let length = (HEADER + payload.len()).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                Ok((header, payload))
            }
            Err(error) => {
                rest = &[];
                Err(error.to_string())
            }
        })
    })
}
