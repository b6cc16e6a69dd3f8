//! What a bundle may bring into a space: items, and settings of its own. Never what decides about others: the user's
//! settings, keys, approvals, lockfiles, or the record of another bundle.

use rye_item::ItemId;

use crate::path::FilePath;

/// Folders of config that rye itself reads.
const OWN_CONFIG: [&str; 12] = [
    "agent",
    "cas",
    "config",
    "execution",
    "keys",
    "lockfiles",
    "mcp",
    "providers",
    "registry",
    "rye",
    "trust",
    "web",
];

/// Why a bundle with these categories may not bring the file `path`; `None` when it may.
#[must_use]
pub fn refusal(path: &FilePath, categories: &[String]) -> Option<&'static str> {
    let folded = path.folded();
    let (folder, rest) = folded.strip_prefix(".ai/")?.split_once('/').unwrap_or(("", ""));
    match folder {
        "tools" | "directives" | "knowledge" | "config"
            if !path.as_str().starts_with(&format!(".ai/{folder}/")) =>
        {
            Some("its folder is an item folder in other case")
        }
        "tools" | "directives" | "knowledge" => {
            let is_admitted = categories.is_empty() || is_within(path, categories);
            (!is_admitted).then_some("it lies outside the categories the bundle says it has")
        }
        "config" => {
            let first = rest.split('/').next().unwrap_or_default();
            if !rest.contains('/') || OWN_CONFIG.contains(&first) {
                Some("a bundle does not change your settings, keys or approvals")
            } else if is_within(path, categories) {
                None
            } else {
                Some("a bundle brings settings of its own categories only")
            }
        }
        "lockfiles" => Some("a bundle does not pin what runs here"),
        _ => Some("only directives, tools, knowledge and config are installed"),
    }
}

/// Whether the path below its type's folder lies within one of the categories, by whole segments.
fn is_within(path: &FilePath, categories: &[String]) -> bool {
    let Some((_, rest)) = path.as_str().strip_prefix(".ai/").and_then(|path| path.split_once('/')) else {
        return false;
    };
    categories.iter().any(|category| {
        let is_category = ItemId::new(category.as_str()).is_ok();
        is_category && rest.strip_prefix(category.as_str()).is_some_and(|rest| rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_brings_items_and_its_own_settings_only() {
        let categories = ["team".to_owned(), "web/team".to_owned()];
        let is_taken = |path: &str| refusal(&FilePath::new(path).expect("a path"), &categories).is_none();
        for good in [
            ".ai/tools/team/a.py",
            ".ai/directives/team/x/y.md",
            ".ai/knowledge/web/team/a.md",
            ".ai/config/team/a.yaml",
        ] {
            assert!(is_taken(good), "{good}");
        }
        for bad in [
            ".ai/tools/teamx/a.py",
            ".ai/tools/team.py",
            ".ai/tools/other/a.py",
            ".ai/Tools/team/a.py",
            ".ai/config/config.yaml",
            ".ai/config/team.yaml",
            ".ai/config/other/a.yaml",
            ".ai/config/web/team/a.yaml",
            ".ai/config/keys/trusted/0123456789abcdef.toml",
            ".ai/Config/Keys/trusted/0123456789abcdef.toml",
            ".ai/config/trust/projects.yaml",
            ".ai/config/execution/sandbox.yaml",
            ".ai/lockfiles/team/a@1.0.0.lock.json",
            ".ai/bundles/other/manifest.yaml",
            ".ai/installs/x",
            ".ai/objects/x",
            ".ai/.gitattributes",
        ] {
            assert!(!is_taken(bad), "{bad}");
        }
        // Without categories a bundle brings items, but no settings: nothing says which are its own.
        let free = |path: &str| refusal(&FilePath::new(path).expect("a path"), &[]).is_none();
        assert!(free(".ai/tools/any/a.py") && !free(".ai/config/any/a.yaml"));
    }
}
