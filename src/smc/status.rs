//! How the connections of a network namespace go.

use serde::Serialize;

use super::diag::{self, Mode, SmcSocket};
use super::kernel::{Fallen, Kernel, KernelError, Stats};
use super::reason;
use crate::netlink;

/// A namespace could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The kernel does not tell of SMC.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel does not tell of sockets.
    #[error("cannot list the SMC sockets (is smc_diag loaded?): {0}")]
    Sockets(#[from] netlink::Error),
}

/// What is seen from inside one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its SMC sockets.
    pub sockets: Vec<SmcSocket>,
    /// Its counters.
    pub stats: Stats,
    /// How often connections fell back, by reason.
    pub fallen: Vec<Fallen>,
}

/// Looks at the calling thread's namespace.
///
/// # Errors
/// The kernel does not answer.
pub fn look() -> Result<Seen, StatusError> {
    let mut kernel = Kernel::open()?;
    let (stats, fallen) = (kernel.stats()?, kernel.fallbacks()?);
    Ok(Seen { sockets: diag::sockets()?, stats, fallen })
}

/// A connection, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// `SMC-R`, `TCP` or `SMC-D`.
    pub mode: &'static str,
    /// Own port.
    pub port: u16,
    /// The other side's port.
    pub peer_port: u16,
    /// `ADAPTER/PORT` that it goes by.
    pub link: Option<String>,
    /// Own GID.
    pub gid: Option<String>,
    /// The other side's GID.
    pub peer_gid: Option<String>,
    /// Bytes received over RDMA.
    pub received: Option<u64>,
    /// Bytes sent over RDMA.
    pub sent: Option<u64>,
    /// Why it is on TCP.
    pub reason: Option<String>,
    /// What to do about that.
    pub fix: Option<&'static str>,
}

impl Connection {
    /// A socket as it is shown; `None`: it is no connection.
    pub fn of(socket: &SmcSocket) -> Option<Self> {
        if !socket.is_connection() {
            return None;
        }
        let link = socket.link.as_ref().filter(|_| socket.mode == Mode::SmcR);
        let moved = socket.bytes.filter(|_| socket.mode == Mode::SmcR);
        Some(Self {
            mode: socket.mode.name(),
            port: socket.port,
            peer_port: socket.peer_port,
            link: link.map(|link| format!("{}/{}", link.adapter, link.port)),
            gid: link.map(|link| short(&link.gid)),
            peer_gid: link.map(|link| short(&link.peer_gid)),
            received: moved.map(|(received, _)| received),
            sent: moved.map(|(_, sent)| sent),
            reason: socket.fallback.map(|fallback| fallback.to_string()),
            fix: socket.fallback.map(reason::Fallback::fix),
        })
    }
}

/// A GID as addresses are written.
fn short(gid: &str) -> String {
    gid.parse::<std::net::Ipv6Addr>().map_or_else(|_| gid.to_owned(), |gid| gid.to_string())
}

/// One sentence about connections: how many there are by mode, and why some are on TCP.
pub fn summary(connections: &[Connection]) -> String {
    if connections.is_empty() {
        return "no connection".to_owned();
    }
    let on = |mode: Mode| connections.iter().filter(|one| one.mode == mode.name()).count();
    let (all, tcp) = (connections.len(), on(Mode::Tcp));
    if tcp == 0 {
        return format!("{all} of {all} connections on {}", connections[0].mode);
    }
    let mut reasons: Vec<&str> =
        connections.iter().filter_map(|one| one.reason.as_deref()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    format!("{tcp} of {all} connections on TCP: {}", reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smc::diag::{Link, State};
    use crate::smc::reason::Fallback;

    fn socket(mode: Mode, fallback: Option<u32>) -> SmcSocket {
        SmcSocket {
            state: State::Active,
            mode,
            port: 6001,
            peer_port: 41_000,
            inode: 7,
            fallback: fallback.map(|reason| Fallback { reason, peer: 0 }),
            link: (mode == Mode::SmcR).then(|| Link {
                adapter: "mlx5_0".into(),
                port: 1,
                gid: "0000:0000:0000:0000:0000:ffff:0a01:0007".into(),
                peer_gid: "0000:0000:0000:0000:0000:ffff:0a01:0008".into(),
                server: false,
            }),
            bytes: Some((10, 20)),
        }
    }

    #[test]
    fn c96_connections_on_tcp_are_counted_and_explained() {
        let connections: Vec<Connection> =
            [socket(Mode::SmcR, None), socket(Mode::Tcp, Some(0x0303_0002))]
                .iter()
                .filter_map(Connection::of)
                .collect();
        assert_eq!(
            summary(&connections),
            "1 of 2 connections on TCP: no RDMA device for SMC-R in this network namespace (PNET id?)"
        );
        assert_eq!(summary(&connections[..1]), "1 of 1 connections on SMC-R");
        assert_eq!(summary(&[]), "no connection");
        let [over, back] = &connections[..] else { panic!() };
        assert_eq!(over.link.as_deref(), Some("mlx5_0/1"));
        assert_eq!(over.gid.as_deref(), Some("::ffff:10.1.0.7"));
        assert_eq!((over.received, over.sent), (Some(10), Some(20)));
        assert_eq!((back.received, back.link.as_deref()), (None, None));
        assert!(back.fix.unwrap().contains("PNET id"));
        let listening = SmcSocket { state: State::Listen, ..socket(Mode::SmcR, None) };
        assert_eq!(Connection::of(&listening), None);
    }
}
