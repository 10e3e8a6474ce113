//! A runtime that does what a script tells it: the other end of a session, for tests and benches.
//!
//! It speaks the protocol with its limits (each frame that arrives is held against what the reader
//! of a runtime in Go takes), and can do what a real one cannot be made to do: any version and
//! time limit, frames cut anywhere, bytes that are no frames, calls that overlap, a cut connection.

use super::frame::{HEADER, frame};
use super::mux::{PLUGIN, RUNTIME};
use super::proto::{
    ConfigureRequest, ConfigureResponse, Container, ContainerUpdate, PodSandbox,
    RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse,
};
use bytes::BytesMut;
use prost::Message;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use ttrpc::proto::{Codec, MESSAGE_HEADER_LENGTH, MessageHeader, Request, Response};

/// The longest message that ttrpc carries.
pub const MESSAGE: usize = 4 << 20;
/// The buffer of ttrpc's reader in Go.
const BUFFER: usize = 4096;

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The plugin answered an error.
    #[error("status {code}: {text}")]
    Status {
        /// As numbered by gRPC.
        code: i32,
        /// What a user would see.
        text: String,
    },
    /// No answer within the request's time.
    #[error("no answer in time")]
    Late,
    /// The connection is gone.
    #[error("connection closed")]
    Closed,
    /// The answer is none.
    #[error("malformed answer: {0}")]
    Malformed(String),
}

/// An answered call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its method.
    pub method: String,
    /// From its first byte out to its answer.
    pub elapsed: Duration,
    /// Whether it was answered, and not by an error.
    pub ok: bool,
}

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The runtime's end of a session.
pub struct Scripted {
    shared: Arc<Shared>,
    registrations: mpsc::UnboundedReceiver<(u32, RegisterPluginRequest)>,
    reader: JoinHandle<()>,
    /// Given to the plugin in the ConfigureRequest, and held against its answers.
    pub request_timeout: Duration,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripted").field("request_timeout", &self.request_timeout).finish()
    }
}

struct Shared {
    writer: AsyncMutex<Writer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_stream: u32,
    waiting: HashMap<u32, oneshot::Sender<Response>>,
    closed: bool,
    records: Vec<Record>,
    violations: Vec<String>,
    frames: Vec<(u32, usize)>,
    /// Longest frame that is sent; `None`: as Go does.
    cut: Option<usize>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, connection: u32, message: &[u8]) -> Result<(), Fault> {
        let cut = self.state().cut;
        let mut bytes = Vec::with_capacity(message.len() + 2 * HEADER);
        let mut add = |part: &[u8]| -> Result<(), Fault> {
            let part = frame(connection, part).map_err(|e| Fault::Malformed(e.to_string()))?;
            bytes.extend_from_slice(&part);
            Ok(())
        };
        match cut {
            Some(longest) => message.chunks(longest.max(1)).try_for_each(add)?,
            None if message.len() <= BUFFER => add(message)?,
            None => {
                let (head, tail) = message.split_at(BUFFER);
                add(head)?;
                add(tail)?;
            }
        }
        self.raw(&bytes).await
    }

    async fn raw(&self, bytes: &[u8]) -> Result<(), Fault> {
        let mut writer = self.writer.lock().await;
        writer.write_all(bytes).await.map_err(|_| Fault::Closed)?;
        writer.flush().await.map_err(|_| Fault::Closed)
    }
}

