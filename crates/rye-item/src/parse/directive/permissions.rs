//! `<permissions>`: grants as capability strings, and the risks the author acknowledges.

use roxmltree::Node;
use serde_json::{Value, json};

use super::DirectiveReader;
use super::xml::{elements, leading_text, own_text, tag};
use crate::id::ItemType;
use crate::primary_action::PrimaryAction;

impl DirectiveReader<'_> {
    pub(super) fn read_permissions(&mut self, block: Node<'_, '_>) {
        let mut capabilities = Vec::new();
        let mut risks = Vec::new();
        self.warn_attributes(block, &[]);
        match own_text(block).as_str() {
            "" => {}
            "*" => capabilities.push("rye.*".to_owned()),
            other => {
                let message = format!("Text `{}` inside <permissions>: expected `*` or tags", excerpt(other));
                self.push_problem(block, Some("permissions"), message);
            }
        }
        for node in elements(block) {
            match tag(node) {
                "acknowledge" => risks.extend(self.parse_acknowledgement(node)),
                name if name.parse::<PrimaryAction>().is_ok() => self.read_grant(node, &mut capabilities),
                name => {
                    let mut tags: Vec<&str> = PrimaryAction::ALL.map(PrimaryAction::as_str).into();
                    tags.push("acknowledge");
                    tags.sort_unstable();
                    let tags = tags.join(", ");
                    let message = format!("Unknown tag <{name}> inside <permissions>. Valid tags: {tags}");
                    self.push_problem(node, Some("permissions"), message);
                }
            }
        }
        let capabilities =
            capabilities.into_iter().map(|content| json!({ "tag": "cap", "content": content })).collect();
        self.set("permissions", Value::Array(capabilities), block);
        if !risks.is_empty() {
            self.set("acknowledged_risks", Value::Array(risks), block);
        }
    }

    fn parse_acknowledgement(&mut self, node: Node<'_, '_>) -> Option<Value> {
        self.warn_attributes(node, &["risk"]);
        let risk = node.attribute("risk").unwrap_or("").trim();
        if risk.is_empty() {
            let message = "<acknowledge> without a risk acknowledges nothing".to_owned();
            self.push_warning(node, Some("permissions"), message);
            return None;
        }
        Some(json!({ "risk": risk, "reason": leading_text(node) }))
    }

    /// One action's grant: `*`, items, or plain text.
    fn read_grant(&mut self, node: Node<'_, '_>, capabilities: &mut Vec<String>) {
        let action = tag(node);
        let text = own_text(node);
        let before = capabilities.len();
        let mut has_items = false;
        self.warn_attributes(node, &[]);
        for item in elements(node) {
            has_items = true;
            self.warn_attributes(item, &[]);
            let kind = tag(item);
            if kind.parse::<ItemType>().is_err() {
                let mut tags = ItemType::ALL.map(ItemType::as_str);
                tags.sort_unstable();
                let message = format!(
                    "Unknown tag <{kind}> inside <{action}> matches no item. Valid tags: {}",
                    tags.join(", ")
                );
                self.push_warning(item, Some("permissions"), message);
            }
            let pattern = leading_text(item);
            if !pattern.is_empty() {
                capabilities.push(format!("rye.{action}.{kind}.{pattern}"));
            }
        }
        if has_items && !text.is_empty() {
            let message = format!("Text `{}` beside the tags inside <{action}> is ignored", excerpt(&text));
            self.push_warning(node, Some("permissions"), message);
        } else if !text.is_empty() {
            capabilities.push(format!("rye.{action}.{text}"));
        }
        if capabilities.len() == before {
            self.push_warning(node, Some("permissions"), format!("<{action}> grants nothing"));
        }
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}
