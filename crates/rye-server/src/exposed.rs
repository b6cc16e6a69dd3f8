//! The user's tools as MCP tools of their own: `mcp.expose` in the user's config and `rye mcp --expose`.
//!
//! A client sees each under its own name with its own schema, so that its allow-list works per tool. Only what would run is
//! listed, and a call is the same as `rye_execute` of the item: nothing here decides what is trusted.

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{CallToolRequestParams, Tool, ToolAnnotations};
use rye_agent::capability::Capabilities;
use rye_agent::definitions::{self, PreloadOptions, ToolBinding};
use rye_engine::agent_actions::schemas::agent_tool_schemas;
use rye_engine::{Code, Engine, Error, Result};
use rye_item::text::one_line;
use serde_json::{Map, Value};

/// How many tokens the definitions of exposed tools may take.
const MAX_TOKENS: usize = 20_000;

/// A tool of the user that clients see by its own name.
#[derive(Clone, Debug)]
pub(crate) struct ExposedTool {
    /// What clients see.
    pub(crate) tool: Tool,
    /// The item it runs.
    pub(crate) item_id: String,
}

impl ExposedTool {
    /// A call of it as a call of `rye_execute`; all arguments are the tool's own.
    pub(crate) fn as_execution(&self, mut request: CallToolRequestParams) -> CallToolRequestParams {
        let parameters = request.arguments.take().unwrap_or_default();
        let mut arguments = Map::new();
        arguments.insert("item_type".to_owned(), Value::from("tool"));
        arguments.insert("item_id".to_owned(), Value::from(self.item_id.as_str()));
        arguments.insert("parameters".to_owned(), Value::Object(parameters));
        request.name = "rye_execute".into();
        request.arguments = Some(arguments);
        request
    }
}

/// The exposed tools as they were listed last.
#[derive(Debug, Default)]
pub(crate) struct ExposedTools(Mutex<Arc<[ExposedTool]>>);

impl ExposedTools {
    /// Keeps a list.
    pub(crate) fn replace(&self, tools: Vec<ExposedTool>) -> Arc<[ExposedTool]> {
        let tools: Arc<[ExposedTool]> = tools.into();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&tools);
        tools
    }

    /// The tool of this name, if it was listed.
    pub(crate) fn find(&self, name: &str) -> Option<ExposedTool> {
        let tools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tools.iter().find(|exposed| exposed.tool.name == name).cloned()
    }
}

/// The tools that these patterns name and that would run.
///
/// # Errors
/// When a pattern is not one.
pub(crate) fn find_exposed(engine: &Engine, patterns: &[String]) -> Result<Vec<ExposedTool>> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let capabilities =
        Capabilities::parse(patterns.iter().map(|pattern| grant(pattern))).map_err(|error| {
            Error::new(Code::InvalidArgument, format!("mcp.expose: {}", one_line(&error.to_string())))
                .hint("name tools by id or by a pattern, such as team/deploy or team/*")
        })?;
    let preload = PreloadOptions { enabled: true, max_tokens: MAX_TOKENS };
    let offered = definitions::build(engine, &capabilities, &[], preload);
    let mut exposed: Vec<ExposedTool> = Vec::new();
    for definition in &*offered.tools {
        let (Some(ToolBinding::Tool(item_id)), Value::Object(schema)) =
            (offered.names.get(&definition.name), definition.schema.clone())
        else {
            continue;
        };
        // What a tool does is not known from here, so a client asks before it is called.
        let hints =
            ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(true);
        let tool = Tool::new(definition.name.clone(), definition.description.clone(), Arc::new(schema))
            .with_title(item_id.clone())
            .with_annotations(hints);
        exposed.push(ExposedTool { tool, item_id: item_id.clone() });
    }
    // The names of threads depend on what else is there; a client's list of allowed tools must not.
    let own: Vec<&str> = agent_tool_schemas().into_iter().map(|tool| tool.name).collect();
    for exposed in &mut exposed {
        exposed.tool.name = definitions::stable_name(&exposed.item_id, &own).into();
    }
    Ok(exposed)
}

/// A pattern of ids as the grant to execute what it names: `team/*` is everything below `team`.
fn grant(pattern: &str) -> String {
    format!("rye.execute.tool.{}", pattern.replace("**", "*").replace('/', "."))
}
