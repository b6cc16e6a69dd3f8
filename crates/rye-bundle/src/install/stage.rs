//! A stranger's folder, copied to where nobody else writes: what is judged is then what is installed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use lillux::beneath::{BeneathError, Entry, Folder, Kind};

use super::InstallError;
use super::site::{Found, read_file};
use crate::archive::{Limits, make_folders};
use crate::path::FilePath;

/// Copies the `.ai/` of the folder `source` into the folder `into`. Gives the files, sorted.
///
/// # Errors
/// When it holds a link, something that is no file, a name that is not plain, or too much.
pub fn copy(source: &Path, limits: &Limits, into: &Path) -> Result<Vec<FilePath>, InstallError> {
    let source = Folder::open(source)?;
    let target = Folder::open(into)?;
    let mut copy = Copy { limits, entries: 0, bytes: 0, names: BTreeSet::new(), files: Vec::new() };
    copy.folder(&source.child_folder(OsStr::new(".ai"))?, ".ai", &target)?;
    copy.files.sort();
    Ok(copy.files)
}

struct Copy<'a> {
    limits: &'a Limits,
    entries: usize,
    bytes: u64,
    names: BTreeSet<String>,
    files: Vec<FilePath>,
}

impl Copy<'_> {
    fn folder(&mut self, folder: &Folder, relative: &str, target: &Folder) -> Result<(), InstallError> {
        let (entries, is_complete) = folder.entries(self.limits.entries - self.entries)?;
        self.entries += entries.len();
        if !is_complete || self.entries >= self.limits.entries {
            return refused(relative, format!("there are more than {} files", self.limits.entries));
        }
        let mut inner = Vec::new();
        let mut made: Option<Folder> = None;
        for Entry { name, kind } in entries {
            let path = format!("{relative}/{}", name.to_string_lossy());
            let path = FilePath::new(path).map_err(|error| InstallError::Refused {
                path: error.path,
                reason: error.reason.to_owned(),
            })?;
            if !self.names.insert(path.folded()) {
                return refused(path.as_str(), "it is there twice, in other case".to_owned());
            }
            match kind {
                Kind::Folder => inner.push((name, path)),
                Kind::Link => return refused(path.as_str(), "it is a symbolic link".to_owned()),
                Kind::Other => return refused(path.as_str(), "it is neither a file nor a folder".to_owned()),
                Kind::File => {
                    let bytes = match read_file(folder, &name, self.limits.file_bytes)? {
                        Found::Here(bytes) => bytes,
                        Found::Other => {
                            let limit = self.limits.file_bytes;
                            return refused(path.as_str(), format!("it has more than {limit} bytes"));
                        }
                        Found::Nothing => {
                            return Err(BeneathError::Moved { path: folder.path().join(&name) }.into());
                        }
                    };
                    self.bytes += bytes.len() as u64;
                    if self.bytes > self.limits.total_bytes {
                        return refused(
                            relative,
                            format!("there are more than {} bytes", self.limits.total_bytes),
                        );
                    }
                    let made = match &mut made {
                        Some(made) => made,
                        none => none.insert(make_folders(target, relative)?),
                    };
                    made.write_new(&name, &bytes)?;
                    self.files.push(path);
                }
            }
        }
        inner
            .into_iter()
            .try_for_each(|(name, path)| self.folder(&folder.child_folder(&name)?, path.as_str(), target))
    }
}

fn refused<T>(path: &str, reason: String) -> Result<T, InstallError> {
    Err(InstallError::Refused { path: path.to_owned(), reason })
}
