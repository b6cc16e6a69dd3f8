//! Where a native tool may go: paths from outside become files beneath the project, judged by the call's access.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lillux::canonicalize_existing;
use lillux::dir::{Dir, DirEntryKind, DirError, EntryStatus, OpenFile};
use lillux::real_paths::RealPaths;
use rye_exec::NativeError;
use rye_exec::native::{NativeCall, ToolAccess};
use rye_item::repository::{is_git_repository, is_repository_folder};

use crate::display::display_path;

/// The project's folder, held open, and what may be touched in it.
#[derive(Debug)]
pub(crate) struct ProjectAccess<'a> {
    pub(crate) root: Dir,
    project_path: &'a Path,
    access: &'a ToolAccess,
    /// What is hidden around the project, and where it leads.
    hidden: Arc<[PathBuf]>,
    /// Found when the first file is to be written.
    write_rules: OnceLock<WriteRules>,
}

/// Where files may be written, with links followed.
#[derive(Debug)]
struct WriteRules {
    /// Those that are not `protected` as well.
    read_only: Arc<[PathBuf]>,
    protected: Arc<[PathBuf]>,
    write: Vec<PathBuf>,
}

impl WriteRules {
    fn find(root: &Path, access: &ToolAccess) -> Self {
        static READ_ONLY: RealPaths = RealPaths::new();
        static PROTECTED: RealPaths = RealPaths::new();
        let protected: HashSet<&Path> = access.protected.iter().map(PathBuf::as_path).collect();
        let read_only = access.read_only.iter().filter(|path| !protected.contains(path.as_path()));
        let read_only: Vec<PathBuf> = read_only.cloned().collect();
        Self {
            read_only: READ_ONLY.around(root, &read_only),
            protected: PROTECTED.around(root, &access.protected),
            write: access.write.iter().map(|path| canonicalize_existing(&root.join(path))).collect(),
        }
    }
}

/// A file that may be written: the folder it is in, and its name.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) folder: Dir,
    pub(crate) name: OsString,
}

/// Whether missing folders are made on the way to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingParents {
    Create,
    Refuse,
}

impl<'a> ProjectAccess<'a> {
    pub(crate) fn open(call: &NativeCall<'a>) -> Result<Self, NativeError> {
        static HIDDEN: RealPaths = RealPaths::new();
        let root = Dir::open(call.project).map_err(|error| native_error(&error))?;
        let hidden = HIDDEN.around(root.path(), &call.access.hidden);
        Ok(Self {
            hidden,
            access: call.access,
            write_rules: OnceLock::new(),
            project_path: call.project,
            root,
        })
    }

    /// A path from outside, as a path below the project: no `..`, no root, possibly empty.
    pub(crate) fn to_relative(&self, input: &str) -> Result<PathBuf, NativeError> {
        if input.contains('\0') {
            return Err(NativeError::failed("the path holds a NUL character"));
        }
        if input == "~" || input.starts_with("~/") {
            return Err(NativeError::denied(format!(
                "`{}` is a home folder's path: give a path inside the project",
                display_path(Path::new(input))
            )));
        }
        let path = Path::new(input);
        let outside = || {
            NativeError::denied(format!(
                "`{}` is outside the project: give a path below `{}`",
                display_path(path),
                display_path(self.project_path)
            ))
        };
        let below = if path.is_absolute() {
            path.strip_prefix(self.project_path)
                .or_else(|_| path.strip_prefix(self.root.path()))
                .map_err(|_| outside())?
        } else {
            path
        };
        let mut plain = PathBuf::new();
        for component in below.components() {
            match component {
                Component::Normal(name) => plain.push(name),
                Component::CurDir => {}
                Component::ParentDir => {
                    if !plain.pop() {
                        return Err(outside());
                    }
                }
                Component::RootDir | Component::Prefix(_) => return Err(outside()),
            }
        }
        Ok(plain)
    }

