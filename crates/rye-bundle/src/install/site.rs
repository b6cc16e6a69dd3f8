//! A space's `.ai/`, held open. Its files are reached by plain names, one folder after the other, and no link is
//! followed: a folder that is swapped for a link leads nowhere.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;

use lillux::Digest;
use lillux::beneath::{BeneathError, Folder, Kind};

use super::InstallError;
use crate::archive::make_folders;
use crate::path::FilePath;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Present {
    /// Nothing.
    Absent,
    /// A file with this digest.
    File(Digest),
    /// Something else, or there is something else on the way.
    Other,
}

/// What was found under a name.
#[derive(Debug)]
pub enum Found<T> {
    /// Nothing.
    Nothing,
    /// What was looked for.
    Here(T),
    /// Something else: a link, or a folder for a file, or more than the limit.
    Other,
}

/// A space's `.ai/`.
#[derive(Debug)]
pub struct Site {
    ai: Folder,
}

impl Site {
    /// Opens the folder `ai`, which may itself be a link.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(ai: &Path) -> Result<Self, InstallError> {
        Ok(Self { ai: Folder::open(ai)? })
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
    pub fn look(&self, path: &FilePath, limit: u64) -> Result<Present, InstallError> {
        Ok(match self.read(path, limit)? {
            Found::Here(bytes) => Present::File(Digest::of(&bytes)),
            Found::Other => Present::Other,
            Found::Nothing => Present::Absent,
        })
    }

    /// The bytes of the file at `path`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn read(&self, path: &FilePath, limit: u64) -> Result<Found<Vec<u8>>, InstallError> {
        match self.parent(path)? {
            Found::Here((folder, name)) => read_file(&folder, name, limit),
            Found::Nothing => Ok(Found::Nothing),
            Found::Other => Ok(Found::Other),
        }
    }

    /// The folder of `path` and its name there.
    pub(super) fn parent<'p>(&self, path: &'p FilePath) -> Result<Found<(Folder, &'p OsStr)>, InstallError> {
        let (folders, name) = split(path);
        Ok(match self.folder(folders)? {
            Found::Here(folder) => Found::Here((folder, OsStr::new(name))),
            Found::Other => Found::Other,
            Found::Nothing => Found::Nothing,
        })
    }

    /// The folder `relative` below `.ai/`.
    pub(super) fn folder(&self, relative: &str) -> Result<Found<Folder>, InstallError> {
        let mut folder = self.ai.folder(Path::new(""))?;
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            folder = match folder.child_folder(OsStr::new(name)) {
                Ok(inner) => inner,
                Err(BeneathError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(Found::Nothing);
                }
                Err(BeneathError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
                    return Ok(Found::Other);
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Found::Here(folder))
    }

    /// Makes the folder of `path` where it is missing; gives it with the name.
    pub(super) fn make_parent<'p>(&self, path: &'p FilePath) -> Result<(Folder, &'p OsStr), InstallError> {
        let (folders, name) = split(path);
        Ok((make_folders(&self.ai, folders)?, OsStr::new(name)))
    }

    /// Makes the folder `relative` below `.ai/` where it is missing.
    pub(super) fn make_folder(&self, relative: &str) -> Result<Folder, InstallError> {
        Ok(make_folders(&self.ai, relative)?)
    }

    /// Removes the folders `path` lies in as far as they are empty, `.ai/` never.
    pub(super) fn remove_empty_parents(&self, path: &FilePath) -> Result<(), InstallError> {
        let (mut folders, _) = split(path);
        while !folders.is_empty() {
            let (above, name) = folders.rsplit_once('/').unwrap_or(("", folders));
            let is_gone = match self.folder(above)? {
                Found::Here(folder) => folder.remove_empty_folder(OsStr::new(name))?,
                Found::Nothing => true,
                Found::Other => false,
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
        if let Found::Here(folder) = self.folder(above)? {
            folder.remove_empty_folder(OsStr::new(name))?;
        }
        Ok(())
    }
}

/// The folders below `.ai/` and the name.
pub(super) fn split(path: &FilePath) -> (&str, &str) {
    let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
    relative.rsplit_once('/').unwrap_or(("", relative))
}

/// The bytes of a plain file in a folder.
pub(super) fn read_file(folder: &Folder, name: &OsStr, limit: u64) -> Result<Found<Vec<u8>>, InstallError> {
    match folder.status(name)? {
        None => return Ok(Found::Nothing),
        Some(status) if status.kind != Kind::File || status.size > limit => return Ok(Found::Other),
        Some(_) => {}
    }
    let opened = match folder.child_file(name) {
        Ok(opened) => opened,
        Err(BeneathError::NotAFile { .. }) => return Ok(Found::Other),
        Err(error) if error.is_absent() => return Ok(Found::Nothing),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::with_capacity(usize::try_from(opened.metadata.len().min(limit)).unwrap_or(0));
    opened.file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > limit { Found::Other } else { Found::Here(bytes) })
}
