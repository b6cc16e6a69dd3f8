//! A turn: limits, the call, and what the model's answer or failure leads to.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::{
    ChatMessage, FinishReason, ModelError, ModelRequest, ModelResponse, ToolCall, UsageSource,
};
use serde_json::{Value, json};

use super::SaveTrigger;
use super::approval::ResumeAt;
use super::control::HookControl;
use super::effect::{Effect, ThreadOutcome};
use super::hooks::{HookContinuation, cost_context};
use super::{Phase, ThreadState};
use crate::call_hooks::CallEvent;
use crate::core_event::{CoreEvent, Nullable};
use crate::limits::LimitReached;
use crate::money::Nanos;
use crate::status::SuspendReason;

/// Reminders in a row before a thread that does not return its outputs has failed.
pub(super) const MAX_REMINDERS: u32 = 2;

impl ThreadState {
    /// The first message: what hooks and the directive put around the prompt, and the prompt.
    pub(super) fn first_message(
        &mut self,
        hooks_before: Vec<String>,
        hooks_after: Vec<String>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let spec = Arc::clone(&self.spec);
        let (own, shared) = (&spec.instance, &spec.template);
        let (mut before, mut after) = (hooks_before, hooks_after);
        let mut messages = vec![own.message.clone()];
        if own.history.is_empty() {
            before.extend(shared.before.iter().cloned());
            after = shared.after.iter().cloned().chain(after).collect();
            messages.insert(0, Some(own.prompt.clone()));
        } else {
            // What the directive puts around its prompt was said before.
            self.messages.clone_from(&own.history);
        }
        for (position, blocks) in [("before", &before), ("after", &after)] {
            if !blocks.is_empty() {
                let (position, blocks) = (position.to_owned(), blocks.clone());
                effects.push(Self::record(CoreEvent::ContextInjected { position, blocks }));
            }
        }
        let mut messages = messages.into_iter();
        let first: Vec<String> = before.into_iter().chain(messages.next().flatten()).chain(after).collect();
        for text in (!first.is_empty()).then(|| first.join("\n\n")).into_iter().chain(messages.flatten()) {
            self.push_user_message(text);
        }
        if own.history.is_empty() {
            self.show_files();
        }
        effects.extend(self.before_turn());
        effects
    }

    /// Puts the files of the inputs before the words of the first message.
    fn show_files(&mut self) {
        let shown = &self.spec.instance.files;
        if !shown.is_empty()
            && let Some(first) = self.messages.first_mut()
            && let ChatMessage::User { files, .. } = Arc::make_mut(first)
        {
            files.clone_from(shown);
        }
    }

    /// Before the model is asked: limits, if they are checked here, and what the call may cost.
    pub(super) fn before_turn(&mut self) -> Vec<Effect> {
        self.push_hook_notes();
        if self.spec.template.config.resilience.check_before_turn
            && let Some(reached) = self.limits.first_reached(&self.cost)
        {
            let reached = self.with_next_call_need(reached);
            return self.on_limit(reached, SuspendReason::Limit);
        }
        if !self.is_call_cleared && self.has_call_hooks(CallEvent::BeforeModel) {
            return self.run_before_model();
        }
        self.call_model()
    }

    /// Asks the model, if a limit leaves room for it.
    pub(super) fn call_model(&mut self) -> Vec<Effect> {
        let planned = match self.plan_call() {
            Ok(planned) => planned,
            Err(reached) => return self.on_limit(*reached, SuspendReason::Limit),
        };
        let mut effects = vec![Effect::SaveState(SaveTrigger::PreTurn)];
        effects.extend(self.unrecorded_messages());
        self.calls += 1;
        self.phase = Phase::CallingModel;
        effects.push(self.call_effect(planned));
        effects
    }

