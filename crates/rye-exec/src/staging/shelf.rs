//! The folder `run` of the cache: read-only trees named by what is in them. A tree is compared byte for byte before
//! each use and mended where it differs; nothing that does not belong to it may lie in it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lillux::Digest;
use lillux::file::{self, Lock, Mode};

/// A tree in use is touched this often, so that its age tells when it was last used.
const FRESH: u64 = 24 * 60 * 60;
/// A tree nobody used for so long is removed.
const OLD: u64 = 14 * FRESH;
/// More trees than this are reduced, those first that were not used for longest, and never fresh ones.
const MANY: usize = 256;
/// How many trees are removed at once, so that no run waits long.
const REMOVED_AT_ONCE: usize = 32;

/// One entry of a tree.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// A file.
    File { relative: String, bytes: Cow<'a, [u8]> },
    /// A link.
    Link { relative: String, target: PathBuf },
}

impl Piece<'_> {
    fn relative(&self) -> &str {
        match self {
            Self::File { relative, .. } | Self::Link { relative, .. } => relative,
        }
    }

    /// The same piece, inside a folder.
    pub(super) fn below(self, folder: &str) -> Self {
        match self {
            Self::File { relative, bytes } => Self::File { relative: format!("{folder}/{relative}"), bytes },
            Self::Link { relative, target } => {
                Self::Link { relative: format!("{folder}/{relative}"), target }
            }
        }
    }

    fn is_at(&self, root: &Path) -> bool {
        match self {
            Self::File { relative, bytes } => {
                file::read_beneath(root, Path::new(relative), bytes.len() as u64)
                    .is_ok_and(|(found, metadata)| found == **bytes && is_closed(&metadata))
            }
            Self::Link { relative, target } => {
                std::fs::read_link(root.join(relative)).is_ok_and(|found| found == *target)
            }
        }
    }

    fn put(&self, root: &Path) -> io::Result<()> {
        match self {
            Self::File { relative, bytes } => file::write_atomic(&root.join(relative), bytes, Mode::ReadOnly),
            Self::Link { relative, target } => {
                let path = root.join(relative);
                file::remove(&path)?;
                fs_err::os::unix::fs::symlink(target, path)
            }
        }
    }
}

fn is_closed(metadata: &std::fs::Metadata) -> bool {
    metadata.permissions().mode() & 0o222 == 0
}

/// Puts the pieces into a folder named by their digest, or finds them there; answers that folder.
pub(super) fn keep(cache: &Path, now: u64, pieces: &[Piece<'_>]) -> io::Result<PathBuf> {
    let shelf = cache.join("run");
    let name = digest(pieces).short();
    let folder = shelf.join(&name);
    let tree = Tree::new(pieces);
    if tree.age(&folder, now).is_some_and(|age| age < FRESH) && tree.is_at(&folder) {
        return Ok(folder);
    }
    file::create_folders(&shelf, true)?;
    let _lock = Lock::acquire(&shelf.join(".lock"))?;
    if tree.age(&folder, now).is_none() {
        // Something else in the place of the folder, such as a link, goes; nothing there is no error.
        file::remove(&folder)?;
        let new = shelf.join(format!(".new-{name}"));
        file::remove_tree(&new)?;
        file::create_folders(&new, false)?;
        tree.mend(&new)?;
        file::rename_folder(&new, &folder)?;
        touch(&folder, now)?;
        prune(&shelf, now, &name);
    } else {
        // A run may be using the folder: it is put right where it is, never taken away.
        if !tree.is_at(&folder) {
            tree.mend(&folder)?;
        }
        touch(&folder, now)?;
    }
    Ok(folder)
}

fn digest(pieces: &[Piece<'_>]) -> Digest {
    let mut parts: Vec<Vec<u8>> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (kind, content) = match piece {
            Piece::File { bytes, .. } => (b'f', Digest::of(bytes)),
            Piece::Link { target, .. } => (b'l', Digest::of(target.as_os_str().as_encoded_bytes())),
        };
        let mut part = piece.relative().as_bytes().to_vec();
        part.extend([0, kind]);
        part.extend(content.as_bytes());
        parts.push(part);
    }
    parts.sort_unstable();
    Digest::of_pieces(parts.iter().map(Vec::as_slice))
}

/// The pieces by path, and the folders they need.
struct Tree<'a> {
    pieces: BTreeMap<&'a str, &'a Piece<'a>>,
    folders: BTreeSet<&'a str>,
}

/// What an entry of a folder is to a tree.
enum Entry<'a> {
    Folder,
    Piece(&'a Piece<'a>),
    Foreign,
}

