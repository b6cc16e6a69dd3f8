//! The door between a tool's process and the thread that runs it.
//!
//! A tool that calls `rye` has no rights of its own: its sandbox hides every key. It inherits a token and a socket instead
//! ([`TOKEN_VARIABLE`], [`DOOR_VARIABLE`]); `rye` in there sends what it is asked to do, and does nothing itself. Here the
//! token is verified, the request is allowed or not by the thread's own grants, written down by the thread, and done by the
//! one dispatcher. The door is open for as long as the tool's process runs.

pub mod client;
mod frame;
mod serve;
mod token;

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lillux::process::door::Door;
use rye_engine::verbs::execute::Doorway;
use rye_item::ItemRef;
use tokio::sync::mpsc::UnboundedSender;

use crate::capability::Capabilities;
use crate::dispatch::Dispatch;
use crate::driver::{Began, Children, Clock};
use crate::facts::ThreadFacts;
use crate::machine::Event;
use crate::redact::Redactor;
use crate::spec::{Own, Spec};

pub use token::Issuer;

/// Holds the number of the descriptor that the token is read from.
pub const TOKEN_VARIABLE: &str = "RYE_TOKEN_FD";
/// Holds the number of the descriptor that leads to the door.
pub const DOOR_VARIABLE: &str = "RYE_DOOR_FD";

/// How deep tools may call tools where the thread has no limit.
pub(crate) const DEEPEST: u64 = 10;

/// Something a tool did at the door, for the thread to write down; it is told once that is done.
pub(crate) struct Asked {
    pub(crate) event: Event,
    pub(crate) written: std::sync::mpsc::Sender<()>,
}

/// One call of a thread, as far as the doors of its tools need it.
pub(crate) struct Ground {
    pub(crate) spec: Arc<Spec>,
    /// Which of the turn's calls.
    pub(crate) index: usize,
    /// Tells the call from all others of the thread.
    pub(crate) call: String,
    /// How deep tools may call tools.
    pub(crate) deepest: u64,
    /// What is known of the thread.
    pub(crate) facts: ThreadFacts,
    pub(crate) dispatch: Arc<dyn Dispatch>,
    pub(crate) children: Arc<dyn Children>,
    pub(crate) issuer: Arc<Issuer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) began: Began,
    pub(crate) asked: UnboundedSender<Asked>,
    pub(crate) workers: tokio::runtime::Handle,
    /// How much was asked so far.
    pub(crate) requests: AtomicU64,
}

/// Makes the doors of one call: for the tool itself, and, narrower each time, for tools that it calls.
#[derive(Clone)]
pub(crate) struct Way {
    ground: Arc<Ground>,
    capabilities: Capabilities,
    /// How many tools stand between the thread and who knocks.
    level: u64,
    /// The tool that knocks.
    tool: String,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let thread = &self.ground.spec.own.thread_id;
        formatter.debug_struct("Way").field("thread", thread).field("level", &self.level).finish()
    }
}

impl Way {
    /// To the tool that the thread itself calls.
    pub(crate) fn new(ground: Ground) -> Self {
        let capabilities = ground.spec.own.capabilities.clone();
        Self { ground: Arc::new(ground), capabilities, level: 1, tool: String::new() }
    }

    /// To a tool that this one calls.
    fn further(&self) -> Self {
        Self { level: self.level + 1, ..self.clone() }
    }

    /// The thread, with no more rights than who knocks has.
    fn spec(&self) -> Arc<Spec> {
        let spec = &self.ground.spec;
        if spec.own.capabilities == self.capabilities {
            return Arc::clone(spec);
        }
        let own = Own { capabilities: self.capabilities.clone(), ..spec.own.clone() };
        Arc::new(Spec { own, shared: Arc::clone(&spec.shared) })
    }
}

impl Doorway for Way {
    fn door(&self, item: &ItemRef, grants: Option<&[String]>, lifetime: Duration) -> Result<Arc<dyn Door>> {
        let mut way = self.clone();
        way.tool = item.id.to_string();
        if let Some(grants) = grants {
            let declared = Capabilities::parse(grants).map_err(|error| {
                let message = format!("the tool's `sandbox.grants` are not understood: {error}");
                Error::new(ErrorKind::InvalidData, message)
            })?;
            way.capabilities = declared.attenuate(&self.capabilities);
        }
        Ok(Arc::new(serve::Standing::new(way, lifetime)?))
    }
}
