//! What a client is given without asking: progress, warnings, changes.
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

use crate::changes::CatalogChange;
use crate::session::ClientState;

/// How often a long run says that it still runs.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The way to the client of one request.
pub(crate) struct ClientNotifier {
    peer: Peer<RoleServer>,
    progress: Option<ProgressToken>,
    state: Arc<ClientState>,
}

impl ClientNotifier {
    pub(crate) fn new(context: &RequestContext<RoleServer>, state: &Arc<ClientState>) -> Self {
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
    pub(crate) async fn report_progress(&self, label: &str, mut lines: mpsc::Receiver<String>) {
        let Some(token) = &self.progress else {
            return std::future::pending().await;
        };
        let mut heartbeat =
            tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
        let mut seconds: u32 = 0;
        let mut step: f64 = 0.0;
        loop {
            let message = tokio::select! {
                Some(line) = lines.recv() => line,
                _ = heartbeat.tick() => {
                    seconds = seconds.saturating_add(1);
                    format!("{label} runs for {seconds} s")
                }
            };
            step += 1.0;
            let params = ProgressNotificationParam::new(token.clone(), step).with_message(message);
            if self.peer.notify_progress(params).await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Warns, if the client wants to hear warnings.
    pub(crate) async fn warn(&self, notices: Vec<String>) {
        let level = *self.state.level.lock().unwrap_or_else(PoisonError::into_inner);
        if severity(level) > severity(LoggingLevel::Warning) {
            return;
        }
        for notice in notices {
            let params =
                LoggingMessageNotificationParam::new(LoggingLevel::Warning, notice.into()).with_logger("rye");
            // A client that is gone needs no warning.
            if self.peer.notify_logging_message(params).await.is_err() {
                return;
            }
        }
    }
}

fn severity(level: LoggingLevel) -> u8 {
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

/// The next change; a client that lagged behind is asked to list everything again.
async fn next_changes(changes: &mut broadcast::Receiver<CatalogChange>) -> Option<Vec<CatalogChange>> {
    match changes.recv().await {
        Ok(change) => Some(vec![change]),
        Err(RecvError::Lagged(_)) => Some(CatalogChange::LISTS.to_vec()),
        Err(RecvError::Closed) => None,
    }
}

/// Passes changes on to a client of the older protocol, until it is gone.
pub(crate) async fn forward(
    mut changes: broadcast::Receiver<CatalogChange>,
    peer: Peer<RoleServer>,
    state: Weak<ClientState>,
) {
    let Some(disconnected) = state.upgrade().map(|state| state.disconnected.clone()) else {
        return;
    };
    loop {
        let batch = tokio::select! {
            batch = next_changes(&mut changes) => batch,
            () = disconnected.cancelled() => None,
        };
        let (Some(batch), Some(state)) = (batch, state.upgrade()) else {
            return;
        };
        for change in batch {
            let result = match change {
                CatalogChange::Tools => peer.notify_tool_list_changed().await,
                CatalogChange::Prompts => peer.notify_prompt_list_changed().await,
                CatalogChange::Resources => peer.notify_resource_list_changed().await,
                CatalogChange::Resource(uri) => {
                    let is_subscribed =
                        state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).contains(&uri);
                    if !is_subscribed {
                        continue;
                    }
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
            };
            if result.is_err() {
                return;
            }
        }
    }
}

/// Passes changes on to one subscription, until it ends.
pub(crate) async fn stream(mut changes: broadcast::Receiver<CatalogChange>, context: &SubscriptionContext) {
    loop {
        let batch = tokio::select! {
            batch = next_changes(&mut changes) => batch,
            () = context.cancelled() => None,
        };
        let Some(batch) = batch else {
            return;
        };
        for change in batch {
            // What was not asked for is not an error, and not sent.
            let _ = match change {
                CatalogChange::Tools => context.sink().notify_tool_list_changed().await,
                CatalogChange::Prompts => context.sink().notify_prompt_list_changed().await,
                CatalogChange::Resources => context.sink().notify_resource_list_changed().await,
                CatalogChange::Resource(uri) => context.sink().notify_resource_updated(uri).await,
            };
        }
    }
}
