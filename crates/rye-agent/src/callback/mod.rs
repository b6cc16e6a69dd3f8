//! The callback channel between a tool's process and the thread that runs it.
//!
//! A tool that calls `rye` has no rights of its own: its sandbox hides every key. It inherits a token and a socket instead
//! ([`TOKEN_FD_VAR`], [`CALLBACK_FD_VAR`]); `rye` in there sends what it is asked to do, and does nothing itself. Here the
//! token is verified, the request is allowed or not by the thread's own grants, written down by the thread, and done by the
//! one dispatcher. The channel is open for as long as the tool's process runs.

mod arguments;
mod call_hooks;
pub mod client;
mod frame;
mod server;
mod token;

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lillux::process::callback::CallbackChannel;
use rye_engine::verbs::execute::CallbackProvider;
use rye_item::ItemRef;
use tokio::sync::mpsc::UnboundedSender;

use crate::capability::Capabilities;
use crate::dispatch::Dispatcher;
use crate::driver::{ChildHandle, Children, MillisClock};
use crate::machine::ThreadEvent;
use crate::redact::Redactor;
use crate::spec::{ThreadInstance, ThreadSpec};
use crate::tool_context::ThreadContext;

pub use token::TokenIssuer;

/// Holds the number of the descriptor that the token is read from.
pub const TOKEN_FD_VAR: &str = "RYE_TOKEN_FD";
/// Holds the number of the descriptor that leads to the channel.
pub const CALLBACK_FD_VAR: &str = "RYE_DOOR_FD";

/// How deep tools may call tools where the thread has no limit.
pub(crate) const DEFAULT_MAX_CALL_DEPTH: u64 = 10;

/// Something a tool did over its channel, for the thread to write down; it is reported once that is done.
pub(crate) struct CallbackEvent {
    pub(crate) event: ThreadEvent,
    pub(crate) ack: std::sync::mpsc::Sender<()>,
}

/// One call of a thread, as far as the channels of its tools need it.
pub(crate) struct CallContext {
    pub(crate) spec: Arc<ThreadSpec>,
    /// Which of the turn's calls.
    pub(crate) index: usize,
    /// Tells the call from all others of the thread.
    pub(crate) call: String,
    /// How deep tools may call tools.
    pub(crate) max_depth: u64,
    /// What is known of the thread.
    pub(crate) thread: ThreadContext,
    pub(crate) dispatcher: Arc<dyn Dispatcher>,
    pub(crate) children: Arc<dyn Children>,
    pub(crate) token_issuer: Arc<TokenIssuer>,
    pub(crate) clock: Arc<dyn MillisClock>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) child_handle: ChildHandle,
    pub(crate) events: UnboundedSender<CallbackEvent>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// How much was asked so far.
    pub(crate) request_count: AtomicU64,
}

/// Makes the channels of one call: for the tool itself, and, narrower each time, for tools that it calls.
#[derive(Clone)]
pub(crate) struct CallbackFactory {
    context: Arc<CallContext>,
    capabilities: Capabilities,
    /// How many tools stand between the thread and the caller.
    depth: u64,
    /// The tool that calls.
    tool: String,
}

impl std::fmt::Debug for CallbackFactory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let thread = &self.context.spec.instance.thread_id;
        formatter.debug_struct("Way").field("thread", thread).field("level", &self.depth).finish()
    }
}

impl CallbackFactory {
    /// To the tool that the thread itself calls.
    pub(crate) fn new(context: CallContext) -> Self {
        let capabilities = context.spec.instance.capabilities.clone();
        Self { context: Arc::new(context), capabilities, depth: 1, tool: String::new() }
    }

    /// To a tool that this one calls.
    fn nested(&self) -> Self {
        Self { depth: self.depth + 1, ..self.clone() }
    }

    /// The thread, with no more rights than the caller has.
    fn spec(&self) -> Arc<ThreadSpec> {
        let spec = &self.context.spec;
        if spec.instance.capabilities == self.capabilities {
            return Arc::clone(spec);
        }
        let own = ThreadInstance { capabilities: self.capabilities.clone(), ..spec.instance.clone() };
        Arc::new(ThreadSpec { instance: own, template: Arc::clone(&spec.template) })
    }
}

impl CallbackProvider for CallbackFactory {
    fn open_channel(
        &self,
        item: &ItemRef,
        grants: Option<&[String]>,
        lifetime: Duration,
    ) -> Result<Arc<dyn CallbackChannel>> {
        let mut factory = self.clone();
        factory.tool = item.id.to_string();
        if let Some(grants) = grants {
            let declared = Capabilities::parse(grants).map_err(|error| {
                let message = format!("the tool's `sandbox.grants` are not understood: {error}");
                Error::new(ErrorKind::InvalidData, message)
            })?;
            factory.capabilities = declared.attenuate(&self.capabilities);
        }
        Ok(Arc::new(server::CallbackServer::new(factory, lifetime)?))
    }
}
