//! `<hooks>`: what runs when something happens to the thread. Conditions are compiled once here, so that a mistake
//! in one is found when the directive is read and not when its guard stays silent.

use roxmltree::Node;
use serde_json::{Map, Value, json};

use super::metadata::parse_number;
use super::xml::{elements, leading_text, tag};
use super::{DirectiveReader, attributes};
use crate::condition::Condition;
use crate::primary_action::PrimaryAction;
use crate::text::nearest;

/// The events that hooks may name.
pub const HOOK_EVENTS: [&str; 14] = [
    "build_system_prompt",
    "thread_started",
    "thread_continued",
    "error",
    "limit",
    "after_step",
    "directive_return",
    "context_window_pressure",
    "context_limit_reached",
    "after_complete",
    "before_tool",
    "after_tool",
    "before_model",
    "after_model",
];

/// The keys of config files that hold hooks: of `hooks.yaml`, then of `hook_conditions.yaml`.
pub const HOOK_KEYS: [&str; 4] = ["hooks", "builtin_hooks", "context_hooks", "infra_hooks"];

/// The attributes of a hook; each may be a tag inside it as well.
const HOOK_ATTRIBUTES: [&str; 6] = ["id", "event", "position", "wrap", "description", "layer"];

/// The tags inside a hook.
const HOOK_TAGS: [&str; 9] =
    ["action", "condition", "inputs", "id", "event", "position", "wrap", "description", "layer"];

impl DirectiveReader<'_> {
    pub(super) fn read_hooks(&mut self, block: Node<'_, '_>) {
        let hooks = elements(block).map(|node| self.parse_hook(node)).collect();
        self.set("hooks", Value::Array(hooks), block);
    }

    fn parse_hook(&mut self, node: Node<'_, '_>) -> Value {
        let mut hook = attribute_map(node);
        let content = leading_text(node);
        if !content.is_empty() {
            hook.insert("content".to_owned(), json!(content));
        }
        for child in elements(node) {
            match tag(child) {
                "action" => read_action(child, &mut hook),
                "condition" => {
                    let condition = self.parse_condition(child);
                    hook.insert("condition".to_owned(), condition);
                }
                "inputs" => {
                    hook.insert("inputs".to_owned(), Value::Object(named_texts(child)));
                }
                other => {
                    if !HOOK_ATTRIBUTES.contains(&other) {
                        self.warn_unknown_tag(child, &HOOK_TAGS, "hook");
                    }
                    let text = leading_text(child);
                    if !text.is_empty() {
                        hook.insert(other.to_owned(), json!(text));
                    }
                }
            }
        }
        self.warn_attributes(node, &HOOK_ATTRIBUTES);
        self.check_hook(node, &hook);
        Value::Object(hook)
    }

    /// What would keep a thread with this hook from starting.
    fn check_hook(&mut self, node: Node<'_, '_>, hook: &Map<String, Value>) {
        let text = |key: &str| hook.get(key).and_then(Value::as_str);
        match text("event") {
            Some(event) if HOOK_EVENTS.contains(&event) => {}
            Some(event) => {
                let hint = match nearest(event, HOOK_EVENTS) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("there are {}", HOOK_EVENTS.join(", ")),
                };
                let message = format!("unknown event `{event}`: {hint}");
                self.push_problem_at(self.attribute_position(node, "event"), "hooks", message);
            }
            None => self.push_problem(node, Some("hooks"), "the hook names no `event`".to_owned()),
        }
        let actions: Vec<&Value> = match (hook.get("action"), hook.get("actions")) {
            (Some(action), None) => vec![action],
            (None, Some(Value::Array(actions))) => actions.iter().collect(),
            _ => {
                let message = "a hook has one <action>, with `primary` or with action tags inside it";
                self.push_problem(node, Some("hooks"), message.to_owned());
                Vec::new()
            }
        };
        for action in actions {
            let primary = action.get("primary").and_then(Value::as_str).unwrap_or_default();
            if primary.parse::<PrimaryAction>().is_err() {
                let message =
                    format!("unknown action `{primary}`: there are execute, fetch, load, search, sign");
                self.push_problem(node, Some("hooks"), message);
            }
        }
        if let Some(position) = text("position").filter(|word| !["before", "after"].contains(word)) {
            let message = format!("position is `before` or `after`, not `{position}`");
            self.push_problem_at(self.attribute_position(node, "position"), "hooks", message);
        }
        if let Some(wrap) = text("wrap").filter(|word| !["true", "false"].contains(word)) {
            let message = format!("wrap is `true` or `false`, not `{wrap}`");
            self.push_problem_at(self.attribute_position(node, "wrap"), "hooks", message);
        }
    }

    fn parse_condition(&mut self, node: Node<'_, '_>) -> Value {
        let mut condition = attribute_map(node);
        let is_list = condition.get("op").and_then(Value::as_str) == Some("in");
        if let Some(Value::String(text)) = condition.get("value") {
            let value = if is_list { serde_json::from_str(text).ok() } else { None };
            let value = value.unwrap_or_else(|| coerce(text));
            condition.insert("value".to_owned(), value);
        }
        let condition = Value::Object(condition);
        if node.attribute("path").is_none() {
            self.push_problem(node, Some("hooks"), "<condition> has no path".to_owned());
        } else if let Err(error) = Condition::compile(&condition) {
            self.push_problem(node, Some("hooks"), format!("Invalid <condition>: {}", error.message));
        }
        condition
    }
}

/// One action, or several where the tag holds action tags.
fn read_action(node: Node<'_, '_>, hook: &mut Map<String, Value>) {
    let several: Vec<_> = elements(node)
        .filter(|child| tag(*child).parse::<PrimaryAction>().is_ok())
        .map(|child| {
            let mut action = action_map(child);
            action.insert("primary".to_owned(), json!(tag(child)));
            Value::Object(action)
        })
        .collect();
    if several.is_empty() {
        hook.insert("action".to_owned(), Value::Object(action_map(node)));
    } else {
        hook.insert("actions".to_owned(), Value::Array(several));
    }
}

fn action_map(node: Node<'_, '_>) -> Map<String, Value> {
    let mut action = attribute_map(node);
    let params = named_texts(node);
    if !params.is_empty() {
        action.insert("params".to_owned(), Value::Object(params));
    }
    action
}

fn attribute_map(node: Node<'_, '_>) -> Map<String, Value> {
    attributes(node).map(|attribute| (attribute.name().to_owned(), json!(attribute.value()))).collect()
}

/// The texts of the elements inside, or their `value`, by their `name` or their tag.
fn named_texts(node: Node<'_, '_>) -> Map<String, Value> {
    let text =
        |child: Node<'_, '_>| child.attribute("value").map_or_else(|| leading_text(child), str::to_owned);
    elements(node)
        .map(|child| (child.attribute("name").unwrap_or(tag(child)), text(child)))
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.to_owned(), json!(text)))
        .collect()
}

/// An attribute's text as the value it looks like: true or false, a number, else itself.
fn coerce(text: &str) -> Value {
    if text.eq_ignore_ascii_case("true") {
        return Value::Bool(true);
    }
    if text.eq_ignore_ascii_case("false") {
        return Value::Bool(false);
    }
    parse_number(text).map_or_else(|| json!(text), Value::Number)
}
