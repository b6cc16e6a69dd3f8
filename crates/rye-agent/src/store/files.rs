//! Transcripts that a store keeps, as files of this machine: what reads them reads files.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lillux::file::{self, Lock};
use rye_engine::Result;

use super::StoreHandle;
use crate::thread_id::ThreadId;
use crate::transcript;

/// How much of a file's end is compared with what the store has.
const MAX_OVERLAP_BYTES: u64 = 512;

/// Brings the file of a thread's transcript in `folder` up to what the store keeps; gives the file. Where the store keeps
/// none, the file is all there is.
///
/// # Errors
/// When the store cannot be read, or the file cannot be written.
pub fn fetch_transcript(store: &StoreHandle, folder: &Path, id: &ThreadId) -> Result<PathBuf> {
    let path = transcript::path(folder, id);
    if !store.keeps_transcripts() {
        return Ok(path);
    }
    file::create_dirs(folder, true)?;
    let dir = file::create_folders_beneath(folder, Path::new(id.as_str()), true)?;
    let _lock = Lock::acquire_dir(&dir)?;
    let mut length = fs_err::metadata(&path).map_or(0, |metadata| metadata.len());
    loop {
        let overlap = read_end(&path, length)?;
        let from = length - overlap.len() as u64;
        let bytes = store.transcript(id, from)?;
        // A process that took the thread over may have replaced what was read before.
        let Some(new) = bytes.strip_prefix(overlap.as_slice()) else {
            file::truncate(&path, 0)?;
            length = 0;
            continue;
        };
        if new.is_empty() {
            return Ok(path);
        }
        transcript::append(&path, new)?;
        length += new.len() as u64;
    }
}

/// The last bytes of a file of this length.
fn read_end(path: &Path, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if length > 0 {
        let mut file = file::open_regular(path)?;
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_OVERLAP_BYTES)))?;
        file.take(MAX_OVERLAP_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
