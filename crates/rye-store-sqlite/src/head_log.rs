//! How far each store of threads has come, recorded in user space beside the secret, where no tool reaches: an older copy of
//! the store carries valid seals, and only this record tells it from the latest.
//!
//! One file per folder of threads: a header that names the store, then a line per sealed row, the latest last. A line is
//! written after the database has committed, so the record is never ahead of the store: what was lost in a crash makes the
//! record older, never the store. Where the record cannot be written (a read-only home), threads run and
//! `thread verify` says that their age is not checked.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lillux::Digest;
use lillux::file::{self, FileMode, Lock};

use super::DATABASE;
use super::row_seal::RowHead;
use rye_thread::thread_id::ThreadId;

/// The folder of records, in the folder of the signing key.
const HEADS_DIR: &str = "thread_heads";
const HEADER: &str = "rye thread heads 1";
/// A record is rewritten without its outdated lines when it is larger than this.
const COMPACT_THRESHOLD_BYTES: u64 = 4 << 20;
/// The longest first line: a path in JSON.
const MAX_HEADER_BYTES: u64 = 64 << 10;
/// Nothing larger is read.
const MAX_READ_BYTES: u64 = 64 << 20;
/// The most threads of one store that are recorded, the latest first.
const MAX_THREADS: usize = 20_000;
/// The most stores that are recorded.
const MAX_STORES: usize = 512;

/// What is recorded of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedHead {
    pub(super) head: Option<RowHead>,
    /// Whether it was about to be pruned: then it may be missing.
    pub(super) is_pruned: bool,
}

/// The record of one store.
#[derive(Debug)]
pub(super) struct HeadLog {
    /// Its file; `None` when there is none.
    path: Option<PathBuf>,
    header: String,
    /// Whether the record is of another store than the one that lies here now.
    is_other_store: AtomicBool,
    is_created: AtomicBool,
    size: AtomicU64,
}

impl HeadLog {
    /// A record of nothing.
    pub(super) fn disabled() -> Self {
        Self {
            path: None,
            header: String::new(),
            is_other_store: AtomicBool::new(false),
            is_created: AtomicBool::new(false),
            size: AtomicU64::new(0),
        }
    }

    /// The record of the store with this number in the folder of threads `threads`. `is_empty` says that the store has no
    /// thread yet: it then replaces whatever was here.
    pub(super) fn open(signing_keys: &Path, threads: &Path, store: i64, is_empty: bool) -> Self {
        let folder = signing_keys.join(HEADS_DIR);
        let path = folder.join(Digest::of(threads.as_os_str().as_encoded_bytes()).to_hex());
        let header = header(threads, store);
        let found = Header::read(&path);
        let is_same = found.as_ref().is_some_and(|found| found.store == store);
        let is_moved = !is_same && migrate_moved(&folder, &path, &header, store);
        let is_replaced = !is_same && !is_moved && is_empty && found.is_some();
        // The store that was here is gone, and so is what was known of it.
        if is_replaced && file::write_atomic(&path, header.as_bytes(), FileMode::Private).is_err() {
            return Self::disabled();
        }
        Self {
            is_other_store: AtomicBool::new(found.is_some() && !is_same && !is_moved && !is_replaced),
            is_created: AtomicBool::new(found.is_some() || is_moved),
            size: AtomicU64::new(path.metadata().map_or(0, |metadata| metadata.len())),
            path: Some(path),
            header,
        }
    }

    /// Whether the store that lies here is not the one that was last used here.
    pub(super) fn is_other_store(&self) -> bool {
        self.is_other_store.load(Ordering::Relaxed)
    }

