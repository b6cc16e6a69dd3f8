//! Children: a thread's call of `thread_directive`, and what becomes of children when their parent stops.
//!
//! A refused child is an answer to the model like any other: it costs nothing and starts nothing.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_exec::parameters;
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{async_answer, sync_answer};
use super::continuation::Carried;
use super::coordinate::{Waiting, default_wait};
use super::{Finished, Inner};
use crate::action::{Action, object};
use crate::config::{ChildFate, ChildPolicy};
use crate::definitions::{ORCHESTRATOR, THREAD_DIRECTIVE};
use crate::driver::{Began, Children, Later, Signal};
use crate::machine::{Outcome, ToolResult};
use crate::models::OFFLINE;
use crate::prepare::{Order, Parent, Prepared};
use crate::spec::{Cause, Spec};
use crate::status::{Status, SuspendReason};
use crate::store::{StoreError, ThreadRow};
use crate::thread_id::ThreadId;

/// What a child is for.
#[derive(Clone, Copy, Debug)]
enum Errand<'a> {
    /// What its parent's model wants done.
    Task(&'a Began),
    /// What a hook of its parent wants done, to help it along.
    Help(&'a str),
}

impl Errand<'_> {
    fn cause(self) -> Cause {
        match self {
            Self::Task(began) => began.cause(),
            Self::Help(hook) => Cause::Hook(hook.to_owned()),
        }
    }

    /// The child exists.
    fn tell(self, directive: &str) {
        if let Self::Task(began) = self {
            began.tell(directive);
        }
    }
}

