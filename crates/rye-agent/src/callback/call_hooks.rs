//! Hooks around what a tool asks of its thread: the same hooks as around the model's calls, so that a tool cannot do for
//! the model what a hook keeps the model from doing.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lillux::CancelToken;
use rye_item::ItemType;
use rye_thread::call_hooks::{
    CallChange, CallEvent, HookContext, NeededFields, permit_hook_action, read_tool_request_answer,
};
use rye_thread::hooks::HookKind;
use serde_json::{Map, Value, json};

use super::CallContext;
use crate::action::Action;
use crate::capability::PermittedAction;
use crate::envelope::ResultEnvelope;
use crate::tool_context::ThreadContext;

/// How often it is looked whether a hook's time is over or the tool has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The revision of the state machine from which on there are hooks around calls.
const MIN_REVISION: u32 = 2;

/// Runs the hooks around one request of a tool.
pub(super) struct RequestHooks<'a> {
    pub(super) context: &'a CallContext,
    /// Said when the tool has ended.
    pub(super) ended: &'a CancelToken,
    /// What hooks add to the answer.
    pub(super) notes: Vec<String>,
}

impl RequestHooks<'_> {
    /// Whether there are any.
    fn has_any(&self, event: CallEvent) -> bool {
        let template = &self.context.spec.template;
        template.revision >= MIN_REVISION && template.hooks.has_around(event)
    }

    /// The request as the hooks before it leave it.
    ///
    /// # Errors
    /// Why it is not done.
    pub(super) fn before(&mut self, mut action: Action) -> Result<Action, String> {
        let event = CallEvent::BeforeTool;
        let mut from = 0;
        while self.has_any(event) {
            let Some((next, changes)) = self.run_next(event, from, &action, None)? else { break };
            from = next;
            for change in changes {
                action.params = change.arguments.unwrap_or(action.params);
                self.notes.extend(change.note);
            }
        }
        Ok(action)
    }

    /// The answer as the hooks after it leave it.
    pub(super) fn after(&mut self, action: &Action, mut response: Value) -> Value {
        let event = CallEvent::AfterTool;
        let mut from = 0;
        while self.has_any(event) {
            match self.run_next(event, from, action, Some(&response)) {
                Ok(None) => break,
                Ok(Some((next, changes))) => {
                    from = next;
                    for change in changes {
                        if let Some(result) = change.result {
                            response = replaced(&result);
                        }
                        self.notes.extend(change.note);
                    }
                }
                Err(reason) => return json!({"status": "error", "error": reason}),
            }
        }
        if let Some(map) = response.as_object_mut().filter(|_| !self.notes.is_empty()) {
            map.insert("note".to_owned(), json!(self.notes.join("\n\n")));
        }
        response
    }

    fn hook_context(
        &self,
        action: &Action,
        response: Option<&Value>,
        needed: &NeededFields,
    ) -> Map<String, Value> {
        let (spec, cost) = (&self.context.spec, &self.context.thread.cost);
        let mut context = HookContext::of_tool(spec, cost, "tool", (action, &action.params), needed);
        if let Some(response) = response {
            context.add("result", || json!(response.to_string()));
            context.add("is_error", || json!(ResultEnvelope::is_failed_response(response)));
        }
        context.into_fields()
    }

    /// Runs the next hook that matches: the place behind it, and what it changes. An error is why the call is blocked.
    fn run_next(
        &self,
        event: CallEvent,
        from: usize,
        action: &Action,
        response: Option<&Value>,
    ) -> Result<Option<(usize, Vec<CallChange>)>, String> {
        let spec = &self.context.spec;
        let context = |needed: &NeededFields| Some(self.hook_context(action, response, needed));
        let Some((next, at, actions)) =
            spec.template.hooks.next_around(event, from, spec.template.revision, context)
        else {
            return Ok(None);
        };
        let Some(hook) = spec.template.hooks.get(at) else { return Ok(None) };
        let (mut changes, revision) = (Vec::new(), spec.template.revision);
        for action in actions {
            let answer = permit_hook_action(spec, at, &action)
                .and_then(|(_, permitted)| self.run_hook(&permitted))
                .and_then(|envelope| read_tool_request_answer(hook, &action, &envelope, event, revision));
            match answer {
                Ok(CallChange { block: Some(reason), .. }) => {
                    return Err(format!("blocked by the hook `{}`: {reason}", hook.id));
                }
                Ok(change) => changes.push(change),
                Err(error) if event.is_before() && hook.kind == HookKind::Control => {
                    return Err(format!("blocked by the hook `{}`: it failed: {error}", hook.id));
                }
                Err(_) => {}
            }
        }
        Ok(Some((next, changes)))
    }

    /// Runs a hook's action, for no longer than it may take.
    fn run_hook(&self, permitted: &PermittedAction) -> Result<Value, String> {
        if permitted.action().item_type == Some(ItemType::Directive) {
            return Err("a hook that runs a directive cannot run for a tool's request".to_owned());
        }
        let cancel = CancelToken::new().map_err(|error| error.to_string())?;
        let timeout_ms = self.context.spec.template.config.resilience.call_hook_timeout_ms;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let thread = Arc::new(ThreadContext { callback: None, ..self.context.thread.clone() });
        let (done, waiting) = channel::<()>();
        let (cancel_late, ended) = (&cancel, self.ended);
        let (envelope, is_late) = std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                loop {
                    match waiting.recv_timeout(POLL_INTERVAL) {
                        Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                            cancel_late.cancel();
                            return true;
                        }
                        Err(RecvTimeoutError::Timeout) if ended.is_cancelled() => {
                            cancel_late.cancel();
                            return false;
                        }
                        Err(RecvTimeoutError::Timeout) => {}
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => return false,
                    }
                }
            });
            let envelope = self.context.dispatcher.dispatch(permitted, &thread, &cancel);
            drop(done);
            (envelope, watch.join().unwrap_or(true))
        });
        if is_late { Err(format!("it took longer than {timeout_ms} ms")) } else { Ok(envelope) }
    }
}

/// An answer that a hook gives instead.
fn replaced(result: &str) -> Value {
    match serde_json::from_str(result) {
        Ok(Value::Object(map)) => Value::Object(map),
        _ => json!({"status": "success", "data": result}),
    }
}
