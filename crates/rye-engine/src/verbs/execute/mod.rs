//! `execute`: a tool is run through its chain, a directive gives its prompt, a knowledge entry its body.
//!
//! The walk of a tool: resolve → verify → validate → parameters → lock → environment → sandbox → run → record. Each step
//! can be traced; any step can refuse, and then nothing was changed.

mod config_resolve;
mod first_use;
mod importable;
mod packages;
mod program_finder;
mod prompt;
mod run;
mod run_dirs;
mod run_plan;
mod tool;
mod trace;

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lillux::CancelToken;
use lillux::process::callback::CallbackChannel;
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

pub use crate::lockfiles::LockMode;
pub(crate) use first_use::UsedItems;
pub(crate) use program_finder::{FinderInputs, SandboxedFinder};
pub use prompt::{LoadedDirective, directive_fields, knowledge_text, load_directive};
pub(crate) use run::placeholder_error;
pub(crate) use run_dirs::{set_temporary_variables, temporary_folder};
pub(crate) use run_plan::project_programs;
pub(crate) use run_plan::{SandboxSubject, plan_sandbox, template_context};
pub(crate) use tool::resolve_staged;

/// The variable by which a program knows that it runs in a tool's sandbox.
pub const SANDBOX_VARIABLE: &str = "RYE_SANDBOX";

/// The variable by which a tool that may call `rye` knows this binary.
pub const PROGRAM_VARIABLE: &str = "RYE_PROGRAM";

/// How far to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecuteMode {
    /// To the end.
    #[default]
    Run,
    /// Up to the point where something would happen.
    DryRun,
}

/// On whose behalf something is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// A person who typed it.
    #[default]
    Person,
    /// A model, a foreign client, or a file: it cannot consent to anything.
    Agent,
    /// A case of a test file: as an agent, and it runs no tests itself.
    Test,
}

/// What to execute, and how.
#[derive(Clone, Debug)]
pub struct ExecuteRequest {
    /// The item.
    pub item: ItemRef,
    /// Its parameters or inputs.
    pub parameters: Map<String, Value>,
    /// Further ones as words of a command line, typed by what the item declares.
    pub words: Vec<(String, String)>,
    /// How far to go.
    pub mode: ExecuteMode,
    /// Whether every step is told.
    pub wants_trace: bool,
    /// How lockfiles are used.
    pub lock_mode: LockMode,
    /// Ends the run early.
    pub cancel: CancelToken,
    /// Hears of what takes long before the run begins.
    pub progress: Option<ProgressListener>,
    /// Hears that it begins to wait for others.
    pub on_blocking: Option<BlockingHook>,
    /// Who asks for it.
    pub caller: Caller,
    /// What the thread that asks tells its own native tools.
    pub thread: Option<Arc<dyn Any + Send + Sync>>,
    /// Makes the door to that thread, for a tool that is a process.
    pub callbacks: Option<Arc<dyn CallbackProvider>>,
    /// What the caller may execute beside the item itself; everything if it has no grants to check.
    pub grants: Option<Arc<dyn Grants>>,
}

/// The rights of a caller, for tools that execute other items in its name.
pub trait Grants: std::fmt::Debug + Send + Sync {
    /// Whether the caller may execute this now.
    ///
    /// # Errors
    /// Why not.
    fn check_execute(
        &self,
        item: &ItemRef,
        parameters: &Map<String, Value>,
    ) -> std::result::Result<(), String>;
}

/// Makes the doors through which tools that are processes ask something of whoever runs them.
pub trait CallbackProvider: std::fmt::Debug + Send + Sync {
    /// A door for a run that takes no longer than this. `grants` is what the signed tool says it asks for, if it says so.
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

/// Told that a call begins to wait for others: a process, a server. Whoever counts the calls at work counts it no more.
#[derive(Clone)]
pub struct BlockingHook(Arc<dyn Fn() + Send + Sync>);

impl BlockingHook {
    /// Calls `tell` when the waiting begins.
    pub fn new(callback: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }
}

impl std::fmt::Debug for BlockingHook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waits")
    }
}

