//! Directives: markdown with one `xml` block that holds `<directive>`, and the prompt around it.
//!
//! Reads structure only. Whether names, versions and paths are right is the business of validation; who may run the
//! directive, of capabilities.

mod hooks;
mod metadata;
mod model;
mod permissions;
mod placement;
mod xml;

use std::collections::BTreeSet;

use roxmltree::{Attribute, Node};
use serde_json::{Map, Value, json};

use crate::diagnostic::{Diagnostic, ParsedItem, SourcePosition};
use crate::inputs;
use crate::parse::fence::locator::Locator;
use crate::parse::fence::{self, Fence, FenceError};
use crate::primary_action::PrimaryAction;
pub use hooks::{HOOK_EVENTS, HOOK_KEYS};
pub use metadata::LIMIT_NAMES;
use xml::{elements, leading_text, tag};

/// Problems and warnings kept of one text, each: enough to repair it, few enough to read.
const MAX_PROBLEMS: usize = 100;

/// Reads a directive: fields, their positions, and everything wrong with it.
#[must_use]
pub fn parse(text: &str) -> ParsedItem {
    let mut reader = DirectiveReader::new(text);
    match fence::find_block(text, "xml") {
        Ok(fence) => reader.read(&fence),
        Err(error) => {
            let problem = match error {
                FenceError::Missing => Diagnostic::new("No XML code block found"),
                FenceError::Unclosed { position } => {
                    Diagnostic::new(error.to_string()).with_position(position)
                }
            };
            reader.parsed.problems.push(problem);
            reader.set_trimmed("body", fence::signature_end(text), text.len());
            reader.parsed.set("raw", json!(text), None);
        }
    }
    reader.parsed
}

/// What a model is asked to do: the body of a parsed directive, else its preamble, else its description.
#[must_use]
pub fn prompt(fields: &Map<String, Value>) -> &str {
    ["body", "preamble", "description"]
        .into_iter()
        .filter_map(|field| fields.get(field).and_then(Value::as_str))
        .find(|text| !text.trim().is_empty())
        .unwrap_or("")
}

/// A directive being read: what was found so far, and the way from the XML's offsets to the file's positions.
struct DirectiveReader<'a> {
    text: &'a str,
    locator: Locator<'a>,
    /// Where the XML starts in the text.
    start: usize,
    parsed: ParsedItem,
}

