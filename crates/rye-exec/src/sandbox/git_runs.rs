//! Notes of runs that are under way. If the process that would check a project's repositories after a run is killed, the next
//! one finds the note and checks.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lillux::owner::process_start;
use lillux::{Digest, file};
use serde::{Deserialize, Serialize};

use super::new_repositories::NewRepositorySearch;
use super::repositories::{PlantedRepository, RepositoryRecord};

/// The folder of the notes, in the cache.
const FOLDER: &str = "git-runs";
/// The largest note that is read.
const MAX_NOTE_BYTES: u64 = 16 << 20;
/// How long a run may have lasted before its note was left to its process.
const HANDOVER_MARGIN: Duration = Duration::from_secs(2);
/// The first byte of a note.
const RUNNING: &[u8; 1] = b"1";
const IDLE: &[u8; 1] = b"0";

/// What a note holds after its first byte.
#[derive(Serialize, Deserialize)]
struct RunNote {
    pid: u32,
    started: u64,
    record: RepositoryRecord,
}

/// A note that this process keeps for a project.
struct ActiveNote {
    file: File,
    runs: usize,
    record: RepositoryRecord,
}

/// The notes of this process, by path.
fn notes() -> MutexGuard<'static, HashMap<PathBuf, ActiveNote>> {
    static NOTES: OnceLock<Mutex<HashMap<PathBuf, ActiveNote>>> = OnceLock::new();
    NOTES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a run is under way, for as long as this lives.
#[derive(Debug)]
pub(super) struct RunMarker {
    path: PathBuf,
}

impl RunMarker {
    /// Begins a run. Without a note, which is for crashes only, the run goes ahead.
    pub(super) fn begin(cache: &Path, project: &Path, record: &RepositoryRecord) -> Option<Self> {
        let (folder, prefix) = (cache.join(FOLDER), note_prefix(project));
        let path = folder.join(format!("{prefix}{}", std::process::id()));
        let mut notes = notes();
        if let Some(note) = notes.get_mut(&path) {
            // While a run is under way, its own record counts: a later one may hold what it has made.
            if note.runs == 0 && note.begin(record).is_err() {
                return None;
            }
            note.runs += 1;
            return Some(Self { path });
        }
        let file = create(&folder, &path, record).ok()?;
        notes.insert(path.clone(), ActiveNote { file, runs: 1, record: record.clone() });
        drop(notes);
        Some(Self { path })
    }

    /// Leaves the note to a process that outlives this one.
    pub(super) fn transfer_to(self, pid: u32, record: &RepositoryRecord) {
        // Its folder and project are those of this process's own note.
        let own = self.path.with_extension(pid.to_string());
        if let Ok(note) = note_text(pid, record) {
            // Best effort: the note matters only if the process plants something.
            let _ = file::replace_unsynced(&own, &note);
            checked().retain(|key| !self.path.to_string_lossy().starts_with(&*key.to_string_lossy()));
        }
    }
}

impl Drop for RunMarker {
    fn drop(&mut self) {
        if let Some(note) = notes().get_mut(&self.path) {
            note.runs = note.runs.saturating_sub(1);
            if note.runs == 0 {
                // If it cannot be written, the next process checks again than needed.
                let _ = note.file.write_all_at(IDLE, 0);
            }
        }
    }
}

impl ActiveNote {
    /// Says that a run is under way.
    fn begin(&mut self, record: &RepositoryRecord) -> io::Result<()> {
        if self.record == *record {
            return self.file.write_all_at(RUNNING, 0);
        }
        let text = note_text(std::process::id(), record)?;
        self.file.set_len(0)?;
        self.file.write_all_at(&text, 0)?;
        self.record = record.clone();
        Ok(())
    }
}

fn create(folder: &Path, path: &Path, record: &RepositoryRecord) -> io::Result<File> {
    let text = note_text(std::process::id(), record)?;
    let open = || std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = open().or_else(|_| {
        file::create_dirs(folder, true)?;
        open()
    })?;
    file.write_all_at(&text, 0)?;
    Ok(file)
}

fn note_text(pid: u32, record: &RepositoryRecord) -> io::Result<Vec<u8>> {
    let started = process_start(pid).ok_or_else(|| io::Error::other("the process is gone"))?;
    let mut text = RUNNING.to_vec();
    serde_json::to_writer(&mut text, &RunNote { pid, started, record: record.clone() })?;
    Ok(text)
}

/// What the names of a project's notes begin with.
fn note_prefix(project: &Path) -> String {
    format!("{}.", Digest::of(project.as_os_str().as_encoded_bytes()).short())
}

/// Checks what runs of killed processes left, and removes their notes. Says what was moved aside. Once in each process, unless
/// others work on the project as well.
pub(super) fn check_abandoned(cache: &Path, project: &Path) -> Vec<PlantedRepository> {
    let (folder, prefix) = (cache.join(FOLDER), note_prefix(project));
    let key = folder.join(&prefix);
    let (mut refused, mut has_others) = (Vec::new(), false);
    if checked().contains(&key) {
        return refused;
    }
    for entry in folder.read_dir().into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let path = entry.path();
        let Ok((bytes, _)) = file::read_bounded(&path, MAX_NOTE_BYTES) else { continue };
        let (first, text) = bytes.split_at(1.min(bytes.len()));
        match serde_json::from_slice::<RunNote>(text) {
            Ok(note) if process_start(note.pid) == Some(note.started) => {
                has_others = true;
                continue;
            }
            Ok(note) if first == RUNNING => {
                let mut planted = note.record.check().planted;
                // The note was last written when the run began, or when it was left to its process.
                let written = path.metadata().and_then(|metadata| metadata.modified());
                if let Some(began) = written.ok().and_then(|written| written.checked_sub(HANDOVER_MARGIN)) {
                    let search = NewRepositorySearch::new(project, &note.record.write, began);
                    planted.extend(search.refuse_new(&note.record, &planted));
                }
                refused.extend(planted);
            }
            Ok(_) => {}
            // Its process is about to write it.
            Err(_) if process_start(pid).is_some() => {
                has_others = true;
                continue;
            }
            Err(_) => {}
        }
        // What cannot be removed is checked again.
        let _ = file::remove_unsynced(&path);
    }
    // As long as others are at work, one of them may be killed.
    if !has_others {
        checked().insert(key);
    }
    refused
}

/// The projects, by the names of their notes, that need no further check in this process.
fn checked() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static CHECKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    CHECKED.lock().unwrap_or_else(PoisonError::into_inner)
}
