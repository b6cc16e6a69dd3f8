//! A thread as one store gives it to another: what is kept of it but is not the store's own. Numbers of rows, seals and who runs
//! it stay behind; the store that takes it makes its own.

use lillux_hash::Digest;
use rye_thread::thread_id::ThreadId;

use crate::{ApprovalRecord, JournalRecord};

/// The columns of the registry that move, in the order of [`ThreadTransfer::row`].
#[macro_export]
macro_rules! transfer_thread_columns {
    () => {
        "thread_id, parent_id, head_seq, head_hash, max_spend, max_tokens, directive, title, depth, status, reason, result, \
         error, created_at, updated_at, completed_at, turns, input_tokens, output_tokens, spend, elapsed_ms, limits, \
         spawn_count, model, provider, capabilities, continuation_of, continuation_thread_id, chain_root_id, \
         transcript_sequence, transcript_hash, detached"
    };
}

/// The columns of the ledger that move, in the order of [`ThreadTransfer::ledger`].
#[macro_export]
macro_rules! transfer_ledger_columns {
    () => {
        "thread_id, parent_thread_id, reserved_spend, actual_spend, max_spend, status, created_at, updated_at, reserved_tokens, \
         actual_tokens, max_tokens, subtree_spend, subtree_reserved, subtree_tokens, subtree_reserved_tokens, unknown_spend"
    };
}

/// The columns of calls that move, in the order of each of [`ThreadTransfer::calls`].
#[macro_export]
macro_rules! transfer_call_columns {
    () => {
        "call, reserved_spend, reserved_tokens, is_settled, is_unknown, spend, passed_on, input_tokens, output_tokens, item, \
         model, tool, hook"
    };
}

/// A value of a column. What is true or false is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferValue {
    /// None.
    Null,
    /// A number.
    Integer(i64),
    /// A text, without NUL.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl TransferValue {
    /// A text as every store keeps it.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(text.replace('\0', "\u{fffd}"))
    }
}

/// A thread that moves from one store to another.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTransfer {
    /// Its name.
    pub id: ThreadId,
    /// The thread that started it.
    pub parent: Option<ThreadId>,
    /// Its row of the registry.
    pub row: Vec<TransferValue>,
    /// Its row of the ledger.
    pub ledger: Vec<TransferValue>,
    /// Its calls, by number.
    pub calls: Vec<Vec<TransferValue>>,
    /// Its journal.
    pub journal: Vec<JournalRecord>,
    /// Its questions and their answers, by name. Requests to resume it are not among them.
    pub approvals: Vec<ApprovalRecord>,
    /// The shared parts that it uses, in the order of their digests.
    pub blobs: Vec<Digest>,
    /// Its transcript, where the store keeps transcripts.
    pub transcript: Vec<u8>,
    /// Whether it has ended.
    pub is_ended: bool,
}

impl ThreadTransfer {
    /// The number and the hash of the last entry of its journal, and its maxima.
    #[must_use]
    pub fn head(&self) -> Option<TransferHead> {
        let number = |column: usize| match self.row.get(column) {
            Some(TransferValue::Integer(number)) => Some(*number),
            _ => None,
        };
        let Some(TransferValue::Bytes(hash)) = self.row.get(3) else { return None };
        let hash = Digest::from_bytes(<[u8; 32]>::try_from(hash.as_slice()).ok()?);
        Some(TransferHead { seq: number(2)?, hash, max_spend: number(4), max_tokens: number(5) })
    }

    /// How far the thread was when it was exported; `None` when its row is damaged.
    #[must_use]
    pub fn progress(&self) -> Option<ThreadProgress> {
        let TransferHead { seq, hash, .. } = self.head()?;
        let answers = self.approvals.iter().filter(|record| record.answer.is_some()).count();
        Some(ThreadProgress { thread: self.id.clone(), seq, hash, answers: i64::try_from(answers).ok()? })
    }
}

/// How far a thread is: another value as soon as it continues, or a question of it is answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadProgress {
    /// Its name.
    pub thread: ThreadId,
    /// The number of the last entry of its journal.
    pub seq: i64,
    /// The hash of that entry.
    pub hash: Digest,
    /// How many of its questions are answered. Requests to resume it do not count.
    pub answers: i64,
}

/// What a seal of a thread's journal covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferHead {
    /// The number of the last entry.
    pub seq: i64,
    /// Its hash.
    pub hash: Digest,
    /// The most money that the thread and all below it may spend, in nano-dollars.
    pub max_spend: Option<i64>,
    /// The most tokens that they may use.
    pub max_tokens: Option<i64>,
}

/// Whether a tree is as far as it was when it was exported: the same threads, none of which has continued.
#[must_use]
pub fn same_progress(exported: &[ThreadProgress], mut found: Vec<ThreadProgress>) -> bool {
    let mut exported = exported.to_vec();
    exported.sort();
    found.sort();
    exported == found
}

#[cfg(test)]
mod tests {
    #[test]
    fn head_columns_stand_where_they_are_read() {
        let names: Vec<&str> = transfer_thread_columns!().split(',').map(str::trim).collect();
        assert_eq!(
            names.get(..6),
            Some(&["thread_id", "parent_id", "head_seq", "head_hash", "max_spend", "max_tokens"][..])
        );
        assert_eq!(names.len(), 32);
        assert_eq!(transfer_ledger_columns!().split(',').count(), 16);
        assert_eq!(transfer_call_columns!().split(',').count(), 13);
    }
}
