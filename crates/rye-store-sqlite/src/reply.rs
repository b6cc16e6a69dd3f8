//! The answer of the writer's thread, which can be waited for with or without a runtime.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    is_closed: bool,
    waker: Option<Waker>,
}

type SharedSlot<T> = Arc<Mutex<Slot<T>>>;

fn with_slot<T, R>(slot: &SharedSlot<T>, work: impl FnOnce(&mut Slot<T>) -> R) -> R {
    work(&mut slot.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sends one answer.
pub(crate) struct ReplySender<T>(SharedSlot<T>);

impl<T> ReplySender<T> {
    /// Sends it. A receiver that has gone does not get it.
    pub(crate) fn send(self, value: T) {
        with_slot(&self.0, |slot| slot.value = Some(value));
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        let waker = with_slot(&self.0, |slot| {
            slot.is_closed = true;
            slot.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Receives one answer.
pub(crate) struct ReplyReceiver<T>(SharedSlot<T>);

impl<T> ReplyReceiver<T> {
    /// The answer; `None` when there will be none.
    pub(crate) async fn recv(self) -> Option<T> {
        poll_fn(|context| {
            with_slot(&self.0, |slot| match slot.value.take() {
                Some(value) => Poll::Ready(Some(value)),
                None if slot.is_closed => Poll::Ready(None),
                None => {
                    slot.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await
    }
}

/// The two ends of one answer.
pub(crate) fn reply<T>() -> (ReplySender<T>, ReplyReceiver<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, is_closed: false, waker: None }));
    (ReplySender(Arc::clone(&slot)), ReplyReceiver(slot))
}
