//! The store of threads: opened here and nowhere else, and used through its trait.
//!
//! A space has one of its own, in files; or the user's signed settings name one that several machines share (`shared`).

mod files;
mod migrate;
mod password;
mod shared;
mod shared_keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::LockedTempDir;
use rye_engine::{Engine, Result};

use crate::cluster::ThreadDispatch;
pub use files::fetch_transcript;
pub use migrate::{MigrationReport, MigrationStore, StoreRole, migrate};
pub use rye_store::block_on;
pub use rye_store::{
    Approval, ApprovalDecision, ApprovalRecord, Attribution, BudgetCaps, BudgetRefusal, BudgetResource,
    ChangeReceiver, ChangedThreads, ChangesLost, Charge, ChargeScope, Claim, ClaimOutcome, ClaimPolicy,
    CommitOutcome, CreateOutcome, FolderDisposal, Forgery, JournalRecord, LedgerRow, LedgerRules, Liveness,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, RESUME_KIND, Reservation, ReserveRequest,
    Settlement, SpawnCap, SpawnCaps, StatusChange, StoreFreshness, StoreHandle, Submission, SubmittedThread,
    ThreadChange, ThreadCommit, ThreadFilter, ThreadProgress, ThreadRow, ThreadStore, ThreadStoreError,
    ThreadTransfer, TranscriptHead, TranscriptPart, TreeTotals, WaitKind, WorkerRecord, resume_request_id,
};
use rye_store_postgres::LocalClock;
use rye_store_sqlite::SqliteStore;
pub use rye_store_sqlite::{
    ColumnSpec, DATABASE, IndexSpec, LedgerSpec, SystemProbe, ThreadSecret, current_owner, is_owner_gone,
};
pub use rye_store_sqlite::{
    StoreCondition, check_rolling_budgets, inspect as inspect_store, replace_database, thread_folders,
};

pub use shared::{SHARED_LEASE_MS, SharedStoreConfig, key_text, may_be_shared};
pub use shared_keys::{CurrentKeys, SharedKeys, find_signer, revoked_text};

/// A store as a process works with it.
pub struct OpenedStore {
    /// The store.
    pub store: StoreHandle,
    /// Where files of the threads that run here are.
    pub folder: PathBuf,
    /// Keeps that folder, where it is this process's own.
    pub work_dir: Option<LockedTempDir>,
    /// Where files of threads that are looked at are.
    pub files: PathBuf,
    /// The keys whose transcripts count, beside the own one.
    pub keys: Vec<Arc<SharedKeys>>,
    /// Whether other machines share it.
    pub is_shared: bool,
    /// What calls workers for threads that wait, if its settings name it.
    pub dispatch: Option<Arc<dyn ThreadDispatch>>,
}

impl std::fmt::Debug for OpenedStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "OpenedStore({:?})", self.store)
    }
}

/// Opens the store that holds the threads of a place, making what is missing: the one that the user's settings name, else
/// the one in the folder of threads.
///
/// # Errors
/// When it is damaged, newer than this code, or cannot be reached or made.
pub fn open_configured(
    engine: &Engine,
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
    clock: LocalClock,
) -> Result<OpenedStore> {
    let Some(config) = SharedStoreConfig::current(engine)? else {
        return Ok(OpenedStore {
            store: open_store(folder, secret, spec)?,
            folder: folder.to_owned(),
            work_dir: None,
            files: folder.to_owned(),
            keys: SharedStoreConfig::all_keys(engine),
            is_shared: false,
            dispatch: None,
        });
    };
    open_shared(engine, &config, folder, spec, clock)
}

/// Opens a store that several machines share, for the threads of a place.
///
/// # Errors
/// When it cannot be reached, is newer than this code, or there is no key to sign with.
pub fn open_shared(
    engine: &Engine,
    config: &SharedStoreConfig,
    place: &Path,
    spec: &LedgerSpec,
    clock: LocalClock,
) -> Result<OpenedStore> {
    let roots = &engine.workspace.roots;
    let store = config.open(engine, place, spec.rules.clone(), clock)?;
    let work_dir = config.work_dir(roots)?;
    Ok(OpenedStore {
        store,
        folder: work_dir.path().to_owned(),
        work_dir: Some(work_dir),
        files: config.cache_dir(roots).join("files"),
        keys: vec![Arc::clone(&config.keys)],
        is_shared: true,
        dispatch: config.dispatch(),
    })
}

/// Opens the store in the folder of threads, making what is missing.
///
/// # Errors
/// When it is damaged, newer than this code, or cannot be made.
pub fn open_store(
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
) -> std::result::Result<StoreHandle, ThreadStoreError> {
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
) -> std::result::Result<Option<StoreHandle>, ThreadStoreError> {
    Ok(SqliteStore::open_existing(folder, secret, spec)?.map(share))
}

/// What is spent and reserved of budgets of a day or a month, without a store: the user's folder of keys has it.
///
/// # Errors
/// When it cannot be read.
pub fn rolling_usage(
    signing_keys: &Path,
    budgets: &[rye_store::RollingBudget],
) -> std::result::Result<Vec<rye_store::RollingUsage>, ThreadStoreError> {
    rye_store_sqlite::rolling_usage(signing_keys, budgets)
}

fn share(store: SqliteStore) -> StoreHandle {
    let store: Arc<dyn ThreadStore> = Arc::new(store);
    StoreHandle::from(store)
}
