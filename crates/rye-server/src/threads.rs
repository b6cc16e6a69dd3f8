//! Directives that run in threads of their own, for clients that ask for `fork`.
//!
//! Threads run on workers of their own, so that the one that talks never waits for them; each project has its threads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lillux::CancelToken;
use rye_agent::definitions::ORCHESTRATOR;
use rye_agent::driver::{CancelSignal, MillisClock};
use rye_agent::prepare::{ThreadRequest, prepare};
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::{DATABASE, may_be_shared};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{
    BackgroundHost, FinishedThread, Threads, ThreadsSetup, UserPolicy, UserThreadHost, WatchGuard,
    finished_response, thread_directive_request,
};
use rye_agent::views::resume_command;
use rye_daemon::{DaemonClient, ThreadsLocation};
use rye_engine::{Code, Error, Result};
use rye_item::ItemRef;
use rye_space::Roots;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::ExecuteParams;
use crate::consent::{CallError, Consents, ThreadAnswer, thread_question};
use crate::consent_gate::CallResult;
use crate::project_engines::ProjectEngines;

/// The threads of this process, by project and folder.
#[derive(Default)]
pub(crate) struct ThreadService {
    workers: OnceLock<tokio::runtime::Runtime>,
    by_location: Mutex<HashMap<ThreadsKey, Arc<ProjectThreads>>>,
    /// Held while an engine or threads are opened: of many calls that want them, one opens them.
    opening: tokio::sync::Mutex<()>,
}

/// A project, and the folder of its threads: the user's, until the project has one.
type ThreadsKey = (Option<PathBuf>, PathBuf);

fn threads_key(roots: &Roots) -> ThreadsKey {
    (roots.project.clone(), roots.threads_dir())
}

struct ProjectThreads {
    threads: Threads,
    _watching: WatchGuard,
}

/// Milliseconds since 1970: where the engine's clock stood once, and what has passed since.
struct MonotonicClock {
    started: Instant,
    base_ms: u64,
}

