//! Resuming a thread that no model provider answers, again and again, until one does.

use std::sync::Arc;
use std::time::Duration;

use rye_engine::Result;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::resume::ResumeOptions;
use super::{FinishedThread, ThreadRuntime};
use crate::driver::CancelSignal;
use crate::status::SuspendReason;
use crate::thread_id::ThreadId;

/// The first and the longest pause before a thread that no provider answers is resumed again.
const MIN_PROVIDER_DELAY: Duration = Duration::from_secs(1);
const MAX_PROVIDER_DELAY: Duration = Duration::from_secs(300);

/// The pauses between attempts: each is twice as long as the one before, up to five minutes.
#[derive(Clone, Debug)]
pub struct ProviderBackoff(Duration);

impl Default for ProviderBackoff {
    fn default() -> Self {
        Self(MIN_PROVIDER_DELAY)
    }
}

impl ProviderBackoff {
    /// The next pause.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.0;
        self.0 = (delay * 2).min(MAX_PROVIDER_DELAY);
        delay
    }
}

/// How long a thread is resumed again.
#[derive(Clone, Copy, Debug)]
pub(super) struct AvailabilityWait {
    /// When the last attempt begins at the latest.
    pub(super) deadline: Instant,
}

impl ThreadRuntime {
    /// Resumes a thread; with `wait`, until a provider answers, the time is over or the caller goes away. How it stands then,
    /// and how often it was resumed.
    pub(super) async fn resume_until_available(
        self: &Arc<Self>,
        id: &ThreadId,
        options: &ResumeOptions,
        wait: Option<AvailabilityWait>,
        cancel_token: &CancellationToken,
    ) -> Result<(Option<Arc<FinishedThread>>, u64)> {
        let mut finished = self.resume(id, options, CancelSignal::default()).await?.finished().await;
        let mut attempts = 1;
        let mut backoff = ProviderBackoff::default();
        let is_unanswered = |finished: &Option<Arc<FinishedThread>>| {
            finished.as_ref().is_some_and(|finished| finished.outcome.reason == Some(SuspendReason::Provider))
        };
        while let Some(wait) = wait.filter(|_| is_unanswered(&finished)) {
            let next = Instant::now() + backoff.next_delay();
            if next > wait.deadline {
                break;
            }
            tokio::select! {
                () = cancel_token.cancelled() => break,
                () = tokio::time::sleep_until(next) => {}
            }
            // The message and the limits were given with the first attempt.
            let again = ResumeOptions { limits: serde_json::Map::new(), message: None, ..options.clone() };
            finished = self.resume(id, &again, CancelSignal::default()).await?.finished().await;
            attempts += 1;
        }
        Ok((finished, attempts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_five_minutes() {
        let mut backoff = ProviderBackoff::default();
        let delays: Vec<u64> = (0..11).map(|_| backoff.next_delay().as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }
}
