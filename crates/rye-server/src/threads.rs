//! Directives that run in threads of their own, for clients that ask for `fork`.
//!
//! Threads run on workers of their own, so that the one that talks never waits for them; each project has its threads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rye_agent::driver::{Clock, Signal};
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::threads::{Finished, Setup, Threads, Watching, async_answer, sync_answer};
use rye_engine::{Code, Error, Result};
use rye_item::ItemRef;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::Execute;
use crate::projects::Projects;

/// The threads of this process, by project.
#[derive(Default)]
pub(crate) struct Runs {
    workers: OnceLock<tokio::runtime::Runtime>,
    spaces: Mutex<HashMap<Option<PathBuf>, Arc<Space>>>,
    /// Under the names clients used a moment ago.
    recent: Mutex<HashMap<Option<String>, Recent>>,
}

/// A project's threads, and when they were found.
type Recent = (Instant, Arc<Space>);

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

    /// The threads of a project, opened when the first one is wanted. It blocks: files are looked at.
    fn space(&self, projects: &Arc<Projects>, named: Option<&str>) -> Result<Arc<Space>> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let key = named.map(str::to_owned);
        if let Some((found, space)) = recent().get(&key)
            && found.elapsed() < FRESH_FOR
        {
            return Ok(Arc::clone(space));
        }
        let space = self.opened(projects, named)?;
        let mut kept = recent();
        kept.retain(|_, (found, _)| found.elapsed() < FRESH_FOR);
        kept.insert(key, (Instant::now(), Arc::clone(&space)));
        Ok(space)
    }

    fn opened(&self, projects: &Arc<Projects>, named: Option<&str>) -> Result<Arc<Space>> {
        let engine = projects.engine(named)?.engine;
        let key = engine.workspace.roots.project.clone();
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = spaces.get(&key) {
            return Ok(Arc::clone(space));
        }
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

    /// Runs a directive in a thread; waits for it unless it was asked not to.
    pub(crate) async fn fork(
        self: Arc<Self>,
        projects: Arc<Projects>,
        item: ItemRef,
        given: Execute,
        ending: CancellationToken,
    ) -> Result<Value> {
        let workers = self.workers()?.handle().clone();
        let task = workers.spawn(async move {
            let runs = Arc::clone(&self);
            let named = given.project_path.clone();
            let opening = tokio::task::spawn_blocking(move || runs.space(&projects, named.as_deref()));
            let space = opening.await.map_err(|error| broken(&error))??;
            let mut order = Order::new(item.clone(), given.parameters.clone());
            order.model = Some(given.model.clone()).filter(|model| !model.is_empty());
            order.limits = given.limit_overrides.clone();
            if given.dry_run {
                let prepared = space.threads.prepare(order).await?;
                return Ok(json!({
                    "status": "validation_passed", "type": "directive", "item_id": item.id.to_string(),
                    "data": {"model": prepared.chosen.model, "provider": prepared.chosen.provider_id,
                             "limits": prepared.spec.own.limits.to_value(), "notices": prepared.notices},
                }));
            }
            let signal = Signal::default();
            let started = space.threads.start(order, signal.clone()).await?;
            if given.is_async {
                return Ok(json!({
                    "status": "success", "type": "directive", "item_id": item.id.to_string(),
                    "data": async_answer(&started),
                }));
            }
            let done = started.finished();
            tokio::pin!(done);
            let finished = tokio::select! {
                finished = &mut done => finished,
                () = ending.cancelled() => {
                    signal.cancel("the client cancelled the call");
                    done.await
                }
            };
            finished.map_or_else(
                || Err(Error::new(Code::ThreadFailed, "the thread was lost").of(&item)),
                |finished| answered(&item, &finished),
            )
        });
        task.await.map_err(|error| broken(&error))?
    }
}

impl Drop for Runs {
    /// Threads stay as they stand: what is recorded can be resumed.
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
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
        Status::Suspended => error.hint(format!("let it go on: rye thread resume {id}")),
        _ => error.hint(format!("see what it did: rye thread show {id}")),
    })
}
