//! From grants to definitions.

use std::collections::BTreeMap;

use rye_engine::agent_actions::schemas::{self, AgentToolSchema};
use rye_engine::verbs::search;
use rye_engine::{Engine, ErrorKind, chain_cache};
use rye_exec::Element;
use rye_item::text::one_line;
use rye_item::{ItemRef, ItemType};
use rye_model::ToolDefinition;
use serde_json::{Map, Value, json};

use super::names::NameAllocator;
use super::{DIRECTIVE_RETURN, READ_ARTIFACT, SkippedTool, ToolBinding, ToolDefinitions};
use crate::action::{Action, PrimaryAction};
use crate::capability::{Capabilities, Principal, permit};
use crate::preflight;

/// Tools that make other tools work: offered only to who is granted them by name.
const INFRASTRUCTURE_TYPES: [&str; 5] = ["config-schema", "extractor", "parser", "primitive", "runtime"];
/// Where providers live: a thread asks them by itself.
const PROVIDERS_PREFIX: &str = "rye/agent/providers";
/// The most tools that are offered by name.
const MAX_TOOLS: usize = 120;
/// The longest description that is sent.
const MAX_DESCRIPTION_CHARS: usize = 1000;
/// About as many characters make a token.
const CHARS_PER_TOKEN: usize = 4;

/// How many tools are offered by name: `tool_preload` of `resilience.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreloadOptions {
    /// Whether any are.
    pub enabled: bool,
    /// How many tokens their definitions may take, primary tools included.
    pub max_tokens: usize,
}

/// An output that a directive declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputField {
    /// Its name.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `array`, `object`; anything else is any JSON.
    pub type_name: String,
    /// Whether it must be there.
    pub is_required: bool,
    /// What it is.
    pub description: String,
}

impl OutputField {
    /// The outputs of a parsed directive.
    #[must_use]
    pub fn from_directive(outputs: Option<&Value>) -> Vec<Self> {
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let list = outputs.and_then(Value::as_array).into_iter().flatten();
        list.map(|output| Self {
            name: text(output, "name"),
            type_name: text(output, "type"),
            is_required: output.get("required").and_then(Value::as_bool).unwrap_or(false),
            description: text(output, "description"),
        })
        .filter(|output| !output.name.is_empty())
        .collect()
    }
}

/// What a thread with these grants is offered.
#[must_use]
pub fn build(
    engine: &Engine,
    capabilities: &Capabilities,
    outputs: &[OutputField],
    preload: PreloadOptions,
) -> ToolDefinitions {
    let mut builder = DefinitionsBuilder::default();
    if !outputs.is_empty() {
        builder.add_special(
            "directive_return",
            ToolBinding::DirectiveReturn,
            return_definition(outputs),
            DIRECTIVE_RETURN,
        );
    }
    for described in schemas::agent_tool_schemas() {
        builder.add_primary(described, capabilities);
    }
    if !capabilities.is_empty() {
        builder.add_special(
            "read_artifact",
            ToolBinding::ReadArtifact,
            read_artifact_definition(),
            READ_ARTIFACT,
        );
    }
    if preload.enabled {
        builder.add_tools(engine, capabilities, preload.max_tokens.saturating_mul(CHARS_PER_TOKEN));
    }
    ToolDefinitions { tools: builder.tools.into(), names: builder.bindings, skipped: builder.skipped }
}

#[derive(Default)]
struct DefinitionsBuilder {
    names: NameAllocator,
    tools: Vec<ToolDefinition>,
    bindings: BTreeMap<String, ToolBinding>,
    skipped: Vec<SkippedTool>,
}

impl DefinitionsBuilder {
    fn add(&mut self, definition: ToolDefinition, bound: ToolBinding) {
        self.bindings.insert(definition.name.clone(), bound);
        self.tools.push(definition);
    }

    fn add_special(
        &mut self,
        name: &str,
        bound: ToolBinding,
        (description, schema): (String, Value),
        id: &str,
    ) {
        let name = self.names.reserve(name);
        let target = json!({"primary": "execute", "item_type": "tool", "item_id": id});
        self.add(ToolDefinition { name, description, schema, target }, bound);
    }

