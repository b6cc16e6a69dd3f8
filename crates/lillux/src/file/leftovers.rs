//! Temporary files of processes that were killed between writing and renaming.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How old a temporary file is, at least, before it counts as left over: no write takes that long.
pub const MIN_LEFTOVER_SECONDS: u64 = 10 * 60;

/// The temporary files directly in `folder` that belong to this user and were last written [`MIN_LEFTOVER_SECONDS`] before
/// `now_seconds`, or earlier. A folder that is not there has none.
///
/// # Errors
/// When the folder cannot be read.
pub fn leftovers(folder: &Path, now_seconds: u64) -> io::Result<Vec<PathBuf>> {
    let entries = match fs_err::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let before = i64::try_from(now_seconds.saturating_sub(MIN_LEFTOVER_SECONDS)).unwrap_or(i64::MAX);
    let own = rustix::process::geteuid().as_raw();
    let is_leftover = |path: &Path| {
        path.symlink_metadata()
            .is_ok_and(|found| found.is_file() && found.uid() == own && found.mtime() <= before)
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_temporary =
            name.to_str().is_some_and(|name| name.starts_with(".rye-") && name.ends_with(".tmp"));
        if is_temporary && is_leftover(&entry.path()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Removes what [`leftovers`] finds. Gives how many.
///
/// # Errors
/// When the folder cannot be read, or a file cannot be removed.
pub fn remove_leftovers(folder: &Path, now_seconds: u64) -> io::Result<usize> {
    let found = leftovers(folder, now_seconds)?;
    for path in &found {
        super::remove(path)?;
    }
    Ok(found.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_temporary_files_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in [".rye-abc.tmp", ".rye-abc", "rye-abc.tmp", "item.py"] {
            super::super::append(&at(name), b"x").expect("written");
        }
        fs_err::create_dir(at(".rye-dir.tmp")).expect("made");
        std::os::unix::fs::symlink(at("item.py"), at(".rye-link.tmp")).expect("linked");
        let now = u64::try_from(at("item.py").metadata().expect("a file").mtime()).expect("a time");
        assert_eq!(leftovers(folder.path(), now).expect("read"), Vec::<PathBuf>::new());
        let later = now + MIN_LEFTOVER_SECONDS;
        assert_eq!(leftovers(folder.path(), later).expect("read"), [at(".rye-abc.tmp")]);
        assert_eq!(remove_leftovers(folder.path(), later).expect("removed"), 1);
        assert_eq!(fs_err::read_dir(folder.path()).expect("read").count(), 5);
        assert_eq!(remove_leftovers(&at("missing"), later).expect("none"), 0);
    }
}
