//! A folder held open, and the files and folders beneath it.
//!
//! Paths are resolved by the kernel below the held folder (`openat2` with `RESOLVE_BENEATH`), and what was opened is
//! what is used: swapping a folder for a link between two steps changes nothing. Who may touch what is decided by the
//! caller, who is given the real path of everything that was opened.

mod access;
mod ignore_rules;
pub mod owner_rights;
pub mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode as Bits, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::file::FileMode;

pub use ignore_rules::{IGNORE_FILES, IgnoreRules};

/// Why something beneath a folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// A link on the way leaves the folder, or goes in circles.
    #[error("`{}` leaves `{}` through a link", path.display(), root.display())]
    Escapes {
        /// The path as given.
        path: PathBuf,
        /// The folder it has to stay in.
        root: PathBuf,
    },
    /// It is a folder, a link, a device or something else.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// It was moved or removed while it was being opened.
    #[error("`{}` was moved or removed while it was opened", path.display())]
    Moved {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("failed to {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DirError {
    fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// Whether there is simply nothing of that name.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            Self::Escapes { .. } | Self::NotAFile { .. } | Self::Moved { .. } => false,
        }
    }
}

/// What a name in a folder stands for. Links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirEntryKind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe, a socket.
    Other,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: OsString,
    /// What it stands for.
    pub kind: DirEntryKind,
}

/// What the system knows of a name. Links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryStatus {
    /// What it stands for.
    pub kind: DirEntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// When it was last changed: seconds and nanoseconds since 1970.
    pub modified: (i64, u64),
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: File,
    /// Where it really is.
    pub path: PathBuf,
    /// What the system knows of it.
    pub metadata: Metadata,
}

/// How much a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Until the bytes are on the disk.
    Synced,
    /// Until other processes see them. After a crash of the machine there may be the old file or the new one.
    Renamed,
}

/// A folder that is held open.
#[derive(Debug)]
pub struct Dir {
    descriptor: OwnedFd,
    path: PathBuf,
}

const DIR_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
/// The kernel asks to try again when a folder was renamed while it resolved `..`.
const MAX_ATTEMPTS: usize = 128;

