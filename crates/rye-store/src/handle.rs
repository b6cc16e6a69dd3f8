//! A store for code that is not asynchronous: the same questions, answered by waiting.

use std::sync::Arc;

use lillux_hash::Digest;
use rye_thread::thread_id::ThreadId;

use crate::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeReceiver, ChangedThreads, Charge,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, RollingBudget, RollingUsage,
    SpawnCaps, StoreFreshness, StoreFuture, Submission, SubmittedThread, ThreadCommit, ThreadFilter,
    ThreadProgress, ThreadRow, ThreadStore, ThreadStoreError, ThreadTransfer, TreeTotals, WorkerRecord,
    block_on,
};

/// A shared store. Writes on the way of a thread are asynchronous, questions wait; [`StoreHandle::shared`] gives the
/// store itself, of which everything is asynchronous.
#[derive(Clone, Debug)]
pub struct StoreHandle(Arc<dyn ThreadStore>);

impl From<Arc<dyn ThreadStore>> for StoreHandle {
    fn from(store: Arc<dyn ThreadStore>) -> Self {
        Self(store)
    }
}

/// Methods that wait for those of the store with the same name.
macro_rules! waiting {
    ($($(#[$doc:meta])* $name:ident => $method:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        impl StoreHandle {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As the store's own method.
                pub fn $name(&self, $($arg: $type),*) -> Result<$out, ThreadStoreError> {
                    block_on(self.0.$method($($arg),*))
                }
            )*
        }
    };
}

