//! `budget_ops`: the ledger, for the calling thread and what is below it.

use serde_json::{Map, Value, json};

use super::{failure, missing_context, text_param};
use crate::cost::Cost;
use crate::money::Nanos;
use crate::thread_id::ThreadId;
use crate::tool_context::{BudgetAccess, ThreadContext};

/// Why a hook can neither reserve nor release money.
const RESERVATION_ERROR: &str = "a thread's budget is reserved and released with each call of its model, in the same \
                                 transaction as its record; a hook may ask check_remaining or report_actual";

pub(super) fn run(parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    let Some(budget) = &context.budget else {
        return missing_context();
    };
    try_run(parameters, context, budget.as_ref()).unwrap_or_else(failure)
}

fn try_run(
    parameters: &Map<String, Value>,
    context: &ThreadContext,
    budget: &dyn BudgetAccess,
) -> Result<Value, String> {
    let own_thread = |id: &str| -> Result<ThreadId, String> {
        let id = ThreadId::parse(id).map_err(|error| error.to_string())?;
        if id == context.thread_id || budget.is_within(&context.thread_id, &id) {
            return Ok(id);
        }
        Err(format!("{id} is not {} and not below it", context.thread_id))
    };
    let thread = own_thread(text_param(parameters, "thread_id").unwrap_or(context.thread_id.as_str()))?;
    match text_param(parameters, "operation").unwrap_or_default() {
        "reserve" | "release" => Err(RESERVATION_ERROR.to_owned()),
        "report_actual" => {
            let amount = amount(parameters)?;
            if thread != context.thread_id {
                return Err(format!("{thread} reports what it spends itself"));
            }
            let report = Cost { spend: amount, ..Cost::default() };
            let sum = context.cost.with_report(&report);
            sum.map_err(|problem| format!("invalid parameters: amount: {problem}"))?;
            // The machine adds it to the thread's cost, and the ledger books it with that step.
            Ok(
                json!({"success": true, "reported": amount.dollars(), "added": {"spend": amount.to_decimal()}}),
            )
        }
        "check_remaining" => {
            let remaining = budget.remaining(&thread)?;
            Ok(json!({"success": true, "remaining": remaining.map(Nanos::dollars)}))
        }
        other => Err(format!("Unknown operation: {}", rye_item::text::one_line(other))),
    }
}

/// 003's default: nothing.
fn amount(parameters: &Map<String, Value>) -> Result<Nanos, String> {
    match parameters.get("amount") {
        None | Some(Value::Null) => Ok(Nanos(0)),
        Some(value) => Nanos::from_value(value).ok_or_else(|| {
            "invalid parameters: amount is an amount of dollars with at most nine places".to_owned()
        }),
    }
}