impl Scripted {
    /// The runtime's end of `stream`. To be called within a tokio runtime.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let shared = Arc::new(Shared {
            writer: AsyncMutex::new(Box::new(writer)),
            state: Mutex::new(State { next_stream: 1, ..State::default() }),
        });
        let (sender, registrations) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read(reader, Arc::clone(&shared), sender));
        Self { shared, registrations, reader, request_timeout: Duration::from_secs(2) }
    }

    /// Waits for the plugin's registration, and does not answer it.
    ///
    /// # Errors
    /// The connection closed.
    pub async fn registration(&mut self) -> Result<(u32, RegisterPluginRequest), Fault> {
        self.registrations.recv().await.ok_or(Fault::Closed)
    }

    /// Answers a registration, with an error if there is one.
    ///
    /// # Errors
    /// The connection closed.
    pub async fn answer(&self, stream: u32, error: Option<&str>) -> Result<(), Fault> {
        let mut response = Response::new();
        if let Some(text) = error {
            response.set_status(ttrpc::get_status(ttrpc::Code::UNKNOWN, text));
        }
        let payload = response.encode().map_err(|e| Fault::Malformed(e.to_string()))?;
        let header = MessageHeader::new_response(stream, length(&payload));
        self.shared.send(RUNTIME, &[Vec::from(header), payload].concat()).await
    }

    /// Accepts the plugin, configures it as a runtime of this name, version and NRI version, and
    /// tells it that nothing runs: the events it subscribes to.
    ///
    /// # Errors
    /// The plugin did not go along.
    pub async fn start(&mut self, name: &str, version: &str, nri: &str) -> Result<i32, Fault> {
        let (stream, _) = self.registration().await?;
        self.answer(stream, None).await?;
        let events = self.configure(name, version, nri, "").await?;
        self.synchronize(&[], &[]).await?;
        Ok(events)
    }

    /// Configures the plugin: the events it subscribes to.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn configure(
        &self,
        name: &str,
        version: &str,
        nri: &str,
        config: &str,
    ) -> Result<i32, Fault> {
        let request_timeout = i64::try_from(self.request_timeout.as_millis()).unwrap_or(i64::MAX);
        let request = ConfigureRequest {
            config: config.to_owned(),
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            registration_timeout: 5000,
            request_timeout,
            nri_version: nri.to_owned(),
        };
        let response: ConfigureResponse = self.call("Configure", &request).await?;
        Ok(response.events)
    }

    /// Tells the plugin what there is, in requests of at most [`MESSAGE`]: how many these were,
    /// and the updates that the plugin asks for.
    ///
    /// # Errors
    /// As [`Self::call`], and when the answer to a part is not that of a plugin that knows parts.
    pub async fn synchronize(
        &self,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> Result<(usize, Vec<ContainerUpdate>), Fault> {
        let (mut pods, mut containers) = (pods, containers);
        let (mut pods_at_once, mut containers_at_once) = (pods.len(), containers.len());
        let mut requests = 0;
        loop {
            let some_pods = pods.len().min(pods_at_once);
            let some_containers = containers.len().min(containers_at_once);
            let more = some_pods < pods.len() || some_containers < containers.len();
            let request = SynchronizeRequest {
                pods: pods[..some_pods].to_vec(),
                containers: containers[..some_containers].to_vec(),
                more,
            };
            let size = request.encoded_len();
            // Room for ttrpc's envelope.
            if size > MESSAGE - 1024 {
                let fits = |n: usize| (n * MESSAGE / size).min(n * 9 / 10).max(1);
                (pods_at_once, containers_at_once) = (fits(some_pods), fits(some_containers));
                continue;
            }
            let response: SynchronizeResponse = self.call("Synchronize", &request).await?;
            requests += 1;
            if response.more != more || (more && !response.update.is_empty()) {
                return Err(Fault::Malformed("no answer to a part of a synchronisation".into()));
            }
            if !more {
                return Ok((requests, response.update));
            }
            (pods, containers) = (&pods[some_pods..], &containers[some_containers..]);
        }
    }

    /// Calls the plugin and waits for its answer for the time of a request.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn call<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        request: &Q,
    ) -> Result<A, Fault> {
        let answer = self.call_bytes(method, request.encode_to_vec()).await?;
        A::decode(answer.as_slice()).map_err(|e| Fault::Malformed(e.to_string()))
    }

    /// As [`Self::call`], with a payload that need not be a message.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn call_bytes(&self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, Fault> {
        self.call_service("nri.pkg.api.v1alpha1.Plugin", method, payload).await
    }

    /// As [`Self::call_bytes`], of any service.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn call_service(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Fault> {
        let mut request = Request::new();
        request.set_service(service.to_owned());
        request.set_method(method.to_owned());
        request.payload = payload;
        request.timeout_nano = i64::try_from(self.request_timeout.as_nanos()).unwrap_or(i64::MAX);
        let payload = request.encode().map_err(|e| Fault::Malformed(e.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        let stream = {
            let mut state = self.shared.state();
            if state.closed {
                return Err(Fault::Closed);
            }
            let stream = state.next_stream;
            state.next_stream += 2;
            state.waiting.insert(stream, sender);
            stream
        };
        let header = MessageHeader::new_request(stream, length(&payload));
        let begun = Instant::now();
        self.shared.send(PLUGIN, &[Vec::from(header), payload].concat()).await?;
        let answer = match tokio::time::timeout(self.request_timeout, receiver).await {
            Err(_) => Err(Fault::Late),
            Ok(Err(_)) => Err(Fault::Closed),
            Ok(Ok(response)) => match response.status().code() {
                ttrpc::Code::OK => Ok(response.payload),
                _ => Err(Fault::Status {
                    code: response.status.code.value(),
                    text: response.status().message().to_owned(),
                }),
            },
        };
        let record =
            Record { method: method.to_owned(), elapsed: begun.elapsed(), ok: answer.is_ok() };
        self.shared.state().records.push(record);
        answer
    }

    /// Sends these bytes as they are.
    ///
    /// # Errors
    /// The connection closed.
    pub async fn raw(&self, bytes: &[u8]) -> Result<(), Fault> {
        self.shared.raw(bytes).await
    }

    /// Cuts messages into frames of at most so many bytes from now on.
    pub fn cut_frames(&self, longest: usize) {
        self.shared.state().cut = Some(longest);
    }

    /// The calls that were answered, in the order of the answers.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.state().records.clone()
    }

    /// Connection and length of each frame that came.
    #[must_use]
    pub fn frames(&self) -> Vec<(u32, usize)> {
        self.shared.state().frames.clone()
    }

    /// What came that a runtime in Go would not have taken.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.shared.state().violations.clone()
    }

    /// Waits until the plugin has closed the connection.
    pub async fn closed(&mut self) {
        // A reader that failed has read to the end as well.
        let _ = (&mut self.reader).await;
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // The other half of the stream; without it, the connection would stay open.
        self.reader.abort();
    }
}

