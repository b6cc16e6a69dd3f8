//! File contents in snapshots and patches: bytes and the executable bit. Symlinks are never followed or created.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lillux::dir::Durability;
use lillux::file::{self, FileMode};
use rye_engine::Result;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

use super::refused;

/// The largest file of a checkout.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file's bytes, and whether it may be run.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = file::make_folders_beneath(root, Path::new(folder), false)?;
        folder
            .write_atomic(name.as_ref(), &self.bytes, FileMode::Preserve, Durability::Renamed)
            .map_err(std::io::Error::other)?;
        let now = folder.status(name.as_ref()).map_err(std::io::Error::other)?;
        let mode = now.map_or(0o644, |status| status.mode & 0o777);
        let wanted = if self.is_executable { mode | ((mode & 0o444) >> 2) } else { mode & !0o111 };
        if wanted != mode {
            file::set_mode(&root.join(path), wanted)?;
        }
        Ok(())
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
