//! What holds a journal together: each entry's hash covers the one before, and the last is sealed with the user's secret.

use lillux::Digest;

use super::secret::{Mac, macs_equal};
use rye_store::BudgetCaps;
pub(super) use rye_store::{journal_genesis as genesis, next_journal_hash as next_hash};

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
