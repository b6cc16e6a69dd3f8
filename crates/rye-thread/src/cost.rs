//! What a thread has used.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::money::Nanos;

/// What a thread itself has used, its children apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Answers of the model.
    pub turns: u64,
    /// Tokens that went in, cached ones included.
    pub input_tokens: u64,
    /// Tokens that came out, reasoning included.
    pub output_tokens: u64,
    /// Money.
    pub spend: Nanos,
    /// Milliseconds at work: without the time it was suspended.
    pub elapsed_ms: u64,
}

impl Cost {
    /// Tokens in and out.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// As hooks, transcripts and answers show it: spend in dollars.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "turns": self.turns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "spend": self.spend.dollars(),
            "elapsed_seconds": self.elapsed_ms / 1000,
        })
    }
}

/// What a call was for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The item: the thread's directive, usually.
    pub item: String,
    /// The model.
    pub model: String,
    /// The tool on whose behalf.
    pub tool: Option<String>,
    /// The hook on whose behalf.
    pub hook: Option<String>,
}
