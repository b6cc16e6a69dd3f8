//! Codex agents: directives.

use rye_item::ItemType;

use super::agent;
use crate::detect::SourceFormat;
use crate::findings::findings;
use crate::front_matter::FrontMatter;
use crate::grants;
use crate::names::snake;
use crate::plan::{ImportNote, NoteKind, PlannedItem, UnitContext, UnitPlan};
use crate::render::{self, DEFAULT_VERSION, DirectivePage, item_ref};

/// Keys that become part of the directive.
const USED_KEYS: [&str; 6] =
    ["name", "description", "developer_instructions", "model", "model_reasoning_effort", "sandbox_mode"];
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;

/// Reads an agent.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let text = context.text()?;
    let table: toml::Table =
        toml::from_str(text).map_err(|error| format!("it is not TOML: {}", error.message()))?;
    let field = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let stem = context.unit.path.name().trim_end_matches(".toml");
    let name = field("name").unwrap_or_else(|| stem.to_owned());
    let instructions = field("developer_instructions").ok_or("it has no `developer_instructions`")?;
    let description = field("description").unwrap_or_else(|| super::first_words(&instructions));
    if description.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!(
            "its description has {} bytes, more than {MAX_DESCRIPTION_BYTES}",
            description.len()
        ));
    }
    let mut notes: Vec<ImportNote> =
        findings(text).into_iter().map(|(kind, text)| ImportNote::new(kind, text)).collect();
    for key in table.keys().filter(|key| !USED_KEYS.contains(&key.as_str())) {
        notes.push(ImportNote::new(NoteKind::Lost, format!("`{key}` has no meaning here; exports keep it")));
    }
    let reading = ["Read", "Grep", "Glob", "LS"].map(str::to_owned);
    let writing = ["Write", "Edit"].map(str::to_owned);
    let tools: Option<Vec<String>> = match field("sandbox_mode").as_deref() {
        Some("read-only") => Some(reading.to_vec()),
        Some("workspace-write") => Some([&reading[..], &writing[..]].concat()),
        Some(other) => {
            notes.push(ImportNote::new(
                NoteKind::Denied,
                format!("`sandbox_mode = {other}` comes in denied: grant what it needs in <permissions>"),
            ));
            Some(Vec::new())
        }
        None => None,
    };
    let granted = grants::translate(tools.as_deref(), &[]);
    notes.extend(granted.notes);
    let mut front = FrontMatter::default();
    for (key, to) in [("model", "model"), ("model_reasoning_effort", "effort")] {
        if let Some(value) = field(key) {
            front.fields.insert(to.to_owned(), value.into());
        }
    }
    let (tier, effort) = agent::model(&front, &mut notes);
    let item = item_ref(ItemType::Directive, &format!("{}/{}", context.category("agents"), snake(&name)))?;
    let mut provenance =
        context.provenance(SourceFormat::CodexAgent, &name, &context.unit.path, text.as_bytes());
    provenance.original = text.to_owned();
    provenance.outro = "\n\n{input:task?}\n".to_owned();
    let page = DirectivePage {
        id: &item.id,
        description: &description,
        version: DEFAULT_VERSION,
        author: &context.options.author,
        tier,
        effort: effort.as_deref(),
        turns: None,
        tools: &granted.tools,
        inputs: vec![("task".to_owned(), "What the agent is to do".to_owned())],
        body: &instructions,
    };
    let text = render::directive(&page, &mut provenance);
    let planned = PlannedItem { item, extension: ".md", text, provenance, notes };
    Ok(UnitPlan { items: vec![planned], ..UnitPlan::default() })
}
