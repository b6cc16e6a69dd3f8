//! The hooks of `hook_conditions.yaml` and `hooks.yaml`, each with the file's standing: who wrote it decides what it is
//! granted.

use rye_item::Space;
use rye_space::config::{ConfigLayer, LayerTrust};
use rye_trust::Subject;
use serde_json::{Map, Value, json};

use rye_thread::config::hooks::HOOK_LISTS;
use rye_thread::hooks::HookOrigin;

/// Marks every hook with where it comes from, and takes away grants that its file may not give.
pub(super) fn with_origins(mut merged: Value, layers: &[&ConfigLayer], notices: &mut Vec<String>) -> Value {
    for (list, _, _) in HOOK_LISTS {
        let Some(Value::Array(hooks)) = merged.get_mut(list) else { continue };
        for hook in hooks.iter_mut().filter_map(Value::as_object_mut) {
            let id = hook.get("id").cloned().unwrap_or(Value::Null);
            let is_in = |layer: &&&ConfigLayer| {
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
pub(super) fn concatenated(layers: &[&ConfigLayer], notices: &mut Vec<String>) -> Value {
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

fn mark(hook: &mut Map<String, Value>, layer: &ConfigLayer, notices: &mut Vec<String>) {
    let origin = match layer.located.space() {
        Space::System(_) => HookOrigin::System,
        Space::User => HookOrigin::User,
        Space::Project => HookOrigin::Project,
    };
    hook.insert("origin".to_owned(), json!(origin));
    let may_grant = layer.trust == LayerTrust::Trusted && origin != HookOrigin::Project;
    if !may_grant && hook.remove("grants").is_some() {
        let id = rye_item::text::one_line(hook.get("id").and_then(Value::as_str).unwrap_or("?"));
        let reason = match origin {
            HookOrigin::Project => "a project's hooks run on the thread's capabilities",
            HookOrigin::User | HookOrigin::System | HookOrigin::Directive => {
                "they count in a signed file only"
            }
        };
        notices.push(format!(
            "{}: the grants of hook `{id}` are left out: {reason}",
            layer.located.path.display()
        ));
    }
}
