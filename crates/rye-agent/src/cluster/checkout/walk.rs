//! Going through a project's folders: links are not followed, `.gitignore` and `.ignore` files count, and what may not travel is
//! named.

use std::path::{Path, PathBuf};

use lillux::dir::{Dir, DirEntry, DirEntryKind, IgnoreRules};
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;

use super::rules::{Exclusion, MAX_DEPTH, exclusion};

/// The most names that are looked at.
const MAX_ENTRIES: usize = 200_000;

/// What was found below a folder.
#[derive(Debug, Default)]
pub(super) struct FileListing {
    /// The paths of files, in the order of names.
    pub(super) files: Vec<String>,
    /// Excluded paths that no ignore file names, with the reason.
    pub(super) left_out: Vec<(String, &'static str)>,
}

/// Lists the files below `root` that are a project's own. `rules` is the folder whose `.gitignore` files count, if any do.
///
/// # Errors
/// When a folder cannot be read, or there is too much.
pub(super) fn list_files(root: &Path, rules: Option<&Path>) -> Result<FileListing> {
    let mut walker = Walker {
        rules_root: rules.map(Path::to_owned),
        rules: IgnoreRules::default(),
        entries: 0,
        listing: FileListing::default(),
    };
    let folder = Dir::open(root).map_err(|error| unreadable(root, &error))?;
    walker.visit(&folder, &mut PathBuf::new(), 0)?;
    Ok(walker.listing)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    let shown = one_line(&path.display().to_string());
    Error::new(Code::Io, format!("`{shown}` cannot be read: {}", one_line(&error.to_string())))
}

struct Walker {
    rules_root: Option<PathBuf>,
    rules: IgnoreRules,
    entries: usize,
    listing: FileListing,
}

impl Walker {
    fn visit(&mut self, folder: &Dir, path: &mut PathBuf, depth: usize) -> Result<()> {
        let left = MAX_ENTRIES.saturating_sub(self.entries);
        let listed = folder.entries(left).map_err(|error| unreadable(folder.path(), &error))?;
        let (entries, is_complete) = listed;
        if !is_complete || depth > MAX_DEPTH {
            let message = format!(
                "the project has more than {MAX_ENTRIES} entries, or folders nested more than {MAX_DEPTH} deep"
            );
            return Err(Error::new(Code::TooLarge, message).hint("add build output to .gitignore"));
        }
        self.entries += entries.len();
        let rules = self.rules.len();
        self.add_rules(path);
        for entry in entries {
            self.visit_entry(folder, &entry, path, depth)?;
        }
        self.rules.truncate(rules);
        Ok(())
    }

    fn visit_entry(
        &mut self,
        folder: &Dir,
        entry: &DirEntry,
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<()> {
        path.push(&entry.name);
        let is_folder = entry.kind == DirEntryKind::Dir;
        let text = path.to_str().map(str::to_owned);
        let excluded = text.as_deref().map_or(Some(Exclusion::Name), exclusion);
        if !self.rules.is_ignored(path, is_folder) {
            let shown = text.clone().unwrap_or_else(|| one_line(&path.display().to_string()));
            match (excluded, entry.kind, text) {
                (Some(Exclusion::Reserved), ..) => {}
                (Some(reason), ..) => self.listing.left_out.push((shown, reason.reason())),
                (None, DirEntryKind::File, Some(text)) => self.listing.files.push(text),
                (None, DirEntryKind::Dir, _) => {
                    let child = folder.open_child_dir(&entry.name);
                    let child = child.map_err(|error| unreadable(path, &error))?;
                    self.visit(&child, path, depth + 1)?;
                }
                (None, DirEntryKind::Symlink, _) => self.listing.left_out.push((shown, "is a link")),
                (None, DirEntryKind::File | DirEntryKind::Other, _) => {
                    self.listing.left_out.push((shown, "is not a plain file"));
                }
            }
        }
        path.pop();
        Ok(())
    }

    fn add_rules(&mut self, relative: &Path) {
        let Some(root) = &self.rules_root else { return };
        let Ok(folder) = Dir::open(root).and_then(|folder| folder.open_dir(relative)) else { return };
        self.rules.add(&folder, relative, |_| true);
    }
}
