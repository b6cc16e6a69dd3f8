//! Where a native tool may go: paths from outside become files beneath the project, judged by the call's access.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use lillux::RealPaths;
use lillux::beneath::{BeneathError, Folder, Kind, OpenFile, Status};
use rye_exec::NativeError;
use rye_exec::native::{Access, NativeCall};

use crate::show::shown;

/// The project's folder, held open, and what may be touched in it.
#[derive(Debug)]
pub(crate) struct Project<'a> {
    pub(crate) root: Folder,
    given_root: &'a Path,
    hidden: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

/// A file that may be written: the folder it is in, and its name.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) folder: Folder,
    pub(crate) name: OsString,
}

/// Whether missing folders are made on the way to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Made,
    Refused,
}

impl<'a> Project<'a> {
    pub(crate) fn open(call: &NativeCall<'a>) -> Result<Self, NativeError> {
        let root = Folder::open(call.project).map_err(|error| failure(&error))?;
        let Access { write, hidden, read_only, network: _, allowed_hosts: _ } = call.access;
        let mut known = RealPaths::default();
        let mut both = |paths: &[PathBuf]| -> Vec<PathBuf> {
            let mut all = Vec::with_capacity(paths.len());
            for path in paths {
                let path = root.path().join(path);
                let real = known.real(&path);
                if real != path {
                    all.push(real);
                }
                all.push(path);
            }
            all
        };
        Ok(Self {
            hidden: both(hidden),
            read_only: both(read_only),
            write: write.iter().map(|path| known.real(&root.path().join(path))).collect(),
            given_root: call.project,
            root,
        })
    }

