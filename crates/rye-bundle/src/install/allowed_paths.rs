//! What a bundle may bring into a space: items, and settings of its own. Never what decides about others: the user's
//! settings, keys, approvals, lockfiles, or the record of another bundle.

use rye_item::repository::is_repository_path;
use rye_item::{ItemId, ItemType};
use rye_space::scope;

use crate::object;
use crate::path::BundlePath;

/// Why a bundle with these categories may not bring the file `path`; `None` when it may. Making a bundle asks the same:
/// what could not be installed is not packed.
#[must_use]
pub fn refusal_reason(path: &BundlePath, categories: &[String]) -> Option<&'static str> {
    if is_repository_path(path.as_str()) {
        return Some(
            "it could make a repository there, and git and others run commands that a repository names",
        );
    }
    let folded = path.case_folded();
    let (folder, _) = folded.strip_prefix(".ai/")?.split_once('/').unwrap_or(("", ""));
    if ItemType::from_folder(folder).is_some() && !path.as_str().starts_with(&format!(".ai/{folder}/")) {
        return Some("its folder is an item folder in other case");
    }
    match ItemType::from_folder(folder) {
        Some(ItemType::Config) => match ItemId::new(object::object_name(path).1) {
            Ok(id) => scope::config_refusal(&id, categories, false),
            Err(_) => Some("its name is not a valid item id"),
        },
        Some(ItemType::Directive | ItemType::Tool | ItemType::Knowledge) => {
            (!is_in_categories(path, categories))
                .then_some("it is outside the categories the bundle declares")
        }
        None if folder == "lockfiles" => Some("a bundle does not pin what runs here"),
        None => Some("only directives, tools, knowledge and config are installed"),
    }
}

/// Whether a file lies within one of the categories, by whole segments: below the folder of that name, or an item that is
/// called like the category. A file that is not an item need not have a name that could be an id.
fn is_in_categories(path: &BundlePath, categories: &[String]) -> bool {
    let name = object::object_name(path).1;
    categories.is_empty()
        || categories.iter().filter(|category| ItemId::new(category.as_str()).is_ok()).any(|category| {
            name == category || name.strip_prefix(category.as_str()).is_some_and(|rest| rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_items_and_own_config_are_installable() {
        let categories = ["team".to_owned(), "web/team".to_owned()];
        let is_allowed =
            |path: &str| refusal_reason(&BundlePath::new(path).expect("a path"), &categories).is_none();
        for good in [
            ".ai/tools/team/a.py",
            ".ai/directives/team/x/y.md",
            ".ai/knowledge/web/team/a.md",
            ".ai/config/team/a.yaml",
            ".ai/tools/team.py",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            ".ai/tools/teamx/a.py",
            ".ai/tools/teamx.py",
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
            ".ai/config/agent/hooks.yaml",
            ".ai/lockfiles/team/a@1.0.0.lock.json",
            ".ai/bundles/other/manifest.yaml",
            ".ai/installs/x",
            ".ai/objects/x",
            ".ai/.gitattributes",
            ".ai/tools/team/data/.git/config",
            ".ai/tools/team/.git",
            ".ai/tools/team/.HG/hgrc",
            ".ai/tools/team/data/HEAD",
            ".ai/knowledge/web/team/commondir",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
        // Without categories a bundle brings items, but no settings: nothing says which are its own.
        let is_allowed_anywhere =
            |path: &str| refusal_reason(&BundlePath::new(path).expect("a path"), &[]).is_none();
        assert!(is_allowed_anywhere(".ai/tools/any/a.py") && !is_allowed_anywhere(".ai/config/any/a.yaml"));
    }
}
