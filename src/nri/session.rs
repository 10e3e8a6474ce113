//! One session with a runtime, from the connected stream to its end.

use super::arrival::Watched;
use super::calls::Calls;
use super::mux::{self, Lost};
use super::plugin::{Identity, Plugin};
use super::proto::RegisterPluginRequest;
use futures_core::Stream;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use ttrpc::r#async::transport::{Listener, Socket};
use ttrpc::r#async::{Client, Server};
use ttrpc::proto::Request;

/// The runtime's service.
const SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The NRI that `nri/nri.proto` speaks.
const NRI_VERSION: &str = "v0.12.2";
/// How long an answer to the registration may take. A runtime takes its clients one after the
/// other, and gives each one that is silent 5 s.
const REGISTRATION: Duration = Duration::from_secs(30);

/// How long calls that were being answered when the connection was lost are waited for.
const DROPPED: Duration = Duration::from_secs(1);

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// There is a stream.
    Connected,
    /// The runtime has accepted the registration.
    Registered,
    /// It has been told the events.
    Configured,
    /// It has begun to tell what there is.
    Synchronising,
    /// Events follow.
    Synchronised,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// As it was asked to.
    #[error("stopped")]
    Stopped,
    /// The runtime does not want this plugin.
    #[error("the runtime refused the registration: {0}")]
    Refused(String),
    /// It did not say whether it does.
    #[error("the runtime did not answer the registration: {0}")]
    Unanswered(String),
    /// The runtime has stopped counting on this plugin, though it keeps the connection.
    #[error("the runtime has given this plugin up: {0}")]
    GivenUp(String),
    /// The connection is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// The end of a session.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SessionEnd {
    /// How far it had come.
    pub stage: Stage,
    /// Why it ended.
    pub reason: Reason,
}

/// Registers `plugin` with the runtime at the other end of `stream` and serves it until the
/// connection is lost, the runtime is known to call it no more, or `stop` completes. In the latter
/// cases what is being answered is answered first. To be called within a tokio runtime.
pub async fn serve<S>(
    stream: S,
    plugin: Arc<dyn Plugin>,
    identity: &Identity,
    stop: impl Future<Output = ()>,
) -> SessionEnd
where
    S: AsyncRead + AsyncWrite,
{
    let calls = Calls::new(Arc::clone(&plugin));
    let reason = session(stream, &calls, identity, stop).await;
    let end = SessionEnd { stage: calls.stage(), reason };
    plugin.session_ended(&end);
    end
}

async fn session<S>(
    stream: S,
    calls: &Arc<Calls>,
    identity: &Identity,
    stop: impl Future<Output = ()>,
) -> Reason
where
    S: AsyncRead + AsyncWrite,
{
    let (plugin_end, runtime_end, trunk) = mux::open(stream);
    let drained = trunk.drained();
    let mut trunk = pin!(trunk.run());
    let mut stop = pin!(stop);

    // The runtime may configure the plugin before it answers the registration.
    let mut server = Server::new()
        .add_listener(Listener::new(Once(Some(Watched::new(plugin_end, calls.arrivals())))))
        .register_service(calls.services());
    if let Err(e) = server.start().await {
        return Reason::Lost(Lost::Io(io::Error::other(e)));
    }
    let client = Client::new(Socket::new(runtime_end));

    let serving = async {
        register(&client, identity).await?;
        calls.registered();
        std::future::pending().await
    };
    let reason = tokio::select! {
        lost = &mut trunk => {
            // The calls that were being answered are dropped; they are not to be about when the
            // next session begins.
            let _ = tokio::time::timeout(DROPPED, drained.wait(mux::PLUGIN)).await;
            return Reason::Lost(lost);
        }
        reason = serving => {
            let Err(reason): Result<Infallible, Reason> = reason;
            return reason;
        }
        why = calls.given_up() => Reason::GivenUp(why),
        () = &mut stop => Reason::Stopped,
    };
    // Reads no more requests; those that are there are answered, then the connection's end is
    // dropped.
    let disconnect = async {
        server.disconnect().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = &mut trunk => {}
        () = drained.wait(mux::PLUGIN) => {}
        () = disconnect => {}
        () = tokio::time::sleep(calls.patience()) => {}
    }
    reason
}

async fn register(client: &Client, identity: &Identity) -> Result<(), Reason> {
    let request = RegisterPluginRequest {
        plugin_name: identity.name().to_owned(),
        plugin_idx: identity.index().to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let mut call = Request::new();
    call.set_service(SERVICE.to_owned());
    call.set_method("RegisterPlugin".to_owned());
    call.payload = request.encode_to_vec();
    call.timeout_nano = i64::try_from(REGISTRATION.as_nanos()).unwrap_or(i64::MAX);
    match client.request(call).await {
        Ok(_) => Ok(()),
        Err(ttrpc::Error::RpcStatus(status)) => Err(Reason::Refused(status.message)),
        Err(e) => Err(Reason::Unanswered(e.to_string())),
    }
}

/// Yields one connection and then waits: ttrpc's server is not to think that the listener failed.
struct Once(Option<Watched>);

impl Stream for Once {
    type Item = io::Result<Watched>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0.take() {
            Some(end) => Poll::Ready(Some(Ok(end))),
            None => Poll::Pending,
        }
    }
}
