//! File contents in snapshots and patches: bytes and the executable bit. Symlinks are never followed or created.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lillux::dir::{Dir, DirEntryKind, Durability};
use lillux::file::{self, FileMode};
use rye_engine::Result;
pub(super) use rye_engine::verbs::sync::MAX_TREE_FILE_BYTES as MAX_FILE_BYTES;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

use super::refused;

/// What stands at a path below a project.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundEntry {
    /// Nothing.
    Absent,
    /// A folder.
    Folder,
    /// A file.
    File(FileBytes),
    /// Something that no patch holds, and why.
    Other(&'static str),
}

impl FoundEntry {
    /// The file, if it is one.
    pub(super) fn into_file(self) -> Option<FileBytes> {
        match self {
            Self::File(file) => Some(file),
            Self::Absent | Self::Folder | Self::Other(_) => None,
        }
    }

    /// Looks at a path below `root`. No link is followed.
    pub(super) fn find(root: &Path, path: &str) -> Self {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = match file::folder_beneath(root, Path::new(folder)) {
            Ok(Some(folder)) => folder,
            Ok(None) => return Self::Absent,
            // A file on the way.
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return Self::Absent,
            Err(_) => return Self::Other("lies behind a link, or cannot be read"),
        };
        match folder.status(name.as_ref()) {
            Ok(None) => Self::Absent,
            Ok(Some(found)) => match found.kind {
                DirEntryKind::Dir => Self::Folder,
                DirEntryKind::Symlink => Self::Other("is a link"),
                DirEntryKind::Other => Self::Other("is not a regular file"),
                DirEntryKind::File if found.size > MAX_FILE_BYTES => Self::Other("is larger than 64 MiB"),
                DirEntryKind::File => match FileBytes::read(root, path) {
                    Ok(Some(file)) => Self::File(file),
                    Ok(None) => Self::Absent,
                    Err(_) => Self::Other("cannot be read, or is too large"),
                },
            },
            Err(_) => Self::Other("cannot be read"),
        }
    }
}

/// A file's bytes, and whether it may be run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileBytes {
    pub(super) bytes: Vec<u8>,
    pub(super) is_executable: bool,
}

impl FileBytes {
    /// The file of that path below `root`; `None` when there is nothing.
    ///
    /// # Errors
    /// When something else than a plain file is there, or it is too large.
    pub(super) fn read(root: &Path, path: &str) -> Result<Option<Self>> {
        use std::os::unix::fs::PermissionsExt as _;
        match file::read_beneath_no_symlinks(root, Path::new(path), MAX_FILE_BYTES) {
            Ok((bytes, metadata)) => {
                let is_executable = metadata.permissions().mode() & 0o100 != 0;
                Ok(Some(Self { bytes, is_executable }))
            }
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(refused(format!("`{}`: {}", one_line(path), one_line(&error.to_string())))),
        }
    }

    /// Writes it below `root`, in the place of what is there.
    ///
    /// # Errors
    /// When a link is on the way, or the system refuses.
    pub(super) fn write(&self, root: &Path, path: &str) -> Result<()> {
        self.write_with(root, path, None).map(drop)
    }

    /// Writes it with these permission bits; else with those of what is there, and those of its own.
    ///
    /// # Errors
    /// As [`FileBytes::write`].
    pub(super) fn write_with(&self, root: &Path, path: &str, mode: Option<u32>) -> Result<Dir> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = file::make_folders_beneath(root, Path::new(folder), false)?;
        folder
            .write_atomic(name.as_ref(), &self.bytes, FileMode::Preserve, Durability::Renamed)
            .map_err(std::io::Error::other)?;
        let now = folder.status(name.as_ref()).map_err(std::io::Error::other)?;
        let now = now.map_or(0o644, |status| status.mode & 0o777);
        let own = if self.is_executable { now | ((now & 0o444) >> 2) } else { now & !0o111 };
        let wanted = mode.unwrap_or(own);
        if wanted != now {
            folder.set_file_mode(name.as_ref(), wanted).map_err(std::io::Error::other)?;
        }
        Ok(folder)
    }
}

/// A file as a patch holds it: as text where it is text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileContent {
    #[serde(rename = "executable")]
    is_executable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl From<FileBytes> for FileContent {
    fn from(file: FileBytes) -> Self {
        let is_executable = file.is_executable;
        match String::from_utf8(file.bytes) {
            Ok(text) => Self { is_executable, text: Some(text), base64: None },
            Err(error) => {
                let base64 = Some(STANDARD.encode(error.into_bytes()));
                Self { is_executable, text: None, base64 }
            }
        }
    }
}

impl FileContent {
    /// The file.
    ///
    /// # Errors
    /// When it is neither text nor readable bytes.
    pub(super) fn to_file(&self) -> Result<FileBytes> {
        let bytes = match (&self.text, &self.base64) {
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(encoded)) => STANDARD.decode(encoded).ok(),
            _ => None,
        };
        let bytes = bytes.ok_or_else(|| refused("the patch holds a file that cannot be read"))?;
        Ok(FileBytes { bytes, is_executable: self.is_executable })
    }
}
