//! `budget_ops`: the ledger, for the calling thread and what is below it.

use serde_json::{Map, Value, json};

use super::{failed, missing, text};
use crate::facts::{BudgetDoor, ThreadFacts};
use crate::money::Nanos;
use crate::thread_id::ThreadId;

pub(super) fn operate(parameters: &Map<String, Value>, facts: &ThreadFacts) -> Value {
    let Some(budget) = &facts.budget else {
        return missing();
    };
    asked(parameters, facts, budget.as_ref()).unwrap_or_else(failed)
}

fn asked(
    parameters: &Map<String, Value>,
    facts: &ThreadFacts,
    budget: &dyn BudgetDoor,
) -> Result<Value, String> {
    let own = |id: &str| -> Result<ThreadId, String> {
        let id = ThreadId::parse(id).map_err(|error| error.to_string())?;
        if id == facts.thread_id || budget.is_within(&facts.thread_id, &id) {
            return Ok(id);
        }
        Err(format!("{id} is not {} and not below it", facts.thread_id))
    };
    let thread = own(text(parameters, "thread_id").unwrap_or(facts.thread_id.as_str()))?;
    match text(parameters, "operation").unwrap_or_default() {
        "reserve" => {
            let amount = amount(parameters)?;
            let parent = text(parameters, "parent_thread_id").map(own).transpose()?;
            let is_reserved = budget.reserve(&thread, parent.as_ref(), amount)?;
            let reserved = if is_reserved { amount } else { Nanos(0) };
            Ok(json!({"success": is_reserved, "reserved": reserved.dollars()}))
        }
        "report_actual" => {
            let amount = amount(parameters)?;
            budget.report_actual(&thread, amount)?;
            Ok(json!({"success": true, "reported": amount.dollars()}))
        }
        "release" => {
            budget.release(&thread, text(parameters, "final_status"))?;
            Ok(json!({"success": true, "released": true}))
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
        Some(value) => Nanos::from_value(value)
            .ok_or_else(|| "amount is an amount of dollars with at most nine places".to_owned()),
    }
}
