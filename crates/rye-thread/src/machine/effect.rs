//! What a thread wants done. The driver does it; the machine never does anything itself.

use crate::model::ModelRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::approval::ApprovalRequest;
use crate::capability::PermittedAction;
use crate::config::{Criticality, SaveTrigger};
use crate::cost::Cost;
use crate::money::Nanos;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

/// Something to do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Run an action of a hook; its envelope comes back as `HookDone`.
    RunHook {
        /// The hook.
        hook: String,
        /// The action, which it may take.
        action: PermittedAction,
        /// How long it may take; after that it has failed.
        timeout_ms: Option<u64>,
    },
    /// Reserve `bound` on the thread and all its ancestors, then call the model.
    CallModel {
        /// The number of the call.
        call: u64,
        /// What to ask.
        request: ModelRequest,
        /// The most it can cost.
        cost_bound: CostBound,
    },
    /// Try again to reserve for a call until it can be: what it needs is reserved for others, not spent.
    AwaitBudget {
        /// The number of the call.
        call: u64,
        /// The most it can cost.
        cost_bound: CostBound,
        /// When waiting ends, in milliseconds since 1970.
        deadline_ms: u64,
    },
    /// Wait, then `Slept`.
    Sleep {
        /// How long.
        ms: u64,
    },
    /// Make a tool call.
    Dispatch {
        /// Which of the turn's calls.
        index: usize,
        /// What to do, which the thread may.
        action: PermittedAction,
    },
    /// Start a child, and wait for it unless it was asked to run on its own.
    Spawn {
        /// Which of the turn's calls.
        index: usize,
        /// The call of `thread_directive`.
        action: PermittedAction,
        /// The child's name. If there is such a thread already, this call started it before a crash.
        child: ThreadId,
    },
    /// Look at or steer other threads.
    Orchestrate {
        /// Which of the turn's calls.
        index: usize,
        /// The call of `orchestrator`.
        action: PermittedAction,
    },
    /// Read on in a result that was too long.
    ReadArtifact {
        /// Which of the turn's calls.
        index: usize,
        /// Which artifact, and where.
        params: Map<String, Value>,
    },
    /// Write an event to the transcript.
    Emit {
        /// Its type.
        event_type: String,
        /// Its payload.
        payload: Value,
    },
    /// Write a hook's event to the transcript, as safely as the hook asked for.
    EmitAs {
        /// Its type.
        event_type: String,
        /// Its payload.
        payload: Value,
        /// How safely it is written.
        criticality: Criticality,
    },
    /// Book what a hook reported as used in the ledger.
    RecordSpend {
        /// The number of the booking, as if it were a model call.
        call: u64,
        /// What was used.
        used: Cost,
        /// The hook that said so.
        hook: String,
    },
    /// A good moment to write `state.json`.
    SaveState(SaveTrigger),
    /// Ask a person.
    RequestApproval(ApprovalRequest),
    /// The thread is suspended until it is resumed.
    Suspend(ThreadOutcome),
    /// The thread has ended.
    End(ThreadOutcome),
}

/// The most a call can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostBound {
    /// Money.
    pub spend: Nanos,
    /// Tokens.
    pub tokens: u64,
}

/// How a thread ended, or why it stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadOutcome {
    /// Where it stands.
    pub status: ThreadStatus,
    /// Why it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<SuspendReason>,
    /// The model's last words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The outputs the directive declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Map<String, Value>>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What a person needs to decide: the limit that was reached, and what is used.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

impl ThreadOutcome {
    /// Ended well.
    #[must_use]
    pub fn completed(result: Option<String>, outputs: Option<Map<String, Value>>) -> Self {
        Self {
            status: ThreadStatus::Completed,
            reason: None,
            result,
            outputs,
            error: None,
            detail: Value::Null,
        }
    }

    /// Ended badly.
    #[must_use]
    pub fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::with_status(ThreadStatus::Error) }
    }

    /// Cancelled.
    #[must_use]
    pub fn cancelled(why: impl Into<String>) -> Self {
        Self { error: Some(why.into()), ..Self::with_status(ThreadStatus::Cancelled) }
    }

    /// Stopped, to continue later.
    #[must_use]
    pub fn suspended(reason: SuspendReason, error: impl Into<String>, detail: Value) -> Self {
        Self {
            reason: Some(reason),
            error: Some(error.into()),
            detail,
            ..Self::with_status(ThreadStatus::Suspended)
        }
    }

    /// Whether a person is asked something.
    #[must_use]
    pub fn has_questions(&self) -> bool {
        let questions = self.detail.get("questions").and_then(Value::as_array);
        self.status == ThreadStatus::Suspended && questions.is_some_and(|questions| !questions.is_empty())
    }

    fn with_status(status: ThreadStatus) -> Self {
        Self { status, reason: None, result: None, outputs: None, error: None, detail: Value::Null }
    }
}
