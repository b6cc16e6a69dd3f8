//! The store of threads, as a space has it: opened here and nowhere else, and used through its trait.

use std::path::Path;
use std::sync::Arc;

pub use rye_store::block_on;
pub use rye_store::{
    Approval, ApprovalDecision, ApprovalRecord, Attribution, BudgetCaps, BudgetRefusal, BudgetResource,
    ChangeReceiver, ChangedThreads, ChangesLost, Charge, ChargeScope, Claim, ClaimOutcome, ClaimPolicy,
    CommitOutcome, CreateOutcome, FolderDisposal, Forgery, JournalRecord, LedgerRow, LedgerRules, Liveness,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, ReserveRequest, Settlement,
    SpawnCap, SpawnCaps, StatusChange, StoreFreshness, StoreHandle, ThreadChange, ThreadCommit, ThreadFilter,
    ThreadRow, ThreadStore, ThreadStoreError, TranscriptHead, TreeTotals, WaitKind,
};
use rye_store_sqlite::SqliteStore;
pub use rye_store_sqlite::{
    ColumnSpec, DATABASE, IndexSpec, LedgerSpec, SystemProbe, ThreadSecret, current_owner, is_owner_gone,
};
pub use rye_store_sqlite::{StoreCondition, inspect as inspect_store, replace_database, thread_folders};

/// Opens the store in the folder of threads, making what is missing.
///
/// # Errors
/// When it is damaged, newer than this code, or cannot be made.
pub fn open_store(
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
) -> Result<StoreHandle, ThreadStoreError> {
    SqliteStore::open(folder, secret, spec).map(share)
}

/// Opens the store in the folder of threads if there is one; makes nothing.
///
/// # Errors
/// When it is damaged, or newer than this code.
pub fn open_existing_store(
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
) -> Result<Option<StoreHandle>, ThreadStoreError> {
    Ok(SqliteStore::open_existing(folder, secret, spec)?.map(share))
}

/// What is spent and reserved of budgets of a day or a month, without a store: the user's folder of keys has it.
///
/// # Errors
/// When it cannot be read.
pub fn rolling_usage(
    signing_keys: &Path,
    budgets: &[rye_store::RollingBudget],
) -> Result<Vec<rye_store::RollingUsage>, ThreadStoreError> {
    rye_store_sqlite::rolling_usage(signing_keys, budgets)
}

fn share(store: SqliteStore) -> StoreHandle {
    let store: Arc<dyn ThreadStore> = Arc::new(store);
    StoreHandle::from(store)
}
