//! What a client is told without asking: progress, warnings, changes.
#![expect(deprecated, reason = "clients of the older protocol subscribe and hear warnings this way")]

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rmcp::Peer;
use rmcp::model::{
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken,
    ResourceUpdatedNotificationParam,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;

use crate::changes::Change;
use crate::session::State;

/// How often a long run says that it still runs.
const BEAT: Duration = Duration::from_secs(1);

/// The way to the client of one request.
pub(crate) struct Voice {
    peer: Peer<RoleServer>,
    progress: Option<ProgressToken>,
    state: Arc<State>,
}

impl Voice {
    pub(crate) fn of(context: &RequestContext<RoleServer>, state: &Arc<State>) -> Self {
        Self {
            peer: context.peer.clone(),
            progress: context.meta.get_progress_token(),
            state: Arc::clone(state),
        }
    }

    /// Whether the client asked to hear of progress.
    pub(crate) fn wants_progress(&self) -> bool {
        self.progress.is_some()
    }

    /// Tells how far something is, until it is dropped: each line, and every second that it still runs.
    pub(crate) async fn tell_progress(&self, label: &str, mut lines: mpsc::Receiver<String>) {
        let Some(token) = &self.progress else {
            return std::future::pending().await;
        };
        let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + BEAT, BEAT);
        let mut seconds: u32 = 0;
        let mut step: f64 = 0.0;
        loop {
            let message = tokio::select! {
                Some(line) = lines.recv() => line,
                _ = beat.tick() => {
                    seconds = seconds.saturating_add(1);
                    format!("{label} runs for {seconds} s")
                }
            };
            step += 1.0;
            let told = ProgressNotificationParam::new(token.clone(), step).with_message(message);
            if self.peer.notify_progress(told).await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Warns, if the client wants to hear warnings.
    pub(crate) async fn warn(&self, notices: Vec<String>) {
        let level = *self.state.level.lock().unwrap_or_else(PoisonError::into_inner);
        if weight(level) > weight(LoggingLevel::Warning) {
            return;
        }
        for notice in notices {
            let told =
                LoggingMessageNotificationParam::new(LoggingLevel::Warning, notice.into()).with_logger("rye");
            // A client that is gone needs no warning.
            if self.peer.notify_logging_message(told).await.is_err() {
                return;
            }
        }
    }
}

fn weight(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

/// The next change; whoever lagged behind is told to list everything anew.
async fn next(changes: &mut broadcast::Receiver<Change>) -> Option<Vec<Change>> {
    match changes.recv().await {
        Ok(change) => Some(vec![change]),
        Err(RecvError::Lagged(_)) => Some(vec![Change::Prompts, Change::Resources]),
        Err(RecvError::Closed) => None,
    }
}

/// Passes changes on to a client of the older protocol, until it is gone.
pub(crate) async fn forward(
    mut changes: broadcast::Receiver<Change>,
    peer: Peer<RoleServer>,
    state: Weak<State>,
) {
    let Some(gone) = state.upgrade().map(|state| state.gone.clone()) else {
        return;
    };
    loop {
        let happened = tokio::select! {
            happened = next(&mut changes) => happened,
            () = gone.cancelled() => None,
        };
        let (Some(happened), Some(state)) = (happened, state.upgrade()) else {
            return;
        };
        for change in happened {
            let told = match change {
                Change::Prompts => peer.notify_prompt_list_changed().await,
                Change::Resources => peer.notify_resource_list_changed().await,
                Change::Resource(uri) => {
                    let is_wanted =
                        state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).contains(&uri);
                    if !is_wanted {
                        continue;
                    }
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
            };
            if told.is_err() {
                return;
            }
        }
    }
}

/// Passes changes on to one subscription, until it ends.
pub(crate) async fn stream(mut changes: broadcast::Receiver<Change>, context: &SubscriptionContext) {
    loop {
        let happened = tokio::select! {
            happened = next(&mut changes) => happened,
            () = context.cancelled() => None,
        };
        let Some(happened) = happened else {
            return;
        };
        for change in happened {
            // What was not asked for is not an error, and not sent.
            let _ = match change {
                Change::Prompts => context.sink().notify_prompt_list_changed().await,
                Change::Resources => context.sink().notify_resource_list_changed().await,
                Change::Resource(uri) => context.sink().notify_resource_updated(uri).await,
            };
        }
    }
}
