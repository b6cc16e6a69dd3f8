//! The folder of threads itself. A project may have brought a link of its name: it is not followed.

use std::path::Path;

use super::DbError;
use rye_store::ThreadStoreError;

/// The folder that holds the folder of threads, and its name there.
fn split(folder: &Path) -> Result<(&Path, &Path), DbError> {
    match (folder.parent(), folder.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, Path::new(name))),
        _ => Err(DbError::from(ThreadStoreError::Failed(format!(
            "`{}` is not a folder of threads",
            folder.display()
        )))),
    }
}

/// Makes the folder of threads.
pub(super) fn make(folder: &Path) -> Result<(), DbError> {
    let (parent, name) = split(folder)?;
    lillux::file::create_dirs(parent, true)?;
    lillux::file::create_folders_beneath(parent, name, true)?;
    Ok(())
}

/// Opens the folder of threads if it is there; a link is refused.
pub(super) fn open(folder: &Path) -> Result<Option<lillux::dir::Dir>, DbError> {
    let (parent, name) = split(folder)?;
    Ok(if parent.is_dir() { lillux::file::folder_beneath(parent, name)? } else { None })
}

/// Whether there is no folder of threads; a link is refused.
pub(super) fn is_absent(folder: &Path) -> Result<bool, DbError> {
    Ok(open(folder)?.is_none())
}
