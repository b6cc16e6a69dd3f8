//! Where an imported item came from, kept in the item itself, so that its signature covers it: a second import finds what
//! the first one made, and an export gives back the bytes that came in.

use std::collections::BTreeMap;

use lillux_hash::Digest;
use rye_item::parse::{directive, fence, knowledge};
use rye_item::{ItemType, yaml};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::detect::SourceFormat;

/// The key of an item's metadata that holds its provenance.
pub(crate) const PROVENANCE_KEY: &str = "imported";

/// What a skill's file became.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportedFile {
    /// The digest of its bytes in the source.
    pub sha256: String,
    /// The id of the knowledge it became; else it is kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Its path below `.ai/` if it is kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether its owner may run it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// Where an item came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// What it was.
    pub format: SourceFormat,
    /// What it was called.
    pub name: String,
    /// Where it lay, relative to what was imported.
    pub source: String,
    /// The address it was fetched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The commit or the digest it was fetched at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The plugin it was a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// The digest of its bytes.
    pub sha256: String,
    /// The digest of the item as it was made, with this field empty and without the signature line.
    pub rendered: String,
    /// What stood before the body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub head: String,
    /// What was put before the body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub intro: String,
    /// What was put after the body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub outro: String,
    /// The source as a whole, where it is not a head and a body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub original: String,
    /// Words of the source that stand for inputs, and the inputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// The other files of its folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, ImportedFile>,
}

/// An item that was imported, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedItem {
    /// Where it came from.
    pub provenance: Provenance,
    /// The body as the source would have it: without what was added, inputs as they were written there.
    pub body: String,
    /// Whether it is as the import made it.
    pub is_untouched: bool,
}

impl ImportedItem {
    /// Reads an item's text, with or without its signature line; `None` if it was not imported.
    #[must_use]
    pub fn read(item_type: ItemType, text: &str) -> Option<Self> {
        let value = match item_type {
            ItemType::Knowledge => knowledge::parse(text).fields.get(PROVENANCE_KEY)?.clone(),
            ItemType::Directive => {
                let parsed = directive::parse(text);
                serde_json::from_str(parsed.text(PROVENANCE_KEY)?).ok()?
            }
            ItemType::Tool => tool_provenance(text)?,
            ItemType::Config => return None,
        };
        let provenance: Provenance = serde_json::from_value(value).ok()?;
        let body = body_of(item_type, text).unwrap_or_default();
        let body = body.strip_prefix(provenance.intro.as_str()).unwrap_or(body);
        let body = body.strip_suffix(provenance.outro.as_str()).unwrap_or(body);
        let body = restore_inputs(body, &provenance.inputs);
        let is_untouched = rendered_digest(text, &provenance.rendered) == provenance.rendered;
        Some(Self { provenance, body, is_untouched })
    }

    /// The file as it was imported, with changes of the body since then.
    #[must_use]
    pub fn source_text(&self) -> String {
        match self.provenance.original.as_str() {
            "" => format!("{}{}", self.provenance.head, self.body),
            original => original.to_owned(),
        }
    }

    /// Whether the file that comes out is the one that came in.
    #[must_use]
    pub fn is_original(&self) -> bool {
        Digest::of(self.source_text().as_bytes()).to_hex() == self.provenance.sha256
    }
}

/// The digest of an item's text with the given digest taken out of it, and without its signature line.
pub(crate) fn rendered_digest(text: &str, recorded: &str) -> String {
    let text = without_signature(text);
    // In XML the quotes are escaped.
    let text = match recorded {
        "" => text,
        recorded => text.replacen(recorded, "", 1),
    };
    Digest::of(text.as_bytes()).to_hex()
}

/// The text without its signature line.
fn without_signature(text: &str) -> String {
    let is_signature = |line: &str| {
        ["<!-- rye:signed:", "# rye:signed:", "// rye:signed:"].iter().any(|mark| line.starts_with(mark))
    };
    let mut lines = text.split_inclusive('\n').enumerate();
    // A shebang may stand before it.
    match lines.find(|(_, line)| is_signature(line)).filter(|(index, _)| *index < 2) {
        Some((skipped, _)) => {
            let kept = text.split_inclusive('\n').enumerate().filter(|(index, _)| *index != skipped);
            kept.map(|(_, line)| line).collect()
        }
        None => text.to_owned(),
    }
}

/// The body of an item, to the byte.
fn body_of(item_type: ItemType, text: &str) -> Option<&str> {
    match item_type {
        ItemType::Directive => fence::find_block(text, "xml").ok().map(|fence| &text[fence.body]),
        ItemType::Knowledge => {
            let mut offset = 0;
            let mut rules = 0;
            for line in text.split_inclusive('\n') {
                offset += line.len();
                rules += usize::from(line.trim_end() == "---");
                if rules == 2 {
                    return Some(&text[offset..]);
                }
            }
            None
        }
        ItemType::Tool | ItemType::Config => None,
    }
}

/// The provenance of a tool: a key of a YAML file, or a comment line of a script.
fn tool_provenance(text: &str) -> Option<Value> {
    let mark = format!("{PROVENANCE_KEY}: ");
    for line in text.lines() {
        let line = line.trim_start_matches(['#', '/', ' ']);
        if let Some(json) = line.strip_prefix(&mark) {
            return serde_json::from_str(json).ok();
        }
    }
    yaml::parse(text).ok()?.value.get(PROVENANCE_KEY).cloned()
}

/// Writes the source's words for inputs as inputs, if that can be undone.
pub(crate) fn replace_inputs(
    body: &str,
    words: &[(&str, &str)],
) -> Option<(String, BTreeMap<String, String>)> {
    let mut used = BTreeMap::new();
    let mut text = body.to_owned();
    for (word, input) in words {
        if text.contains(word) {
            let reference = format!("{{input:{input}?}}");
            if body.contains(&reference) {
                return None;
            }
            text = text.replace(word, &reference);
            used.insert((*word).to_owned(), (*input).to_owned());
        }
    }
    (restore_inputs(&text, &used) == body).then_some((text, used))
}

fn restore_inputs(body: &str, inputs: &BTreeMap<String, String>) -> String {
    inputs
        .iter()
        .fold(body.to_owned(), |text, (word, input)| text.replace(&format!("{{input:{input}?}}"), word))
}