impl<'a> DirectiveReader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, locator: Locator::new(text), start: 0, parsed: ParsedItem::default() }
    }

    fn read(&mut self, fence: &Fence) {
        let inside = &self.text[fence.content.clone()];
        self.start = fence.content.start + (inside.len() - inside.trim_start().len());
        let content = inside.trim();
        match xml::mask(content) {
            Err(error) => {
                let position = self.locator.position(self.start + error.offset);
                self.parsed.problems.push(Diagnostic::new(error.message).with_position(position));
            }
            Ok(masked) => {
                self.read_xml(&masked.text);
                let templates = masked.templates.iter().map(|(key, inner)| (key.clone(), json!(inner)));
                self.parsed.set("templates", Value::Object(templates.collect()), None);
            }
        }
        let signature = fence::signature_end(self.text);
        self.set_trimmed("preamble", signature.min(fence.preamble.end), fence.preamble.end);
        self.set_trimmed("body", fence.body.start, fence.body.end);
        self.parsed.set("content", json!(content), Some(self.locator.position(self.start)));
        self.parsed.set("raw", json!(self.text), None);
    }

    fn read_xml(&mut self, masked: &str) {
        let document = match xml::parse(masked) {
            Ok(document) => document,
            Err(error) => {
                let position = self.locator.position(self.start + error.offset);
                self.parsed.problems.push(Diagnostic::new(error.message).with_position(position));
                return;
            }
        };
        let root = document.root_element();
        if tag(root) != "directive" {
            let message = format!("Root element must be <directive>, found <{}>", tag(root));
            self.push_problem(root, None, message);
            return;
        }
        self.read_directive(root);
    }

    fn read_directive(&mut self, root: Node<'_, '_>) {
        self.warn_attributes(root, &["name", "version", "extends"]);
        for field in ["name", "version", "extends"] {
            if let Some(value) = root.attribute(field).filter(|value| !value.is_empty()) {
                self.set(field, json!(value), root);
            }
        }
        if let Some(node) = elements(root).find(|node| tag(*node) == "description") {
            self.set("description", json!(leading_text(node)), node);
        }
        self.parsed.is_complete = true;
        self.check_placement(root);
        let mut blocks = elements(root).filter(|node| tag(*node) == "metadata");
        if let Some(block) = blocks.next() {
            self.read_metadata(block);
        }
        for extra in blocks {
            self.push_problem(extra, None, "A directive has only one <metadata>".to_owned());
        }
        self.read_inputs(root);
        self.read_outputs(root);
        self.read_actions(root);
    }

    fn read_inputs(&mut self, root: Node<'_, '_>) {
        let mut found = Vec::new();
        let mut names = BTreeSet::new();
        for node in self.collect_declarations(root, "inputs", "input") {
            let Some(mut input) = self.parse_declaration(node, "inputs", &mut names) else {
                continue;
            };
            let kind = node.attribute("type").unwrap_or("string");
            if let Some(text) = node.attribute("default") {
                match inputs::parse_typed(kind, text) {
                    Some(value) => {
                        input.insert("default".to_owned(), value);
                    }
                    None => self.push_problem_at(
                        self.attribute_position(node, "default"),
                        "inputs",
                        format!("Default `{text}` is not of the declared type `{kind}`"),
                    ),
                }
            }
            if !inputs::is_known_type(kind) {
                let message = format!("Unknown type `{kind}`: any value is accepted");
                self.push_warning(node, Some("inputs"), message);
            }
            self.warn_attributes(node, &["name", "type", "required", "default"]);
            set_description(&mut input, node);
            found.push(Value::Object(input));
        }
        self.set_declarations(root, "inputs", found);
    }

    fn read_outputs(&mut self, root: Node<'_, '_>) {
        let mut found = Vec::new();
        let mut names = BTreeSet::new();
        for node in self.collect_declarations(root, "outputs", "output") {
            let Some(mut output) = self.parse_declaration(node, "outputs", &mut names) else {
                continue;
            };
            self.warn_attributes(node, &["name", "type", "required"]);
            set_description(&mut output, node);
            found.push(Value::Object(output));
        }
        self.set_declarations(root, "outputs", found);
    }

    /// The `<member>`s of every `<list>` below the root; other tags there are warned of.
    fn collect_declarations<'n, 'i>(
        &mut self,
        root: Node<'n, 'i>,
        list: &str,
        member: &str,
    ) -> Vec<Node<'n, 'i>> {
        let mut nodes = Vec::new();
        for block in elements(root).filter(|node| tag(*node) == list) {
            self.warn_attributes(block, &[]);
            for node in elements(block) {
                if tag(node) == member {
                    nodes.push(node);
                } else {
                    let message = format!("<{}> inside <{list}> is ignored: expected <{member}>", tag(node));
                    self.push_warning(node, Some(list), message);
                }
            }
        }
        nodes
    }

    /// Name, type and `required` of an input or output, or nothing where it has no usable name.
    fn parse_declaration(
        &mut self,
        node: Node<'_, '_>,
        field: &'static str,
        names: &mut BTreeSet<String>,
    ) -> Option<Map<String, Value>> {
        let name = node.attribute("name").unwrap_or("").trim();
        if name.is_empty() {
            self.push_problem(node, Some(field), format!("<{}> has no name", tag(node)));
            return None;
        }
        if !names.insert(name.to_owned()) {
            self.push_problem(node, Some(field), format!("Duplicate {} name `{name}`", tag(node)));
            return None;
        }
        let required = node.attribute("required").unwrap_or("false");
        if !["true", "false"].iter().any(|word| required.eq_ignore_ascii_case(word)) {
            let message = format!("required=\"{required}\" means false: write `true` or `false`");
            self.push_warning(node, Some(field), message);
        }
        let mut declared = Map::new();
        declared.insert("name".to_owned(), json!(name));
        declared.insert("type".to_owned(), json!(node.attribute("type").unwrap_or("string")));
        declared.insert("required".to_owned(), json!(required.eq_ignore_ascii_case("true")));
        Some(declared)
    }

    fn set_declarations(&mut self, root: Node<'_, '_>, field: &str, declarations: Vec<Value>) {
        let block = elements(root).find(|node| tag(*node) == field);
        if let Some(block) = block.filter(|_| !declarations.is_empty()) {
            self.set(field, Value::Array(declarations), block);
        }
    }

    /// Action tags in document order, wherever they stand outside `<metadata>`.
    fn read_actions(&mut self, root: Node<'_, '_>) {
        let mut found = Vec::new();
        let mut first = None;
        let mut pending: Vec<_> = elements(root).collect();
        pending.reverse();
        while let Some(node) = pending.pop() {
            match tag(node) {
                "metadata" => continue,
                // Grants look like actions, and are refused here.
                "permissions" => continue,
                name if name.parse::<PrimaryAction>().is_ok() => {
                    first = first.or(Some(node));
                    let action = self.parse_action(node);
                    found.push(action);
                }
                _ => {}
            }
            let below = pending.len();
            pending.extend(elements(node));
            pending[below..].reverse();
        }
        if let Some(first) = first {
            self.set("actions", Value::Array(found), first);
        }
    }

    fn parse_action(&mut self, node: Node<'_, '_>) -> Value {
        let mut action = Map::new();
        action.insert("primary".to_owned(), json!(tag(node)));
        for attribute in attributes(node) {
            if attribute.name() == "primary" {
                let message = format!("The action is <{}>: its attribute `primary` is ignored", tag(node));
                self.push_warning(node, Some("actions"), message);
            } else {
                action.insert(attribute.name().to_owned(), json!(attribute.value()));
            }
        }
        let mut params = Map::new();
        for param in elements(node).filter(|child| tag(*child) == "param") {
            self.warn_attributes(param, &["name", "value"]);
            match param.attribute("name").filter(|name| !name.is_empty()) {
                Some(name) => {
                    let value = param.attribute("value").map_or_else(|| leading_text(param), str::to_owned);
                    params.insert(name.to_owned(), json!(value));
                }
                None => {
                    self.push_warning(param, Some("actions"), "<param> without a name is ignored".to_owned())
                }
            }
        }
        if !params.is_empty() {
            action.insert("params".to_owned(), Value::Object(params));
        }
        Value::Object(action)
    }

    /// Sets a field to the words between two offsets of the text, without the blanks around them.
    fn set_trimmed(&mut self, field: &str, start: usize, end: usize) {
        let part = &self.text[start..end];
        let trimmed = part.trim();
        let offset = start + (part.len() - part.trim_start().len());
        let position = (!trimmed.is_empty()).then(|| self.locator.position(offset));
        self.parsed.set(field, json!(trimmed), position);
    }

    fn set(&mut self, field: &str, value: Value, node: Node<'_, '_>) {
        let position = self.position_of(node);
        self.parsed.set(field, value, Some(position));
    }

    fn position_of(&self, node: Node<'_, '_>) -> SourcePosition {
        self.locator.position(self.start + node.range().start)
    }

    /// The place of an attribute, or of its tag.
    fn attribute_position(&self, node: Node<'_, '_>, attribute: &str) -> SourcePosition {
        match node.attribute_node(attribute) {
            Some(attribute) => self.locator.position(self.start + attribute.range().start),
            None => self.position_of(node),
        }
    }

    fn push_problem(&mut self, node: Node<'_, '_>, field: Option<&str>, message: String) {
        if self.parsed.problems.len() < MAX_PROBLEMS {
            let problem = Diagnostic::new(message).with_position(self.position_of(node));
            self.parsed.problems.push(match field {
                Some(field) => problem.with_field(field),
                None => problem,
            });
        }
    }

    fn push_problem_at(&mut self, position: SourcePosition, field: &str, message: String) {
        if self.parsed.problems.len() < MAX_PROBLEMS {
            self.parsed.problems.push(Diagnostic::new(message).with_field(field).with_position(position));
        }
    }

    fn push_warning(&mut self, node: Node<'_, '_>, field: Option<&str>, message: String) {
        if self.parsed.warnings.len() < MAX_PROBLEMS {
            let problem = Diagnostic::new(message).with_position(self.position_of(node));
            self.parsed.warnings.push(match field {
                Some(field) => problem.with_field(field),
                None => problem,
            });
        }
    }

    fn push_warning_at(&mut self, position: SourcePosition, field: &str, message: String) {
        if self.parsed.warnings.len() < MAX_PROBLEMS {
            self.parsed.warnings.push(Diagnostic::new(message).with_field(field).with_position(position));
        }
    }
}

/// The attributes that belong to no namespace: ours.
fn attributes<'n, 'i: 'n>(node: Node<'n, 'i>) -> impl Iterator<Item = Attribute<'n, 'i>> {
    node.attributes().filter(|attribute| attribute.namespace().is_none())
}

fn set_description(declared: &mut Map<String, Value>, node: Node<'_, '_>) {
    let description = leading_text(node);
    if !description.is_empty() {
        declared.insert("description".to_owned(), json!(description));
    }
}

#[cfg(test)]
mod tests;