    /// Adds a primary tool if anything of it is granted, for the types that are.
    fn add_primary(&mut self, described: AgentToolSchema, capabilities: &Capabilities) {
        let primary = described.action;
        let words: &[&str] = match primary {
            PrimaryAction::Fetch => &["search", "load"],
            PrimaryAction::Search | PrimaryAction::Load | PrimaryAction::Execute | PrimaryAction::Sign => {
                &[primary.as_str()]
            }
        };
        let types: Vec<ItemType> = ItemType::SEARCHABLE
            .into_iter()
            .filter(|item_type| {
                words.iter().all(|word| capabilities.overlaps(&format!("rye.{word}.{item_type}.*")))
            })
            .collect();
        if types.is_empty() {
            return;
        }
        let mut schema = described.schema;
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            // A thread stays in its project.
            properties.shift_remove("project_path");
            if let Some(item_type) = properties.get_mut("item_type") {
                item_type["enum"] = json!(types);
            }
            if !capabilities.overlaps("rye.sign.*") {
                properties.shift_remove("destination");
            }
            if !types.contains(&ItemType::Directive) {
                for name in ["thread", "async", "model", "limit_overrides"] {
                    properties.shift_remove(name);
                }
            }
        }
        let name = self.names.reserve(described.name);
        let definition = ToolDefinition {
            name,
            description: described.description.to_owned(),
            schema: Value::Object(schema),
            target: json!({"primary": primary}),
        };
        self.add(definition, ToolBinding::Primary(primary));
    }

    /// Adds granted tools by name, the most specifically granted first, as long as they fit into `most` characters.
    fn add_tools(&mut self, engine: &Engine, capabilities: &Capabilities, max_chars: usize) {
        let mut used: usize = self.tools.iter().map(definition_size).sum();
        let mut candidates: Vec<(usize, ItemRef)> = granted_tools(engine, capabilities)
            .into_iter()
            .filter(|item| ![DIRECTIVE_RETURN, READ_ARTIFACT].contains(&item.id.as_str()))
            .filter(|item| permit(capabilities, &Action::execute(item, Map::new()), Principal::Model).is_ok())
            .map(|item| (specificity(capabilities, &item), item))
            .collect();
        candidates.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        for (specificity, item) in candidates {
            let is_named = specificity == usize::MAX;
            if !is_named && item.id.is_within(PROVIDERS_PREFIX) {
                continue;
            }
            if self.bindings.len() >= MAX_TOOLS || used >= max_chars {
                self.skip(&item, "there is no room for its definition");
                continue;
            }
            let tool = match chain_cache::build_valid_chain(engine, &item, None) {
                Ok((chain, _)) => chain.tool().clone(),
                Err(error) => {
                    // Machinery has no chain of its own; a tool without a trusted signature is worth a notice.
                    if is_named || error.code.kind() == ErrorKind::Integrity {
                        self.skip(&item, &error.message);
                    }
                    continue;
                }
            };
            if !is_named && tool.text("tool_type").is_some_and(|kind| INFRASTRUCTURE_TYPES.contains(&kind)) {
                continue;
            }
            let definition = ToolDefinition {
                name: self.names.for_item(item.id.as_str()),
                description: description_of(&tool),
                schema: tool_schema(&tool),
                target: json!({"primary": "execute", "item_type": "tool", "item_id": item.id.as_str()}),
            };
            if used + definition_size(&definition) > max_chars {
                self.skip(&item, "there is no room for its definition");
                continue;
            }
            used += definition_size(&definition);
            self.add(definition, ToolBinding::Tool(item.id.to_string()));
        }
    }

    fn skip(&mut self, item: &ItemRef, reason: &str) {
        self.skipped.push(SkippedTool { item_id: item.id.to_string(), reason: one_line(reason) });
    }
}

/// Tools that could be granted: all, or where every grant names one, those.
fn granted_tools(engine: &Engine, capabilities: &Capabilities) -> Vec<ItemRef> {
    let mut named = Vec::new();
    for grant in capabilities
        .iter()
        .filter(|grant| Capabilities::parse([grant]).is_ok_and(|one| one.overlaps("rye.execute.tool.*")))
    {
        match grant.strip_prefix("rye.execute.tool.").filter(|dotted| !dotted.contains('*')) {
            Some(dotted) => named.extend(preflight::resolve_dotted(engine, ItemType::Tool, dotted)),
            None => return search::complete_ids(engine, Some(ItemType::Tool), ""),
        }
    }
    named.sort();
    named.dedup();
    named
}

