//! The hooks of `hook_conditions.yaml` and `hooks.yaml`, each with the file's standing: who wrote it decides what it is
//! granted.

use rye_item::Space;
use rye_space::config::{Layer, Standing};
use rye_trust::Subject;
use serde_json::{Map, Value, json};

use crate::hooks::{Hook, Kind, Origin};

/// The lists of `hook_conditions.yaml`, what kind their hooks are, and their layer unless they say another.
const LISTS: [(&str, Kind, u8); 3] = [
    ("builtin_hooks", Kind::Control, 2),
    ("context_hooks", Kind::Control, 2),
    ("infra_hooks", Kind::Infra, 3),
];

/// Marks every hook with where it comes from, and takes away grants that its file may not give.
pub(super) fn with_origins(mut merged: Value, layers: &[&Layer], notices: &mut Vec<String>) -> Value {
    for (list, _, _) in LISTS {
        let Some(Value::Array(hooks)) = merged.get_mut(list) else { continue };
        for hook in hooks.iter_mut().filter_map(Value::as_object_mut) {
            let id = hook.get("id").cloned().unwrap_or(Value::Null);
            let is_in = |layer: &&&Layer| {
                let own = layer.located.parsed().fields.get(list).and_then(Value::as_array);
                own.is_some_and(|own| own.iter().any(|one| one.get("id") == Some(&id)))
            };
            if let Some(layer) = layers.iter().rev().find(is_in) {
                mark(hook, layer, notices);
            }
        }
    }
    merged
}

/// The hooks of every `hooks.yaml`, one after the other: a project's hook never takes the place of the user's.
pub(super) fn concatenated(layers: &[&Layer], notices: &mut Vec<String>) -> Value {
    let mut all = Vec::new();
    for layer in layers {
        let own = layer.located.parsed().fields.get("hooks").and_then(Value::as_array).into_iter().flatten();
        for hook in own {
            let mut hook = hook.clone();
            if let Some(hook) = hook.as_object_mut() {
                mark(hook, layer, notices);
            }
            all.push(hook);
        }
    }
    json!({ "hooks": all })
}

fn mark(hook: &mut Map<String, Value>, layer: &Layer, notices: &mut Vec<String>) {
    let origin = match layer.located.space() {
        Space::System(_) => Origin::System,
        Space::User => Origin::User,
        Space::Project => Origin::Project,
    };
    hook.insert("origin".to_owned(), json!(origin));
    let may_grant = layer.standing == Standing::Vouched && origin != Origin::Project;
    if !may_grant && hook.remove("grants").is_some() {
        let id = rye_item::text::one_line(hook.get("id").and_then(Value::as_str).unwrap_or("?"));
        let reason = match origin {
            Origin::Project => "a project's hooks run on the thread's capabilities",
            Origin::User | Origin::System | Origin::Directive => "they count in a signed file only",
        };
        notices.push(format!(
            "{}: the grants of hook `{id}` are left out: {reason}",
            layer.located.path.display()
        ));
    }
}

/// All hooks of the merged values.
pub(super) fn read(conditions: &Value, own: &Value) -> Result<Vec<Hook>, String> {
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
