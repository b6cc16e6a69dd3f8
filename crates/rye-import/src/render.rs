//! Items as text: knowledge, directives, servers. Everything that came from outside is escaped.

use std::collections::BTreeSet;

use rye_item::text::{one_line, quote};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::Value;

use crate::provenance::{PROVENANCE_KEY, Provenance, rendered_digest};

/// The longest description an item gets; the source keeps its own.
const MAX_DESCRIPTION_CHARACTERS: usize = 1_024;
/// The version of an item whose source has none.
pub(crate) const DEFAULT_VERSION: &str = "1.0.0";

/// A page of knowledge.
pub(crate) struct KnowledgePage<'a> {
    pub id: &'a ItemId,
    pub title: &'a str,
    pub description: &'a str,
    pub entry_type: &'a str,
    pub version: &'a str,
    /// Further keys with their values.
    pub extra: Vec<(&'static str, Value)>,
    pub body: &'a str,
}

/// A directive.
pub(crate) struct DirectivePage<'a> {
    pub id: &'a ItemId,
    pub description: &'a str,
    pub version: &'a str,
    pub author: &'a str,
    pub tier: Option<&'a str>,
    pub effort: Option<&'a str>,
    pub turns: Option<u64>,
    pub tools: &'a BTreeSet<String>,
    /// Names of its inputs with what they are for.
    pub inputs: Vec<(String, String)>,
    pub body: &'a str,
}

/// The text of a page of knowledge.
pub(crate) fn knowledge(page: &KnowledgePage<'_>, provenance: &mut Provenance) -> String {
    let mut head = format!(
        "---\nname: {}\ntitle: {}\n",
        quote(page.id.name()),
        quote(&clip(if page.title.is_empty() { page.id.name() } else { page.title }))
    );
    if !page.description.is_empty() {
        head.push_str(&format!("description: {}\n", quote(&clip(page.description))));
    }
    head.push_str(&format!(
        "entry_type: {}\ncategory: {}\nversion: {}\n",
        page.entry_type,
        quote(page.id.category()),
        quote(page.version)
    ));
    for (key, value) in &page.extra {
        head.push_str(&format!("{key}: {}\n", flow_json(value)));
    }
    with_provenance(provenance, |provenance| {
        let body = format!("{}{}{}", provenance.intro, page.body, provenance.outro);
        format!("{head}{PROVENANCE_KEY}: {}\n---\n{body}", flow_json(&to_value(provenance)))
    })
}

/// The text of a directive.
pub(crate) fn directive(page: &DirectivePage<'_>, provenance: &mut Provenance) -> String {
    let mut xml = format!(
        "```xml\n<directive name=\"{}\" version=\"{}\">\n  <metadata>\n    <description>{}</description>\n    <category>{}</category>\n    <author>{}</author>\n",
        page.id.name(),
        escape(page.version),
        escape(&clip(page.description)),
        page.id.category(),
        escape(&one_line(page.author)),
    );
    let attributes: Vec<String> = [("tier", page.tier), ("reasoning_effort", page.effort)]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!(" {name}=\"{}\"", escape(value))))
        .collect();
    if !attributes.is_empty() {
        xml.push_str(&format!("    <model{} />\n", attributes.concat()));
    }
    if let Some(turns) = page.turns {
        xml.push_str(&format!("    <limits turns=\"{turns}\" />\n"));
    }
    if page.tools.is_empty() {
        // Without the tag a child would have all that its parent has.
        xml.push_str("    <permissions></permissions>\n");
    } else {
        xml.push_str("    <permissions>\n      <execute>\n");
        for tool in page.tools {
            xml.push_str(&format!("        <tool>{}</tool>\n", escape(tool)));
        }
        xml.push_str("      </execute>\n    </permissions>\n");
    }
    let mut tail = "  </metadata>\n".to_owned();
    if !page.inputs.is_empty() {
        tail.push_str("  <inputs>\n");
        for (name, purpose) in &page.inputs {
            tail.push_str(&format!(
                "    <input name=\"{}\" type=\"string\">{}</input>\n",
                escape(name),
                escape(&one_line(purpose))
            ));
        }
        tail.push_str("  </inputs>\n");
    }
    tail.push_str("</directive>\n```\n");
    with_provenance(provenance, |provenance| {
        let json = serde_json::to_string(provenance).unwrap_or_default();
        let body = format!("{}{}{}", provenance.intro, page.body, provenance.outro);
        format!("{xml}    <{PROVENANCE_KEY}>{}</{PROVENANCE_KEY}>\n{tail}{body}", escape(&json))
    })
}

/// The text of an item of a foreign MCP server.
pub(crate) fn server(id: &ItemId, description: &str, config: &Value, provenance: &mut Provenance) -> String {
    with_provenance(provenance, |provenance| {
        format!(
            "version: \"{DEFAULT_VERSION}\"\ntool_type: mcp-server\nexecutor_id: null\ncategory: {}\nname: {}\ndescription: {}\nconfig: {}\n{PROVENANCE_KEY}: {}\n",
            quote(id.category()),
            quote(id.name()),
            quote(&clip(description)),
            flow_json(config),
            flow_json(&to_value(provenance))
        )
    })
}

/// Fills in the digest of the text that `render` makes.
pub(crate) fn with_provenance(provenance: &mut Provenance, render: impl Fn(&Provenance) -> String) -> String {
    provenance.rendered.clear();
    let digest = rendered_digest(&render(provenance), "");
    provenance.rendered = digest;
    render(provenance)
}

/// JSON on one line, which is YAML too.
fn flow_json(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Array(list) => format!("[{}]", list.iter().map(flow_json).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{}: {}", quote(key), flow_json(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn to_value(provenance: &Provenance) -> Value {
    serde_json::to_value(provenance).unwrap_or_default()
}

/// Text for XML. Characters that XML cannot hold do not come here: they are hidden, or control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

fn clip(text: &str) -> String {
    let text = one_line(text);
    match text.char_indices().nth(MAX_DESCRIPTION_CHARACTERS - 1) {
        Some((cut, _)) if text.len() > cut + 4 => format!("{}…", &text[..cut]),
        _ => text,
    }
}

/// An item by type and id.
pub(crate) fn item_ref(item_type: ItemType, id: &str) -> Result<ItemRef, String> {
    ItemId::new(id).map(|id| ItemRef::new(item_type, id)).map_err(|error| error.to_string())
}
