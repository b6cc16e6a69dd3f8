//! How full the model's context is, and making room in it.
//!
//! The measure is what the provider counted for the last answer; only what was said since is estimated. When the pressure
//! rises past a threshold, hooks may bring a summary; with or without one, old turns make room, whole turns at a time, and
//! the first message stays.

use std::sync::Arc;

use crate::model::{Answer, Message, Request, Usage, estimate};
use serde_json::{Value, json};

use super::effect::Effect;
use super::hooks::{Then, cost_context};
use super::{Phase, State};

/// How long a result may be, in characters, while there is room.
pub const MAX_RESULT_CHARACTERS: usize = 16_000;
/// How long, once three quarters of the context window are used.
pub const MAX_RESULT_UNDER_PRESSURE: usize = 4_000;
/// Below what it was by this much, the pressure counts as gone (in thousandths).
const HYSTERESIS: u64 = 50;

/// Characters of a tool's result that go into a summary's source.
const MOST_OF_A_RESULT: usize = 1000;

/// What is known of the context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    /// Tokens of the conversation up to `messages`, as the provider counted them.
    tokens: u64,
    /// How many messages that covers.
    messages: usize,
    /// How many messages the transcript has.
    pub(super) told: usize,
    /// The pressure at which hooks were last told, until it has gone down again.
    high_at: Option<u64>,
}

impl Context {
    /// The provider counted.
    pub(super) fn counted(&mut self, usage: &Usage, messages: usize) {
        if usage.is_reported() {
            self.tokens = usage.input_tokens.saturating_add(usage.output_tokens);
            self.messages = messages;
        }
        self.told = messages;
    }

    /// The most tokens this request can have as input.
    pub(super) fn input_of(&self, request: &Request) -> u64 {
        if self.messages == 0 || self.messages > request.messages.len() {
            return estimate::worst_input_tokens(request);
        }
        let new = request.messages[self.messages..].iter();
        new.fold(self.tokens, |sum, message| sum.saturating_add(estimate::worst_message_tokens(message)))
    }
}

impl State {
    /// What an answer may have used, where the server does not say: a token for three bytes.
    #[must_use]
    pub fn estimated(&self, answer: &Answer) -> Usage {
        let said =
            Message::Assistant { text: answer.text.clone(), calls: answer.calls.clone(), replay: Vec::new() };
        let thought = Message::User { text: answer.reasoning.clone() };
        let output = [said, thought].iter().map(estimate::worst_message_tokens).fold(0, u64::saturating_add);
        let input = self.context.input_of(&self.whole_request());
        Usage { input_tokens: input.div_ceil(3), output_tokens: output.div_ceil(3), ..Usage::default() }
    }

    /// How long a tool's result may be: less when room is scarce.
    #[must_use]
    pub fn most_characters(&self) -> usize {
        let is_scarce =
            self.context.tokens.saturating_mul(4) > self.spec.shared.context_window.saturating_mul(3);
        if is_scarce { MAX_RESULT_UNDER_PRESSURE } else { MAX_RESULT_CHARACTERS }
    }

    /// What hooks are told when the context has become nearly full.
    pub(super) fn context_pressure(&mut self) -> Option<Value> {
        let window = self.spec.shared.context_window;
        let used = self.context.tokens;
        if window == 0 {
            return None;
        }
        let permille = used.saturating_mul(1000) / window;
        if self.context.high_at.is_some_and(|high| permille + HYSTERESIS >= high) {
            return None;
        }
        self.context.high_at = None;
        let mut context = cost_context(self);
        let ratio = share(permille);
        context.insert("pressure_ratio".to_owned(), json!(ratio));
        context.insert("tokens_used".to_owned(), json!(used));
        context.insert("max_tokens".to_owned(), json!(window));
        let context = Value::Object(context);
        let is_full = permille >= self.trigger_permille();
        if !is_full && self.spec.shared.hooks.matching("context_window_pressure", context.clone()).is_empty()
        {
            return None;
        }
        self.context.high_at = Some(permille);
        Some(context)
    }