/// A child that was started.
enum Child {
    /// Somebody waits for it.
    Awaited(Later<'static, Option<Arc<Finished>>>),
    /// It goes on by itself, in this process.
    Apart { directive: String, pid: u32 },
}

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
            let id = began.child().clone();
            let child = self.child(&parent, &wanted_of(&call), Errand::Task(&began), &ending).await;
            let (answer, child, is_error) = match child {
                Ok(Child::Awaited(finished)) => match finished.await {
                    Some(finished) => {
                        let answer = Value::Object(sync_answer(&finished));
                        (answer, Some(id), finished.outcome.status != Status::Completed)
                    }
                    None => (
                        json!({"success": false, "thread_id": id, "error": "the child was lost"}),
                        Some(id),
                        true,
                    ),
                },
                Ok(Child::Apart { directive, pid }) => (async_answer(&id, &directive, pid), None, false),
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
            let answer = match self.checked(&asker, ORCHESTRATOR, call.params) {
                Ok(params) => self.coordinate(&asker, &params, &ending).await,
                Err(error) => Err(error),
            };
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
        hook: String,
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
            let errand = Errand::Help(&hook);
            let mut started = self.child(&parent, &order(inputs), errand, &ending).await;
            if matches!(&started, Err(error) if error.code == Code::InvalidInputs) {
                started = self.child(&parent, &order(call.params.clone()), errand, &ending).await;
            }
            match started {
                // A hook's directive is never asked to run on its own.
                Ok(Child::Apart { .. }) => json!({"status": "success", "data": {}}),
                Ok(Child::Awaited(finished)) => match finished.await {
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
    /// Starts a child as the call says. Where the call has begun one before a crash, that one is it.
    async fn child(
        self: &Arc<Self>,
        parent: &Arc<Spec>,
        params: &Map<String, Value>,
        errand: Errand<'_>,
        ending: &CancellationToken,
    ) -> Result<Child> {
        let params = self.checked(parent, THREAD_DIRECTIVE, params.clone())?;
        let (mut order, is_async) = order_of(&params)?;
        let own = parent.own.thread_id.as_str();
        if let Some(other) = params.get("parent_thread_id").and_then(Value::as_str).filter(|id| *id != own) {
            let other = rye_item::text::one_line(other);
            return Err(Error::new(
                Code::PermissionDenied,
                format!("{other} is not the caller: a thread starts its own children"),
            )
            .hint("leave parent_thread_id out"));
        }
        if let Errand::Task(began) = errand {
            if let Some(row) = self.store.sealed_thread(began.child())? {
                return self.rejoined(parent, row, is_async, began, ending).await;
            }
            order.name = Some(began.child().clone());
        }
        order.cause = Some(errand.cause());
        order.parent =
            Some(Parent { spec: Arc::clone(parent), limits: self.limits_of(&parent.own.thread_id)? });
        let previous = match params.get("previous_thread_id").and_then(Value::as_str) {
            Some(id) => Some(self.continued_by(parent, id, &mut order, &params).await?),
            None => None,
        };
        let prepared = match errand {
            Errand::Task(_) => self.prepared(order).await?,
            Errand::Help(_) => self.prepared_like(parent, order).await?,
        };
        let directive = prepared.spec.shared.directive.clone();
        // Nobody waits for it: it goes on whatever becomes of this process. If there is nobody else, it runs here.
        if is_async && let Ok(reached) = self.reached().await {
            let left = self.leave_to(reached, prepared).await?;
            if let Some(row) = previous {
                self.hand_over(&row).await?;
            }
            errand.tell(&directive);
            return Ok(Child::Apart { directive, pid: left.with.unwrap_or_default() });
        }
        // A child that somebody waits for ends with them; any other is asked by child_policy.
        let signal = Signal::default();
        let started = self.begin(prepared, signal.clone()).await?;
        if let Some(row) = previous {
            self.hand_over(&row).await?;
        }
        errand.tell(&directive);
        if is_async {
            return Ok(Child::Apart { directive, pid: std::process::id() });
        }
        let (inner, parent, ending) = (Arc::clone(self), Arc::clone(parent), ending.clone());
        let (done, asked) = (started.watch(), ending.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = asked.cancelled() => signal.cancel("its parent was cancelled"),
                () = done => {}
            }
        });
        // When the parent is cancelled the child is too, and is waited for all the same.
        Ok(Child::Awaited(Box::pin(async move {
            let finished = started.finished().await?;
            inner.once_answered(&parent, finished, &ending).await
        })))
    }

    /// The child that a call had begun before its process died.
    async fn rejoined(
        self: &Arc<Self>,
        parent: &Arc<Spec>,
        row: ThreadRow,
        is_async: bool,
        began: &Began,
        ending: &CancellationToken,
    ) -> Result<Child> {
        if row.parent.as_ref() != Some(&parent.own.thread_id) {
            return Err(StoreError::Exists(row.id).into());
        }
        began.tell(&row.directive);
        if is_async {
            if self.is_abandoned(&row) {
                // What stands in its way is told to whoever waits for it.
                let _ = self.bring_back(&row, true).await;
            }
            return Ok(Child::Apart {
                directive: row.directive,
                pid: row.owner.map_or(0, |owner| owner.pid),
            });
        }
        let (inner, parent, ending) = (Arc::clone(self), Arc::clone(parent), ending.clone());
        Ok(Child::Awaited(Box::pin(async move {
            let waiting = Waiting { waits_for_people: false, ..Waiting::for_all(vec![row.id.clone()]) };
            let never = CancellationToken::new();
            let ended = inner.wait(&waiting, true, &never);
            tokio::pin!(ended);
            let waited = tokio::select! {
                waited = &mut ended => waited,
                () = ending.cancelled() => {
                    let _ = inner.end(&row.id, "its parent was cancelled").await;
                    ended.await
                }
            };
            waited.ok()?;
            let finished = Arc::new(inner.stands(&row.id).ok()?);
            inner.once_answered(&parent, finished, &ending).await
        })))
    }

    /// Prepares what helps another thread along: where no model of its own is at hand, that one's does it. A script cannot
    /// write a summary.
    pub(super) async fn prepared_like(self: &Arc<Self>, helped: &Spec, order: Order) -> Result<Prepared> {
        let prepared = self.prepared(order.clone()).await;
        let is_served = prepared.as_ref().is_ok_and(|prepared| {
            prepared.spec.shared.provider != OFFLINE || helped.shared.provider == OFFLINE
        });
        if is_served {
            return prepared;
        }
        let (model, provider) = (helped.shared.model.clone(), helped.shared.provider.clone());
        self.prepared(Order { model: Some(model), provider: Some(provider), ..order }).await
    }

    /// Lets the order go on from a thread below its parent that is not at work any more.
    async fn continued_by(
        self: &Arc<Self>,
        parent: &Arc<Spec>,
        id: &str,
        order: &mut Order,
        params: &Map<String, Value>,
    ) -> Result<ThreadRow> {
        let id =
            ThreadId::parse(id).map_err(|error| Error::new(Code::InvalidParameters, error.to_string()))?;
        let row = self.below(parent, self.row(&id)?)?;
        let row = self.final_row(&row.id)?;
        let old = self.ended_state(&row)?;
        if !params.contains_key("inputs") && row.directive == order.directive.id.as_str() {
            order.inputs.clone_from(&old.spec.own.inputs);
        }
        self.carry(order, &old, None, Carried::Rest).await?;
        Ok(row)
    }

    /// Parameters that fit what the tool declares; `null` is as good as nothing.
    fn checked(
        &self,
        asker: &Spec,
        tool: &str,
        mut params: Map<String, Value>,
    ) -> Result<Map<String, Value>> {
        params.retain(|_, value| !value.is_null());
        let offered = asker.shared.definitions.tools.iter();
        let offered = offered.into_iter().find(|known| known.target["item_id"] == json!(tool));
        let schema = match offered {
            Some(definition) => definition.schema.clone(),
            None => {
                let engine = (self.setup.engine)()?;
                let item = ItemRef::new(ItemType::Tool, ItemId::new(tool)?);
                let (chain, _) = rye_engine::chains::build_valid(&engine, &item, None)?;
                chain.tool().schema().cloned().unwrap_or_else(|| json!({}))
            }
        };
        parameters::check(params, Some(&schema))
            .map_err(|error| Error::new(Code::InvalidParameters, format!("{tool}: {error}")))
    }

    /// How a child that has stopped stands in the end: one that stopped to ask a person is waited for as long as
    /// `wait_threads` would, since somebody may answer.
    async fn once_answered(
        self: &Arc<Self>,
        parent: &Spec,
        finished: Arc<Finished>,
        ending: &CancellationToken,
    ) -> Option<Arc<Finished>> {
        if finished.outcome.reason != Some(SuspendReason::Approval) {
            return Some(finished);
        }
        let id = &finished.thread_id;
        let timeout = default_wait(&parent.shared.config);
        let waiting = Waiting { timeout, ..Waiting::for_all(vec![id.clone()]) };
        // However it went, the child's row says how it stands.
        let _ = self.wait(&waiting, true, ending).await;
        if ending.is_cancelled() {
            let _ = self.end(id, "its parent was cancelled").await;
        }
        self.stands(id).ok().map(Arc::new)
    }

    /// How a thread, or the one it was handed over to, stands by now.
    pub(super) fn stands(&self, id: &ThreadId) -> Result<Finished> {
        let row = self.final_row(id)?;
        let outcome = row.result.as_ref().and_then(|result| serde_json::from_value(result.clone()).ok());
        let outcome = outcome.filter(|outcome: &Outcome| outcome.status == row.status);
        let outcome = outcome.unwrap_or_else(|| Outcome {
            status: row.status,
            reason: row.reason,
            ..Outcome::failed(row.error.clone().unwrap_or_default())
        });
        Ok(Finished { thread_id: row.id, directive: row.directive, outcome, cost: row.cost })
    }

    /// A thread stopped running here, its claim given back with its last record: its children hear of it.
    pub(super) async fn left(self: &Arc<Self>, spec: &Arc<Spec>, finished: &Finished) {
        let id = &spec.own.thread_id;
        let status = finished.outcome.status;
        if status.is_terminal() {
            self.parent_ended(id, status, spec.shared.config.resilience.child_policy).await;
            if status == Status::Cancelled {
                self.forget_wish(id);
            }
        } else if finished.outcome.asks() {
            self.asking().insert(id.clone());
        }
        self.live().remove(id);
    }

    /// What becomes of a thread's children, as its record says.
    pub(super) fn child_policy(&self, id: &ThreadId) -> ChildPolicy {
        let known = self.recorded(id).map(|(spec, _)| spec.shared.config.resilience.child_policy);
        // Without a record that can be trusted nothing is left running.
        known.unwrap_or(ChildPolicy {
            on_parent_cancel: ChildFate::CascadeCancel,
            on_parent_complete: ChildFate::CascadeCancel,
            on_parent_error: ChildFate::CascadeCancel,
        })
    }
}

/// The parameters of a call that starts a thread. `rye_execute` of a directive with `thread: fork` is another way to say it.
fn wanted_of(call: &Action) -> Map<String, Value> {
    if call.item_type != Some(ItemType::Directive) {
        return call.params.clone();
    }
    let mut params = Map::new();
    params.insert("directive_name".to_owned(), json!(call.item_id));
    params.insert("inputs".to_owned(), Value::Object(call.params.clone()));
    for name in ["async", "model", "limit_overrides"] {
        // What the directive itself calls so stays an input.
        params.extend(call.options.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    params
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
