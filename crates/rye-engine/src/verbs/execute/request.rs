//! What to execute and how: [`ExecuteRequest`], built from an item step by step.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lillux::CancelToken;
use lillux::process::callback::CallbackChannel;
use rye_exec::ThreadFunctions;
use rye_item::ItemRef;
use rye_item::space::SpaceTier;
use serde_json::{Map, Value};

use super::LockMode;

/// How far to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecuteMode {
    /// To the end.
    #[default]
    Run,
    /// Up to the point where something would happen.
    DryRun,
}

/// On whose behalf something is executed. The default can consent to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// A person who typed it.
    Person,
    /// A model, a foreign client, or a file: it cannot consent to anything.
    #[default]
    Agent,
    /// A case of a test file: as an agent, and it runs no tests itself.
    Test,
}

/// What to execute, and how. [`ExecuteRequest::new`] gives a run for an agent without parameters and without rights of a
/// thread; the `with_` methods change that.
#[derive(Clone, Debug)]
pub struct ExecuteRequest {
    pub(crate) item: ItemRef,
    pub(crate) source: Option<SpaceTier>,
    pub(crate) parameters: Map<String, Value>,
    pub(crate) words: Vec<(String, String)>,
    pub(crate) mode: ExecuteMode,
    pub(crate) wants_trace: bool,
    pub(crate) lock_mode: LockMode,
    pub(crate) cancel: CancelToken,
    pub(crate) progress: Option<ProgressListener>,
    pub(crate) on_blocking: Option<BlockingHook>,
    pub(crate) caller: Caller,
    pub(crate) thread: Option<Arc<dyn ThreadFunctions>>,
    pub(crate) callbacks: Option<Arc<dyn CallbackProvider>>,
    pub(crate) grants: Option<Arc<dyn Grants>>,
    pub(crate) needs_whole_answer: bool,
}

impl ExecuteRequest {
    /// A request to run `item` for an agent, with lockfiles enforced. `cancel` ends the run early.
    #[must_use]
    pub fn new(item: ItemRef, cancel: CancelToken) -> Self {
        Self {
            item,
            source: None,
            parameters: Map::new(),
            words: Vec::new(),
            mode: ExecuteMode::Run,
            wants_trace: false,
            lock_mode: LockMode::Enforce,
            cancel,
            progress: None,
            on_blocking: None,
            caller: Caller::Agent,
            thread: None,
            callbacks: None,
            grants: None,
            needs_whole_answer: false,
        }
    }

    /// Looks for the item in this space only.
    #[must_use]
    pub fn with_source(mut self, source: Option<SpaceTier>) -> Self {
        self.source = source;
        self
    }

    /// Sets the parameters of a tool or the inputs of a directive.
    #[must_use]
    pub fn with_parameters(mut self, parameters: Map<String, Value>) -> Self {
        self.parameters = parameters;
        self
    }

    /// Sets further parameters as words of a command line; the item's schema gives their types.
    #[must_use]
    pub fn with_words(mut self, words: Vec<(String, String)>) -> Self {
        self.words = words;
        self
    }

    /// Sets how far to go.
    #[must_use]
    pub fn with_mode(mut self, mode: ExecuteMode) -> Self {
        self.mode = mode;
        self
    }

    /// Stops before anything happens, if `is_dry_run`.
    #[must_use]
    pub fn with_dry_run(self, is_dry_run: bool) -> Self {
        self.with_mode(if is_dry_run { ExecuteMode::DryRun } else { ExecuteMode::Run })
    }

    /// Adds a trace of every step to the response, if `wants_trace`.
    #[must_use]
    pub fn with_trace(mut self, wants_trace: bool) -> Self {
        self.wants_trace = wants_trace;
        self
    }

    /// Sets how lockfiles are used.
    #[must_use]
    pub fn with_lock_mode(mut self, lock_mode: LockMode) -> Self {
        self.lock_mode = lock_mode;
        self
    }

    /// Sets who is notified about slow steps before the run.
    #[must_use]
    pub fn with_progress(mut self, progress: Option<ProgressListener>) -> Self {
        self.progress = progress;
        self
    }

    /// Sets what is called when the run begins to wait for a process or a server.
    #[must_use]
    pub fn with_blocking_hook(mut self, hook: Option<BlockingHook>) -> Self {
        self.on_blocking = hook;
        self
    }

    /// Sets on whose behalf it runs. Only a [`Caller::Person`] can consent.
    #[must_use]
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Gives the thread's own native tools access to the thread.
    #[must_use]
    pub fn with_thread(mut self, thread: Option<Arc<dyn ThreadFunctions>>) -> Self {
        self.thread = thread;
        self
    }

    /// Sets what creates the callback channel of a tool that runs as a process.
    #[must_use]
    pub fn with_callbacks(mut self, callbacks: Option<Arc<dyn CallbackProvider>>) -> Self {
        self.callbacks = callbacks;
        self
    }

    /// Sets what the caller may execute beside the item itself; without it, everything.
    #[must_use]
    pub fn with_grants(mut self, grants: Option<Arc<dyn Grants>>) -> Self {
        self.grants = grants;
        self
    }

    /// Makes a program's whole output its answer, one JSON object, where its last line of JSON would be.
    #[must_use]
    pub fn with_whole_answer(mut self, is_needed: bool) -> Self {
        self.needs_whole_answer = is_needed;
        self
    }

    /// Calls the hook: from here on the run may wait for others.
    pub(super) fn notify_blocking(&self) {
        if let Some(BlockingHook(callback)) = &self.on_blocking {
            callback();
        }
    }
}

/// The rights of a caller, for tools that execute other items in its name.
pub trait Grants: std::fmt::Debug + Send + Sync {
    /// Whether the caller may execute this now.
    ///
    /// # Errors
    /// Why not.
    fn check_execute(&self, item: &ItemRef, parameters: &Map<String, Value>) -> Result<(), String>;
}

/// Creates the callback channels through which tools that are processes send requests to the thread that runs them.
pub trait CallbackProvider: std::fmt::Debug + Send + Sync {
    /// Creates a channel for a run that takes no longer than `lifetime`. `grants` is what the signed tool requests, if it
    /// declares that.
    ///
    /// # Errors
    /// When there are no descriptors left.
    fn open_channel(
        &self,
        item: &ItemRef,
        grants: Option<&[String]>,
        lifetime: Duration,
    ) -> io::Result<Arc<dyn CallbackChannel>>;
}

/// Called when a run begins to wait for a process or a server: it no longer needs its slot among the running calls.
#[derive(Clone)]
pub struct BlockingHook(Arc<dyn Fn() + Send + Sync>);

impl BlockingHook {
    /// Calls `callback` when the waiting begins.
    pub fn new(callback: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }
}

impl std::fmt::Debug for BlockingHook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("BlockingHook")
    }
}

/// Receives a line about each slow step before a run.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(&str) + Send + Sync>);

impl ProgressListener {
    /// Calls `callback` with each line.
    pub fn new(callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn report(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for ProgressListener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ProgressListener")
    }
}
