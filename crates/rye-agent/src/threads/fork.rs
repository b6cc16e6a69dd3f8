//! Forking a thread: a new one that begins at a turn of an old one, with another message, model or limit.
//!
//! What was said up to the turn is copied; nothing that was done is done again, and what the old thread used is not charged to
//! the new one. The new thread is prepared like any other, from its directive as it is now, and may do and use no more than
//! the old one. The old thread is only read.

use std::sync::Arc;

use lillux::Digest;
use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::ChatMessage;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::needed_person::{Succession, check_succession};
use super::orchestrator::OperationCaller;
use super::records::RecordReader;
use super::responses::{finished_response, started_response};
use super::resume::apply_limit_changes;
use super::{ThreadRuntime, Threads};
use crate::action::parse_params;
use crate::definitions::ORCHESTRATOR;
use crate::driver::CancelSignal;
use crate::file_inputs::FileAccess;
use crate::journal::JournalHeader;
use crate::limits::{RaisedLimit, ThreadLimits};
use crate::machine::{ForkError, ForkPoint, fork_point};
use crate::prepare::{ForkOrigin, ParentThread, ThreadRequest};
use crate::spec::{ForkSource, SpawnReason, ThreadSpec};
use crate::store::{JournalRecord, StoreHandle, ThreadRow};
use crate::thread_id::ThreadId;

/// How the titles of forks begin: only then the header is read for where one was forked.
pub(super) const FORK_TITLE: &str = "fork of ";

/// What is different in a fork.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// The turn after which it begins; the last one that is over, if none is named. 0 is before the model was first asked.
    pub turn: Option<u64>,
    /// What the model is given there.
    pub message: Option<String>,
    /// Another model or tier.
    pub model: Option<String>,
    /// Another provider.
    pub provider: Option<String>,
    /// Limits to set (`turns=30`) or to raise (`spend=+1`); the others are those of the old thread.
    pub limits: Map<String, Value>,
}

impl ForkOptions {
    fn from_params(params: &Map<String, Value>) -> Result<Self> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let turn = match params.get("turn").filter(|turn| !turn.is_null()) {
            Some(turn) => {
                let number = turn.as_u64().or_else(|| turn.as_str()?.parse().ok());
                Some(number.ok_or_else(|| invalid("`turn` is a whole number".to_owned()))?)
            }
            None => None,
        };
        Ok(Self {
            turn,
            message: text("message").map(str::to_owned),
            model: text("model").map(str::to_owned),
            provider: text("provider").map(str::to_owned),
            limits: parse_params(params.get("limit_overrides"))
                .map_err(|error| invalid(format!("limit_overrides: {error}")))?,
        })
    }
}

/// Where a thread was forked, if it was.
///
/// # Errors
/// When its journal cannot be read.
pub fn fork_source(store: &StoreHandle, row: &ThreadRow) -> Result<Option<ForkSource>> {
    if !row.title.starts_with(FORK_TITLE) {
        return Ok(None);
    }
    let records = store.journal(&row.id)?;
    let header = records.first().and_then(|record| JournalHeader::parse(&record.body).ok());
    Ok(header.and_then(|header| header.own.forked_from))
}

impl Threads {
    /// What starts a fork of a thread, which the caller may run in any way.
    ///
    /// # Errors
    /// When there is no such turn, the record does not verify, or the limits do not fit.
    pub async fn fork_request(&self, row: &ThreadRow, options: ForkOptions) -> Result<ThreadRequest> {
        self.runtime.fork_request(row, options).await.map(|(request, _)| request)
    }
}

impl ThreadRuntime {
    /// What starts a fork, and the limits of the old thread.
    async fn fork_request(
        self: &Arc<Self>,
        row: &ThreadRow,
        options: ForkOptions,
    ) -> Result<(ThreadRequest, ThreadLimits)> {
        let (id, turn) = (row.id.clone(), options.turn);
        let found = self.records.run_blocking(move |records| records.find_fork_point(&id, turn));
        let (spec, point, source) = found.await?;
        let message = options.message.filter(|message| !message.trim().is_empty());
        if message.is_none() && point.needs_message() {
            let earlier = point.turn.saturating_sub(1);
            let message = format!("the model spoke last in turn {} of {}", point.turn, row.id);
            return Err(Error::new(Code::InvalidArgument, message)
                .detail("thread_id", row.id.as_str())
                .hint("say what it should do next: --message TEXT")
                .hint(format!("or have it answer that turn again: --at {earlier}")));
        }
        let old_limits = self.records.row(&row.id).await?.limits;
        let limits = apply_limit_changes(&old_limits, &options.limits)?;
        let directive = ItemRef::new(ItemType::Directive, ItemId::new(&spec.template.directive)?);
        let mut request = ThreadRequest::new(directive, spec.instance.inputs.clone());
        let is_same_model = options.model.is_none() && options.provider.is_none();
        request.history = match is_same_model {
            true => point.messages,
            false => without_provider_blocks(point.messages),
        };
        (request.model, request.provider) = match is_same_model {
            true => (Some(spec.template.model.clone()), Some(spec.template.provider.clone())),
            false => (options.model.or_else(|| Some(spec.template.model.clone())), options.provider),
        };
        request.files = FileAccess::Recorded(spec.instance.files.clone());
        request.message = message;
        request.bounds = Some((spec.instance.capabilities.clone(), limits));
        request.fork = Some(ForkOrigin { source, spec, limits });
        Ok((request, old_limits))
    }

