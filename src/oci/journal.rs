//! The system's log: the journal by its native protocol, else syslog. One datagram each; where
//! neither listens, nobody is told. The runtime of a container must not wait for a log.

use std::os::unix::net::UnixDatagram;
use std::sync::LazyLock;

use crate::roots::Roots;

/// How much a line matters (syslog's numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// 3
    Error,
    /// 4
    Warning,
    /// 6
    Info,
}

impl Priority {
    const fn number(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Info => 6,
        }
    }
}

/// Longest text that is sent, in bytes: a datagram must fit.
const LONGEST: usize = 8 << 10;

/// Sends a line.
pub(super) fn send(roots: &Roots, priority: Priority, text: &str) {
    static SOCKET: LazyLock<Option<UnixDatagram>> = LazyLock::new(|| {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok().map(|()| socket)
    });
    let Some(socket) = SOCKET.as_ref() else { return };
    let native = roots.run.join("systemd/journal/socket");
    if socket.send_to(record(priority, text).as_bytes(), native).is_err() {
        let line = format!("<{}>rdma-ctk: {}", 24 + priority.number(), one_line(text));
        let _ = socket.send_to(line.as_bytes(), roots.dev.join("log"));
    }
}

/// The journal's native form: `FIELD=value` lines.
fn record(priority: Priority, text: &str) -> String {
    let number = priority.number();
    format!("PRIORITY={number}\nSYSLOG_IDENTIFIER=rdma-ctk\nMESSAGE={}\n", one_line(text))
}

fn one_line(text: &str) -> String {
    let mut line: String = text.replace(|c: char| c.is_control(), " ");
    let end = (0..=LONGEST.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
    line.truncate(end.unwrap_or(0));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_datagram_and_nobody_needs_to_listen() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        send(&roots, Priority::Error, "to nobody");
        std::fs::create_dir_all(&roots.dev).unwrap();
        let syslog = UnixDatagram::bind(roots.dev.join("log")).unwrap();
        let mut buffer = [0; 16384];
        send(&roots, Priority::Error, "a\nMESSAGE=b");
        let length = syslog.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<27>rdma-ctk: a MESSAGE=b");

        std::fs::create_dir_all(roots.run.join("systemd/journal")).unwrap();
        let journal = UnixDatagram::bind(roots.run.join("systemd/journal/socket")).unwrap();
        send(&roots, Priority::Warning, &"é".repeat(LONGEST));
        let length = journal.recv(&mut buffer).unwrap();
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(text.starts_with("PRIORITY=4\nSYSLOG_IDENTIFIER=rdma-ctk\nMESSAGE=éé"), "{text}");
    }
}
