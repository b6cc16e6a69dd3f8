//! The simulated parts of a driver: a model, tools, and work that would block.

use std::sync::Arc;

use lillux::CancelToken;
use rye_agent::dispatch::Dispatcher;
use rye_agent::driver::{BlockingExecutor, BlockingWork, BoxFuture};
use rye_agent::tool_context::ThreadContext;
use rye_engine::verbs::execute::BlockingHook;
use rye_model::{Completion, ModelProvider, ResponseDelta};
use rye_store::{Owner, OwnerProbe};
use rye_thread::capability::PermittedAction;
use rye_thread::model::{FinishReason, ModelError, ModelRequest, ModelResponse, ToolCall, Usage};
use rye_thread::thread_id::ThreadId;
use serde_json::{Map, Value, json};

use super::checker::HookedCall;
use super::host::Process;
use super::journal::SimJournal;
use super::templates::HOOK_TOOL;
use super::world::{World, lock};

/// Knows of no process that runs: hosts are told apart by name and boot.
#[derive(Debug)]
pub(super) struct NoProcess;

impl OwnerProbe for NoProcess {
    fn is_running(&self, _owner: &Owner) -> bool {
        true
    }
}

/// A model that answers at random, and counts.
pub(super) struct SimModel {
    pub(super) journal: Arc<SimJournal>,
    /// Which of the thread's models it is.
    pub(super) index: usize,
    /// Whether it may start children.
    pub(super) has_children: bool,
}

impl ModelProvider for SimModel {
    fn complete<'a>(
        &'a self,
        _request: &'a ModelRequest,
        _deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(async move {
            let (world, journal) = (&self.journal.world, &self.journal);
            journal.process.wait_until_thawed(world).await;
            let call = lock(&journal.reserved_call).take();
            super::checker::check_model_call(journal, call, self.index);
            let call = call.unwrap_or_default();
            world.pause(20, 4000).await;
            if world.scenario.is_down(self.index, world.now_ms()) {
                return Err(failure(Some(503)));
            }
            if world.rng.chance(80) {
                let status = if world.rng.chance(100) { 401 } else { 503 };
                return Err(failure(world.rng.chance(500).then_some(status)));
            }
            Ok(self.response(call))
        })
    }
}

impl SimModel {
    fn response(&self, call: u64) -> ModelResponse {
        let rng = &self.journal.world.rng;
        let count = if rng.chance(200) { 0 } else { rng.range(1, 3) };
        let tools = if self.has_children { 5 } else { 4 };
        let calls: Vec<ToolCall> = (0..count)
            .map(|index| {
                let name = match rng.below(tools) {
                    0 | 1 => "once",
                    2 | 3 => "again",
                    _ => "child",
                };
                let key = format!("{}/{call}/{index}", self.journal.thread);
                ToolCall {
                    id: format!("c{call}-{index}"),
                    name: name.to_owned(),
                    input: Map::from_iter([("key".to_owned(), json!(key))]),
                    malformed: None,
                }
            })
            .collect();
        let finish_reason = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
        ModelResponse {
            text: if calls.is_empty() { "done".to_owned() } else { String::new() },
            reasoning: String::new(),
            calls,
            replay: Vec::new(),
            finish_reason,
            usage: Usage {
                input_tokens: rng.range(5, 20),
                output_tokens: rng.range(1, 100),
                ..Usage::default()
            },
            model: "sim-model".to_owned(),
        }
    }
}

/// A failure with this status of the server; without one, nothing was sent.
fn failure(status_code: Option<u16>) -> ModelError {
    ModelError {
        kind: "api_error".to_owned(),
        message: "status 503".to_owned(),
        code: None,
        status_code,
        headers: Default::default(),
        partial: None,
        reached_server: status_code.is_some(),
        is_declined: false,
    }
}

/// Tools that count their effects; hooks' own tools answer as theirs do.
pub(super) struct SimTools {
    pub(super) world: Arc<World>,
}

