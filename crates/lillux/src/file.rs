//! The single entry point for writing files, and for reading them with a bound.
//!
//! A write is a temporary file beside the target, fsync, rename, fsync of the folder: a reader sees the old file or
//! the new one, never a part.

mod folders;
mod leftovers;
mod lock;
mod temp_dir;

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt;

pub use folders::{
    LinkedFolder, create_folders_beneath, folder_beneath, make_folders_beneath, remove_beneath,
};
pub use leftovers::{MIN_LEFTOVER_SECONDS, leftovers, remove_leftovers};
pub use lock::Lock;
pub use temp_dir::{LockedTempDir, TempDirPool};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is larger than the bound.
    #[error("`{}` is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        limit: u64,
    },
    /// It is a folder, a device or something else.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A link on the way leaves the folder it has to stay in.
    #[error("`{}` leaves `{}` through a link", path.display(), root.display())]
    Escapes {
        /// The path as given.
        path: PathBuf,
        /// The folder it has to stay in.
        root: PathBuf,
    },
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ReadError {
    /// Whether there is simply no such file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Io(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
            Self::TooLarge { .. } | Self::NotAFile { .. } | Self::Escapes { .. } => false,
        }
    }
}

/// The mode of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// What the file had, or 0644 for a new one.
    Preserve,
    /// 0600, for secrets.
    Private,
    /// 0444, for materialised copies.
    ReadOnly,
}

/// Reads a file or a pipe to its end, at most `limit` bytes of it.
///
/// # Errors
/// When it cannot be opened or read, or has more.
pub fn read_stream(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs_err::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    let is_longer = u64::try_from(bytes.len()).is_ok_and(|length| length > limit);
    if is_longer { Err(io::Error::from(io::ErrorKind::FileTooLarge)) } else { Ok(bytes) }
}

/// Opens a regular file for reading. Never waits on a pipe or a device.
///
/// # Errors
/// When it is missing or not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let reason = format!("`{}` is not a regular file", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    Ok(fs_err::OpenOptions::new().read(true).custom_flags(flags).open(path)?.into_parts().0)
}

/// Reads a regular file of at most `limit` bytes, once. Never waits on a pipe or a device.
///
/// # Errors
/// When it is missing, too large, or not a regular file.
pub fn read_bounded(path: &Path, limit: u64) -> Result<(Vec<u8>, Metadata), ReadError> {
    read_open(open_without_waiting(path)?, path, limit)
}

fn read_open(file: File, path: &Path, limit: u64) -> Result<(Vec<u8>, Metadata), ReadError> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    if metadata.len() > limit {
        return Err(ReadError::TooLarge { path: path.to_owned(), limit });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // The file may grow while it is read: the bound holds for what arrives, not for what was promised.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(ReadError::TooLarge { path: path.to_owned(), limit });
    }
    Ok((bytes, metadata))
}

/// Reads `relative` below the folder `root` as [`read_bounded`] does, refusing to follow a link that leaves `root`.
///
/// # Errors
/// [`ReadError::Escapes`] when a link leaves the folder; otherwise as [`read_bounded`].
pub fn read_beneath(root: &Path, relative: &Path, limit: u64) -> Result<(Vec<u8>, Metadata), ReadError> {
    read_resolved(root, relative, limit, SymlinkPolicy::FollowBeneath)
}

/// As [`read_beneath`], but follows no link at all below `root`.
///
/// # Errors
/// [`ReadError::Escapes`] when a part of `relative` is a link; otherwise as [`read_bounded`].
pub fn read_beneath_no_symlinks(
    root: &Path,
    relative: &Path,
    limit: u64,
) -> Result<(Vec<u8>, Metadata), ReadError> {
    read_resolved(root, relative, limit, SymlinkPolicy::Refuse)
}

/// Which links are followed below a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SymlinkPolicy {
    FollowBeneath,
    Refuse,
}

