//! Whether a submitted thread is what this worker would make of the same request: no more limits, no more permissions, and
//! nothing else in it than its directive and the worker's own settings say.

use rye_engine::{Code, Error, Result};
use rye_item::text::join_first;
use serde_json::Value;

use crate::spec::ThreadSpec;

/// What of a template may differ from the worker's own: it says nothing about what the thread does.
const FREE_FIELDS: [&str; 2] = ["candidates", "revision"];

/// Differences that are named.
const MAX_NAMED: usize = 3;

/// Refuses a thread that is more than what the worker prepared from the same request.
///
/// # Errors
/// What of it is more, or another.
pub(super) fn check_spec(submitted: &ThreadSpec, own: &ThreadSpec) -> Result<()> {
    let raised = submitted.instance.limits.raised_limits(&own.instance.limits);
    if let Some(first) = raised.first() {
        let message =
            format!("it raises the limit {} to {}; this worker allows {}", first.name, first.to, first.from);
        return Err(refused(&message).hint("submit it with lower limits: --limit NAME=VALUE"));
    }
    if !submitted.instance.capabilities.is_within(&own.instance.capabilities) {
        let message = "it has more permissions than its directive gives it on this worker";
        return Err(refused(message).hint("sign the directive with these permissions, and submit it again"));
    }
    if submitted.template.revision > own.template.revision {
        let message = "a newer rye prepared it";
        return Err(refused(message).hint("upgrade the worker"));
    }
    let instance = |spec: &ThreadSpec| -> Result<Value> {
        let mut instance = spec.instance.clone();
        // What is lower is as good, and what was removed before is not known here.
        instance.limits = own.instance.limits;
        instance.capabilities = own.instance.capabilities.clone();
        instance.removed_secrets = None;
        to_value(&instance)
    };
    let template = |spec: &ThreadSpec| -> Result<Value> {
        let mut value = to_value(&*spec.template)?;
        if let Value::Object(fields) = &mut value {
            fields.retain(|name, _| !FREE_FIELDS.contains(&name.as_str()));
        }
        Ok(value)
    };
    let mut differing = Vec::new();
    find_differences("", &instance(submitted)?, &instance(own)?, &mut differing);
    find_differences("", &template(submitted)?, &template(own)?, &mut differing);
    if differing.is_empty() {
        return Ok(());
    }
    let named = join_first(&differing, MAX_NAMED);
    let message = format!("this worker prepares another thread from its directive: {named} differ");
    Err(refused(&message).hint("make the settings of user and worker the same: rye config show --origin"))
}

fn refused(message: &str) -> Error {
    Error::new(Code::SubmissionRefused, format!("the submission is refused: {message}"))
}

fn to_value(of: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(of).map_err(|error| Error::new(Code::SubmissionRefused, error.to_string()))
}

/// The names of fields that differ: of objects their own fields, two levels deep.
fn find_differences(above: &str, left: &Value, right: &Value, differing: &mut Vec<String>) {
    if left == right {
        return;
    }
    let is_deep = above.matches('.').count() >= 1;
    match (left, right) {
        (Value::Object(left), Value::Object(right)) if !is_deep => {
            let only_right = right.keys().filter(|name| !left.contains_key(*name));
            for name in left.keys().chain(only_right) {
                let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
                let of =
                    |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                find_differences(&path, &of(left), &of(right), differing);
            }
        }
        _ => differing.push(above.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differing_fields_are_named() {
        let (left, right) = (
            json!({"prompt": "a", "config": {"agent": 1, "events": {"x": 1}}, "same": 1}),
            json!({"prompt": "b", "config": {"agent": 1, "events": {"x": 2}, "more": 1}, "same": 1}),
        );
        let mut differing = Vec::new();
        find_differences("", &left, &right, &mut differing);
        assert_eq!(differing, ["prompt", "config.events", "config.more"]);
    }
}
