//! Items that are not there: what was likely meant, and the command for it.

use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::{AI_FOLDER, ItemFile, LocateError};
use serde_json::Value;

use crate::chain_cache;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::verbs::search::complete_ids;
use crate::verbs::sync;

/// How many ids are suggested.
const MAX_SUGGESTIONS: usize = 3;

/// Where tools lie that others run on.
const EXECUTOR_PREFIXES: [&str; 2] = ["rye/core/runtimes", "rye/core/primitives"];
/// Two short names with a letter of difference have nothing to do with each other.
const MIN_MISSPELT_NAME: usize = 4;

impl Engine {
    /// The winning file of an item; only in `from` if that is given. If there is none, the error says what was likely
    /// meant.
    ///
    /// # Errors
    /// When no space has it, or the winner cannot be read.
    pub fn locate(&self, item: &ItemRef, from: Option<SpaceTier>) -> Result<ItemFile> {
        self.workspace.spaces.locate(item, from).map_err(|error| match error {
            LocateError::NotFound(_) => self.missing_item(item),
            LocateError::Unreadable { .. } => error.into(),
        })
    }

    /// The failure to find an item, with what was likely meant.
    #[must_use]
    pub fn missing_item(&self, item: &ItemRef) -> Error {
        let error = Error::from(LocateError::NotFound(item.clone()));
        let hints = self.meant_instead(&item.id, Some(item.item_type));
        with_first_hints(error, hints)
    }

    /// Hints for an id that no item of this type has, or no item of any type.
    pub(crate) fn meant_instead(&self, id: &ItemId, item_type: Option<ItemType>) -> Vec<String> {
        let mut hints: Vec<String> = ItemType::SEARCHABLE
            .into_iter()
            .filter(|other| Some(*other) != item_type && item_type.is_some())
            .map(|other| ItemRef::new(other, id.clone()))
            .filter(|other| self.has_item(other))
            .map(|other| format!("`{id}` is a {}: {}", other.item_type, use_command(&other)))
            .collect();
        if hints.is_empty() {
            let mut known = complete_ids(self, item_type, "");
            // What tools run on is not run by people.
            known.retain(|item| !EXECUTOR_PREFIXES.iter().any(|prefix| item.id.is_within(prefix)));
            let near = nearest_ids(id, &known);
            if !near.is_empty() {
                hints.push(format!("did you mean {}?", near.join(" or ")));
            }
        }
        let project = self.workspace.roots.project.as_ref();
        if let Some(folder) = project.filter(|folder| !folder.join(AI_FOLDER).is_dir()) {
            hints.push(format!("`{}` is not a project; make it one: rye init", folder.display()));
        }
        let missing = sync::missing_bundles(self);
        if !missing.is_empty() {
            let names = missing.iter().take(MAX_SUGGESTIONS).map(|id| format!("`{id}`")).collect::<Vec<_>>();
            let command =
                if self.workspace.is_project_approved { "rye sync" } else { "rye join && rye sync" };
            hints.push(format!("bundles of the project are not installed ({}): {command}", names.join(", ")));
        }
        hints
    }

    /// What an executor that is nowhere was likely meant to be: a runtime, a primitive or another name of one.
    pub(crate) fn meant_executor(&self, executor: &str) -> Option<String> {
        let known = self.chain_cache.executors(|| self.find_executors());
        let aliases = chain_cache::executor_aliases(self);
        let ids = known.iter().map(|item| item.id.as_str());
        if let Some(near) = rye_item::text::nearest(executor, aliases.names().chain(ids)) {
            return Some(format!("did you mean `{near}`?"));
        }
        let near = nearest_ids(&ItemId::new(executor).ok()?, &known);
        (!near.is_empty()).then(|| format!("did you mean {}?", near.join(" or ")))
    }

    /// Every tool that says that it runs others.
    fn find_executors(&self) -> Vec<ItemRef> {
        let spaces = &self.workspace.spaces;
        let is_data = |extension: &str| [".yaml", ".yml", ".toml", ".json"].contains(&extension);
        let says_so = |item: &ItemRef| {
            spaces.locate(item, None).is_ok_and(|located| {
                let tool_type = located.fields().get("tool_type").and_then(Value::as_str);
                matches!(tool_type, Some("runtime" | "primitive"))
            })
        };
        let entries = spaces.order().flat_map(|space| spaces.scan(&space, &[ItemType::Tool]).entries);
        let mut items: Vec<ItemRef> =
            entries.filter(|entry| is_data(&entry.extension)).map(|entry| entry.item).collect();
        items.sort();
        items.dedup();
        items.retain(says_so);
        items
    }

    fn has_item(&self, item: &ItemRef) -> bool {
        self.workspace.spaces.candidate_paths(item).iter().any(|candidate| candidate.is_found)
    }
}

/// The command that uses an item.
fn use_command(item: &ItemRef) -> String {
    match item.item_type {
        ItemType::Tool => format!("rye execute {}", item.id),
        ItemType::Directive => format!("rye run {}", item.id),
        ItemType::Knowledge => format!("rye load knowledge {}", item.id),
        ItemType::Config => format!("rye config show {}", item.id),
    }
}

/// The failure, with hints before those it has.
pub(crate) fn with_first_hints(mut error: Error, mut hints: Vec<String>) -> Error {
    hints.append(&mut error.hints);
    error.hints = hints;
    error
}

/// The ids most like `id`: a misspelling of the whole, else the same name elsewhere, else a misspelling of the name.
fn nearest_ids(id: &ItemId, known: &[ItemRef]) -> Vec<String> {
    let ids = known.iter().map(|item| item.id.as_str());
    if let Some(near) = rye_item::text::nearest(id.as_str(), ids).filter(|near| *near != id.as_str()) {
        return vec![format!("`{near}`")];
    }
    let with_name = |name: &str| {
        let mut same: Vec<String> =
            known.iter().filter(|item| item.id.name() == name).map(|item| format!("`{}`", item.id)).collect();
        same.dedup();
        same.truncate(MAX_SUGGESTIONS);
        same
    };
    let same = with_name(id.name());
    if !same.is_empty() {
        return same;
    }
    let names = known.iter().map(|item| item.id.name()).filter(|name| name.len() >= MIN_MISSPELT_NAME);
    let near = rye_item::text::nearest(id.name(), names);
    near.map(with_name).unwrap_or_default()
}

/// The failure, with the parameter that each unknown name was likely meant to be.
pub(crate) fn hint_misspelled(error: Error, given: &[String], declared: &[&str]) -> Error {
    let unknown = given.iter().filter(|name| !declared.contains(&name.as_str()));
    unknown.fold(error, |error, name| match rye_item::text::nearest(name, declared.iter().copied()) {
        Some(near) => {
            error.hint(format!("did you mean `{near}` instead of `{}`?", rye_item::text::one_line(name)))
        }
        None => error,
    })
}