fn read_resolved(
    root: &Path,
    relative: &Path,
    limit: u64,
    links: SymlinkPolicy,
) -> Result<(Vec<u8>, Metadata), ReadError> {
    use rustix::fs::{CWD, Mode as Bits, OFlags, ResolveFlags};
    use rustix::io::Errno;

    let path = root.join(relative);
    let with_path = |errno: Errno| {
        let error = io::Error::from(errno);
        ReadError::Io(io::Error::new(error.kind(), format!("failed to open `{}`: {error}", path.display())))
    };
    let folder =
        rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())
            .map_err(with_path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = match links {
        SymlinkPolicy::FollowBeneath => ResolveFlags::BENEATH,
        SymlinkPolicy::Refuse => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    };
    match rustix::fs::openat2(&folder, relative, flags, Bits::empty(), resolve) {
        Ok(descriptor) => read_open(File::from(descriptor), &path, limit),
        Err(Errno::XDEV | Errno::LOOP) => Err(ReadError::Escapes { path, root: root.to_owned() }),
        // Kernels before 5.6 and some sandboxes have no openat2: resolve, compare, then open.
        Err(Errno::NOSYS | Errno::PERM) => {
            let (real_root, real_path) = (fs_err::canonicalize(root)?, fs_err::canonicalize(&path)?);
            let is_allowed = match links {
                SymlinkPolicy::FollowBeneath => real_path.starts_with(&real_root),
                SymlinkPolicy::Refuse => real_path == real_root.join(relative),
            };
            if !is_allowed {
                return Err(ReadError::Escapes { path, root: root.to_owned() });
            }
            read_bounded(&real_path, limit)
        }
        Err(errno) => Err(with_path(errno)),
    }
}

/// Replaces or makes `path` with `bytes`, whole or not at all.
///
/// # Errors
/// When any step fails; the old file is then untouched and no temporary file is left.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: FileMode) -> io::Result<()> {
    write_atomic_with(path, mode, |file| file.write_all(bytes))
}

/// As [`write_atomic`], with what `fill` writes.
///
/// # Errors
/// When `fill` or any step fails; the old file is then untouched and no temporary file is left.
pub fn write_atomic_with<E: From<io::Error>>(
    path: &Path,
    mode: FileMode,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let folder = parent_dir(path);
    let mut temporary = tempfile::Builder::new().prefix(".rye-").suffix(".tmp").tempfile_in(&folder)?;
    fill(temporary.as_file_mut())?;
    let permissions = match mode {
        FileMode::Preserve => match fs_err::metadata(path) {
            Ok(metadata) => metadata.permissions(),
            Err(_) => Permissions::from_mode(0o644),
        },
        FileMode::Private => Permissions::from_mode(0o600),
        FileMode::ReadOnly => Permissions::from_mode(0o444),
    };
    temporary.as_file().set_permissions(permissions)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|failure| failure.error)?;
    Ok(sync_dir(&folder)?)
}

/// Replaces or makes `path` with `bytes`, whole or not at all for readers. Nothing is synced: after a power cut it
/// may be the old one, or none. For what can be made again.
///
/// # Errors
/// When any step fails; no temporary file is left.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = tempfile::Builder::new()
        .prefix(".rye-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(parent_dir(path))?;
    temporary.write_all(bytes)?;
    temporary.persist(path).map_err(|failure| failure.error)?;
    Ok(())
}

/// Makes `path` with `bytes` only if nothing is there yet.
///
/// # Errors
/// `AlreadyExists` when something is there; otherwise as [`write_atomic`].
pub fn write_new(path: &Path, bytes: &[u8], mode: FileMode) -> io::Result<()> {
    let folder = parent_dir(path);
    let mut temporary = tempfile::Builder::new().prefix(".rye-").suffix(".tmp").tempfile_in(&folder)?;
    temporary.write_all(bytes)?;
    let permissions = match mode {
        FileMode::Preserve => Permissions::from_mode(0o644),
        FileMode::Private => Permissions::from_mode(0o600),
        FileMode::ReadOnly => Permissions::from_mode(0o444),
    };
    temporary.as_file().set_permissions(permissions)?;
    temporary.as_file().sync_all()?;
    temporary.persist_noclobber(path).map_err(|failure| failure.error)?;
    sync_dir(&folder)
}

/// The mode of new folders that are not private: whatever the umask, only their owner changes what is in them.
pub(crate) const FOLDER_MODE: u32 = 0o755;

/// Makes a folder and its parents; new ones are private when `is_private`, and otherwise writable by their owner only.
///
/// # Errors
/// When the system refuses.
pub fn create_dirs(path: &Path, is_private: bool) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    builder.mode(if is_private { 0o700 } else { FOLDER_MODE });
    builder.create(path).map_err(|error| {
        io::Error::new(error.kind(), format!("failed to create folder `{}`: {error}", path.display()))
    })
}

/// No link is followed, and no reader of a pipe is waited for.
const WRITE_FLAGS: rustix::fs::OFlags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK);

/// Writes `bytes` behind what is in the file, in one write; makes a private file if there is none. It is durable when the
/// system says so. A link is not followed.
///
/// # Errors
/// When the system refuses, or takes only a part.
pub fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs_err::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(WRITE_FLAGS.bits().cast_signed())
        .open(path)?;
    file.write_all(bytes)
}

