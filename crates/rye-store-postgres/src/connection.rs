//! Threads of the process that drive connections, and the connections for reading.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use rye_store::ThreadStoreError;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::Shared;
use crate::db::Db;
use crate::db_error::{DbError, DbErrorKind};
use crate::listener;
use crate::seal::Sealer;
use crate::writer::{RECONNECT_DELAY, next_delay};

/// Connections for reading.
const MAX_READERS: usize = 3;

/// Starts a thread with a runtime of its own: the store's futures need none of their callers.
pub(crate) fn spawn_io_thread<F>(
    name: &str,
    run: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>, DbError>
where
    F: Future<Output = ()>,
{
    let failed = |error: std::io::Error| DbError::from(ThreadStoreError::Failed(error.to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let work = move || tokio::task::LocalSet::new().block_on(&runtime, run());
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(failed)
}

/// What a question is answered with.
pub(crate) struct ReadContext {
    pub(crate) db: Db,
    pub(crate) seal: Sealer,
    pub(crate) shared: Arc<Shared>,
}

type ReadJob = Box<dyn FnOnce(Rc<ReaderPool>) + Send>;

/// The way to the readers' thread, which ends when this is dropped.
pub(crate) struct ReaderHandle {
    jobs: Option<UnboundedSender<ReadJob>>,
    thread: Option<JoinHandle<()>>,
}

impl ReaderHandle {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, DbError> {
        let (jobs, receiver) = unbounded_channel();
        let thread =
            spawn_io_thread("threads-readers", move || async move { run_readers(shared, receiver).await })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Answers a question.
    pub(crate) async fn read<T, Q>(&self, query: Q) -> Result<T, DbError>
    where
        T: Send + 'static,
        Q: AsyncFn(&ReadContext) -> Result<T, DbError> + Send + 'static,
    {
        let (reply, receiver) = tokio::sync::oneshot::channel();
        if let Some(jobs) = &self.jobs {
            let job = move |pool: Rc<ReaderPool>| {
                tokio::task::spawn_local(async move {
                    // A caller that has gone does not get it.
                    let _ = reply.send(pool.read(&query).await);
                });
            };
            let _ = jobs.send(Box::new(job));
        }
        let gone = || Err(ThreadStoreError::Failed("its readers have ended".to_owned()).into());
        receiver.await.unwrap_or_else(|_| gone())
    }
}

impl Drop for ReaderHandle {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Nothing is asked any more.
            let _ = thread.join();
        }
    }
}

async fn run_readers(shared: Arc<Shared>, mut jobs: UnboundedReceiver<ReadJob>) {
    let listener = tokio::task::spawn_local(listener::listen(Arc::clone(&shared)));
    let seal = Sealer::new(shared.keys.clone(), shared.store);
    let pool =
        Rc::new(ReaderPool { shared, seal, permits: Semaphore::new(MAX_READERS), idle: RefCell::default() });
    while let Some(job) = jobs.recv().await {
        job(Rc::clone(&pool));
    }
    listener.abort();
}

struct ReaderPool {
    shared: Arc<Shared>,
    seal: Sealer,
    permits: Semaphore,
    idle: RefCell<Vec<ReadContext>>,
}

impl ReaderPool {
    /// Answers a question, again if the connection broke meanwhile.
    async fn read<T>(&self, query: &impl AsyncFn(&ReadContext) -> Result<T, DbError>) -> Result<T, DbError> {
        let deadline = Instant::now() + self.shared.retry_for;
        let mut delay = RECONNECT_DELAY;
        loop {
            match self.try_read(query).await {
                Err(error) if error.kind == DbErrorKind::Connection && Instant::now() < deadline => {
                    tokio::time::sleep(delay).await;
                    delay = next_delay(delay);
                }
                result => return result,
            }
        }
    }

    async fn try_read<T>(
        &self,
        query: &impl AsyncFn(&ReadContext) -> Result<T, DbError>,
    ) -> Result<T, DbError> {
        let _permit =
            self.permits.acquire().await.map_err(|error| DbError::connection(&error.to_string()))?;
        let idle = self.idle.borrow_mut().pop();
        let context = match idle.filter(|context| !context.db.is_closed()) {
            Some(context) => context,
            None => {
                let (db, _) = Db::connect(&self.shared.address).await?;
                self.shared.ensure_same_store(&db).await?;
                self.shared.clock.measure(&db).await?;
                ReadContext { db, seal: self.seal.clone(), shared: Arc::clone(&self.shared) }
            }
        };
        context.seal.refresh();
        let result = query(&context).await;
        // One of which a statement failed may be within a transaction.
        if result.as_ref().err().is_none_or(|error| error.kind == DbErrorKind::Refused) {
            self.idle.borrow_mut().push(context);
        }
        result
    }
}
