//! How full the model's context is, and making room in it.
//!
//! The measure is what the provider counted for the last answer; only what was said since is estimated. When the pressure
//! rises past a threshold, hooks may bring a summary; with or without one, old turns make room, whole turns at a time, and
//! the first message stays.

use std::sync::Arc;

use crate::model::{ChatMessage, ModelRequest, Usage, estimate};
use serde_json::{Value, json};

use super::effect::Effect;
use super::hooks::{HookContinuation, cost_context};
use super::{Phase, ThreadState};
use crate::core_event::{CoreEvent, Nullable};

/// How long a result may be, in characters, while there is room.
pub const MAX_RESULT_CHARACTERS: usize = 16_000;
/// How long, once three quarters of the context window are used.
pub const MAX_RESULT_UNDER_PRESSURE: usize = 4_000;
/// Below what it was by this much, the pressure counts as gone (in thousandths).
const PRESSURE_HYSTERESIS: u64 = 50;

/// Characters of a tool's result that go into a summary's source.
const MAX_SUMMARY_RESULT_CHARS: usize = 1000;

/// What is known of the context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextUsage {
    /// Tokens of the conversation up to `messages`, as the provider counted them.
    tokens: u64,
    /// How many messages that covers.
    messages: usize,
    /// How many messages the transcript has.
    pub(super) recorded_messages: usize,
    /// The pressure at which hooks were last told, until it has gone down again.
    notified_at: Option<u64>,
}

impl ContextUsage {
    /// The provider counted.
    pub(super) fn record_usage(&mut self, usage: &Usage, messages: usize) {
        if usage.is_reported() {
            self.tokens = usage.input_tokens.saturating_add(usage.output_tokens);
            self.messages = messages;
        }
        self.recorded_messages = messages;
    }

    /// Tokens of the part of a request that the provider counted, and the messages after it; `None` when it counted
    /// none of this request.
    pub(super) fn counted<'a>(&self, request: &'a ModelRequest) -> Option<(u64, &'a [Arc<ChatMessage>])> {
        let is_counted = self.messages > 0 && self.messages <= request.messages.len();
        is_counted.then(|| (self.tokens, &request.messages[self.messages..]))
    }

    /// The most tokens this request can have as input.
    pub(super) fn max_input_tokens(&self, request: &ModelRequest) -> u64 {
        let Some((counted, new)) = self.counted(request) else {
            return estimate::max_input_tokens(request);
        };
        new.iter().fold(counted, |sum, message| sum.saturating_add(estimate::max_message_tokens(message)))
    }
}

impl ThreadState {
    /// How long a tool's result may be: less when room is scarce.
    #[must_use]
    pub fn max_result_chars(&self) -> usize {
        let is_nearly_full =
            self.context.tokens.saturating_mul(4) > self.active_model().context_window.saturating_mul(3);
        if is_nearly_full { MAX_RESULT_UNDER_PRESSURE } else { MAX_RESULT_CHARACTERS }
    }

    /// What hooks are told when the context has become nearly full.
    pub(super) fn context_pressure(&mut self) -> Option<Value> {
        let window = self.active_model().context_window;
        let used = self.context.tokens;
        if window == 0 {
            return None;
        }
        let permille = used.saturating_mul(1000) / window;
        if self.context.notified_at.is_some_and(|high| permille + PRESSURE_HYSTERESIS >= high) {
            return None;
        }
        self.context.notified_at = None;
        let mut context = cost_context(self);
        let ratio = permille_to_ratio(permille);
        context.insert("pressure_ratio".to_owned(), json!(ratio));
        context.insert("tokens_used".to_owned(), json!(used));
        context.insert("max_tokens".to_owned(), json!(window));
        let context = Value::Object(context);
        let is_full = permille >= self.trigger_permille();
        if !is_full
            && self.spec.template.hooks.matching("context_window_pressure", context.clone()).is_empty()
        {
            return None;
        }
        self.context.notified_at = Some(permille);
        Some(context)
    }

    /// What was said, as text, while hooks are asked to make room; nothing at any other time.
    #[must_use]
    pub fn conversation_to_summarise(&self) -> Option<String> {
        let Phase::Hooks(run) = &self.phase else { return None };
        run.is_compacting().then(|| self.conversation())
    }

