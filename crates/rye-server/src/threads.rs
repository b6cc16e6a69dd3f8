//! Directives that run in threads of their own, for clients that ask for `fork`.
//!
//! Threads run on workers of their own, so that the one that talks never waits for them; each project has its threads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rye_agent::driver::{Clock, Signal};
use rye_agent::prepare::{Order, prepare};
use rye_agent::status::{Status, SuspendReason};
use rye_agent::store::DATABASE;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Background, Finished, Setup, Threads, Watching, async_answer, sync_answer};
use rye_background::{Client, Place};
use rye_engine::{Code, Error, Result};
use rye_item::ItemRef;
use rye_space::Roots;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::Execute;
use crate::consent::{Answered, Consents, Refusal, of_threads};
use crate::projects::Projects;
use crate::verbs::Outcome;

/// The threads of this process, by project.
#[derive(Default)]
pub(crate) struct Runs {
    workers: OnceLock<tokio::runtime::Runtime>,
    spaces: Mutex<HashMap<Option<PathBuf>, Arc<Space>>>,
    /// Under the names clients used a moment ago.
    recent: Mutex<HashMap<Option<String>, Arc<Recent>>>,
}

/// A project's threads, and when they were found; whoever finds out keeps others of the same name waiting.
type Recent = tokio::sync::Mutex<Option<(Instant, Arc<Space>)>>;

/// How many names are remembered.
const MOST_RECENT: usize = 64;

/// How long a project's name is taken to mean what it meant.
const FRESH_FOR: Duration = Duration::from_millis(100);

struct Space {
    threads: Threads,
    _watching: Watching,
}

/// Milliseconds since 1970: where the engine's clock stood once, and what has passed since.
struct Since {
    began: Instant,
    at_ms: u64,
}