    /// What the user said since the model last spoke, for the transcript.
    fn unrecorded_messages(&mut self) -> Vec<Effect> {
        let from = self.context.recorded_messages.min(self.messages.len());
        self.context.recorded_messages = self.messages.len();
        let directive = &self.spec.template.directive;
        let new = self.messages[from..].iter().filter_map(|message| match &**message {
            ChatMessage::User { text, files } => Some(Self::record(CoreEvent::CognitionIn {
                text: text.clone(),
                role: "user".to_owned(),
                directive: directive.clone(),
                files: Some(files.clone()).filter(|files| !files.is_empty()),
            })),
            ChatMessage::Assistant { .. } | ChatMessage::Tool { .. } => None,
        });
        new.collect()
    }

    /// The request, its answer as long as it may be.
    pub(super) fn full_request(&self) -> ModelRequest {
        let shared = &self.spec.template;
        ModelRequest {
            model: self.active_model().model.to_owned(),
            system: self.system.clone(),
            messages: self.messages.clone(),
            tools: Arc::clone(&shared.definitions.tools),
            max_output_tokens: self.active_model().max_output_tokens,
            settings: Arc::clone(&shared.settings),
            files: Arc::default(),
            wants_stream: shared.wants_stream,
        }
    }

    /// The model answered.
    pub(super) fn on_response(&mut self, mut response: ModelResponse, spend: Nanos) -> Vec<Effect> {
        if self.phase != Phase::CallingModel {
            return Vec::new();
        }
        self.cost.turns += 1;
        self.is_call_cleared = false;
        self.charge(&response, spend);
        let estimated = self.compare_estimate(&response.usage);
        let in_context = self.usage_in_context(&response);
        let impossible = self.impossible_usage(&response.usage, spend);
        if let Some((kind, message)) = unusable_reason(&response) {
            let mut effects = self.emit_reasoning(&response);
            effects.extend(impossible);
            if !response.text.is_empty() {
                effects.push(self.emit_output(&response, spend, true, estimated));
            }
            effects.extend(self.handle_failure(&ModelError::after_send(kind, message), 0));
            return effects;
        }
        self.failures = 0;
        ensure_call_ids(&mut response.calls, self.cost.turns);
        let mut effects = self.emit_reasoning(&response);
        let stop = match response.finish_reason {
            FinishReason::Length => TextEnd::Truncated,
            FinishReason::Paused => TextEnd::Paused,
            FinishReason::Stop
            | FinishReason::ToolCalls
            | FinishReason::Refused(_)
            | FinishReason::Other(_) => TextEnd::Done,
        };
        effects.extend(impossible);
        effects.push(self.emit_output(&response, spend, stop == TextEnd::Truncated, estimated));
        effects.push(Effect::SaveState(SaveTrigger::PostLlm));
        let (text, calls) = (response.text.clone(), response.calls.clone());
        self.messages.push(Arc::new(ChatMessage::Assistant {
            text: response.text,
            calls: response.calls,
            replay: response.replay,
        }));
        self.context.record_usage(&in_context, self.messages.len());
        effects.extend(if self.has_call_hooks(CallEvent::AfterModel) {
            self.run_after_model(text, calls, stop)
        } else {
            self.use_answer(&text, calls, stop)
        });
        effects
    }

    /// What the model's answer leads to.
    pub(super) fn use_answer(&mut self, text: &str, calls: Vec<ToolCall>, stop: TextEnd) -> Vec<Effect> {
        if calls.is_empty() { self.on_text_only(text, stop) } else { self.call_tools(calls) }
    }

    fn emit_reasoning(&self, response: &ModelResponse) -> Vec<Effect> {
        let event = || {
            let text = response.reasoning.clone();
            Self::record(CoreEvent::CognitionReasoning { text, is_partial: false, was_interrupted: None })
        };
        (!response.reasoning.is_empty()).then(event).into_iter().collect()
    }

