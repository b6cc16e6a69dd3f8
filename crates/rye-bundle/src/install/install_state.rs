//! Where installations into one space are remembered: a private folder in user space, named after the space's real path.
//! Only one process changes a space at a time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, Lock};
use rye_item::BundleId;

use super::InstallError;

/// Below the user's `.ai/`.
pub const INSTALLS_FOLDER: &str = "installs";
const JOURNAL_FILE_NAME: &str = "journal.json";

/// The folder of one space.
#[derive(Clone, Debug)]
pub struct InstallState {
    folder: PathBuf,
    space: String,
}

impl InstallState {
    /// The folder of the space whose `.ai/` is really at `ai`.
    #[must_use]
    pub fn for_space(user_ai: &Path, ai: &Path) -> Self {
        let space = ai.to_string_lossy().into_owned();
        let folder =
            user_ai.join(INSTALLS_FOLDER).join(Digest::of(ai.as_os_str().as_encoded_bytes()).short());
        Self { folder, space }
    }

    /// The space's `.ai/`, as text.
    #[must_use]
    pub fn space(&self) -> &str {
        &self.space
    }

    /// Waits until no other process changes the space.
    ///
    /// # Errors
    /// When the folder cannot be made or locked.
    pub fn lock(&self) -> Result<Lock, InstallError> {
        file::create_dirs(&self.folder, true)?;
        Ok(Lock::acquire(&self.folder.join("lock"))?)
    }

    /// Takes the lock if no other process changes the space.
    ///
    /// # Errors
    /// When the folder cannot be locked.
    pub fn try_lock(&self) -> Result<Option<Lock>, InstallError> {
        Ok(Lock::try_acquire(&self.folder.join("lock"))?)
    }

    /// Whether a process died while it changed the space, or is changing it now.
    #[must_use]
    pub fn has_pending_change(&self) -> bool {
        let Ok(entries) = fs_err::read_dir(&self.folder) else { return false };
        entries
            .flatten()
            .any(|entry| entry.file_name() == JOURNAL_FILE_NAME || is_temporary(&entry.file_name()))
    }

    /// Removes files whose writing was interrupted.
    pub(super) fn remove_temporary_files(&self) -> Result<(), InstallError> {
        // Nothing was ever installed.
        let Ok(entries) = fs_err::read_dir(&self.folder) else { return Ok(()) };
        for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
            file::remove(&entry.path())?;
        }
        Ok(())
    }

    /// The record of a change that is under way, or was when its process died.
    #[must_use]
    pub fn journal_path(&self) -> PathBuf {
        self.folder.join(JOURNAL_FILE_NAME)
    }

    /// The folder of a bundle's earlier versions.
    #[must_use]
    pub fn generations_folder(&self, bundle: &BundleId) -> PathBuf {
        self.folder.join("generations").join(bundle.as_str())
    }

    /// The folder of backups of this name.
    #[must_use]
    pub fn backups_folder(&self, name: &str) -> PathBuf {
        self.folder.join("backups").join(name)
    }
}

fn is_temporary(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with(".rye-")
}
