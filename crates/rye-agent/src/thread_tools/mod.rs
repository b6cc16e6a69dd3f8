//! The thread's own tools: functions from parameters and a snapshot of the thread to a result.
//!
//! They decide nothing and change nothing: a control result steers, an event is written, a cost is added only because the
//! machine that reads the result does so. The ledger is the exception, and only below the calling thread.
//! They are reached like any tool, through signed descriptors that name the functions here. Three kinds:
//!
//! - tools of hooks (`rye/agent/threads/internal/*`): only hooks may call them, and only for hooks does the dispatcher hand
//!   over what they read;
//! - what the host of a call does for a user, and a thread itself when its model calls it, such as the orchestrator;
//! - what only a thread's model may call: outside a thread they answer with what to do instead.

mod budget;
mod control;
mod observe;

use std::sync::Arc;

use lillux::CancelToken;
use rye_exec::{NativeCall, NativeError, NativeTool, ThreadFunctions};
use serde_json::{Map, Value, json};

use crate::tool_context::ThreadContext;

/// The functions.
const HOOK_TOOLS: [HookTool; 8] = [
    HookTool { name: "threads.control", run: control::control },
    HookTool { name: "threads.emitter", run: observe::emit },
    HookTool { name: "threads.classifier", run: observe::classify },
    HookTool { name: "threads.limit_checker", run: observe::check_limit },
    HookTool { name: "threads.budget_ops", run: budget::run },
    HookTool { name: "threads.cost_tracker", run: observe::track_cost },
    HookTool { name: "threads.state_persister", run: observe::persist_state },
    HookTool { name: "threads.cancel_checker", run: observe::check_cancel },
];

impl ThreadFunctions for ThreadContext {
    fn call_function(
        &self,
        name: &str,
        parameters: &Map<String, Value>,
        _cancel: &CancelToken,
    ) -> Option<Result<Value, NativeError>> {
        let tool = HOOK_TOOLS.iter().find(|tool| tool.name == name)?;
        Some(Ok((tool.run)(parameters, self)))
    }
}

/// All of them, for [`rye_engine::NativeTools`].
#[must_use]
pub fn native_tools() -> Vec<Arc<dyn NativeTool>> {
    let for_user: [UserThreadTool; 2] = [
        UserThreadTool {
            name: "threads.thread_directive",
            alternative: "run a directive in a thread: rye run DIRECTIVE",
        },
        UserThreadTool {
            name: "threads.orchestrator",
            alternative: "look at and steer threads: rye thread --help",
        },
    ];
    let thread_only: [ThreadOnlyTool; 3] = [
        ThreadOnlyTool {
            name: "threads.human_approval",
            alternative: "only the model of a thread asks a person",
        },
        ThreadOnlyTool {
            name: "threads.directive_return",
            alternative: "only the model of a thread returns its outputs",
        },
        ThreadOnlyTool {
            name: "threads.read_artifact",
            alternative: "what a thread did: rye thread transcript ID",
        },
    ];
    let hook_tools = HOOK_TOOLS.into_iter().map(|tool| Arc::new(tool) as Arc<dyn NativeTool>);
    let thread_only = thread_only.into_iter().map(|tool| Arc::new(tool) as Arc<dyn NativeTool>);
    let for_user = for_user.into_iter().map(|tool| Arc::new(tool) as Arc<dyn NativeTool>);
    hook_tools.chain(thread_only).chain(for_user).collect()
}

/// What a thread does itself when its model calls it, and the host of a user's call does for the user.
struct UserThreadTool {
    name: &'static str,
    alternative: &'static str,
}

impl NativeTool for UserThreadTool {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs_no_access(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn may_block(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let result =
            call.thread.and_then(|thread| thread.call_function(self.name, call.parameters, call.cancel));
        result.unwrap_or_else(|| {
            Err(NativeError::denied(format!("this works inside a thread only; {}", self.alternative)))
        })
    }
}

/// Tools that a thread runs itself when its model calls them; any other caller gets an error that names the alternative.
struct ThreadOnlyTool {
    name: &'static str,
    alternative: &'static str,
}

impl NativeTool for ThreadOnlyTool {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs_no_access(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn call(&self, _call: &NativeCall<'_>) -> Result<Value, NativeError> {
        Err(NativeError::denied(format!("this works inside a thread only; {}", self.alternative)))
    }
}

type HookFn = fn(&Map<String, Value>, &ThreadContext) -> Value;

struct HookTool {
    name: &'static str,
    run: HookFn,
}

impl NativeTool for HookTool {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs_no_access(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let result =
            call.thread.and_then(|thread| thread.call_function(self.name, call.parameters, call.cancel));
        // A failed control result is a response, not a failure of the tool: it must reach the thread it controls.
        result.unwrap_or_else(|| Ok(missing_context()))
    }
}

fn missing_context() -> Value {
    failure("Missing thread context")
}

fn failure(error: impl Into<String>) -> Value {
    json!({"success": false, "error": error.into()})
}

fn text_param<'a>(parameters: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    parameters.get(key).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
