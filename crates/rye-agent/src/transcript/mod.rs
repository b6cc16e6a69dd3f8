//! Transcripts: what a thread did, one event per line, chained by hashes and signed at checkpoints.
//!
//! Critical events follow from the journal: each names the hash of the one before (`prev`), so that the chain can be written
//! again after a crash and is the same. Droppable events stand between them. Checkpoints sign the chain so far and name the
//! checkpoint before. Nothing here decides what a thread does; reading never repairs.

mod lines;
mod read;
mod render;
#[cfg(test)]
mod tests;
mod verify;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use lillux::{Digest, Fingerprint, SecretKey};
use serde_json::Value;

pub(crate) use lines::TailCut;
pub use lines::{ReservedEventName, TranscriptLines, TranscriptTail};
pub(crate) use read::unfinished_answer;
pub use read::{TranscriptBatch, TranscriptEvent, TranscriptPosition, read};
pub use render::{PageHeader, render_markdown};
pub use verify::{TranscriptProblem, TranscriptReport, TranscriptStatus, verify};

pub use crate::config::Criticality;
pub use rye_item::timestamp::iso_timestamp;

use crate::thread_id::ThreadId;

/// A transcript's name in its thread's folder.
pub const TRANSCRIPT_FILE: &str = "transcript.jsonl";
/// The type of the events that sign.
const CHECKPOINT: &str = "checkpoint";
/// No line is longer; what is longer is not a line.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// An event that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent<'a> {
    /// `cognition_out`, `tool_call_start`, ….
    pub event_type: &'a str,
    /// When.
    pub at_ms: u64,
    /// What.
    pub payload: Value,
    /// Whether it may be lost.
    pub criticality: Criticality,
    /// Its number in the thread.
    pub sequence: u64,
}

/// The signer of checkpoints.
#[derive(Debug)]
pub struct TranscriptSigner {
    key: SecretKey,
    fingerprint: Fingerprint,
}

impl TranscriptSigner {
    /// With this key.
    #[must_use]
    pub fn new(key: SecretKey) -> Self {
        let fingerprint = key.public_key().fingerprint();
        Self { key, fingerprint }
    }

    /// The key that verifies them.
    #[must_use]
    pub fn public(&self) -> lillux::PublicKey {
        self.key.public_key()
    }

    /// Whose signatures they are.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
}

/// Where a thread's transcript is, below the folder of threads.
#[must_use]
pub fn path(threads: &Path, thread: &ThreadId) -> PathBuf {
    threads.join(thread.as_str()).join(TRANSCRIPT_FILE)
}

/// Opens a transcript, if there is one, and nothing that would have to be waited for. A link to nothing is an error: no
/// lines would look like no events.
fn open(path: &Path) -> io::Result<Option<File>> {
    match lillux::file::open_regular(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
            match [Some(path), path.parent()].into_iter().flatten().find(|path| is_link(path)) {
                Some(link) => Err(io::Error::other(format!("`{}` is a link to nothing", link.display()))),
                None => Ok(None),
            }
        }
        Err(error) => Err(error),
    }
}

/// The largest transcript that is read as a whole.
const MAX_TRANSCRIPT_BYTES: u64 = 4 << 30;

/// The bytes of a transcript; none where there is no file.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    match lillux::file::read_bounded(path, MAX_TRANSCRIPT_BYTES) {
        Ok((bytes, _)) => Ok(bytes),
        Err(error) if error.is_absent() => Ok(Vec::new()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Writes lines behind a transcript, in one write. They are durable when the system says so: what must not be lost is in
/// the journal.
///
/// # Errors
/// When the system refuses.
pub fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    lillux::file::append(path, lines)
}

/// What a chain begins with.
fn genesis(thread: &ThreadId) -> Digest {
    Digest::of_pieces([&b"rye transcript 1\n"[..], thread.as_str().as_bytes()])
}

/// What a checkpoint vouches for.
struct CheckpointClaim<'a> {
    thread: &'a str,
    turn: u64,
    byte_offset: u64,
    sequence: u64,
    hash: &'a str,
    previous: &'a str,
    timestamp: &'a str,
    /// The lines outside the chain since the last checkpoint, if there are any.
    unchained: Option<&'a str>,
}

impl CheckpointClaim<'_> {
    fn digest(&self) -> Digest {
        let text = format!(
            "rye checkpoint 1\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}",
            self.thread,
            self.turn,
            self.byte_offset,
            self.sequence,
            self.hash,
            self.previous,
            self.timestamp,
            self.unchained.unwrap_or_default()
        );
        Digest::of(text.as_bytes())
    }
}

/// Lines outside the chain, one after the other: a crash may lose them; adding or changing one is tampering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct UnchainedDigest(Option<Digest>);

impl UnchainedDigest {
    fn add(&mut self, line: Digest) {
        let before = self.to_hex().unwrap_or_default();
        self.0 = Some(Digest::of(format!("{before}\n{}", line.to_hex()).as_bytes()));
    }

    fn to_hex(&self) -> Option<String> {
        self.0.map(|digest| digest.to_hex())
    }
}