    fn emit_output(
        &self,
        response: &ModelResponse,
        spend: Nanos,
        is_cut: bool,
        estimated: Option<u64>,
    ) -> Effect {
        Self::record(CoreEvent::CognitionOut {
            text: response.text.clone(),
            model: self.active_model().model.to_owned(),
            is_partial: false,
            truncated: is_cut,
            error: None,
            finish: Some(response.finish_reason.to_string()),
            input_tokens: Some(response.usage.input_tokens),
            output_tokens: Some(response.usage.output_tokens),
            spend: spend.dollars(),
            spend_is_unknown: None,
            tokens_are_estimated: (response.usage.source == UsageSource::Estimate).then_some(true),
            estimated,
            actual: estimated.map(|_| response.usage.input_tokens),
            spend_at_most: None,
        })
    }

    fn charge(&mut self, response: &ModelResponse, spend: Nanos) {
        self.cost.input_tokens = self.cost.input_tokens.saturating_add(response.usage.input_tokens);
        self.cost.output_tokens = self.cost.output_tokens.saturating_add(response.usage.output_tokens);
        self.cost.spend = self.cost.spend.plus(spend);
    }

    /// The model only spoke: it is done, unless its words were cut off or its outputs are missing.
    fn on_text_only(&mut self, text: &str, stop: TextEnd) -> Vec<Effect> {
        self.partial_text.push_str(text);
        if stop == TextEnd::Paused {
            return self.end_turn();
        }
        if stop == TextEnd::Truncated {
            self.truncations += 1;
            let max_tokens = self.active_model().max_output_tokens;
            // What is left to spend may be what cut it: then the limit says so when it is reached.
            let is_ours = self.plan_call().is_ok_and(|planned| planned.max_output >= max_tokens);
            if self.truncations <= MAX_REMINDERS || !is_ours {
                self.push_user_message(
                    "Your answer was cut off at the output limit. Go on exactly where it stopped.".to_owned(),
                );
                return self.end_turn();
            }
            let result = Some(std::mem::take(&mut self.partial_text));
            let hint = self.output_limit_hint();
            let message = format!("the answer was cut off at the output limit, time and again; {hint}");
            return self.finish(ThreadOutcome { result, ..ThreadOutcome::failed(message) });
        }
        self.truncations = 0;
        if let Some(effects) = self.reject_format() {
            return effects;
        }
        let outputs = &self.spec.template.outputs;
        let required: Vec<&str> =
            outputs.iter().filter(|output| is_required(output)).filter_map(output_name).collect();
        if !outputs.is_empty() && self.reminders < MAX_REMINDERS {
            if self.spec.template.revision >= 6 {
                self.partial_text.clear();
            }
            return self.remind(
                "You have not returned the declared outputs. Finish by calling `directive_return` with them; if you are blocked, call it with status=error and error_detail.",
            );
        }
        let result = std::mem::take(&mut self.partial_text);
        if required.is_empty() {
            return self.finish(ThreadOutcome::completed(Some(result), None));
        }
        let message = format!("the model ended without returning {}", required.join(", "));
        self.finish(ThreadOutcome { result: Some(result), ..ThreadOutcome::failed(message) })
    }

    pub(super) fn remind(&mut self, text: &str) -> Vec<Effect> {
        self.reminders += 1;
        self.push_user_message(text.to_owned());
        self.end_turn()
    }

    /// A turn is over: limits, if they are checked here; room in the context; the next one.
    pub(super) fn end_turn(&mut self) -> Vec<Effect> {
        if self.spec.template.config.resilience.check_after_turn
            && let Some(reached) = self.limits.first_reached(&self.cost)
        {
            let reached = self.with_next_call_need(reached);
            return self.on_limit(reached, SuspendReason::Limit);
        }
        match self.context_pressure() {
            Some(context) => {
                self.run_hooks("context_window_pressure", context, HookContinuation::ContextPressure)
            }
            None => self.before_turn(),
        }
    }

