//! When each request came. A runtime's patience begins when it sends; reading and decoding a long
//! request takes its share of it, before there is a call to measure.

use super::mux::End;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use ttrpc::proto::{MESSAGE_HEADER_LENGTH, MessageHeader};

/// How many requests are remembered. Those that no method was found for are never asked for.
const REMEMBERED: usize = 64;

/// Times of requests, by the number of their stream.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<VecDeque<(u32, Instant)>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, Instant)>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, stream: u32) {
        let mut arrivals = self.lock();
        if arrivals.len() == REMEMBERED {
            arrivals.pop_front();
        }
        arrivals.push_back((stream, Instant::now()));
    }

    /// When the request on `stream` came.
    pub(super) fn take(&self, stream: u32) -> Option<Instant> {
        let mut arrivals = self.lock();
        let at = arrivals.iter().position(|(noted, _)| *noted == stream)?;
        arrivals.remove(at).map(|(_, when)| when)
    }
}

/// Finds ttrpc's headers in a stream of its messages, cut anywhere.
#[derive(Debug, Default)]
struct Headers {
    header: [u8; MESSAGE_HEADER_LENGTH],
    /// Bytes of `header` that are there.
    have: usize,
    /// Bytes of the message's body that are still to come.
    missing: usize,
}

impl Headers {
    fn take(&mut self, mut bytes: &[u8], mut found: impl FnMut(MessageHeader)) {
        while !bytes.is_empty() {
            if self.missing > 0 {
                let skipped = self.missing.min(bytes.len());
                self.missing -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let (part, rest) = bytes.split_at((self.header.len() - self.have).min(bytes.len()));
            self.header[self.have..self.have + part.len()].copy_from_slice(part);
            self.have += part.len();
            bytes = rest;
            if self.have == self.header.len() {
                self.have = 0;
                let header = MessageHeader::from(self.header);
                self.missing = usize::try_from(header.length).unwrap_or(usize::MAX);
                found(header);
            }
        }
    }
}

/// A connection's end that notes when requests come.
#[derive(Debug)]
pub(super) struct Watched {
    end: End,
    headers: Headers,
    arrivals: Arc<Arrivals>,
}

impl Watched {
    pub(super) fn new(end: End, arrivals: Arc<Arrivals>) -> Self {
        Self { end, headers: Headers::default(), arrivals }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.end).poll_read(cx, buf);
        let Self { headers, arrivals, .. } = &mut *self;
        headers.take(&buf.filled()[before..], |header| arrivals.note(header.stream_id));
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_a_stream_cut_anywhere() {
        let mut stream = Vec::new();
        for (id, length) in [(1, 0), (3, 25), (5, 1)] {
            stream.extend(Vec::from(MessageHeader::new_request(id, length)));
            stream.extend(vec![0xff; length as usize]);
        }
        for cut in 1..stream.len() {
            let mut headers = Headers::default();
            let mut found = Vec::new();
            for part in stream.chunks(cut) {
                headers.take(part, |header| found.push(header.stream_id));
            }
            assert_eq!(found, [1, 3, 5], "{cut}");
        }
    }

    #[test]
    fn few_are_remembered() {
        let arrivals = Arrivals::default();
        (0..1000).for_each(|id| arrivals.note(id));
        assert_eq!(arrivals.take(1), None);
        assert!(arrivals.take(999).is_some());
        assert_eq!(arrivals.take(999), None);
        assert_eq!(arrivals.lock().len(), REMEMBERED - 1);
    }
}