fn length(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}

async fn read(
    mut trunk: impl AsyncRead + Unpin,
    shared: Arc<Shared>,
    registrations: mpsc::UnboundedSender<(u32, RegisterPluginRequest)>,
) {
    let mut buffer = BytesMut::new();
    let mut streams = [GoReader::default(), GoReader::default()];
    loop {
        while let Some((connection, payload)) = take_frame(&mut buffer) {
            shared.state().frames.push((connection, payload.len()));
            let stream = match connection {
                PLUGIN => &mut streams[0],
                RUNTIME => &mut streams[1],
                _ => {
                    shared.state().violations.push(format!("frame of connection {connection}"));
                    continue;
                }
            };
            let verdict = stream.admit(payload.len());
            shared.state().violations.extend(verdict.err());
            for (header, payload) in stream.take(&payload) {
                if connection == PLUGIN {
                    answered(&shared, header, &payload);
                } else if let Ok(request) = <Request as Codec>::decode(&payload)
                    && let Ok(register) = RegisterPluginRequest::decode(request.payload.as_slice())
                {
                    // Nobody asks for it any more: the script is at its end.
                    let _ = registrations.send((header.stream_id, register));
                }
            }
        }
        if !matches!(trunk.read_buf(&mut buffer).await, Ok(1..)) {
            break;
        }
    }
    if !buffer.is_empty() {
        shared.state().violations.push("the last frame is not whole".to_owned());
    }
    let mut state = shared.state();
    state.closed = true;
    state.waiting.clear();
}

fn answered(shared: &Shared, header: MessageHeader, payload: &[u8]) {
    let mut state = shared.state();
    match <Response as Codec>::decode(payload) {
        Ok(response) => {
            if let Some(sender) = state.waiting.remove(&header.stream_id) {
                // The caller may have given up: a late answer.
                let _ = sender.send(response);
            }
        }
        Err(e) => state.violations.push(format!("response {}: {e}", header.stream_id)),
    }
}

/// The frame at the start of `buffer`, which is taken out of it.
fn take_frame(buffer: &mut BytesMut) -> Option<(u32, BytesMut)> {
    let [a, b, c, d, e, f, g, h] = *buffer.first_chunk::<HEADER>()?;
    let length = u32::from_be_bytes([e, f, g, h]) as usize;
    if buffer.len() < HEADER + length {
        return None;
    }
    let mut frame = buffer.split_to(HEADER + length);
    Some((u32::from_be_bytes([a, b, c, d]), frame.split_off(HEADER)))
}

/// What ttrpc in Go has read of one connection: whole messages come out.
#[derive(Default)]
struct GoReader {
    bytes: BytesMut,
}

impl GoReader {
    /// Bytes missing of the present message, or of its header.
    fn missing(&self) -> usize {
        match self.bytes.first_chunk::<MESSAGE_HEADER_LENGTH>() {
            None => MESSAGE_HEADER_LENGTH - self.bytes.len(),
            Some(header) => {
                let length = MessageHeader::from(&header[..]).length as usize;
                (MESSAGE_HEADER_LENGTH + length).saturating_sub(self.bytes.len())
            }
        }
    }

    /// Whether a frame of this length is read now: into the buffer of 4096 bytes, or past it when
    /// at least so much of a message's body is missing.
    fn admit(&self, length: usize) -> Result<(), String> {
        let room = self.missing().max(BUFFER);
        if length <= room {
            return Ok(());
        }
        Err(format!("frame of {length} bytes where the reader has room for {room}"))
    }

    fn take(&mut self, bytes: &[u8]) -> Vec<(MessageHeader, BytesMut)> {
        self.bytes.extend_from_slice(bytes);
        let mut messages = Vec::new();
        while self.bytes.len() >= MESSAGE_HEADER_LENGTH && self.missing() == 0 {
            let header = MessageHeader::from(&self.bytes);
            let mut message = self.bytes.split_to(MESSAGE_HEADER_LENGTH + header.length as usize);
            messages.push((header, message.split_off(MESSAGE_HEADER_LENGTH)));
        }
        messages
    }
}