fn definition_size(definition: &ToolDefinition) -> usize {
    definition.name.len() + definition.description.len() + definition.schema.to_string().len()
}

/// How specifically a tool is granted: by its whole name before all, else by as many parts as the grant has.
fn specificity(capabilities: &Capabilities, item: &ItemRef) -> usize {
    let required = crate::capability::required_capabilities(&Action::execute(item, Map::new()));
    let of_grant = |grant: &str| {
        let covers = Capabilities::parse([grant])
            .is_ok_and(|grant| required.iter().all(|required| grant.covers(required)));
        match (covers, grant.contains('*')) {
            (false, _) => 0,
            (true, false) => usize::MAX,
            (true, true) => grant.matches('.').count(),
        }
    };
    capabilities.iter().map(of_grant).max().unwrap_or(0)
}

fn description_of(tool: &Element) -> String {
    let text = tool.text("description").map(one_line).unwrap_or_default();
    let text: String = text.chars().take(MAX_DESCRIPTION_CHARS).collect();
    if text.is_empty() { format!("The tool {}", tool.id()) } else { text }
}

/// The schema of its parameters, whatever the tool calls it.
fn tool_schema(tool: &Element) -> Value {
    let declared = tool.schema().filter(|schema| schema.is_object()).cloned();
    let mut schema = declared
        .or_else(|| schema_from_list(tool.item().parsed().fields.get("parameters")))
        .unwrap_or_else(|| json!({}));
    if let Some(map) = schema.as_object_mut() {
        // Providers want an object, also of what says nothing.
        map.insert("type".to_owned(), json!("object"));
        map.entry("properties").or_insert_with(|| json!({}));
    }
    schema
}

/// The older form: a list of `{"name", "type", "required", "description", "default"}`.
fn schema_from_list(parameters: Option<&Value>) -> Option<Value> {
    let list = parameters?.as_array()?;
    let mut properties = Map::new();
    let mut required = Vec::new();
    for parameter in list {
        let name = parameter.get("name").and_then(Value::as_str)?;
        let mut property = Map::new();
        for key in ["type", "description", "default", "enum", "items"] {
            if let Some(value) = parameter.get(key) {
                property.insert(key.to_owned(), value.clone());
            }
        }
        properties.insert(name.to_owned(), Value::Object(property));
        if parameter.get("required").and_then(Value::as_bool) == Some(true) {
            required.push(name);
        }
    }
    Some(json!({"type": "object", "properties": properties, "required": required}))
}

fn return_definition(outputs: &[OutputField]) -> (String, Value) {
    let mut properties = Map::new();
    for output in outputs {
        let mut property = Map::new();
        if ["string", "integer", "number", "boolean", "array", "object"].contains(&output.type_name.as_str())
        {
            property.insert("type".to_owned(), json!(output.type_name));
        }
        if !output.description.is_empty() {
            property.insert("description".to_owned(), json!(one_line(&output.description)));
        }
        properties.insert(output.name.clone(), Value::Object(property));
    }
    // What a directive declares itself comes first.
    properties.entry("status").or_insert_with(|| {
        json!({"type": "string", "enum": ["completed", "error"], "description": "error if you are blocked"})
    });
    properties
        .entry("error_detail")
        .or_insert_with(|| json!({"type": "string", "description": "With status error: what blocks you"}));
    let required: Vec<&str> =
        outputs.iter().filter(|output| output.is_required).map(|output| output.name.as_str()).collect();
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    (
        "Finish, and return the outputs of the directive. Call this once, when everything is done."
            .to_owned(),
        schema,
    )
}

fn read_artifact_definition() -> (String, Value) {
    let schema = json!({
        "type": "object",
        "properties": {
            "artifact_ref": {"type": "string", "description": "The `_artifact_ref` of a result that was cut"},
            "offset": {"type": "integer", "minimum": 0, "description": "The first character, counted from 0"},
            "limit": {"type": "integer", "minimum": 1, "description": "How many characters"},
        },
        "required": ["artifact_ref"],
        "additionalProperties": false,
    });
    ("Read a slice of an earlier result that was too long to show.".to_owned(), schema)
}
