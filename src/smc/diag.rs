//! SMC sockets of a network namespace, as `smc_diag` tells them (`include/uapi/linux/smc_diag.h`).

use crate::netlink::attribute::{self, Malformed};
use crate::netlink::sock_diag::{Message, SockDiag};
use crate::netlink::{self, Socket};

use super::reason::Fallback;

/// `AF_SMC`
const AF_SMC: u8 = 43;
/// Length of `struct smc_diag_msg`.
const HEADER: usize = 64;
/// Length of `struct smc_diag_req`: four bytes and `struct inet_diag_sockid`.
const QUESTION: usize = 52;

/// `SMC_DIAG_CONNINFO`
const CONNINFO: u16 = 1;
/// `SMC_DIAG_LGRINFO`
const LGRINFO: u16 = 2;
/// `SMC_DIAG_FALLBACK`
const FALLBACK: u16 = 5;

/// How the data of a socket goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Over RDMA.
    SmcR,
    /// Over TCP: it fell back.
    Tcp,
    /// Over a device of internal shared memory.
    SmcD,
}

impl Mode {
    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmcR => "SMC-R",
            Self::Tcp => "TCP",
            Self::SmcD => "SMC-D",
        }
    }
}

/// Where a socket is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Data goes.
    Active,
    /// Not connected, or a handshake is going on: the mode says nothing yet.
    Init,
    /// It waits for connections.
    Listen,
    /// It was closed by one side or both.
    Closing,
}

/// One SMC socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmcSocket {
    /// Where it is in its life.
    pub state: State,
    /// How its data goes; says something of connections only.
    pub mode: Mode,
    /// Its own port; addresses of sockets made with `IPPROTO_SMC` are not told.
    pub port: u16,
    /// The other side's port.
    pub peer_port: u16,
    /// Number of the socket's file, by which its process is found; 0 while it waits for `accept`.
    pub inode: u64,
    /// Why it fell back.
    pub fallback: Option<Fallback>,
    /// The link that it uses.
    pub link: Option<Link>,
    /// Bytes that were received and sent, which begin again after 65536 rounds through the buffer.
    pub bytes: Option<(u64, u64)>,
}

impl SmcSocket {
    /// Whether it is a connection, whose mode is settled. A socket that fell back before it was
    /// connected, over an option say, stays in the first state for ever.
    pub fn is_connection(&self) -> bool {
        match self.state {
            State::Active | State::Closing => true,
            State::Init => self.mode == Mode::Tcp,
            State::Listen => false,
        }
    }
}

/// An RDMA link under a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Kernel name of the adapter.
    pub adapter: String,
    /// Port, from 1.
    pub port: u8,
    /// Its GID, as the kernel writes it.
    pub gid: String,
    /// The other side's GID.
    pub peer_gid: String,
    /// This side accepted the connection on which the link was made.
    pub server: bool,
}

/// The question for all SMC sockets, with what goes with them.
pub fn question() -> Message {
    let mut bytes = vec![0; QUESTION];
    bytes[0] = AF_SMC;
    bytes[3] = 1 << (CONNINFO - 1) | 1 << (LGRINFO - 1);
    Message(bytes)
}

/// Every SMC socket of the calling thread's namespace. The kernel loads `smc_diag` for the question
/// where it may.
///
/// # Errors
/// The kernel does not answer. Where smc is not there it refuses with `ENOENT`.
pub fn sockets() -> Result<Vec<SmcSocket>, netlink::Error> {
    let answers = Socket::<SockDiag>::open()?.list(question(), Some)?;
    answers.iter().map(|answer| parse(&answer.0)).collect::<Result<_, _>>().map_err(|reason| {
        netlink::Error::Malformed {
            family: "NETLINK_SOCK_DIAG",
            request: "SOCK_DIAG_BY_FAMILY",
            reason: reason.to_string(),
        }
    })
}

