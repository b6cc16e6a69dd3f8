//! What clients see of the five tools: names, descriptions for a model, schemas, hints about what they do.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

/// The tools, as they are listed.
pub(crate) fn all() -> Vec<Tool> {
    vec![search(), load(), fetch(), execute(), sign()]
}

/// What an agent should know before its first call.
pub(crate) const INSTRUCTIONS: &str = "\
RYE holds this project's directives (instructions to follow), tools (programs to run) and knowledge (facts to use). \
Every item is signed; what is not signed by a key the user trusts is listed but never read or run.\n\
Start with rye_search. Read an item with rye_load before you use it: a tool's metadata holds the schema of its \
parameters, a directive's its inputs. Run tools, and get the text of directives, with rye_execute. After you have \
written or changed an item below .ai/, sign it with rye_sign, or it will not run.\n\
An answer is one JSON object. If status is error, do what hints say; do not work around a refusal.";

fn tool(
    name: &'static str,
    title: &str,
    description: &'static str,
    properties: Value,
    required: &[&str],
    hints: ToolAnnotations,
) -> Tool {
    let mut schema = object(json!({"type": "object"}));
    schema.insert("properties".to_owned(), properties);
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), json!(false));
    Tool::new(name, description, Arc::new(schema))
        .with_title(title)
        .with_raw_output_schema(Arc::new(object(output())))
        .with_annotations(hints.open_world(name == "rye_execute"))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Every answer is one object with a status; what stands beside it depends on the tool.
fn output() -> Value {
    json!({
        "type": "object",
        "properties": {
            "status": {"type": "string", "enum": ["success", "validation_passed", "error"]},
            "error": {"type": "string", "description": "What failed"},
            "code": {"type": "string", "description": "A stable error code, such as RYE0402"},
            "hints": {"type": "array", "items": {"type": "string"}, "description": "What to do about it"},
        },
        "required": ["status"],
    })
}

fn read_only() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true)
}

fn item_type() -> Value {
    json!({
        "type": "string",
        "enum": ["directive", "tool", "knowledge"],
        "description": "What kind of item. May be left out if item_id is canonical (`tool:team/deploy`).",
    })
}

fn item_id(more: &str) -> Value {
    let text = format!(
        "The item's id: its path without extension, such as `team/deploy`, or `tool:team/deploy`.{more}"
    );
    json!({"type": "string", "maxLength": 600, "description": text})
}

fn project_path() -> Value {
    json!({
        "type": "string",
        "description": "Absolute path of the project, the folder that holds `.ai/`. Default: the folder the server was started in.",
    })
}

fn source() -> Value {
    json!({
        "type": "string",
        "enum": ["project", "user", "system", "all", "local"],
        "description": "Look in this space only. Default: all, project before user before system. `local` means all.",
    })
}

fn destination() -> Value {
    json!({
        "type": "string",
        "enum": ["project", "user"],
        "description": "Copy the item into this space instead of reading it; the copy is signed with the user's key.",
    })
}

fn query() -> Value {
    json!({
        "type": "string",
        "maxLength": 4096,
        "description": "Words that must all occur. \"phrases\", prefix*, AND, OR, NOT and ( ) are understood; `*` finds everything.",
    })
}

fn scope() -> Value {
    json!({
        "type": "string",
        "description": "A type, or a type and a namespace: `tool`, `tool.team.*`. Overrules item_type.",
    })
}

fn limit() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": 1000, "description": "How many results at most."})
}

fn search() -> Tool {
    tool(
        "rye_search",
        "Search items",
        "Find directives, tools and knowledge by words. Returns data.results, best first: type, item_id, space, title, \
         description, version, and whether it is signed. A row with signed: false cannot be loaded or run. Use this \
         before you write something yourself: the project may already have it.",
        json!({
            "query": query(), "item_type": item_type(), "scope": scope(), "source": source(),
            "limit": limit(), "project_path": project_path(),
        }),
        &["query"],
        read_only(),
    )
}