impl MillisClock for MonotonicClock {
    fn now_ms(&self) -> u64 {
        self.base_ms.saturating_add(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn time_zone(&self) -> rye_agent::rolling::TimeZone {
        rye_agent::rolling::TimeZone::system()
    }
}

impl ThreadService {
    fn workers(&self) -> Result<&tokio::runtime::Runtime> {
        if let Some(workers) = self.workers.get() {
            return Ok(workers);
        }
        let built = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("rye-threads")
            .enable_all()
            .build()?;
        // Another call may have been faster; its workers are as good.
        Ok(self.workers.get_or_init(|| built))
    }

    /// The threads of a project, opened when the first one is wanted. Of many who want them at once, one looks.
    async fn project_threads(
        self: &Arc<Self>,
        projects: Arc<ProjectEngines>,
        project_path: Option<String>,
        request: Option<ThreadRequest>,
    ) -> Result<Arc<ProjectThreads>> {
        let opened = || self.opened_threads(&projects, project_path.as_deref());
        if let Some(space) = opened() {
            return Ok(space);
        }
        let _opening = self.opening.lock().await;
        if let Some(space) = opened() {
            return Ok(space);
        }
        let service = Arc::clone(self);
        let open = move || service.open_threads(&projects, project_path.as_deref(), request.as_ref());
        tokio::task::spawn_blocking(open).await.map_err(|error| join_error(&error))?
    }

    /// The threads of a project whose engine is open and as its files are now.
    fn opened_threads(
        &self,
        projects: &ProjectEngines,
        project_path: Option<&str>,
    ) -> Option<Arc<ProjectThreads>> {
        let engine = projects.current_engine(project_path)?;
        let by_location = self.by_location.lock().unwrap_or_else(PoisonError::into_inner);
        by_location.get(&threads_key(&engine.workspace.roots)).cloned()
    }

    /// Opens the threads of a project. Called by one at a time.
    fn open_threads(
        &self,
        projects: &Arc<ProjectEngines>,
        project_path: Option<&str>,
        request: Option<&ThreadRequest>,
    ) -> Result<Arc<ProjectThreads>> {
        let engine = projects.engine(project_path)?.engine;
        let key = threads_key(&engine.workspace.roots);
        let (project, folder) = key.clone();
        // Where there has never been a thread, nothing is made for one that could not start.
        if !folder.join(DATABASE).exists() && !may_be_shared(&engine.workspace.roots) {
            let none = || {
                Error::new(Code::NoThread, "there are no threads in this project yet")
                    .hint("start one: rye_execute of a directive with thread `fork`")
            };
            prepare(&engine, &engine.host.variables, request.ok_or_else(none)?)?;
        }
        let by_location = || self.by_location.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = by_location().get(&key) {
            return Ok(Arc::clone(space));
        }
        let background = daemon_client(projects.setup(), &engine.workspace.roots);
        let projects = Arc::clone(projects);
        let setup = ThreadsSetup {
            engine: Arc::new(move || projects.project_engine(&project)),
            environment: engine.host.variables.clone(),
            listener: None,
            clock: Arc::new(MonotonicClock {
                started: Instant::now(),
                base_ms: engine.unix_seconds().saturating_mul(1000),
            }),
            folder,
            background: background.map(|client| Arc::new(client) as Arc<dyn BackgroundHost>),
            worker: None,
        };
        let threads = Threads::open(setup)?;
        let watching = {
            let _inside = self.workers()?.enter();
            threads.watch()
        };
        let space = Arc::new(ProjectThreads { threads, _watching: watching });
        by_location().insert(key, Arc::clone(&space));
        Ok(space)
    }

    /// Does something with the threads of the server's own project, on the workers that run them.
    pub(crate) async fn with_threads<T, F>(
        self: Arc<Self>,
        projects: Arc<ProjectEngines>,
        request: Option<ThreadRequest>,
        work: impl FnOnce(Threads) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let workers = self.workers()?.handle().clone();
        let task = workers.spawn(async move {
            let space = self.project_threads(projects, None, request).await?;
            work(space.threads.clone()).await
        });
        task.await.map_err(|error| join_error(&error))?
    }

    /// Runs a directive in a thread; waits for it unless it was asked not to. What it or its children ask people is a
    /// question to the client's user; agreed to, the same thread continues.
    pub(crate) async fn fork(
        self: Arc<Self>,
        projects: Arc<ProjectEngines>,
        item: ItemRef,
        params: ExecuteParams,
        consent: ConsentContext,
        cancel_token: CancellationToken,
    ) -> CallResult {
        let workers = self.workers()?.handle().clone();
        let task = workers.spawn(async move {
            let mut request = ThreadRequest::new(item.clone(), params.parameters.clone());
            request.model = Some(params.model.clone()).filter(|model| !model.is_empty());
            request.limits = params.limit_overrides.clone();
            let space = self.project_threads(Arc::clone(&projects), params.project_path.clone(), Some(request.clone())).await?;
            let threads = &space.threads;
            if let Some(ThreadAnswer { root, questions, is_approved }) = &consent.answer {
                let row = threads.store().shared().thread(root).await.map_err(Error::from)?;
                if row.is_none_or(|row| row.directive != item.id.as_str()) {
                    let message = format!("{root} is not a thread of this directive");
                    return Err(Error::new(Code::NoThread, message).for_item(&item).into());
                }
                threads.answer_approvals(root, questions, *is_approved, APPROVER).await?;
                let never = CancellationToken::new();
                let done = threads.resume_and_wait(root, &never);
                return wait_for_finish(threads, &item, root, &consent, done, &cancel_token).await;
            }
            if !request.limits.is_empty() {
                check_raised_limits(threads, &projects, &params, &request, &consent.consents).await?;
            }
            if params.dry_run {
                let prepared = threads.prepare(request).await?;
                return Ok(json!({
                    "status": "validation_passed", "type": "directive", "item_id": item.id.to_string(),
                    "data": {"model": prepared.model_choice.model, "provider": prepared.model_choice.provider_id,
                             "limits": prepared.spec.instance.limits.to_value(), "notices": prepared.notices},
                }));
            }
            if params.is_async {
                return Ok(json!({
                    "status": "success", "type": "directive", "item_id": item.id.to_string(),
                    "data": with_follow_call(threads.start_detached(request, None).await?, params.project_path.as_deref()),
                }));
            }
            let started = threads.start(request, CancelSignal::default()).await?;
            let (root, notices) = (started.thread_id.clone(), started.notices.clone());
            let lost_error = Error::new(Code::ThreadFailed, "the thread ended unexpectedly").for_item(&item);
            let done = async { started.finished().await.map(|finished| (*finished).clone()).ok_or(lost_error) };
            let response = wait_for_finish(threads, &item, &root, &consent, done, &cancel_token).await;
            add_notices(response, notices)
        });
        task.await.map_err(|error| join_error(&error))?
    }
}

/// Puts what the user should know beside what came of the thread.
fn add_notices(response: CallResult, notices: Vec<String>) -> CallResult {
    if notices.is_empty() {
        return response;
    }
    match response {
        Ok(mut value) => {
            value["data"]["notices"] = json!(notices);
            Ok(value)
        }
        Err(CallError::Failed(error)) => Err(CallError::Failed(notices.into_iter().fold(error, Error::hint))),
        Err(error) => Err(error),
    }
}

/// Over MCP limits are only lowered, unless the client's user agreed to raise them.
async fn check_raised_limits(
    threads: &Threads,
    projects: &Arc<ProjectEngines>,
    params: &ExecuteParams,
    request: &ThreadRequest,
    consents: &Consents,
) -> std::result::Result<(), CallError> {
    let default = threads.prepare(ThreadRequest { limits: Map::new(), ..request.clone() }).await?;
    let requested = threads.prepare(request.clone()).await?;
    let raised = requested.spec.instance.limits.raised_limits(&default.spec.instance.limits);
    if raised.is_empty() {
        return Ok(());
    }
    let (projects, project_path) = (Arc::clone(projects), params.project_path.clone());
    let open = move || projects.engine(project_path.as_deref());
    let engine = tokio::task::spawn_blocking(open).await.map_err(|error| join_error(&error))??.engine;
    consents.require_raise(&engine, &request.directive, &raised)
}

/// How long the call that collects a thread waits, before it is made again.
const FOLLOW_TIMEOUT_SECONDS: u64 = 60;

/// Who answers over MCP.
const APPROVER: &str = "the user of an MCP client";

/// How often it is looked whether a thread below asks something.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What a call brings of answers, and whether its user can be asked.
pub(crate) struct ConsentContext {
    /// What its user said.
    pub(crate) answer: Option<ThreadAnswer>,
    /// What its user agreed to.
    pub(crate) consents: Consents,
    /// Whether there is a client to ask.
    pub(crate) can_ask: bool,
}

/// Waits until a thread has ended or stopped, or a descendant asks and can be answered.
async fn wait_for_finish(
    threads: &Threads,
    item: &ItemRef,
    root: &ThreadId,
    consent: &ConsentContext,
    done: impl Future<Output = Result<FinishedThread>>,
    cancel_token: &CancellationToken,
) -> CallResult {
    tokio::pin!(done);
    let finished = loop {
        tokio::select! {
            finished = &mut done => break finished?,
            () = cancel_token.cancelled() => {
                threads.cancel(root, "the client cancelled the call").await?;
                break done.await?;
            }
            () = tokio::time::sleep(POLL_INTERVAL), if consent.can_ask => {
                let approvals = if threads.has_pending_approvals() { threads.open_approvals(root).await? } else { Vec::new() };
                if !approvals.is_empty() {
                    // What cannot be asked there is named at once: the threads above it would wait without a word.
                    return Err(CallError::NeedsConsent(thread_question(root, &approvals)?));
                }
            }
        }
    };
    let approvals =
        if finished.outcome.has_questions() { threads.open_approvals(root).await? } else { Vec::new() };
    if !approvals.is_empty() && consent.can_ask {
        return Err(CallError::NeedsConsent(thread_question(root, &approvals)?));
    }
    Ok(into_response(item, &finished)?)
}

impl Drop for ThreadService {
    /// Threads stay as they stand: what is recorded can be resumed.
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

/// The answer of a thread that was not waited for, with the call that collects it and the resource that its result is.
fn with_follow_call(mut response: Value, project_path: Option<&str>) -> Value {
    let Some(id) = response["thread_id"].as_str().map(str::to_owned) else { return response };
    let mut arguments = json!({
        "item_type": "tool",
        "item_id": ORCHESTRATOR,
        "parameters": {"operation": "wait_threads", "thread_ids": [id], "timeout": FOLLOW_TIMEOUT_SECONDS},
    });
    if let Some(project_path) = project_path {
        arguments["project_path"] = json!(project_path);
    }
    response["follow"] = json!({"tool": "rye_execute", "arguments": arguments});
    response["resource"] = json!(crate::catalog::thread_uri(&id));
    response
}

/// The tools about threads, for the user behind a client.
pub(crate) struct McpThreads {
    pub(crate) service: Arc<ThreadService>,
    pub(crate) engines: Arc<ProjectEngines>,
    pub(crate) project_path: Option<String>,
}

impl McpThreads {
    /// Runs something with the threads of the project, on a thread that may block.
    fn run(
        &self,
        request: Option<ThreadRequest>,
        work: impl AsyncFnOnce(&Threads, &UserPolicy) -> Result<Value>,
    ) -> Result<Value> {
        // Over MCP limits are only lowered.
        let policy = UserPolicy { by: APPROVER.to_owned(), can_raise_limits: false };
        self.service.workers()?.block_on(async {
            let (engines, project_path) = (Arc::clone(&self.engines), self.project_path.clone());
            let space = self.service.project_threads(engines, project_path, request).await?;
            work(&space.threads, &policy).await
        })
    }
}

impl UserThreadHost for McpThreads {
    fn start(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value> {
        let request = thread_directive_request(params)?;
        let response = self.run(Some(request), async |threads, policy| {
            threads.start_for_user(params, policy, cancel).await
        })?;
        let is_started = response.get("control").is_some();
        Ok(if is_started { with_follow_call(response, self.project_path.as_deref()) } else { response })
    }

    fn operate(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value> {
        self.run(None, async |threads, policy| threads.operate_for_user(params, policy, cancel).await)
    }
}

/// The way to the process that runs threads in the background.
fn daemon_client(setup: &crate::ServerSetup, roots: &Roots) -> Option<DaemonClient> {
    let (program, arguments) = setup.daemon_command.clone()?;
    let location = ThreadsLocation {
        threads: roots.threads_dir(),
        project: roots.project.clone(),
        user: roots.user.clone(),
        cache: roots.cache.clone(),
        signing_keys: roots.signing_keys.clone(),
        bundle_paths: roots.bundle_paths.clone(),
        home: setup.host.home.clone(),
        folder: roots.project.clone().unwrap_or_else(|| setup.host.current_dir.clone()),
        wants_dev_mode: false,
    };
    Some(DaemonClient::new(location, setup.host.variables.clone(), program, arguments))
}

/// Resumes threads of the server's own project that have no owner, beside the server's work.
pub(crate) fn resume_abandoned(setup: &crate::ServerSetup) {
    let Some(client) = daemon_client(setup, &setup.roots).filter(DaemonClient::has_threads) else { return };
    // If that fails, the next command that looks at them resumes them.
    let _ = std::thread::Builder::new().name("revive".to_owned()).spawn(move || {
        let _ = client.connect().and_then(|connection| connection.take_over(&[]));
    });
}

fn join_error(error: &tokio::task::JoinError) -> Error {
    Error::new(Code::Io, format!("the call broke off: {error}"))
}

/// The response for a caller that waited, in the envelope of every verb.
fn into_response(item: &ItemRef, finished: &FinishedThread) -> Result<Value> {
    let data = Value::Object(finished_response(finished));
    let outcome = &finished.outcome;
    if outcome.status == ThreadStatus::Completed {
        return Ok(json!({
            "status": "success", "type": "directive", "item_id": item.id.to_string(), "data": data,
        }));
    }
    let id = &finished.thread_id;
    let message = outcome.error.clone().unwrap_or_else(|| format!("{id} is {}", outcome.status));
    let code = match outcome.status {
        ThreadStatus::Suspended => Code::ThreadSuspended,
        ThreadStatus::Cancelled | ThreadStatus::Killed => Code::ThreadCancelled,
        _ => Code::ThreadFailed,
    };
    let error =
        Error::new(code, message).for_item(item).detail("thread_id", id.as_str()).detail("data", data);
    Err(match outcome.status {
        ThreadStatus::Suspended if outcome.reason == Some(SuspendReason::Approval) => error
            .hint(format!("allow it: rye thread approve {id}"))
            .hint(format!("refuse it: rye thread deny {id}")),
        ThreadStatus::Suspended => {
            let reason = outcome.reason.map(SuspendReason::as_str);
            error.hint(format!("to continue: {}", resume_command(id, reason, Some(&outcome.detail))))
        }
        _ => error.hint(format!("see what it did: rye thread show {id}")),
    })
}
