//! `execute`: a tool is run through its chain, a directive gives its prompt, a knowledge entry its body.
//!
//! The steps of a tool: resolve → verify → validate → parameters → lock → environment → sandbox → run → record. Each step
//! can be traced; any step can refuse, and then nothing was changed.

mod config_resolve;
mod first_use;
mod importable;
mod missing_program;
mod own_paths;
mod packages;
mod program_finder;
mod prompt;
mod refusal_hints;
mod request;
mod run;
mod run_dirs;
mod run_plan;
mod timeout_source;
mod tool;
mod trace;

use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

pub use crate::lockfiles::LockMode;
pub(crate) use first_use::UsedItems;
pub(crate) use missing_program::missing_program;
pub(crate) use program_finder::{FinderInputs, SandboxedFinder};
pub use prompt::{LoadedDirective, directive_fields, knowledge_text, load_directive};
pub use request::{
    BlockingHook, CallbackProvider, Caller, ExecuteMode, ExecuteRequest, Grants, ProgressListener,
};
pub use run::OUTPUT_HINT;
pub(crate) use run::placeholder_error;
pub(crate) use run_dirs::{home_dirs, set_temporary_variables, temporary_folder};
pub(crate) use run_plan::project_programs;
pub(crate) use run_plan::{SandboxSubject, plan_sandbox, template_context};
pub(crate) use tool::resolve_staged;

/// The variable by which a program knows that it runs in a tool's sandbox.
pub const SANDBOX_VARIABLE: &str = "RYE_SANDBOX";

/// The variable by which a tool that may call `rye` knows this binary.
pub const PROGRAM_VARIABLE: &str = "RYE_PROGRAM";

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
pub fn execute_without_access(engine: &Engine, request: &ExecuteRequest) -> Option<Result<ExecuteResponse>> {
    match request.item.item_type {
        ItemType::Tool => tool::execute_without_access(engine, request),
        ItemType::Directive | ItemType::Knowledge | ItemType::Config => None,
    }
}

fn execute_directive(engine: &Engine, request: &ExecuteRequest) -> Result<ExecuteResponse> {
    let item = &request.item;
    let mut inputs = request.parameters.clone();
    // Inputs declare their types themselves: a word stays text until they say otherwise.
    inputs.extend(request.words.iter().map(|(name, word)| (name.clone(), json!(word))));
    let data = prompt::directive_data(engine, item, request.source, &inputs)?;
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
    let data = prompt::knowledge_data(engine, item, request.source)?;
    let mut extra = Map::new();
    extra.insert("your_directions".to_owned(), json!("Use this knowledge to inform your decisions."));
    let status = match request.mode {
        ExecuteMode::Run => "success",
        ExecuteMode::DryRun => "validation_passed",
    };
    Ok(ExecuteResponse { item: item.clone(), status, data, extra })
}
