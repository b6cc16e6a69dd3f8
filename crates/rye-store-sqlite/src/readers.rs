//! Threads that read for asynchronous callers, so that no executor waits for the disk.
//!
//! They are started when they are needed, and end with the store.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How many there are at most.
const MAX_READERS: usize = 4;

type ReadJob = Box<dyn FnOnce() + Send>;

/// The threads of one store, and what they still have to do.
#[derive(Default)]
pub(crate) struct ReaderPool(Arc<PoolShared>);

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    has_jobs: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<ReadJob>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until the store is closed.
    fn run(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            state = self.has_jobs.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        state.threads -= 1;
    }
}

impl ReaderPool {
    /// Has `job` done on a thread of the pool. Where none can be started, it is done here: late is better than never.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads == MAX_READERS {
            self.0.has_jobs.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        let spawned =
            std::thread::Builder::new().name("threads-reader".to_owned()).spawn(move || shared.run());
        if spawned.is_ok() {
            state.threads += 1;
        } else if state.threads == 0 {
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            jobs.into_iter().for_each(|job| job());
        }
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        // A job may hold the store's last handle: its thread ends by itself, and nothing waits for it.
        self.0.lock().is_closed = true;
        self.0.has_jobs.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_run_on_bounded_threads() {
        let pool = ReaderPool::default();
        let (sender, receiver) = channel();
        for _ in 0..100 {
            let sender = sender.clone();
            pool.submit(move || sender.send(std::thread::current().id()).expect("sent"));
        }
        drop(sender);
        let threads: HashSet<_> = receiver.iter().take(100).collect();
        assert!(threads.len() <= MAX_READERS);
        assert!(!threads.contains(&std::thread::current().id()));
    }

    #[test]
    fn last_handle_may_be_dropped_by_a_job() {
        let pool = Arc::new(ReaderPool::default());
        let (sender, receiver) = channel();
        let held = Arc::clone(&pool);
        let (start, started) = channel::<()>();
        pool.submit(move || {
            started.recv().expect("started");
            drop(held);
            sender.send(()).expect("sent");
        });
        drop(pool);
        start.send(()).expect("sent");
        receiver.recv().expect("the job ended");
    }
}