impl ExecuteRequest {
    /// From here on it may wait for others.
    fn notify_blocking(&self) {
        if let Some(BlockingHook(callback)) = &self.on_blocking {
            callback();
        }
    }
}

/// Who hears of what takes long, line by line.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(&str) + Send + Sync>);

impl ProgressListener {
    /// Calls `tell` with each line.
    pub fn new(callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn report(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for ProgressListener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Progress")
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct ExecuteResponse {
    /// The item.
    pub item: ItemRef,
    /// `success`, or `validation_passed` for a dry run.
    pub status: &'static str,
    /// The result.
    pub data: Value,
    /// What stands beside the result: chain, duration, logs, trace, …
    pub extra: Map<String, Value>,
}

impl ExecuteResponse {
    /// The whole answer as one object: the same for the command line, for MCP and for hooks.
    #[must_use]
    pub fn into_value(self) -> Value {
        let mut object = Map::with_capacity(self.extra.len() + 4);
        object.insert("status".to_owned(), json!(self.status));
        object.insert("type".to_owned(), json!(self.item.item_type));
        object.insert("item_id".to_owned(), json!(self.item.id.to_string()));
        object.insert("data".to_owned(), self.data);
        object.extend(self.extra);
        Value::Object(object)
    }
}

/// Executes an item.
///
/// # Errors
/// When it may not run, or ran and failed; then the details hold what the answer would have held.
pub fn execute(engine: &Engine, request: &ExecuteRequest) -> Result<ExecuteResponse> {
    match request.item.item_type {
        ItemType::Tool => tool::execute(engine, request),
        ItemType::Directive => execute_directive(engine, request),
        ItemType::Knowledge => execute_knowledge(engine, request),
        ItemType::Config => Err(Error::new(Code::NotExecutable, "config is read, not executed")
            .for_item(&request.item)
            .hint(format!("see it: rye config show {}", request.item.id))),
    }
}

/// Executes what answers at once: a tool that touches nothing. `None` for everything else, of which nothing was done.
pub fn execute_if_pure(engine: &Engine, request: &ExecuteRequest) -> Option<Result<ExecuteResponse>> {
    match request.item.item_type {
        ItemType::Tool => tool::execute_if_pure(engine, request),
        ItemType::Directive | ItemType::Knowledge | ItemType::Config => None,
    }
}

fn execute_directive(engine: &Engine, request: &ExecuteRequest) -> Result<ExecuteResponse> {
    let item = &request.item;
    let mut inputs = request.parameters.clone();
    // Inputs declare their types themselves: a word stays text until they say otherwise.
    inputs.extend(request.words.iter().map(|(name, word)| (name.clone(), json!(word))));
    let data = prompt::directive_data(engine, item, &inputs)?;
    let mut extra = Map::new();
    let status = match request.mode {
        ExecuteMode::Run => {
            extra.insert("your_directions".to_owned(), data.get("body").cloned().unwrap_or_default());
            "success"
        }
        ExecuteMode::DryRun => {
            extra.insert("message".to_owned(), json!("Directive validation passed (dry run)"));
            "validation_passed"
        }
    };
    Ok(ExecuteResponse { item: item.clone(), status, data, extra })
}

fn execute_knowledge(engine: &Engine, request: &ExecuteRequest) -> Result<ExecuteResponse> {
    let item = &request.item;
    if !request.parameters.is_empty() || !request.words.is_empty() {
        return Err(Error::new(Code::InvalidInputs, "a knowledge entry takes no inputs").for_item(item));
    }
    let data = prompt::knowledge_data(engine, item)?;
    let mut extra = Map::new();
    extra.insert("your_directions".to_owned(), json!("Use this knowledge to inform your decisions."));
    let status = match request.mode {
        ExecuteMode::Run => "success",
        ExecuteMode::DryRun => "validation_passed",
    };
    Ok(ExecuteResponse { item: item.clone(), status, data, extra })
}
