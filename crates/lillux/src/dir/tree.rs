//! The folders below a folder, by descriptors: however long their paths are, and although their owner may not enter them. A
//! folder that was opened for that is closed again in the end. No link is followed.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode as Bits, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::DIR_FLAGS;
use super::access::change_mode;

/// What a folder's owner needs to search it.
const SEARCH_BITS: u32 = 0o500;
/// The system takes no longer paths; parts of this length leave room for one name more.
const MAX_PART_BYTES: usize = 3000;

/// One name in a folder of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// The name.
    pub name: OsString,
    /// Whether it is a folder, and not a link to one.
    pub is_dir: bool,
}

/// Why a folder could not be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlistedFolder {
    /// It is gone, or not a folder.
    Absent,
    /// It belongs to another user.
    Foreign,
    /// The system refused.
    Refused,
}

/// A folder with all that is below it.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// Folders that were opened, with what they had.
    opened: Vec<(PathBuf, FolderMode)>,
}

/// Which folder has which mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderMode {
    id: (u64, u64),
    mode: u32,
}

impl FolderMode {
    fn new(stat: &Stat) -> Self {
        Self { id: (stat.st_dev, stat.st_ino), mode: stat.st_mode & 0o7777 }
    }
}

impl Tree {
    /// Opens the folder at `root`, a real path.
    ///
    /// # Errors
    /// When it is missing or no folder.
    pub fn open(root: &Path) -> std::io::Result<Self> {
        let root = rustix::fs::openat(CWD, root, DIR_FLAGS | OFlags::NOFOLLOW, Bits::empty())?;
        Ok(Self { root, opened: Vec::new() })
    }

    /// What is in the folder `relative`. The folders above it have been listed before.
    ///
    /// # Errors
    /// When the folder cannot be listed, even by its owner.
    pub fn entries(&mut self, relative: &Path) -> Result<Vec<TreeEntry>, UnlistedFolder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match self.resolve(relative, flags) {
            Ok(folder) if !is_closed(&folder) => Ok(folder),
            Ok(_) | Err(Errno::ACCESS) => {
                self.make_searchable(relative)?;
                self.resolve(relative, flags)
            }
            Err(errno) => Err(errno),
        };
        let folder = opened.map_err(refusal)?;
        let failed = |_: Errno| UnlistedFolder::Refused;
        let place = folder.try_clone().map_err(|_| UnlistedFolder::Refused)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&place, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                known => known,
            };
            let name = OsString::from_vec(name.to_bytes().to_vec());
            entries.push(TreeEntry { name, is_dir: kind == FileType::Directory });
        }
        Ok(entries)
    }

    /// Lets the owner list and enter a folder until this is dropped.
    fn make_searchable(&mut self, relative: &Path) -> Result<(), UnlistedFolder> {
        let folder = self.resolve(relative, DIR_FLAGS).map_err(refusal)?;
        let stat = rustix::fs::fstat(&folder).map_err(refusal)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(UnlistedFolder::Foreign);
        }
        let before = FolderMode::new(&stat);
        change_mode(&folder, before.mode | SEARCH_BITS).map_err(|_| UnlistedFolder::Refused)?;
        self.opened.push((relative.to_owned(), before));
        Ok(())
    }

    fn close_again(&self, relative: &Path, before: FolderMode) -> Result<(), Errno> {
        let folder = self.resolve(relative, DIR_FLAGS)?;
        let now = FolderMode::new(&rustix::fs::fstat(&folder)?);
        // Another program may have changed it meanwhile.
        if now == (FolderMode { mode: before.mode | SEARCH_BITS, ..before }) {
            change_mode(&folder, before.mode)?;
        }
        Ok(())
    }

    fn resolve(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        let mut part = PathBuf::new();
        for component in relative.components() {
            let Component::Normal(name) = component else { return Err(Errno::INVAL) };
            if part.as_os_str().len() + name.len() > MAX_PART_BYTES {
                at = Some(open_part(at.as_ref().unwrap_or(&self.root).as_fd(), &part, DIR_FLAGS)?);
                part.clear();
            }
            part.push(name);
        }
        open_part(at.as_ref().unwrap_or(&self.root).as_fd(), &part, flags)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The innermost first: the way to it leads through the others.
        for (relative, before) in std::mem::take(&mut self.opened).into_iter().rev() {
            // What cannot be closed again can be entered by its owner only.
            let _ = self.close_again(&relative, before);
        }
    }
}

