//! Handing waiting threads over to a service that calls workers, so that none has to look for them.
//!
//! The store decides who runs a thread. A dispatch that is down, repeats itself or calls too early costs time, nothing else:
//! what is handed over is a name, under which a worker takes what the store has.

use std::sync::Arc;
use std::time::Duration;

use rye_engine::Result;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::worker::Worker;
use crate::driver::BoxFuture;
use crate::thread_id::ThreadId;

/// A service that calls a worker for each thread that waits, and another one if that worker dies.
pub trait ThreadDispatch: std::fmt::Debug + Send + Sync {
    /// Hands a thread over that waits for a worker. With the same `epoch` ([`crate::store::SubmittedThread`])
    /// it is called for once. It blocks.
    ///
    /// # Errors
    /// When the service cannot be reached, or refuses; named.
    fn hand_over(&self, thread: &ThreadId, epoch: u64) -> Result<()>;

    /// Whether the service answers: a sentence for people. It blocks.
    ///
    /// # Errors
    /// When it does not.
    fn inspect(&self) -> Result<String>;

    /// How often workers look all the same, for threads that could not be handed over; never, if it is not set.
    fn poll_interval(&self) -> Option<Duration>;

    /// Takes calls for a worker until `drain` is cancelled.
    ///
    /// # Errors
    /// When calls cannot be taken.
    fn serve(&self, worker: Arc<Worker>, drain: CancellationToken) -> BoxFuture<'static, Result<()>>;
}

/// The dispatch that the settings of a store describe, if they do.
///
/// # Errors
/// When it is not described completely, or not part of this binary.
#[cfg(feature = "restate")]
pub(crate) fn dispatch_of_settings(
    store: &str,
    settings: Option<&Value>,
) -> Result<Option<Arc<dyn ThreadDispatch>>> {
    super::restate::RestateDispatch::from_settings(store, settings)
}

/// As above, in a binary that has none.
///
/// # Errors
/// When settings describe one.
#[cfg(not(feature = "restate"))]
pub(crate) fn dispatch_of_settings(
    store: &str,
    settings: Option<&Value>,
) -> Result<Option<Arc<dyn ThreadDispatch>>> {
    match settings {
        None | Some(Value::Null) => Ok(None),
        Some(_) => {
            let message = format!(
                "threads.stores.{store}.restate is set, and this rye was built without the feature `restate`"
            );
            Err(rye_engine::Error::new(rye_engine::Code::StoreUnusable, message)
                .hint("build it with the feature: cargo build --release -p rye-cli --features restate")
                .hint("or remove the setting, if workers look for threads themselves: docs/cluster.md"))
        }
    }
}

#[cfg(all(test, not(feature = "restate")))]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_feature_is_named() {
        let settings = json!({"ingress": "http://127.0.0.1:8080"});
        let error = dispatch_of_settings("team", Some(&settings)).expect_err("refused");
        assert!(error.message.contains("threads.stores.team.restate"), "{error}");
        assert!(error.message.contains("without the feature `restate`"), "{error}");
        assert!(error.hints.iter().any(|hint| hint.contains("--features restate")), "{:?}", error.hints);
        assert!(dispatch_of_settings("team", None).expect("none").is_none());
    }
}