    /// Whether how far threads have come can be known at all.
    pub(super) fn is_available(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.exists())
    }

    /// Records how far threads have come. A record that cannot be written stays as it is: it then says less, never more.
    pub(super) fn add(&self, heads: &[(ThreadId, RowHead)]) {
        let mut latest: HashMap<&str, &RowHead> = HashMap::new();
        for (thread, head) in heads {
            latest.insert(thread.as_str(), head);
        }
        let mut lines = String::new();
        for (thread, head) in latest {
            push_line(&mut lines, thread, head);
        }
        self.append(&lines);
    }

    /// Records that threads are about to be removed.
    pub(super) fn mark_pruned<'a>(&self, threads: impl Iterator<Item = &'a ThreadId>) {
        let mut lines = String::new();
        for thread in threads {
            let _ = writeln!(lines, "{thread} gone");
        }
        self.append(&lines);
    }

    fn append(&self, lines: &str) {
        let Some(path) = &self.path else { return };
        // What the user last used stays on record until they accept the other store.
        if lines.is_empty() || self.is_other_store() {
            return;
        }
        let is_written = if self.is_created.load(Ordering::Relaxed) {
            file::append(path, lines.as_bytes()).is_ok()
        } else {
            self.create(path, lines)
        };
        if is_written && self.size.fetch_add(lines.len() as u64, Ordering::Relaxed) > COMPACT_THRESHOLD_BYTES
        {
            self.compact(path);
        }
    }

    fn create(&self, path: &Path, lines: &str) -> bool {
        let Some(folder) = path.parent() else { return false };
        if file::create_dirs(folder, true).is_err() {
            return false;
        }
        evict_old_logs(folder);
        let text = format!("{}{lines}", self.header);
        let is_created = match file::write_new(path, text.as_bytes(), FileMode::Private) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Another process was faster, or a power cut took the first line.
                if Header::read(path).is_none() {
                    self.compact(path);
                }
                file::append(path, lines.as_bytes()).is_ok()
            }
            Err(_) => false,
        };
        self.is_created.store(is_created, Ordering::Relaxed);
        is_created
    }

    /// Writes the record without outdated lines.
    fn compact(&self, path: &Path) {
        let Some(_lock) = path.parent().and_then(|folder| Lock::acquire_dir(folder).ok()) else { return };
        let mut text = self.header.clone();
        let (known, order) = read_log(path);
        for thread in order.iter().skip(order.len().saturating_sub(MAX_THREADS)) {
            if let Some(RecordedHead { head: Some(head), is_pruned: false }) = known.get(thread) {
                push_line(&mut text, thread, head);
            }
        }
        if file::write_atomic(path, text.as_bytes(), FileMode::Private).is_ok() {
            self.size.store(text.len() as u64, Ordering::Relaxed);
        }
    }

    /// Everything that is recorded, by thread. Read it before the store: the store is then at least as far.
    pub(super) fn load(&self) -> HashMap<String, RecordedHead> {
        self.path.as_deref().map(|path| read_log(path).0).unwrap_or_default()
    }

    /// Makes the store as it is now the latest.
    pub(super) fn accept(&self, heads: &[(ThreadId, RowHead)]) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut text = self.header.clone();
        for (thread, head) in heads.iter().skip(heads.len().saturating_sub(MAX_THREADS)) {
            push_line(&mut text, thread.as_str(), head);
        }
        if let Some(folder) = path.parent() {
            file::create_dirs(folder, true)?;
        }
        file::write_atomic(path, text.as_bytes(), FileMode::Private)?;
        self.is_other_store.store(false, Ordering::Relaxed);
        self.is_created.store(true, Ordering::Relaxed);
        self.size.store(text.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether anything is recorded beside this key.
pub(super) fn has_logs(signing_keys: &Path) -> bool {
    let entries = fs_err::read_dir(signing_keys.join(HEADS_DIR)).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| Header::read(&entry.path()).is_some())
}

fn header(threads: &Path, store: i64) -> String {
    let path = serde_json::Value::String(threads.to_string_lossy().into_owned());
    format!("{HEADER} {store} {path}\n")
}

/// The first line of a record.
struct Header {
    store: i64,
    threads: PathBuf,
}