    /// Whether the real path, or the path as it was given, is hidden.
    pub(crate) fn is_hidden(&self, path: &Path) -> bool {
        self.hidden.iter().any(|hidden| path.starts_with(hidden))
    }

    fn check_read(&self, relative: &Path, real: &Path) -> Result<(), NativeError> {
        self.refuse_hidden(relative, real, "read")
    }

    fn refuse_hidden(&self, relative: &Path, real: &Path, attempt: &str) -> Result<(), NativeError> {
        if self.is_hidden(real) || self.is_hidden(&self.root.path().join(relative)) {
            return Err(NativeError::denied(format!(
                "`{}` may not be {attempt}: it is hidden from tools",
                display_path(relative)
            )));
        }
        Ok(())
    }

    fn check_write(&self, relative: &Path, real: &Path) -> Result<(), NativeError> {
        self.refuse_hidden(relative, real, "written")?;
        let joined = self.root.path().join(relative);
        let WriteRules { read_only, protected, write } =
            self.write_rules.get_or_init(|| WriteRules::find(self.root.path(), self.access));
        let lies_in = |fixed: &[PathBuf]| {
            fixed.iter().any(|fixed| real.starts_with(fixed) || joined.starts_with(fixed))
        };
        if lies_in(protected) {
            return Err(NativeError::denied(format!(
                "`{}` may be read but not changed: it is protected; change it yourself, or take its name out of \
                 `protected` in your execution/sandbox.yaml",
                display_path(relative)
            )));
        }
        if lies_in(read_only) {
            return Err(NativeError::denied(format!(
                "`{}` may be read but not changed",
                display_path(relative)
            )));
        }
        // One that is made in a subfolder is obeyed as well, and what is in one is its program's alone to write.
        let is_repository = |name: &OsStr| is_repository_folder(&name.to_string_lossy());
        if let Some(name) = real.iter().chain(relative.iter()).find(|name| is_repository(name)) {
            let name = name.to_string_lossy();
            let program = name.trim_start_matches('.');
            return Err(NativeError::denied(format!(
                "`{}` may not be written: {program} runs what is named in a `{name}`; use {program} itself",
                display_path(relative)
            )));
        }
        if let Some(folder) = self.repository_around(real) {
            return Err(NativeError::denied(format!(
                "`{}` cannot be written: it would make `{}` a git repository, and git runs commands that a repository's \
                 settings name; use git instead",
                display_path(relative),
                display_path(&folder)
            )));
        }
        if !write.iter().any(|folder| real.starts_with(folder)) {
            return Err(NativeError::denied(format!(
                "`{}` may not be written: it is outside the folders this tool may change",
                display_path(relative)
            )));
        }
        Ok(())
    }

    /// The folder in the project, on the way to a file, that is or with this file would be what git takes for a repository.
    fn repository_around(&self, file: &Path) -> Option<PathBuf> {
        let below = file.strip_prefix(self.root.path()).ok()?;
        let mut folder = self.root.path().to_owned();
        for part in below.iter() {
            let has = |name: &str| part == name || folder.join(name).symlink_metadata().is_ok();
            if is_git_repository(has) {
                return Some(folder);
            }
            folder.push(part);
        }
        None
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, relative: &Path) -> Result<OpenFile, NativeError> {
        // Judged before and after: what is hidden is not even said to be absent.
        self.check_read(relative, &self.root.path().join(relative))?;
        let file = self.root.open_file(relative).map_err(|error| self.read_error(&error, relative))?;
        self.check_read(relative, &file.path)?;
        Ok(file)
    }

    /// Opens a folder for listing.
    pub(crate) fn open_folder(&self, relative: &Path) -> Result<Dir, NativeError> {
        self.check_read(relative, &self.root.path().join(relative))?;
        let folder = self.root.open_dir(relative).map_err(|error| self.read_error(&error, relative))?;
        self.check_read(relative, folder.path())?;
        Ok(folder)
    }

