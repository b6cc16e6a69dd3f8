//! What agents see of the five primary tools: names, descriptions for a model, schemas.

use serde_json::{Map, Value, json};

/// A primary tool as an agent sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentToolSchema {
    /// `rye_search`, ….
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// For a model.
    pub description: &'static str,
    /// The JSON Schema of its arguments.
    pub schema: Map<String, Value>,
}

/// The five tools, in the order they are listed.
#[must_use]
pub fn agent_tool_schemas() -> Vec<AgentToolSchema> {
    vec![search_schema(), load_schema(), fetch_schema(), execute_schema(), sign_schema()]
}

fn tool_schema(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    properties: Value,
    required: &[&str],
) -> AgentToolSchema {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), properties);
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), json!(false));
    AgentToolSchema { name, title, description, schema }
}

fn item_type_schema() -> Value {
    json!({
        "type": "string",
        "enum": ["directive", "tool", "knowledge"],
        "description": "The item's type. Optional if item_id is canonical (`tool:team/deploy`).",
    })
}

fn item_id_schema(more: &str) -> Value {
    let text = format!(
        "The item's id: its path without extension, such as `team/deploy`, or `tool:team/deploy`.{more}"
    );
    json!({"type": "string", "maxLength": 600, "description": text})
}

fn project_path_schema() -> Value {
    json!({
        "type": "string",
        "description": "Absolute path of a project the user has approved, the folder that holds `.ai/`. Default: the folder the server was started in.",
    })
}

fn source_schema() -> Value {
    json!({
        "type": "string",
        "enum": ["project", "user", "system", "all", "local"],
        "description": "Look in this space only. Default: all, project before user before system. `local` means all.",
    })
}

fn destination_schema() -> Value {
    json!({
        "type": "string",
        "enum": ["project", "user"],
        "description": "Copy the item into this space, and sign the copy instead of the item.",
    })
}

fn query_schema() -> Value {
    json!({
        "type": "string",
        "maxLength": 4096,
        "description": "All words must match. Supports \"phrases\", prefix*, AND, OR, NOT and parentheses; `*` matches everything.",
    })
}

fn scope_schema() -> Value {
    json!({
        "type": "string",
        "description": "A type, or a type and a namespace: `tool`, `tool.team.*`. Overrides item_type.",
    })
}

fn limit_schema() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": 1000, "description": "Maximum number of results."})
}

fn search_schema() -> AgentToolSchema {
    tool_schema(
        "rye_search",
        "Search items",
        "Find directives, tools and knowledge by words. Returns data.results, best first: type, item_id, space, title, \
         description, version, and whether it is signed. A row with signed: false cannot be loaded or run. Use this \
         before you write something yourself: the project may already have it.",
        json!({
            "query": query_schema(), "item_type": item_type_schema(), "scope": scope_schema(), "source": source_schema(),
            "limit": limit_schema(), "project_path": project_path_schema(),
        }),
        &["query"],
    )
}

fn load_schema() -> AgentToolSchema {
    tool_schema(
        "rye_load",
        "Read an item",
        "Read one signed item. data.content is what it says (a directive's prompt, a knowledge entry's text, a tool's \
         source), data.metadata what it declares (a tool's config_schema, a directive's inputs).",
        json!({
            "item_type": item_type_schema(), "item_id": item_id_schema(""), "source": source_schema(), "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}

fn fetch_schema() -> AgentToolSchema {
    tool_schema(
        "rye_fetch",
        "Load or search",
        "rye_load if item_id is given, rye_search if query is given. Give one of the two. With item_id alone, the type \
         is found out.",
        json!({
            "item_type": item_type_schema(), "item_id": item_id_schema(""), "query": query_schema(), "scope": scope_schema(),
            "source": source_schema(), "limit": limit_schema(), "project_path": project_path_schema(),
        }),
        &[],
    )
}

fn execute_schema() -> AgentToolSchema {
    tool_schema(
        "rye_execute",
        "Run an item",
        "Run a tool with parameters, sandboxed; data is its result, logs what it printed. For a directive, returns its \
         prompt with the inputs filled in as your_directions: follow it. For knowledge, returns its text. Read the \
         item first to learn its parameters. dry_run checks everything and runs nothing.",
        json!({
            "item_type": item_type_schema(),
            "item_id": item_id_schema(""),
            "parameters": {
                "type": "object",
                "description": "A tool's parameters or a directive's inputs, by name.",
                "additionalProperties": true,
            },
            "dry_run": {"type": "boolean", "default": false, "description": "Check everything without running it."},
            "thread": {
                "type": "string", "enum": ["inline", "fork"], "default": "inline",
                "description": "Directives only. inline: you follow it. fork: it runs in its own thread.",
            },
            "async": {"type": "boolean", "default": false, "description": "With fork: return at once."},
            "model": {"type": "string", "description": "With fork: the model to use."},
            "limit_overrides": {
                "type": "object", "description": "With fork: limits such as turns or spend.", "additionalProperties": true,
            },
            "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}

fn sign_schema() -> AgentToolSchema {
    tool_schema(
        "rye_sign",
        "Check and sign items",
        "Check an item you have written or changed, and have it signed with the user's key, so that it can be loaded \
         and run. The user is asked first, and sees what changed. If it is not valid, every problem is listed with its \
         line; correct them and sign again. With destination, copy an item into another space to adapt it there; the \
         copy is signed. Never sign what others changed. Never signs config.",
        json!({
            "item_type": item_type_schema(),
            "item_id": item_id_schema(" A pattern signs many: `team/*` one level, `team/**` all."),
            "source": {
                "type": "string", "enum": ["project", "user", "system"],
                "description": "Sign in this space; with destination, copy from it. Default: project, else user.",
            },
            "destination": destination_schema(),
            "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}
