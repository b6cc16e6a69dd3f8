//! Children: a thread's call of `thread_directive`, and what becomes of children when their parent stops.
//!
//! A refused child is an answer to the model like any other: it costs nothing and starts nothing.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{async_answer, sync_answer};
use super::{Finished, Inner, Started};
use crate::action::{Action, object};
use crate::config::ChildFate;
use crate::driver::{Began, Children, Later, Signal};
use crate::machine::ToolResult;
use crate::prepare::{Order, Parent};
use crate::spec::Spec;
use crate::status::Status;

impl Children for Inner {
    fn spawn(
        self: Arc<Self>,
        parent: Arc<Spec>,
        call: Action,
        ending: CancellationToken,
        began: Began,
    ) -> Later<'static, ToolResult> {
        Box::pin(async move {
            let started = std::time::Instant::now();
            let (answer, child, is_error) = match self.child(&parent, &call.params, &ending).await {
                Ok((started, false)) => {
                    began.tell(&started.thread_id, &started.directive);
                    let id = started.thread_id.clone();
                    match self.child_finished(started, ending).await {
                        Some(finished) => {
                            let answer = Value::Object(sync_answer(&finished));
                            (answer, Some(id), finished.outcome.status != Status::Completed)
                        }
                        None => (
                            json!({"success": false, "thread_id": id, "error": "the child was lost"}),
                            Some(id),
                            true,
                        ),
                    }
                }
                Ok((started, true)) => {
                    began.tell(&started.thread_id, &started.directive);
                    (async_answer(&started), None, false)
                }
                Err(error) => (error.to_value(None), None, true),
            };
            let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            ToolResult { content: answer.to_string(), is_error, duration_ms, child }
        })
    }

    fn orchestrate(
        self: Arc<Self>,
        asker: Arc<Spec>,
        call: Action,
        ending: CancellationToken,
    ) -> Later<'static, ToolResult> {
        Box::pin(async move {
            let started = std::time::Instant::now();
            let answer = self.coordinate(&asker, &call.params, &ending).await;
            let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let (content, is_error) = match answer {
                Ok(answer) => {
                    let is_error = answer.get("success").and_then(Value::as_bool) == Some(false);
                    (answer, is_error)
                }
                Err(error) => (error.to_value(None), true),
            };
            ToolResult { content: content.to_string(), is_error, duration_ms, child: None }
        })
    }

    fn run_for_hook(
        self: Arc<Self>,
        parent: Arc<Spec>,
        call: Action,
        ending: CancellationToken,
    ) -> Later<'static, Value> {
        Box::pin(async move {
            let order = |inputs: Map<String, Value>| {
                let mut params = Map::new();
                params.insert("directive_name".to_owned(), json!(call.item_id));
                params.insert("inputs".to_owned(), Value::Object(inputs));
                params
            };
            // What was said goes along, if the directive wants it.
            let conversation = call.options.get("transcript_content").cloned();
            let mut inputs = call.params.clone();
            inputs.extend(conversation.map(|text| ("transcript_content".to_owned(), text)));
            let mut started = self.child(&parent, &order(inputs), &ending).await;
            if matches!(&started, Err(error) if error.code == Code::InvalidInputs) {
                started = self.child(&parent, &order(call.params.clone()), &ending).await;
            }
            match started {
                Ok((started, _)) => match self.child_finished(started, ending).await {
                    Some(finished) if finished.outcome.status == Status::Completed => {
                        json!({"status": "success", "data": sync_answer(&finished)})
                    }
                    Some(finished) => {
                        json!({"status": "error", "error": finished.outcome.error, "data": sync_answer(&finished)})
                    }
                    None => json!({"status": "error", "error": "the child was lost"}),
                },
                Err(error) => error.to_value(None),
            }
        })
    }
}

impl Inner {
    /// Starts a child as the call says; whether nobody waits for it.
    async fn child(
        self: &Arc<Self>,
        parent: &Arc<Spec>,
        params: &Map<String, Value>,
        ending: &CancellationToken,
    ) -> Result<(Started, bool)> {
        let (mut order, is_async) = order_of(params)?;
        order.parent =
            Some(Parent { spec: Arc::clone(parent), limits: self.limits_of(&parent.own.thread_id)? });
        let prepared = self.prepared(order).await?;
        // A child that somebody waits for ends with them; any other is asked by child_policy.
        let signal = Signal::default();
        let started = self.begin(prepared, signal.clone()).await?;
        if !is_async {
            let ending = ending.clone();
            let done = started.watch();
            tokio::spawn(async move {
                tokio::select! {
                    () = ending.cancelled() => signal.cancel("its parent was cancelled"),
                    () = done => {}
                }
            });
        }
        Ok((started, is_async))
    }

    /// Waits for a child; when the parent is cancelled the child is too, and is waited for all the same.
    async fn child_finished(&self, started: Started, _ending: CancellationToken) -> Option<Arc<Finished>> {
        started.finished().await
    }

    /// A thread stopped running here, its claim given back with its last record: its children hear of it.
    pub(super) fn left(self: &Arc<Self>, spec: &Arc<Spec>, finished: &Finished) {
        let id = &spec.own.thread_id;
        let policy = &spec.shared.config.resilience.child_policy;
        let wanted = match finished.outcome.status {
            Status::Cancelled | Status::Killed => Some((policy.on_parent_cancel, "its parent was cancelled")),
            Status::Completed => Some((policy.on_parent_complete, "its parent has completed")),
            Status::Error => Some((policy.on_parent_error, "its parent has failed")),
            Status::Created | Status::Running | Status::Suspended | Status::Continued => None,
        };
        if let Some((ChildFate::CascadeCancel, reason)) = wanted
            && let Ok(children) = self.store.children(id)
        {
            for child in children.iter().filter(|child| !child.status.is_terminal()) {
                self.request_cancel(&child.id, reason);
            }
        }
        self.live().remove(id);
    }
}

/// What a call of `thread_directive` asks for; both spellings of its parameters.
///
/// # Errors
/// When it does not say what to run.
pub(super) fn order_of(params: &Map<String, Value>) -> Result<(Order, bool)> {
    let wrong = |message: String| Error::new(Code::InvalidParameters, message);
    let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = text("directive_name")
        .or_else(|| text("directive_id"))
        .ok_or_else(|| wrong("`directive_name` is missing".to_owned()))?;
    let name = name.strip_prefix("directive:").unwrap_or(name);
    let id = ItemId::new(name).map_err(|error| wrong(error.to_string()))?;
    let inputs = object(params.get("inputs")).map_err(|error| wrong(format!("inputs: {error}")))?;
    let mut order = Order::new(ItemRef::new(ItemType::Directive, id), inputs);
    order.model = text("model").map(str::to_owned);
    order.provider = text("provider").map(str::to_owned);
    order.limits =
        object(params.get("limit_overrides")).map_err(|error| wrong(format!("limit_overrides: {error}")))?;
    let is_true = |key: &str| match params.get(key) {
        Some(Value::Bool(is)) => *is,
        Some(Value::String(word)) => word == "true",
        _ => false,
    };
    Ok((order, is_true("async_exec") || is_true("async")))
}
