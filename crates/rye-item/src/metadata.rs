//! From what a parser read to the fields of an item: extraction by the extractor's rules, the metadata shown to
//! users, and the texts a search looks at.

use serde_json::{Map, Value, json};

use crate::diagnostic::ParsedItem;
use crate::extractor::{ExtractionRule, Extractor};
use crate::id::{ItemId, ItemType};

/// Applies the extractor's rules: field name → value. A tool's field may be written as a dunder (`__version__`), as
/// a constant (`CONFIG_SCHEMA`) or plainly (`version`).
#[must_use]
pub fn extract(extractor: &Extractor, parsed: &ParsedItem, stem: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    for (field, rule) in &extractor.rules {
        let value = match rule {
            ExtractionRule::Filename => Some(Value::from(stem)),
            ExtractionRule::Path(key) => parsed.fields.get(key).or_else(|| parsed.fields.get(field)).cloned(),
        };
        if let Some(value) = value {
            fields.insert(field.clone(), value);
        }
    }
    fields
}

/// Lets each extracted field be found where its key stands: `version` where `__version__` is written.
pub fn add_field_positions(extractor: &Extractor, parsed: &mut ParsedItem) {
    for (field, rule) in &extractor.rules {
        if let ExtractionRule::Path(key) = rule
            && let Some(position) = parsed.positions.get(key).copied()
        {
            parsed.positions.entry(field.clone()).or_insert(position);
        }
    }
}

/// The metadata of an item as users see it; what is absent is null.
#[must_use]
pub fn display_metadata(item_type: ItemType, fields: &Map<String, Value>) -> Value {
    let get = |key: &str| fields.get(key).cloned().unwrap_or(Value::Null);
    let list = |key: &str| match fields.get(key) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    match item_type {
        ItemType::Tool => json!({
            "version": get("version"),
            "tool_type": get("tool_type"),
            "executor_id": get("executor_id"),
            "category": get("category"),
            "description": get("description"),
            "config_schema": get("config_schema"),
        }),
        ItemType::Directive => json!({
            "name": get("name"),
            "version": get("version"),
            "description": get("description"),
            "category": get("category"),
            "author": get("author"),
            "extends": get("extends"),
            "model": get("model"),
            "limits": get("limits"),
            "permissions": list("permissions").iter().filter_map(|grant| grant.get("content").cloned()).collect::<Vec<_>>(),
            "inputs": list("inputs").iter().map(display_input).collect::<Vec<_>>(),
            "outputs": list("outputs").iter().filter_map(|output| output.get("name").cloned()).collect::<Vec<_>>(),
            "actions": list("actions"),
        }),
        ItemType::Knowledge => json!({
            "name": get("name"),
            "title": get("title"),
            "version": get("version"),
            "category": get("category"),
            "entry_type": get("entry_type"),
            "tags": get("tags"),
        }),
        ItemType::Config => json!({
            "name": get("name"),
            "version": get("version"),
            "category": get("category"),
            "description": get("description"),
        }),
    }
}

fn display_input(input: &Value) -> Value {
    let get = |key: &str| input.get(key).cloned().unwrap_or(Value::Null);
    json!({
        "name": get("name"),
        "type": get("type"),
        "required": get("required"),
        "default": get("default"),
    })
}

/// What a search looks at, by the names of the extractor's weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchText {
    /// The title people see.
    pub title: String,
    /// The name: the id's last segment.
    pub name: String,
    /// The description.
    pub description: String,
    /// The category, from the path.
    pub category: String,
    /// Everything else worth finding.
    pub content: String,
    /// The version, for showing.
    pub version: String,
}

/// The searchable texts of an item. Works on whatever could be parsed: broken items are found too.
#[must_use]
pub fn search_text(
    item_type: ItemType,
    id: &ItemId,
    fields: &Map<String, Value>,
    parsed: &ParsedItem,
) -> SearchText {
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
    let parsed_text = |key: &str| parsed.text(key).unwrap_or_default();
    let heading = |markdown: &str| {
        let line = markdown.lines().find_map(|line| line.strip_prefix("# "));
        line.map(|line| line.trim().to_owned())
    };
    let title = match item_type {
        ItemType::Knowledge => Some(text("title").to_owned()),
        ItemType::Directive => heading(parsed_text("preamble")),
        ItemType::Tool | ItemType::Config => None,
    };
    let content = match item_type {
        ItemType::Directive => {
            [parsed_text("preamble"), parsed_text("body"), parsed_text("content")].join("\n")
        }
        ItemType::Knowledge => {
            let tags = fields.get("tags").and_then(Value::as_array).into_iter().flatten();
            let tags: Vec<_> = tags.filter_map(Value::as_str).collect();
            [&tags.join(" "), parsed_text("body")].join("\n")
        }
        ItemType::Tool | ItemType::Config => {
            let schema = fields.get("config_schema").map(Value::to_string).unwrap_or_default();
            [text("docstring"), text("tool_type"), text("executor_id"), &schema].join("\n")
        }
    };
    SearchText {
        title: title.filter(|title| !title.is_empty()).unwrap_or_else(|| id.name().to_owned()),
        name: id.name().to_owned(),
        description: match (item_type, text("description")) {
            (ItemType::Knowledge, "") => parsed_text("description").trim().to_owned(),
            (_, description) => description.to_owned(),
        },
        category: id.category().to_owned(),
        content,
        version: text("version").to_owned(),
    }
}
