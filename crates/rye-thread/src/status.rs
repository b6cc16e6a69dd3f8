//! Where a thread stands.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a thread stands. Once ended, it stays ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStatus {
    /// Registered, not begun.
    Created,
    /// At work.
    Running,
    /// Stopped with everything kept; it can continue.
    Suspended,
    /// Ended well.
    Completed,
    /// Ended badly.
    Error,
    /// Cancelled.
    Cancelled,
    /// Ended by force.
    Killed,
    /// Handed over to another thread.
    Continued,
}

impl ThreadStatus {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Running,
        Self::Suspended,
        Self::Completed,
        Self::Error,
        Self::Cancelled,
        Self::Killed,
        Self::Continued,
    ];

    /// What a thread's result says of it, as other threads and clients get it.
    #[must_use]
    pub fn of_result(result: &Value) -> Option<Self> {
        result.get("status").and_then(Value::as_str).and_then(Self::parse)
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Completed => "completed",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Continued => "continued",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether a process runs it, or is to.
    #[must_use]
    pub fn is_at_work(self) -> bool {
        matches!(self, Self::Created | Self::Running)
    }

    /// Whether nothing can happen to it any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Created | Self::Running | Self::Suspended)
    }
}

impl fmt::Display for ThreadStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why a thread is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspendReason {
    /// A limit of its own.
    Limit,
    /// Something failed.
    Error,
    /// An ancestor's money or tokens.
    Budget,
    /// It waits for a person.
    Approval,
    /// No model provider answers.
    Provider,
}

impl SuspendReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Limit, Self::Error, Self::Budget, Self::Approval, Self::Provider];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Error => "error",
            Self::Budget => "budget",
            Self::Approval => "approval",
            Self::Provider => "provider",
        }
    }

    /// Whether a person's answer lets the thread continue.
    #[must_use]
    pub fn is_answerable(self) -> bool {
        match self {
            Self::Limit | Self::Budget | Self::Approval => true,
            Self::Error | Self::Provider => false,
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}
