//! What threads of a simulation are made of: the shipped configuration, two tools and children, with or without hooks
//! around calls and a model to fall back to.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use rye_thread::definitions::{THREAD_DIRECTIVE, ToolBinding, ToolDefinitions};
use rye_thread::hooks::Hooks;
use rye_thread::model::{TokenPrice, ToolDefinition};
use rye_thread::spec::{FallbackModel, ThreadTemplate};
use serde_json::{Value, json};

/// The directive of roots.
pub(super) const ROOT_DIRECTIVE: &str = "sim/work";

/// The directive of children.
pub(super) const CHILD_DIRECTIVE: &str = "sim/part";

/// The tool that hooks call.
pub(super) const HOOK_TOOL: &str = "sim/hook";

/// The most tokens of an answer.
const MAX_OUTPUT_TOKENS: u64 = 100;

/// Which hooks a template has around calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateKind {
    /// None.
    Plain,
    /// Before and after tools.
    ToolHooks,
    /// Before and after the model.
    ModelHooks,
}

/// The template of roots or children; made once for all simulations.
pub(super) fn template(kind: TemplateKind, has_fallback: bool, is_child: bool) -> Arc<ThreadTemplate> {
    static TEMPLATES: [OnceLock<Arc<ThreadTemplate>>; 12] = [const { OnceLock::new() }; 12];
    let index = (kind as usize) * 4 + usize::from(has_fallback) * 2 + usize::from(is_child);
    Arc::clone(TEMPLATES[index].get_or_init(|| Arc::new(new_template(kind, has_fallback, is_child))))
}

fn new_template(kind: TemplateKind, has_fallback: bool, is_child: bool) -> ThreadTemplate {
    let config = crate::shipped_config();
    let names = [("once", "sim/once"), ("again", "sim/again"), ("child", THREAD_DIRECTIVE)];
    let names: BTreeMap<String, ToolBinding> =
        names.into_iter().map(|(name, id)| (name.to_owned(), ToolBinding::Tool(id.to_owned()))).collect();
    let definition = |name: &String| ToolDefinition {
        name: name.clone(),
        description: String::new(),
        schema: json!({"type": "object"}),
        target: Value::Null,
    };
    let definitions =
        ToolDefinitions { tools: names.keys().map(definition).collect(), names, skipped: Vec::new() };
    let hooks = Hooks::merge(&config.hooks, Some(&call_hooks(kind))).expect("hooks");
    let fallback = FallbackModel {
        provider: "sim-2".to_owned(),
        model: "sim-model-2".to_owned(),
        price: Some(TokenPrice { input: 20, cached_input: 2, cache_write: 24, output: 80 }),
        context_window: 100_000,
        max_output_tokens: MAX_OUTPUT_TOKENS,
    };
    ThreadTemplate {
        revision: rye_thread::spec::MACHINE_REVISION,
        directive: if is_child { CHILD_DIRECTIVE } else { ROOT_DIRECTIVE }.to_owned(),
        directive_hash: String::new(),
        outputs: Vec::new(),
        system: None,
        before: Vec::new(),
        after: Vec::new(),
        hooks,
        definitions,
        provider: "sim".to_owned(),
        model: "sim-model".to_owned(),
        candidates: Vec::new(),
        fallbacks: has_fallback.then_some(fallback).into_iter().collect(),
        price: Some(TokenPrice { input: 10, cached_input: 1, cache_write: 12, output: 50 }),
        context_window: 200_000,
        max_output_tokens: MAX_OUTPUT_TOKENS,
        settings: Arc::default(),
        wants_stream: false,
        config,
    }
}

/// The hooks of the directive.
fn call_hooks(kind: TemplateKind) -> Value {
    let hook = |event: &str, call: &str| {
        let params = json!({"at": event, "call": call, "effect": "${arguments.key}"});
        json!({"id": event, "event": event,
               "action": {"primary": "execute", "item_type": "tool", "item_id": HOOK_TOOL, "params": params}})
    };
    match kind {
        TemplateKind::Plain => json!([]),
        TemplateKind::ToolHooks => {
            json!([hook("before_tool", "${call_id}"), hook("after_tool", "${call_id}")])
        }
        TemplateKind::ModelHooks => {
            json!([hook("before_model", "${cost.turns}"), hook("after_model", "${cost.turns}")])
        }
    }
}
