//! A turn: limits, the call, and what the model's answer or failure leads to.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::{Answer, Failure, Finish, Message, Price, Request, ToolCall};
use serde_json::{Value, json};

use super::Trigger;
use super::control::Control;
use super::effect::{Effect, Outcome, Worst};
use super::event::{Refusal, Scarce};
use super::hooks::{Then, cost_context};
use super::question::Back;
use super::{Phase, State};
use crate::limits::Reached;
use crate::money::Nanos;
use crate::status::SuspendReason;

/// Reminders in a row before a thread that does not return its outputs has failed.
const MOST_REMINDERS: u32 = 2;

/// An answer shorter than this is not worth asking for.
const LEAST_OUTPUT: u64 = 16;

/// An answer of this length is what a thread that ran short should have room for next.
const AMPLE_OUTPUT: u64 = 4096;

impl State {
    /// The first message: what hooks and the directive put around the prompt, and the prompt.
    pub(super) fn first_message(
        &mut self,
        hooks_before: Vec<String>,
        hooks_after: Vec<String>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let spec = Arc::clone(&self.spec);
        let (own, shared) = (&spec.own, &spec.shared);
        let (mut before, mut after) = (hooks_before, hooks_after);
        let mut said = vec![own.message.clone()];
        if own.history.is_empty() {
            before.extend(shared.before.iter().cloned());
            after = shared.after.iter().cloned().chain(after).collect();
            said.insert(0, Some(own.prompt.clone()));
        } else {
            // What the directive puts around its prompt was said before.
            self.messages.clone_from(&own.history);
        }
        for (position, blocks) in [("before", &before), ("after", &after)] {
            if !blocks.is_empty() {
                effects.push(Self::emit("context_injected", json!({"position": position, "blocks": blocks})));
            }
        }
        let mut said = said.into_iter();
        let first: Vec<String> = before.into_iter().chain(said.next().flatten()).chain(after).collect();
        for text in (!first.is_empty()).then(|| first.join("\n\n")).into_iter().chain(said.flatten()) {
            self.say(text);
        }
        effects.extend(self.before_turn());
        effects
    }

    /// Before the model is asked: limits, if they are checked here, and what the call may cost.
    pub(super) fn before_turn(&mut self) -> Vec<Effect> {
        if self.spec.shared.config.resilience.check_before_turn
            && let Some(reached) = self.limits.reached(&self.cost)
        {
            let reached = self.with_need(reached);
            return self.limit(reached, SuspendReason::Limit);
        }
        let request = match self.request() {
            Ok(request) => request,
            Err(reached) => return self.limit(*reached, SuspendReason::Limit),
        };
        let mut effects = vec![Effect::Save(Trigger::PreTurn)];
        effects.extend(self.unsaid());
        self.calls += 1;
        self.phase = Phase::Calling;
        let worst = self.worst(&request);
        effects.push(Effect::CallModel { call: self.calls, request, worst });
        effects
    }

