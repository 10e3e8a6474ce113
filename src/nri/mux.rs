//! The trunk of an NRI session: one socket that carries two connections.
//!
//! [`open`] makes of any stream the two ends and a [`Trunk`], whose [`Trunk::run`] moves the bytes
//! and ends when the trunk does.
//!
//! What a runtime in Go accepts decides how is written. Its multiplexer hands each frame to one
//! read and fails when the frame is longer than the reader's buffer, which has 4096 bytes except
//! while the rest of a message is read; and it gives up when 256 frames wait. So the writer above
//! must hand over at most 4096 bytes first and then the rest of the message, and [`End`] makes of
//! each write exactly one frame: it never takes a part. ttrpc 0.10 writes that way
//! (`write_message_buffered` in its `proto.rs`); `ttrpc_writes_what_go_accepts` holds it to it.

use super::frame::{self, Deframer, FrameError};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};

/// Number of the connection on which the runtime calls the plugin.
pub const PLUGIN: u32 = 1;
/// Number of the connection on which the plugin calls the runtime.
pub const RUNTIME: u32 = 2;

/// Bytes that wait for the reader of one connection before the trunk is read no further.
const INBOUND: usize = 64 << 10;
/// Bytes that wait for the trunk before a write has to wait. A longer frame is taken when nothing
/// else waits.
const OUTBOUND: usize = 1 << 20;
/// Bytes read from the trunk at once.
const READ: usize = 16 << 10;

/// Why a trunk ended.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The other side closed it between two frames.
    #[error("the runtime closed the connection")]
    Closed,
    /// It ended in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    /// What came is no trunk.
    #[error("the runtime broke the protocol: {0}")]
    Frame(#[from] FrameError),
    /// Whoever served a connection here is gone, so that no request on it would be answered.
    #[error("connection {0} of the session is no longer served")]
    Unserved(u32),
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// One connection's end. Reads are a byte stream; each write is taken whole and becomes one frame.
#[derive(Debug)]
pub struct End {
    connection: u32,
    inbound: DuplexStream,
    outbox: Arc<Outbox>,
}

/// The socket's side of it all.
#[derive(Debug)]
pub struct Trunk<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    /// By number of connection, less 1.
    inbound: [DuplexStream; 2],
    outbox: Arc<Outbox>,
}

/// Splits `stream` into the ends of [`PLUGIN`] and [`RUNTIME`] and the trunk that feeds them.
pub fn open<S: AsyncRead + AsyncWrite>(stream: S) -> (End, End, Trunk<S>) {
    let (reader, writer) = tokio::io::split(stream);
    let outbox = Arc::new(Outbox::default());
    let (plugin_end, plugin) = tokio::io::duplex(INBOUND);
    let (runtime_end, runtime) = tokio::io::duplex(INBOUND);
    let end = |connection, inbound| End { connection, inbound, outbox: Arc::clone(&outbox) };
    let ends = (end(PLUGIN, plugin_end), end(RUNTIME, runtime_end));
    (ends.0, ends.1, Trunk { reader, writer, inbound: [plugin, runtime], outbox })
}

impl<S: AsyncRead + AsyncWrite> Trunk<S> {
    /// Tells when all has been written.
    #[must_use]
    pub fn drained(&self) -> Drained {
        Drained(Arc::clone(&self.outbox))
    }

    /// Moves bytes until the trunk ends. Then, and when this future is dropped, the ends read an
    /// end of file and fail to write.
    pub async fn run(self) -> Lost {
        let Self { reader, writer, inbound, outbox } = self;
        let _closer = Closer(Arc::clone(&outbox));
        tokio::select! {
            lost = read(reader, inbound) => lost,
            error = write(writer, &outbox) => Lost::Io(error),
        }
    }
}

