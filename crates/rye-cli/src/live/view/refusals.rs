//! What to do about calls that were refused, for the end of a thread that failed because of them.
//!
//! What a result says of itself may come from the tool: a hint names a command that only looks, never one that signs.

use rye_item::{ItemRef, ItemType};
use serde_json::Value;

use super::MAX_TEXT_LENGTH;
use crate::live::format::truncate;

/// Codes of items that do not verify.
const UNVERIFIED_CODES: [&str; 6] = ["RYE0401", "RYE0402", "RYE0403", "RYE0404", "RYE0405", "RYE0406"];

/// Hints that are kept.
const MAX_HINTS: usize = 3;

/// What was refused to the calls of one thread.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    hints: Vec<String>,
}

impl Refusals {
    /// A call has come back: its item may not verify.
    pub(super) fn add_result(&mut self, payload: &Value) {
        let envelope = payload.get("error").and_then(Value::as_str);
        let envelope = envelope.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(item) = envelope.as_ref().and_then(unverified_item) {
            let ItemRef { item_type, id } = &item;
            self.add(format!(
                "see what is wrong with {item}: rye verify {item_type} {id}; read it before you sign it"
            ));
        }
    }

    /// The thread's grants do not cover a call.
    pub(super) fn add_denial(&mut self, payload: &Value) {
        let text = |key: &str| {
            truncate(payload.get(key).and_then(Value::as_str).unwrap_or_default(), MAX_TEXT_LENGTH)
        };
        let action = [text("denied_action"), text("denied_item_type"), text("denied_item_id")];
        let action: Vec<String> = action.into_iter().filter(|part| !part.is_empty()).collect();
        if !action.is_empty() {
            let action = action.join(" ");
            self.add(format!(
                "`{action}` was denied: only if the directive is meant to do it, add it to its <permissions>"
            ));
        }
    }

    fn add(&mut self, hint: String) {
        if self.hints.len() < MAX_HINTS && !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    pub(super) fn hints(&self) -> &[String] {
        &self.hints
    }
}

/// The item that a failed call's result says does not verify: the message begins with it.
fn unverified_item(envelope: &Value) -> Option<ItemRef> {
    let text = |key: &str| envelope.get(key).and_then(Value::as_str);
    text("code").filter(|code| UNVERIFIED_CODES.contains(code))?;
    let first = text("error").and_then(|message| message.split_whitespace().next());
    let named = first.and_then(|word| ItemRef::parse(None, word).ok());
    named.or_else(|| ItemRef::parse(Some(ItemType::Tool.as_str()), text("item_id")?).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hints(code: &str, error: &str, item: &str) -> Vec<String> {
        let mut refusals = Refusals::default();
        let envelope = json!({"status": "error", "error": error, "code": code, "item_id": item});
        let payload = json!({"call_id": "1", "error": envelope.to_string()});
        refusals.add_result(&payload);
        refusals.add_result(&payload);
        refusals.hints().to_vec()
    }

    #[test]
    fn unverified_item_is_named_with_a_command() {
        let hint =
            "see what is wrong with tool:team/slow: rye verify tool team/slow; read it before you sign it";
        assert_eq!(hints("RYE0402", "tool:team/slow changed since it was signed", "team/slow"), [hint]);
        assert_eq!(hints("RYE0401", "it is unsigned", "team/slow"), [hint]);
        assert_eq!(hints("RYE0501", "tool:team/slow failed", "team/slow"), Vec::<String>::new());
        assert_eq!(hints("RYE0402", "tool:$(x) changed", "a;b"), Vec::<String>::new());
    }

    #[test]
    fn denied_action_names_its_grant() {
        let mut refusals = Refusals::default();
        let denied =
            json!({"denied_action": "execute", "denied_item_type": "tool", "denied_item_id": "team/slow"});
        refusals.add_denial(&denied);
        refusals.add_denial(&json!({}));
        let hint = "`execute tool team/slow` was denied: only if the directive is meant to do it, add it to its <permissions>";
        assert_eq!(refusals.hints(), [hint]);
    }
}
