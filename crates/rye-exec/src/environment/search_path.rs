//! Search paths: finding a program on one, and putting an anchor's folders on one.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rye_item::text::one_line;

use super::{EnvironmentError, EnvironmentPolicy, TemplateContext, fill};
use crate::anchor::SearchPath;

/// The one variable of RYE's own that an anchor fills: runtimes hand it to their loaders, and take it away from tools.
const IMPORT_PATH: &str = "RYE_IMPORT_PATH";

/// The first program `name` in the folders of `path`; entries that are not absolute are passed over.
#[must_use]
pub fn find_on_path(name: &str, path: &str) -> Option<PathBuf> {
    let folders = path.split(':').map(Path::new).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).find(|candidate| is_executable(candidate))
}

/// Whether it is a regular file, or a link to one, with an execute bit.
pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Puts an anchor's folders on the search paths among `variables`; answers which variables changed.
///
/// Folders before and after keep their order, and one that is there already is neither moved nor repeated.
///
/// # Errors
/// When a variable is reserved, or a folder could be read as two or depends on the working folder.
pub fn apply_search_paths(
    item: &str,
    paths: &[SearchPath],
    context: &TemplateContext,
    policy: &EnvironmentPolicy,
    variables: &mut BTreeMap<String, String>,
) -> Result<Vec<String>, EnvironmentError> {
    let mut changed = Vec::new();
    for SearchPath { variable, prepend, append } in paths {
        if policy.is_reserved(variable) && variable != IMPORT_PATH {
            return Err(EnvironmentError::Reserved { item: item.to_owned(), name: variable.clone() });
        }
        let filled = |entries: &[String]| {
            let folders = entries.iter().map(|entry| {
                fill(entry, &|name| variables.get(name).cloned(), &|name| {
                    context.get(name).map(str::to_owned)
                })
            });
            folders
                .filter(|folder| !folder.is_empty())
                .map(|folder| check_entry(variable, folder))
                .collect::<Result<Vec<_>, _>>()
        };
        let (before, after) = (filled(prepend)?, filled(append)?);
        let existing = variables.get(variable).map_or("", String::as_str);
        let existing: Vec<String> =
            existing.split(':').filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        let mut whole: Vec<String> = Vec::with_capacity(before.len() + existing.len() + after.len());
        for folder in before {
            if !existing.contains(&folder) && !whole.contains(&folder) {
                whole.push(folder);
            }
        }
        whole.extend(existing);
        for folder in after {
            if !whole.contains(&folder) {
                whole.push(folder);
            }
        }
        variables.insert(variable.clone(), whole.join(":"));
        changed.push(variable.clone());
    }
    Ok(changed)
}

fn check_entry(variable: &str, folder: String) -> Result<String, EnvironmentError> {
    let reason = if folder.contains(':') {
        "a `:` in a folder's name makes it two folders; rename it"
    } else if folder.contains('\0') {
        "it holds a zero byte"
    } else if !Path::new(&folder).is_absolute() {
        "it is relative, so it would depend on the working folder; start it with `{anchor_path}`"
    } else {
        return Ok(folder);
    };
    Err(EnvironmentError::InvalidSearchPath {
        variable: variable.to_owned(),
        entry: one_line(&folder),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply_paths(
        existing: Option<&str>,
        prepend: &[&str],
        append: &[&str],
    ) -> Result<String, EnvironmentError> {
        let policy = EnvironmentPolicy::from_settings(
            &json!({"inherit": [], "pass": [], "secrets": [], "withheld": [], "dotenv_allowed": [], "dotenv_denied": [], "reserved": []}),
        )?;
        let context = TemplateContext { anchor_path: "/anchor".to_owned(), ..TemplateContext::default() };
        let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        let paths = [SearchPath { variable: "P".to_owned(), prepend: owned(prepend), append: owned(append) }];
        let mut variables: BTreeMap<String, String> =
            existing.map(|value| ("P".to_owned(), value.to_owned())).into_iter().collect();
        apply_search_paths("item", &paths, &context, &policy, &mut variables)?;
        Ok(variables["P"].clone())
    }

    #[test]
    fn search_path_order_has_no_duplicates() {
        type Case<'a> = (Option<&'a str>, &'a [&'a str], &'a [&'a str], &'a str);
        let cases: [Case<'_>; 6] = [
            (None, &["{anchor_path}", "{runtime_lib}", "/b"], &["/c"], "/anchor:/b:/c"),
            (Some("/x:/y"), &["/a", "/b"], &["/c"], "/a:/b:/x:/y:/c"),
            (Some("/x:/y"), &["/y", "/a"], &["/x", "/a"], "/a:/x:/y"),
            (Some("::/x::"), &["/a", "/a"], &["/b", "/b"], "/a:/x:/b"),
            (Some("/x"), &["{anchor_path}/bin"], &[], "/anchor/bin:/x"),
            (Some("/x"), &["${P}/in"], &[], "/x/in:/x"),
        ];
        for (existing, prepend, append, expected) in cases {
            assert_eq!(apply_paths(existing, prepend, append), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn invalid_search_path_entry_is_refused() {
        for entry in ["/a:/b", "lib", "./x", "/a\0"] {
            let error = apply_paths(None, &[entry], &[]).expect_err("refused");
            assert!(matches!(error, EnvironmentError::InvalidSearchPath { .. }), "{entry}");
        }
    }

    #[test]
    fn loader_path_cannot_be_extended() {
        let policy = EnvironmentPolicy::from_settings(
            &json!({"inherit": [], "pass": [], "secrets": [], "withheld": [], "dotenv_allowed": [], "dotenv_denied": [], "reserved": []}),
        )
        .expect("a policy");
        let variable = "LD_LIBRARY_PATH".to_owned();
        let paths =
            [SearchPath { variable: variable.clone(), prepend: vec!["/a".to_owned()], append: Vec::new() }];
        let mut variables = BTreeMap::new();
        let outcome =
            apply_search_paths("item", &paths, &TemplateContext::default(), &policy, &mut variables);
        assert_eq!(outcome, Err(EnvironmentError::Reserved { item: "item".to_owned(), name: variable }));
        assert_eq!(variables, BTreeMap::new());
    }
}
