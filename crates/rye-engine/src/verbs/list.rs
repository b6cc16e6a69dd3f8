//! `list`: the items of the spaces, each with how far it is trusted and what it hides.

use globset::GlobBuilder;
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType, Space};
use rye_space::CandidatePath;
use rye_trust::verify::evaluate;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Only this type.
    pub item_type: Option<ItemType>,
    /// Only ids that match: a glob, or a part of the id.
    pub pattern: Option<String>,
    /// Only these spaces; project and user if empty.
    pub tiers: Vec<SpaceTier>,
}

/// One item of a list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedItem {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// Its space.
    pub space: Space,
    /// Its version.
    pub version: String,
    /// Its description.
    pub description: String,
    /// The verdict in a word.
    pub verdict: &'static str,
    /// Who signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// The spaces whose file of this id it hides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadows: Vec<Space>,
    /// The space that hides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadowed_by: Option<Space>,
}

/// The answer of a list.
#[derive(Clone, Debug, Serialize)]
pub struct ListResponse {
    /// The items, by type and id.
    pub items: Vec<ListedItem>,
    /// How many items of the built-in and configured bundles match, if they were not asked for.
    pub in_bundles: usize,
}

/// Lists items.
///
/// # Errors
/// When the pattern is wrong or a folder cannot be read.
pub fn list(engine: &Engine, options: &ListOptions) -> Result<ListResponse> {
    let matches = matcher(options.pattern.as_deref())?;
    let types = options.item_type.map_or_else(|| ItemType::SEARCHABLE.to_vec(), |item_type| vec![item_type]);
    let spaces = &engine.workspace.spaces;
    let mut items = Vec::new();
    let mut in_bundles = 0;
    for space in spaces.order() {
        let is_wanted = match options.tiers.as_slice() {
            [] => space.tier() != SpaceTier::System,
            tiers => tiers.contains(&space.tier()),
        };
        let scan = spaces.scan_strict(&space, &types);
        let entries = scan.map_err(|folder| Error::unreadable_folder(&folder))?.entries;
        let entries = entries
            .into_iter()
            .filter(|entry| !entry.item.is_key_document() && matches(entry.item.id.as_str()));
        if !is_wanted {
            in_bundles += entries.count();
            continue;
        }
        let folder = spaces.folder(&space).unwrap_or_default();
        for entry in entries {
            let path = folder.join(&entry.relative);
            let candidate =
                CandidatePath { space: space.clone(), path, extension: entry.extension, is_found: true };
            items.push(describe(engine, &entry.item, &candidate));
        }
    }
    items.sort_by(|left: &ListedItem, right| {
        (left.item_type, &left.item_id, left.shadowed_by.is_some()).cmp(&(
            right.item_type,
            &right.item_id,
            right.shadowed_by.is_some(),
        ))
    });
    Ok(ListResponse { items, in_bundles })
}

/// Whether an id is listed.
type IdFilter = Box<dyn Fn(&str) -> bool>;

/// Whether an id matches a pattern: a glob, or a part of the id.
fn matcher(pattern: Option<&str>) -> Result<IdFilter> {
    let Some(pattern) = pattern else { return Ok(Box::new(|_| true)) };
    if !rye_item::id::is_glob(pattern) {
        let part = pattern.to_lowercase();
        return Ok(Box::new(move |id| id.to_lowercase().contains(&part)));
    }
    let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = GlobBuilder::new(&pattern).literal_separator(true).build().map_err(|error| {
        Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string()))
            .hint("quote the pattern, such as 'team/*'")
    })?;
    let glob = glob.compile_matcher();
    Ok(Box::new(move |id| glob.is_match(id)))
}

fn describe(engine: &Engine, item: &ItemRef, candidate: &CandidatePath) -> ListedItem {
    let spaces = &engine.workspace.spaces;
    let holders: Vec<Space> = spaces
        .candidate_paths(item)
        .into_iter()
        .filter(|candidate| candidate.is_found)
        .map(|candidate| candidate.space)
        .collect();
    let own = holders.iter().position(|space| *space == candidate.space);
    let (shadows, shadowed_by) = match own {
        Some(0) => (holders[1..].to_vec(), None),
        Some(_) => (Vec::new(), holders.first().cloned()),
        None => (Vec::new(), None),
    };
    let mut listed = ListedItem {
        item_type: item.item_type,
        item_id: item.id.to_string(),
        space: candidate.space.clone(),
        version: String::new(),
        description: String::new(),
        verdict: "unreadable",
        signer: None,
        shadows,
        shadowed_by,
    };
    if let Ok(located) = spaces.read(item, candidate) {
        let report = evaluate(&located, &engine.workspace.keys);
        let text = |key: &str| located.fields().get(key).and_then(Value::as_str).unwrap_or_default();
        listed.version = rye_item::text::one_line(text("version"));
        listed.description = rye_item::text::one_line(text("description"));
        listed.verdict = report.verdict.as_str();
        listed.signer = report.owner.as_deref().map(rye_item::text::one_line);
    }
    listed
}