    /// What was said, as text, while hooks are asked to make room; nothing at any other time.
    #[must_use]
    pub fn conversation_to_summarise(&self) -> Option<String> {
        let Phase::Hooks(run) = &self.phase else { return None };
        run.is_making_room().then(|| self.conversation())
    }

    /// What was said, as text.
    #[must_use]
    pub fn conversation(&self) -> String {
        let lines = self.messages.iter().map(|message| match &**message {
            Message::User { text } => format!("User: {text}"),
            Message::Assistant { text, calls, .. } => {
                let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
                format!("Assistant: {text} [calls: {}]", names.join(", "))
            }
            Message::Tool { name, content, .. } => {
                let start: String = content.chars().take(MOST_OF_A_RESULT).collect();
                format!("Result of {name}: {start}")
            }
        });
        lines.collect::<Vec<_>>().join("\n\n")
    }

    /// How full the context is when old turns go with or without a summary, in thousandths.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share between 0 and 1")]
    fn trigger_permille(&self) -> u64 {
        (self.spec.shared.config.coordination.continuation.trigger_threshold.clamp(0.0, 1.0) * 1000.0) as u64
    }

    /// Makes room: the first message, a summary if there is one, and the newest turns that fit.
    pub(super) fn relieve(&mut self, summary: Option<&str>) -> Vec<Effect> {
        let window = self.spec.shared.context_window;
        let used = self.context.tokens;
        let is_full = used.saturating_mul(1000) / window.max(1) >= self.trigger_permille();
        if summary.is_none() && !is_full {
            return self.before_turn();
        }
        let room = self.spec.shared.config.coordination.continuation.resume_ceiling_tokens;
        let kept = newest_turns(&self.messages, room);
        let dropped = self.messages.len().saturating_sub(kept.len() + 1);
        let mut effects = Vec::new();
        if dropped > 0 {
            let mut messages: Vec<Arc<Message>> = self.messages.first().cloned().into_iter().collect();
            let note = match summary {
                Some(summary) => {
                    format!("Summary of the work so far (older turns were removed):\n\n{summary}")
                }
                None => "Older turns were removed to make room. Go on with the task.".to_owned(),
            };
            messages.push(Arc::new(Message::User { text: note }));
            messages.extend(kept);
            self.messages = messages;
            self.context = Context { told: self.messages.len(), ..Context::default() };
            effects.push(Self::emit(
                "context_compacted",
                json!({
                    "tokens_used": used,
                    "tokens_limit": window,
                    "messages_removed": dropped,
                    "summary": summary,
                }),
            ));
        } else if is_full {
            // There was nothing to remove yet: the next turn may bring something.
            self.context.high_at = None;
            let context = json!({
                "usage_ratio": share(used.saturating_mul(1000) / window.max(1)),
                "tokens_used": used,
                "tokens_limit": window,
            });
            effects.push(Self::emit("context_limit_reached", context.clone()));
            effects.extend(self.run_hooks("context_limit_reached", context, Then::Full));
            return effects;
        }
        effects.extend(self.before_turn());
        effects
    }
}

/// Thousandths as a share of one.
#[allow(clippy::cast_precision_loss, reason = "a share, to be shown")]
fn share(permille: u64) -> f64 {
    permille as f64 / 1000.0
}

/// The newest whole turns whose messages fit `room` tokens; a turn begins with what the model said.
#[must_use]
pub fn newest_turns(messages: &[Arc<Message>], room: u64) -> Vec<Arc<Message>> {
    let mut starts: Vec<usize> = messages
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, message)| matches!(***message, Message::Assistant { .. }))
        .map(|(index, _)| index)
        .collect();
    let mut from = messages.len();
    let mut used = 0_u64;
    while let Some(start) = starts.pop() {
        let size = messages[start..from]
            .iter()
            .fold(0_u64, |sum, message| sum.saturating_add(estimate::worst_message_tokens(message)));
        used = used.saturating_add(size);
        // The newest turn stays whatever its size: without it the model would not know where it is.
        if used > room && from < messages.len() {
            break;
        }
        from = start;
    }
    messages[from..].to_vec()
}
