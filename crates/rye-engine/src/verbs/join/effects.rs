//! What joining changes for the user's own items: which of them the project's hide, and which models its providers reach with
//! the user's keys.

use rye_item::text::one_line;
use rye_item::{ItemId, ItemType, Space};
use rye_space::CandidatePath;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;

/// The category of the tools that describe providers.
const PROVIDERS_CATEGORY: &str = "rye/agent/providers";

/// The types whose items hide those of the same name in spaces below.
const HIDING_TYPES: [ItemType; 3] = [ItemType::Directive, ItemType::Tool, ItemType::Knowledge];

/// An item that the project's item of the same name comes before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HiddenItem {
    /// The item.
    pub item: String,
    /// The space of the one that is hidden.
    pub space: String,
}

/// A provider that the project brings: threads here may ask it, with a key of the user's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProjectProvider {
    /// The provider's item.
    pub item_id: ItemId,
    /// The address it asks, as its item says.
    pub url: Option<String>,
    /// The variable that its key is read from.
    pub key_variable: Option<String>,
}

/// What joining changes for the user's own items.
#[derive(Debug, Default)]
pub(super) struct JoinEffects {
    pub(super) hidden: Vec<HiddenItem>,
    pub(super) providers: Vec<ProjectProvider>,
}

impl JoinEffects {
    pub(super) fn find(engine: &Engine) -> Self {
        let spaces = &engine.workspace.spaces;
        let mut effects = Self::default();
        for entry in spaces.scan(&Space::Project, &HIDING_TYPES).entries {
            let mut places = spaces.candidate_paths(&entry.item).into_iter().filter(|place| place.is_found);
            // Another file of the same name counts, or none does.
            let Some(own) = places.find(|place| place.space == Space::Project) else { continue };
            effects.hidden.extend(
                places
                    .next()
                    .map(|below| HiddenItem { item: entry.item.to_string(), space: below.space.to_string() }),
            );
            let is_provider =
                entry.item.item_type == ItemType::Tool && entry.item.id.is_within(PROVIDERS_CATEGORY);
            if is_provider && let Some(provider) = read_provider(engine, &entry.item, &own) {
                effects.providers.push(provider);
            }
        }
        effects.hidden.sort_by(|left, right| left.item.cmp(&right.item));
        effects.hidden.dedup();
        effects.providers.sort_by(|left, right| left.item_id.cmp(&right.item_id));
        effects.providers.dedup();
        effects
    }
}

fn read_provider(
    engine: &Engine,
    item: &rye_item::ItemRef,
    place: &CandidatePath,
) -> Option<ProjectProvider> {
    let file = engine.workspace.spaces.read(item, place).ok()?;
    let fields = &file.parsed().fields;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(one_line);
    Some(ProjectProvider {
        item_id: item.id.clone(),
        url: text(fields.get("url")),
        key_variable: text(fields.get("auth").and_then(|auth| auth.get("variable"))),
    })
}
