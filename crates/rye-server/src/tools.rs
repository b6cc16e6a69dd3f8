//! What clients see of the five tools: what every agent sees, and hints about what they do.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use rye_engine::agent_actions::schemas::{self, AgentToolSchema};
use rye_item::PrimaryAction;
use serde_json::{Value, json};

/// The tools, as they are listed.
pub(crate) fn all() -> Vec<Tool> {
    schemas::agent_tool_schemas().into_iter().map(build_tool).collect()
}

/// What an agent should know before its first call.
pub(crate) const INSTRUCTIONS: &str = "\
RYE holds this project's directives (instructions to follow), tools (programs to run) and knowledge (facts to use). \
Every item is signed; what is not signed by a key the user trusts is listed but never read or run.\n\
Start with rye_search. Read an item with rye_load before you use it: a tool's metadata holds the schema of its \
parameters, a directive's its inputs. Run tools, and get the text of directives, with rye_execute. After you have \
written or changed an item below .ai/ yourself, ask for a signature with rye_sign, or it will not run; the user is asked \
first. If an item that you did not write is refused because it is unsigned, changed or not trusted, tell the user: \
they decide, not you. After a no do not ask again.\n\
An answer is one JSON object. If status is error, do what hints say; do not work around a refusal. `[redacted:NAME]` \
marks a redacted secret; never write it into a file.";

fn build_tool(definition: AgentToolSchema) -> Tool {
    let action = definition.action;
    let hints = match action {
        PrimaryAction::Search | PrimaryAction::Load | PrimaryAction::Fetch => {
            ToolAnnotations::new().read_only(true).destructive(false).idempotent(true)
        }
        PrimaryAction::Execute => ToolAnnotations::new().read_only(false).destructive(true).idempotent(false),
        // A signature lets what it covers run with the user's rights.
        PrimaryAction::Sign => ToolAnnotations::new().read_only(false).destructive(true).idempotent(true),
    };
    let mut schema = definition.schema;
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut)
        && SHORTENED_TOOLS.contains(&action)
    {
        properties.insert("detail".to_owned(), detail_schema());
    }
    Tool::new(definition.name, definition.description, Arc::new(schema))
        .with_title(definition.title)
        .with_annotations(hints.open_world(action == PrimaryAction::Execute))
}

/// Tools whose answers leave out what explains them, unless asked.
const SHORTENED_TOOLS: [PrimaryAction; 2] = [PrimaryAction::Load, PrimaryAction::Execute];

fn detail_schema() -> Value {
    json!({"type": "string", "enum": ["brief", "full"], "description": "full adds chain, sandbox, lockfile, metadata"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_mark_read_only_tools() {
        for tool in all() {
            let hints = tool.annotations.expect("annotations");
            let reads = !["rye_execute", "rye_sign"].contains(&tool.name.as_ref());
            let found = (hints.read_only_hint, hints.destructive_hint);
            assert_eq!(found, (Some(reads), Some(!reads)), "{}", tool.name);
        }
    }

    #[test]
    fn tools_have_the_documented_arguments() {
        let expected = [
            ("rye_search", "query item_type scope source limit project_path"),
            ("rye_load", "item_id item_type source project_path detail"),
            ("rye_fetch", "item_id query item_type scope source limit project_path"),
            (
                "rye_execute",
                "item_id item_type parameters dry_run thread async model limit_overrides project_path detail",
            ),
            ("rye_sign", "item_id item_type source destination project_path"),
        ];
        let tools = all();
        assert_eq!(tools.len(), expected.len());
        for (tool, (name, arguments)) in tools.iter().zip(expected) {
            let properties = tool.input_schema["properties"].as_object().expect("properties");
            let found = properties.keys().map(String::as_str).collect::<Vec<_>>().join(" ");
            assert_eq!((tool.name.as_ref(), found.as_str()), (name, arguments));
            let is_clear = |schema: &Value| schema["description"].is_string() || schema["enum"].is_array();
            assert!(properties.iter().all(|(name, schema)| name == "limit" || is_clear(schema)), "{name}");
            assert!(tool.annotations.is_some(), "{name}");
        }
    }
}
