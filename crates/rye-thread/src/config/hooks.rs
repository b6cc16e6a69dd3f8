//! The hooks of `hook_conditions.yaml` and `hooks.yaml`.

use serde_json::Value;

use crate::hooks::{Hook, Kind};

/// The lists of `hook_conditions.yaml`, what kind their hooks are, and their layer unless they say another.
pub const LISTS: [(&str, Kind, u8); 3] = [
    ("builtin_hooks", Kind::Control, 2),
    ("context_hooks", Kind::Control, 2),
    ("infra_hooks", Kind::Infra, 3),
];

/// All hooks of the merged values.
/// # Errors
/// Every hook that is wrong.
pub fn read(conditions: &Value, own: &Value) -> Result<Vec<Hook>, String> {
    let words = |key: &str| -> Vec<String> {
        let list = conditions.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (primaries, item_types) = (words("action_primaries"), words("action_item_types"));
    let mut wrong = Vec::new();
    let mut hooks = Vec::new();
    let mut take = |list: &str, value: Option<&Value>, kind: Kind, layer: Option<u8>| {
        for (at, written) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            match Hook::from_config(written, kind, layer) {
                Ok(hook) => {
                    let outside = |key: &str, allowed: &[String]| {
                        let said = hook.actions.iter().filter_map(|action| action.get(key)?.as_str());
                        said.filter(|word| !allowed.iter().any(|known| known == word))
                            .map(str::to_owned)
                            .next()
                    };
                    if let Some(word) = outside("primary", &primaries) {
                        wrong.push(format!("{list}[{at}]: `{word}` is not among action_primaries"));
                    }
                    if let Some(word) = outside("item_type", &item_types) {
                        wrong.push(format!("{list}[{at}]: `{word}` is not among action_item_types"));
                    }
                    hooks.push(hook);
                }
                Err(message) => wrong.push(format!("{list}[{at}]: {message}")),
            }
        }
    };
    take("hooks", own.get("hooks"), Kind::Control, None);
    for (list, kind, layer) in LISTS {
        take(list, conditions.get(list), kind, Some(layer));
    }
    if wrong.is_empty() { Ok(hooks) } else { Err(wrong.join("; ")) }
}
