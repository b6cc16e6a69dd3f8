//! `rye_execute`: what a client may ask for, and a run that ends when the client no longer wants it.

use std::sync::Arc;

use lillux::Cancel;
use rye_agent::redact::Redactor;
use rye_engine::verbs::execute::{self, Caller, Demand, Mode, Progress, Request};
use rye_engine::{Code, Engine, Error, Result, primaries};
use rye_item::{ItemRef, ItemType};
use tokio_util::sync::CancellationToken;

use crate::arguments::{Execute, Thread};
use crate::consent::Consents;
use crate::redaction::LineRedactor;
use crate::verbs::Outcome;

/// What is executed, once it is known to make sense.
///
/// # Errors
/// When the arguments do not go together.
pub(crate) fn item(given: &Execute) -> Result<ItemRef> {
    let item = primaries::item(given.item_type.as_deref(), &given.item_id)?;
    let wrong =
        |message: &str, hint: &str| Err(Error::new(Code::InvalidArgument, message).of(&item).hint(hint));
    if given.thread == Thread::Fork && item.item_type != ItemType::Directive {
        return wrong(
            "thread `fork` runs a directive in a thread of its own; this is no directive",
            "leave thread out, or say `inline`",
        );
    }
    if given.thread == Thread::Fork {
        return Ok(item);
    }
    if given.is_async {
        return wrong("only a forked directive runs asynchronously", "leave async out");
    }
    if !given.model.is_empty() || !given.limit_overrides.is_empty() {
        return wrong(
            "model and limit_overrides are for thread `fork`: nothing else asks a model",
            "leave them out",
        );
    }
    Ok(item)
}

/// Runs it, on a thread that may block, until it ends or `ending` is cancelled.
pub(crate) fn run(
    engine: &Engine,
    item: ItemRef,
    given: &Execute,
    progress: Option<Progress>,
    ending: &CancellationToken,
    consents: &Consents,
) -> Outcome {
    // Made now and not earlier: it takes a descriptor, and many calls may be waiting.
    let cancel = Cancel::new().map_err(Error::from)?;
    let _link = Link::between(ending, &cancel);
    let request = Request {
        item,
        parameters: given.parameters.clone(),
        words: Vec::new(),
        mode: if given.dry_run { Mode::DryRun } else { Mode::Run },
        wants_trace: false,
        demand: Demand::Hold,
        cancel,
        progress,
        waits: None,
        caller: Caller::Agent,
        thread: None,
        door: None,
        grants: None,
    };
    let answer = execute::execute(engine, &request).map_err(|error| consents.or_trust(engine, error))?;
    Ok(answer.into_value())
}

/// Passes the end of a request on to the run, as long as the run lasts.
struct Link(tokio::task::AbortHandle);

impl Link {
    fn between(ending: &CancellationToken, cancel: &Cancel) -> Self {
        let (ending, cancel) = (ending.clone(), cancel.clone());
        let task = tokio::spawn(async move {
            ending.cancelled().await;
            cancel.cancel();
        });
        Self(task.abort_handle())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lines of progress into a channel that is read elsewhere; when nobody keeps up, lines are lost, not time.
pub(crate) fn progress_into(lines: tokio::sync::mpsc::Sender<String>, redactor: Arc<Redactor>) -> Progress {
    let (lines, redactor) = (Arc::new(lines), LineRedactor::new(redactor));
    Progress::new(move |line| {
        if let Some(line) = redactor.redact(line) {
            // A full channel means older lines are still waiting to be told.
            let _ = lines.try_send(rye_item::text::one_line(&line));
        }
    })
}
