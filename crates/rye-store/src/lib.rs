//! What a store of threads is: registry, journals and ledger of a space, behind one trait.
//!
//! ```text
//! create, commit, claim, heartbeat → ThreadStore ← thread, journal, ledger, approvals, …
//! ```
//!
//! A commit holds the records, settlements, reservation, status and approvals of one step: all of it is durable or none.
//! [`MemoryStore`] keeps everything in memory; `rye-store-sqlite` keeps it in a database. What any store must hold to is
//! the contract suite of `rye-test`.

mod block_on;
mod chain;
mod changes;
mod claims;
mod cluster;
mod error;
mod freshness;
mod handle;
mod memory;
mod owner;
mod prune;
mod records;
mod spawn_caps;
mod store;
mod transfer;
mod waits;

pub use block_on::{block_on, can_block};
pub use chain::{journal_genesis, next_journal_hash};
pub use changes::{ChangeHub, ChangeReceiver, ChangesLost};
pub use claims::ClaimPolicy;
pub use cluster::{
    MAX_TRANSCRIPT_READ_BYTES, RESUME_KIND, Submission, SubmittedThread, TranscriptPart, WorkerRecord,
    resume_question, resume_request_id,
};
pub use error::{Forgery, ThreadStoreError};
pub use freshness::StoreFreshness;
pub use handle::StoreHandle;
pub use memory::MemoryStore;
pub use owner::{Liveness, Owner, OwnerProbe};
pub use prune::{FolderDisposal, PruneOptions, PruneReport, PruneRow, TreeGroup, select_groups};
pub use records::{
    Approval, ApprovalDecision, ApprovalRecord, BudgetCaps, CancelRequest, ChangedThreads, Charge,
    ChargeScope, Claim, ClaimOutcome, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow, LedgerRules,
    MAX_CANCEL_REQUEST_AGE_MS, NewThread, OpenApprovals, Reservation, ReserveRequest, Settlement,
    StatusChange, ThreadChange, ThreadCommit, ThreadFilter, ThreadRow, TranscriptHead, TreeTotals,
};
pub use rye_thread::cost::Attribution;
pub use rye_thread::machine::{BudgetRefusal, BudgetResource};
pub use rye_thread::rolling::{BudgetPeriod, BudgetScope, RollingBudget, RollingRefusal, RollingUsage};
pub use spawn_caps::{SpawnCap, SpawnCaps};
pub use store::{StoreFuture, ThreadStore};
pub use transfer::{ThreadProgress, ThreadTransfer, TransferHead, TransferValue, same_progress};
pub use waits::{WAIT_LEASE_MS, WAIT_RENEWAL_MS, WaitKind};

/// The largest entry of a journal.
pub const MAX_RECORD_BYTES: usize = 64 << 20;