fn load() -> Tool {
    tool(
        "rye_load",
        "Read or copy an item",
        "Read one signed item. data.content is what it says (a directive's prompt, a knowledge entry's text, a tool's \
         source), data.metadata what it declares (a tool's config_schema, a directive's inputs). With destination, \
         copy it into another space instead, to adapt it there.",
        json!({
            "item_type": item_type(), "item_id": item_id(""), "source": source(),
            "destination": destination(), "project_path": project_path(),
        }),
        &["item_id"],
        ToolAnnotations::new().read_only(false).destructive(false).idempotent(true),
    )
}

fn fetch() -> Tool {
    tool(
        "rye_fetch",
        "Load or search",
        "rye_load if item_id is given, rye_search if query is given. Give one of the two. With item_id alone, the type \
         is found out.",
        json!({
            "item_type": item_type(), "item_id": item_id(""), "query": query(), "scope": scope(),
            "source": source(), "destination": destination(), "limit": limit(), "project_path": project_path(),
        }),
        &[],
        ToolAnnotations::new().read_only(false).destructive(false).idempotent(true),
    )
}

fn execute() -> Tool {
    tool(
        "rye_execute",
        "Run an item",
        "Run a tool with parameters, sandboxed; data is its result, logs what it printed. For a directive, returns its \
         prompt with the inputs filled in as your_directions: follow it. For knowledge, returns its text. Read the \
         item first to learn its parameters. dry_run checks everything and runs nothing.",
        json!({
            "item_type": item_type(),
            "item_id": item_id(""),
            "parameters": {
                "type": "object",
                "description": "A tool's parameters or a directive's inputs, by name.",
                "additionalProperties": true,
            },
            "dry_run": {"type": "boolean", "default": false, "description": "Check everything, run nothing."},
            "thread": {
                "type": "string", "enum": ["inline", "fork"], "default": "inline",
                "description": "Directives only. inline: you follow it. fork: a thread of its own follows it.",
            },
            "async": {"type": "boolean", "default": false, "description": "With fork: return at once."},
            "model": {"type": "string", "description": "With fork: the model to use."},
            "limit_overrides": {
                "type": "object", "description": "With fork: limits such as turns or spend.", "additionalProperties": true,
            },
            "project_path": project_path(),
        }),
        &["item_id"],
        ToolAnnotations::new().read_only(false).destructive(true).idempotent(false),
    )
}

fn sign() -> Tool {
    tool(
        "rye_sign",
        "Check and sign items",
        "Check an item you have written or changed, and sign it with the user's key, so that it can be loaded and run. \
         If it is not valid, every problem is listed with its line; correct them and sign again. Never signs config.",
        json!({
            "item_type": item_type(),
            "item_id": item_id(" A pattern signs many: `team/*` one level, `team/**` all."),
            "source": {
                "type": "string", "enum": ["project", "user"],
                "description": "Sign in this space. Default: project, else user.",
            },
            "project_path": project_path(),
        }),
        &["item_id"],
        ToolAnnotations::new().read_only(false).destructive(false).idempotent(true),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_have_the_arguments_of_the_contract() {
        let wanted = [
            ("rye_search", "query item_type scope source limit project_path"),
            ("rye_load", "item_type item_id source destination project_path"),
            ("rye_fetch", "item_type item_id query scope source destination limit project_path"),
            (
                "rye_execute",
                "item_type item_id parameters dry_run thread async model limit_overrides project_path",
            ),
            ("rye_sign", "item_type item_id source project_path"),
        ];
        let tools = all();
        assert_eq!(tools.len(), wanted.len());
        for (tool, (name, arguments)) in tools.iter().zip(wanted) {
            let properties = tool.input_schema["properties"].as_object().expect("properties");
            let found = properties.keys().map(String::as_str).collect::<Vec<_>>().join(" ");
            assert_eq!((tool.name.as_ref(), found.as_str()), (name, arguments));
            assert!(properties.values().all(|schema| schema["description"].is_string()), "{name}");
            assert!(tool.annotations.is_some() && tool.output_schema.is_some(), "{name}");
        }
    }
}
