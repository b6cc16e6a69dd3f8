//! Going through a project's folders: links are not followed, `.gitignore`, `.ignore` and `.git/info/exclude` count, and what may not
//! travel is named.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use lillux::dir::{Dir, DirEntry, DirEntryKind, IgnoreRules};
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;

use super::rules::{CheckoutRules, Exclusion, MAX_DEPTH};

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

/// Lists the files below `root` that are a project's own. `ignore` is the folder whose ignore files count, if any do.
///
/// # Errors
/// When a folder or an ignore file cannot be read, or there is too much.
pub(super) fn list_files(root: &Path, rules: &CheckoutRules, ignore: Option<&Path>) -> Result<FileListing> {
    let mut walker = Walker {
        checkout_rules: rules,
        rules_root: ignore.map(Path::to_owned),
        rules: IgnoreRules::default(),
        entries: 0,
        listing: FileListing::default(),
    };
    // Weaker than what the folders' own files say.
    if let Some(git_dir) = ignore.and_then(rye_space::checkouts::common_git_dir) {
        let info = git_dir.join("info");
        if info.is_dir() {
            let info = Dir::open(&info).map_err(|error| unreadable(&info, &error))?;
            let added = walker.rules.add_file(&info, OsStr::new("exclude"));
            added.map_err(|error| unreadable(&info.path().join("exclude"), &error))?;
        }
    }
    let folder = Dir::open(root).map_err(|error| unreadable(root, &error))?;
    walker.visit(&folder, &mut PathBuf::new(), 0)?;
    Ok(walker.listing)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    let shown = one_line(&path.display().to_string());
    Error::new(Code::Io, format!("`{shown}` cannot be read: {}", one_line(&error.to_string())))
}

struct Walker<'a> {
    checkout_rules: &'a CheckoutRules,
    rules_root: Option<PathBuf>,
    rules: IgnoreRules,
    entries: usize,
    listing: FileListing,
}

impl Walker<'_> {
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
        self.add_rules(path)?;
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
        let excluded = text.as_deref();
        let excluded = excluded.map_or(Some(Exclusion::Name), |path| self.checkout_rules.exclusion(path));
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

    /// The rules of a folder, read where ignore files count. One that only the walk has adds none.
    fn add_rules(&mut self, relative: &Path) -> Result<()> {
        let Some(root) = &self.rules_root else { return Ok(()) };
        let folder = match Dir::open(root).and_then(|folder| folder.open_dir(relative)) {
            Ok(folder) => folder,
            Err(error) if error.is_absent() => return Ok(()),
            Err(error) => return Err(unreadable(&root.join(relative), &error)),
        };
        self.rules.add_all(&folder, relative).map_err(|error| {
            unreadable(folder.path(), &error)
                .hint("without its rules, files could travel that are to stay here")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        lillux::file::create_dirs(path.parent().expect("a folder"), false).expect("folders");
        lillux::file::write_atomic(&path, text.as_bytes(), lillux::file::FileMode::Preserve).expect("a file");
    }

    fn rules_hiding(project: &Path, name: &str) -> CheckoutRules {
        let settings = serde_json::json!({"hidden": [project.join(name).display().to_string()]});
        CheckoutRules::from_settings(project, &settings)
    }

    #[test]
    fn hidden_and_excluded_files_do_not_travel() {
        let project = tempfile::tempdir().expect("a folder");
        let root = project.path();
        for (path, text) in [
            ("src/a.rs", "a"),
            ("private/notes", "x"),
            ("local.txt", "x"),
            ("kept.tmp", "x"),
            ("other.tmp", "x"),
            (".gitignore", "!kept.tmp\n"),
            (".git/info/exclude", "local.txt\n*.tmp\n"),
        ] {
            write(root, path, text);
        }
        let listing = list_files(root, &rules_hiding(root, "private"), Some(root)).expect("listed");
        assert_eq!(listing.files, [".gitignore", "kept.tmp", "src/a.rs"]);
        let hidden = "is hidden from tools by the sandbox settings";
        assert_eq!(listing.left_out, [("private".to_owned(), hidden)]);
    }

    #[test]
    fn unreadable_ignore_files_refuse_the_listing() {
        let project = tempfile::tempdir().expect("a folder");
        let root = project.path();
        write(root, "src/a.rs", "a");
        let list = || list_files(root, &CheckoutRules::default(), Some(root)).map(|listing| listing.files);
        assert_eq!(list().expect("listed"), ["src/a.rs"]);
        for path in ["src/.gitignore", ".git/info/exclude"] {
            write(root, path, &"#".repeat((256 << 10) + 1));
            assert_eq!(list().expect_err("refused").code, Code::Io, "{path}");
            lillux::file::remove(&root.join(path)).expect("removed");
        }
        std::os::unix::fs::symlink("/none", root.join(".ignore")).expect("a link");
        assert_eq!(list().expect_err("refused").code, Code::Io);
    }
}
