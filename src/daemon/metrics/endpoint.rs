//! The place where metrics are read: one HTTP/1 listener that answers `GET /metrics`.
//!
//! It must never be in the way of the runtime's calls, with which it shares a thread: few
//! connections at a time, none for long, and a scrape's reading on a blocking thread, one by one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

/// Connections at a time; more wait in the listener's queue.
const CONNECTIONS: usize = 4;
/// How long the head of a request may take to come.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may last, scrapes and pauses between them together.
const CONNECTION: Duration = Duration::from_secs(120);
/// Pause after a connection could not be accepted, as when descriptors have run out.
const PAUSE: Duration = Duration::from_secs(1);

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// There is no place to read metrics at.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {source}")]
pub struct EndpointError {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    pub source: std::io::Error,
}

/// A listener that nobody is answered on yet.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    registry: Arc<Registry>,
}

impl Endpoint {
    /// Listens at `address`. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(address: SocketAddr, registry: Registry) -> Result<Self, EndpointError> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| EndpointError { address, source })?;
        Ok(Self { listener, registry: Arc::new(registry) })
    }

    /// Where it listens: the port that was given, for port 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers, for ever.
    pub async fn run(self) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let scrapes = Arc::new(Mutex::new(self.registry));
        loop {
            let Ok(place) = Arc::clone(&connections).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let scrapes = Arc::clone(&scrapes);
                    tokio::spawn(async move {
                        // One that lasts too long is dropped.
                        let _ = timeout(CONNECTION, serve(stream, scrapes)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!("cannot take a connection for metrics: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, scrapes: Arc<Mutex<Arc<Registry>>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let scrapes = Arc::clone(&scrapes);
        async move { Ok::<_, Infallible>(answer(&request, &scrapes).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!("a connection for metrics ended: {error}");
    }
}

async fn answer(
    request: &Request<Incoming>,
    scrapes: &Mutex<Arc<Registry>>,
) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if request.method() != Method::GET {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let turn = scrapes.lock().await;
    let registry = Arc::clone(&turn);
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
    });
    match text.await {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            response.headers_mut().insert(CONTENT_TYPE, OPENMETRICS);
            response
        }
        Ok(Err(_)) | Err(_) => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be read\n")
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_are_read_over_http_and_nothing_else_is() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc();
        registry.register("grants", "Grants", counter);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = Endpoint::bind(any, registry).await.unwrap();
        let address = endpoint.address().unwrap();
        tokio::spawn(endpoint.run());

        let head = "Host: x\r\nConnection: close\r\n\r\n";
        let text = ask(address, &format!("GET /metrics HTTP/1.1\r\n{head}")).await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(text.contains("content-type: application/openmetrics-text"), "{text}");
        assert!(text.contains("grants_total 1\n") && text.ends_with("# EOF\n"), "{text}");
        let text = ask(address, &format!("GET / HTTP/1.1\r\n{head}")).await;
        assert!(text.starts_with("HTTP/1.1 404 "), "{text}");
        let text = ask(address, &format!("POST /metrics HTTP/1.1\r\n{head}")).await;
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = Endpoint::bind(any, Registry::default()).await.unwrap();
        let taken = first.address().unwrap();
        let error = Endpoint::bind(taken, Registry::default()).await.unwrap_err();
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
    }
}
