//! What the next model call may use: the bound of its prompt, an estimate where the bound does not fit, an answer no
//! longer than what is left, and waiting for what is only reserved.
//!
//! The bound of a prompt costs nothing and is the first check. The estimate looks at the text, and is corrected by what
//! the provider counts in this thread.

use rye_item::timestamp::iso_timestamp;
use serde_json::json;

use super::effect::{CostBound, Effect};
use super::event::{BudgetRefusal, BudgetResource};
use super::{Phase, ThreadState};
use crate::core_event::CoreEvent;
use crate::limits::LimitReached;
use crate::model::text_tokens::TokenProfile;
use crate::model::{ModelRequest, TokenPrice, Usage, estimate};
use crate::money::Nanos;

/// An answer shorter than this is not worth asking for.
const MIN_OUTPUT_TOKENS: u64 = 128;
/// The same before revision 2.
const MIN_OUTPUT_TOKENS_BEFORE_2: u64 = 16;
/// An answer of this length is what a thread that ran short should have room for next.
const TARGET_OUTPUT_TOKENS: u64 = 4096;
/// A smaller part of a prompt says little about a tokenizer.
const MIN_CALIBRATION_TOKENS: u64 = 100;
/// What a provider's count may be of an estimate, in thousandths; a count beyond it teaches nothing more.
const CALIBRATION_RANGE: [u64; 2] = [700, 3000];
/// What is added to the learned ratio, in thousandths: the next text may be of another kind.
const CALIBRATION_MARGIN: u64 = 50;

/// A prompt may have this part more tokens than are estimated: so far under the real count an estimate may be.
const ESTIMATE_MARGIN_DIVISOR: u64 = 20;

/// What a provider's counts say of a model's tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenCalibration {
    /// The largest count so far of what was estimated, in thousandths.
    ratio: Option<u64>,
}

impl TokenCalibration {
    /// What an estimate is multiplied by, in thousandths.
    fn factor(self, profile: &TokenProfile) -> u64 {
        self.ratio.map_or(profile.allowance, |ratio| ratio + CALIBRATION_MARGIN)
    }

    /// The provider counted `counted` where `estimated` was estimated, without the factor.
    fn record(&mut self, estimated: u64, counted: u64) {
        if estimated < MIN_CALIBRATION_TOKENS || counted == 0 {
            return;
        }
        let [min, max] = CALIBRATION_RANGE;
        let ratio = (counted.saturating_mul(1000) / estimated).clamp(min, max);
        self.ratio = Some(self.ratio.unwrap_or(0).max(ratio));
    }
}

/// A model call as it fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlannedModelCall {
    /// Tokens of the prompt.
    pub(super) input: u64,
    /// The longest answer to ask for.
    pub(super) max_output: u64,
    /// Whether `input` is an estimate; else it is the bound.
    is_estimate: bool,
}

impl ThreadState {
    /// Whether it waits for money that is reserved for other calls.
    #[must_use]
    pub fn is_waiting_for_budget(&self) -> bool {
        matches!(self.phase, Phase::BudgetWait { .. })
    }

    /// Whether its calls wait for money that is only reserved.
    #[must_use]
    pub fn can_wait_for_budget(&self) -> bool {
        self.spec.template.revision >= 2
    }

    /// What a call that was broken off is charged: what it has used so far at its price, and no more than was reserved.
    #[must_use]
    pub fn spend_so_far(&self, usage: &Usage, reserved: Nanos) -> Nanos {
        let price = self.active_model().price.unwrap_or_default();
        Nanos(price.cost(usage)).min(reserved)
    }

    /// The record of a call that was broken off, with the most it can have cost where that is not known.
    pub(super) fn spend_at_most(&self, is_unknown: bool) -> Option<f64> {
        (is_unknown && self.spec.template.revision >= 2)
            .then(|| self.cost_bound(&self.planned).spend.dollars())
    }

    /// The prompt's tokens as they are estimated.
    pub(super) fn estimated_input(&self, request: &ModelRequest) -> u64 {
        let profile = TokenProfile::for_model(self.active_model().model);
        let (counted, new) = self.uncounted_estimate(request, profile);
        let new = new.saturating_mul(self.calibration.factor(profile)).div_ceil(1000);
        counted.saturating_add(new).min(self.context.max_input_tokens(request))
    }

    /// What is reserved for a prompt: from revision 5 on, the most that the estimate allows for.
    fn reserved_input(&self, request: &ModelRequest) -> u64 {
        let estimated = self.estimated_input(request);
        if self.spec.template.revision < 5 {
            return estimated;
        }
        let most = estimated.saturating_add(estimated / ESTIMATE_MARGIN_DIVISOR + 1);
        most.min(self.context.max_input_tokens(request))
    }

