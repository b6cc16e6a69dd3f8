//! Where the manager may write: below the project's `.ai/tools/mcp`, where policy lets it, never through a link.

use std::io;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rye_exec::{NativeCall, NativeError};
use serde_json::{Value, json};

const MAX_ITEM_BYTES: u64 = 4 * 1024 * 1024;

/// A file below the project that may be written.
#[derive(Debug)]
pub(super) struct ProjectFile {
    project: PathBuf,
    relative: PathBuf,
}

impl ProjectFile {
    /// The file `relative` of the project, if policy lets this call write it and no link is on the way.
    pub(super) fn new(call: &NativeCall<'_>, relative: &str) -> Result<Self, NativeError> {
        let file = Self { project: call.project.to_owned(), relative: PathBuf::from(relative) };
        let path = file.path();
        let covers = |folders: &[PathBuf]| folders.iter().any(|folder| path.starts_with(folder));
        let access = call.access;
        if !covers(&access.write) || covers(&access.read_only) || covers(&access.hidden) {
            return Err(NativeError::denied(format!("this tool may not write `{}`", path.display())));
        }
        file.reject_links()?;
        Ok(file)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.project.join(&self.relative)
    }

    /// The path as shown and as JSON.
    pub(super) fn to_value(&self) -> Value {
        json!(self.relative.display().to_string())
    }

    fn reject_links(&self) -> Result<(), NativeError> {
        let mut path = self.project.clone();
        for part in self.relative.components() {
            path.push(part);
            match fs_err::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_symlink() => {
                    return Err(NativeError::denied(format!(
                        "`{}` is a link, and is not followed",
                        path.display()
                    )));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(io_error(&error)),
            }
        }
        Ok(())
    }

    /// The text that is there, if any.
    pub(super) fn read(&self) -> Result<Option<String>, NativeError> {
        match file::read_beneath(&self.project, &self.relative, MAX_ITEM_BYTES) {
            Ok((bytes, _)) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(NativeError::failed(format!("`{}` is not UTF-8", self.path().display()))),
            },
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(NativeError::failed(error.to_string())),
        }
    }

    /// Writes a file that is not there yet.
    pub(super) fn write_new(&self, text: &str) -> Result<(), NativeError> {
        self.create_parent()?;
        file::write_new(&self.path(), text.as_bytes(), FileMode::Preserve).map_err(|error| {
            match error.kind() {
                io::ErrorKind::AlreadyExists => NativeError::failed(format!(
                    "`{}` already exists; remove it first",
                    self.path().display()
                )),
                _ => io_error(&error),
            }
        })
    }

    /// Writes or replaces the file.
    pub(super) fn write(&self, text: &str) -> Result<(), NativeError> {
        self.create_parent()?;
        file::write_atomic(&self.path(), text.as_bytes(), FileMode::Preserve)
            .map_err(|error| io_error(&error))
    }

    /// Removes the file.
    pub(super) fn remove(&self) -> Result<(), NativeError> {
        file::remove(&self.path()).map_err(|error| io_error(&error))
    }

    fn create_parent(&self) -> Result<(), NativeError> {
        match self.path().parent() {
            Some(folder) => file::create_dirs(folder, false).map_err(|error| io_error(&error)),
            None => Ok(()),
        }
    }
}

/// The names of the YAML files in a folder, sorted; none when there is no folder.
pub(super) fn yaml_names(folder: &Path) -> Result<Vec<String>, NativeError> {
    let entries = match fs_err::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(&error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| io_error(&error))?;
        if let Ok(name) = entry.file_name().into_string()
            && name.ends_with(".yaml")
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn io_error(error: &io::Error) -> NativeError {
    NativeError::failed(error.to_string())
}
