//! What holds a journal together: each entry's hash covers the one before. Every store that is on disk has the same
//! hashes, so that a journal can move from one to another and still be checked.

use lillux_hash::Digest;
use lillux_hash::digest::Hasher;
use rye_thread::thread_id::ThreadId;

use crate::JournalRecord;

/// What a journal begins with: no two threads have the same beginning, so entries cannot move from one to another.
#[must_use]
pub fn journal_genesis(thread: &ThreadId) -> Digest {
    Digest::of_pieces([&b"rye journal 1\n"[..], thread.as_str().as_bytes()])
}

/// The hash of the entry with number `seq`.
#[must_use]
pub fn next_journal_hash(previous: &Digest, seq: u64, record: &JournalRecord) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(previous.as_bytes());
    for number in [seq, record.at_ms, record.sequence, record.body.len() as u64] {
        hasher.update(&number.to_be_bytes());
    }
    hasher.update(&record.body);
    hasher.finish()
}
