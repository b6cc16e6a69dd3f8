//! The thread's own tools (003 §5): functions from parameters and a snapshot of the thread to a result.
//!
//! They decide nothing and change nothing: a control result steers, an event is written, a cost is added only because the
//! machine that reads the result does so. The ledger is the exception, and only below the calling thread.
//! They are reached like any tool, through signed descriptors (`rye/agent/threads/internal/*`) that name the functions
//! here; only hooks may call them, and only for hooks does the dispatcher hand over the facts.

mod budget;
mod control;
mod observe;

use std::sync::Arc;

use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Map, Value, json};

use crate::facts::ThreadFacts;

/// The functions.
const OWN: [Internal; 8] = [
    Internal { name: "threads.control", answer: control::control },
    Internal { name: "threads.emitter", answer: observe::emit },
    Internal { name: "threads.classifier", answer: observe::classify },
    Internal { name: "threads.limit_checker", answer: observe::check_limit },
    Internal { name: "threads.budget_ops", answer: budget::operate },
    Internal { name: "threads.cost_tracker", answer: observe::track_cost },
    Internal { name: "threads.state_persister", answer: observe::persist },
    Internal { name: "threads.cancel_checker", answer: observe::check_cancel },
];

/// What the function of this name answers a hook of the thread behind `facts`.
pub(crate) fn answer(name: &str, parameters: &Map<String, Value>, facts: &ThreadFacts) -> Option<Value> {
    let own = OWN.iter().find(|own| own.name.strip_prefix("threads.") == Some(name))?;
    Some((own.answer)(parameters, facts))
}

/// All of them, for [`rye_engine::Natives`].
#[must_use]
pub fn all() -> Vec<Arc<dyn NativeTool>> {
    let inside: [Inside; 5] = [
        Inside {
            name: "threads.thread_directive",
            instead: "run a directive in a thread: rye run DIRECTIVE",
        },
        Inside { name: "threads.orchestrator", instead: "look at and steer threads: rye thread --help" },
        Inside { name: "threads.human_approval", instead: "only the model of a thread asks a person" },
        Inside {
            name: "threads.directive_return",
            instead: "only the model of a thread returns its outputs",
        },
        Inside { name: "threads.read_artifact", instead: "what a thread did: rye thread transcript ID" },
    ];
    let own = OWN.into_iter().map(|tool| Arc::new(tool) as Arc<dyn NativeTool>);
    own.chain(inside.into_iter().map(|tool| Arc::new(tool) as Arc<dyn NativeTool>)).collect()
}

/// What a thread does itself when its model calls it; anybody else is told what to do instead.
struct Inside {
    name: &'static str,
    instead: &'static str,
}

impl NativeTool for Inside {
    fn name(&self) -> &'static str {
        self.name
    }

    fn touches_nothing(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn call(&self, _call: &NativeCall<'_>) -> Result<Value, NativeError> {
        Err(NativeError::denied(format!("this works inside a thread only; {}", self.instead)))
    }
}

type Answering = fn(&Map<String, Value>, &ThreadFacts) -> Value;

struct Internal {
    name: &'static str,
    answer: Answering,
}

impl NativeTool for Internal {
    fn name(&self) -> &'static str {
        self.name
    }

    fn touches_nothing(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let facts = call.thread.and_then(|thread| thread.downcast_ref::<ThreadFacts>());
        // A failed control result is an answer, not a failure of the tool: it must reach whoever it steers.
        Ok(facts.map_or_else(missing, |facts| (self.answer)(call.parameters, facts)))
    }
}

fn missing() -> Value {
    failed("Missing thread context")
}

fn failed(error: impl Into<String>) -> Value {
    json!({"success": false, "error": error.into()})
}

fn text<'a>(parameters: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    parameters.get(key).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