impl Dispatcher for SimTools {
    fn dispatch(
        &self,
        permitted: &PermittedAction,
        context: &Arc<ThreadContext>,
        _cancel: &CancelToken,
    ) -> Value {
        let action = permitted.action();
        let id = action.item_id.as_deref().unwrap_or_default();
        match id {
            "sim/once" | "sim/again" => {
                let key = action.params.get("key").and_then(Value::as_str).unwrap_or_default();
                let is_changed = action.params.contains_key("changed");
                super::checker::check_hooked_call(&self.world, key, is_changed);
                super::checker::check_effect(&self.world, &context.thread_id, key, id == "sim/again");
                json!({"status": "success", "data": {"key": key}})
            }
            HOOK_TOOL => self.run_hook(&context.thread_id, &action.params),
            _ => hook_tool_result(id, &action.params),
        }
    }
}

impl SimTools {
    /// A hook around a call: it blocks, changes or notes something, or fails. It is run at most once for each call.
    fn run_hook(&self, thread: &ThreadId, params: &Map<String, Value>) -> Value {
        let rng = &self.world.rng;
        let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default();
        let (at, effect) = (text("at"), text("effect"));
        let call = params.get("call").cloned().unwrap_or_default();
        let key = format!("hook {at} of {thread}, {call}");
        super::checker::check_effect(&self.world, thread, &key, false);
        let is_before_tool = at == "before_tool";
        if rng.chance(30) {
            if is_before_tool {
                super::checker::add_hooked_call(&self.world, effect, HookedCall::Blocked);
            }
            return json!({"status": "error", "error": "the hook failed"});
        }
        let change = match (at, rng.below(20)) {
            ("before_tool", 0 | 1) => {
                super::checker::add_hooked_call(&self.world, effect, HookedCall::Blocked);
                json!({"block": "not now"})
            }
            ("before_tool", 2..=5) => {
                super::checker::add_hooked_call(&self.world, effect, HookedCall::Changed);
                json!({"arguments": {"key": effect, "changed": true}})
            }
            ("after_tool", 0..=2) => json!({"result": "something else"}),
            ("after_tool", 3) | ("after_model", 0) => json!({"block": "look again"}),
            (_, 6..=8) => json!({"note": "mind the time"}),
            _ => json!({}),
        };
        json!({"status": "success", "data": {"call": change}})
    }
}

/// What the tools of hooks answer.
fn hook_tool_result(id: &str, params: &Map<String, Value>) -> Value {
    let get = |key: &str| params.get(key).cloned().unwrap_or_default();
    let data = if id.ends_with("/control") {
        match get("action").as_str().unwrap_or_default() {
            "retry" => json!({"action": "retry"}),
            "fail" => json!({"success": false, "error": get("error")}),
            "abort" => json!({"success": false, "aborted": true, "error": "Aborted by hook"}),
            "suspend" => json!({"success": false, "suspended": true, "error": get("suspend_reason"),
                "prompt": get("prompt"), "on_deny": get("on_deny")}),
            "escalate" => {
                json!({"success": false, "suspended": true, "escalated": true, "escalation": params})
            }
            _ => Value::Null,
        }
    } else {
        json!({"success": true, "event_type": get("event_type"), "payload": get("payload"), "emitted": true})
    };
    json!({"status": "success", "data": data})
}

/// Does work that would block right away, after a delay of its own.
pub(super) struct SimExecutor {
    pub(super) world: Arc<World>,
    pub(super) process: Arc<Process>,
}

impl BlockingExecutor for SimExecutor {
    fn run(&self, work: BlockingWork) -> BoxFuture<'static, ()> {
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        Box::pin(async move {
            world.pause(1, 3000).await;
            process.wait_until_thawed(&world).await;
            work(BlockingHook::new(|| {}));
            world.pause(1, 500).await;
        })
    }
}
