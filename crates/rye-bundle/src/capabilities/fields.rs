//! Fields of an item that people are shown because nothing else shows them. What is listed here is harmless or shown
//! under a word of its own; every other field is shown, those of later versions included.

use rye_item::ItemType;
use rye_item::parse::directive::HOOK_KEYS;
use serde_json::{Map, Value};

use super::flatten_rules;
use crate::contents::BundleFile;
use crate::object;

/// Where an item is and what it is called.
const IDENTITY: [&str; 6] = ["name", "version", "category", "description", "__version__", "__category__"];

/// Fields of tools that name or describe them, or only narrow what they take.
const TOOL: [&str; 19] = [
    "docstring",
    "__docstring__",
    "__tool_description__",
    "tool_type",
    "__tool_type__",
    "config_schema",
    "CONFIG_SCHEMA",
    "input_schema",
    "output_schema",
    "parameters",
    "inputs",
    "INPUTS",
    "outputs",
    "OUTPUTS",
    "child_constraints",
    "CHILD_CONSTRAINTS",
    "author",
    "tags",
    "title",
];

/// What a value must be so that it is shown under a word of its own; in another shape it is shown as a field.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Texts,
    List,
    Map,
    Any,
}

impl Shape {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            Self::List => value.is_array(),
            Self::Map => value.is_object(),
            Self::Any => true,
        }
    }
}

/// Fields of tools, and parts of them, that are shown as executors, commands, rules of the sandbox, variables, secrets and
/// packages, or only name a variable.
const TOOL_SHOWN: [(&str, Shape); 15] = [
    ("executor_id", Shape::Text),
    ("sandbox", Shape::Any),
    ("dependencies", Shape::Texts),
    // Arguments are shown with their command.
    ("config.args", Shape::List),
    ("config.command", Shape::Text),
    ("config.env", Shape::Map),
    ("env_config.env", Shape::Map),
    ("env_config.pass", Shape::Texts),
    ("env_config.secrets", Shape::Texts),
    ("env_config.interpreter.type", Shape::Text),
    ("env_config.interpreter.var", Shape::Text),
    ("env_config.interpreter.resolve_cmd", Shape::Texts),
    ("env_config.interpreter.binary", Shape::Text),
    ("env_config.interpreter.fallback", Shape::Text),
    ("env_config.interpreter.candidates", Shape::Texts),
];

/// Fields of directives that describe them or are their text. What a text asks to be done needs a permission.
const DIRECTIVE: [&str; 10] =
    ["author", "title", "inputs", "outputs", "actions", "templates", "preamble", "body", "content", "raw"];

/// Fields of directives that are shown as permissions and hooks.
const DIRECTIVE_SHOWN: [&str; 2] = ["permissions", "hooks"];

/// Fields of knowledge entries: they are read, and do nothing.
const KNOWLEDGE: [&str; 14] = [
    "title",
    "entry_type",
    "tags",
    "author",
    "body",
    "content",
    "raw",
    "created_at",
    "updated_at",
    "source",
    "references",
    "links",
    "related",
    "status",
];

/// Files in which every name is a value of the program: only what the extractor knows is metadata.
const PROGRAMS: [&str; 6] = [".py", ".js", ".mjs", ".cjs", ".ts", ".mts"];

/// The fields of an item that are not known to be harmless, a line for each value.
pub(super) fn remarkable(file: &BundleFile, item_type: ItemType) -> Vec<String> {
    let is_program = object::extension(&file.path).is_some_and(|extension| PROGRAMS.contains(&extension));
    // Data among tools says neither what it is nor what runs it, and is refused as a tool.
    let is_data = item_type == ItemType::Tool
        && ["tool_type", "executor_id"].iter().all(|key| file.fields.get(*key).is_none_or(Value::is_null));
    let mut all = file.fields.clone();
    if !is_program && !is_data {
        // What the extractor took is there already; a second field of the same meaning is not read.
        let is_taken = |key: &str, value: &Value| {
            let plain = key.trim_matches('_').to_lowercase();
            file.fields.get(&plain).is_some_and(|taken| taken == value)
        };
        let rest =
            file.raw.iter().filter(|(key, value)| !file.fields.contains_key(*key) && !is_taken(key, value));
        all.extend(rest.map(|(key, value)| (key.clone(), value.clone())));
    }
    let is_harmless = |key: &str| {
        IDENTITY.contains(&key)
            || match item_type {
                ItemType::Tool => TOOL.contains(&key),
                ItemType::Directive => DIRECTIVE.contains(&key) || DIRECTIVE_SHOWN.contains(&key),
                ItemType::Knowledge => KNOWLEDGE.contains(&key),
                ItemType::Config => HOOK_KEYS.contains(&key),
            }
    };
    all.retain(|key, _| !is_harmless(key));
    if item_type == ItemType::Tool {
        let has_command =
            all.get("config").and_then(|config| config.get("command")).is_some_and(Value::is_string);
        let shown = TOOL_SHOWN.iter().filter(|(path, _)| has_command || *path != "config.args");
        shown.for_each(|(path, shape)| remove(&mut all, path, *shape));
    }
    let mut found = Vec::new();
    all.iter().for_each(|(key, value)| flatten_rules(Some(value), key, &mut found));
    found
}

/// Removes what lies at `path` if it has the shape in which it is shown elsewhere.
fn remove(fields: &mut Map<String, Value>, path: &str, shape: Shape) {
    match path.split_once('.') {
        Some((outer, rest)) => {
            if let Some(inner) = fields.get_mut(outer).and_then(Value::as_object_mut) {
                remove(inner, rest, shape);
            }
        }
        None => {
            if fields.get(path).is_some_and(|value| shape.fits(value)) {
                fields.remove(path);
            }
        }
    }
}
