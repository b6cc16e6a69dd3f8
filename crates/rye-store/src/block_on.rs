//! Waiting for a store from code that is not asynchronous.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

thread_local! {
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread waits for a store, until it is dropped.
struct WaitingGuard {
    was_waiting: bool,
}

impl WaitingGuard {
    fn new() -> Self {
        Self { was_waiting: IS_WAITING.replace(true) }
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        IS_WAITING.set(self.was_waiting);
    }
}

/// Whether this thread waits for a store in [`block_on`]: then the store may do blocking work on it. Everywhere else an
/// asynchronous executor may be polling, which must not be blocked.
#[must_use]
pub fn can_block() -> bool {
    IS_WAITING.get()
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a store's future on this thread. A store's futures need no runtime: the store itself drives its I/O.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let _waiting = WaitingGuard::new();
    let mut future = pin!(future);
    // Most answers are there at once.
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_threads_can_block() {
        assert!(!can_block());
        assert!(block_on(async { block_on(async { can_block() }) && can_block() }));
        assert!(!can_block());
    }
}
