//! What callers are told of a thread, in 003's shapes; and the ledger as internal tools reach it.

use serde_json::{Map, Value, json};

use super::Finished;
use super::coordinate::approving;
use crate::facts::BudgetDoor;
use crate::money::Nanos;
use crate::shape::{Artifacts, Stored};
use crate::status::Status;
use crate::store::{LedgerRow, Store};
use crate::thread_id::ThreadId;

/// The most characters of a result that go into an answer; the transcript has it all.
const LONGEST_RESULT: usize = 4000;

/// What somebody who waited is told.
#[must_use]
pub fn sync_answer(finished: &Finished) -> Map<String, Value> {
    let outcome = &finished.outcome;
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    put("success", json!(outcome.status == Status::Completed));
    put("thread_id", json!(finished.thread_id));
    put("directive", json!(finished.directive));
    put("status", json!(outcome.status));
    if let Some(result) = &outcome.result {
        let is_long = result.chars().count() > LONGEST_RESULT;
        let shown = match is_long {
            true => format!("{}\n\n[... truncated]", result.chars().take(LONGEST_RESULT).collect::<String>()),
            false => result.clone(),
        };
        put("result", json!(shown));
        if is_long {
            put("result_truncated", json!(true));
        }
    } else {
        put("result", Value::Null);
    }
    if let Some(outputs) = &outcome.outputs {
        put("outputs", json!(outputs));
    }
    put("cost", finished.cost.to_value());
    if let Some(error) = &outcome.error {
        put("error", json!(error));
    }
    if let Some(reason) = outcome.reason {
        put("suspend_reason", json!(reason));
    }
    if outcome.asks() {
        put("approve", json!(approving(&finished.thread_id)));
    }
    if !outcome.detail.is_null() {
        put("detail", outcome.detail.clone());
    }
    map
}

/// What somebody who did not wait is told.
#[must_use]
pub fn async_answer(id: &ThreadId, directive: &str, pid: u32) -> Value {
    json!({
        "success": true,
        "thread_id": id,
        "status": "running",
        "directive": directive,
        "pid": pid,
        "control": {
            "wait": format!("orchestrator.wait_threads(['{id}'])"),
            "cancel": format!("state_store.request_cancel('{id}')"),
            "status": format!("registry.get_status('{id}')"),
        },
    })
}

/// The ledger for `internal/budget_ops`.
pub(super) struct Ledger(pub(super) Store);

/// What a hook that would book is told: nothing is claimed to be done that was not.
const BOOKED_BY_CALLS: &str = "nothing was booked: a thread's money is set aside, spent and freed with each call of its model, in the same transaction as its record; ask check_remaining";

impl Ledger {
    fn row(&self, thread: &ThreadId) -> Result<LedgerRow, String> {
        self.0.ledger(thread).map_err(|error| error.to_string())
    }
}

impl BudgetDoor for Ledger {
    fn is_within(&self, root: &ThreadId, thread: &ThreadId) -> bool {
        root == thread || self.0.ancestors(thread).is_ok_and(|line| line.iter().any(|row| row.id == *root))
    }

    fn reserve(
        &self,
        _thread: &ThreadId,
        _parent: Option<&ThreadId>,
        _amount: Nanos,
    ) -> Result<bool, String> {
        Err(BOOKED_BY_CALLS.to_owned())
    }

    fn report_actual(&self, _thread: &ThreadId, _amount: Nanos) -> Result<(), String> {
        Err(BOOKED_BY_CALLS.to_owned())
    }

    fn release(&self, _thread: &ThreadId, _final_status: Option<&str>) -> Result<(), String> {
        Err(BOOKED_BY_CALLS.to_owned())
    }

    fn remaining(&self, thread: &ThreadId) -> Result<Option<Nanos>, String> {
        Ok(self.row(thread)?.remaining_spend())
    }
}

/// Results that were too long for the model.
pub(super) struct Shelf(pub(super) Store, pub(super) ThreadId, pub(super) u64);

impl Artifacts for Shelf {
    fn put(&self, bytes: &[u8]) -> Result<Stored, String> {
        let digest = lillux::Digest::of(bytes);
        let is_new = self.0.blob(&digest).is_err();
        // Also one that others have: each of them keeps it.
        self.0.keep_for(&self.1, bytes.to_vec(), self.2).map_err(|error| error.to_string())?;
        Ok(Stored { id: digest.to_string(), is_new })
    }

    fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String> {
        match id.parse() {
            Ok(digest) => Ok(self.0.blob(&digest).ok()),
            Err(_) => Ok(None),
        }
    }
}