    /// What the provider counted of a request, and the plain estimate of the rest.
    fn uncounted_estimate(&self, request: &ModelRequest, profile: &TokenProfile) -> (u64, u64) {
        match self.context.counted(request) {
            None => (0, estimate::input_tokens(profile, request)),
            Some((counted, new)) => {
                let new = new.iter().map(|message| estimate::message_tokens(profile, message));
                (counted, new.fold(0, u64::saturating_add))
            }
        }
    }

    /// Learns from the provider's count of the call that was answered; gives what had been estimated.
    pub(super) fn compare_estimate(&mut self, usage: &Usage) -> Option<u64> {
        let shared = &self.spec.template;
        let is_counted = usage.is_reported() && usage.source.is_provider();
        if shared.revision < 2 || self.active_model().is_free() || !is_counted {
            return None;
        }
        let profile = TokenProfile::for_model(self.active_model().model);
        let request = self.full_request();
        let estimated = self.estimated_input(&request);
        let (counted, new) = self.uncounted_estimate(&request, profile);
        self.calibration.record(new, usage.input_tokens.saturating_sub(counted));
        Some(estimated)
    }

    fn min_output(&self) -> u64 {
        let shared = &self.spec.template;
        let min = if shared.revision < 2 { MIN_OUTPUT_TOKENS_BEFORE_2 } else { MIN_OUTPUT_TOKENS };
        min.min(self.active_model().max_output_tokens)
    }

    /// What the next call would need of a limit that is reached, where calls need some of it.
    pub(super) fn with_next_call_need(&self, reached: LimitReached) -> LimitReached {
        let active = self.active_model();
        let input = self.likely_input(&self.full_request());
        let target = TARGET_OUTPUT_TOKENS.min(active.max_output_tokens);
        match (reached.name(), active.price) {
            ("tokens", _) => reached.with_needed(json!(input.saturating_add(target))),
            ("spend", Some(price)) => {
                reached.with_needed(json!(Nanos(price.max_cost(input, target)).min(Nanos::MAX).dollars()))
            }
            _ => reached,
        }
    }

    /// The estimate, where the thread's rules know one, else the bound.
    fn likely_input(&self, request: &ModelRequest) -> u64 {
        match self.spec.template.revision {
            0 | 1 => self.context.max_input_tokens(request),
            _ => self.reserved_input(request),
        }
    }

    /// The next call, its answer no longer than what is left. The prompt is estimated only if its bound would shorten the
    /// answer or leave no room for one.
    pub(super) fn plan_call(&self) -> Result<PlannedModelCall, Box<LimitReached>> {
        let shared = &self.spec.template;
        let request = self.full_request();
        let bound = self.context.max_input_tokens(&request);
        let fitted = self.fit_output(bound);
        if shared.revision < 2
            || fitted.as_ref().is_ok_and(|output| *output == self.active_model().max_output_tokens)
        {
            return fitted.map(|max_output| PlannedModelCall {
                input: bound,
                max_output,
                is_estimate: false,
            });
        }
        let input = self.reserved_input(&request);
        self.fit_output(input).map(|max_output| PlannedModelCall { input, max_output, is_estimate: true })
    }

    /// The longest answer that the thread's own limits allow after such a prompt.
    fn fit_output(&self, input: u64) -> Result<u64, Box<LimitReached>> {
        let active = self.active_model();
        let mut output = active.max_output_tokens;
        if let Some(max) = self.limits.tokens.filter(|_| !active.is_free()) {
            let remaining = max.saturating_sub(self.cost.tokens()).saturating_sub(input);
            if remaining < self.min_output() {
                let reached = LimitReached::new("tokens", json!(self.cost.tokens()), json!(max));
                return Err(Box::new(self.with_next_call_need(reached)));
            }
            output = output.min(remaining);
        }
        if let (Some(max), Some(price)) = (self.limits.spend, active.price) {
            let affordable = affordable_tokens(price, max.minus(self.cost.spend), input);
            if affordable < self.min_output() {
                let reached =
                    LimitReached::new("spend", json!(self.cost.spend.dollars()), json!(max.dollars()));
                return Err(Box::new(self.with_next_call_need(reached)));
            }
            output = output.min(affordable);
        }
        Ok(output)
    }

    /// The call as an effect; it is the one on its way from here on.
    pub(super) fn call_effect(&mut self, planned: PlannedModelCall) -> Effect {
        self.planned = planned;
        let request = ModelRequest { max_output_tokens: planned.max_output, ..self.full_request() };
        Effect::CallModel { call: self.calls, request, cost_bound: self.cost_bound(&planned) }
    }

