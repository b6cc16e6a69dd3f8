//! The orchestrator tool: waiting for threads, looking at them, ending them.
//!
//! A thread sees its own tree and steers what is below it; a person sees and steers everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rye_engine::{Code, Error, Result};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::resume::Changes;
use super::{Inner, Threads};
use crate::config::Config;
use crate::spec::Spec;
use crate::status::Status;
use crate::store::ThreadRow;
use crate::thread_id::ThreadId;
use crate::transcript;

/// How often threads of other processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Events a search looks at.
const SEARCHED: [&str; 4] = ["cognition_in", "cognition_out", "tool_call_start", "tool_call_result"];

/// Events of one transcript that are read at most.
const MOST_EVENTS: usize = 100_000;

/// How to wait.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// For whom.
    pub ids: Vec<ThreadId>,
    /// How many of them must have ended: all, one, or some.
    pub needed: usize,
    /// How long at most.
    pub timeout: Duration,
    /// Whether the first failure ends the waiting.
    pub fail_fast: bool,
    /// Whether a failure cancels those still at work.
    pub cancels_siblings: bool,
    /// Results of threads that ended longer ago than this are not repeated.
    pub result_ttl: Duration,
}

impl Threads {
    /// Waits for threads, wherever they run.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn wait(&self, waiting: &Waiting, ending: &CancellationToken) -> Result<Value> {
        self.inner.wait(waiting, ending).await
    }

    /// Asks a thread to end, wherever it runs.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub fn cancel(&self, id: &ThreadId, reason: &str) -> Result<()> {
        let row = self.inner.row(id)?;
        if row.status.is_terminal() {
            return Err(Error::new(Code::ThreadEnded, format!("{id} has ended: {}", row.status))
                .detail("thread_id", id.as_str()));
        }
        self.inner.request_cancel(id, reason);
        Ok(())
    }
}

impl Inner {
    pub(super) fn row(&self, id: &ThreadId) -> Result<ThreadRow> {
        self.store.thread(id)?.ok_or_else(|| Error::from(crate::store::StoreError::NoThread(id.clone())))
    }