/// Takes away what is behind the first `length` bytes of a file. A link is not followed.
///
/// # Errors
/// When the system refuses.
pub fn truncate(path: &Path, length: u64) -> io::Result<()> {
    let flags = WRITE_FLAGS.bits().cast_signed();
    let file = fs_err::OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    file.set_len(length)
}

/// Makes a symbolic link at `path` to `target`, unless something is there already.
///
/// # Errors
/// When the system refuses.
pub fn symlink_if_absent(target: &Path, path: &Path) -> io::Result<()> {
    match fs_err::os::unix::fs::symlink(target, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a file. Nothing is synced: after a power cut it may be there again. A file that is not there is no error.
///
/// # Errors
/// When the system refuses.
pub fn remove_unsynced(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a file, and makes that durable. A file that is not there is no error.
///
/// # Errors
/// When the system refuses.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Ok(()) => sync_dir(&parent_dir(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a folder with all that is in it, read-only parts too. A folder that is not there is no error.
///
/// # Errors
/// When the system refuses.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs_err::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_dir() => return remove(path),
        Ok(_) => {}
    }
    make_removable(path)?;
    fs_err::remove_dir_all(path)
}

/// How deep folders may be nested before they are brought up: as many names as fit into one path.
const MAX_DEPTH: usize = 8;

/// Prepares a tree for its removal: closed folders are opened, and folders nested so deep that neither paths nor
/// descriptors would suffice are brought up. The tree may have been made to resist removal.
fn make_removable(root: &Path) -> io::Result<()> {
    let mut hoisted: u64 = 0;
    let mut pending = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        fs_err::set_permissions(&folder, Permissions::from_mode(0o755))?;
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                continue;
            }
            if depth < MAX_DEPTH {
                pending.push((entry.path(), depth + 1));
                continue;
            }
            fs_err::set_permissions(entry.path(), Permissions::from_mode(0o755))?;
            let target = loop {
                let target = root.join(format!(".{hoisted}"));
                hoisted += 1;
                if target.symlink_metadata().is_err() {
                    break target;
                }
            };
            fs_err::rename(entry.path(), &target)?;
            pending.push((target, 1));
        }
    }
    Ok(())
}

/// Sets the permission bits of `path`.
///
/// # Errors
/// When the system refuses.
pub fn set_mode(path: &Path, bits: u32) -> io::Result<()> {
    fs_err::set_permissions(path, Permissions::from_mode(bits))
}

/// A unique name: 16 hex characters.
///
/// # Errors
/// When the system gives no randomness.
pub fn unique_name() -> io::Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(crate::digest::to_hex(&random))
}

/// Moves a folder to a place where nothing is yet, and makes that durable.
///
/// # Errors
/// When the target exists or the system refuses.
pub fn rename_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs_err::rename(from, to)?;
    sync_dir(&parent_dir(to))
}