    /// What the user said since the model last spoke, for the transcript.
    fn unsaid(&mut self) -> Vec<Effect> {
        let from = self.context.told.min(self.messages.len());
        self.context.told = self.messages.len();
        let directive = &self.spec.shared.directive;
        let new = self.messages[from..].iter().filter_map(|message| match &**message {
            Message::User { text } => Some(Self::emit(
                "cognition_in",
                json!({"text": text, "role": "user", "directive": directive}),
            )),
            Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        new.collect()
    }

    /// What the next call would need of a limit that is reached, where calls need some of it.
    fn with_need(&self, reached: Reached) -> Reached {
        let shared = &self.spec.shared;
        let input = self.context.input_of(&self.whole_request());
        let ample = AMPLE_OUTPUT.min(shared.max_output_tokens);
        match (reached.name(), shared.price) {
            ("tokens", _) => reached.needing(json!(input.saturating_add(ample))),
            ("spend", Some(price)) => {
                reached.needing(json!(Nanos(price.worst(input, ample)).min(Nanos::MOST).dollars()))
            }
            _ => reached,
        }
    }

    /// The request, its answer as long as it may be.
    pub(super) fn whole_request(&self) -> Request {
        let shared = &self.spec.shared;
        Request {
            model: shared.model.clone(),
            system: self.system.clone(),
            messages: self.messages.clone(),
            tools: Arc::clone(&shared.definitions.tools),
            max_output_tokens: shared.max_output_tokens,
            wants_stream: shared.wants_stream,
        }
    }

    /// The request, its answer no longer than what is left to spend.
    fn request(&self) -> Result<Request, Box<Reached>> {
        let shared = &self.spec.shared;
        let mut request = self.whole_request();
        let input = self.context.input_of(&request);
        let wanted = LEAST_OUTPUT.min(shared.max_output_tokens);
        if let Some(most) = self.limits.tokens {
            let left = most.saturating_sub(self.cost.tokens()).saturating_sub(input);
            if left < wanted && !shared.is_free() {
                let reached = Reached::new("tokens", json!(self.cost.tokens()), json!(most));
                return Err(Box::new(self.with_need(reached)));
            }
            if !shared.is_free() {
                request.max_output_tokens = request.max_output_tokens.min(left);
            }
        }
        if let (Some(most), Some(price)) = (self.limits.spend, shared.price) {
            let left = most.minus(self.cost.spend);
            let affordable = affordable(price, left, input);
            if affordable < wanted {
                let reached = Reached::new("spend", json!(self.cost.spend.dollars()), json!(most.dollars()));
                return Err(Box::new(self.with_need(reached)));
            }
            request.max_output_tokens = request.max_output_tokens.min(affordable);
        }
        Ok(request)
    }

    fn worst(&self, request: &Request) -> Worst {
        let shared = &self.spec.shared;
        if shared.is_free() {
            return Worst { spend: Nanos(0), tokens: 0 };
        }
        let input = self.context.input_of(request);
        match shared.price {
            Some(price) => Worst {
                spend: Nanos(price.worst(input, request.max_output_tokens)).min(Nanos::MOST),
                tokens: 0,
            },
            // Nobody knows what it costs: tokens are what is counted.
            None => Worst { spend: Nanos(0), tokens: input.saturating_add(request.max_output_tokens) },
        }
    }

    /// The model answered.
    pub(super) fn answered(&mut self, mut answer: Answer, spend: Nanos) -> Vec<Effect> {
        if self.phase != Phase::Calling {
            return Vec::new();
        }
        self.cost.turns += 1;
        self.charge(&answer, spend);
        if let Some((kind, message)) = unusable(&answer) {
            let mut effects = self.reasoned(&answer);
            if !answer.text.is_empty() {
                effects.push(self.said(&answer, spend, true));
            }
            effects.extend(self.failed_with(&Failure::there(kind, message), 0));
            return effects;
        }
        self.failures = 0;
        name_calls(&mut answer.calls, self.cost.turns);
        let mut effects = self.reasoned(&answer);
        let stop = match answer.finish {
            Finish::Length => Stop::Cut,
            Finish::Paused => Stop::Paused,
            Finish::Stop | Finish::ToolCalls | Finish::Refused(_) | Finish::Other(_) => Stop::Done,
        };
        effects.push(self.said(&answer, spend, stop == Stop::Cut));
        effects.push(Effect::Save(Trigger::PostLlm));
        let (text, calls) = (answer.text.clone(), answer.calls.clone());
        self.messages.push(Arc::new(Message::Assistant {
            text: answer.text,
            calls: answer.calls,
            replay: answer.replay,
        }));
        self.context.counted(&answer.usage, self.messages.len());
        effects.extend(if calls.is_empty() { self.spoke(&text, stop) } else { self.call_tools(calls) });
        effects
    }

    fn reasoned(&self, answer: &Answer) -> Vec<Effect> {
        let event =
            || Self::emit("cognition_reasoning", json!({"text": answer.reasoning, "is_partial": false}));
        (!answer.reasoning.is_empty()).then(event).into_iter().collect()
    }

    fn said(&self, answer: &Answer, spend: Nanos, is_cut: bool) -> Effect {
        Self::emit(
            "cognition_out",
            json!({
                "text": answer.text,
                "model": self.spec.shared.model,
                "is_partial": false,
                "truncated": is_cut,
                "finish": answer.finish.to_string(),
                "input_tokens": answer.usage.input_tokens,
                "output_tokens": answer.usage.output_tokens,
                "spend": spend.dollars(),
            }),
        )
    }

    fn charge(&mut self, answer: &Answer, spend: Nanos) {
        self.cost.input_tokens = self.cost.input_tokens.saturating_add(answer.usage.input_tokens);
        self.cost.output_tokens = self.cost.output_tokens.saturating_add(answer.usage.output_tokens);
        self.cost.spend = self.cost.spend.plus(spend);
    }

    /// The model only spoke: it is done, unless its words were cut off or its outputs are missing.
    fn spoke(&mut self, text: &str, stop: Stop) -> Vec<Effect> {
        self.pieces.push_str(text);
        if stop == Stop::Paused {
            return self.turn_over();
        }
        if stop == Stop::Cut {
            self.cuts += 1;
            let most = self.spec.shared.max_output_tokens;
            // What is left to spend may be what cut it: then the limit says so when it is reached.
            let is_ours = self.request().is_ok_and(|request| request.max_output_tokens >= most);
            if self.cuts <= MOST_REMINDERS || !is_ours {
                self.say(
                    "Your answer was cut off at the output limit. Go on exactly where it stopped.".to_owned(),
                );
                return self.turn_over();
            }
            let result = Some(std::mem::take(&mut self.pieces));
            let message = "the answer was cut off at the output limit, time and again; `max_output_tokens` in \
                           agent/agent.yaml allows more";
            return self.finish(Outcome { result, ..Outcome::failed(message.to_owned()) });
        }
        self.cuts = 0;
        let outputs = &self.spec.shared.outputs;
        let required: Vec<&str> =
            outputs.iter().filter(|output| is_required(output)).filter_map(name_of).collect();
        if !outputs.is_empty() && self.reminders < MOST_REMINDERS {
            return self.remind(
                "You have not returned the declared outputs. Finish by calling `directive_return` with them; if you are blocked, call it with status=error and error_detail.",
            );
        }
        let result = std::mem::take(&mut self.pieces);
        if required.is_empty() {
            return self.finish(Outcome::completed(Some(result), None));
        }
        let message = format!("the model ended without returning {}", required.join(", "));
        self.finish(Outcome { result: Some(result), ..Outcome::failed(message) })
    }

    fn remind(&mut self, text: &str) -> Vec<Effect> {
        self.reminders += 1;
        self.say(text.to_owned());
        self.turn_over()
    }

    /// A turn is over: limits, if they are checked here; room in the context; the next one.
    pub(super) fn turn_over(&mut self) -> Vec<Effect> {
        if self.spec.shared.config.resilience.check_after_turn
            && let Some(reached) = self.limits.reached(&self.cost)
        {
            let reached = self.with_need(reached);
            return self.limit(reached, SuspendReason::Limit);
        }
        match self.context_pressure() {
            Some(context) => self.run_hooks("context_window_pressure", context, Then::Pressure),
            None => self.before_turn(),
        }
    }

    /// The model did not answer.
    pub(super) fn failed(
        &mut self,
        failure: &Failure,
        spend: Nanos,
        is_unknown: bool,
        jitter: u32,
    ) -> Vec<Effect> {
        if self.phase != Phase::Calling {
            return Vec::new();
        }
        self.cost.spend = self.cost.spend.plus(spend);
        let mut effects = Vec::new();
        if let Some(partial) = &failure.partial {
            self.cost.input_tokens = self.cost.input_tokens.saturating_add(partial.usage.input_tokens);
            self.cost.output_tokens = self.cost.output_tokens.saturating_add(partial.usage.output_tokens);
            let events = &self.spec.shared.config.events;
            let is_kept = events.event("cognition_reasoning").is_some_and(|event| event.accumulate_on_error);
            if is_kept && !partial.reasoning.is_empty() && events.emits_on_error("cognition_reasoning") {
                effects.push(Self::emit(
                    "cognition_reasoning",
                    json!({"text": partial.reasoning, "is_partial": true, "was_interrupted": true}),
                ));
            }
            if events.emits_on_error("cognition_out") {
                effects.push(Self::emit(
                    "cognition_out",
                    json!({
                        "text": partial.text,
                        "model": self.spec.shared.model,
                        "is_partial": true,
                        "truncated": true,
                        "error": failure.message,
                        "spend": spend.dollars(),
                        "spend_is_unknown": is_unknown,
                    }),
                ));
            }
        }
        effects.extend(self.failed_with(failure, jitter));
        effects
    }

    fn failed_with(&mut self, failure: &Failure, jitter: u32) -> Vec<Effect> {
        self.failures += 1;
        let config = &self.spec.shared.config;
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
            Self::emit(
                "error_classified",
                json!({
                    "error_code": class.code,
                    "category": class.category,
                    "retryable": class.retryable,
                    "error": failure.message,
                    "status_code": failure.status_code,
                    "attempt": self.failures,
                }),
            ),
            Effect::Save(Trigger::OnError),
        ];
        let then = Then::Failure { message: failure.message.clone(), delay_ms };
        effects.extend(self.run_hooks("error", Value::Object(context), then));
        effects
    }

    pub(super) fn failure_answered(
        &mut self,
        message: String,
        delay_ms: u64,
        control: Option<Control>,
    ) -> Vec<Effect> {
        let most = self.spec.shared.config.resilience.retry.max_retries;
        match control {
            Some(Control::Retry) if self.failures <= most => {
                if let Some(reached) = self.too_late(delay_ms) {
                    return self.limit(reached, SuspendReason::Limit);
                }
                self.phase = Phase::Sleeping;
                let attempt = self.failures;
                vec![
                    Self::emit(
                        "retry_scheduled",
                        json!({"attempt": attempt, "of": most, "delay_ms": delay_ms, "error": message}),
                    ),
                    Effect::Sleep { ms: delay_ms },
                ]
            }
            Some(Control::Retry) => {
                let attempts = rye_item::text::counted(self.failures, "attempt");
                let message = format!("{message} (gave up after {attempts})");
                self.finish(Outcome::failed(message))
            }
            Some(Control::Suspend { .. }) => {
                self.suspend(Outcome::suspended(SuspendReason::Error, message, Value::Null))
            }
            Some(Control::Fail(error)) => {
                self.finish(Outcome::failed(if error.is_empty() { message } else { error }))
            }
            Some(control) => self.steered(control, Back::Turn).unwrap_or_default(),
            None => self.finish(Outcome::failed(message)),
        }
    }

    /// Whether the thread's time is over before such a pause is: then it need not be waited for.
    fn too_late(&self, delay_ms: u64) -> Option<Reached> {
        let most = self.limits.duration_seconds?;
        let elapsed = self.elapsed_at(self.last_ms);
        let is_late = elapsed.saturating_add(delay_ms) > most.saturating_mul(1000);
        let reached = || Reached::new("duration_seconds", json!(elapsed / 1000), json!(most));
        is_late.then(|| reached().needing(json!(delay_ms.div_ceil(1000).saturating_add(60))))
    }

    pub(super) fn slept(&mut self) -> Vec<Effect> {
        if self.phase != Phase::Sleeping {
            return Vec::new();
        }
        self.before_turn()
    }

    /// A budget could not cover the next call.
    pub(super) fn refused(&mut self, refusal: &Refusal) -> Vec<Effect> {
        if self.phase != Phase::Calling {
            return Vec::new();
        }
        let is_own = refusal.by == self.spec.own.thread_id;
        let show = |amount: u64| match refusal.what {
            Scarce::Spend => json!(Nanos(amount).dollars()),
            Scarce::Tokens => json!(amount),
        };
        let name = match (is_own, refusal.what) {
            (true, Scarce::Spend) => "spend",
            (true, Scarce::Tokens) => "tokens",
            (false, _) => "hierarchical_budget",
        };
        let used = refusal.used.saturating_add(refusal.reserved);
        // What others below it used counts as well, and with more room the call may ask for more.
        let whole = self.worst(&self.whole_request());
        let asked = refusal.asked.max(match refusal.what {
            Scarce::Spend => whole.spend.0,
            Scarce::Tokens => whole.tokens,
        });
        let reached = Reached::new(name, show(used), show(refusal.most)).needing(show(asked));
        let mut effects = vec![Self::emit(
            "budget_exhausted",
            json!({
                "thread_id": refusal.by,
                "what": refusal.what,
                "most": show(refusal.most),
                "used": show(refusal.used),
                "reserved": show(refusal.reserved),
                "asked": show(refusal.asked),
            }),
        )];
        let reason = if is_own { SuspendReason::Limit } else { SuspendReason::Budget };
        effects.extend(self.limit(reached, reason));
        effects
    }

    /// A limit is reached: hooks may end the thread; nothing lets it go on but a person.
    pub(super) fn limit(&mut self, reached: Reached, reason: SuspendReason) -> Vec<Effect> {
        let mut context = cost_context(self);
        context.insert("limit_code".to_owned(), json!(reached.limit_code));
        context.insert("current_value".to_owned(), reached.current_value.clone());
        context.insert("current_max".to_owned(), reached.current_max.clone());
        self.run_hooks("limit", Value::Object(context), Then::Limit(Box::new(reached), reason))
    }

    pub(super) fn limit_answered(
        &mut self,
        reached: &Reached,
        reason: SuspendReason,
        control: Option<Control>,
    ) -> Vec<Effect> {
        use crate::config::OnExceed;
        let message = reached.message();
        let on_exceed = self.spec.shared.config.resilience.on_exceed;
        let on_exceed = match control {
            Some(Control::Fail(error)) => {
                return self.finish(Outcome::failed(if error.is_empty() { message } else { error }));
            }
            Some(Control::Abort(error)) => return self.finish(Outcome::cancelled(error)),
            Some(Control::Suspend { .. }) => OnExceed::Suspend,
            Some(Control::Escalate(_)) => OnExceed::Escalate,
            // Nothing may go past a limit: asking to go on means what the configuration says.
            Some(Control::Retry) | None => on_exceed,
        };
        if on_exceed == OnExceed::Fail {
            return self.finish(Outcome::failed(message));
        }
        let detail = serde_json::to_value(reached).unwrap_or_default();
        let mut effects = vec![Self::emit("limit_escalation_requested", detail.clone())];
        // An ancestor's money is not this thread's to ask for: there is no answer that would let it go on.
        let asks = on_exceed == OnExceed::Escalate && reason == SuspendReason::Limit;
        let question = asks.then(|| self.limit_question(reached, &message));
        let outcome = Outcome::suspended(reason, message, detail);
        effects.extend(self.pause(outcome, Back::Turn, question.into_iter().collect()));
        effects
    }

    /// The thread's time is over while something was outstanding.
    pub(super) fn expired(&mut self, spend: Nanos) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        let most = self.limits.duration_seconds.unwrap_or(0);
        let mut effects = match &mut self.phase {
            Phase::Tools(_) => self.stop_tools("stopped: the thread's time is over"),
            Phase::Calling | Phase::Sleeping | Phase::Hooks(_) => Vec::new(),
            Phase::New | Phase::Suspended(_) | Phase::Ended(_) => return Vec::new(),
        };
        let reached = Reached::new("duration_seconds", json!(self.cost.elapsed_ms / 1000), json!(most));
        effects.extend(self.limit(reached, SuspendReason::Limit));
        effects
    }
}

