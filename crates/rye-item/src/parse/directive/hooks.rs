//! `<hooks>`: what runs when something happens to the thread. Conditions are compiled once here, so that a mistake
//! in one is found when the directive is read and not when its guard stays silent.

use roxmltree::Node;
use serde_json::{Map, Value, json};

use super::metadata::parse_number;
use super::xml::{elements, leading_text, tag};
use super::{DirectiveReader, attributes};
use crate::condition::Condition;
use crate::space::PrimaryAction;

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
                    let text = leading_text(child);
                    if !text.is_empty() {
                        hook.insert(other.to_owned(), json!(text));
                    }
                }
            }
        }
        Value::Object(hook)
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