/// Closes the outbox when the trunk goes, however it goes.
struct Closer(Arc<Outbox>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn read<S: AsyncRead>(mut trunk: ReadHalf<S>, mut inbound: [DuplexStream; 2]) -> Lost {
    let mut buffer = vec![0; READ];
    let mut deframer = Deframer::default();
    loop {
        let mut input: &[u8] = match trunk.read(&mut buffer).await {
            Ok(0) if deframer.at_boundary() => return Lost::Closed,
            Ok(0) => return Lost::Truncated,
            Ok(n) => &buffer[..n],
            Err(e) => return Lost::Io(e),
        };
        loop {
            let piece = match deframer.next(&mut input) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(e) => return Lost::Frame(e),
            };
            let end = match piece.connection {
                PLUGIN => &mut inbound[0],
                RUNTIME => &mut inbound[1],
                // Of a connection that nobody opened: as if it had not come.
                _ => continue,
            };
            if end.write_all(piece.bytes).await.is_err() {
                return Lost::Unserved(piece.connection);
            }
        }
    }
}

async fn write<S: AsyncWrite>(mut trunk: WriteHalf<S>, outbox: &Outbox) -> io::Error {
    loop {
        let frame = std::future::poll_fn(|cx| outbox.poll_front(cx)).await;
        if let Err(e) = trunk.write_all(&frame).await {
            return e;
        }
        outbox.written(frame.len());
    }
}

/// Frames that wait for the trunk, of both connections, in the order of their writes.
#[derive(Debug, Default)]
struct Outbox(Mutex<Outgoing>);

#[derive(Debug, Default)]
struct Outgoing {
    frames: VecDeque<Vec<u8>>,
    /// Bytes of `frames` and of the frame that is being written.
    bytes: usize,
    closed: bool,
    /// The trunk, waiting for a frame.
    trunk: Option<Waker>,
    /// The ends, waiting for room or for their frames to be written.
    ends: [Option<Waker>; 2],
    /// Which ends have been dropped.
    dropped: [bool; 2],
    /// A [`Drained`], waiting.
    drained: Option<Waker>,
}

/// Tells when a connection's end is gone and its last bytes have left.
#[derive(Debug)]
pub struct Drained(Arc<Outbox>);

impl Drained {
    /// Waits until the end of `connection` has been dropped and nothing waits for the trunk, unless
    /// that is closed.
    pub async fn wait(&self, connection: u32) {
        std::future::poll_fn(|cx| {
            let mut out = self.0.lock();
            if out.dropped[slot(connection)] && (out.closed || out.bytes == 0) {
                return Poll::Ready(());
            }
            out.drained = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut out = self.outbox.lock();
        out.dropped[slot(self.connection)] = true;
        let waker = out.drained.take();
        drop(out);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        // Nothing below panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_push(&self, id: u32, payload: &[u8], cx: &Context<'_>) -> Poll<io::Result<usize>> {
        if payload.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut out = self.lock();
        if out.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if out.bytes > 0 && out.bytes + frame::HEADER + payload.len() > OUTBOUND {
            out.ends[slot(id)] = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let frame = frame::frame(id, payload)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        out.bytes += frame.len();
        out.frames.push_back(frame);
        let waker = out.trunk.take();
        drop(out);
        if let Some(waker) = waker {
            waker.wake();
        }
        Poll::Ready(Ok(payload.len()))
    }

    /// Ready when nothing waits any more.
    fn poll_flush(&self, id: u32, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.lock();
        if out.bytes == 0 {
            return Poll::Ready(Ok(()));
        }
        if out.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        out.ends[slot(id)] = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_front(&self, cx: &Context<'_>) -> Poll<Vec<u8>> {
        let mut out = self.lock();
        if let Some(frame) = out.frames.pop_front() {
            return Poll::Ready(frame);
        }
        out.trunk = Some(cx.waker().clone());
        Poll::Pending
    }

    fn written(&self, length: usize) {
        let mut out = self.lock();
        out.bytes -= length;
        Self::wake(out);
    }

    fn close(&self) {
        let mut out = self.lock();
        out.closed = true;
        out.frames.clear();
        Self::wake(out);
    }

    /// Wakes all but the trunk.
    fn wake(mut out: MutexGuard<'_, Outgoing>) {
        let ends = std::mem::take(&mut out.ends);
        let drained = out.drained.take();
        drop(out);
        ends.into_iter().flatten().chain(drained).for_each(Waker::wake);
    }
}

fn slot(id: u32) -> usize {
    usize::from(id == RUNTIME)
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inbound).poll_read(cx, buf)
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.outbox.poll_push(self.connection, buf, cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_flush(self.connection, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The trunk knows no end of a single connection.
        self.poll_flush(cx)
    }
}
