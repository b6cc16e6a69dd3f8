//! Items that are there under two ids and do the same: hooks and rules of risk that name one mean both.
//!
//! Grants, and a person's yes, hold for the id they name: they allow, so the other id stays closed.

use rye_item::ItemType;
use serde_json::{Map, Value, json};

use crate::action::Action;
use crate::capability::required_capabilities;

/// Tools under two ids, the one that hooks see first. The state machine reads this: a new row needs a new revision of it.
pub const TOOL_NAMES: [(&str, &str); 1] = [("rye/bash", "rye/bash/bash")];

/// The action under the id that hooks see, and under the item's other id, if it has one.
fn named(action: &Action) -> Option<(Action, Action)> {
    let id = action.item_id.as_deref().filter(|_| action.item_type == Some(ItemType::Tool))?;
    let (first, second) = TOOL_NAMES.iter().find(|(first, second)| *first == id || *second == id)?;
    let under = |id: &str| Action { item_id: Some(id.to_owned()), ..action.clone() };
    Some((under(first), under(second)))
}

/// The grants that risk is judged by: those that the action needs, under every id of its item.
#[must_use]
pub fn judged_capabilities(action: &Action) -> Vec<String> {
    let mut judged = required_capabilities(action);
    if let Some((first, second)) = named(action) {
        for grant in [required_capabilities(&first), required_capabilities(&second)].concat() {
            if !judged.contains(&grant) {
                judged.push(grant);
            }
        }
    }
    judged
}

/// The action as hooks see it, with its item under the first of its ids; nothing if it is there already.
pub(crate) fn with_first_id(action: &Action) -> Option<Action> {
    named(action).map(|(first, _)| first).filter(|first| first.item_id != action.item_id)
}

/// What hooks see of a call, with its item under its other id; nothing if it has one only.
pub(crate) fn under_other_id(context: &Map<String, Value>) -> Option<Map<String, Value>> {
    let is_tool = context.get("item_type").is_none_or(|item_type| item_type == "tool");
    let grant = |id: &str| format!(".tool.{}", id.replace('/', "."));
    let rename = |value: &Value| {
        let text = value.as_str()?;
        TOOL_NAMES.iter().find_map(|(first, second)| match text == *first {
            true => Some(json!(second)),
            false => text.strip_suffix(&grant(first)).map(|verb| json!(format!("{verb}{}", grant(second)))),
        })
    };
    // Few calls are of such an item: nothing is copied for the others.
    let renamed = ["item", "capability", "capabilities"].into_iter().filter_map(|key| {
        let value = match context.get(key)? {
            Value::Array(list) if list.iter().any(|entry| rename(entry).is_some()) => {
                list.iter().map(|entry| rename(entry).unwrap_or_else(|| entry.clone())).collect()
            }
            value => rename(value)?,
        };
        Some((key.to_owned(), value))
    });
    let renamed: Map<String, Value> = renamed.filter(|_| is_tool).collect();
    (!renamed.is_empty())
        .then(|| context.iter().map(|(key, value)| (key.clone(), value.clone())).chain(renamed).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use super::*;

    fn descriptors(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            match entry.is_dir() {
                true => descriptors(&entry, found),
                false if entry.extension().is_some_and(|extension| extension == "yaml") => found.push(entry),
                false => {}
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of the test itself")]
    fn every_tool_with_two_ids_is_listed() {
        let bundles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bundles");
        let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for bundle in std::fs::read_dir(bundles).expect("bundles") {
            let tools = bundle.expect("a bundle").path().join(".ai/tools");
            let mut found = Vec::new();
            if tools.is_dir() {
                descriptors(&tools, &mut found);
            }
            for path in found {
                let text = std::fs::read_to_string(&path).expect("a descriptor");
                let says_who = |line: &&str| {
                    !["#", "category:", "version:", "description:"].iter().any(|key| line.starts_with(key))
                };
                let rest: Vec<&str> = text.lines().filter(says_who).collect();
                let id = path.strip_prefix(&tools).expect("below").with_extension("").display().to_string();
                by_text.entry(rest.join("\n")).or_default().push(id);
            }
        }
        let mut twins: Vec<Vec<String>> = by_text.into_values().filter(|ids| ids.len() > 1).collect();
        twins.iter_mut().for_each(|ids| ids.sort_by_key(String::len));
        let listed: Vec<Vec<String>> = TOOL_NAMES
            .iter()
            .map(|(first, second)| vec![(*first).to_owned(), (*second).to_owned()])
            .collect();
        assert_eq!(twins, listed);
    }
}