impl<'a> Tree<'a> {
    fn new(pieces: &'a [Piece<'a>]) -> Self {
        let mut folders = BTreeSet::new();
        for piece in pieces {
            let mut relative = piece.relative();
            while let Some((folder, _)) = relative.rsplit_once('/') {
                folders.insert(folder);
                relative = folder;
            }
        }
        Self { pieces: pieces.iter().map(|piece| (piece.relative(), piece)).collect(), folders }
    }

    /// Seconds since the folder was touched; `None` if there is no such folder.
    fn age(&self, folder: &Path, now: u64) -> Option<u64> {
        let metadata = folder.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some(now.saturating_sub(modified(&metadata)))
    }

    /// Whether the folder holds the tree, all of it and nothing else, closed to writing.
    fn is_at(&self, root: &Path) -> bool {
        let mut pending = vec![String::new()];
        let mut count = 0;
        while let Some(above) = pending.pop() {
            let folder = root.join(&above);
            let is_closed_folder = folder.symlink_metadata().is_ok_and(|metadata| is_closed(&metadata));
            let Ok(entries) = std::fs::read_dir(&folder) else {
                return false;
            };
            for entry in entries {
                let Ok(entry) = entry else { return false };
                let Some(relative) = below(&above, &entry) else { return false };
                match self.entry(&relative, &entry) {
                    Entry::Folder => pending.push(relative),
                    Entry::Piece(piece) if piece.is_at(root) => count += 1,
                    Entry::Piece(_) | Entry::Foreign => return false,
                }
            }
            if !is_closed_folder {
                return false;
            }
        }
        count == self.pieces.len()
    }

    fn entry(&self, relative: &str, entry: &std::fs::DirEntry) -> Entry<'a> {
        let Ok(file_type) = entry.file_type() else {
            return Entry::Foreign;
        };
        if file_type.is_dir() {
            return if self.folders.contains(relative) { Entry::Folder } else { Entry::Foreign };
        }
        match self.pieces.get(relative) {
            Some(piece @ Piece::File { .. }) if file_type.is_file() => Entry::Piece(piece),
            Some(piece @ Piece::Link { .. }) if file_type.is_symlink() => Entry::Piece(piece),
            Some(Piece::File { .. } | Piece::Link { .. }) | None => Entry::Foreign,
        }
    }

    /// Makes the folder hold the tree, and closes it.
    fn mend(&self, root: &Path) -> io::Result<()> {
        let mut pending = vec![String::new()];
        while let Some(above) = pending.pop() {
            let folder = root.join(&above);
            file::set_mode(&folder, 0o755)?;
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let relative = below(&above, &entry);
                match relative.as_deref().map_or(Entry::Foreign, |path| self.entry(path, &entry)) {
                    Entry::Folder => pending.extend(relative),
                    Entry::Piece(_) => {}
                    Entry::Foreign => file::remove_tree(&entry.path())?,
                }
            }
        }
        for folder in &self.folders {
            file::create_folders(&root.join(folder), false)?;
        }
        for piece in self.pieces.values() {
            if !piece.is_at(root) {
                piece.put(root)?;
            }
        }
        for folder in self.folders.iter().rev() {
            file::set_mode(&root.join(folder), 0o555)?;
        }
        file::set_mode(root, 0o555)
    }
}

fn below(above: &str, entry: &std::fs::DirEntry) -> Option<String> {
    let name = entry.file_name();
    let name = name.to_str()?;
    Some(if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") })
}

fn modified(metadata: &std::fs::Metadata) -> u64 {
    let modified = metadata.modified().ok();
    let since = modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

fn touch(folder: &Path, now: u64) -> io::Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
    fs_err::File::open(folder)?.file().set_modified(time)
}

/// Removes trees nobody used for long. What cannot be removed stays for the next time: the run goes on without.
fn prune(shelf: &Path, now: u64, own: &str) {
    let Ok(entries) = std::fs::read_dir(shelf) else {
        return;
    };
    let mut trees: Vec<(u64, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == own || name == ".lock" {
            continue;
        }
        if let Ok(metadata) = entry.metadata() {
            trees.push((now.saturating_sub(modified(&metadata)), entry.path()));
        }
    }
    trees.sort_unstable_by(|one, other| other.cmp(one));
    let surplus = trees.len().saturating_sub(MANY);
    let is_due =
        |(place, (age, _)): &(usize, &(u64, PathBuf))| *age > OLD || (*place < surplus && *age > 2 * FRESH);
    for (_, (_, path)) in trees.iter().enumerate().filter(is_due).take(REMOVED_AT_ONCE) {
        let _is_removed = file::remove_tree(path).is_ok();
    }
}
