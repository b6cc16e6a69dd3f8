//! What is shown of threads: lists, trees, one thread, its transcript, its cost.

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rye_agent::rolling::TimeZone;
use rye_agent::store::{ChargeScope, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript::{self, PageHeader, TranscriptPosition};
use rye_agent::views::{
    CostGrouping, CostReport, LiveFilter, ROW_COLUMNS, SpendingReport, ThreadIndex, ThreadsPlace, TreeRow,
    check_thread, detail_value, is_listed_status, parse_since, question_value, start_value, timeline_value,
    tree_rows, turn_values, usage_value, workers_value,
};
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use super::answers::{Parameters, json_response, respond, success};
use super::events::{event_value, parse_position, position_text};
use super::{UiInner, UiState};

/// Rows of a list unless more are asked for, and at most.
const DEFAULT_ROWS: usize = 1000;
const MAX_ROWS: usize = 10_000;
/// The largest transcript that is sent whole.
const MAX_DOWNLOAD_BYTES: u64 = 256 << 20;

/// The id in an address.
pub(super) fn parse_id(text: &str) -> Result<ThreadId> {
    ThreadId::parse(text).map_err(|_| {
        let message = format!("thread `{}` not found", rye_item::text::one_line(text));
        Error::new(Code::NoThread, message).hint("ids look like thread-0a1b2c3d4e5f")
    })
}

fn no_thread(id: &ThreadId) -> Error {
    Error::new(Code::NoThread, format!("thread `{id}` not found")).hint("it may have been pruned")
}

impl UiInner {
    /// The threads of the place and one of them.
    pub(super) fn find_thread(&self, id: &ThreadId) -> Result<(ThreadIndex, ThreadRow)> {
        let index = ThreadIndex::open(self)?.ok_or_else(|| no_thread(id))?;
        let row = index.store.verified_thread(id)?.ok_or_else(|| no_thread(id))?;
        Ok((index, row))
    }
}

/// Does something with one thread where it may block.
async fn with_thread(
    state: UiState,
    id: String,
    work: impl FnOnce(&UiInner, &ThreadIndex, &ThreadRow) -> Result<Response> + Send + 'static,
) -> Response {
    let inner = state.clone();
    let done = state.run_quick(move || {
        let (index, row) = inner.find_thread(&parse_id(&id)?)?;
        work(&inner, &index, &row)
    });
    respond(done.await)
}

/// `GET /api/v1/threads`
pub(super) async fn list(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    respond(state.run_quick(move || list_rows(&inner, query.as_deref())).await)
}

fn list_rows(state: &UiInner, query: Option<&str>) -> Result<Response> {
    let known = ["status", "directive", "q", "roots", "attention", "limit", "after"];
    let parameters = Parameters::parse(query, &known)?;
    let statuses = parameters.text("status").into_iter().flat_map(|text| text.split(','));
    let statuses: Vec<String> = statuses.filter(|word| !word.is_empty()).map(str::to_owned).collect();
    if let Some(unknown) = statuses.iter().find(|word| !is_listed_status(word)) {
        let message = format!("unknown status `{}`", rye_item::text::one_line(unknown));
        return Err(Error::new(Code::InvalidArgument, message).hint("docs/ui/openapi.yaml names each status"));
    }
    let filter = LiveFilter {
        statuses,
        directive: parameters.text("directive").map(str::to_owned),
        text: parameters.text("q").map(str::to_lowercase),
        is_root: parameters.flag("roots", false)?,
        needs_attention: parameters.flag("attention", false)?,
    };
    let limit = parameters.number("limit", DEFAULT_ROWS, MAX_ROWS)?;
    let after = parameters.text("after").map(parse_id).transpose()?;
    let guard = state.watcher.live()?;
    let columns = json!(ROW_COLUMNS);
    let Some(live) = guard.as_ref() else {
        return Ok(success(
            None,
            None,
            json!({
                "columns": columns, "rows": [], "next": null, "total": 0, "counts": {}, "open_approvals": 0,
                "position": "0",
            }),
        ));
    };
    let mut rows: Vec<&str> = Vec::new();
    let (mut total, mut next, mut last) = (0_u64, None, None);
    let mut is_behind = after.is_none();
    for row in live.rows(&filter) {
        total += 1;
        if !is_behind {
            is_behind = after.as_ref() == Some(&row.row.id);
            continue;
        }
        if rows.len() < limit {
            rows.push(&row.json);
            last = Some(&row.row.id);
        } else {
            next = last;
        }
    }
    let facts = json!({
        "next": next, "total": total, "counts": live.counts(), "open_approvals": live.questions().len(),
        "position": live.position().to_string(),
    });
    let facts = facts.to_string();
    // The rows are JSON already.
    let body = format!(
        "{{\"status\":\"success\",\"data\":{{\"columns\":{columns},\"rows\":[{}],{}}}",
        rows.join(","),
        facts.trim_start_matches('{')
    );
    Ok(json_response(StatusCode::OK, body))
}

/// `GET /api/v1/trees`
pub(super) async fn trees(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    let done = state.run_quick(move || {
        let limit = Parameters::parse(query.as_deref(), &["limit"])?.number("limit", 20, 200)?;
        let Some(index) = ThreadIndex::open(&*inner)? else {
            return Ok(success(Some("thread"), None, json!({"threads": []})));
        };
        let rows = index.load_trees(None, limit as u64)?;
        tree_answer(&index, &rows)
    });
    respond(done.await)
}

fn tree_answer(index: &ThreadIndex, rows: &[ThreadRow]) -> Result<Response> {
    let threads: Vec<Value> = tree_rows(index, rows)?.iter().map(TreeRow::to_value).collect();
    Ok(success(Some("thread"), None, json!({ "threads": threads })))
}

/// The tree that a thread is in.
fn whole_tree(index: &ThreadIndex, row: &ThreadRow) -> Result<Vec<ThreadRow>> {
    let root = index.store.ancestors(&row.id)?.pop().map_or_else(|| row.id.clone(), |root| root.id);
    Ok(index.store.subtree(&root)?)
}

/// `GET /api/v1/threads/{thread}/tree`
pub(super) async fn tree(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    with_thread(state, id, |_, index, row| tree_answer(index, &whole_tree(index, row)?)).await
}

/// `GET /api/v1/threads/{thread}/timeline`
pub(super) async fn timeline(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    let work = |_: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        Ok(success(Some("thread"), None, timeline_value(index, &whole_tree(index, row)?)?))
    };
    with_thread(state, id, work).await
}