    fn cost_bound(&self, planned: &PlannedModelCall) -> CostBound {
        let active = self.active_model();
        if active.is_free() {
            return CostBound { spend: Nanos(0), tokens: 0 };
        }
        match active.price {
            Some(price) => CostBound {
                spend: Nanos(price.max_cost(planned.input, planned.max_output)).min(Nanos::MAX),
                tokens: 0,
            },
            // The price is unknown: only tokens are counted.
            None => CostBound { spend: Nanos(0), tokens: planned.input.saturating_add(planned.max_output) },
        }
    }

    /// The most that a call with an answer of any length can cost.
    pub(super) fn full_cost_bound(&self) -> CostBound {
        let max_output = self.active_model().max_output_tokens;
        let input = self.likely_input(&self.full_request());
        self.cost_bound(&PlannedModelCall { input, max_output, is_estimate: false })
    }

    /// A call that fits into what was not spent of the budget that refused it: at once, or as soon as what others have
    /// reserved is settled. `None` when none does.
    pub(super) fn plan_within(&mut self, refusal: &BudgetRefusal) -> Option<Vec<Effect>> {
        let shared = &self.spec.template;
        if shared.revision < 2 || self.active_model().is_free() {
            return None;
        }
        let unspent = refusal.limit.saturating_sub(refusal.used);
        let free = unspent.saturating_sub(refusal.reserved);
        let mut planned = self.planned;
        if !planned.is_estimate {
            planned.input = self.reserved_input(&self.full_request());
            planned.is_estimate = true;
        }
        let affordable = match (refusal.resource, self.active_model().price) {
            (BudgetResource::Tokens, _) => unspent.saturating_sub(planned.input),
            (BudgetResource::Spend, Some(price)) => affordable_tokens(price, Nanos(unspent), planned.input),
            (BudgetResource::Spend, None) => return None,
        };
        if affordable < self.min_output() {
            return None;
        }
        planned.max_output = planned.max_output.min(affordable);
        let cost_bound = self.cost_bound(&planned);
        let needed = match refusal.resource {
            BudgetResource::Spend => cost_bound.spend.0,
            BudgetResource::Tokens => cost_bound.tokens,
        };
        // What was refused as it is now has to wait, whatever was free at that moment.
        if needed <= free && planned != self.planned {
            self.phase = Phase::CallingModel;
            return Some(vec![self.call_effect(planned)]);
        }
        self.planned = planned;
        let mut effects = Vec::new();
        let since_ms = match self.phase {
            Phase::BudgetWait { since_ms } => since_ms,
            _ => {
                effects.push(Self::record(CoreEvent::BudgetWaiting {
                    thread_id: refusal.refused_by.clone(),
                    what: refusal.resource,
                    most: refusal.amount_value(refusal.limit),
                    used: refusal.amount_value(refusal.used),
                    reserved: refusal.amount_value(refusal.reserved),
                    asked: refusal.amount_value(needed),
                    budget: refusal.rolling.as_ref().map(|rolling| rolling.budget.clone()),
                    frees_at: refusal.rolling.as_ref().map(|rolling| iso_timestamp(rolling.frees_ms)),
                }));
                self.last_ms
            }
        };
        self.phase = Phase::BudgetWait { since_ms };
        let timeout_ms = self.spec.template.config.resilience.concurrency.queue_timeout_ms();
        let deadline_ms = since_ms.saturating_add(timeout_ms);
        effects.push(Effect::AwaitBudget { call: self.calls, cost_bound, deadline_ms });
        Some(effects)
    }

    /// What the call waited for is reserved.
    pub(super) fn on_budget_granted(&mut self) -> Vec<Effect> {
        if !self.is_waiting_for_budget() {
            return Vec::new();
        }
        self.phase = Phase::CallingModel;
        vec![self.call_effect(self.planned)]
    }

    /// What the call waited for did not come in time.
    pub(super) fn on_budget_wait_expired(&mut self, refusal: &BudgetRefusal) -> Vec<Effect> {
        if !self.is_waiting_for_budget() {
            return Vec::new();
        }
        self.budget_exhausted(refusal)
    }
}

/// How many output tokens `remaining` pays for, after the input.
fn affordable_tokens(price: TokenPrice, remaining: Nanos, input: u64) -> u64 {
    let after_input = remaining.0.saturating_sub(price.max_cost(input, 0));
    match price.output {
        0 if remaining.0 >= price.max_cost(input, 0) => u64::MAX,
        0 => 0,
        per_token => after_input / per_token,
    }
}
