//! Git's index, as far as the sandbox asks: which folders it names as repositories of their own. Git looks into those, and
//! obeys their config, whenever it looks at the files around them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lillux::file;

use super::git_config;

/// The largest index that is read.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// The kernel's file times are this coarse at most: a file that was read later than this after it was first seen cannot
/// change without another time.
const STAMP_SETTLE_TIME: Duration = Duration::from_millis(50);

/// More indexes than this are not remembered.
const MAX_REMEMBERED: usize = 1024;

const MODE_OFFSET: usize = 24;
const NAME_OFFSET: usize = 40;
const FORMAT_MASK: u32 = 0o170_000;
const GITLINK: u32 = 0o160_000;
const FOLDER: u32 = 0o040_000;
const EXTENDED_FLAG: u16 = 0x4000;
const NAME_MASK: u16 = 0x0fff;

/// What an index says of folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GitIndex {
    /// Folders that are repositories of their own.
    pub(super) gitlinks: Vec<PathBuf>,
    /// Folders that stand for all that is in them.
    pub(super) sparse_folders: Vec<PathBuf>,
    /// Folders that hold an `.ai`.
    pub(super) projects: Vec<PathBuf>,
    /// The name of the file that holds the rest of it.
    shared: Option<String>,
    /// Whether entries have no name of their own: they stand for those of the shared file.
    has_unnamed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexStamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

struct RememberedIndex {
    stamp: IndexStamp,
    first_seen: Instant,
    read_at: Instant,
    index: Arc<GitIndex>,
}

/// Reads an index. `None` if it is there and cannot be read. One that has not changed is not read again.
pub(super) fn read(path: &Path, config: &Path) -> Option<Arc<GitIndex>> {
    static REMEMBERED: OnceLock<Mutex<HashMap<PathBuf, RememberedIndex>>> = OnceLock::new();
    let Ok(metadata) = path.metadata() else { return Some(Arc::default()) };
    let stamp = IndexStamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    let now = Instant::now();
    let remembered = REMEMBERED.get_or_init(Mutex::default);
    let mut first_seen = now;
    {
        let known = remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(path).filter(|known| known.stamp == stamp) {
            first_seen = known.first_seen;
            if known.read_at.duration_since(first_seen) >= STAMP_SETTLE_TIME {
                return Some(Arc::clone(&known.index));
            }
        }
    }
    let index = Arc::new(read_whole(path, config)?);
    // The rest of a split index changes by itself.
    if index.shared.is_none() {
        let mut known = remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        let remembered = RememberedIndex { stamp, first_seen, read_at: now, index: Arc::clone(&index) };
        known.insert(path.to_owned(), remembered);
    }
    Some(index)
}

/// Reads an index, with the file that holds the rest of it.
fn read_whole(path: &Path, config: &Path) -> Option<GitIndex> {
    let (bytes, _) = file::read_bounded(path, MAX_INDEX_BYTES).ok()?;
    let name_len = git_config::object_name_len(config);
    let mut index = parse(&bytes, name_len)?;
    if let Some(shared) = &index.shared {
        let (bytes, _) = file::read_bounded(&path.with_file_name(shared), MAX_INDEX_BYTES).ok()?;
        let rest = parse(&bytes, name_len)?;
        index.gitlinks.extend(rest.gitlinks);
        index.sparse_folders.extend(rest.sparse_folders);
        index.projects.extend(rest.projects);
    }
    index.projects.sort();
    index.projects.dedup();
    Some(index)
}

/// Reads the bytes of an index, whose objects' names have `name_len` bytes. `None` where they are not understood.
fn parse(bytes: &[u8], name_len: usize) -> Option<GitIndex> {
    if bytes.get(..4)? != b"DIRC" {
        return None;
    }
    let (version, count) = (number(bytes, 4)?, number(bytes, 8)?);
    if !(2..=4).contains(&version) {
        return None;
    }
    let mut index = GitIndex::default();
    let entries = EntryReader { bytes, name_len, version };
    let mut at = entries.read(12, count, &mut index)?;
    let end = bytes.len().checked_sub(name_len)?;
    while at + 8 <= end {
        let size = usize::try_from(number(bytes, at + 4)?).ok()?;
        if bytes.get(at..at + 4)? == b"link" {
            let name = bytes.get(at + 8..at + 8 + name_len)?;
            index.shared = (name.iter().any(|byte| *byte != 0))
                .then(|| format!("sharedindex.{}", lillux::digest::to_hex(name)));
        }
        at = at.checked_add(8)?.checked_add(size)?;
    }
    if index.has_unnamed && index.shared.is_none() {
        return None;
    }
    // Git may read the entries in blocks, from where a table says that they are.
    let mut left = count;
    for (offset, count) in entry_blocks(bytes, name_len)? {
        left = left.checked_sub(count)?;
        entries.read(offset, count, &mut index)?;
    }
    index.gitlinks.sort();
    index.gitlinks.dedup();
    Some(index)
}

