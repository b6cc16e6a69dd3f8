//! One tool call: arguments read, the verb run beside the thread that talks, progress told meanwhile.

use std::sync::Arc;

use rmcp::service::{RequestContext, RoleServer};
use rye_agent::envelope::ResultEnvelope;
use rye_agent::threads::UserThreads;
use rye_engine::agent_actions::schemas::agent_tool_action;
use rye_engine::{Code, Engine, Error, agent_actions};
use rye_item::text::one_line;
use rye_item::{ItemRef, ItemType, PrimaryAction};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::arguments::{self, ExecuteParams, ThreadMode};
use crate::consent::{CallError, Consents, ElicitationMode};
use crate::consent_gate::CallResult;
use crate::notifications::ClientNotifier;
use crate::session::Session;
use crate::threads::{ConsentContext, McpThreads};
use crate::worker_pool::Lane;
use crate::{consent_gate, execution};

/// Calls the tool `name`.
pub(crate) async fn call(
    session: &Session,
    name: &str,
    params: Map<String, Value>,
    consents: &Consents,
    context: &RequestContext<RoleServer>,
    notifier: &ClientNotifier,
) -> CallResult {
    if let Some(callback) = session.shared.engines.setup().callback.clone() {
        let action = callback_action(name, params)?;
        let response = session.shared.pool.run(Lane::Long, move || callback.request(&action)).await?;
        return if ResultEnvelope::parse(&response).is_failure() {
            Err(CallError::Forwarded(response))
        } else {
            Ok(response)
        };
    }
    let consents = consents.clone();
    let Some(action) = agent_tool_action(name) else {
        return Err(Error::new(Code::InvalidArgument, format!("unknown tool `{}`", one_line(name))).into());
    };
    match action {
        PrimaryAction::Search => {
            let params: agent_actions::AgentSearch = arguments::parse(params)?;
            let project = params.project_path.clone();
            run_quick(session, project, notifier, move |engine| Ok(agent_actions::search(engine, &params)?))
                .await
        }
        PrimaryAction::Load => {
            let params: agent_actions::AgentLoad = arguments::parse(params)?;
            let project = params.project_path.clone();
            run_quick(session, project, notifier, move |engine| {
                consent_gate::load(engine, &params, &consents)
            })
            .await
        }
        PrimaryAction::Fetch => {
            let params: agent_actions::AgentFetch = arguments::parse(params)?;
            let project = params.project_path.clone();
            run_quick(session, project, notifier, move |engine| {
                consent_gate::fetch(engine, params, &consents)
            })
            .await
        }
        PrimaryAction::Sign => {
            let params: agent_actions::AgentSign = arguments::parse(params)?;
            let project = params.project_path.clone();
            run_quick(session, project, notifier, move |engine| {
                consent_gate::sign(engine, &params, &consents)
            })
            .await
        }
        PrimaryAction::Execute => {
            execute(session, arguments::parse(params)?, consents, context, notifier).await
        }
    }
}

/// What a call asks of the thread behind the callback channel.
fn callback_action(name: &str, mut params: Map<String, Value>) -> Result<Value, Error> {
    if params.remove("project_path").is_some_and(|path| !path.is_null()) {
        let message = "a tool acts where its thread does: project_path is not for it";
        return Err(Error::new(Code::InvalidArgument, message).hint("leave it out"));
    }
    params.insert("primary".to_owned(), Value::from(name.trim_start_matches("rye_")));
    Ok(Value::Object(params))
}

async fn run_quick(
    session: &Session,
    project: Option<String>,
    notifier: &ClientNotifier,
    work: impl FnOnce(&Engine) -> CallResult + Send + 'static,
) -> CallResult {
    let shared = Arc::clone(&session.shared);
    let done = session.shared.pool.run(Lane::Quick, move || {
        let handle = shared.engines.engine(project.as_deref())?;
        Ok((work(&handle.engine), handle.notices))
    });
    let (outcome, notices) = done.await?;
    notifier.warn(notices).await;
    outcome
}

