//! The rules of `.gitignore` and `.ignore` files, for who goes through folders.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::{Dir, DirError, OpenFile};

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
        let mut texts = Vec::new();
        for name in IGNORE_FILES {
            let Ok(opened) = folder.open_child_file(OsStr::new(name)) else { continue };
            if !may_read(&opened.path) {
                continue;
            }
            let mut bytes = Vec::new();
            let _ = opened.file.take(MAX_BYTES).read_to_end(&mut bytes);
            texts.push(bytes);
        }
        let _ = self.add_texts(&texts, relative);
    }

    /// As [`IgnoreRules::add`], for who must not pass over a rule.
    ///
    /// # Errors
    /// When something of that name is there and cannot be read in full, or is not understood.
    pub fn add_all(&mut self, folder: &Dir, relative: &Path) -> Result<(), DirError> {
        let mut texts = Vec::new();
        for name in IGNORE_FILES {
            match folder.open_child_file(OsStr::new(name)) {
                Ok(opened) => texts.push(read_whole(opened)?),
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        self.add_texts(&texts, relative)
            .map_err(|error| DirError::io("read the rules in", folder.path(), io::Error::other(error)))
    }

    /// Adds the rules of a file that is none of [`IGNORE_FILES`], such as `.git/info/exclude`, for the whole walk.
    ///
    /// # Errors
    /// When it is there and cannot be read in full, or is not understood.
    pub fn add_file(&mut self, folder: &Dir, name: &OsStr) -> Result<(), DirError> {
        let opened = match folder.open_child_file(name) {
            Ok(opened) => opened,
            Err(error) if error.is_absent() => return Ok(()),
            Err(error) => return Err(error),
        };
        let path = opened.path.clone();
        self.add_texts(&[read_whole(opened)?], Path::new(""))
            .map_err(|error| DirError::io("read the rules in", &path, io::Error::other(error)))
    }

    fn add_texts(&mut self, texts: &[Vec<u8>], relative: &Path) -> Result<(), ignore::Error> {
        let mut builder = GitignoreBuilder::new("");
        for text in texts {
            for line in String::from_utf8_lossy(text).lines() {
                // As for git, a line that is not understood names nothing.
                let _ = builder.add_line(None, line);
            }
        }
        let rules = builder.build()?;
        if !rules.is_empty() {
            self.0.push(FolderRules { depth: relative.components().count(), rules });
        }
        Ok(())
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

fn read_whole(opened: OpenFile) -> Result<Vec<u8>, DirError> {
    let failed = |error: io::Error| DirError::io("read", &opened.path, error);
    let mut bytes = Vec::new();
    opened.file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let is_longer = u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BYTES);
    if is_longer { Err(failed(io::ErrorKind::FileTooLarge.into())) } else { Ok(bytes) }
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

    #[test]
    fn rules_that_cannot_be_read_are_refused() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = Dir::open(top.path()).expect("the folder");
        let mut rules = IgnoreRules::default();
        rules.add_all(&folder, Path::new("")).expect("there are none");
        rules.add_file(&folder, OsStr::new("exclude")).expect("there is none");
        std::os::unix::fs::symlink("elsewhere", top.path().join(".ignore")).expect("a link");
        assert!(rules.add_all(&folder, Path::new("")).is_err());
        file::remove(&top.path().join(".ignore")).expect("removed");
        let long = "#".repeat(usize::try_from(MAX_BYTES).expect("a size") + 1);
        for name in [".gitignore", "exclude"] {
            file::write_atomic(&top.path().join(name), long.as_bytes(), FileMode::Preserve).expect("a file");
        }
        assert!(rules.add_all(&folder, Path::new("")).is_err());
        assert!(rules.add_file(&folder, OsStr::new("exclude")).is_err());
        file::write_atomic(&top.path().join("exclude"), b"*.log\n", FileMode::Preserve).expect("a file");
        rules.add_file(&folder, OsStr::new("exclude")).expect("read");
        assert!(rules.is_ignored(Path::new("a/b.log"), false));
    }
}
