//! The first thing that goes wrong below the SDK, reported directly to the exchange: the SDK would wrap it,
//! log it, or wait for something better.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FaultReason {
    /// The server broke the protocol.
    Protocol(String),
    /// The server could not be reached, or refused the connection.
    Unreachable(String),
}

/// Remembers the first reason.
#[derive(Clone, Default)]
pub(super) struct Fault {
    state: Arc<(Mutex<Option<FaultReason>>, Notify)>,
}

impl Fault {
    /// Tells the reason; later ones are consequences and are dropped.
    pub(super) fn raise(&self, reason: FaultReason) {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.state.1.notify_one();
    }

    /// The reason, if there is one.
    pub(super) fn reason(&self) -> Option<FaultReason> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a reason.
    pub(super) async fn wait_raised(&self) {
        while self.reason().is_none() {
            self.state.1.notified().await;
        }
    }
}
