//! The store under test: helpers, and what ordinary threads do.

mod basics;
mod budget;
mod condition;
mod forgery;
mod freshness;
mod processes;
mod retention;
mod rolling;

use std::path::{Path, PathBuf};

use lillux::Digest;
use tempfile::TempDir;

use rye_store::{
    Approval, ApprovalDecision, Attribution, BudgetCaps, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome,
    CreateOutcome, FolderDisposal, Forgery, JournalRecord, LedgerRules, NewThread, PruneOptions, PruneReport,
    ReserveRequest, Settlement, SpawnCaps, StatusChange, StoreFreshness, StoreHandle, ThreadCommit,
    ThreadFilter, ThreadStore, ThreadStoreError, TranscriptHead,
};
use rye_thread::limits::ThreadLimits;
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

use super::*;

mod contract {
    use super::*;

    fn open_for_contract(rules: &LedgerRules) -> (StoreHandle, Box<dyn std::any::Any>) {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = LedgerSpec { rules: rules.clone(), ..LedgerSpec::default() };
        let store =
            SqliteStore::open(&folder.path().join("threads"), &test_secret(), &spec).expect("a store");
        (share(store), Box::new(folder))
    }

    rye_test::store_contract!(open_for_contract);
}

/// A store in a folder of its own.
pub(super) struct TestStore {
    pub(super) folder: TempDir,
    pub(super) store: StoreHandle,
}

pub(super) fn test_secret() -> ThreadSecret {
    ThreadSecret::new([42; 32])
}

pub(super) fn open_store(folder: &Path) -> StoreHandle {
    share(
        SqliteStore::open(&folder.join("threads"), &test_secret(), &LedgerSpec::default()).expect("a store"),
    )
}

pub(super) fn open_at(
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
) -> Result<StoreHandle, ThreadStoreError> {
    SqliteStore::open(folder, secret, spec).map(share)
}

pub(super) fn open_existing_at(
    folder: &Path,
    secret: &ThreadSecret,
    spec: &LedgerSpec,
) -> Result<Option<StoreHandle>, ThreadStoreError> {
    Ok(SqliteStore::open_existing(folder, secret, spec)?.map(share))
}

pub(super) fn share(store: SqliteStore) -> StoreHandle {
    let store: Arc<dyn ThreadStore> = Arc::new(store);
    StoreHandle::from(store)
}

pub(super) fn test_store() -> TestStore {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_store(folder.path());
    TestStore { folder, store }
}

pub(super) fn thread_id(number: u64) -> ThreadId {
    ThreadId::parse(&format!("thread-{number:012x}")).expect("a name")
}

pub(super) fn record(body: &str) -> JournalRecord {
    JournalRecord { at_ms: 1_000, sequence: 1, body: body.as_bytes().to_vec() }
}

pub(super) fn new_thread(number: u64, parent: Option<u64>) -> NewThread {
    NewThread {
        id: thread_id(number),
        directive: "demo/hello".to_owned(),
        title: "Hello".to_owned(),
        parent: parent.map(thread_id),
        continuation_of: None,
        limits: ThreadLimits::default(),
        max_spend: None,
        max_tokens: None,
        capabilities: Digest::of(b"none"),
        model: "model".to_owned(),
        provider: "provider".to_owned(),
        caps: SpawnCaps::default(),
        owner: Some(current_owner()),
        is_detached: false,
        submission: None,
        blobs: Vec::new(),
        records: vec![record("first")],
        at_ms: 1_000,
    }
}

impl TestStore {
    /// The folder of threads.
    pub(super) fn threads_dir(&self) -> PathBuf {
        self.folder.path().join("threads")
    }

    /// The database itself, for those who tamper with it.
    pub(super) fn tamper(&self, sql: &str) {
        tamper(self.folder.path(), sql);
    }

    pub(super) fn create(&self, new: NewThread) -> Claim {
        match self.store.create_blocking(new).expect("created") {
            CreateOutcome::Created { claim, .. } => claim,
            refused @ CreateOutcome::Refused { .. } => panic!("{refused:?}"),
        }
    }

    pub(super) fn commit(&self, commit: ThreadCommit) -> CommitOutcome {
        self.store.commit_blocking(commit).expect("committed")
    }
}

#[expect(clippy::disallowed_methods, reason = "a forger opens databases")]
pub(super) fn tamper(folder: &Path, sql: &str) {
    let path = folder.join("threads").join(DATABASE);
    let connection = Connection::open(path).expect("the database");
    connection.busy_timeout(connection::BUSY_TIMEOUT).expect("patience");
    connection.execute_batch(sql).expect("tampered with");
}

pub(super) fn reserve(call: u64, spend: u64) -> Option<ReserveRequest> {
    Some(ReserveRequest { call, spend: Nanos(spend), tokens: 10, can_wait: false })
}

pub(super) fn settle(call: u64, spend: u64) -> Settlement {
    Settlement {
        call,
        spend: Nanos(spend),
        input_tokens: 3,
        output_tokens: 4,
        is_unknown: false,
        attribution: Attribution {
            item: "demo/hello".to_owned(),
            model: "model".to_owned(),
            tool: None,
            hook: None,
        },
    }
}
