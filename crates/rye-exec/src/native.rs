//! The native primitive: functions compiled into the binary, reached through ordinary signed tool descriptors.
//!
//! A descriptor names its function (`config.function: file_system.read`); the caller that opens the engine registers the
//! functions. A native tool obeys the same policy as a process: what it may read and write is in its call.

use std::path::{Path, PathBuf};

use lillux::CancelToken;
use rye_item::Space;
use serde_json::{Map, Value};

/// What a native tool may touch.
#[derive(Clone, Debug, Default)]
pub struct ToolAccess {
    /// Folders below which it may write.
    pub write: Vec<PathBuf>,
    /// Files and folders it may not read, whatever lies above them.
    pub hidden: Vec<PathBuf>,
    /// Files and folders it may read but not change, whatever lies above them.
    pub read_only: Vec<PathBuf>,
    /// Those of `read_only` that the setting `protected` names.
    pub protected: Vec<PathBuf>,
    /// Whether it may use the network.
    pub network: bool,
    /// Hosts, addresses and networks that are reachable although they are loopback, private or metadata.
    pub allowed_hosts: Vec<String>,
}

/// One call of a native tool.
#[derive(Debug)]
pub struct NativeCall<'a> {
    /// The parameters, checked against the descriptor's schema, defaults filled in.
    pub parameters: &'a Map<String, Value>,
    /// The descriptor's own `config`.
    pub config: &'a Map<String, Value>,
    /// The config the descriptor's `config_resolve` asked for, if any.
    pub resolved_config: Option<&'a Value>,
    /// The space of the tool: what its own config names is looked for there and in the spaces below.
    pub space: &'a Space,
    /// The folder the tool works in: the project's.
    pub project: &'a Path,
    /// The cache folder, for state that may be lost.
    pub cache: &'a Path,
    /// What it may touch.
    pub access: &'a ToolAccess,
    /// Ends the call early.
    pub cancel: &'a CancelToken,
    /// Seconds since 1970.
    pub now: u64,
    /// The thread that calls, or the host of the user's threads, for what only they can do.
    pub thread: Option<&'a dyn ThreadFunctions>,
}

/// Functions that need the state of the calling thread, or all threads of the user: the caller runs them itself.
pub trait ThreadFunctions: std::fmt::Debug + Send + Sync {
    /// Runs the function of this name, such as `threads.control`; `None` if the caller has none. It may block.
    fn call_function(
        &self,
        name: &str,
        parameters: &Map<String, Value>,
        cancel: &CancelToken,
    ) -> Option<Result<Value, NativeError>>;
}

/// Why a native tool did not answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct NativeError {
    /// What happened, for a person or a model in a hurry.
    pub message: String,
    /// Further facts, kept as the answer's `data`.
    pub data: Option<Value>,
    /// Who or what is to blame.
    pub kind: NativeErrorKind,
}

/// Who or what is to blame for a native tool's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeErrorKind {
    /// The world, or the parameters.
    Failed,
    /// Policy.
    Denied,
    /// Time.
    TimedOut,
}

impl NativeError {
    /// It failed.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), data: None, kind: NativeErrorKind::Failed }
    }

    /// It took too long.
    #[must_use]
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self { message: message.into(), data: None, kind: NativeErrorKind::TimedOut }
    }

    /// Policy refused it.
    #[must_use]
    pub fn denied(message: impl Into<String>) -> Self {
        Self { message: message.into(), data: None, kind: NativeErrorKind::Denied }
    }

    /// Whether policy refused it, rather than the world.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.kind == NativeErrorKind::Denied
    }

    /// The same failure, with facts.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

/// A function compiled into the binary.
pub trait NativeTool: Send + Sync {
    /// The name descriptors use: `file_system.read`.
    fn name(&self) -> &'static str;

    /// Whether, as a descriptor with this config uses it, it touches no file, no network and no variable: it is then
    /// called with no access at all, what others would be given need not be worked out, and it answers at once.
    fn needs_no_access(&self, _config: &Map<String, Value>) -> bool {
        false
    }

    /// Whether it may take long: it waits for a server, or looks through a whole project.
    fn may_block(&self) -> bool {
        false
    }

    /// Answers one call.
    ///
    /// # Errors
    /// When the tool fails or policy refuses it.
    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError>;
}