    /// The model did not answer.
    pub(super) fn on_failure(
        &mut self,
        failure: &ModelError,
        spend: Nanos,
        is_unknown: bool,
        jitter: u32,
    ) -> Vec<Effect> {
        if self.phase != Phase::CallingModel {
            return Vec::new();
        }
        self.cost.spend = self.cost.spend.plus(spend);
        let mut effects = Vec::new();
        if let Some(partial) = &failure.partial {
            self.cost.input_tokens = self.cost.input_tokens.saturating_add(partial.usage.input_tokens);
            self.cost.output_tokens = self.cost.output_tokens.saturating_add(partial.usage.output_tokens);
            effects.extend(self.impossible_usage(&partial.usage, spend));
            let events = &self.spec.template.config.events;
            let keeps_partial =
                events.event("cognition_reasoning").is_some_and(|event| event.accumulate_on_error);
            if keeps_partial && !partial.reasoning.is_empty() && events.emits_on_error("cognition_reasoning")
            {
                effects.push(Self::record(CoreEvent::CognitionReasoning {
                    text: partial.reasoning.clone(),
                    is_partial: true,
                    was_interrupted: Some(true),
                }));
            }
            if events.emits_on_error("cognition_out") {
                effects.push(self.partial_output(&partial.text, &failure.message, spend, is_unknown));
            }
        } else if is_unknown {
            self.count_stopped_call(spend, None);
        }
        effects.extend(self.handle_failure(failure, jitter));
        effects
    }

    fn handle_failure(&mut self, failure: &ModelError, jitter: u32) -> Vec<Effect> {
        self.failures += 1;
        let config = &self.spec.template.config;
        let error = json!({"type": failure.kind, "message": failure.message, "code": failure.code});
        let document = json!({
            "error": error,
            "status_code": failure.status_code,
            "headers": failure.headers,
            "cancelled": failure.kind == "CancelledError",
        });
        let class = config.classification.classify(&document);
        let delay_ms = class.policy.delay_ms(self.failures - 1, &failure.headers, self.last_ms, jitter);
        let mut context = cost_context(self);
        context.insert("error".to_owned(), error);
        context.insert("status_code".to_owned(), json!(failure.status_code));
        context.insert("attempt".to_owned(), json!(self.failures));
        context.insert("classification".to_owned(), class.to_value());
        let mut effects = vec![
            Self::record(CoreEvent::ErrorClassified {
                error_code: class.code.clone(),
                category: class.category.clone(),
                retryable: class.retryable,
                error: failure.message.clone(),
                status_code: Nullable(failure.status_code),
                attempt: self.failures,
            }),
            Effect::SaveState(SaveTrigger::OnError),
        ];
        let then = HookContinuation::Failure { message: failure.message.clone(), delay_ms };
        effects.extend(self.run_hooks("error", Value::Object(context), then));
        effects
    }

