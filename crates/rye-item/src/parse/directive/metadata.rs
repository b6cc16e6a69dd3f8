//! What stands inside `<metadata>`: model, limits, context, and plain text tags.

use std::collections::BTreeSet;

use roxmltree::Node;
use serde_json::{Map, Number, Value, json};

use super::xml::{elements, leading_text, tag};
use super::{DirectiveReader, attributes};
use crate::checkout::CheckoutRequest;
use crate::diagnostic::SourcePosition;

/// The names of limits, as files and people write them.
pub const LIMIT_NAMES: [&str; 6] = ["turns", "tokens", "spend", "spawns", "depth", "duration_seconds"];

/// What stands beside the limits: the currency of `spend`.
const CURRENCY: &str = "spend_currency";

/// Limits that count things: a fraction has no meaning there.
const COUNT_LIMITS: [&str; 4] = ["turns", "tokens", "spawns", "depth"];

/// Fields that come from elsewhere in the file; a metadata tag of that name would replace them.
const RESERVED_FIELDS: [&str; 9] =
    ["raw", "body", "content", "preamble", "templates", "actions", "inputs", "outputs", "acknowledged_risks"];

/// The parts of `<context>`.
const CONTEXT_PARTS: [&str; 4] = ["system", "before", "after", "suppress"];

impl DirectiveReader<'_> {
    pub(super) fn read_metadata(&mut self, block: Node<'_, '_>) {
        let mut seen = BTreeSet::new();
        for node in elements(block) {
            let field = match tag(node) {
                "model_class" => "model",
                name => name,
            };
            if !seen.insert(field) {
                self.report_duplicate(node, field);
            }
            match field {
                "model" => self.read_model(node),
                "limits" => self.read_limits(node),
                "permissions" => self.read_permissions(node),
                "hooks" => self.read_hooks(node),
                "context" => self.read_context(node),
                "checkout" => self.read_checkout(node),
                "category" => self.set("category", json!(leading_text(node)), node),
                "name" | "version" | "extends" => self.read_identity(node, field),
                "description" if self.parsed.fields.contains_key("description") => {}
                _ if RESERVED_FIELDS.contains(&field) => {
                    self.push_problem(
                        node,
                        Some(field),
                        format!("<{field}> does not belong inside <metadata>"),
                    );
                }
                _ => {
                    let text = leading_text(node);
                    if !text.is_empty() {
                        self.set(field, json!(text), node);
                    }
                }
            }
        }
    }

    fn report_duplicate(&mut self, node: Node<'_, '_>, field: &str) {
        let message = format!("Duplicate <{}> inside <metadata>", tag(node));
        if ["model", "limits", "permissions", "hooks", "context", "category", "checkout"].contains(&field) {
            self.push_problem(node, Some(field), message);
        } else {
            self.push_warning(node, Some(field), format!("{message}: the last one is used"));
        }
    }

    fn read_checkout(&mut self, node: Node<'_, '_>) {
        let text = leading_text(node);
        match text.parse::<CheckoutRequest>() {
            Ok(_) => self.set("checkout", json!(text), node),
            Err(problem) => self.push_problem(node, Some("checkout"), problem.to_string()),
        }
    }

    /// `<name>`, `<version>`, `<extends>` as tags: good where the attribute is missing, wrong where it differs.
    fn read_identity(&mut self, node: Node<'_, '_>, field: &str) {
        let text = leading_text(node);
        if text.is_empty() {
            return;
        }
        match self.parsed.text(field) {
            None => self.set(field, json!(text), node),
            Some(value) if value == text => {}
            Some(value) => {
                let message = format!("<{field}> says `{text}`, the attribute of <directive> says `{value}`");
                self.push_problem(node, Some(field), message);
            }
        }
    }

    fn read_limits(&mut self, node: Node<'_, '_>) {
        let from_attributes = attributes(node).map(|item| {
            (
                item.name(),
                item.value().trim().to_owned(),
                self.locator.position(self.start + item.range().start),
            )
        });
        let from_elements =
            elements(node).map(|child| (tag(child), leading_text(child), self.position_of(child)));
        let entries: Vec<_> = from_attributes.chain(from_elements).collect();
        let mut limits = Map::new();
        for (name, text, position) in entries {
            if let Some((name, value)) = self.parse_limit(name, text, position) {
                if limits.contains_key(name) {
                    self.push_problem_at(position, "limits", format!("Limit `{name}` is set twice"));
                    continue;
                }
                self.parsed.positions.insert(format!("limits.{name}"), position);
                limits.insert(name.to_owned(), value);
            }
        }
        self.set("limits", Value::Object(limits), node);
    }

    fn parse_limit<'n>(
        &mut self,
        name: &'n str,
        text: String,
        position: SourcePosition,
    ) -> Option<(&'n str, Value)> {
        let plain = name.strip_prefix("max_").unwrap_or(name);
        if !LIMIT_NAMES.contains(&plain) && plain != CURRENCY {
            let known = LIMIT_NAMES.join(", ");
            let message = format!("Unknown limit `{name}`. Known limits: {known}, {CURRENCY}");
            self.push_problem_at(position, "limits", message);
            return None;
        }
        if plain != name {
            let message = format!("Limit `{name}` is read as `{plain}`: limits have no `max_` prefix");
            self.push_warning_at(position, "limits", message);
        }
        if plain == CURRENCY {
            return Some((plain, Value::String(text)));
        }
        let Some(number) = parse_number(&text) else {
            self.push_problem_at(position, "limits", format!("Limit `{plain}` is not a number: `{text}`"));
            return None;
        };
        if number.as_f64().is_some_and(|number| number < 0.0) {
            self.push_problem_at(position, "limits", format!("Limit `{plain}` is negative: `{text}`"));
            return None;
        }
        if number.is_f64() && COUNT_LIMITS.contains(&plain) {
            self.push_problem_at(
                position,
                "limits",
                format!("Limit `{plain}` is not a whole number: `{text}`"),
            );
            return None;
        }
        Some((plain, Value::Number(number)))
    }

    fn read_context(&mut self, node: Node<'_, '_>) {
        let mut context: Map<String, Value> =
            CONTEXT_PARTS.iter().map(|part| ((*part).to_owned(), json!([]))).collect();
        for child in elements(node) {
            let text = leading_text(child);
            self.warn_attributes(child, &[]);
            match context.get_mut(tag(child)).and_then(Value::as_array_mut) {
                Some(list) if !text.is_empty() => list.push(json!(text)),
                Some(_) => {}
                None => {
                    let message = format!(
                        "Unknown tag <{}> inside <context> is ignored. Valid tags: {}",
                        tag(child),
                        CONTEXT_PARTS.join(", ")
                    );
                    self.push_warning(child, Some("context"), message);
                }
            }
        }
        self.set("context", Value::Object(context), node);
    }
}

/// A number as people write it: whole without a dot, else a fraction.
pub(super) fn parse_number(text: &str) -> Option<Number> {
    if text.contains('.') {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        return text.parse().ok().filter(|_| is_plain).and_then(Number::from_f64);
    }
    text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from)).ok()
}
