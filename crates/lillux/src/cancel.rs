//! A request to stop that can be asked about and waited for, across threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

/// Says that work should stop. Clones share the state.
#[derive(Clone, Debug)]
pub struct CancelToken {
    state: Arc<CancelState>,
}

#[derive(Debug)]
struct CancelState {
    is_cancelled: AtomicBool,
    event: OwnedFd,
}

impl CancelToken {
    /// A token that is not cancelled yet.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Arc::new(CancelState { is_cancelled: AtomicBool::new(false), event }) })
    }

    /// Asks for the end. Once asked, it stays asked.
    pub fn cancel(&self) {
        self.state.is_cancelled.store(true, Ordering::SeqCst);
        // The counter can only be full if waiters have been woken already.
        let _ = rustix::io::write(&self.state.event, &1_u64.to_ne_bytes());
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.state.is_cancelled.load(Ordering::SeqCst)
    }
}

impl AsFd for CancelToken {
    /// Readable once the end was asked for, for `poll`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn waiter_wakes_on_cancel() {
        let cancel = CancelToken::new().expect("an event");
        let other = cancel.clone();
        let readable = |cancel: &CancelToken| {
            let mut fds = [PollFd::new(cancel, PollFlags::IN)];
            poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled") == 1
        };
        assert!(!cancel.is_cancelled() && !readable(&cancel));
        other.cancel();
        assert!(cancel.is_cancelled() && readable(&cancel) && readable(&cancel));
    }
}