    pub(super) fn after_error_hooks(
        &mut self,
        message: String,
        delay_ms: u64,
        control: Option<HookControl>,
    ) -> Vec<Effect> {
        let max_retries = self.spec.template.config.resilience.retry.max_retries;
        match control {
            Some(HookControl::Retry) if self.failures <= max_retries => {
                if let Some(reached) = self.deadline_reached(delay_ms) {
                    return self.on_limit(reached, SuspendReason::Limit);
                }
                self.phase = Phase::Sleeping;
                let attempt = self.failures;
                vec![
                    Self::record(CoreEvent::RetryScheduled {
                        attempt,
                        of: max_retries,
                        delay_ms,
                        error: message,
                    }),
                    Effect::Sleep { ms: delay_ms },
                ]
            }
            Some(HookControl::Retry) => {
                let attempts = rye_item::text::counted(self.failures, "attempt");
                let message = format!("{message} (gave up after {attempts})");
                if self.spec.template.revision < 2 {
                    return self.finish(ThreadOutcome::failed(message));
                }
                if let Some(effects) = self.fall_back(&message) {
                    return effects;
                }
                // What passes by itself may have passed when the thread is resumed.
                self.suspend(ThreadOutcome::suspended(SuspendReason::Provider, message, Value::Null))
            }
            Some(HookControl::Suspend { reason, prompt, .. })
                if self.asks_person(&reason, prompt.as_deref()) =>
            {
                // A no means that it must not continue after this failure.
                let why = if reason == "approval" { message } else { format!("{reason}: {message}") };
                let prompt = prompt.or_else(|| Some(format!("may it go on after this failure? {why}")));
                self.ask_for_hook(&why, prompt, true, ResumeAt::Turn)
            }
            Some(HookControl::Suspend { .. }) => {
                self.suspend(ThreadOutcome::suspended(SuspendReason::Error, message, Value::Null))
            }
            Some(HookControl::Fail(error)) => {
                let message = if error.is_empty() { message } else { error };
                self.fall_back(&message).unwrap_or_else(|| self.finish(ThreadOutcome::failed(message)))
            }
            Some(control) => self.apply_control(control, ResumeAt::Turn).unwrap_or_default(),
            None => self.fall_back(&message).unwrap_or_else(|| self.finish(ThreadOutcome::failed(message))),
        }
    }

    /// Whether a hook that suspends wants a person to be asked.
    pub(super) fn asks_person(&self, reason: &str, prompt: Option<&str>) -> bool {
        self.spec.template.revision >= 1 && (prompt.is_some() || reason == "approval")
    }

    /// Whether the thread's time is over before such a pause is: then it need not be waited for.
    fn deadline_reached(&self, delay_ms: u64) -> Option<LimitReached> {
        let max_seconds = self.limits.duration_seconds?;
        let elapsed = self.cost.elapsed_ms;
        let is_late = elapsed.saturating_add(delay_ms) > max_seconds.saturating_mul(1000);
        let reached = || LimitReached::new("duration_seconds", json!(elapsed / 1000), json!(max_seconds));
        is_late.then(|| reached().with_needed(json!(delay_ms.div_ceil(1000).saturating_add(60))))
    }

    pub(super) fn on_backoff_elapsed(&mut self) -> Vec<Effect> {
        if self.phase != Phase::Sleeping {
            return Vec::new();
        }
        self.before_turn()
    }
}

/// How an answer of words ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextEnd {
    Done,
    Truncated,
    /// The provider wants to be asked again.
    Paused,
}

/// Why an answer cannot be used, if it cannot: it is refused, or there is nothing in it.
fn unusable_reason(response: &ModelResponse) -> Option<(&'static str, String)> {
    match &response.finish_reason {
        FinishReason::Refused(reason) => Some((
            "Refusal",
            format!("the model refused to answer, or a filter took its answer away: {reason}"),
        )),
        finish if response.text.is_empty() && response.calls.is_empty() => {
            let why = match finish {
                FinishReason::Length => {
                    ": its room was used up before a word of it, by its reasoning perhaps".to_owned()
                }
                FinishReason::Other(reason) => format!(": {reason}"),
                _ => String::new(),
            };
            Some(("EmptyAnswer", format!("the model answered nothing{why}")))
        }
        _ => None,
    }
}

/// Each call has a name of its own, whatever the model sent.
fn ensure_call_ids(calls: &mut [ToolCall], turn: u64) {
    let mut seen = HashSet::new();
    for (index, call) in calls.iter_mut().enumerate() {
        if call.id.is_empty() || !seen.insert(call.id.clone()) {
            call.id = format!("call_{turn}_{index}");
            seen.insert(call.id.clone());
        }
    }
}

fn is_required(output: &Value) -> bool {
    output.get("required").and_then(Value::as_bool) == Some(true)
}

fn output_name(output: &Value) -> Option<&str> {
    output.get("name").and_then(Value::as_str)
}