/// How an answer of words ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Done,
    Cut,
    /// The provider wants to be asked again.
    Paused,
}

/// Why an answer cannot be used, if it cannot: it is refused, or there is nothing in it.
fn unusable(answer: &Answer) -> Option<(&'static str, String)> {
    match &answer.finish {
        Finish::Refused(reason) => Some((
            "Refusal",
            format!("the model refused to answer, or a filter took its answer away: {reason}"),
        )),
        finish if answer.text.is_empty() && answer.calls.is_empty() => {
            let why = match finish {
                Finish::Length => {
                    ": its room was used up before a word of it, by its reasoning perhaps".to_owned()
                }
                Finish::Other(reason) => format!(": {reason}"),
                _ => String::new(),
            };
            Some(("EmptyAnswer", format!("the model answered nothing{why}")))
        }
        _ => None,
    }
}

/// How many tokens of answer `left` pays for, after the input.
fn affordable(price: Price, left: Nanos, input: u64) -> u64 {
    let after_input = left.0.saturating_sub(price.worst(input, 0));
    match price.output {
        0 if left.0 >= price.worst(input, 0) => u64::MAX,
        0 => 0,
        per_token => after_input / per_token,
    }
}

/// Each call has a name of its own, whatever the model sent.
fn name_calls(calls: &mut [ToolCall], turn: u64) {
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

fn name_of(output: &Value) -> Option<&str> {
    output.get("name").and_then(Value::as_str)
}
