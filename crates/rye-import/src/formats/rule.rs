//! Rules and instructions: knowledge, with the paths they are for kept as metadata.

use rye_item::ItemType;
use serde_json::{Map, Value, json};

use super::{first_words, heading};
use crate::detect::SourceFormat;
use crate::findings::findings;
use crate::front_matter::{self, split_words};
use crate::names::segments;
use crate::plan::{ImportNote, NoteKind, PlannedItem, UnitContext, UnitPlan};
use crate::render::{self, KnowledgePage, item_ref};

/// The longest description of a rule.
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;

/// Reads a rule or instructions.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let unit = context.unit;
    let text = context.text()?;
    let mut notes: Vec<ImportNote> =
        findings(text).into_iter().map(|(kind, text)| ImportNote::new(kind, text)).collect();
    let whole = front_matter::SplitText { head: "", keys: "", body: text };
    let (parts, fields) = match unit.format {
        SourceFormat::Instructions => (whole, Map::new()),
        _ => match front_matter::split(text) {
            Ok(parts) => {
                let known = ["description", "globs", "alwaysApply", "applyTo", "paths", "name"];
                (parts, front_matter::read_lines(parts.keys, &known))
            }
            Err(error) => {
                notes.push(ImportNote::new(
                    NoteKind::Warning,
                    format!("{error}: read as a text without keys"),
                ));
                (whole, Map::new())
            }
        },
    };
    let description = fields.get("description").and_then(Value::as_str).map(str::to_owned);
    if description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
        return Err(format!("its description has more than {MAX_DESCRIPTION_BYTES} bytes"));
    }
    let (kind, name) = place(context);
    let item = item_ref(ItemType::Knowledge, &format!("{}/{}", context.category(kind), segments(&name)))?;
    let globs: Vec<String> =
        ["globs", "applyTo", "paths"].iter().flat_map(|key| words(fields.get(*key))).collect();
    let is_always = unit.format == SourceFormat::Instructions
        || matches!(fields.get("alwaysApply"), Some(Value::Bool(true)));
    let mut provenance = context.provenance(unit.format, &name, &unit.path, text.as_bytes());
    provenance.head = parts.head.to_owned();
    let description =
        description.filter(|text| !text.trim().is_empty()).unwrap_or_else(|| first_words(parts.body));
    let page = KnowledgePage {
        id: &item.id,
        title: heading(parts.body).unwrap_or(&name),
        description: &description,
        entry_type: if unit.format == SourceFormat::Instructions { "instructions" } else { "rule" },
        version: render::DEFAULT_VERSION,
        extra: vec![("triggers", json!({ "globs": globs, "always": is_always }))],
        body: parts.body,
    };
    let text = render::knowledge(&page, &mut provenance);
    let planned = PlannedItem { item, extension: ".md", text, provenance, notes };
    Ok(UnitPlan { items: vec![planned], ..UnitPlan::default() })
}

fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => split_words(text),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The category's word and the name below it.
fn place(context: &UnitContext<'_>) -> (&'static str, String) {
    let path = &context.unit.path;
    if context.unit.format == SourceFormat::Instructions {
        let name = path.name().trim_end_matches(".md").trim_start_matches('.').to_ascii_lowercase();
        let folder = path.below(context.unit.plugin_root.as_deref().unwrap_or("")).unwrap_or(path.as_str());
        let folder = folder.rsplit_once('/').map_or("", |(folder, _)| folder);
        return ("instructions", crate::tree::join(folder, &name));
    }
    let full = context.listing.full_path(path.as_str());
    let below = ["/rules/", "/instructions/"].iter().find_map(|mark| {
        let full = format!("/{full}");
        full.rfind(mark).map(|at| full[at + mark.len()..].to_owned())
    });
    // Outside of such a folder its own folder tells it from others of its name.
    let name = below.unwrap_or_else(|| path.as_str().to_owned());
    let endings = [".instructions.md", ".mdc", ".md"];
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    ("rules", stem.to_owned())
}
