//! What a bundle may hold and set: the one place that decides which ids it may have and which of its settings are read.

use rye_item::{ItemId, ItemType};

/// Folders of config that rye itself reads: hooks, limits, risk, providers, sandbox, environment, web access.
const RYE_CONFIG: [&str; 10] =
    ["agent", "cas", "config", "execution", "lockfiles", "mcp", "providers", "registry", "rye", "web"];
/// Folders of config that are read from user space only, for any signer.
const USER_CONFIG: [&str; 2] = ["keys", "trust"];

/// Whether a bundle with these categories may hold the item `id`. Without categories it may hold items of any id, but no
/// config: nothing says which settings are its own.
#[must_use]
pub fn allows_item(item_type: ItemType, id: &ItemId, categories: &[String]) -> bool {
    let is_within = categories.iter().any(|category| !category.is_empty() && id.is_within(category));
    match item_type {
        ItemType::Config => is_within && id.as_str().contains('/'),
        ItemType::Directive | ItemType::Tool | ItemType::Knowledge => categories.is_empty() || is_within,
    }
}

/// Whether the config `id` is one that rye itself reads, and not one of a user's own tools.
#[must_use]
pub fn is_rye_config(id: &ItemId) -> bool {
    let first = id.as_str().split('/').next().unwrap_or_default().to_ascii_lowercase();
    !id.as_str().contains('/')
        || RYE_CONFIG.contains(&first.as_str())
        || USER_CONFIG.contains(&first.as_str())
}

/// Why the config `id` of a bundle with these categories is not read; `None` when it is. Settings of rye itself need a
/// signer that the user trusts everywhere (`is_signer_general`), not only for the bundle.
#[must_use]
pub fn config_refusal(id: &ItemId, categories: &[String], is_signer_general: bool) -> Option<&'static str> {
    let first = id.as_str().split('/').next().unwrap_or_default().to_ascii_lowercase();
    if !id.as_str().contains('/') || USER_CONFIG.contains(&first.as_str()) {
        return Some("a bundle does not change your settings, keys or approvals");
    }
    if !allows_item(ItemType::Config, id, categories) {
        return Some("a bundle's config is read within its own categories only");
    }
    if RYE_CONFIG.contains(&first.as_str()) && !is_signer_general {
        return Some(
            "hooks, permissions, risk, limits, providers and sandbox are read from a bundle only if you trust its signer everywhere",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ItemId {
        ItemId::new(text).expect("an id")
    }

    fn categories(list: &[&str]) -> Vec<String> {
        list.iter().map(|category| (*category).to_owned()).collect()
    }

    #[test]
    fn bundle_config_stays_within_its_categories() {
        let team = categories(&["team"]);
        for good in ["team/a", "team/b/c"] {
            assert_eq!(config_refusal(&id(good), &team, false), None, "{good}");
        }
        for bad in ["teamx/a", "team", "other/a", "config", "agent/hooks", "execution/sandbox"] {
            assert!(config_refusal(&id(bad), &team, false).is_some(), "{bad}");
            assert!(config_refusal(&id(bad), &team, true).is_some(), "{bad}");
        }
        for none in [categories(&[]), categories(&[""])] {
            assert!(config_refusal(&id("team/a"), &none, true).is_some(), "{none:?}");
        }
    }

    #[test]
    fn rye_config_needs_a_fully_trusted_signer() {
        for (category, config) in
            [("agent", "agent/hook_conditions"), ("execution", "execution/sandbox"), ("Agent", "Agent/hooks")]
        {
            let categories = categories(&[category]);
            assert!(config_refusal(&id(config), &categories, false).is_some(), "{config}");
            assert_eq!(config_refusal(&id(config), &categories, true), None, "{config}");
        }
        for category in USER_CONFIG {
            let own = categories(&[category]);
            assert!(config_refusal(&id(&format!("{category}/x")), &own, true).is_some(), "{category}");
        }
    }

    #[test]
    fn only_config_of_rye_is_rye_config() {
        for own in ["config", "agent/hooks", "Agent/hooks", "execution/sandbox", "keys/trusted/a", "trust/x"]
        {
            assert!(is_rye_config(&id(own)), "{own}");
        }
        assert!(!is_rye_config(&id("team/deploy")));
    }

    #[test]
    fn every_embedded_config_is_rye_config() {
        for bundle in crate::embedded::BUNDLES {
            for (path, _) in bundle.files {
                let Some((folder, _)) =
                    path.strip_prefix(".ai/config/").and_then(|path| path.split_once('/'))
                else {
                    continue;
                };
                assert!(RYE_CONFIG.contains(&folder) || USER_CONFIG.contains(&folder), "{path}");
            }
        }
    }

    #[test]
    fn items_need_a_category_by_whole_segments() {
        let team = categories(&["team"]);
        for (name, is_admitted) in [("team/x", true), ("team", true), ("teamx/y", false), ("x", false)] {
            assert_eq!(allows_item(ItemType::Tool, &id(name), &team), is_admitted, "{name}");
        }
        assert!(allows_item(ItemType::Tool, &id("any/thing"), &[]));
    }
}