    /// One call of the orchestrator by a thread.
    pub(super) async fn coordinate(
        self: &Arc<Self>,
        asker: &Arc<Spec>,
        params: &Map<String, Value>,
        ending: &CancellationToken,
    ) -> Result<Value> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let operation = text("operation")
            .or_else(|| text("action"))
            .ok_or_else(|| wrong("`operation` is missing".to_owned()))?;
        let one = || -> Result<ThreadRow> {
            let id = text("thread_id").ok_or_else(|| wrong("`thread_id` is missing".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| wrong(error.to_string()))?;
            self.visible(asker, &id)
        };
        match operation {
            "wait_threads" => {
                let waiting = self.waiting(asker, params)?;
                self.wait(&waiting, ending).await
            }
            "aggregate_results" => {
                let ids = self.ids(asker, params)?;
                let mut results = Map::new();
                for id in ids {
                    results.insert(id.to_string(), self.shown(&self.final_row(&id)?));
                }
                let is_all = results.values().all(|result| result["status"] == json!("completed"));
                Ok(json!({"success": is_all, "results": results}))
            }
            "cancel_thread" => {
                let row = self.below(asker, one()?)?;
                if row.status.is_terminal() {
                    return Ok(
                        json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}),
                    );
                }
                self.request_cancel(&row.id, text("reason").unwrap_or("cancelled by its parent"));
                Ok(json!({"success": true, "cancelled": row.id}))
            }
            "kill_thread" => {
                let row = self.below(asker, one()?)?;
                self.kill(&row).await
            }
            "get_status" => {
                let row = one()?;
                let mut answer = self.shown(&row);
                if let Value::Object(map) = &mut answer {
                    map.insert("success".to_owned(), json!(true));
                }
                Ok(answer)
            }
            "list_active" => {
                let tree = self.store.subtree(&self.root_of(&asker.own.thread_id)?)?;
                let active: Vec<Value> = tree
                    .iter()
                    .filter(|row| !row.status.is_terminal() && row.id != asker.own.thread_id)
                    .map(|row| json!(row.id))
                    .collect();
                Ok(json!({"success": true, "active_threads": active, "count": active.len()}))
            }
            "get_chain" => {
                let chain = self.chain(&one()?)?;
                let shown: Vec<Value> = chain
                    .iter()
                    .map(|row| json!({"thread_id": row.id, "status": row.status, "directive": row.directive}))
                    .collect();
                Ok(json!({"success": true, "chain_length": shown.len(), "chain": shown}))
            }
            "chain_search" => self.chain_search(&one()?, params),
            "read_transcript" => {
                let row = one()?;
                let lines = params.get("tail_lines").and_then(Value::as_u64);
                let content = self.markdown(&row, lines)?;
                Ok(json!({"success": true, "thread_id": row.id, "content": content}))
            }
            "resume_thread" | "handoff_thread" => {
                let row = self.below(asker, one()?)?;
                let limits = crate::action::object(params.get("limit_overrides"))
                    .map_err(|error| wrong(format!("limit_overrides: {error}")))?;
                let changes = Changes {
                    limits,
                    message: text("message").map(str::to_owned),
                    by: format!("its parent {}", asker.own.thread_id),
                    within: Some(self.limits_of(&asker.own.thread_id)?),
                };
                self.go_on(&row, changes, operation == "handoff_thread").await
            }
            other => Err(wrong(format!(
                "unknown operation `{}`; there are wait_threads, cancel_thread, kill_thread, get_status, list_active, aggregate_results, get_chain, chain_search, read_transcript, resume_thread, handoff_thread",
                rye_item::text::one_line(other)
            ))),
        }
    }

    /// A thread of the asker's own tree.
    fn visible(&self, asker: &Spec, id: &ThreadId) -> Result<ThreadRow> {
        let row = self.row(id)?;
        if self.root_of(id)? == self.root_of(&asker.own.thread_id)? {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{id} is not of this thread's tree"))
            .detail("thread_id", id.as_str()))
    }

    /// A thread below the asker.
    fn below(&self, asker: &Spec, row: ThreadRow) -> Result<ThreadRow> {
        let line = self.store.ancestors(&row.id)?;
        if line.iter().any(|ancestor| ancestor.id == asker.own.thread_id) {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{} is not below this thread", row.id))
            .detail("thread_id", row.id.as_str()))
    }

    fn root_of(&self, id: &ThreadId) -> Result<ThreadId> {
        let line = self.store.ancestors(id)?;
        Ok(line.into_iter().find(|row| row.parent.is_none()).map_or_else(|| id.clone(), |row| row.id))
    }

    fn ids(&self, asker: &Spec, params: &Map<String, Value>) -> Result<Vec<ThreadId>> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let given = match params.get("thread_ids") {
            Some(Value::Array(list)) => list.clone(),
            // Models and directives also write a list as text.
            Some(Value::String(text)) => {
                serde_json::from_str(text).map_err(|_| wrong("`thread_ids` is no list".to_owned()))?
            }
            _ => return Err(wrong("`thread_ids` is missing".to_owned())),
        };
        let mut ids = Vec::new();
        for id in &given {
            let id = id.as_str().ok_or_else(|| wrong("a thread id is text".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| wrong(error.to_string()))?;
            match self.visible(asker, &id) {
                Ok(_) => {}
                Err(error) if error.code == Code::NoThread => {}
                Err(error) => return Err(error),
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let most = asker.shared.config.resilience.coordination.max_wait_thread_ids;
        if u64::try_from(ids.len()).unwrap_or(u64::MAX) > most {
            return Err(wrong(format!("{} threads at once; max_wait_thread_ids is {most}", ids.len())));
        }
        Ok(ids)
    }

    fn waiting(&self, asker: &Spec, params: &Map<String, Value>) -> Result<Waiting> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let ids = self.ids(asker, params)?;
        let flag = |key: &str, default: bool| params.get(key).and_then(Value::as_bool).unwrap_or(default);
        let coordination = &asker.shared.config.resilience.coordination;
        let needed = match params.get("mode").and_then(Value::as_str).unwrap_or("all") {
            "all" if flag("require_all", true) => ids.len(),
            "any" | "all" => ids.len().min(1),
            "quorum" => {
                let quorum = params.get("quorum").and_then(Value::as_u64).unwrap_or(0);
                usize::try_from(quorum)
                    .ok()
                    .filter(|quorum| (1..=ids.len()).contains(quorum))
                    .ok_or_else(|| wrong(format!("`quorum` is a number from 1 to {}", ids.len())))?
            }
            other => {
                let other = rye_item::text::one_line(other);
                return Err(wrong(format!("unknown mode `{other}`; there are all, any, quorum")));
            }
        };
        let timeout = match params.get("timeout") {
            None | Some(Value::Null) => default_wait(&asker.shared.config),
            Some(given) => {
                let seconds = given.as_f64().or_else(|| given.as_str()?.parse().ok());
                let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
                Duration::try_from_secs_f64(seconds.ok_or_else(|| wrong("`timeout` is a number".to_owned()))?)
                    .map_err(|error| wrong(error.to_string()))?
            }
        };
        Ok(Waiting {
            ids,
            needed,
            timeout: timeout.min(Duration::from_millis(asker.shared.config.coordination.max_timeout_ms)),
            fail_fast: flag("fail_fast", coordination.fail_fast),
            cancels_siblings: flag("cancel_siblings_on_failure", coordination.cancel_siblings_on_failure),
            result_ttl: Duration::from_millis(coordination.completion_event_ttl_ms),
        })
    }

    /// Waits with one deadline for all; answers with what each came to.
    pub(super) async fn wait(
        self: &Arc<Self>,
        waiting: &Waiting,
        ending: &CancellationToken,
    ) -> Result<Value> {
        let deadline = Instant::now() + waiting.timeout;
        let mut changes = self.store.subscribe();
        let mut results: BTreeMap<ThreadId, Value> = BTreeMap::new();
        let mut has_failed = false;
        let mut is_late = false;
        loop {
            for id in &waiting.ids {
                if results.contains_key(id) {
                    continue;
                }
                let row = match self.final_row(id) {
                    Ok(row) => row,
                    Err(error) if error.code == Code::NoThread => {
                        results.insert(id.clone(), json!({"status": "not_found", "thread_id": id}));
                        has_failed = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if row.status.is_terminal() || row.status == Status::Suspended {
                    has_failed |= row.status != Status::Completed;
                    results.insert(id.clone(), self.shown_within(&row, waiting.result_ttl));
                }
            }
            if has_failed && waiting.cancels_siblings {
                for id in waiting.ids.iter().filter(|id| !results.contains_key(*id)) {
                    self.request_cancel(id, "a sibling failed");
                }
            }
            let ended = results.len();
            if ended >= waiting.needed || (has_failed && waiting.fail_fast) || is_late {
                break;
            }
            tokio::select! {
                () = ending.cancelled() => break,
                () = tokio::time::sleep_until(deadline) => is_late = true,
                _ = changes.recv() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        let mut shown = Map::new();
        for id in &waiting.ids {
            let pending = if is_late { "timeout" } else { "running" };
            let result = results.remove(id).unwrap_or_else(|| json!({"status": pending, "thread_id": id}));
            shown.insert(id.to_string(), result);
        }
        let completed = shown.values().filter(|result| result["status"] == json!("completed")).count();
        Ok(json!({"success": completed >= waiting.needed, "results": shown}))
    }

    /// The row of a thread, or of the one it was handed over to, and so on.
    pub(super) fn final_row(&self, id: &ThreadId) -> Result<ThreadRow> {
        let mut row = self.row(id)?;
        // A chain cannot be longer than there are threads; this many is far beyond any.
        for _ in 0..1000 {
            match &row.continuation_thread_id {
                Some(next) if row.status == Status::Continued => row = self.row(next)?,
                _ => break,
            }
        }
        Ok(row)
    }

    fn shown_within(&self, row: &ThreadRow, ttl: Duration) -> Value {
        let now = self.setup.clock.now_ms();
        // Moments are written the same way everywhere: they compare as text.
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let oldest = transcript::iso(now.saturating_sub(ttl_ms));
        let is_old = row.completed_at.as_ref().is_some_and(|at| *at < oldest);
        if !is_old {
            return self.shown(row);
        }
        json!({
            "thread_id": row.id,
            "status": row.status,
            "success": row.status == Status::Completed,
            "expired": true,
            "note": "it ended longer ago than completion_event_ttl_seconds; use get_status or read_transcript",
        })
    }

    /// A thread as others see it: status, result, outputs, cost.
    pub(super) fn shown(&self, row: &ThreadRow) -> Value {
        let mut map = match &row.result {
            Some(Value::Object(result)) => result.clone(),
            _ => Map::new(),
        };
        map.insert("success".to_owned(), json!(row.status == Status::Completed));
        map.insert("thread_id".to_owned(), json!(row.id));
        map.insert("directive".to_owned(), json!(row.directive));
        map.insert("status".to_owned(), json!(row.status));
        map.insert("cost".to_owned(), row.cost.to_value());
        if let Some(reason) = row.reason {
            map.insert("suspend_reason".to_owned(), json!(reason));
        }
        if let Some(error) = &row.error {
            map.insert("error".to_owned(), json!(error));
        }
        Value::Object(map)
    }

    /// A thread and those it was continued by, oldest first.
    fn chain(&self, row: &ThreadRow) -> Result<Vec<ThreadRow>> {
        let root = row.chain_root_id.clone().unwrap_or_else(|| row.id.clone());
        let mut chain = vec![self.row(&root)?];
        while let Some(next) = chain.last().and_then(|row| row.continuation_thread_id.clone()) {
            if chain.iter().any(|row| row.id == next) {
                break;
            }
            chain.push(self.row(&next)?);
        }
        Ok(chain)
    }

    fn chain_search(&self, row: &ThreadRow, params: &Map<String, Value>) -> Result<Value> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let query = params.get("query").and_then(Value::as_str).unwrap_or_default();
        if query.is_empty() {
            return Err(wrong("`query` is missing".to_owned()));
        }
        let is_regex = params.get("search_type").and_then(Value::as_str) == Some("regex");
        let pattern = if is_regex { query.to_owned() } else { regex::escape(query) };
        let pattern = regex::RegexBuilder::new(&pattern)
            .case_insensitive(!is_regex)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| wrong(format!("`query` is no regular expression: {error}")))?;
        let most = params.get("max_results").and_then(Value::as_u64).unwrap_or(50).min(500);
        let chain = self.chain(row)?;
        let mut hits = Vec::new();
        for row in &chain {
            for event in
                self.events(&row.id)?.iter().filter(|event| SEARCHED.contains(&event.event_type.as_str()))
            {
                let text = event.payload.to_string();
                let matches: Vec<&str> =
                    pattern.find_iter(&text).take(5).map(|found| found.as_str()).collect();
                if !matches.is_empty() {
                    let snippet: String = text.chars().take(500).collect();
                    hits.push(json!({
                        "thread_id": row.id, "event_type": event.event_type, "line_no": event.line,
                        "snippet": snippet, "matches": matches,
                    }));
                }
            }
        }
        let is_truncated = u64::try_from(hits.len()).unwrap_or(u64::MAX) > most;
        hits.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(json!({
            "success": true,
            "chain_length": chain.len(),
            "chain_threads": chain.iter().map(|row| &row.id).collect::<Vec<_>>(),
            "truncated": is_truncated,
            "results": hits,
        }))
    }

    /// All events of a thread's transcript.
    fn events(&self, id: &ThreadId) -> Result<Vec<transcript::Event>> {
        let path = transcript::path(&self.setup.folder, id);
        Ok(transcript::read(&path, transcript::Position::default(), MOST_EVENTS)?.events)
    }

    fn markdown(&self, row: &ThreadRow, tail: Option<u64>) -> Result<String> {
        let about = transcript::About { directive: &row.directive, status: row.status, cost: row.cost };
        let page = transcript::render_markdown(&about, &self.events(&row.id)?);
        let Some(tail) = tail.and_then(|tail| usize::try_from(tail).ok()) else { return Ok(page) };
        let lines: Vec<&str> = page.lines().collect();
        Ok(lines[lines.len().saturating_sub(tail)..].join("\n"))
    }
}

/// How long to wait when the call does not say.
pub(super) fn default_wait(config: &Config) -> Duration {
    Duration::from_millis(config.wait_timeout_ms())
}
