//! What can happen to a thread. Each event is written to the journal before anything else relies on it.

use crate::model::{ModelError, ModelResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::approval::ApprovalAnswer;
use crate::limits::ThreadLimits;
use crate::money::Nanos;
use crate::rolling::{RollingBudget, RollingRefusal, RollingUsage};
use crate::status::ThreadStatus;
use crate::thread_id::ThreadId;

/// Something that happened, to be taken in by [`super::step`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ThreadEvent {
    /// The thread begins.
    Started,
    /// Secrets were removed from the event that follows.
    Redacted {
        /// How many.
        count: u64,
        /// The variables or kinds of secrets.
        names: Vec<String>,
    },
    /// The hook that was running answered.
    HookDone {
        /// The envelope its action gave.
        result: Value,
    },
    /// The model answered.
    #[serde(rename = "answered")]
    ModelResponded {
        /// What it said.
        #[serde(rename = "answer")]
        response: ModelResponse,
        /// What that cost.
        spend: Nanos,
    },
    /// The model did not answer.
    #[serde(rename = "failed")]
    ModelFailed {
        /// Why.
        #[serde(rename = "failure")]
        error: ModelError,
        /// What it is charged all the same.
        spend: Nanos,
        /// Whether that is an estimate: the reservation, because the actual cost is unknown.
        is_unknown: bool,
        /// Where in the spread of delays a retry falls, in thousandths.
        jitter: u32,
    },
    /// A budget could not cover the worst case of the next call; it was not made.
    #[serde(rename = "refused")]
    BudgetRefused(BudgetRefusal),
    /// What the call waited for is there: the reservation was made with this record.
    BudgetGranted,
    /// What the call waited for did not come in time.
    BudgetWaitExpired(BudgetRefusal),
    /// The time between two attempts is over.
    #[serde(rename = "slept")]
    BackoffElapsed,
    /// A tool call ended.
    ToolDone {
        /// Which of the turn's calls.
        index: usize,
        /// What came of it.
        result: ToolResult,
    },
    /// A tool that runs asked for something itself.
    #[serde(rename = "tool_asked")]
    CallbackRequested {
        /// Which of the turn's calls runs it.
        index: usize,
        /// Which request of that call.
        request: u64,
        /// What it asked for, as the hooks before it left it.
        action: Value,
        /// What it asked for at first, if hooks changed that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        original: Option<Value>,
        /// The answer, if that was not allowed. Else it is about to be done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        denied: Option<Value>,
    },
    /// What a tool asked for was done.
    #[serde(rename = "tool_answered")]
    CallbackCompleted {
        /// Which of the turn's calls runs it.
        index: usize,
        /// Which request of that call.
        request: u64,
        /// Whether it failed.
        is_error: bool,
        /// How long it took.
        duration_ms: u64,
        /// The thread it started and waited for, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child: Option<ThreadId>,
        /// How that thread ended or stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child_status: Option<ThreadStatus>,
    },
    /// A tool call started another thread.
    ChildStarted {
        /// Which of the turn's calls.
        index: usize,
        /// The thread.
        child: ThreadId,
        /// Its directive.
        directive: String,
    },
    /// The process died in the middle of something, and another took over.
    Interrupted {
        /// What calls that were in flight are charged: their prompt, and what had arrived.
        spend: Nanos,
        /// The most they can have cost: what was reserved for them.
        #[serde(default, skip_serializing_if = "Nanos::is_zero")]
        spend_at_most: Nanos,
        /// Their tokens.
        #[serde(default, skip_serializing_if = "InterruptedTokens::is_empty")]
        tokens: InterruptedTokens,
        /// Tool calls that may simply be made again: their tools say so.
        repeatable: Vec<usize>,
    },
    /// It is cancelled. Everything in flight has been stopped.
    CancelRequested {
        /// Why, or by whom.
        reason: String,
        /// What a call that was in flight is charged.
        spend: Nanos,
        /// What had arrived of its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<String>,
    },
    /// It is ended while no process runs it, or by force: no hook runs.
    Terminated {
        /// How it ends: cancelled, killed, or continued by another thread.
        status: ThreadStatus,
        /// Why; the other thread's id where it is continued.
        reason: String,
        /// What a call that was in flight is charged.
        spend: Nanos,
        /// Its tokens.
        #[serde(default, skip_serializing_if = "InterruptedTokens::is_empty")]
        tokens: InterruptedTokens,
    },
    /// Its time is over while something was outstanding, which has been stopped.
    Expired {
        /// What a call that was in flight is charged.
        spend: Nanos,
        /// What had arrived of its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<String>,
    },
    /// The wall clock was set, or the thread changed processes: how long it was at work since the last event.
    ClockChanged {
        /// Milliseconds of the monotonic clock.
        elapsed_ms: u64,
    },
    /// A suspended thread continues.
    Resumed {
        /// Its limits from now on.
        limits: ThreadLimits,
        /// Something to tell the model.
        message: Option<String>,
        /// Who let it continue.
        by: String,
        /// What people said to what it asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        answers: Vec<ApprovalAnswer>,
    },
}