/// `GET /api/v1/threads/{thread}`
pub(super) async fn thread(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    let work = |state: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        let children = index.store.children(&row.id)?;
        let charges = index.store.charges(&row.id, ChargeScope::Subtree)?;
        let mut detail = detail_value(index, row, &charges, &children)?;
        let ledger = index.store.ledger(&row.id)?;
        let questions = index.store.open_approvals(Some(&row.id))?.approvals;
        let guard = state.watcher.live()?;
        let live_rows = children.iter().filter_map(|child| guard.as_ref()?.row(&child.id));
        let child_rows: Vec<Value> =
            live_rows.filter_map(|row| serde_json::from_str(&row.json).ok()).collect();
        let position = guard.as_ref().map_or(0, |live| live.position());
        drop(guard);
        let is_idle = index.is_idle(row);
        let actions = [
            ("resume", is_idle),
            ("cancel", !row.status.is_terminal()),
            ("fork", row.cost.turns > 0 || is_idle || row.status.is_terminal()),
        ];
        let actions: Vec<&str> = actions.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect();
        let head = row.transcript_head;
        let additions = json!({
            "approvals": questions.iter().map(question_value).collect::<Vec<_>>(),
            "start": start_value(index, row).ok(),
            "usage": usage_value(row, &ledger),
            "record": {
                "journal_records": row.records,
                "transcript_sequence": head.map(|head| head.sequence),
                "transcript_hash": head.map(|head| head.hash.to_hex()),
                "capabilities_digest": row.capabilities,
            },
            "actions": actions,
            "child_rows": child_rows,
            "position": position.to_string(),
        });
        if let Value::Object(additions) = additions {
            detail.extend(additions);
        }
        Ok(success(Some("thread"), Some(row.id.as_str()), Value::Object(detail)))
    };
    with_thread(state, id, work).await
}

/// `GET /api/v1/threads/{thread}/verify`
pub(super) async fn verify(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    let inner = state.clone();
    let done = state.run_quick(move || {
        let id = parse_id(&id)?;
        let index = ThreadIndex::open(&*inner)?.ok_or_else(|| no_thread(&id))?;
        // One that was forged is what this is for.
        let row = index.store.thread(&id)?.ok_or_else(|| no_thread(&id))?;
        let engine = inner.shared.engines.engine(None)?.engine;
        let check = check_thread(&engine, &index, &row, inner.now_ms());
        let value = check.to_value_with_signers(&engine, &index, &row);
        Ok(success(Some("thread"), Some(row.id.as_str()), value))
    });
    respond(done.await)
}

