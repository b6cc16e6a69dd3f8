//! What a model answers, and why it did not.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ToolCall;

/// What an answer used. All zero: the server did not say, see [`Usage::is_reported`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// All tokens of the request, cached ones included.
    pub input_tokens: u64,
    /// Those of them that were read from the provider's cache.
    pub cached_input_tokens: u64,
    /// Those of them that were written to the provider's cache.
    pub cache_write_tokens: u64,
    /// All tokens of the answer, reasoning included.
    pub output_tokens: u64,
    /// Those of them that were reasoning, where the provider says so.
    pub reasoning_tokens: u64,
    /// Whose count it is.
    #[serde(skip_serializing_if = "UsageSource::is_provider")]
    pub source: UsageSource,
}

/// Whose count a [`Usage`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The provider's.
    #[default]
    Provider,
    /// An estimate: the provider did not say.
    Estimate,
    /// The most that is possible: the provider said more than can be.
    Bound {
        /// What it said of the request.
        input_tokens: u64,
        /// What it said of the answer.
        output_tokens: u64,
    },
}

impl UsageSource {
    /// Whether it is what the provider said.
    #[must_use]
    pub fn is_provider(&self) -> bool {
        *self == Self::Provider
    }
}

/// The largest count that is kept: all JSON numbers below it are exact.
const MAX_TOKENS: u64 = 1 << 53;

impl Usage {
    /// The same, with no count that cannot be.
    pub fn clamp_counts(self) -> Self {
        let clamp = |count: u64| count.min(MAX_TOKENS);
        Self {
            input_tokens: clamp(self.input_tokens),
            cached_input_tokens: clamp(self.cached_input_tokens),
            cache_write_tokens: clamp(self.cache_write_tokens),
            output_tokens: clamp(self.output_tokens),
            reasoning_tokens: clamp(self.reasoning_tokens),
            source: self.source,
        }
    }

    /// Whether the server said what was used. A model that answered used something.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.input_tokens > 0 || self.output_tokens > 0
    }
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// The model waits for its tools.
    ToolCalls,
    /// There was no more room.
    Length,
    /// The provider interrupted the model, and it continues when it is asked again.
    Paused,
    /// The model or a filter refused: what came is not to be used.
    Refused(String),
    /// What else the provider says.
    Other(String),
}

impl fmt::Display for FinishReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Paused => "paused",
            Self::Refused(reason) | Self::Other(reason) => reason,
        })
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResponse {
    /// The words.
    pub text: String,
    /// What the model showed of its reasoning.
    #[serde(default)]
    pub reasoning: String,
    /// The tools it calls.
    #[serde(default)]
    pub calls: Vec<ToolCall>,
    /// What the provider wants back with the next request, unchanged. Each entry names the protocol it belongs to, and
    /// no other protocol sends it.
    #[serde(default)]
    pub replay: Vec<Value>,
    /// Why it ended.
    #[serde(rename = "finish")]
    pub finish_reason: FinishReason,
    /// What it used.
    #[serde(default)]
    pub usage: Usage,
    /// The model that answered, as the server names it.
    #[serde(default)]
    pub model: String,
}

/// How an answer ends that broke off.
pub const INCOMPLETE: &str = "incomplete";

impl ModelResponse {
    /// Whether the server said how it ended; one that broke off before has numbers that are not the last ones.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !matches!(&self.finish_reason, FinishReason::Other(reason) if reason == INCOMPLETE)
    }

    /// Hands the whole out as one piece each, for providers that do not stream.
    pub fn emit_deltas(&self, deltas: &(dyn Fn(ResponseDelta) + Send + Sync)) {
        if !self.reasoning.is_empty() {
            deltas(ResponseDelta::Reasoning(self.reasoning.clone()));
        }
        if !self.text.is_empty() {
            deltas(ResponseDelta::Text(self.text.clone()));
        }
        for call in &self.calls {
            deltas(ResponseDelta::CallStarted { id: call.id.clone(), name: call.name.clone() });
        }
    }
}

/// A piece of an answer, as it arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseDelta {
    /// Words.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A call began; its arguments come with the answer.
    #[serde(rename = "call_began")]
    CallStarted {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
}

/// Why there is no answer. Holds no key, no header that was sent and no path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct ModelError {
    /// The API's own type of the error, or `TimeoutError`, `ConnectionError`, `ConnectionResetError`, `StreamError`,
    /// `ProtocolError`, `CancelledError`, `Diverged`.
    pub kind: String,
    /// What happened, in one line.
    pub message: String,
    /// The API's own code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The status of the HTTP answer, if one came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// When to come back, and which request it was: names in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// What arrived before the answer broke off; it ends as `Other("incomplete")`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<ModelResponse>,
    /// Whether the server may have seen the request: false only when surely nothing was sent.
    #[serde(default)]
    pub reached_server: bool,
    /// Whether the server said what is wrong in place of an answer: nothing was done that costs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_declined: bool,
}

impl ModelError {
    fn new(kind: &str, message: String, reached_server: bool) -> Self {
        Self {
            kind: kind.to_owned(),
            message,
            code: None,
            status_code: None,
            headers: BTreeMap::new(),
            partial: None,
            reached_server,
            is_declined: false,
        }
    }

    /// Whether the server refused the call, so that it did no work that costs: with a status, or with words in place of an
    /// answer. What stands in between says with some statuses only that it waited in vain.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let is_definite =
            |status: u16| !(200..300).contains(&status) && !matches!(status, 408 | 504 | 520..=524);
        self.partial.is_none() && (self.is_declined || self.status_code.is_some_and(is_definite))
    }

    /// A failure before anything was sent.
    pub fn before_send(kind: &str, message: String) -> Self {
        Self::new(kind, message, false)
    }

    /// A failure after something may have been sent.
    #[must_use]
    pub fn after_send(kind: &str, message: String) -> Self {
        Self::new(kind, message, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_timeouts_are_not_refusals() {
        let of = |status: Option<u16>, is_declined: bool| ModelError {
            status_code: status,
            is_declined,
            ..ModelError::after_send("api_error", "no".to_owned())
        };
        for status in [301, 400, 401, 429, 500, 503, 529] {
            assert!(of(Some(status), false).is_refusal(), "{status}");
        }
        for status in [408, 504, 520, 524] {
            assert!(!of(Some(status), false).is_refusal(), "{status}");
            assert!(of(Some(status), true).is_refusal(), "{status}, said by the server itself");
        }
        assert!(of(None, true).is_refusal() && !of(None, false).is_refusal());
        let usage = Usage { input_tokens: u64::MAX, output_tokens: 7, ..Usage::default() }.clamp_counts();
        assert_eq!((usage.input_tokens, usage.output_tokens), (MAX_TOKENS, 7));
    }
}
