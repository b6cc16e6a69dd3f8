//! The rules of `.gitignore` and `.ignore` files, for who goes through folders.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::Dir;

/// The names of files with rules. Later rules win: `.ignore` is the stronger one.
pub const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// How much of a file with rules is read.
const MAX_BYTES: u64 = 256 << 10;

/// The rules that hold in a folder: its own, and those of the folders above it.
#[derive(Debug, Default)]
pub struct IgnoreRules(Vec<FolderRules>);

#[derive(Debug)]
struct FolderRules {
    /// The number of names in the folder's path.
    depth: usize,
    rules: Gitignore,
}

impl IgnoreRules {
    /// How many folders have rules, for [`IgnoreRules::truncate`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no rule.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the rules of the folders added last, when the walk leaves them.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Adds the rules in `folder`, whose path from the top of the walk is `relative`. Of [`IGNORE_FILES`], those that
    /// `may_read` refuses have none; nor has one that cannot be read, as for git.
    pub fn add(&mut self, folder: &Dir, relative: &Path, may_read: impl Fn(&Path) -> bool) {
        let mut builder = GitignoreBuilder::new("");
        for name in IGNORE_FILES {
            let Ok(opened) = folder.open_child_file(OsStr::new(name)) else { continue };
            if !may_read(&opened.path) {
                continue;
            }
            let mut bytes = Vec::new();
            let _ = opened.file.take(MAX_BYTES).read_to_end(&mut bytes);
            for line in String::from_utf8_lossy(&bytes).lines() {
                let _ = builder.add_line(None, line);
            }
        }
        if let Ok(rules) = builder.build()
            && !rules.is_empty()
        {
            self.0.push(FolderRules { depth: relative.components().count(), rules });
        }
    }

    /// Whether the rules of the nearest folder that has one for `path` leave it out.
    #[must_use]
    pub fn is_ignored(&self, path: &Path, is_folder: bool) -> bool {
        for FolderRules { depth, rules } in self.0.iter().rev() {
            let below: PathBuf = path.components().skip(*depth).collect();
            let matched = rules.matched(&below, is_folder);
            if !matched.is_none() {
                return matched.is_ignore();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::file::{self, FileMode};

    use super::*;

    #[test]
    fn nearest_folder_decides() {
        let top = tempfile::tempdir().expect("a folder");
        file::create_dirs(&top.path().join("a"), false).expect("a folder");
        let put = |path: &str, text: &str| {
            file::write_atomic(&top.path().join(path), text.as_bytes(), FileMode::Preserve).expect("a file");
        };
        put(".gitignore", "*.log\nbuild/\n");
        put(".ignore", "!kept.log\n");
        put("a/.gitignore", "!a.log\n");
        let folder = Dir::open(top.path()).expect("the folder");
        let mut rules = IgnoreRules::default();
        rules.add(&folder, Path::new(""), |_| true);
        let is_ignored = |rules: &IgnoreRules, path: &str| rules.is_ignored(Path::new(path), false);
        assert!(is_ignored(&rules, "x.log") && is_ignored(&rules, "a/a.log"));
        assert!(!is_ignored(&rules, "kept.log") && !is_ignored(&rules, "build"));
        assert!(rules.is_ignored(Path::new("build"), true));

        let (above, inner) = (rules.len(), folder.open_dir(Path::new("a")).expect("the folder"));
        rules.add(&inner, Path::new("a"), |_| true);
        assert!(!is_ignored(&rules, "a/a.log") && is_ignored(&rules, "a/b.log"));
        rules.truncate(above);
        assert!(is_ignored(&rules, "a/a.log"));
        rules.add(&inner, Path::new("a"), |path| !path.ends_with("a/.gitignore"));
        assert!(is_ignored(&rules, "a/a.log"), "a file that may not be read has no rules");
    }
}
