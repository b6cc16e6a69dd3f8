//! The steps of applying a patch, each with what undoes it. No link is followed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use lillux::dir::DirEntryKind;
use lillux::file;
use rye_engine::Result;

use super::content::FileBytes;

/// The most files below a folder that gives way to a file.
const MAX_FILES_BELOW: usize = 20_000;

/// What undoes a step.
enum UndoStep {
    /// Writes the file as it was.
    Restore { path: String, file: FileBytes, mode: Option<u32> },
    /// Removes the file that was made.
    RemoveFile(String),
    /// Makes the empty folder that was removed.
    MakeFolder(String),
    /// Removes the folder that was made.
    RemoveFolder(String),
}

/// Steps in a project, so far.
pub(super) struct ApplySteps<'a> {
    project: &'a Path,
    done: Vec<UndoStep>,
}

impl<'a> ApplySteps<'a> {
    pub(super) fn new(project: &'a Path) -> Self {
        Self { project, done: Vec::new() }
    }

    /// Removes files, and then writes others. Each file that is removed is given as it is.
    ///
    /// # Errors
    /// When the system refuses one; those before it are done.
    pub(super) fn run(
        &mut self,
        removals: &BTreeMap<&str, FileBytes>,
        writes: &BTreeMap<&str, FileBytes>,
    ) -> Result<()> {
        for (path, file) in removals {
            self.remove(path, file)?;
        }
        for (path, file) in writes {
            self.clear_folder(path)?;
            self.write(path, file)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &str, before: &FileBytes) -> Result<()> {
        let mode = file_mode(self.project, path)?;
        file::remove_beneath(self.project, Path::new(path))?;
        self.done.push(UndoStep::Restore { path: path.to_owned(), file: before.clone(), mode });
        Ok(())
    }

    fn write(&mut self, path: &str, after: &FileBytes) -> Result<()> {
        for above in path.match_indices('/').map(|(at, _)| &path[..at]) {
            if file::folder_beneath(self.project, Path::new(above))?.is_none() {
                // One that is not made after all need not be removed.
                self.done.push(UndoStep::RemoveFolder(above.to_owned()));
            }
        }
        let before = FileBytes::read(self.project, path)?;
        let mode = file_mode(self.project, path)?;
        // Even a write that fails may have been done.
        self.done.push(match before {
            Some(file) => UndoStep::Restore { path: path.to_owned(), file, mode },
            None => UndoStep::RemoveFile(path.to_owned()),
        });
        after.write(self.project, path)
    }

    /// Removes the folder of that path with the empty folders in it, if there is one.
    fn clear_folder(&mut self, path: &str) -> Result<()> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(above) = file::folder_beneath(self.project, Path::new(above))? else { return Ok(()) };
        let found = above.status(name.as_ref()).map_err(io::Error::other)?;
        if found.is_none_or(|found| found.kind != DirEntryKind::Dir) {
            return Ok(());
        }
        let folder = above.open_child_dir(name.as_ref()).map_err(io::Error::other)?;
        let (entries, _) = folder.entries(MAX_FILES_BELOW).map_err(io::Error::other)?;
        for entry in entries {
            self.clear_folder(&format!("{path}/{}", entry.name.to_string_lossy()))?;
        }
        if above.remove_empty_dir(name.as_ref()).map_err(io::Error::other)? {
            self.done.push(UndoStep::MakeFolder(path.to_owned()));
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, format!("the folder `{path}` is not empty"))
            .into())
    }

    /// Undoes all steps, the last one first. Gives the paths that could not be put back.
    pub(super) fn undo(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        while let Some(step) = self.done.pop() {
            let (path, undone) = match step {
                UndoStep::Restore { path, file, mode } => {
                    let written = file.write_with(self.project, &path, mode);
                    (path, written.is_ok())
                }
                UndoStep::RemoveFile(path) => {
                    let removed = file::remove_beneath(self.project, Path::new(&path));
                    (path, removed.is_ok())
                }
                UndoStep::MakeFolder(path) => {
                    let made = file::make_folders_beneath(self.project, Path::new(&path), false);
                    (path, made.is_ok())
                }
                UndoStep::RemoveFolder(path) => {
                    let removed = remove_empty_folder(self.project, &path);
                    (path, removed.is_ok())
                }
            };
            if !undone {
                left.push(path);
            }
        }
        left
    }
}

fn remove_empty_folder(project: &Path, path: &str) -> io::Result<()> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    match file::folder_beneath(project, Path::new(above))? {
        Some(above) => above.remove_empty_dir(name.as_ref()).map(drop).map_err(io::Error::other),
        None => Ok(()),
    }
}

/// The permission bits of a file.
fn file_mode(project: &Path, path: &str) -> io::Result<Option<u32>> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let Some(above) = file::folder_beneath(project, Path::new(above))? else { return Ok(None) };
    let found = above.status(name.as_ref()).map_err(io::Error::other)?;
    Ok(found.map(|found| found.mode & 0o777))
}

/// The files below a folder; `None` if something else is there too, or too much.
pub(super) fn files_below(project: &Path, path: &str) -> Option<Vec<String>> {
    let (mut files, mut pending) = (Vec::new(), vec![path.to_owned()]);
    while let Some(path) = pending.pop() {
        let folder = file::folder_beneath(project, Path::new(&path)).ok()??;
        let (entries, is_complete) = folder.entries(MAX_FILES_BELOW).ok()?;
        if !is_complete || files.len() + pending.len() > MAX_FILES_BELOW {
            return None;
        }
        for entry in entries {
            let inner = format!("{path}/{}", entry.name.to_str()?);
            match entry.kind {
                DirEntryKind::File => files.push(inner),
                DirEntryKind::Dir => pending.push(inner),
                DirEntryKind::Symlink | DirEntryKind::Other => return None,
            }
        }
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bytes(text: &str) -> FileBytes {
        FileBytes { bytes: text.as_bytes().to_vec(), is_executable: false }
    }

    fn state(project: &Path) -> Vec<(String, FileBytes, u32)> {
        let mut files = files_below(project, ".").expect("files");
        files.sort();
        let state = files.into_iter().map(|path| {
            let path = path.trim_start_matches("./").to_owned();
            let file = FileBytes::read(project, &path).expect("read").expect("there");
            let mode = project.join(&path).metadata().expect("there").permissions().mode();
            (path, file, mode)
        });
        state.collect()
    }

    #[test]
    fn steps_are_undone_in_full() {
        let project = tempfile::tempdir().expect("a folder");
        let root = project.path();
        for path in ["a", "d/e/f", "d/g", "kept"] {
            bytes(path).write_with(root, path, Some(0o640)).expect("written");
        }
        let before = state(root);
        let removals = [("a", bytes("a")), ("d/e/f", bytes("d/e/f")), ("d/g", bytes("d/g"))];
        // The last one cannot be written: a file is on the way.
        let writes = [("a/b/c", "1"), ("d", "2"), ("kept", "3"), ("kept/x", "4")];
        let writes = writes.map(|(path, text)| (path, bytes(text)));
        let mut steps = ApplySteps::new(root);
        steps.run(&removals.into(), &writes.into()).expect_err("refused");
        assert_ne!(state(root), before);
        assert_eq!(steps.undo(), Vec::<String>::new());
        assert_eq!(state(root), before);
        assert!(!root.join("a").is_dir() && root.join("d/e").is_dir());
    }
}
