//! The hooks of `hook_conditions.yaml` and `hooks.yaml`.

use serde_json::Value;

use crate::hooks::{Hook, HookKind};

/// The lists of `hook_conditions.yaml`, what kind their hooks are, and their layer unless they say another.
pub const HOOK_LISTS: [(&str, HookKind, u8); 3] = [
    ("builtin_hooks", HookKind::Control, 2),
    ("context_hooks", HookKind::Control, 2),
    ("infra_hooks", HookKind::Infra, 3),
];

/// All hooks of the merged values.
/// # Errors
/// Every hook that is wrong.
pub fn parse_hooks(conditions: &Value, own: &Value) -> Result<Vec<Hook>, String> {
    let words = |key: &str| -> Vec<String> {
        let list = conditions.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (primaries, item_types) = (words("action_primaries"), words("action_item_types"));
    let mut errors = Vec::new();
    let mut hooks = Vec::new();
    let mut collect = |list: &str, value: Option<&Value>, kind: HookKind, layer: Option<u8>| {
        for (at, entry) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            match Hook::from_config(entry, kind, layer) {
                Ok(hook) => {
                    let outside = |key: &str, allowed: &[String]| {
                        let used = hook.actions.iter().filter_map(|action| action.get(key)?.as_str());
                        used.filter(|word| !allowed.iter().any(|known| known == word))
                            .map(str::to_owned)
                            .next()
                    };
                    if let Some(word) = outside("primary", &primaries) {
                        errors.push(format!("{list}[{at}]: `{word}` is not among action_primaries"));
                    }
                    if let Some(word) = outside("item_type", &item_types) {
                        errors.push(format!("{list}[{at}]: `{word}` is not among action_item_types"));
                    }
                    hooks.push(hook);
                }
                Err(message) => errors.push(format!("{list}[{at}]: {message}")),
            }
        }
    };
    collect("hooks", own.get("hooks"), HookKind::Control, None);
    for (list, kind, layer) in HOOK_LISTS {
        collect(list, conditions.get(list), kind, Some(layer));
    }
    if errors.is_empty() { Ok(hooks) } else { Err(errors.join("; ")) }
}

#[cfg(test)]
mod tests {
    use rye_item::parse::directive::HOOK_KEYS;

    use super::*;

    #[test]
    fn hook_lists_are_the_keys_of_items() {
        let lists: Vec<&str> =
            std::iter::once("hooks").chain(HOOK_LISTS.iter().map(|(list, ..)| *list)).collect();
        assert_eq!(lists, HOOK_KEYS);
    }
}
