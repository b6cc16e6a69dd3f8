//! The files of a submission: those of a project's `.ai` folder and its lockfiles, as one part of the store.

use std::path::{Component, Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use rye_space::AI_FOLDER;
use serde::{Deserialize, Serialize};

/// The most files of a submission.
const MAX_FILES: usize = 5_000;
/// The most that they may hold together.
const MAX_ARCHIVE_BYTES: u64 = 64 << 20;
/// How deep folders may lie in each other.
const MAX_DEPTH: usize = 16;
/// What of `.ai` travels: items, and what installed bundles need to be recognised.
const FOLDERS: [&str; 5] = ["directives", "tools", "knowledge", "config", "bundles"];

/// A file of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenFile {
    /// Where it lies below the project.
    pub path: String,
    /// The digest of its bytes.
    pub digest: String,
    /// How many they are.
    pub bytes: u64,
}

/// Files and their bytes, one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct FileArchive {
    pub(super) files: Vec<FrozenFile>,
    pub(super) bytes: Vec<u8>,
}

fn refused(message: String) -> Error {
    Error::new(Code::SubmissionRefused, message)
}

impl FileArchive {
    /// Adds a file.
    pub(super) fn add(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        let path = path.to_str().ok_or_else(|| {
            let shown = one_line(&path.display().to_string());
            refused(format!("the name of `{shown}` is not text")).hint("rename it")
        })?;
        let total = (self.bytes.len() as u64).saturating_add(bytes.len() as u64);
        if self.files.len() >= MAX_FILES || total > MAX_ARCHIVE_BYTES {
            let message =
                format!("the items are more than {MAX_FILES} files or {} MiB", MAX_ARCHIVE_BYTES >> 20);
            return Err(refused(message).hint("submit from a project with fewer items"));
        }
        let digest = Digest::of(bytes).to_hex();
        self.files.push(FrozenFile { path: path.to_owned(), digest, bytes: bytes.len() as u64 });
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The items of a project.
    pub(super) fn of_project(project: &Path) -> Result<Self> {
        let mut archive = Self::default();
        for folder in FOLDERS {
            archive.add_folder(project, &Path::new(AI_FOLDER).join(folder), 0)?;
        }
        Ok(archive)
    }

    /// Adds the files below a folder, in the order of their names. Links are not followed.
    fn add_folder(&mut self, project: &Path, relative: &Path, depth: usize) -> Result<()> {
        let folder = project.join(relative);
        let entries = match fs_err::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if depth > MAX_DEPTH {
            let shown = one_line(&folder.display().to_string());
            return Err(refused(format!("`{shown}` lies too deep")));
        }
        let mut entries = entries.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs_err::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            let path = relative.join(entry.file_name());
            if kind.is_dir() {
                self.add_folder(project, &path, depth + 1)?;
            } else if kind.is_file() {
                let (bytes, _) = file::read_beneath(project, &path, MAX_ARCHIVE_BYTES)
                    .map_err(|error| refused(error.to_string()))?;
                self.add(&path, &bytes)?;
            }
        }
        Ok(())
    }

    /// Writes the files below a new folder, each checked first.
    pub(super) fn unpack(&self, project: &Path) -> Result<()> {
        let mut rest = self.bytes.as_slice();
        let mut total = 0_u64;
        if self.files.len() > MAX_FILES {
            return Err(refused("it has too many files".to_owned()));
        }
        for frozen in &self.files {
            let shown = one_line(&frozen.path);
            total = total.saturating_add(frozen.bytes);
            let length = usize::try_from(frozen.bytes).unwrap_or(usize::MAX);
            let (bytes, behind) = rest
                .split_at_checked(length)
                .filter(|_| total <= MAX_ARCHIVE_BYTES)
                .ok_or_else(|| refused(format!("`{shown}` is not whole")))?;
            rest = behind;
            if Digest::of(bytes).to_hex() != frozen.digest {
                return Err(refused(format!("`{shown}` is not the file that was submitted")));
            }
            let relative = plain_path(&frozen.path)
                .ok_or_else(|| refused(format!("`{shown}` is not a path of items or lockfiles")))?;
            if let Some(parent) = relative.parent() {
                file::create_folders_beneath(project, parent, true)?;
            }
            file::write_new(&project.join(&relative), bytes, FileMode::Private)?;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(refused("it has trailing bytes that belong to no file".to_owned()))
        }
    }
}

/// A path below the project that leaves neither its folders of items nor that of lockfiles.
fn plain_path(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        })
        .collect();
    let parts = parts?;
    let is_item = matches!(parts.as_slice(), [AI_FOLDER, folder, _, ..] if FOLDERS.contains(folder));
    let is_lockfile = matches!(parts.as_slice(), ["lockfiles", _, ..]);
    ((is_item || is_lockfile) && parts.len() <= MAX_DEPTH + 4 && !text.contains('\0'))
        .then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of the test itself")]
    fn archive_unpacks_to_the_same_files() {
        let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let tools = from.path().join(".ai/tools/team");
        fs_err::create_dir_all(&tools).expect("a folder");
        fs_err::write(tools.join("a.py"), "print(1)\n").expect("a file");
        fs_err::create_dir_all(from.path().join(".ai/threads")).expect("a folder");
        fs_err::write(from.path().join(".ai/threads/registry.db"), "private").expect("a file");
        std::os::unix::fs::symlink("/etc/passwd", tools.join("link.py")).expect("a link");
        let archive = FileArchive::of_project(from.path()).expect("an archive");
        let paths: Vec<&str> = archive.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ai/tools/team/a.py"]);
        archive.unpack(to.path()).expect("unpacked");
        let read = fs_err::read_to_string(to.path().join(".ai/tools/team/a.py")).expect("a file");
        assert_eq!(read, "print(1)\n");
    }

    #[test]
    fn changed_or_misplaced_files_are_refused() {
        let mut archive = FileArchive::default();
        archive.add(Path::new(".ai/tools/a.py"), b"one").expect("added");
        let refusal = |archive: &FileArchive| {
            let folder = tempfile::tempdir().expect("a folder");
            archive.unpack(folder.path()).expect_err("refused").message
        };
        let changed = FileArchive { bytes: b"two".to_vec(), ..archive.clone() };
        assert_eq!(refusal(&changed), "`.ai/tools/a.py` is not the file that was submitted");
        let short = FileArchive { bytes: b"on".to_vec(), ..archive.clone() };
        assert_eq!(refusal(&short), "`.ai/tools/a.py` is not whole");
        let long = FileArchive { bytes: b"oneX".to_vec(), ..archive.clone() };
        assert_eq!(refusal(&long), "it has trailing bytes that belong to no file");
        for path in ["../x", "/etc/x", ".ai/threads/x", ".ai/../x", ".git/hooks/x", ".ai/tools", "lockfiles"]
        {
            let files = vec![FrozenFile { path: path.to_owned(), ..archive.files[0].clone() }];
            let moved = FileArchive { files, ..archive.clone() };
            assert_eq!(refusal(&moved), format!("`{path}` is not a path of items or lockfiles"));
        }
    }
}
