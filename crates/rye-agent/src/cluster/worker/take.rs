//! Taking threads: which of those that wait fit, what was submitted, and the tree that each belongs to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;

use super::{ReservedPlace, Worker, lock};
use crate::cluster::submission::SubmissionBody;
use crate::cluster::tree::{WorkerTree, is_made_by_worker, must_run_on_other_worker, read_submission};
use crate::driver::BoxFuture;
use crate::store::{Submission, SubmittedThread, ThreadStoreError};
use crate::thread_id::ThreadId;
use crate::threads::BackgroundHost;

/// How long something that was refused is not tried again: settings may have changed then.
const REFUSAL_TTL: Duration = Duration::from_secs(30);
/// Threads that are taken at the same time.
const MAX_TAKEN_AT_ONCE: usize = 8;

/// What becomes of a thread that waits.
enum TakeOutcome {
    /// It runs here, until this is ready.
    Taken(BoxFuture<'static, ()>),
    /// Another worker has it, or it does not fit; and why.
    Left(String),
}

impl Worker {
    /// Reserves a place at a level, if there is one. Each level has its own: threads that wait for those below them do not
    /// keep them from running.
    pub(super) fn reserve_place(&self, id: &ThreadId, level: u64) -> bool {
        let mut places = lock(&self.places);
        let used = places.values().filter(|place| place.level == level).count();
        let is_free = used < self.setup.max_threads && !places.contains_key(id);
        if is_free {
            places.insert(id.clone(), ReservedPlace { level, is_taken: false });
        }
        is_free
    }

    /// Takes those that fit, several at once.
    pub(super) async fn consider_all(self: &Arc<Self>, waiting: Vec<SubmittedThread>) {
        let mut tasks = tokio::task::JoinSet::new();
        for found in waiting {
            let (id, level) = (found.row.id.clone(), found.row.depth);
            if self.is_refused(&id) || !self.reserve_place(&id, level) {
                continue;
            }
            if tasks.len() >= MAX_TAKEN_AT_ONCE {
                let _ = tasks.join_next().await;
            }
            let worker = Arc::clone(self);
            tasks.spawn(async move { worker.consider(found).await.is_ok() });
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Whether a thread was refused here so short a time ago that it is not tried again.
    pub(super) fn is_refused(&self, id: &ThreadId) -> bool {
        lock(&self.refusals).get(id).is_some_and(|at| at.elapsed() < REFUSAL_TTL)
    }

    /// Takes a thread for which a place is reserved: what is ready when it has stopped, or why it was not taken.
    pub(super) async fn consider(
        self: &Arc<Self>,
        found: SubmittedThread,
    ) -> std::result::Result<BoxFuture<'static, ()>, String> {
        let id = found.row.id.clone();
        let reason = match self.take(&found).await {
            Ok(TakeOutcome::Taken(stopped)) => {
                self.taken.fetch_add(1, Ordering::Relaxed);
                if let Some(place) = lock(&self.places).get_mut(&id) {
                    place.is_taken = true;
                }
                return Ok(stopped);
            }
            Ok(TakeOutcome::Left(reason)) => reason,
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.log(&format!("refused {id}: {error}"));
                self.remember_refusal(&id);
                let note = format!("worker {}: {}", self.setup.name, one_line(&error.to_string()));
                // For `rye thread show`. Another worker may run it all the same.
                let _ = self.store().shared().set_note(&id, &note).await;
                one_line(&error.to_string())
            }
        };
        lock(&self.places).remove(&id);
        Err(reason)
    }

    fn remember_refusal(&self, id: &ThreadId) {
        let mut refusals = lock(&self.refusals);
        refusals.retain(|_, at| at.elapsed() < REFUSAL_TTL);
        refusals.insert(id.clone(), Instant::now());
    }

    async fn take(self: &Arc<Self>, found: &SubmittedThread) -> Result<TakeOutcome> {
        if let Some(problem) = self.problem() {
            return Ok(TakeOutcome::Left(problem));
        }
        // A row that a revoked key signed says nothing.
        if let Some(what) = found.forgery.clone() {
            return Err(ThreadStoreError::Forged { thread: found.row.id.clone(), what }.into());
        }
        let body = self.body(&found.submission).await?;
        let missing = body.labels.iter().find(|label| !self.labels.contains(*label));
        if let Some(label) = missing {
            return Ok(TakeOutcome::Left(format!("it does not offer {}", one_line(label))));
        }
        let (row, signer) = (&found.row, found.signer.as_deref());
        let workers = self.keys().worker_names();
        if !is_made_by_worker(&row.id, &found.submission, row.records == 1, signer, &workers) {
            let message = format!("submission refused: {} was not created by a listed worker", row.id);
            return Err(Error::new(Code::SubmissionRefused, message)
                .hint("list the keys of all workers in threads.stores.NAME.workers"));
        }
        if body.checkout.is_some() {
            let open = lock(&self.trees).get(&body.thread).cloned();
            if must_run_on_other_worker(self.store(), &found.row, open.as_deref()).await? {
                return Ok(TakeOutcome::Left("its tree runs on another worker".to_owned()));
            }
        }
        let Some(tree) = self.tree(body).await? else {
            return Ok(TakeOutcome::Left("its tree works here on other files".to_owned()));
        };
        *lock(&tree.last_used) = Instant::now();
        Ok(match tree.threads.take_submitted(&found.row).await? {
            Some(started) => TakeOutcome::Taken(Box::pin(started.wait_stopped())),
            None => TakeOutcome::Left("another process has it".to_owned()),
        })
    }

    /// What was submitted. Its signature is verified once; that its key still counts, each time.
    async fn body(&self, submission: &Submission) -> Result<Arc<SubmissionBody>> {
        let keys = self.keys();
        if let Some(body) = lock(&self.bodies).find(submission, &keys)? {
            return Ok(body);
        }
        let (store, submission) = (self.store().clone(), submission.clone());
        let digest = submission.digest;
        let read = tokio::task::spawn_blocking(move || read_submission(&store, &submission, &keys)).await;
        let read =
            read.map_err(|error| Error::new(Code::Io, format!("reading the submission failed: {error}")))?;
        let (body, signer) = read?;
        Ok(lock(&self.bodies).insert(digest, body, signer))
    }

    /// The tree of a submission, with its files as the store has them; none as long as threads of it work here on others.
    async fn tree(self: &Arc<Self>, body: Arc<SubmissionBody>) -> Result<Option<Arc<WorkerTree>>> {
        let id = body.thread.clone();
        let opening = Arc::clone(lock(&self.openings).entry(id.clone()).or_default());
        // Of several threads of a tree one opens it.
        let _turn = opening.lock().await;
        let open = lock(&self.trees).get(&id).cloned();
        if let Some(tree) = open {
            if tree.is_current().await? {
                return Ok(Some(tree));
            }
            if tree.threads.running_count() > 0 {
                return Ok(None);
            }
            lock(&self.trees).remove(&id);
        }
        let pool: Arc<dyn BackgroundHost> = Arc::new(self.pool());
        let tree = WorkerTree::open(&self.setup, &self.place, pool, self.trees_dir.path(), body).await?;
        let tree = Arc::new(tree);
        lock(&self.trees).insert(id, Arc::clone(&tree));
        Ok(Some(tree))
    }
}
