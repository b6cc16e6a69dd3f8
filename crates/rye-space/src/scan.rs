//! Walking a space: every file that is an item, and every file that looks like one but may not be.

use std::io;
use std::path::{Path, PathBuf};

use rye_item::{ExtractorSet, ItemId, ItemRef, ItemType};

use crate::file_stamp::{FileStamp, record};

/// Folders that hold no items, whatever their files are called.
const SKIPPED_FOLDERS: [&str; 3] = ["__pycache__", "node_modules", "venv"];
/// Files of package managers: they lie beside tools and are none.
const SKIPPED_FILES: [&str; 5] =
    ["package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "tsconfig.json"];
/// Deeper than an id can be.
const MAX_DEPTH: usize = 128;

/// A file that is an item by its place and extension.
#[derive(Clone, Debug)]
pub struct ItemEntry {
    /// The item.
    pub item: ItemRef,
    /// Its extension with the dot.
    pub extension: String,
    /// Its path below `.ai/`, with `/`.
    pub relative: String,
    /// How it looks.
    pub stamp: FileStamp,
}

/// A file that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidItemFile {
    /// The file.
    pub path: PathBuf,
    /// Why it is not an item.
    pub reason: String,
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Items, folder by folder.
    pub entries: Vec<ItemEntry>,
    /// What looked like an item and is none.
    pub invalid_files: Vec<InvalidItemFile>,
    /// Folders that could not be read: whatever they hold is not among the entries.
    pub unreadable: Vec<InvalidItemFile>,
}

/// The folder that keeps `folder` from being read, if it is there and cannot be: itself, or one above it.
#[must_use]
pub fn unreadable(folder: &Path) -> Option<InvalidItemFile> {
    match std::fs::read_dir(folder) {
        Ok(_) => None,
        Err(error) => is_hindrance(&error).then(|| hindrance(folder, &error)),
    }
}

/// Whether an error means that something is there, or may be, and cannot be seen.
pub(crate) fn is_hindrance(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Names the outermost folder that cannot be looked into on the way to `path`.
pub(crate) fn hindrance(path: &Path, error: &io::Error) -> InvalidItemFile {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let closed = above.into_iter().rev().find(|folder| {
        // Looking at a name in a folder needs the right to pass through it.
        std::fs::symlink_metadata(folder.join(".")).is_err_and(|error| is_hindrance(&error))
    });
    InvalidItemFile { path: closed.unwrap_or(path).to_owned(), reason: error.to_string() }
}

/// Walks the folders of `types` below `ai`.
#[must_use]
pub fn scan(ai: &Path, types: &[ItemType], extractors: &ExtractorSet) -> ScanResult {
    let mut result = ScanResult::default();
    for item_type in types {
        let top = ai.join(item_type.folder());
        record(|reads| {
            reads.add_folder(ai.to_owned());
            reads.add_folder(top.clone());
        });
        if top.is_symlink()
            && let Err(reason) = link_target_type(ai, &top)
        {
            result.invalid_files.push(InvalidItemFile { path: top, reason });
            continue;
        }
        let mut pending = vec![(top, String::new(), 0)];
        while let Some((folder, prefix, depth)) = pending.pop() {
            record(|reads| reads.add(folder.clone()));
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    if is_hindrance(&error) {
                        result.unreadable.push(hindrance(&folder, &error));
                    }
                    continue;
                }
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str() else {
                    result.invalid_files.push(InvalidItemFile {
                        path: entry.path(),
                        reason: "its name is not UTF-8".to_owned(),
                    });
                    continue;
                };
                if name.starts_with('.') {
                    continue;
                }
                let Ok(mut file_type) = entry.file_type() else {
                    continue;
                };
                let is_link = file_type.is_symlink();
                if is_link {
                    match link_target_type(ai, &entry.path()) {
                        Ok(target) => file_type = target,
                        Err(reason) => {
                            result.invalid_files.push(InvalidItemFile { path: entry.path(), reason });
                            continue;
                        }
                    }
                    // A linked folder is not entered: it is walked where it is, and links may run in circles.
                    if file_type.is_dir() {
                        continue;
                    }
                }
                if file_type.is_dir() {
                    if !SKIPPED_FOLDERS.contains(&name) && depth < MAX_DEPTH {
                        pending.push((entry.path(), format!("{prefix}{name}/"), depth + 1));
                    }
                } else if file_type.is_file() {
                    // Beside the folder that is open already, a look at the file itself is quicker than one by path.
                    let metadata = if is_link { std::fs::metadata(entry.path()) } else { entry.metadata() };
                    let metadata = match metadata {
                        Ok(metadata) => metadata,
                        Err(error) => {
                            if is_hindrance(&error) {
                                result.unreadable.push(hindrance(&entry.path(), &error));
                            }
                            continue;
                        }
                    };
                    add_file(
                        *item_type,
                        &prefix,
                        name,
                        &folder,
                        FileStamp::from_metadata(&metadata),
                        extractors,
                        &mut result,
                    );
                } else if is_item_name(*item_type, name, extractors) {
                    result.invalid_files.push(InvalidItemFile {
                        path: entry.path(),
                        reason: "it is not a regular file".to_owned(),
                    });
                }
            }
        }
    }
    result.unreadable.dedup();
    result
}

fn is_item_name(item_type: ItemType, name: &str, extractors: &ExtractorSet) -> bool {
    let known = &extractors.for_type(item_type).extensions;
    split_extension(name).is_some_and(|(_, extension)| known.iter().any(|known| known == extension))
}

fn add_file(
    item_type: ItemType,
    prefix: &str,
    name: &str,
    folder: &Path,
    stamp: FileStamp,
    extractors: &ExtractorSet,
    result: &mut ScanResult,
) {
    if SKIPPED_FILES.contains(&name) {
        return;
    }
    let Some((stem, extension)) = split_extension(name) else {
        return;
    };
    if !extractors.for_type(item_type).extensions.iter().any(|known| known == extension) {
        return;
    }
    match ItemId::new(format!("{prefix}{stem}")) {
        Ok(id) => result.entries.push(ItemEntry {
            item: ItemRef::new(item_type, id),
            extension: extension.to_owned(),
            relative: format!("{}/{prefix}{name}", item_type.folder()),
            stamp,
        }),
        Err(error) => {
            result.invalid_files.push(InvalidItemFile { path: folder.join(name), reason: error.to_string() })
        }
    }
}

/// `a.b.py` → `a.b`, `.py`.
#[must_use]
pub fn split_extension(name: &str) -> Option<(&str, &str)> {
    let dot = name.rfind('.').filter(|dot| *dot > 0)?;
    Some((&name[..dot], &name[dot..]))
}

fn link_target_type(ai: &Path, path: &Path) -> Result<std::fs::FileType, String> {
    let (Ok(root), Ok(target)) = (fs_err::canonicalize(ai), fs_err::canonicalize(path)) else {
        return Err("it is a link to nothing".to_owned());
    };
    if !target.starts_with(root) {
        return Err("it is a link that leaves its space".to_owned());
    }
    fs_err::metadata(&target).map(|metadata| metadata.file_type()).map_err(|error| error.to_string())
}