/// Where blocks of entries begin and how many each holds, if the index has a table of them.
fn entry_blocks(bytes: &[u8], name_len: usize) -> Option<Vec<(usize, u32)>> {
    // The last extension says where extensions begin.
    let Some(last) = bytes.len().checked_sub(2 * name_len + 12) else { return Some(Vec::new()) };
    if bytes.get(last..last + 4)? != b"EOIE" {
        return Some(Vec::new());
    }
    let (mut at, mut blocks) = (usize::try_from(number(bytes, last + 8)?).ok()?, Vec::new());
    while at + 8 <= bytes.len() - name_len {
        let size = usize::try_from(number(bytes, at + 4)?).ok()?;
        if bytes.get(at..at + 4)? == b"IEOT" {
            let table = bytes.get(at + 8..(at + 8).checked_add(size)?)?;
            for block in table.get(4..)?.chunks_exact(8) {
                blocks.push((usize::try_from(number(block, 0)?).ok()?, number(block, 4)?));
            }
        }
        at = at.checked_add(8)?.checked_add(size)?;
    }
    Some(blocks)
}

struct EntryReader<'a> {
    bytes: &'a [u8],
    name_len: usize,
    version: u32,
}

impl EntryReader<'_> {
    /// Reads `count` entries from `at`, and says where they end.
    fn read(&self, mut at: usize, count: u32, index: &mut GitIndex) -> Option<usize> {
        let mut name: Vec<u8> = Vec::new();
        for _ in 0..count {
            let mode = number(self.bytes, at + MODE_OFFSET)?;
            let flags_at = at + NAME_OFFSET + self.name_len;
            let flags = short(self.bytes, flags_at)?;
            let is_extended = self.version >= 3 && flags & EXTENDED_FLAG != 0;
            let mut name_at = flags_at + if is_extended { 4 } else { 2 };
            let length =
                Some(usize::from(flags & NAME_MASK)).filter(|length| *length < usize::from(NAME_MASK));
            if self.version == 4 {
                let (stripped, after) = prefix_length(self.bytes, name_at)?;
                name_at = after;
                name.truncate(name.len().checked_sub(stripped)?);
            } else {
                name.clear();
            }
            let rest = match length {
                Some(length) => length.checked_sub(name.len())?,
                None => self.bytes.get(name_at..)?.iter().position(|byte| *byte == 0)?,
            };
            name.extend_from_slice(self.bytes.get(name_at..name_at.checked_add(rest)?)?);
            if !is_below_worktree(mode, &name) {
                return None;
            }
            at = match self.version {
                4 => name_at + rest + 1,
                // Entries end with one to eight zeros.
                _ => at + (name_at - at + rest + 8) / 8 * 8,
            };
            note_entry(mode, &name, index);
        }
        Some(at)
    }
}

/// Whether a checkout of this entry writes below the folder of the files, and not into a git folder. Git refuses to make any
/// other; one that is there it obeys.
fn is_below_worktree(mode: u32, name: &[u8]) -> bool {
    let name = match mode & FORMAT_MASK {
        FOLDER => name.strip_suffix(b"/").unwrap_or(name),
        _ => name,
    };
    let is_plain = |part: &[u8]| {
        !part.is_empty()
            && part != b"."
            && part != b".."
            && !part.eq_ignore_ascii_case(b".git")
            && !part.contains(&0)
    };
    name.is_empty() || name.split(|byte| *byte == b'/').all(is_plain)
}