async fn execute(
    session: &Session,
    params: ExecuteParams,
    consents: Consents,
    context: &RequestContext<RoleServer>,
    notifier: &ClientNotifier,
) -> CallResult {
    let item = named_item(session, &params).await?;
    execution::check_item(&params, &item)?;
    if params.thread == ThreadMode::Fork {
        return fork_thread(session, item, params, &consents, context, notifier).await;
    }
    let shared = Arc::clone(&session.shared);
    let cancel_token = CancellationToken::new();
    let (lines, progress_lines) = tokio::sync::mpsc::channel(16);
    let wants_progress = notifier.wants_progress();
    let inner = cancel_token.clone();
    let label = item.to_string();
    // Cancelled before its turn: it never begins.
    let _guard = cancel_token.clone().drop_guard();
    let lane = match item.item_type {
        ItemType::Tool => Lane::Long,
        ItemType::Directive | ItemType::Knowledge | ItemType::Config => Lane::Quick,
    };
    let work = session.shared.pool.run(lane, move || {
        if inner.is_cancelled() {
            return Err(cancelled_error());
        }
        let handle = shared.engines.engine(params.project_path.as_deref())?;
        let progress = if wants_progress {
            Some(execution::progress_sink(lines, shared.engines.redactor(&handle.engine)?))
        } else {
            None
        };
        // What is secret now stays so in the answer, whatever the call does to the files that say it.
        shared.engines.redactor(&handle.engine)?;
        let threads = Arc::new(UserThreads(Arc::new(McpThreads {
            service: Arc::clone(&shared.threads),
            engines: Arc::clone(&shared.engines),
            project_path: params.project_path.clone(),
        })));
        let outcome = execution::run(&handle.engine, item, &params, progress, &inner, &consents, threads);
        Ok((outcome, handle.notices))
    });
    tokio::pin!(work);
    let reporting = notifier.report_progress(&label, progress_lines);
    tokio::pin!(reporting);
    let (outcome, notices) = loop {
        tokio::select! {
            done = &mut work => break done?,
            () = context.ct.cancelled(), if !cancel_token.is_cancelled() => cancel_token.cancel(),
            () = session.state.disconnected.cancelled(), if !cancel_token.is_cancelled() => cancel_token.cancel(),
            () = &mut reporting => {}
        }
    };
    notifier.warn(notices).await;
    outcome
}

/// The item of a call; looked for if its type is not said.
async fn named_item(session: &Session, params: &ExecuteParams) -> Result<ItemRef, Error> {
    if let Some(item) = agent_actions::typed_item(params.item_type.as_deref(), &params.item_id)? {
        return Ok(item);
    }
    let (shared, id) = (Arc::clone(&session.shared), params.item_id.clone());
    let project_path = params.project_path.clone();
    let find = move || {
        let handle = shared.engines.engine(project_path.as_deref())?;
        agent_actions::named_item(&handle.engine, None, &id, None)
    };
    session.shared.pool.run(Lane::Quick, find).await
}

/// A directive in a thread of its own; its end comes with the client's.
async fn fork_thread(
    session: &Session,
    item: ItemRef,
    params: ExecuteParams,
    consents: &Consents,
    context: &RequestContext<RoleServer>,
    notifier: &ClientNotifier,
) -> CallResult {
    let cancel_token = CancellationToken::new();
    let label = item.to_string();
    let (_lines, progress_lines) = tokio::sync::mpsc::channel(1);
    let reporting = notifier.report_progress(&label, progress_lines);
    tokio::pin!(reporting);
    let can_ask = session.elicitation_mode(context).await? != ElicitationMode::None;
    let consent = ConsentContext { answer: consents.thread_answer(), consents: consents.clone(), can_ask };
    let service = Arc::clone(&session.shared.threads);
    let work = service.fork(Arc::clone(&session.shared.engines), item, params, consent, cancel_token.clone());
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = &mut reporting => {}
            () = context.ct.cancelled(), if !cancel_token.is_cancelled() => cancel_token.cancel(),
            () = session.state.disconnected.cancelled(), if !cancel_token.is_cancelled() => cancel_token.cancel(),
        }
    }
}

fn cancelled_error() -> Error {
    Error::new(Code::ToolCancelled, "the call was cancelled before it began")
}
