//! A space's `.ai/`, held open. Its files are reached by plain names, one folder after the other, and no link is
//! followed: a folder that is swapped for a link leads nowhere.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;

use lillux::Digest;
use lillux::dir::{Dir, DirEntryKind, DirError};

use super::InstallError;
use crate::archive::create_folders_beneath;
use crate::path::BundlePath;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing.
    Absent,
    /// A file with this digest.
    File(Digest),
    /// Something else, or there is something else on the way.
    Other,
}

/// What was found under a name.
#[derive(Debug)]
pub enum PathLookup<T> {
    /// Nothing.
    Absent,
    /// What was looked for.
    Found(T),
    /// Something else: a link, or a folder for a file, or more than the limit.
    Other,
}

/// A space's `.ai/`.
#[derive(Debug)]
pub struct TargetDir {
    ai: Dir,
}

impl TargetDir {
    /// Opens the folder `ai`, which may itself be a link.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(ai: &Path) -> Result<Self, InstallError> {
        Ok(Self { ai: Dir::open(ai)? })
    }

    /// Where it really is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.ai.path()
    }

    /// What stands at `path`; of files larger than `limit` nothing more is said.
    ///
    /// # Errors
    /// When the system refuses to say.
    pub fn file_state(&self, path: &BundlePath, limit: u64) -> Result<FileState, InstallError> {
        Ok(match self.read(path, limit)? {
            PathLookup::Found(bytes) => FileState::File(Digest::of(&bytes)),
            PathLookup::Other => FileState::Other,
            PathLookup::Absent => FileState::Absent,
        })
    }

    /// The bytes of the file at `path`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn read(&self, path: &BundlePath, limit: u64) -> Result<PathLookup<Vec<u8>>, InstallError> {
        match self.parent(path)? {
            PathLookup::Found((folder, name)) => read_file(&folder, name, limit),
            PathLookup::Absent => Ok(PathLookup::Absent),
            PathLookup::Other => Ok(PathLookup::Other),
        }
    }

    /// The folder of `path` and its name there.
    pub(super) fn parent<'p>(
        &self,
        path: &'p BundlePath,
    ) -> Result<PathLookup<(Dir, &'p OsStr)>, InstallError> {
        let (folders, name) = split_path(path);
        Ok(match self.folder(folders)? {
            PathLookup::Found(folder) => PathLookup::Found((folder, OsStr::new(name))),
            PathLookup::Other => PathLookup::Other,
            PathLookup::Absent => PathLookup::Absent,
        })
    }

    /// The folder `relative` below `.ai/`.
    pub(super) fn folder(&self, relative: &str) -> Result<PathLookup<Dir>, InstallError> {
        let mut folder = self.ai.open_dir(Path::new(""))?;
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            folder = match folder.open_child_dir(OsStr::new(name)) {
                Ok(inner) => inner,
                Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(PathLookup::Absent);
                }
                Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
                    return Ok(PathLookup::Other);
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(PathLookup::Found(folder))
    }

    /// Makes the folder of `path` where it is missing; gives it with the name.
    pub(super) fn create_parent<'p>(&self, path: &'p BundlePath) -> Result<(Dir, &'p OsStr), InstallError> {
        let (folders, name) = split_path(path);
        Ok((create_folders_beneath(&self.ai, folders)?, OsStr::new(name)))
    }

    /// Makes the folder `relative` below `.ai/` where it is missing.
    pub(super) fn create_folder(&self, relative: &str) -> Result<Dir, InstallError> {
        Ok(create_folders_beneath(&self.ai, relative)?)
    }

    /// Removes the folders `path` lies in as far as they are empty, `.ai/` never.
    pub(super) fn remove_empty_parents(&self, path: &BundlePath) -> Result<(), InstallError> {
        let (mut folders, _) = split_path(path);
        while !folders.is_empty() {
            let (above, name) = folders.rsplit_once('/').unwrap_or(("", folders));
            let is_gone = match self.folder(above)? {
                PathLookup::Found(folder) => folder.remove_empty_dir(OsStr::new(name))?,
                PathLookup::Absent => true,
                PathLookup::Other => false,
            };
            if !is_gone {
                return Ok(());
            }
            folders = above;
        }
        Ok(())
    }

    /// Removes the folder `relative` below `.ai/` if it is there and empty.
    pub(super) fn remove_empty(&self, relative: &str) -> Result<(), InstallError> {
        let (above, name) = relative.rsplit_once('/').unwrap_or(("", relative));
        if let PathLookup::Found(folder) = self.folder(above)? {
            folder.remove_empty_dir(OsStr::new(name))?;
        }
        Ok(())
    }
}

/// The folders below `.ai/` and the name.
pub(super) fn split_path(path: &BundlePath) -> (&str, &str) {
    let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
    relative.rsplit_once('/').unwrap_or(("", relative))
}

/// The bytes of a plain file in a folder.
pub(super) fn read_file(folder: &Dir, name: &OsStr, limit: u64) -> Result<PathLookup<Vec<u8>>, InstallError> {
    match folder.status(name)? {
        None => return Ok(PathLookup::Absent),
        Some(status) if status.kind != DirEntryKind::File || status.size > limit => {
            return Ok(PathLookup::Other);
        }
        Some(_) => {}
    }
    let open_file = match folder.open_child_file(name) {
        Ok(open_file) => open_file,
        Err(DirError::NotAFile { .. }) => return Ok(PathLookup::Other),
        Err(error) if error.is_absent() => return Ok(PathLookup::Absent),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::with_capacity(usize::try_from(open_file.metadata.len().min(limit)).unwrap_or(0));
    open_file.file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > limit { PathLookup::Other } else { PathLookup::Found(bytes) })
}