impl Clock for Since {
    fn now_ms(&self) -> u64 {
        self.at_ms.saturating_add(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Runs {
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
    async fn space(
        self: &Arc<Self>,
        projects: Arc<Projects>,
        named: Option<String>,
        order: Order,
    ) -> Result<Arc<Space>> {
        let recent = self.recent_of(named.clone());
        let mut recent = recent.lock().await;
        if let Some((found, space)) = &*recent
            && found.elapsed() < FRESH_FOR
        {
            return Ok(Arc::clone(space));
        }
        let runs = Arc::clone(self);
        let opening = move || runs.opened(&projects, named.as_deref(), &order);
        let space = tokio::task::spawn_blocking(opening).await.map_err(|error| broken(&error))??;
        *recent = Some((Instant::now(), Arc::clone(&space)));
        Ok(space)
    }

    fn recent_of(&self, named: Option<String>) -> Arc<Recent> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody asks for now may be forgotten.
        if recent.len() >= MOST_RECENT {
            recent.retain(|_, kept| Arc::strong_count(kept) > 1);
        }
        Arc::clone(recent.entry(named).or_default())
    }

    fn opened(&self, projects: &Arc<Projects>, named: Option<&str>, order: &Order) -> Result<Arc<Space>> {
        let engine = projects.engine(named)?.engine;
        // Where there has never been a thread, nothing is made for one that could not start.
        if !engine.workspace.roots.threads().join(DATABASE).exists() {
            prepare(&engine, &engine.host.environment, order)?;
        }
        let key = engine.workspace.roots.project.clone();
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = spaces.get(&key) {
            return Ok(Arc::clone(space));
        }
        let background = client(projects.setup(), &engine.workspace.roots);
        let projects = Arc::clone(projects);
        let named = named.map(str::to_owned);
        let setup = Setup {
            engine: Arc::new(move || Ok(projects.engine(named.as_deref())?.engine)),
            environment: engine.host.environment.clone(),
            listener: None,
            clock: Arc::new(Since {
                began: Instant::now(),
                at_ms: engine.unix_seconds().saturating_mul(1000),
            }),
            folder: engine.workspace.roots.threads(),
            background: background.map(|client| Arc::new(client) as Arc<dyn Background>),
        };
        let threads = Threads::open(setup)?;
        let watching = {
            let _inside = self.workers()?.enter();
            threads.watch()
        };
        let space = Arc::new(Space { threads, _watching: watching });
        spaces.insert(key, Arc::clone(&space));
        Ok(space)
    }

    /// Runs a directive in a thread; waits for it unless it was asked not to. What it or its children ask people is a
    /// question to the client's user; agreed to, the same thread goes on.
    pub(crate) async fn fork(
        self: Arc<Self>,
        projects: Arc<Projects>,
        item: ItemRef,
        given: Execute,
        asking: Asking,
        ending: CancellationToken,
    ) -> Outcome {
        let workers = self.workers()?.handle().clone();
        let task = workers.spawn(async move {
            let mut order = Order::new(item.clone(), given.parameters.clone());
            order.model = Some(given.model.clone()).filter(|model| !model.is_empty());
            order.limits = given.limit_overrides.clone();
            let space = self.space(Arc::clone(&projects), given.project_path.clone(), order.clone()).await?;
            let threads = &space.threads;
            if let Some(Answered { root, questions, is_yes }) = &asking.answered {
                let row = threads.store().thread(root).map_err(Error::from)?;
                if row.is_none_or(|row| row.directive != item.id.as_str()) {
                    let message = format!("{root} is no thread of this directive");
                    return Err(Error::new(Code::NoThread, message).of(&item).into());
                }
                threads.answer(root, questions, *is_yes, BY)?;
                let never = CancellationToken::new();
                let done = threads.finish(root, &never);
                return finished(threads, &item, root, &asking, done, &ending).await;
            }
            if !order.limits.is_empty() {
                may_raise(threads, &projects, &given, &order, &asking.consents).await?;
            }
            if given.dry_run {
                let prepared = threads.prepare(order).await?;
                return Ok(json!({
                    "status": "validation_passed", "type": "directive", "item_id": item.id.to_string(),
                    "data": {"model": prepared.chosen.model, "provider": prepared.chosen.provider_id,
                             "limits": prepared.spec.own.limits.to_value(), "notices": prepared.notices},
                }));
            }
            if given.is_async {
                return Ok(json!({
                    "status": "success", "type": "directive", "item_id": item.id.to_string(),
                    "data": left(&space.threads, order).await?,
                }));
            }
            let started = threads.start(order, Signal::default()).await?;
            let root = started.thread_id.clone();
            let lost = Error::new(Code::ThreadFailed, "the thread was lost").of(&item);
            let done = async { started.finished().await.map(|finished| (*finished).clone()).ok_or(lost) };
            finished(threads, &item, &root, &asking, done, &ending).await
        });
        task.await.map_err(|error| broken(&error))?
    }
}

/// Over MCP limits are only lowered, unless the client's user agreed to raise them.
async fn may_raise(
    threads: &Threads,
    projects: &Arc<Projects>,
    given: &Execute,
    order: &Order,
    consents: &Consents,
) -> std::result::Result<(), Refusal> {
    let usual = threads.prepare(Order { limits: serde_json::Map::new(), ..order.clone() }).await?;
    let wanted = threads.prepare(order.clone()).await?;
    let raised = wanted.spec.own.limits.raised_over(&usual.spec.own.limits);
    if raised.is_empty() {
        return Ok(());
    }
    let (projects, named) = (Arc::clone(projects), given.project_path.clone());
    let opening = move || projects.engine(named.as_deref());
    let engine = tokio::task::spawn_blocking(opening).await.map_err(|error| broken(&error))??.engine;
    consents.to_raise(&engine, &order.directive, &raised)
}

/// Who answers over MCP.
const BY: &str = "the user of an MCP client";

/// How often it is looked whether a thread below asks something.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What a call brings of answers, and whether its user can be asked.
pub(crate) struct Asking {
    /// What its user said.
    pub(crate) answered: Option<Answered>,
    /// What its user agreed to.
    pub(crate) consents: Consents,
    /// Whether there is somebody to ask.
    pub(crate) can_ask: bool,
}

/// Waits until a thread has ended or stopped, or somebody below it asks and can be answered.
async fn finished(
    threads: &Threads,
    item: &ItemRef,
    root: &ThreadId,
    asking: &Asking,
    done: impl Future<Output = Result<Finished>>,
    ending: &CancellationToken,
) -> Outcome {
    tokio::pin!(done);
    let finished = loop {
        tokio::select! {
            finished = &mut done => break finished?,
            () = ending.cancelled() => {
                threads.end(root, "the client cancelled the call").await?;
                break done.await?;
            }
            () = tokio::time::sleep(LOOK_EVERY), if asking.can_ask => {
                let asked = if threads.is_asking() { threads.asked_below(root)? } else { Vec::new() };
                if !asked.is_empty() {
                    return Err(Refusal::Ask(Box::new(of_threads(root, &asked))));
                }
            }
        }
    };
    let asked = if finished.outcome.asks() { threads.asked_below(root)? } else { Vec::new() };
    if !asked.is_empty() && asking.can_ask {
        return Err(Refusal::Ask(Box::new(of_threads(root, &asked))));
    }
    Ok(answered(item, &finished)?)
}

impl Drop for Runs {
    /// Threads stay as they stand: what is recorded can be resumed.
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

/// Starts a thread that outlives this server; where nobody else runs it, it runs here as long as the server does.
async fn left(threads: &Threads, order: Order) -> Result<Value> {
    match threads.start_in_background(order.clone()).await {
        Ok(left) => {
            let mut answer =
                async_answer(&left.thread_id, &left.directive, *left.with.as_ref().unwrap_or(&0));
            if let Err(why) = left.with {
                answer["status"] = json!("created");
                answer["note"] = json!(why);
            }
            Ok(answer)
        }
        Err(error) if error.code == Code::NoBackground => {
            let started = threads.start(order, Signal::default()).await?;
            Ok(async_answer(&started.thread_id, &started.directive, std::process::id()))
        }
        Err(error) => Err(error),
    }
}

/// The way to the process that runs threads in the background.
fn client(setup: &crate::Setup, roots: &Roots) -> Option<Client> {
    let (program, words) = setup.background.clone()?;
    let place = Place {
        threads: roots.threads(),
        project: roots.project.clone(),
        user: roots.user.clone(),
        cache: roots.cache.clone(),
        signing_keys: roots.signing_keys.clone(),
        bundle_paths: roots.bundle_paths.clone(),
        home: setup.host.home.clone(),
        folder: roots.project.clone().unwrap_or_else(|| setup.host.folder.clone()),
        wants_dev_mode: false,
    };
    Some(Client::new(place, setup.host.environment.clone(), program, words))
}

/// Has threads of the server's own project that nobody runs taken up again, beside whatever the server does.
pub(crate) fn revive(setup: &crate::Setup) {
    let Some(client) = client(setup, &setup.roots).filter(Client::has_some) else { return };
    // Without a thread, or a process, whoever looks at them next has them taken up.
    let _ = std::thread::Builder::new().name("revive".to_owned()).spawn(move || {
        let _ = client.reach().and_then(|reached| reached.take(&[]));
    });
}

fn broken(error: &tokio::task::JoinError) -> Error {
    Error::new(Code::Io, format!("the call broke off: {error}"))
}

/// The answer of somebody who waited: 003's, in the envelope of every verb.
fn answered(item: &ItemRef, finished: &Finished) -> Result<Value> {
    let data = Value::Object(sync_answer(finished));
    let outcome = &finished.outcome;
    if outcome.status == Status::Completed {
        return Ok(json!({
            "status": "success", "type": "directive", "item_id": item.id.to_string(), "data": data,
        }));
    }
    let id = &finished.thread_id;
    let message = outcome.error.clone().unwrap_or_else(|| format!("{id} is {}", outcome.status));
    let code = match outcome.status {
        Status::Suspended => Code::ThreadSuspended,
        Status::Cancelled | Status::Killed => Code::ThreadCancelled,
        _ => Code::ThreadFailed,
    };
    let error = Error::new(code, message).of(item).detail("thread_id", id.as_str()).detail("data", data);
    Err(match outcome.status {
        Status::Suspended if outcome.reason == Some(SuspendReason::Approval) => error
            .hint(format!("allow it: rye thread approve {id}"))
            .hint(format!("refuse it: rye thread deny {id}")),
        Status::Suspended => error.hint(format!("let it go on: rye thread resume {id}")),
        _ => error.hint(format!("see what it did: rye thread show {id}")),
    })
}