/// `GET /api/v1/threads/{thread}/cost`
pub(super) async fn thread_cost(
    State(state): State<UiState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let work = move |_: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        let parameters = Parameters::parse(query.as_deref(), &["by"])?;
        let by = match parameters.text("by").unwrap_or("item") {
            "item" => CostGrouping::Item,
            "tool" => CostGrouping::Tool,
            "hook" => CostGrouping::Hook,
            "model" => CostGrouping::Model,
            "child" => CostGrouping::Child,
            _ => {
                return Err(Error::new(Code::InvalidArgument, "invalid `by`")
                    .hint("item, tool, hook, model or child"));
            }
        };
        let mut value = CostReport::new(index, row, by)?.to_value();
        value["turns"] = json!(turn_values(index, row));
        Ok(success(Some("thread"), Some(row.id.as_str()), value))
    };
    with_thread(state, id, work).await
}

/// `GET /api/v1/threads/{thread}/transcript`
pub(super) async fn transcript_events(
    State(state): State<UiState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let work = move |state: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        let parameters = Parameters::parse(query.as_deref(), &["position", "limit", "deltas"])?;
        let limit = parameters.number("limit", 500, 5000)?;
        let wants_deltas = parameters.flag("deltas", true)?;
        let path = index.transcript_path(&row.id);
        let from = match parameters.text("position") {
            None => {
                index.rebuild_files(&row.id, state.now_ms());
                TranscriptPosition::default()
            }
            Some("end") => transcript::read(&path, TranscriptPosition::default(), usize::MAX)?.next,
            Some(text) => parse_position(text)?,
        };
        let batch = transcript::read(&path, from, limit)?;
        let events = batch.events.iter().filter(|event| wants_deltas || !event.is_droppable);
        let data = json!({
            "thread_id": row.id,
            "events": events.map(event_value).collect::<Vec<_>>(),
            "position": position_text(batch.next),
            "is_end": batch.events.len() < limit,
            "bad_lines": batch.bad_lines,
        });
        Ok(success(Some("thread"), Some(row.id.as_str()), data))
    };
    with_thread(state, id, work).await
}

fn download(row: &ThreadRow, extension: &str, content_type: &'static str, body: Vec<u8>) -> Response {
    let name = format!("attachment; filename=\"{}.{extension}\"", row.id);
    let headers = [(header::CONTENT_TYPE, content_type.to_owned()), (header::CONTENT_DISPOSITION, name)];
    (headers, body).into_response()
}

/// `GET /api/v1/threads/{thread}/transcript.md`
pub(super) async fn transcript_markdown(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    let work = |state: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        index.rebuild_files(&row.id, state.now_ms());
        let path = index.transcript_path(&row.id);
        let events = transcript::read(&path, TranscriptPosition::default(), usize::MAX)?.events;
        let about = PageHeader { directive: &row.directive, status: row.status, cost: row.cost };
        let page = transcript::render_markdown(&about, &events);
        let page = rye_item::text::strip_controls(&page).into_owned();
        Ok(download(row, "md", "text/markdown; charset=utf-8", page.into_bytes()))
    };
    with_thread(state, id, work).await
}

/// `GET /api/v1/threads/{thread}/transcript.jsonl`
pub(super) async fn transcript_file(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    let work = |state: &UiInner, index: &ThreadIndex, row: &ThreadRow| {
        index.rebuild_files(&row.id, state.now_ms());
        let path = index.transcript_path(&row.id);
        let (bytes, _) =
            lillux::file::read_bounded(&path, MAX_DOWNLOAD_BYTES).map_err(|error| Error::read(&error))?;
        Ok(download(row, "jsonl", "application/x-ndjson", bytes))
    };
    with_thread(state, id, work).await
}

/// `GET /api/v1/workers`
pub(super) async fn workers(State(state): State<UiState>) -> Response {
    let inner = state.clone();
    let done = state.run_quick(move || {
        let data = match ThreadIndex::open(&*inner)? {
            Some(index) => workers_value(&index)?,
            None => json!({"is_shared": false, "workers": []}),
        };
        Ok(success(None, None, data))
    });
    respond(done.await)
}

/// `GET /api/v1/cost`
pub(super) async fn cost(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    let done = state.run_quick(move || {
        let parameters = Parameters::parse(query.as_deref(), &["since"])?;
        let (now_ms, zone) = (inner.now_ms(), TimeZone::system());
        let since_ms = parse_since(parameters.text("since").unwrap_or("30d"), now_ms, &zone)?;
        let engine = inner.shared.engines.engine(None)?.engine;
        let index = ThreadIndex::open(&*inner)?;
        let report = SpendingReport::new(&engine, index.as_ref(), since_ms, now_ms, &zone)?;
        let project = inner.roots().project.as_ref().map(|project| project.display().to_string());
        Ok(success(Some("thread"), None, report.to_value(project.as_deref())))
    });
    respond(done.await)
}