fn refusal(errno: Errno) -> UnlistedFolder {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => UnlistedFolder::Absent,
        _ => UnlistedFolder::Refused,
    }
}

/// Whether the user owns a folder, and may not search it.
fn is_closed(folder: &OwnedFd) -> bool {
    rustix::fs::fstat(folder).is_ok_and(|stat| {
        stat.st_mode & SEARCH_BITS != SEARCH_BITS && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}

/// Opens a folder below another one without following links.
fn open_part(at: BorrowedFd<'_>, part: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let part = if part.as_os_str().is_empty() { Path::new(".") } else { part };
    let limits = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(at, part, flags | OFlags::NOFOLLOW, Bits::empty(), limits) {
        // Kernels before 5.6 and some sandboxes have no openat2.
        Err(Errno::NOSYS | Errno::PERM) => {
            let mut folder = rustix::fs::openat(at, ".", DIR_FLAGS, Bits::empty())?;
            for name in part {
                folder = rustix::fs::openat(&folder, name, DIR_FLAGS | OFlags::NOFOLLOW, Bits::empty())?;
            }
            rustix::fs::openat(&folder, ".", flags, Bits::empty())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("there").permissions().mode() & 0o777
    }

    /// Takes from this thread what lets root enter any folder.
    fn become_ordinary() {
        if let Ok(mut sets) = capabilities(None) {
            sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, sets).expect("fewer capabilities");
        }
    }

    #[test]
    fn closed_folders_are_listed_and_closed_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        std::fs::create_dir_all(root.join("outer/inner/.git")).expect("folders");
        for (outer, inner) in [(0o111, 0o311), (0o000, 0o111), (0o400, 0o000), (0o755, 0o600)] {
            set_mode(&root.join("outer/inner"), inner);
            set_mode(&root.join("outer"), outer);
            let root = root.clone();
            let search = move || {
                become_ordinary();
                let mut tree = Tree::open(&root).expect("a folder");
                tree.entries(Path::new("outer")).expect("its entries");
                tree.entries(Path::new("outer/inner")).expect("its entries")
            };
            let entries = std::thread::spawn(search).join().expect("searched");
            assert_eq!(entries, [TreeEntry { name: ".git".into(), is_dir: true }]);
            assert_eq!(mode(&folder.path().join("outer")), outer);
            set_mode(&folder.path().join("outer"), 0o755);
            assert_eq!(mode(&folder.path().join("outer/inner")), inner);
        }
        set_mode(&folder.path().join("outer/inner"), 0o755);
    }

    #[test]
    fn long_paths_are_listed_without_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        let mut tree = Tree::open(&root).expect("a folder");
        let (mut path, name) = (PathBuf::new(), "n".repeat(200));
        for _ in 0..30 {
            let at = tree.resolve(&path, DIR_FLAGS).expect("opened");
            rustix::fs::mkdirat(&at, name.as_str(), Bits::from_raw_mode(0o755)).expect("made");
            path.push(&name);
        }
        assert_eq!(tree.entries(path.parent().expect("a parent")).expect("its entries").len(), 1);
        assert_eq!(tree.entries(&path), Ok(Vec::new()));
        assert_eq!(tree.entries(&path.join("none")), Err(UnlistedFolder::Absent));
        std::os::unix::fs::symlink(&name, root.join("link")).expect("a link");
        assert_eq!(tree.entries(Path::new("link")), Err(UnlistedFolder::Absent));
        assert_eq!(tree.entries(Path::new("..")), Err(UnlistedFolder::Refused));
    }
}
