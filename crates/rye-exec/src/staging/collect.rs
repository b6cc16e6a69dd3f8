//! Which files of a folder have to be verified. Linked folders are not entered, and a linked file has to stay inside.

use std::path::Path;

use rye_item::text::one_line;

use super::{Dependencies, Failure, StagingError};

const MAX_FILES: usize = 5_000;
const MAX_SEEN: usize = 100_000;
const MAX_DEPTH: usize = 64;
const MAX_NOTICES: usize = 5;

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Paths below the root, with `/`.
    pub files: Vec<String>,
    pub failures: Vec<Failure>,
    pub notices: Vec<String>,
}

/// The files below `base`, a folder in `root`, that `dependencies` lists.
pub(super) fn collect(
    root: &Path,
    base: &Path,
    is_recursive: bool,
    dependencies: &Dependencies,
) -> Result<Collected, StagingError> {
    let real_root = fs_err::canonicalize(root)?;
    let mut collected = Collected::default();
    let mut pending = vec![(base.to_owned(), 0)];
    let mut seen = 0_usize;
    while let Some((folder, depth)) = pending.pop() {
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            seen += 1;
            if seen > MAX_SEEN || depth > MAX_DEPTH {
                let limit = if seen > MAX_SEEN { "100,000 entries" } else { "64 levels of folders" };
                return Err(StagingError::TooMuch { folder: root.to_owned(), limit });
            }
            let (path, file_type) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if file_type.is_dir() {
                if is_recursive && name.to_str().is_some_and(|name| dependencies.is_entered(name)) {
                    pending.push((path, depth + 1));
                }
                continue;
            }
            let is_listed = dependencies.is_listed(&name.to_string_lossy());
            if file_type.is_symlink() && path.is_dir() {
                let is_entered = name.to_str().is_some_and(|name| dependencies.is_entered(name));
                if is_recursive && is_entered && collected.notices.len() < MAX_NOTICES {
                    let shown = one_line(&path.display().to_string());
                    collected
                        .notices
                        .push(format!("`{shown}` is a linked folder: nothing is imported from it"));
                }
            } else if is_listed {
                match judged(root, &real_root, &path, file_type) {
                    Ok(relative) => collected.files.push(relative),
                    Err(reason) => collected.failures.push(Failure { path, reason }),
                }
                if collected.files.len() + collected.failures.len() > MAX_FILES {
                    return Err(StagingError::TooMuch { folder: root.to_owned(), limit: "5,000 files" });
                }
            }
        }
    }
    collected.files.sort_unstable();
    Ok(collected)
}

/// The file's path below `root`, or why it may not be staged.
fn judged(
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