fn parent_dir(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn sync_dir(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync a folder; the rename itself has happened.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_read_refuses_what_is_larger() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        write_atomic(&path, b"12345", FileMode::Preserve).expect("written");
        assert_eq!(read_bounded(&path, 5).expect("read").0, b"12345");
        assert!(matches!(read_bounded(&path, 4), Err(ReadError::TooLarge { limit: 4, .. })));
        assert!(matches!(read_bounded(folder.path(), 4), Err(ReadError::NotAFile { .. })));
    }

    #[test]
    fn escaping_symlink_is_not_followed() {
        let folder = tempfile::tempdir().expect("folder");
        let (root, outside) = (folder.path().join("root"), folder.path().join("secret"));
        create_dirs(&root.join("sub"), false).expect("folders");
        write_atomic(&outside, b"secret", FileMode::Preserve).expect("written");
        write_atomic(&root.join("sub/in"), b"inside", FileMode::Preserve).expect("written");
        std::os::unix::fs::symlink("../secret", root.join("out")).expect("link");
        std::os::unix::fs::symlink("/etc", root.join("etc")).expect("link");
        std::os::unix::fs::symlink("sub/in", root.join("in")).expect("link");
        let read = |relative: &str| read_beneath(&root, Path::new(relative), 99).map(|(bytes, _)| bytes);
        assert_eq!(read("in").expect("inside"), b"inside");
        assert!(matches!(read("out"), Err(ReadError::Escapes { .. })));
        assert!(matches!(read("etc/passwd"), Err(ReadError::Escapes { .. })));
        assert!(matches!(read("../secret"), Err(ReadError::Escapes { .. })));
        assert!(matches!(read("none"), Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound));

        let plainly =
            |relative: &str| read_beneath_no_symlinks(&root, Path::new(relative), 99).map(|(bytes, _)| bytes);
        std::os::unix::fs::symlink("sub", root.join("folder")).expect("link");
        assert_eq!(plainly("sub/in").expect("inside"), b"inside");
        for link in ["in", "out", "folder/in", "../secret"] {
            assert!(matches!(plainly(link), Err(ReadError::Escapes { .. })), "{link}");
        }
        assert!(plainly("none").is_err_and(|error| error.is_absent()));
    }

    #[test]
    fn deep_and_closed_trees_are_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path().join("root");
        let name = "n".repeat(200);
        std::fs::create_dir_all(root.join(".0/kept")).expect("a name that is taken");
        // Deeper than a path can be: made from the inside out.
        for _ in 0..100 {
            let outer = folder.path().join("outer");
            std::fs::create_dir(&outer).expect("a folder");
            if folder.path().join("inner").exists() {
                fs_err::rename(folder.path().join("inner"), outer.join(&name)).expect("moved");
            }
            std::fs::set_permissions(&outer, Permissions::from_mode(0o700)).expect("mode");
            fs_err::rename(outer, folder.path().join("inner")).expect("moved");
        }
        fs_err::rename(folder.path().join("inner"), root.join("deep")).expect("moved");
        std::fs::set_permissions(root.join("deep"), Permissions::from_mode(0o000)).expect("mode");
        remove_tree(&root).expect("removed");
        assert!(!root.exists());
    }

    #[test]
    fn a_device_is_not_read() {
        assert!(matches!(read_bounded(Path::new("/dev/zero"), 10), Err(ReadError::NotAFile { .. })));
    }

    #[test]
    fn a_write_replaces_and_keeps_the_mode() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        write_atomic(&path, b"1", FileMode::Preserve).expect("written");
        set_mode(&path, 0o755).expect("mode");
        write_atomic(&path, b"2", FileMode::Preserve).expect("written");
        let (bytes, metadata) = read_bounded(&path, 9).expect("read");
        assert_eq!((bytes.as_slice(), metadata.permissions().mode() & 0o777), (&b"2"[..], 0o755));
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_write_into_a_missing_folder_leaves_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(write_atomic(&folder.path().join("no/such"), b"1", FileMode::Preserve).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_new_file_is_not_clobbered() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        write_new(&path, b"1", FileMode::Private).expect("written");
        assert_eq!(
            write_new(&path, b"2", FileMode::Private).map_err(|error| error.kind()),
            Err(io::ErrorKind::AlreadyExists)
        );
        let (bytes, metadata) = read_bounded(&path, 9).expect("read");
        assert_eq!((bytes.as_slice(), metadata.permissions().mode() & 0o777), (&b"1"[..], 0o600));
    }

    #[test]
    fn lock_has_one_holder() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lock");
        let held = Lock::acquire(&path).expect("lock");
        assert!(Lock::try_acquire(&path).expect("asked").is_none());
        drop(held);
        assert!(Lock::try_acquire(&path).expect("asked").is_some());
    }

    #[test]
    fn append_and_truncate_follow_no_symlink() {
        let folder = tempfile::tempdir().expect("folder");
        let (path, link_path) = (folder.path().join("a"), folder.path().join("link"));
        append(&path, b"one\n").expect("made");
        append(&path, b"two\n").expect("appended");
        truncate(&path, 6).expect("shortened");
        let (bytes, metadata) = read_bounded(&path, 100).expect("read");
        assert_eq!((bytes.as_slice(), metadata.permissions().mode() & 0o777), (&b"one\ntw"[..], 0o600));
        symlink_if_absent(Path::new("a"), &link_path).expect("linked");
        symlink_if_absent(Path::new("b"), &link_path).expect("what is there stays");
        assert_eq!(fs_err::read_link(&link_path).expect("a link"), Path::new("a"));
        assert!(append(&link_path, b"x").is_err() && truncate(&link_path, 0).is_err());
        assert_eq!(read_bounded(&path, 100).expect("read").0, b"one\ntw");
    }

    #[test]
    fn read_only_trees_can_be_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let tree = folder.path().join("t");
        create_dirs(&tree.join("a"), false).expect("folders");
        write_atomic(&tree.join("a/f"), b"1", FileMode::ReadOnly).expect("written");
        set_mode(&tree.join("a"), 0o555).expect("mode");
        remove_tree(&tree).expect("removed");
        assert!(!tree.exists());
        remove_tree(&tree).expect("nothing to remove");
    }
}
