//! Copies a source folder to a private one, so that what is verified is what is installed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use lillux::dir::{Dir, DirEntry, DirEntryKind, DirError};

use super::InstallError;
use super::target_dir::{PathLookup, read_file};
use crate::archive::{ArchiveLimits, create_folders_beneath};
use crate::path::BundlePath;

/// Copies the `.ai/` of the folder `source` into the folder `into`. Gives the files, sorted.
///
/// # Errors
/// When it holds a link, something that is not a file, a name that is not plain, or too much.
pub fn copy_folder(
    source: &Path,
    limits: &ArchiveLimits,
    into: &Path,
) -> Result<Vec<BundlePath>, InstallError> {
    let source = Dir::open(source)?;
    let target = Dir::open(into)?;
    let mut copy = FolderCopy { limits, entries: 0, bytes: 0, names: BTreeSet::new(), files: Vec::new() };
    copy.copy_entries(&source.open_child_dir(OsStr::new(".ai"))?, ".ai", &target)?;
    copy.files.sort();
    Ok(copy.files)
}

struct FolderCopy<'a> {
    limits: &'a ArchiveLimits,
    entries: usize,
    bytes: u64,
    names: BTreeSet<String>,
    files: Vec<BundlePath>,
}

impl FolderCopy<'_> {
    fn copy_entries(&mut self, folder: &Dir, relative: &str, target: &Dir) -> Result<(), InstallError> {
        let (entries, is_complete) = folder.entries(self.limits.entries - self.entries)?;
        self.entries += entries.len();
        if !is_complete || self.entries >= self.limits.entries {
            return invalid_file(relative, format!("there are more than {} files", self.limits.entries));
        }
        let mut inner = Vec::new();
        let mut made: Option<Dir> = None;
        for DirEntry { name, kind } in entries {
            let path = format!("{relative}/{}", name.to_string_lossy());
            let path = BundlePath::new(path).map_err(|error| InstallError::InvalidFile {
                path: error.path,
                reason: error.reason.to_owned(),
            })?;
            if !self.names.insert(path.case_folded()) {
                return invalid_file(path.as_str(), "it is there twice, in other case".to_owned());
            }
            match kind {
                DirEntryKind::Dir => inner.push((name, path)),
                DirEntryKind::Symlink => {
                    return invalid_file(path.as_str(), "it is a symbolic link".to_owned());
                }
                DirEntryKind::Other => {
                    return invalid_file(path.as_str(), "it is neither a file nor a folder".to_owned());
                }
                DirEntryKind::File => {
                    let bytes = match read_file(folder, &name, self.limits.file_bytes)? {
                        PathLookup::Found(bytes) => bytes,
                        PathLookup::Other => {
                            let limit = self.limits.file_bytes;
                            return invalid_file(path.as_str(), format!("it has more than {limit} bytes"));
                        }
                        PathLookup::Absent => {
                            return Err(DirError::Moved { path: folder.path().join(&name) }.into());
                        }
                    };
                    self.bytes += bytes.len() as u64;
                    if self.bytes > self.limits.total_bytes {
                        return invalid_file(
                            relative,
                            format!("there are more than {} bytes", self.limits.total_bytes),
                        );
                    }
                    let made = match &mut made {
                        Some(made) => made,
                        none => none.insert(create_folders_beneath(target, relative)?),
                    };
                    made.write_new(&name, &bytes)?;
                    self.files.push(path);
                }
            }
        }
        inner.into_iter().try_for_each(|(name, path)| {
            self.copy_entries(&folder.open_child_dir(&name)?, path.as_str(), target)
        })
    }
}

fn invalid_file<T>(path: &str, reason: String) -> Result<T, InstallError> {
    Err(InstallError::InvalidFile { path: path.to_owned(), reason })
}
