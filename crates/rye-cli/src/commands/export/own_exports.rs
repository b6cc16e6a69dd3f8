//! What exports on this machine wrote to a project, and what imports here read in it. The record in the project comes with a clone and can name any file of a
//! client; this one lies in the user space, where nothing of a project reaches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::{Code, Error};
use serde::{Deserialize, Serialize};

const MAX_RECORD_BYTES: u64 = 16 << 20;

/// The files that were written here, by their paths in the project, with their digests.
#[derive(Debug, Default)]
pub struct OwnExports {
    folder: PathBuf,
    name: String,
    content: OwnExportsFile,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct OwnExportsFile {
    /// The project, for a person who looks.
    project: String,
    files: BTreeMap<String, String>,
    /// The files that imports read, with their digests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    imported: BTreeMap<String, String>,
}

impl OwnExports {
    /// Reads what is recorded of a project.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn read(user: &Path, project: &Path) -> Result<Self, Error> {
        let project = std::fs::canonicalize(project).unwrap_or_else(|_| project.to_owned());
        let shown = project.display().to_string();
        let name = format!("{}.json", Digest::of(shown.as_bytes()).to_hex());
        let folder = user.join(".ai/exports");
        let content = match file::read_beneath_no_symlinks(&folder, Path::new(&name), MAX_RECORD_BYTES) {
            Ok((bytes, _)) => serde_json::from_slice(&bytes).map_err(|error| {
                let path = folder.join(&name);
                Error::new(Code::Invalid, format!("`{}` is damaged: {error}", path.display()))
                    .hint("remove it: exports then ask before they replace files")
            })?,
            Err(error) if error.is_absent() => OwnExportsFile::default(),
            Err(error) => return Err(Error::read(&error)),
        };
        Ok(Self { folder, name, content: OwnExportsFile { project: shown, ..content } })
    }

    /// Whether an export here wrote this file with this digest.
    pub fn knows(&self, path: &str, sha256: &str) -> bool {
        self.content.files.get(path).is_some_and(|known| known == sha256)
    }

    /// Enters what was written; gives whether it is new.
    pub fn insert(&mut self, path: &str, sha256: &str) -> bool {
        !self.knows(path, sha256) && {
            self.content.files.insert(path.to_owned(), sha256.to_owned());
            true
        }
    }

    /// Whether an import here read this file with this digest.
    pub fn has_imported(&self, path: &str, sha256: &str) -> bool {
        self.content.imported.get(path).is_some_and(|known| known == sha256)
    }

    /// Enters what an import read; gives whether it is new.
    pub fn insert_imported(&mut self, path: &str, sha256: &str) -> bool {
        !self.has_imported(path, sha256) && {
            self.content.imported.insert(path.to_owned(), sha256.to_owned());
            true
        }
    }

    /// Forgets a file that was removed.
    pub fn remove(&mut self, path: &str) {
        self.content.files.remove(path);
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When the user space cannot be written.
    pub fn write(&self) -> Result<(), Error> {
        file::create_dirs(&self.folder, true)?;
        let mut text = serde_json::to_string_pretty(&self.content).unwrap_or_default();
        text.push('\n');
        Ok(file::write_atomic(&self.folder.join(&self.name), text.as_bytes(), FileMode::Private)?)
    }
}
