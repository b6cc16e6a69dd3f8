//! Who is notified of changes to threads.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use crate::ThreadChange;

/// Changes that a receiver may lag behind.
const MAX_QUEUED_CHANGES: usize = 4096;

/// Why a receiver was not given a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesLost {
    /// It lagged too far behind: it has missed some, and reads again.
    Lagged,
    /// The store is closed.
    Closed,
}

/// Sends each change to every receiver. A store has one.
#[derive(Debug, Default)]
pub struct ChangeHub {
    queues: Mutex<Vec<Weak<Mutex<ChangeQueue>>>>,
}

#[derive(Debug, Default)]
struct ChangeQueue {
    changes: VecDeque<ThreadChange>,
    is_lagging: bool,
    is_closed: bool,
    waker: Option<Waker>,
}

impl ChangeQueue {
    fn next(&mut self) -> Option<Result<ThreadChange, ChangesLost>> {
        if std::mem::take(&mut self.is_lagging) {
            return Some(Err(ChangesLost::Lagged));
        }
        match self.changes.pop_front() {
            Some(change) => Some(Ok(change)),
            None => self.is_closed.then_some(Err(ChangesLost::Closed)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChangeHub {
    /// A receiver of all changes from now on.
    #[must_use]
    pub fn subscribe(&self) -> ChangeReceiver {
        let queue = Arc::new(Mutex::new(ChangeQueue::default()));
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        ChangeReceiver { queue }
    }

    /// Sends a change.
    pub fn send(&self, change: &ThreadChange) {
        self.each(|queue| {
            if queue.changes.len() >= MAX_QUEUED_CHANGES {
                queue.changes.clear();
                queue.is_lagging = true;
            }
            queue.changes.push_back(change.clone());
        });
    }

    fn each(&self, mut update: impl FnMut(&mut ChangeQueue)) {
        for queue in lock(&self.queues).iter().filter_map(Weak::upgrade) {
            let waker = {
                let mut queue = lock(&queue);
                update(&mut queue);
                queue.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for ChangeHub {
    fn drop(&mut self) {
        self.each(|queue| queue.is_closed = true);
    }
}

/// Receives the changes that one opening of a store makes, once they are durable.
#[derive(Debug)]
pub struct ChangeReceiver {
    queue: Arc<Mutex<ChangeQueue>>,
}

impl ChangeReceiver {
    /// The next change, as soon as there is one.
    ///
    /// # Errors
    /// When some were missed, or there will be none.
    pub async fn recv(&mut self) -> Result<ThreadChange, ChangesLost> {
        poll_fn(|context| {
            let mut queue = lock(&self.queue);
            match queue.next() {
                Some(next) => Poll::Ready(next),
                None => {
                    queue.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next change, if there is one already.
    pub fn try_recv(&mut self) -> Option<Result<ThreadChange, ChangesLost>> {
        lock(&self.queue).next()
    }
}

#[cfg(test)]
mod tests {
    use rye_thread::thread_id::ThreadId;

    use super::*;

    fn change(number: u64) -> ThreadChange {
        let thread = ThreadId::parse(&format!("thread-{number:012x}")).expect("an id");
        ThreadChange { thread, status: None }
    }

    #[test]
    fn receivers_get_changes_in_order() {
        let hub = ChangeHub::default();
        hub.send(&change(0));
        let mut receiver = hub.subscribe();
        hub.send(&change(1));
        hub.send(&change(2));
        assert_eq!(crate::block_on(receiver.recv()), Ok(change(1)));
        assert_eq!(receiver.try_recv(), Some(Ok(change(2))));
        assert_eq!(receiver.try_recv(), None);
        drop(hub);
        assert_eq!(crate::block_on(receiver.recv()), Err(ChangesLost::Closed));
    }

    #[test]
    fn lagging_receiver_learns_that_it_missed_some() {
        let hub = ChangeHub::default();
        let mut receiver = hub.subscribe();
        for number in 0..=MAX_QUEUED_CHANGES as u64 {
            hub.send(&change(number));
        }
        assert_eq!(receiver.try_recv(), Some(Err(ChangesLost::Lagged)));
        assert_eq!(receiver.try_recv(), Some(Ok(change(MAX_QUEUED_CHANGES as u64))));
    }

    #[test]
    fn waiting_receiver_gets_the_change() {
        let hub = Arc::new(ChangeHub::default());
        let mut receiver = hub.subscribe();
        let sender = Arc::clone(&hub);
        let thread = std::thread::spawn(move || sender.send(&change(7)));
        assert_eq!(crate::block_on(receiver.recv()), Ok(change(7)));
        thread.join().expect("sent");
    }
}