/// Why a call was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRefusal {
    /// Whose budget could not cover it: the thread's own or an ancestor's.
    #[serde(rename = "by")]
    pub refused_by: ThreadId,
    /// `spend` (nano-dollars) or `tokens`.
    #[serde(rename = "what")]
    pub resource: BudgetResource,
    /// What that thread and all below it may use.
    #[serde(rename = "most")]
    pub limit: u64,
    /// What they have used.
    pub used: u64,
    /// What is reserved for calls in flight.
    pub reserved: u64,
    /// What this call might have needed.
    #[serde(rename = "asked")]
    pub requested: u64,
    /// The budget of a day or a month that could not cover it, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling: Option<RollingRefusal>,
}

impl BudgetRefusal {
    /// The refusal of a call that a budget of a day or a month cannot cover.
    #[must_use]
    pub fn by_rolling(
        thread: &ThreadId,
        requested: Nanos,
        budget: &RollingBudget,
        usage: RollingUsage,
    ) -> Self {
        Self {
            refused_by: thread.clone(),
            resource: BudgetResource::Spend,
            limit: budget.limit.0,
            used: usage.used.0,
            reserved: usage.reserved.0,
            requested: requested.0,
            rolling: Some(RollingRefusal { budget: budget.to_string(), frees_ms: budget.ends_ms }),
        }
    }

    /// Whether it would fit beside what is spent: only what others have reserved stands in its way.
    #[must_use]
    pub fn is_only_reserved(&self) -> bool {
        self.used.saturating_add(self.requested) <= self.limit
    }

    /// An amount as people see it: dollars or tokens.
    #[must_use]
    pub fn amount_value(&self, amount: u64) -> Value {
        match self.resource {
            BudgetResource::Spend => Value::from(Nanos(amount).dollars()),
            BudgetResource::Tokens => Value::from(amount),
        }
    }
}

/// What ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetResource {
    /// Money.
    Spend,
    /// Tokens.
    Tokens,
}

/// What came of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// What the model is given.
    pub content: String,
    /// Whether that is a failure.
    pub is_error: bool,
    /// How long it took.
    pub duration_ms: u64,
    /// The thread it started, if it started one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ThreadId>,
    /// How that thread ended or stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_status: Option<ThreadStatus>,
    /// How the sandbox confined the program that ran, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Map<String, Value>>,
}

impl ToolResult {
    /// A failure that took no time.
    #[must_use]
    pub fn failure(content: impl Into<String>) -> Self {
        Self {
            content: content.into(),
            is_error: true,
            duration_ms: 0,
            child: None,
            child_status: None,
            sandbox: None,
        }
    }
}

/// What calls that were broken off are counted as, where their provider could not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptedTokens {
    /// Tokens that went in.
    pub input: u64,
    /// Tokens that came out.
    pub output: u64,
}

impl InterruptedTokens {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