    /// `fork_thread`, for the user or for a thread, whose child the fork is.
    pub(super) async fn fork_operation(
        self: &Arc<Self>,
        caller: &OperationCaller,
        row: ThreadRow,
        params: &Map<String, Value>,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let id = row.id.clone();
        let state = self.records.run_blocking(move |records| records.load_state(&id)).await?;
        check_succession(&state, Succession::Copied, caller.is_unattended())?;
        let (mut request, old_limits) = self.fork_request(&row, ForkOptions::from_params(params)?).await?;
        let can_raise = match caller {
            OperationCaller::User { policy, .. } => policy.can_raise_limits,
            OperationCaller::Thread(spec) => {
                let own = &spec.instance.thread_id;
                let limits = self.current_limits(own).await?;
                request.parent = Some(ParentThread { spec: Arc::clone(spec), limits });
                request.spawn_reason = Some(SpawnReason::Tool(ORCHESTRATOR.to_owned()));
                false
            }
        };
        if let Some(fork) = request.fork.as_ref().filter(|_| !can_raise) {
            refuse_raise(&row, "fork", &fork.limits, &old_limits)?;
        }
        let source = request.fork.as_ref().map(|fork| fork.source.clone());
        let prepared = self.prepare(request).await?;
        let directive = prepared.spec.template.directive.clone();
        let is_async = params.get("async_exec").is_some_and(|is| is == &json!(true) || is == &json!("true"));
        let mut response = if is_async {
            let (id, pid) = match self.connect_background().await {
                Ok(connection) => {
                    let background = self.hand_to_background(connection, prepared, |_| {}).await?;
                    (background.thread_id, background.runner.unwrap_or_default())
                }
                Err(_) => {
                    let started = self.start(prepared, CancelSignal::default()).await?;
                    (started.thread_id, std::process::id())
                }
            };
            started_response(&id, &directive, pid)
        } else {
            let signal = CancelSignal::default();
            let started = self.start(prepared, signal.clone()).await?;
            let finished = started.finished();
            tokio::pin!(finished);
            let finished = tokio::select! {
                finished = &mut finished => finished,
                () = cancel_token.cancelled() => {
                    signal.cancel("the call was cancelled");
                    finished.await
                }
            };
            let lost = || Error::new(Code::ThreadFailed, "the thread ended unexpectedly");
            Value::Object(finished_response(&*finished.ok_or_else(lost)?))
        };
        response["forked_from"] = json!(source);
        Ok(response)
    }
}

impl RecordReader {
    /// Where a thread is forked that begins after a turn.
    fn find_fork_point(
        &self,
        id: &ThreadId,
        turn: Option<u64>,
    ) -> Result<(Arc<ThreadSpec>, ForkPoint, ForkSource)> {
        let (spec, events) = self.load_history(id)?;
        let point = fork_point(Arc::clone(&spec), events, turn).map_err(|error| {
            let refused = Error::new(Code::InvalidArgument, format!("{id} cannot be forked there: {error}"))
                .detail("thread_id", id.as_str());
            match error {
                ForkError::NoTurn { turns, .. } => refused.hint(format!("--at is at most {turns}")),
                ForkError::Unfinished { turn: 0 } => refused.hint(format!("rye thread show {id}")),
                ForkError::Unfinished { turn } => refused.hint(format!("--at {}", turn - 1)),
            }
        })?;
        let records = self.store.journal(id)?;
        let journal = journal_digest(&records[..records.len().min(point.events + 1)]).to_string();
        let source = ForkSource { thread_id: id.clone(), turn: point.turn, journal };
        Ok((spec, point, source))
    }
}

/// Refuses limits above those that a thread has.
pub(super) fn refuse_raise(
    row: &ThreadRow,
    command: &str,
    limits: &ThreadLimits,
    old: &ThreadLimits,
) -> Result<()> {
    let raised = limits.raised_limits(old);
    if raised.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = raised.iter().map(|limit| limit.name).collect();
    let message = format!("limits are only lowered here; {} would be raised", names.join(", "));
    let value = |limit: &RaisedLimit| match limits.to_value().get(limit.name) {
        Some(Value::Null) | None => "none".to_owned(),
        Some(value) => value.to_string(),
    };
    let limits: String =
        raised.iter().map(|limit| format!(" --limit {}={}", limit.name, value(limit))).collect();
    Err(Error::new(Code::PermissionDenied, message)
        .detail("thread_id", row.id.as_str())
        .hint(format!("the user may raise them: rye thread {command} {}{limits}", row.id)))
}

/// Another model cannot use what a provider wanted back unchanged.
fn without_provider_blocks(mut messages: Vec<Arc<ChatMessage>>) -> Vec<Arc<ChatMessage>> {
    for message in &mut messages {
        let has_blocks = matches!(&**message, ChatMessage::Assistant { replay, .. } if !replay.is_empty());
        if has_blocks && let ChatMessage::Assistant { replay, .. } = Arc::make_mut(message) {
            replay.clear();
        }
    }
    messages
}

/// The digest of a journal: its records, a line each.
fn journal_digest(records: &[JournalRecord]) -> Digest {
    Digest::of_pieces(records.iter().flat_map(|record| [record.body.as_slice(), b"\n"]))
}