    /// What was said, as text.
    #[must_use]
    pub fn conversation(&self) -> String {
        let lines = self.messages.iter().map(|message| match &**message {
            ChatMessage::User { text, files } => {
                let names = files.iter().map(|file| format!("[{}: {}] ", file.media_type, file.name));
                format!("User: {}{text}", names.collect::<String>())
            }
            ChatMessage::Assistant { text, calls, .. } => {
                let calls = calls.iter().map(|call| {
                    let arguments = serde_json::to_string(&call.input).unwrap_or_default();
                    format!("\nCalls {} with {}", call.name, call.malformed.as_ref().unwrap_or(&arguments))
                });
                format!("Assistant: {text}{}", calls.collect::<String>())
            }
            ChatMessage::Tool { name, content, .. } => {
                let start: String = content.chars().take(MAX_SUMMARY_RESULT_CHARS).collect();
                format!("Result of {name}: {start}")
            }
        });
        lines.collect::<Vec<_>>().join("\n\n")
    }

    /// How full the context is when old turns go with or without a summary, in thousandths.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share between 0 and 1")]
    fn trigger_permille(&self) -> u64 {
        (self.spec.template.config.coordination.continuation.trigger_threshold.clamp(0.0, 1.0) * 1000.0)
            as u64
    }

    /// Makes room: the first message, a summary if there is one, and the newest turns that fit.
    pub(super) fn compact_context(&mut self, summary: Option<&str>) -> Vec<Effect> {
        let window = self.active_model().context_window;
        let used = self.context.tokens;
        let is_full = used.saturating_mul(1000) / window.max(1) >= self.trigger_permille();
        if summary.is_none() && !is_full {
            return self.before_turn();
        }
        let max_tokens = self.spec.template.config.coordination.continuation.resume_ceiling_tokens;
        let recent = newest_turns(&self.messages, max_tokens);
        let dropped = self.messages.len().saturating_sub(recent.len() + 1);
        let mut effects = Vec::new();
        if dropped > 0 {
            let mut messages: Vec<Arc<ChatMessage>> = self.messages.first().cloned().into_iter().collect();
            let note = match summary {
                Some(summary) => {
                    format!("Summary of the work so far (older turns were removed):\n\n{summary}")
                }
                None => "Older turns were removed to make room. Go on with the task.".to_owned(),
            };
            messages.push(Arc::new(ChatMessage::user(note)));
            messages.extend(recent);
            self.messages = messages;
            self.context = ContextUsage { recorded_messages: self.messages.len(), ..ContextUsage::default() };
            effects.push(Self::record(CoreEvent::ContextCompacted {
                tokens_used: used,
                tokens_limit: window,
                messages_removed: dropped,
                summary: Nullable(summary.map(str::to_owned)),
            }));
        } else if is_full {
            // There was nothing to remove yet: the next turn may bring something.
            self.context.notified_at = None;
            let event = CoreEvent::ContextLimitReached {
                usage_ratio: permille_to_ratio(used.saturating_mul(1000) / window.max(1)),
                tokens_used: used,
                tokens_limit: window,
            };
            let (_, context) = event.clone().into_payload();
            effects.push(Self::record(event));
            effects.extend(self.run_hooks("context_limit_reached", context, HookContinuation::ContextFull));
            return effects;
        }
        effects.extend(self.before_turn());
        effects
    }
}

/// Thousandths as a share of one.
#[allow(clippy::cast_precision_loss, reason = "a share, to be shown")]
fn permille_to_ratio(permille: u64) -> f64 {
    permille as f64 / 1000.0
}

/// The newest whole turns whose messages fit `room` tokens; a turn begins with what the model said.
#[must_use]
pub fn newest_turns(messages: &[Arc<ChatMessage>], max_tokens: u64) -> Vec<Arc<ChatMessage>> {
    let mut starts: Vec<usize> = messages
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, message)| matches!(***message, ChatMessage::Assistant { .. }))
        .map(|(index, _)| index)
        .collect();
    let mut from = messages.len();
    let mut used = 0_u64;
    while let Some(start) = starts.pop() {
        let size = messages[start..from]
            .iter()
            .fold(0_u64, |sum, message| sum.saturating_add(estimate::max_message_tokens(message)));
        used = used.saturating_add(size);
        // The newest turn stays whatever its size: without it the model would not know where it is.
        if used > max_tokens && from < messages.len() {
            break;
        }
        from = start;
    }
    messages[from..].to_vec()
}