impl Dir {
    /// Opens the folder at `path`, following links.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let descriptor = rustix::fs::openat(CWD, path, DIR_FLAGS, Bits::empty())
            .map_err(|errno| DirError::io("open the folder", path, errno))?;
        Self::from_fd(descriptor)
    }

    fn from_fd(descriptor: OwnedFd) -> Result<Self, DirError> {
        let path = path_of_fd(&descriptor)?;
        Ok(Self { descriptor, path })
    }

    /// Where the folder really was when it was opened: absolute, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the folder `relative`. Links are followed as long as they stay beneath this folder.
    ///
    /// # Errors
    /// When it is missing or leaves this folder.
    pub fn open_dir(&self, relative: &Path) -> Result<Self, DirError> {
        Self::from_fd(self.resolve(relative, DIR_FLAGS, "open the folder")?)
    }

    /// Opens the longest part of `relative` that exists, and returns the names that are missing below it.
    ///
    /// # Errors
    /// When a part exists but is not a folder, leaves this folder, or a missing name is not a plain one.
    pub fn open_nearest_dir(&self, relative: &Path) -> Result<(Self, Vec<OsString>), DirError> {
        let mut names: Vec<OsString> = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => names.push(name.to_owned()),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(self.escape(relative));
                }
            }
        }
        let mut present = names.len();
        loop {
            let part: PathBuf = names[..present].iter().collect();
            match self.open_dir(&part) {
                Ok(folder) => return Ok((folder, names.split_off(present))),
                Err(DirError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && present > 0 =>
                {
                    present -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the regular file `relative` for reading. Links are followed as long as they stay beneath this folder.
    ///
    /// # Errors
    /// When it is missing, not a regular file, or leaves this folder.
    pub fn open_file(&self, relative: &Path) -> Result<OpenFile, DirError> {
        let descriptor = self.resolve(relative, READ_FLAGS, "open")?;
        let path = path_of_fd(&descriptor)?;
        open_file(descriptor, path)
    }

    /// Opens the folder of that name in this one. A link is refused.
    ///
    /// # Errors
    /// When it is missing or not a folder.
    pub fn open_child_dir(&self, name: &OsStr) -> Result<Self, DirError> {
        let path = self.join(name)?;
        let descriptor =
            rustix::fs::openat(&self.descriptor, name, DIR_FLAGS | OFlags::NOFOLLOW, Bits::empty())
                .map_err(|errno| DirError::io("open the folder", &path, errno))?;
        Ok(Self { descriptor, path })
    }

    /// Opens the regular file of that name in this folder for reading. A link is refused.
    ///
    /// # Errors
    /// When it is missing or not a regular file.
    pub fn open_child_file(&self, name: &OsStr) -> Result<OpenFile, DirError> {
        let path = self.join(name)?;
        match rustix::fs::openat(&self.descriptor, name, READ_FLAGS | OFlags::NOFOLLOW, Bits::empty()) {
            Ok(descriptor) => open_file(descriptor, path),
            Err(Errno::LOOP) => Err(DirError::NotAFile { path }),
            Err(errno) => Err(DirError::io("open", &path, errno)),
        }
    }

    /// Makes the folder of that name unless it is there, and opens it. A link is refused.
    ///
    /// # Errors
    /// When it cannot be made, or the name is taken by something else.
    pub fn create_dir(&self, name: &OsStr) -> Result<Self, DirError> {
        self.create_dir_with_mode(name, 0o777)
    }

    /// As [`Dir::create_dir`]; whatever the umask, only the owner of a new one changes what is in it.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub fn create_own_dir(&self, name: &OsStr) -> Result<Self, DirError> {
        self.create_dir_with_mode(name, crate::file::FOLDER_MODE)
    }

    /// As [`Dir::create_dir`]; a new one is private.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub fn create_private_dir(&self, name: &OsStr) -> Result<Self, DirError> {
        self.create_dir_with_mode(name, 0o700)
    }

    fn create_dir_with_mode(&self, name: &OsStr, mode: u32) -> Result<Self, DirError> {
        let path = self.join(name)?;
        match rustix::fs::mkdirat(&self.descriptor, name, Bits::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.open_child_dir(name),
            Err(errno) => Err(DirError::io("make the folder", &path, errno)),
        }
    }

    /// What stands under that name, if anything.
    ///
    /// # Errors
    /// When the system refuses to say.
    pub fn status(&self, name: &OsStr) -> Result<Option<EntryStatus>, DirError> {
        let path = self.join(name)?;
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(EntryStatus {
                kind: dir_entry_kind(FileType::from_raw_mode(stat.st_mode)),
                size: u64::try_from(stat.st_size).unwrap_or(0),
                mode: stat.st_mode & 0o7777,
                modified: (stat.st_mtime, stat.st_mtime_nsec),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(DirError::io("look at", &path, errno)),
        }
    }

    /// The names in this folder, sorted, at most `limit` of them; and whether these are all.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn entries(&self, limit: usize) -> Result<(Vec<DirEntry>, bool), DirError> {
        let failed = |errno: Errno| DirError::io("list", &self.path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.descriptor, ".", flags, Bits::empty()).map_err(failed)?;
        let mut entries = Vec::new();
        let mut is_complete = true;
        for entry in rustix::fs::Dir::new(readable).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if entries.len() >= limit {
                is_complete = false;
                break;
            }
            let name = OsString::from_vec(name.to_vec());
            let kind = match entry.file_type() {
                FileType::Unknown => self.status(&name)?.map_or(DirEntryKind::Other, |status| status.kind),
                known => dir_entry_kind(known),
            };
            entries.push(DirEntry { name, kind });
        }
        entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok((entries, is_complete))
    }

    /// Where the link of that name points, as it is written.
    ///
    /// # Errors
    /// When it is not a link.
    pub fn read_link(&self, name: &OsStr) -> Result<PathBuf, DirError> {
        let path = self.join(name)?;
        let target = rustix::fs::readlinkat(&self.descriptor, name, Vec::new())
            .map_err(|errno| DirError::io("read the link", &path, errno))?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Replaces or makes the file of that name in this folder, whole or not at all. What stands there is replaced
    /// itself: a link is not followed.
    ///
    /// [`FileMode::Preserve`] gives a new file what the process's umask leaves of 0666.
    ///
    /// # Errors
    /// When any step fails; what was there is then untouched and no temporary file is left.
    pub fn write_atomic(
        &self,
        name: &OsStr,
        bytes: &[u8],
        mode: FileMode,
        durability: Durability,
    ) -> Result<(), DirError> {
        let path = self.join(name)?;
        let mode_bits = match mode {
            FileMode::Preserve => {
                self.status(name)?.filter(|status| status.kind == DirEntryKind::File).map(|s| s.mode & 0o777)
            }
            FileMode::Private => Some(0o600),
            FileMode::ReadOnly => Some(0o444),
        };
        let temporary = temporary_name().map_err(|error| DirError::io("write", &path, error))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let first_mode = Bits::from_raw_mode(if mode_bits.is_some() { 0o600 } else { 0o666 });
        let descriptor = rustix::fs::openat(&self.descriptor, &temporary, flags, first_mode)
            .map_err(|errno| DirError::io("write", &path, errno))?;
        let written =
            self.write_contents(File::from(descriptor), bytes, mode_bits, durability).and_then(|()| {
                rustix::fs::renameat(&self.descriptor, &temporary, &self.descriptor, name)?;
                Ok(())
            });
        if let Err(error) = written {
            // The first failure is the one worth telling; a leftover is only untidy.
            let _ = rustix::fs::unlinkat(&self.descriptor, &temporary, AtFlags::empty());
            return Err(DirError::io("write", &path, error));
        }
        match durability {
            Durability::Synced => self.sync().map_err(|error| DirError::io("sync", &path, error)),
            Durability::Renamed => Ok(()),
        }
    }

    fn write_contents(
        &self,
        mut file: File,
        bytes: &[u8],
        mode: Option<u32>,
        durability: Durability,
    ) -> io::Result<()> {
        file.write_all(bytes)?;
        if let Some(mode) = mode {
            rustix::fs::fchmod(&file, Bits::from_raw_mode(mode))?;
        }
        match durability {
            Durability::Synced => file.sync_all(),
            Durability::Renamed => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.descriptor, ".", flags, Bits::empty())?;
        match rustix::fs::fsync(readable) {
            // Some file systems cannot sync a folder; the rename itself has happened.
            Err(Errno::INVAL) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the file of that name, which must not be there yet. Other processes may see a part of it.
    ///
    /// # Errors
    /// When the name is taken or the system refuses; no part of the file is left then.
    pub fn write_new(&self, name: &OsStr, bytes: &[u8]) -> Result<(), DirError> {
        let path = self.join(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(&self.descriptor, name, flags, Bits::from_raw_mode(0o666))
            .map_err(|errno| DirError::io("write", &path, errno))?;
        self.write_contents(File::from(descriptor), bytes, None, Durability::Renamed).map_err(|error| {
            // The first failure is the one worth telling; a leftover is only untidy.
            let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
            DirError::io("write", &path, error)
        })
    }

    /// Moves the file `name` to `new_name` in `target`, where nothing may be yet.
    ///
    /// # Errors
    /// When the new name is taken, the folders are on two file systems, or the system refuses.
    pub fn move_to(&self, name: &OsStr, target: &Self, new_name: &OsStr) -> Result<(), DirError> {
        self.rename(name, target, new_name, RenameFlags::NOREPLACE, "move")
    }

    /// Lets the files `name` here and `other_name` in `other` change places, in one step.
    ///
    /// # Errors
    /// When one is missing, the folders are on two file systems, or the system refuses.
    pub fn exchange(&self, name: &OsStr, other: &Self, other_name: &OsStr) -> Result<(), DirError> {
        self.rename(name, other, other_name, RenameFlags::EXCHANGE, "replace")
    }

    fn rename(
        &self,
        name: &OsStr,
        target: &Self,
        new_name: &OsStr,
        flags: RenameFlags,
        action: &'static str,
    ) -> Result<(), DirError> {
        let path = self.join(name)?;
        target.join(new_name)?;
        rustix::fs::renameat_with(&self.descriptor, name, &target.descriptor, new_name, flags)
            .map_err(|errno| DirError::io(action, &path, errno))
    }

    /// Removes the folder of that name if it is there and empty; says whether it is gone.
    ///
    /// # Errors
    /// When the system refuses for another reason than what is in it.
    pub fn remove_empty_dir(&self, name: &OsStr) -> Result<bool, DirError> {
        let path = self.join(name)?;
        match rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(DirError::io("remove the folder", &path, errno)),
        }
    }

    /// Waits until everything written to this folder's file system is on the disk: one wait for many files.
    ///
    /// # Errors
    /// When the system could not write it.
    pub fn sync_file_system(&self) -> Result<(), DirError> {
        let failed = |errno: Errno| DirError::io("sync", &self.path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.descriptor, ".", flags, Bits::empty()).map_err(failed)?;
        rustix::fs::syncfs(readable).map_err(failed)
    }

    /// Marks the file of that name as changed just now.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn touch(&self, name: &OsStr) -> Result<(), DirError> {
        use rustix::fs::{Timespec, Timestamps, UTIME_NOW, utimensat};
        let path = self.join(name)?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(&self.descriptor, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| DirError::io("touch", &path, errno))
    }

    /// Removes the file or link of that name in this folder. One that is not there is no error.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(&self, name: &OsStr) -> Result<(), DirError> {
        let path = self.join(name)?;
        match rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(DirError::io("remove", &path, errno)),
        }
    }

    /// The path of a name in this folder; refuses what is not one plain name.
    fn join(&self, name: &OsStr) -> Result<PathBuf, DirError> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || matches!(bytes, b"." | b"..") || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(self.escape(Path::new(name)));
        }
        Ok(self.path.join(name))
    }

    fn escape(&self, relative: &Path) -> DirError {
        DirError::Escapes { path: self.path.join(relative), root: self.path.clone() }
    }

    fn resolve(&self, relative: &Path, flags: OFlags, action: &'static str) -> Result<OwnedFd, DirError> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let limits = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MAX_ATTEMPTS {
            match rustix::fs::openat2(&self.descriptor, relative, flags, Bits::empty(), limits) {
                Ok(descriptor) => return Ok(descriptor),
                Err(Errno::AGAIN) => {}
                Err(Errno::XDEV | Errno::LOOP) => return Err(self.escape(relative)),
                // Kernels before 5.6 and some sandboxes have no openat2.
                Err(Errno::NOSYS | Errno::PERM) => return self.resolve_by_name(relative, flags, action),
                Err(errno) => return Err(DirError::io(action, &self.path.join(relative), errno)),
            }
        }
        Err(DirError::Moved { path: self.path.join(relative) })
    }

    /// Opens one name after the other, and follows no link at all.
    fn resolve_by_name(
        &self,
        relative: &Path,
        flags: OFlags,
        action: &'static str,
    ) -> Result<OwnedFd, DirError> {
        let failed = |errno: Errno| match errno {
            Errno::LOOP => self.escape(relative),
            other => DirError::io(action, &self.path.join(relative), other),
        };
        let mut names = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(self.escape(relative));
                }
            }
        }
        let mut dir = rustix::fs::openat(&self.descriptor, ".", DIR_FLAGS, Bits::empty()).map_err(failed)?;
        let Some((last, folders)) = names.split_last() else {
            return rustix::fs::openat(&dir, ".", flags, Bits::empty()).map_err(failed);
        };
        for name in folders {
            dir = rustix::fs::openat(&dir, *name, DIR_FLAGS | OFlags::NOFOLLOW, Bits::empty())
                .map_err(failed)?;
        }
        rustix::fs::openat(&dir, *last, flags | OFlags::NOFOLLOW, Bits::empty()).map_err(failed)
    }
}