/// Reads one socket.
///
/// # Errors
/// It is cut short.
pub fn parse(bytes: &[u8]) -> Result<SmcSocket, Malformed> {
    let short = || Malformed::Short { what: "struct smc_diag_msg", length: bytes.len() };
    let fixed = bytes.first_chunk::<HEADER>().ok_or_else(short)?;
    let state = match fixed[1] {
        1 => State::Active,
        2 => State::Init,
        10 => State::Listen,
        _ => State::Closing,
    };
    let mode = match fixed[2] {
        0 => Mode::SmcR,
        1 => Mode::Tcp,
        _ => Mode::SmcD,
    };
    let mut socket = SmcSocket {
        state,
        mode,
        port: u16::from_be_bytes([fixed[4], fixed[5]]),
        peer_port: u16::from_be_bytes([fixed[6], fixed[7]]),
        inode: u64_at(fixed, 56).unwrap_or(0),
        fallback: None,
        link: None,
        bytes: None,
    };
    for attribute in attribute::parse(&bytes[HEADER..]) {
        let attribute = attribute?;
        match attribute.kind {
            FALLBACK if mode == Mode::Tcp => {
                let (reason, peer) = (u32_at(attribute.value, 0), u32_at(attribute.value, 4));
                socket.fallback = reason.zip(peer).map(|(reason, peer)| Fallback { reason, peer });
            }
            LGRINFO => socket.link = link(attribute.value),
            CONNINFO => socket.bytes = moved(attribute.value),
            _ => {}
        }
    }
    Ok(socket)
}

/// `struct smc_diag_lgrinfo`: link number, name of 64 bytes, port, two GIDs of 40, role.
fn link(value: &[u8]) -> Option<Link> {
    let text = |from: usize, length: usize| {
        let field = value.get(from..from + length)?;
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
        std::str::from_utf8(&field[..end]).ok().map(str::to_owned)
    };
    Some(Link {
        adapter: text(1, 64).filter(|name| !name.is_empty())?,
        port: *value.get(65)?,
        gid: text(66, 40)?,
        peer_gid: text(106, 40)?,
        server: value.get(146) == Some(&1),
    })
}

/// `struct smc_diag_conninfo`: token, three lengths of buffers, then cursors of eight bytes: what the
/// other side has written and we have read, what we have written and the other side has read.
fn moved(value: &[u8]) -> Option<(u64, u64)> {
    let (own, peer) = (u32_at(value, 8)?, u32_at(value, 12)?);
    // A cursor: reserved, rounds through the buffer, place in it.
    let cursor = |at: usize, length: u32| {
        let rounds = u16::from_ne_bytes([*value.get(at + 2)?, *value.get(at + 3)?]);
        Some(u64::from(rounds) * u64::from(length) + u64::from(u32_at(value, at + 4)?))
    };
    Some((cursor(16, own)?, cursor(32, peer)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|eight| u64::from_ne_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::replay;
    use crate::smc::recorded::{recorded, sent};

    fn seen() -> Vec<SmcSocket> {
        let answers = replay::<SockDiag>(&recorded("diag")).unwrap();
        answers.iter().map(|answer| parse(&answer.0).unwrap()).collect()
    }

    #[test]
    fn the_question_is_what_the_kernel_was_asked() {
        // The recording asked for everything there is.
        let mut all = question();
        assert_eq!(all.0[3], 3);
        all.0[3] = 0xff;
        assert_eq!(sent("diag"), all.0);
    }

    #[test]
    fn c96_sockets_are_told_by_mode_with_reason_and_link() {
        let told: Vec<_> = seen()
            .into_iter()
            .map(|socket| (socket.state, socket.mode, socket.port, socket.peer_port, socket.inode))
            .collect();
        use Mode::{SmcR, Tcp};
        use State::{Active, Init, Listen};
        assert_eq!(
            told,
            [
                (Active, Tcp, 42832, 7003, 447),
                (Active, Tcp, 7002, 57714, 445),
                (Listen, SmcR, 7002, 0, 442),
                (Active, SmcR, 7001, 56030, 1110),
                (Active, SmcR, 56030, 7001, 1108),
                (Listen, SmcR, 7001, 0, 1106),
                (Init, SmcR, 0, 0, 450),
            ]
        );
        let sockets = seen();
        let fallback = Some(Fallback { reason: 0x0301_0000, peer: 0 });
        assert_eq!((sockets[0].fallback, sockets[1].fallback), (fallback, fallback));
        assert_eq!(sockets[3].fallback, None);
        assert_eq!(
            sockets[3].link,
            Some(Link {
                adapter: "rxelo".into(),
                port: 1,
                gid: "0000:0000:0000:0000:0000:ffff:7f00:0001".into(),
                peer_gid: "0000:0000:0000:0000:0000:ffff:7f00:0001".into(),
                server: true,
            })
        );
        assert_eq!(sockets[4].link.as_ref().map(|link| link.server), Some(false));
        // 100000 bytes went from the client to the server.
        assert_eq!(sockets[3].bytes, Some((100_000, 0)));
        assert_eq!(sockets[4].bytes, Some((0, 100_000)));
        assert_eq!(sockets.iter().filter(|socket| socket.is_connection()).count(), 4);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse(&bytes), link(&bytes), moved(&bytes));
        }
    }
}