    /// Finds the place of a file that is to be written, and judges it before anything is made.
    pub(crate) fn open_target(
        &self,
        relative: &Path,
        missing: MissingParents,
    ) -> Result<WriteTarget, NativeError> {
        let Some(name) = relative.file_name() else {
            return Err(NativeError::failed("the path names the project's folder: give the path of a file"));
        };
        self.check_write(relative, &self.root.path().join(relative))?;
        let parent = relative.parent().unwrap_or(Path::new(""));
        let (mut folder, rest) =
            self.root.open_nearest_dir(parent).map_err(|error| self.to_native_error(&error, relative))?;
        let mut future = folder.path().to_owned();
        future.extend(&rest);
        self.check_write(relative, &future.join(name))?;
        if !rest.is_empty() && missing == MissingParents::Refuse {
            return Err(NativeError::failed(format!(
                "the folder of `{}` does not exist: create it, or allow `create_folders`",
                display_path(relative)
            )));
        }
        for missing in &rest {
            folder = folder.create_dir(missing).map_err(|error| self.to_native_error(&error, relative))?;
        }
        let status = folder.status(name).map_err(|error| self.to_native_error(&error, relative))?;
        check_target(relative, status.as_ref())?;
        Ok(WriteTarget { folder, name: name.to_owned() })
    }

    /// A failure that does not tell what is or is not in a hidden place that a link leads to.
    fn read_error(&self, error: &DirError, relative: &Path) -> NativeError {
        let location = match error {
            DirError::NotAFile { path } => Some(path.clone()),
            DirError::Io { .. } => {
                self.root.open_nearest_dir(relative).ok().map(|(folder, _)| folder.path().to_owned())
            }
            DirError::Escapes { .. } | DirError::Moved { .. } => None,
        };
        match location.map(|location| self.check_read(relative, &location)) {
            Some(Err(denied)) => denied,
            Some(Ok(())) | None => self.to_native_error(error, relative),
        }
    }

    /// What happened, without telling where links outside point.
    pub(crate) fn to_native_error(&self, error: &DirError, relative: &Path) -> NativeError {
        match error {
            DirError::Escapes { .. } => NativeError::denied(format!(
                "`{}` leaves the project through a link: only paths inside it may be used",
                display_path(relative)
            )),
            DirError::NotAFile { .. } => {
                NativeError::failed(format!("`{}` is not a regular file", display_path(relative)))
            }
            DirError::Moved { .. } => NativeError::failed(format!(
                "`{}` was moved or removed while it was opened: try again",
                display_path(relative)
            )),
            DirError::Io { action, source, .. } => NativeError::failed(format!(
                "failed to {action} `{}`: {}",
                display_path(relative),
                io_reason(source)
            )),
        }
    }
}

fn check_target(relative: &Path, status: Option<&EntryStatus>) -> Result<(), NativeError> {
    let Some(status) = status else { return Ok(()) };
    let refuse = |what: &str| Err(NativeError::failed(format!("`{}` is {what}", display_path(relative))));
    match status.kind {
        DirEntryKind::File if status.mode & 0o222 == 0 => {
            refuse("read-only for everybody: make it writable first if it may be changed")
        }
        DirEntryKind::File => Ok(()),
        DirEntryKind::Dir => refuse("a folder: give the path of a file"),
        DirEntryKind::Symlink => Err(NativeError::denied(format!(
            "`{}` is a link and is not written through: give the path of the file itself",
            display_path(relative)
        ))),
        DirEntryKind::Other => refuse("not a regular file"),
    }
}

/// The system's words for common failures are short; its codes do not help.
fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "file or folder not found".to_owned(),
        std::io::ErrorKind::NotADirectory => "a part of the path is not a folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

pub(crate) fn native_error(error: &DirError) -> NativeError {
    NativeError::failed(error.to_string())
}
