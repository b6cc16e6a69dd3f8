//! Which files of a folder have to be verified. Linked folders are not entered, and a linked file has to stay inside.

use std::path::Path;

use rye_item::text::one_line;

use super::{ImportRules, StagingError, StagingFailure};

const MAX_FILES: usize = 5_000;
const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 64;
const MAX_NOTICES: usize = 5;

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct CollectedFiles {
    /// Paths below the root, with `/`.
    pub files: Vec<String>,
    pub failures: Vec<StagingFailure>,
    pub notices: Vec<String>,
}

/// The files below `base`, a folder in `root`, that `dependencies` lists.
pub(super) fn collect(
    root: &Path,
    base: &Path,
    is_recursive: bool,
    dependencies: &ImportRules,
) -> Result<CollectedFiles, StagingError> {
    let real_root = fs_err::canonicalize(root)?;
    let mut collected = CollectedFiles::default();
    let mut pending = vec![(base.to_owned(), 0)];
    let mut entry_count = 0_usize;
    while let Some((folder, depth)) = pending.pop() {
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            entry_count += 1;
            if entry_count > MAX_ENTRIES || depth > MAX_DEPTH {
                let limit =
                    if entry_count > MAX_ENTRIES { "100,000 entries" } else { "64 levels of folders" };
                return Err(StagingError::TooLarge { folder: root.to_owned(), limit });
            }
            let (path, file_type) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if file_type.is_dir() {
                if is_recursive && name.to_str().is_some_and(|name| dependencies.includes_folder(name)) {
                    pending.push((path, depth + 1));
                }
                continue;
            }
            let is_listed = dependencies.includes_file(&name.to_string_lossy());
            if file_type.is_symlink() && path.is_dir() {
                let is_entered = name.to_str().is_some_and(|name| dependencies.includes_folder(name));
                if is_recursive && is_entered && collected.notices.len() < MAX_NOTICES {
                    let path_text = one_line(&path.display().to_string());
                    collected
                        .notices
                        .push(format!("`{path_text}` is a linked folder: nothing is imported from it"));
                }
            } else if is_listed {
                match check_file(root, &real_root, &path, file_type) {
                    Ok(relative) => collected.files.push(relative),
                    Err(reason) => collected.failures.push(StagingFailure { path, reason }),
                }
                if collected.files.len() + collected.failures.len() > MAX_FILES {
                    return Err(StagingError::TooLarge { folder: root.to_owned(), limit: "5,000 files" });
                }
            }
        }
    }
    collected.files.sort_unstable();
    Ok(collected)
}

/// The file's path below `root`, or why it may not be staged.
fn check_file(
    root: &Path,
    real_root: &Path,
    path: &Path,
    file_type: std::fs::FileType,
) -> Result<String, String> {
    let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
    let Some(relative) = relative.filter(|text| !text.chars().any(char::is_control)) else {
        return Err("its name is not plain text; rename it".to_owned());
    };
    if file_type.is_symlink() {
        let real = path.canonicalize().map_err(|_| "it is a link to nothing".to_owned())?;
        if !real.starts_with(real_root) {
            return Err(format!("Symlink escape: {} resolves to {}", path.display(), real.display()));
        }
        if !real.is_file() {
            return Err("it is not a regular file".to_owned());
        }
    } else if !file_type.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    Ok(relative.to_owned())
}
