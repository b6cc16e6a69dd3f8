//! The folder `run` of the cache: read-only trees named by what is in them. A tree is compared byte for byte before
//! each use and mended where it differs; nothing that does not belong to it may lie in it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lillux::Digest;
use lillux::file::{self, FileMode, Lock};

/// A tree in use is touched this often, so that its age tells when it was last used.
const TOUCH_INTERVAL_SECONDS: u64 = 24 * 60 * 60;
/// A tree that was not used for this long is removed.
const MAX_AGE_SECONDS: u64 = 14 * TOUCH_INTERVAL_SECONDS;
/// More trees than this are reduced, those first that were not used for longest, and never fresh ones.
const MAX_TREES: usize = 256;
/// How many trees are removed at once, so that no run waits long.
const MAX_REMOVALS: usize = 32;

/// One entry of a tree.
#[derive(Debug)]
pub(super) enum TreeEntry<'a> {
    /// A file.
    File { relative: String, bytes: Cow<'a, [u8]> },
    /// A link.
    Link { relative: String, target: PathBuf },
}

impl TreeEntry<'_> {
    fn relative(&self) -> &str {
        match self {
            Self::File { relative, .. } | Self::Link { relative, .. } => relative,
        }
    }

    /// The same piece, inside a folder.
    pub(super) fn inside_folder(self, folder: &str) -> Self {
        match self {
            Self::File { relative, bytes } => Self::File { relative: format!("{folder}/{relative}"), bytes },
            Self::Link { relative, target } => {
                Self::Link { relative: format!("{folder}/{relative}"), target }
            }
        }
    }

    fn matches_at(&self, root: &Path) -> bool {
        match self {
            Self::File { relative, bytes } => {
                file::read_beneath(root, Path::new(relative), bytes.len() as u64)
                    .is_ok_and(|(found, metadata)| found == **bytes && is_read_only(&metadata))
            }
            Self::Link { relative, target } => {
                std::fs::read_link(root.join(relative)).is_ok_and(|found| found == *target)
            }
        }
    }

    fn write(&self, root: &Path) -> io::Result<()> {
        match self {
            Self::File { relative, bytes } => {
                file::write_atomic(&root.join(relative), bytes, FileMode::ReadOnly)
            }
            Self::Link { relative, target } => {
                let path = root.join(relative);
                file::remove(&path)?;
                fs_err::os::unix::fs::symlink(target, path)
            }
        }
    }
}

fn is_read_only(metadata: &std::fs::Metadata) -> bool {
    metadata.permissions().mode() & 0o222 == 0
}

