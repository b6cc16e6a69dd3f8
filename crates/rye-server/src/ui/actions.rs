//! What a person does to threads in the page: resume, cancel, fork, answer. Each is what the command of that name does.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use rye_agent::limits::LIMIT_NAMES;
use rye_agent::machine::ApprovalScope;
use rye_agent::store::{Approval, ApprovalDecision, ThreadStoreError};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{CancelOutcome, END_THREAD, ForkOptions, ResumeOptions, denial_reason};
use rye_agent::views::{ThreadIndex, question_digest, question_value};
use rye_engine::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{Parameters, read_json, respond, success};
use super::threads::parse_id;
use super::{UiInner, UiState};

/// Characters of a message or reason.
const MAX_MESSAGE_CHARS: usize = 20_000;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message)
}

fn check_limits(limits: Option<Map<String, Value>>) -> Result<Map<String, Value>> {
    let limits = limits.unwrap_or_default();
    match limits.keys().find(|name| !LIMIT_NAMES.contains(&name.as_str())) {
        None => Ok(limits),
        Some(name) => {
            let message = format!("unknown limit `{}`", rye_item::text::one_line(name));
            Err(invalid(message).hint(format!("limits are {}", LIMIT_NAMES.join(", "))))
        }
    }
}

fn check_message(message: Option<String>) -> Result<Option<String>> {
    let message = message.filter(|message| !message.trim().is_empty());
    match message.as_ref().is_some_and(|message| message.chars().count() > MAX_MESSAGE_CHARS) {
        true => Err(invalid(format!("a message has at most {MAX_MESSAGE_CHARS} characters"))),
        false => Ok(message),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeRequest {
    limits: Option<Map<String, Value>>,
    message: Option<String>,
}

/// `POST /api/v1/threads/{thread}/resume`
pub(super) async fn resume(
    State(state): State<UiState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    respond(resume_thread(&state, &id, request).await)
}

async fn resume_thread(state: &UiState, id: &str, request: Request) -> Result<Response> {
    let body: ResumeRequest = read_json(request).await?;
    let (limits, message) = (check_limits(body.limits)?, check_message(body.message)?);
    let options = ResumeOptions { limits, message, by: state.owner.clone(), ..ResumeOptions::default() };
    let id = parse_id(id)?;
    resume_with(state, id, options).await
}

async fn resume_with(state: &UiState, id: ThreadId, options: ResumeOptions) -> Result<Response> {
    let inner = state.clone();
    let found = id.clone();
    let row = state.run_quick(move || inner.find_thread(&found).map(|(_, row)| row)).await?;
    let pid = state
        .with_threads(move |threads| async move { threads.resume_detached(&id, &options).await })
        .await?;
    let data = json!({"thread_id": row.id, "directive": row.directive, "pid": pid});
    Ok(success(Some("thread"), Some(row.id.as_str()), data))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelThreadRequest {
    reason: Option<String>,
}

/// `POST /api/v1/threads/{thread}/cancel`
pub(super) async fn cancel(
    State(state): State<UiState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let work = async || {
        let body: CancelThreadRequest = read_json(request).await?;
        let reason = check_message(body.reason)?;
        let reason = match reason {
            Some(reason) => format!("{}: {}", state.owner, rye_item::text::one_line(&reason)),
            None => format!("cancelled by {}", state.owner),
        };
        cancel_with(&state, parse_id(&id)?, reason).await
    };
    respond(work().await)
}

async fn cancel_with(state: &UiState, id: ThreadId, reason: String) -> Result<Response> {
    let thread = id.clone();
    let outcome =
        state.with_threads(move |threads| async move { threads.cancel(&thread, &reason).await }).await?;
    let data = json!({"thread_id": id, "ended": outcome == CancelOutcome::Cancelled});
    Ok(success(Some("thread"), Some(id.as_str()), data))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkRequest {
    turn: Option<u64>,
    message: Option<String>,
    model: Option<String>,
    provider: Option<String>,
    limits: Option<Map<String, Value>>,
}

/// `POST /api/v1/threads/{thread}/fork`
pub(super) async fn fork(State(state): State<UiState>, Path(id): Path<String>, request: Request) -> Response {
    let work = async || {
        let body: ForkRequest = read_json(request).await?;
        let options = ForkOptions {
            turn: body.turn,
            message: check_message(body.message)?,
            model: body.model.filter(|model| !model.is_empty()),
            provider: body.provider.filter(|provider| !provider.is_empty()),
            limits: check_limits(body.limits)?,
        };
        let id = parse_id(&id)?;
        let inner = state.clone();
        let found = id.clone();
        let row = state.run_quick(move || inner.find_thread(&found).map(|(_, row)| row)).await?;
        let data = state
            .with_threads(move |threads| async move {
                let request = threads.fork_request(&row, options).await?;
                threads.start_detached(request, None).await
            })
            .await?;
        Ok(success(Some("thread"), Some(id.as_str()), data))
    };
    respond(work().await)
}

/// `GET /api/v1/approvals`
pub(super) async fn approvals(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    let done = state.run_quick(move || {
        let parameters = Parameters::parse(query.as_deref(), &["thread"])?;
        let below = parameters.text("thread").map(parse_id).transpose()?;
        let open = match ThreadIndex::open(&*inner)? {
            Some(index) => index.store.open_approvals(below.as_ref())?,
            None => rye_agent::store::OpenApprovals::default(),
        };
        let values: Vec<Value> = open.approvals.iter().map(question_value).collect();
        Ok(success(Some("thread"), None, json!({"approvals": values, "forged": open.forged})))
    });
    respond(done.await)
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AlwaysScope {
    Item,
    Arguments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerRequest {
    digest: String,
    approved: bool,
    message: Option<String>,
    always: Option<AlwaysScope>,
    limits: Option<Map<String, Value>>,
    #[serde(default)]
    end: bool,
}

/// `POST /api/v1/approvals/{approval}`
pub(super) async fn answer(
    State(state): State<UiState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let work = async || {
        let body: AnswerRequest = read_json(request).await?;
        let inner = state.clone();
        let reason = check_message(body.message.clone())?;
        let (ends, is_approved) = (body.end && !body.approved, body.approved);
        let question = state.run_quick(move || record_answer(&inner, &id, body)).await?;
        let (resumed, note) = match ends {
            true => end_thread(&state, &question, reason).await?,
            false => resume_after_answer(&state, &question).await?,
        };
        let mut data = json!({
            "approved": is_approved, "answered": [question.id], "thread_id": question.thread, "resumed": resumed,
        });
        if let Some(note) = note {
            data["note"] = json!(note);
        }
        Ok(success(Some("thread"), Some(question.thread.as_str()), data))
    };
    respond(work().await)
}

fn changed(message: &str) -> Error {
    Error::new(Code::QuestionChanged, message)
        .hint("read the open questions again, and answer what is asked now")
}

/// Records an answer to the question that was shown, and to no other.
fn record_answer(state: &UiInner, id: &str, body: AnswerRequest) -> Result<Approval> {
    let not_found = || {
        let message = format!("no pending approval `{}`", rye_item::text::one_line(id));
        Error::new(Code::NoQuestion, message).hint("it may have been answered already")
    };
    let limits = check_limits(body.limits)?;
    let index = ThreadIndex::open(state)?.ok_or_else(not_found)?;
    let Some(record) = index.store.approval(id)? else { return Err(not_found()) };
    if record.answer.is_some() {
        return Err(changed("the question is answered already"));
    }
    let question = record.approval;
    if question_digest(&question) != body.digest {
        return Err(changed("the question is not the one that was shown"));
    }
    if body.approved || !body.end {
        index.refuse_unresumable(&question.thread)?;
    }
    let proposed = question.detail.get("proposed").and_then(Value::as_object);
    let changes = match (body.approved, limits.is_empty()) {
        (true, true) => proposed.cloned().unwrap_or_default(),
        (true, false) => limits,
        // Kept with the answer, in case the server does not come to ending the thread.
        (false, _) if body.end => Map::from_iter([(END_THREAD.to_owned(), Value::Bool(true))]),
        (false, _) => Map::new(),
    };
    let always = body.always.filter(|_| body.approved && question.kind == "tool").map(|scope| match scope {
        AlwaysScope::Item => ApprovalScope::Item,
        AlwaysScope::Arguments => ApprovalScope::Arguments,
    });
    let answer = ApprovalDecision {
        approved: body.approved,
        message: check_message(body.message)?,
        changes: Value::Object(changes),
        at_ms: state.now_ms(),
        by: state.owner.clone(),
        always,
    };
    match index.store.answer_approval(id, &answer) {
        Ok(question) => Ok(question),
        // Another answer was faster.
        Err(ThreadStoreError::NoApproval(_)) => Err(changed("the question is answered already")),
        Err(error) => Err(error.into()),
    }
}

async fn end_thread(
    state: &UiState,
    question: &Approval,
    reason: Option<String>,
) -> Result<(bool, Option<String>)> {
    let reason = denial_reason(&state.owner, reason.as_deref());
    cancel_with(state, question.thread.clone(), reason).await?;
    Ok((false, Some("the thread was ended".to_owned())))
}

/// Lets a thread that was suspended for an answer continue.
async fn resume_after_answer(state: &UiState, question: &Approval) -> Result<(bool, Option<String>)> {
    let (id, by) = (question.thread.clone(), state.owner.clone());
    let outcome =
        state.with_threads(move |threads| async move { threads.resume_answered(&id, by).await }).await;
    match outcome {
        Ok(true) => Ok((true, None)),
        Ok(false) => Ok((false, Some("it needs another answer before it resumes".to_owned()))),
        // The answer stands; why the thread does not resume is for the person to read.
        Err(error) => Ok((false, Some(error.message))),
    }
}