impl Header {
    fn read(path: &Path) -> Option<Self> {
        let mut first = Vec::new();
        let file = fs_err::File::open(path).ok()?;
        BufReader::new(file.take(MAX_HEADER_BYTES)).read_until(b'\n', &mut first).ok()?;
        let first = first.strip_suffix(b"\n")?;
        let rest = std::str::from_utf8(first).ok()?.strip_prefix(HEADER)?.trim_start();
        let (store, line_number) = rest.split_once(' ')?;
        let threads: String = serde_json::from_str(line_number).ok()?;
        Some(Self { store: store.parse().ok()?, threads: PathBuf::from(threads) })
    }
}

/// Takes over what was recorded of a store where it lay before; whether there was something. A store that still lies there is
/// another one: this is a copy of it.
fn migrate_moved(folder: &Path, path: &Path, header: &str, store: i64) -> bool {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let old = entry.path();
        let is_same_store = old != path
            && Header::read(&old)
                .is_some_and(|found| found.store == store && !found.threads.join(DATABASE).exists());
        if is_same_store {
            let mut text = header.to_owned();
            let (known, order) = read_log(&old);
            for thread in &order {
                if let Some(RecordedHead { head: Some(head), is_pruned: false }) = known.get(thread) {
                    push_line(&mut text, thread, head);
                }
            }
            return file::write_atomic(path, text.as_bytes(), FileMode::Private).is_ok()
                && file::remove(&old).is_ok();
        }
    }
    false
}

/// Removes records until there is room for one more: first of stores that are gone, then those not written for longest.
fn evict_old_logs(folder: &Path) {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let path = entry.path();
            let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            (path, modified)
        })
        .collect();
    if all.len() < MAX_STORES {
        return;
    }
    all.sort_by_key(|(path, modified)| {
        let is_there = Header::read(path).is_some_and(|found| found.threads.join(DATABASE).exists());
        (is_there, *modified)
    });
    for (path, _) in all.iter().take(all.len() + 1 - MAX_STORES) {
        // The next one tries again.
        let _ = file::remove(path);
    }
}

fn push_line(text: &mut String, thread: &str, head: &RowHead) {
    let _ = write!(text, "{thread} {} ", head.revision);
    head.mac.iter().for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text.push('\n');
}

/// What a record says of each thread, and the threads in the order of their last lines. Lines that are not whole say nothing.
fn read_log(path: &Path) -> (HashMap<String, RecordedHead>, Vec<String>) {
    let bytes = file::read_bounded(path, MAX_READ_BYTES).map(|(bytes, _)| bytes).unwrap_or_default();
    let mut known: HashMap<String, RecordedHead> = HashMap::new();
    let mut last_lines: HashMap<String, usize> = HashMap::new();
    for (line_number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        // A power cut may leave noughts where lines were.
        let Some((thread, entry)) =
            std::str::from_utf8(line).ok().and_then(|line| parse_line(line.trim_start_matches('\0')))
        else {
            continue;
        };
        let recorded = known.entry(thread.to_owned()).or_default();
        match entry {
            None => recorded.is_pruned = true,
            Some(head) if recorded.head.is_none_or(|last| head.revision >= last.revision) => {
                *recorded = RecordedHead { head: Some(head), is_pruned: false };
            }
            Some(_) => {}
        }
        last_lines.insert(thread.to_owned(), line_number);
    }
    let mut order: Vec<(usize, String)> =
        last_lines.into_iter().map(|(thread, line_number)| (line_number, thread)).collect();
    order.sort_unstable();
    (known, order.into_iter().map(|(_, thread)| thread).collect())
}

fn parse_line(line: &str) -> Option<(&str, Option<RowHead>)> {
    let mut words = line.split(' ');
    let thread = words.next().filter(|word| ThreadId::parse(word).is_ok())?;
    let revision = words.next()?;
    if revision == "gone" && words.next().is_none() {
        return Some((thread, None));
    }
    let revision = revision.parse().ok()?;
    let code = words.next().filter(|code| code.len() == 32 && code.is_ascii())?;
    let mut mac = [0; 16];
    for (byte, offset) in mac.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(code.get(offset..offset + 2)?, 16).ok()?;
    }
    words.next().is_none().then_some((thread, Some(RowHead { revision, mac })))
}
