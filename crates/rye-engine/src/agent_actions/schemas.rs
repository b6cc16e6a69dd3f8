//! What agents see of the five primary tools: names, descriptions for a model, schemas.

use rye_item::{ItemType, PrimaryAction};
use serde_json::{Map, Value, json};

/// A primary tool as an agent sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentToolSchema {
    /// What it asks for.
    pub action: PrimaryAction,
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
    let schemas = PrimaryAction::ALL.map(|action| match action {
        PrimaryAction::Search => search_schema(),
        PrimaryAction::Load => load_schema(),
        PrimaryAction::Fetch => fetch_schema(),
        PrimaryAction::Execute => execute_schema(),
        PrimaryAction::Sign => sign_schema(),
    });
    schemas.into()
}

/// The action that the tool `name` asks for: `rye_search` searches.
#[must_use]
pub fn agent_tool_action(name: &str) -> Option<PrimaryAction> {
    PrimaryAction::ALL.into_iter().find(|action| agent_tool_name(*action) == name)
}

fn agent_tool_name(action: PrimaryAction) -> &'static str {
    match action {
        PrimaryAction::Search => "rye_search",
        PrimaryAction::Load => "rye_load",
        PrimaryAction::Fetch => "rye_fetch",
        PrimaryAction::Execute => "rye_execute",
        PrimaryAction::Sign => "rye_sign",
    }
}

fn tool_schema(
    action: PrimaryAction,
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
    AgentToolSchema { action, name: agent_tool_name(action), title, description, schema }
}

fn item_type_schema() -> Value {
    json!({"type": "string", "enum": ItemType::SEARCHABLE})
}

fn item_id_schema(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn project_path_schema() -> Value {
    json!({"type": "string", "description": "Another approved project"})
}

fn source_schema() -> Value {
    json!({"type": "string", "enum": ["project", "user", "system"]})
}

fn destination_schema() -> Value {
    json!({
        "type": "string",
        "enum": ["project", "user"],
        "description": "Sign a copy in this space instead",
    })
}

fn query_schema() -> Value {
    json!({"type": "string", "description": "Words; also \"phrases\", prefix*, AND, OR, NOT; `*` is everything"})
}

fn scope_schema() -> Value {
    json!({"type": "string", "description": "`tool`, or with a namespace: `tool.team.*`"})
}

fn limit_schema() -> Value {
    json!({"type": "integer"})
}

/// What an id looks like.
const ID_DESCRIPTION: &str = "Such as `team/deploy` or `tool:team/deploy`";

fn search_schema() -> AgentToolSchema {
    tool_schema(
        PrimaryAction::Search,
        "Search items",
        "Find directives, tools and knowledge. Returns data.results, best first. Items with signed: false cannot be \
         read or run. Search before you write something yourself.",
        json!({
            "query": query_schema(), "item_type": item_type_schema(), "scope": scope_schema(), "source": source_schema(),
            "limit": limit_schema(), "project_path": project_path_schema(),
        }),
        &["query"],
    )
}

fn load_schema() -> AgentToolSchema {
    tool_schema(
        PrimaryAction::Load,
        "Read an item",
        "Read a signed item: data.content is its text or source, data.metadata what it declares (a tool's \
         config_schema, a directive's inputs).",
        json!({
            "item_id": item_id_schema(ID_DESCRIPTION), "item_type": item_type_schema(), "source": source_schema(),
            "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}

fn fetch_schema() -> AgentToolSchema {
    tool_schema(
        PrimaryAction::Fetch,
        "Read or search",
        "rye_load if item_id is given, rye_search if query is given.",
        json!({
            "item_id": item_id_schema(ID_DESCRIPTION), "query": query_schema(), "item_type": item_type_schema(),
            "scope": scope_schema(), "source": source_schema(), "limit": limit_schema(),
            "project_path": project_path_schema(),
        }),
        &[],
    )
}

fn execute_schema() -> AgentToolSchema {
    tool_schema(
        PrimaryAction::Execute,
        "Run an item",
        "Run a tool, sandboxed: data is its result, logs what it printed. A directive returns your_directions: follow \
         them. Knowledge returns its text. Read the item first to learn its parameters.",
        json!({
            "item_id": item_id_schema(ID_DESCRIPTION),
            "item_type": item_type_schema(),
            "parameters": {
                "type": "object",
                "description": "A tool's parameters or a directive's inputs",
            },
            "dry_run": {"type": "boolean", "description": "Check everything, run nothing"},
            "thread": {
                "type": "string", "enum": ["inline", "fork"],
                "description": "Directives: fork runs it in a thread of its own",
            },
            "async": {"type": "boolean", "description": "With fork: return at once"},
            "model": {"type": "string", "description": "With fork"},
            "limit_overrides": {
                "type": "object", "description": "With fork: turns, tokens, spend, …",
            },
            "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}

fn sign_schema() -> AgentToolSchema {
    tool_schema(
        PrimaryAction::Sign,
        "Check and sign items",
        "Check an item you have written or changed and have it signed with the user's key, so that it can run. The \
         user is asked and sees what changed. Problems are listed with their lines. Never sign what others changed. \
         Config is never signed.",
        json!({
            "item_id": item_id_schema("An id, or a pattern: `team/*` one level, `team/**` all"),
            "item_type": item_type_schema(),
            "source": {"type": "string", "enum": ["project", "user", "system"]},
            "destination": destination_schema(),
            "project_path": project_path_schema(),
        }),
        &["item_id"],
    )
}
