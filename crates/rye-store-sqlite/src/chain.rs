//! What holds a journal together: each entry's hash covers the one before, and the last is sealed with the user's secret.

use lillux::Digest;
use lillux::digest::Hasher;

use super::secret::{Mac, macs_equal};
use rye_store::{BudgetCaps, JournalRecord};
use rye_thread::thread_id::ThreadId;

/// What a journal begins with: no two threads have the same beginning, so entries cannot move from one to another.
pub(super) fn genesis(thread: &ThreadId) -> Digest {
    Digest::of_pieces([&b"rye journal 1\n"[..], thread.as_str().as_bytes()])
}

/// The hash of the entry with number `seq`.
pub(super) fn next_hash(previous: &Digest, seq: u64, record: &JournalRecord) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(previous.as_bytes());
    for number in [seq, record.at_ms, record.sequence, record.body.len() as u64] {
        hasher.update(&number.to_be_bytes());
    }
    hasher.update(&record.body);
    hasher.finish()
}

/// What is sealed of a thread.
pub(super) struct JournalHead<'a> {
    pub(super) thread: &'a str,
    pub(super) parent: Option<&'a str>,
    pub(super) seq: u64,
    pub(super) hash: &'a [u8],
    pub(super) caps: BudgetCaps,
}

impl JournalHead<'_> {
    /// The seal.
    pub(super) fn mac(&self, mac: &Mac) -> Digest {
        let seq = self.seq.to_be_bytes();
        let spend = self.caps.spend.map(|spend| spend.0.to_be_bytes());
        let tokens = self.caps.tokens.map(u64::to_be_bytes);
        mac.compute_fields(
            "journal head 1",
            [
                Some(self.thread.as_bytes()),
                self.parent.map(str::as_bytes),
                Some(&seq),
                Some(self.hash),
                spend.as_ref().map(<[u8; 8]>::as_slice),
                tokens.as_ref().map(<[u8; 8]>::as_slice),
            ],
        )
    }

    /// Whether this is its seal.
    pub(super) fn is_valid_mac(&self, mac: &Mac, seal: &[u8]) -> bool {
        macs_equal(&self.mac(mac), seal)
    }
}