/// Keeps what matters of an entry.
fn note_entry(mode: u32, name: &[u8], index: &mut GitIndex) {
    let path = |name: &[u8]| PathBuf::from(OsString::from_vec(name.to_owned()));
    index.has_unnamed |= name.is_empty();
    match mode & FORMAT_MASK {
        GITLINK => index.gitlinks.push(path(name)),
        FOLDER => index.sparse_folders.push(path(name)),
        _ => {}
    }
    let inner = name.windows(5).position(|part| part == b"/.ai/").map(|end| &name[..end]);
    let is_known =
        |inner: &[u8]| index.projects.last().is_some_and(|known| known.as_os_str().as_bytes() == inner);
    if let Some(inner) = inner.filter(|inner| !is_known(inner)) {
        index.projects.push(path(inner));
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// How many bytes of the last name are left out, and where the number ends.
fn prefix_length(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *bytes.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *bytes.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
    }
    Some((value, at + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry of version 2 or 3.
    fn entry(mode: u32, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; NAME_OFFSET + 20];
        bytes[MODE_OFFSET..MODE_OFFSET + 4].copy_from_slice(&mode.to_be_bytes());
        let length = u16::try_from(name.len()).expect("short");
        bytes.extend(length.to_be_bytes());
        bytes.extend(name.as_bytes());
        let padded = (bytes.len() + 8) / 8 * 8;
        bytes.resize(padded, 0);
        bytes
    }

    fn index(count: u32, rest: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02".to_vec();
        bytes.extend(count.to_be_bytes());
        bytes.extend(rest.concat());
        bytes.extend([0; 20]);
        bytes
    }

    #[test]
    fn gitlinks_and_projects_are_found() {
        let entries = [
            entry(0o100_644, "a/.ai/tools/x.py"),
            entry(0o100_644, "a/.ai/tools/y.py"),
            entry(0o160_000, "libs/sub"),
            entry(0o040_000, "sparse/"),
        ];
        let found = parse(&index(4, &entries), 20).expect("an index");
        assert_eq!(found.gitlinks, [PathBuf::from("libs/sub")]);
        assert_eq!(found.sparse_folders, [PathBuf::from("sparse/")]);
        assert_eq!(found.projects, [PathBuf::from("a")]);
        assert_eq!(parse(&index(5, &entries), 20), None);
        assert_eq!(parse(b"DIRC\0\0\0\x09\0\0\0\0", 20), None);
    }

    #[test]
    fn paths_outside_of_the_files_are_refused() {
        let parse_name = |mode: u32, name: &str| parse(&index(1, &[entry(mode, name)]), 20);
        for name in [
            ".git/config",
            "a/.git/hooks/x",
            ".GIT/config",
            "../x",
            "a/../../x",
            "./a",
            "a/./b",
            "/etc/x",
            "//x",
            "a//b",
            "a/",
            "",
        ] {
            assert_eq!(parse_name(0o100_644, name), None, "{name:?}");
        }
        for name in [".gitignore", ".github/x", "a.git/b", "..a", "...", ".gitmodules", "a/b c"] {
            assert!(parse_name(0o100_644, name).is_some(), "{name:?}");
        }
        assert!(parse_name(0o040_000, "sparse/").is_some());
        // Entries without a name belong to a shared index.
        let link = [b"link".to_vec(), 20_u32.to_be_bytes().to_vec(), vec![1; 20]].concat();
        assert!(parse(&index(1, &[entry(0o100_644, ""), link]), 20).is_some());
    }

    #[test]
    fn entries_in_blocks_are_found() {
        let (plain, hidden) = (entry(0o100_644, "plain"), entry(0o160_000, "hidden"));
        let offset = |bytes: usize| u32::try_from(bytes).expect("small").to_be_bytes().to_vec();
        // Inside an extension that is not known, and named by the table of blocks.
        let at = 12 + plain.len();
        let unknown = [b"XXXX".to_vec(), offset(hidden.len()), hidden.clone()].concat();
        let table = [b"IEOT".to_vec(), offset(12), offset(1), offset(at + 8), offset(1)].concat();
        let last = [b"EOIE".to_vec(), offset(24), offset(at), vec![0; 20]].concat();
        let found = parse(&index(1, &[plain, unknown, table, last]), 20).expect("an index");
        assert_eq!(found.gitlinks, [PathBuf::from("hidden")]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            version in 0_u8..6, count in 0_u8..4, rest in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..300,
            name in prop::sample::select(vec!["EOIE", "IEOT", "link", "\0\0\0\0"]), wide in any::<bool>(),
        ) {
            let mut bytes = [b"DIRC\0\0\0".to_vec(), vec![version, 0, 0, 0, count], rest].concat();
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(name.as_bytes());
            }
            let _ = parse(&bytes, if wide { 32 } else { 20 });
        }
    }
}