    /// A path from outside, as a path below the project: no `..`, no root, possibly empty.
    pub(crate) fn relative(&self, given: &str) -> Result<PathBuf, NativeError> {
        if given.contains('\0') {
            return Err(NativeError::failed("the path holds a NUL character"));
        }
        if given == "~" || given.starts_with("~/") {
            return Err(NativeError::denied(format!(
                "`{}` is a home folder's path: give a path inside the project",
                shown(Path::new(given))
            )));
        }
        let path = Path::new(given);
        let outside = || {
            NativeError::denied(format!(
                "`{}` is outside the project: give a path below `{}`",
                shown(path),
                shown(self.given_root)
            ))
        };
        let below = if path.is_absolute() {
            path.strip_prefix(self.given_root)
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

    fn judge_read(&self, relative: &Path, real: &Path) -> Result<(), NativeError> {
        if self.is_hidden(real) || self.is_hidden(&self.root.path().join(relative)) {
            return Err(NativeError::denied(format!(
                "`{}` may not be read: it is hidden from tools",
                shown(relative)
            )));
        }
        Ok(())
    }

    fn judge_write(&self, relative: &Path, real: &Path) -> Result<(), NativeError> {
        self.judge_read(relative, real)?;
        let as_given = self.root.path().join(relative);
        if self.read_only.iter().any(|fixed| real.starts_with(fixed) || as_given.starts_with(fixed)) {
            return Err(NativeError::denied(format!("`{}` may be read but not changed", shown(relative))));
        }
        if !self.write.iter().any(|folder| real.starts_with(folder)) {
            return Err(NativeError::denied(format!(
                "`{}` may not be written: it is outside the folders this tool may change",
                shown(relative)
            )));
        }
        Ok(())
    }

    /// Opens a file for reading.
    pub(crate) fn file(&self, relative: &Path) -> Result<OpenFile, NativeError> {
        // Judged before and after: what is hidden is not even said to be absent.
        self.judge_read(relative, &self.root.path().join(relative))?;
        let file = self.root.file(relative).map_err(|error| self.failed_read(&error, relative))?;
        self.judge_read(relative, &file.path)?;
        Ok(file)
    }

    /// Opens a folder for listing.
    pub(crate) fn folder(&self, relative: &Path) -> Result<Folder, NativeError> {
        self.judge_read(relative, &self.root.path().join(relative))?;
        let folder = self.root.folder(relative).map_err(|error| self.failed_read(&error, relative))?;
        self.judge_read(relative, folder.path())?;
        Ok(folder)
    }

    /// Finds the place of a file that is to be written, and judges it before anything is made.
    pub(crate) fn target(&self, relative: &Path, missing: Missing) -> Result<Target, NativeError> {
        let Some(name) = relative.file_name() else {
            return Err(NativeError::failed("the path names the project's folder: give the path of a file"));
        };
        self.judge_write(relative, &self.root.path().join(relative))?;
        let parent = relative.parent().unwrap_or(Path::new(""));
        let (mut folder, rest) =
            self.root.nearest_folder(parent).map_err(|error| self.failure(&error, relative))?;
        let mut future = folder.path().to_owned();
        future.extend(&rest);
        self.judge_write(relative, &future.join(name))?;
        if !rest.is_empty() && missing == Missing::Refused {
            return Err(NativeError::failed(format!(
                "the folder of `{}` does not exist: create it, or allow `create_folders`",
                shown(relative)
            )));
        }
        for missing in &rest {
            folder = folder.make_folder(missing).map_err(|error| self.failure(&error, relative))?;
        }
        let status = folder.status(name).map_err(|error| self.failure(&error, relative))?;
        judge_target(relative, status.as_ref())?;
        Ok(Target { folder, name: name.to_owned() })
    }

    /// A failure that does not tell what is or is not in a hidden place that a link leads to.
    fn failed_read(&self, error: &BeneathError, relative: &Path) -> NativeError {
        let place = match error {
            BeneathError::NotAFile { path } => Some(path.clone()),
            BeneathError::Io { .. } => {
                self.root.nearest_folder(relative).ok().map(|(folder, _)| folder.path().to_owned())
            }
            BeneathError::Escapes { .. } | BeneathError::Moved { .. } => None,
        };
        match place.map(|place| self.judge_read(relative, &place)) {
            Some(Err(denied)) => denied,
            Some(Ok(())) | None => self.failure(error, relative),
        }
    }

    /// What happened, without telling where links outside point.
    pub(crate) fn failure(&self, error: &BeneathError, relative: &Path) -> NativeError {
        match error {
            BeneathError::Escapes { .. } => NativeError::denied(format!(
                "`{}` leaves the project through a link: only what lies inside it may be used",
                shown(relative)
            )),
            BeneathError::NotAFile { .. } => {
                NativeError::failed(format!("`{}` is not a regular file", shown(relative)))
            }
            BeneathError::Moved { .. } => NativeError::failed(format!(
                "`{}` was moved or removed while it was opened: try again",
                shown(relative)
            )),
            BeneathError::Io { action, source, .. } => {
                NativeError::failed(format!("failed to {action} `{}`: {}", shown(relative), reason(source)))
            }
        }
    }
}

fn judge_target(relative: &Path, status: Option<&Status>) -> Result<(), NativeError> {
    let Some(status) = status else { return Ok(()) };
    let refused = |what: &str| Err(NativeError::failed(format!("`{}` is {what}", shown(relative))));
    match status.kind {
        Kind::File if status.mode & 0o222 == 0 => {
            refused("read-only for everybody: make it writable first if it may be changed")
        }
        Kind::File => Ok(()),
        Kind::Folder => refused("a folder: give the path of a file"),
        Kind::Link => Err(NativeError::denied(format!(
            "`{}` is a link and is not written through: give the path of the file itself",
            shown(relative)
        ))),
        Kind::Other => refused("not a regular file"),
    }
}

/// The system's words for common failures are short; its codes help nobody.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::NotADirectory => "a part of the path is not a folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

pub(crate) fn failure(error: &BeneathError) -> NativeError {
    NativeError::failed(error.to_string())
}
