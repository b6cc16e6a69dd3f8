//! What callers are told of a thread, in 003's shapes; and the ledger as internal tools reach it.

use serde_json::{Map, Value, json};

use super::FinishedThread;
use crate::models::OFFLINE_PROVIDER;
use crate::money::Nanos;
use crate::result_format::{ArtifactStore, StoredArtifact};
use crate::status::ThreadStatus;
use crate::store::{LedgerRow, StoreHandle};
use crate::thread_id::ThreadId;
use crate::tool_context::BudgetAccess;
use crate::views::approve_command;

/// The most characters of a result that go into an answer; the transcript has it all.
const MAX_RESULT_CHARS: usize = 4000;

/// What is said of a thread whose provider was `offline`.
pub const NO_MODEL_NOTE: &str = "no model was asked";

/// The response to a caller that waited.
#[must_use]
pub fn finished_response(finished: &FinishedThread) -> Map<String, Value> {
    let outcome = &finished.outcome;
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    put("success", json!(outcome.status == ThreadStatus::Completed));
    put("thread_id", json!(finished.thread_id));
    put("directive", json!(finished.directive));
    put("status", json!(outcome.status));
    if let Some(result) = &outcome.result {
        let is_long = result.chars().count() > MAX_RESULT_CHARS;
        let text = match is_long {
            true => {
                format!("{}\n\n[... truncated]", result.chars().take(MAX_RESULT_CHARS).collect::<String>())
            }
            false => result.clone(),
        };
        put("result", json!(text));
        if is_long {
            put("result_truncated", json!(true));
        }
    } else {
        put("result", Value::Null);
    }
    if let Some(outputs) = &outcome.outputs {
        put("outputs", json!(outputs));
    }
    let mut cost = finished.cost.to_value();
    cost["elapsed_ms"] = json!(finished.cost.elapsed_ms);
    put("cost", cost);
    if let Some(error) = &outcome.error {
        put("error", json!(error));
    }
    if let Some(reason) = outcome.reason {
        put("suspend_reason", json!(reason));
    }
    if finished.provider == OFFLINE_PROVIDER {
        put("note", json!(NO_MODEL_NOTE));
    }
    if outcome.has_questions() {
        put("approve", json!(approve_command(&finished.thread_id)));
    }
    if !outcome.detail.is_null() {
        put("detail", outcome.detail.clone());
    }
    map
}

/// The response for a thread that was started and not waited for. `control` names operations of the orchestrator tool.
#[must_use]
pub fn started_response(id: &ThreadId, directive: &str, pid: u32) -> Value {
    json!({
        "success": true,
        "thread_id": id,
        "status": "running",
        "directive": directive,
        "pid": pid,
        "control": {
            "wait": format!("orchestrator.wait_threads(['{id}'])"),
            "cancel": format!("orchestrator.cancel_thread('{id}')"),
            "status": format!("orchestrator.get_status('{id}')"),
        },
    })
}

/// The ledger for `internal/budget_ops`.
pub(super) struct StoreBudget(pub(super) StoreHandle);

impl StoreBudget {
    fn row(&self, thread: &ThreadId) -> Result<LedgerRow, String> {
        self.0.ledger(thread).map_err(|error| error.to_string())
    }
}

impl BudgetAccess for StoreBudget {
    fn is_within(&self, root: &ThreadId, thread: &ThreadId) -> bool {
        root == thread
            || self.0.ancestors(thread).is_ok_and(|ancestors| ancestors.iter().any(|row| row.id == *root))
    }

    fn remaining(&self, thread: &ThreadId) -> Result<Option<Nanos>, String> {
        Ok(self.row(thread)?.remaining_spend())
    }
}

/// Results that were too long for the model.
pub(super) struct ThreadArtifacts(pub(super) StoreHandle, pub(super) ThreadId, pub(super) u64);

impl ArtifactStore for ThreadArtifacts {
    fn put(&self, bytes: &[u8]) -> Result<StoredArtifact, String> {
        let digest = lillux::Digest::of(bytes);
        let is_new = self.0.blob(&digest).is_err();
        // Also one that others have: each of them keeps it.
        self.0.put_blob_for(&self.1, bytes.to_vec(), self.2).map_err(|error| error.to_string())?;
        Ok(StoredArtifact { id: digest.to_string(), is_new })
    }

    fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String> {
        match id.parse() {
            Ok(digest) => Ok(self.0.blob(&digest).ok()),
            Err(_) => Ok(None),
        }
    }
}