waiting! {
    /// See [`ThreadStore::create`].
    create_blocking => create(new: NewThread) -> CreateOutcome;
    /// See [`ThreadStore::commit`].
    commit_blocking => commit(commit: ThreadCommit) -> CommitOutcome;
    /// See [`ThreadStore::admit`].
    admit => admit(id: &ThreadId, claim: Claim, caps: SpawnCaps, at_ms: u64) -> bool;
    /// See [`ThreadStore::claim`].
    claim => claim(id: &ThreadId, owner: &Owner, policy: ClaimPolicy, at_ms: u64) -> ClaimOutcome;
    /// See [`ThreadStore::release_claim`].
    release_claim => release_claim(id: &ThreadId, claim: Claim) -> ();
    /// See [`ThreadStore::orphans`].
    orphans => orphans(observer: &Owner, policy: ClaimPolicy) -> Vec<ThreadRow>;
    /// See [`ThreadStore::has_detached`].
    has_detached => has_detached() -> bool;
    /// See [`ThreadStore::set_note`].
    set_note => set_note(id: &ThreadId, reason: &str) -> ();
    /// See [`ThreadStore::request_cancel`].
    request_cancel => request_cancel(id: &ThreadId, reason: &str, at_ms: u64) -> ();
    /// See [`ThreadStore::cancel_requests`].
    cancel_requests => cancel_requests() -> Vec<CancelRequest>;
    /// See [`ThreadStore::clear_cancel_request`].
    clear_cancel_request => clear_cancel_request(id: &ThreadId) -> ();
    /// See [`ThreadStore::open_reservations`].
    open_reservations => open_reservations(id: &ThreadId) -> Vec<Reservation>;
    /// See [`ThreadStore::journal`].
    journal => journal(id: &ThreadId) -> Vec<JournalRecord>;
    /// See [`ThreadStore::thread`].
    thread => thread(id: &ThreadId) -> Option<ThreadRow>;
    /// See [`ThreadStore::verified_thread`].
    verified_thread => verified_thread(id: &ThreadId) -> Option<ThreadRow>;
    /// See [`ThreadStore::threads`].
    threads => threads(filter: &ThreadFilter) -> Vec<ThreadRow>;
    /// See [`ThreadStore::children`].
    children => children(id: &ThreadId) -> Vec<ThreadRow>;
    /// See [`ThreadStore::subtree`].
    subtree => subtree(id: &ThreadId) -> Vec<ThreadRow>;
    /// See [`ThreadStore::ancestors`].
    ancestors => ancestors(id: &ThreadId) -> Vec<ThreadRow>;
    /// See [`ThreadStore::chain`].
    chain => chain(row: &ThreadRow) -> Vec<ThreadRow>;
    /// See [`ThreadStore::tree_totals`].
    tree_totals => tree_totals(id: &ThreadId) -> TreeTotals;
    /// See [`ThreadStore::ledger`].
    ledger => ledger(id: &ThreadId) -> LedgerRow;
    /// See [`ThreadStore::charges`].
    charges => charges(id: &ThreadId, scope: ChargeScope) -> Vec<Charge>;
    /// See [`ThreadStore::rolling_usage`].
    rolling_usage => rolling_usage(budgets: &[RollingBudget]) -> Vec<RollingUsage>;
    /// See [`ThreadStore::put_blob`].
    put_blob_blocking => put_blob(bytes: Vec<u8>, at_ms: u64) -> Digest;
    /// See [`ThreadStore::put_blob_for`].
    put_blob_for => put_blob_for(thread: &ThreadId, bytes: Vec<u8>, at_ms: u64) -> Digest;
    /// See [`ThreadStore::blob`].
    blob => blob(digest: &Digest) -> Vec<u8>;
    /// See [`ThreadStore::answer_approval`].
    answer_approval => answer_approval(id: &str, answer: &ApprovalDecision) -> Approval;
    /// See [`ThreadStore::approval`].
    approval => approval(id: &str) -> Option<ApprovalRecord>;
    /// See [`ThreadStore::open_approvals`].
    open_approvals => open_approvals(below: Option<&ThreadId>) -> OpenApprovals;
    /// See [`ThreadStore::answered_threads`].
    answered_threads => answered_threads() -> Vec<ThreadId>;
    /// See [`ThreadStore::audit`].
    audit => audit() -> Vec<String>;
    /// See [`ThreadStore::last_position`].
    last_position => last_position() -> Option<u64>;
    /// See [`ThreadStore::changed_since`].
    changed_since => changed_since(position: u64, max_records: u64) -> Option<ChangedThreads>;
    /// See [`ThreadStore::data_version`].
    data_version => data_version() -> i64;
    /// See [`ThreadStore::freshness`].
    freshness => freshness() -> StoreFreshness;
    /// See [`ThreadStore::ensure_current`].
    ensure_current => ensure_current() -> ();
    /// See [`ThreadStore::accept_older`].
    accept_older => accept_older() -> ();
    /// See [`ThreadStore::transcript`].
    transcript => transcript(id: &ThreadId, from: u64) -> Vec<u8>;
    /// See [`ThreadStore::submission`].
    submission => submission(id: &ThreadId) -> Option<Submission>;
    /// See [`ThreadStore::submitted`].
    submitted => submitted(observer: &Owner, policy: ClaimPolicy, only: Option<&ThreadId>) -> Vec<SubmittedThread>;
    /// See [`ThreadStore::request_resume`].
    request_resume => request_resume(id: &ThreadId, decision: &ApprovalDecision) -> ();
    /// See [`ThreadStore::put_worker`].
    put_worker => put_worker(name: &str, body: &str, at_ms: u64) -> ();
    /// See [`ThreadStore::workers`].
    workers => workers() -> Vec<WorkerRecord>;
    /// See [`ThreadStore::transferable`].
    transferable => transferable() -> Vec<ThreadId>;
    /// See [`ThreadStore::export_tree`].
    export_tree => export_tree(root: &ThreadId) -> Vec<ThreadTransfer>;
    /// See [`ThreadStore::import_tree`].
    import_tree => import_tree(threads: Vec<ThreadTransfer>, at_ms: u64) -> ();
    /// See [`ThreadStore::forget_tree`].
    forget_tree => forget_tree(exported: Vec<ThreadProgress>) -> ();
    /// See [`ThreadStore::prune`].
    prune => prune(options: &PruneOptions) -> PruneReport;
    /// See [`ThreadStore::prune_candidates`].
    prune_candidates => prune_candidates(options: &PruneOptions) -> Vec<ThreadId>;
    /// See [`ThreadStore::is_prune_due`].
    is_prune_due => is_prune_due(at_ms: u64) -> bool;
    /// See [`ThreadStore::prune_if_due`].
    prune_if_due => prune_if_due(options: &PruneOptions) -> Option<PruneReport>;
}

impl StoreHandle {
    /// The store itself.
    #[must_use]
    pub fn shared(&self) -> &Arc<dyn ThreadStore> {
        &self.0
    }

    /// See [`ThreadStore::keeps_transcripts`].
    #[must_use]
    pub fn keeps_transcripts(&self) -> bool {
        self.0.keeps_transcripts()
    }

    /// See [`ThreadStore::create`].
    pub fn create(&self, new: NewThread) -> StoreFuture<'_, CreateOutcome> {
        self.0.create(new)
    }

    /// See [`ThreadStore::commit`].
    pub fn commit(&self, commit: ThreadCommit) -> StoreFuture<'_, CommitOutcome> {
        self.0.commit(commit)
    }

    /// See [`ThreadStore::heartbeat`].
    pub fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> StoreFuture<'_, Vec<(ThreadId, Claim)>> {
        self.0.heartbeat(claims, at_ms)
    }

    /// See [`ThreadStore::put_blob`].
    pub fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> StoreFuture<'_, Digest> {
        self.0.put_blob(bytes, at_ms)
    }

    /// See [`ThreadStore::add_approval`].
    pub fn add_approval(&self, approval: Approval) -> StoreFuture<'_, ()> {
        self.0.add_approval(approval)
    }

    /// See [`ThreadStore::subscribe`].
    #[must_use]
    pub fn subscribe(&self) -> ChangeReceiver {
        self.0.subscribe()
    }
}