fn dir_entry_kind(file_type: FileType) -> DirEntryKind {
    match file_type {
        FileType::RegularFile => DirEntryKind::File,
        FileType::Directory => DirEntryKind::Dir,
        FileType::Symlink => DirEntryKind::Symlink,
        _ => DirEntryKind::Other,
    }
}

fn open_file(descriptor: OwnedFd, path: PathBuf) -> Result<OpenFile, DirError> {
    let file = File::from(descriptor);
    let metadata = file.metadata().map_err(|error| DirError::io("look at", &path, error))?;
    if metadata.is_file() { Ok(OpenFile { file, path, metadata }) } else { Err(DirError::NotAFile { path }) }
}

/// Where an open file or folder really is.
fn path_of_fd(descriptor: &OwnedFd) -> Result<PathBuf, DirError> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let path = rustix::fs::readlink(&link, Vec::new())
        .map_err(|errno| DirError::io("find the real path of", &link, errno))?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    // The kernel marks what was unlinked in the text itself: such a text is not where the bytes came from.
    if path.as_os_str().as_bytes().ends_with(b" (deleted)") {
        let failed = |errno: Errno| DirError::io("look at", &path, errno);
        let stat = rustix::fs::fstat(descriptor).map_err(failed)?;
        let is_there = fs_err::symlink_metadata(&path)
            .is_ok_and(|named| named.dev() == stat.st_dev && named.ino() == stat.st_ino);
        if !is_there {
            return Err(DirError::Moved { path });
        }
    }
    Ok(path)
}

fn temporary_name() -> io::Result<String> {
    Ok(format!(".rye-{}.tmp", crate::file::unique_name()?))
}

#[cfg(test)]
mod tests;
