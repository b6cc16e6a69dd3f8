//! `rye_execute`: what a client may ask for, and a run that ends when the client no longer wants it.

use std::sync::Arc;

use lillux::CancelToken;
use rye_agent::redact::Redactor;
use rye_agent::threads::UserThreads;
use rye_engine::verbs::execute::{self, ExecuteRequest, ProgressListener};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::{ItemRef, ItemType};
use tokio_util::sync::CancellationToken;

use crate::arguments::{ExecuteParams, ThreadMode};
use crate::consent::Consents;
use crate::consent_gate::CallResult;
use crate::redaction::LineRedactor;

/// Checks that the arguments make sense for this item.
///
/// # Errors
/// When the arguments do not go together.
pub(crate) fn check_item(params: &ExecuteParams, item: &ItemRef) -> Result<()> {
    let invalid =
        |message: &str, hint: &str| Err(Error::new(Code::InvalidArgument, message).for_item(item).hint(hint));
    if params.thread == ThreadMode::Fork && item.item_type != ItemType::Directive {
        return invalid(
            "thread `fork` runs a directive in its own thread; this is not a directive",
            "leave thread out, or say `inline`",
        );
    }
    if params.thread == ThreadMode::Fork {
        return Ok(());
    }
    if params.is_async {
        return invalid("only a forked directive runs asynchronously", "leave async out");
    }
    if !params.model.is_empty() || !params.limit_overrides.is_empty() {
        return invalid(
            "model and limit_overrides are for thread `fork`: nothing else asks a model",
            "leave them out",
        );
    }
    Ok(())
}

/// Runs it, on a thread that may block, until it ends or `cancel_token` is cancelled.
pub(crate) fn run(
    engine: &Engine,
    item: ItemRef,
    params: &ExecuteParams,
    progress: Option<ProgressListener>,
    cancel_token: &CancellationToken,
    consents: &Consents,
    threads: Arc<UserThreads>,
) -> CallResult {
    // Made now and not earlier: it takes a descriptor, and many calls may be waiting.
    let cancel = CancelToken::new().map_err(Error::from)?;
    let _link = CancelLink::new(cancel_token, &cancel);
    let request = ExecuteRequest::new(item, cancel)
        .with_parameters(params.parameters.clone())
        .with_dry_run(params.dry_run)
        .with_progress(progress)
        .with_thread(Some(threads));
    let response =
        execute::execute(engine, &request).map_err(|error| consents.or_trust_request(engine, error))?;
    Ok(response.into_value())
}

/// Passes the end of a request on to the run, as long as the run lasts.
struct CancelLink(tokio::task::AbortHandle);

impl CancelLink {
    fn new(cancel_token: &CancellationToken, cancel: &CancelToken) -> Self {
        let (cancel_token, cancel) = (cancel_token.clone(), cancel.clone());
        let task = tokio::spawn(async move {
            cancel_token.cancelled().await;
            cancel.cancel();
        });
        Self(task.abort_handle())
    }
}

impl Drop for CancelLink {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lines of progress into a channel that is read elsewhere; when the reader falls behind, lines are dropped instead of blocking.
pub(crate) fn progress_sink(
    lines: tokio::sync::mpsc::Sender<String>,
    redactor: Arc<Redactor>,
) -> ProgressListener {
    let (lines, redactor) = (Arc::new(lines), LineRedactor::new(redactor));
    ProgressListener::new(move |line| {
        if let Some(line) = redactor.redact(line) {
            // A full channel means older lines are still waiting to be told.
            let _ = lines.try_send(rye_item::text::one_line(&line));
        }
    })
}