/// Puts the pieces into a folder named by their digest, or finds them there; answers that folder.
pub(super) fn store_tree(cache: &Path, now: u64, entries: &[TreeEntry<'_>]) -> io::Result<PathBuf> {
    let cache_dir = cache.join("run");
    let name = tree_digest(entries).short();
    let folder = cache_dir.join(&name);
    let tree = CachedTree::new(entries);
    if tree.age(&folder, now).is_some_and(|age| age < TOUCH_INTERVAL_SECONDS) && tree.matches_at(&folder) {
        return Ok(folder);
    }
    file::create_dirs(&cache_dir, true)?;
    let _lock = Lock::acquire(&cache_dir.join(".lock"))?;
    if tree.age(&folder, now).is_none() {
        // Something else in the place of the folder, such as a link, goes; nothing there is no error.
        file::remove(&folder)?;
        let new = cache_dir.join(format!(".new-{name}"));
        file::remove_tree(&new)?;
        file::create_dirs(&new, false)?;
        tree.repair(&new)?;
        file::rename_dir(&new, &folder)?;
        touch(&folder, now)?;
        prune(&cache_dir, now, &name);
    } else {
        // A run may be using the folder: it is put right where it is, never taken away.
        if !tree.matches_at(&folder) {
            tree.repair(&folder)?;
        }
        touch(&folder, now)?;
    }
    Ok(folder)
}

fn tree_digest(entries: &[TreeEntry<'_>]) -> Digest {
    let mut parts: Vec<Vec<u8>> = Vec::with_capacity(entries.len());
    for piece in entries {
        let (kind, content) = match piece {
            TreeEntry::File { bytes, .. } => (b'f', Digest::of(bytes)),
            TreeEntry::Link { target, .. } => (b'l', Digest::of(target.as_os_str().as_encoded_bytes())),
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
struct CachedTree<'a> {
    entries: BTreeMap<&'a str, &'a TreeEntry<'a>>,
    folders: BTreeSet<&'a str>,
}

/// What an entry of a folder is to a tree.
enum EntryMatch<'a> {
    Folder,
    Expected(&'a TreeEntry<'a>),
    Foreign,
}

impl<'a> CachedTree<'a> {
    fn new(entries: &'a [TreeEntry<'a>]) -> Self {
        let mut folders = BTreeSet::new();
        for piece in entries {
            let mut relative = piece.relative();
            while let Some((folder, _)) = relative.rsplit_once('/') {
                folders.insert(folder);
                relative = folder;
            }
        }
        Self { entries: entries.iter().map(|piece| (piece.relative(), piece)).collect(), folders }
    }

    /// Seconds since the folder was touched; `None` if there is no such folder.
    fn age(&self, folder: &Path, now: u64) -> Option<u64> {
        let metadata = folder.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some(now.saturating_sub(modified_seconds(&metadata)))
    }

    /// Whether the folder holds the tree, all of it and nothing else, closed to writing.
    fn matches_at(&self, root: &Path) -> bool {
        let mut pending = vec![String::new()];
        let mut count = 0;
        while let Some(above) = pending.pop() {
            let folder = root.join(&above);
            let is_closed_folder = folder.symlink_metadata().is_ok_and(|metadata| is_read_only(&metadata));
            let Ok(entries) = std::fs::read_dir(&folder) else {
                return false;
            };
            for entry in entries {
                let Ok(entry) = entry else { return false };
                let Some(relative) = join_name(&above, &entry) else { return false };
                match self.match_entry(&relative, &entry) {
                    EntryMatch::Folder => pending.push(relative),
                    EntryMatch::Expected(piece) if piece.matches_at(root) => count += 1,
                    EntryMatch::Expected(_) | EntryMatch::Foreign => return false,
                }
            }
            if !is_closed_folder {
                return false;
            }
        }
        count == self.entries.len()
    }

    fn match_entry(&self, relative: &str, entry: &std::fs::DirEntry) -> EntryMatch<'a> {
        let Ok(file_type) = entry.file_type() else {
            return EntryMatch::Foreign;
        };
        if file_type.is_dir() {
            return if self.folders.contains(relative) { EntryMatch::Folder } else { EntryMatch::Foreign };
        }
        match self.entries.get(relative) {
            Some(piece @ TreeEntry::File { .. }) if file_type.is_file() => EntryMatch::Expected(piece),
            Some(piece @ TreeEntry::Link { .. }) if file_type.is_symlink() => EntryMatch::Expected(piece),
            Some(TreeEntry::File { .. } | TreeEntry::Link { .. }) | None => EntryMatch::Foreign,
        }
    }

    /// Makes the folder hold the tree, and closes it.
    fn repair(&self, root: &Path) -> io::Result<()> {
        let mut pending = vec![String::new()];
        while let Some(above) = pending.pop() {
            let folder = root.join(&above);
            file::set_mode(&folder, 0o755)?;
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let relative = join_name(&above, &entry);
                match relative.as_deref().map_or(EntryMatch::Foreign, |path| self.match_entry(path, &entry)) {
                    EntryMatch::Folder => pending.extend(relative),
                    EntryMatch::Expected(_) => {}
                    EntryMatch::Foreign => file::remove_tree(&entry.path())?,
                }
            }
        }
        for folder in &self.folders {
            file::create_dirs(&root.join(folder), false)?;
        }
        for piece in self.entries.values() {
            if !piece.matches_at(root) {
                piece.write(root)?;
            }
        }
        for folder in self.folders.iter().rev() {
            file::set_mode(&root.join(folder), 0o555)?;
        }
        file::set_mode(root, 0o555)
    }
}

fn join_name(above: &str, entry: &std::fs::DirEntry) -> Option<String> {
    let name = entry.file_name();
    let name = name.to_str()?;
    Some(if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") })
}

fn modified_seconds(metadata: &std::fs::Metadata) -> u64 {
    let modified = metadata.modified().ok();
    let since = modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

fn touch(folder: &Path, now: u64) -> io::Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
    fs_err::File::open(folder)?.file().set_modified(time)
}

/// Removes trees that were not used for long. Trees that cannot be removed are left for the next time.
fn prune(cache_dir: &Path, now: u64, own: &str) {
    let Ok(entries) = std::fs::read_dir(cache_dir) else {
        return;
    };
    let mut trees: Vec<(u64, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == own || name == ".lock" {
            continue;
        }
        if let Ok(metadata) = entry.metadata() {
            trees.push((now.saturating_sub(modified_seconds(&metadata)), entry.path()));
        }
    }
    trees.sort_unstable_by(|one, other| other.cmp(one));
    let surplus = trees.len().saturating_sub(MAX_TREES);
    let is_due = |(place, (age, _)): &(usize, &(u64, PathBuf))| {
        *age > MAX_AGE_SECONDS || (*place < surplus && *age > 2 * TOUCH_INTERVAL_SECONDS)
    };
    for (_, (_, path)) in trees.iter().enumerate().filter(is_due).take(MAX_REMOVALS) {
        let _is_removed = file::remove_tree(path).is_ok();
    }
}
