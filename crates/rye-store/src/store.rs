//! The trait: what a store of threads does.

use std::pin::Pin;

use lillux_hash::Digest;
use rye_thread::thread_id::ThreadId;

use crate::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeReceiver, ChangedThreads, Charge,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, RollingBudget, RollingUsage,
    SpawnCaps, StoreFreshness, Submission, SubmittedThread, ThreadCommit, ThreadFilter, ThreadProgress,
    ThreadRow, ThreadStoreError, ThreadTransfer, TreeTotals, WorkerRecord,
};

/// What a store answers, later. It needs no runtime to get there.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ThreadStoreError>> + Send + 'a>>;

/// Registry, journals and ledger of a space's threads.
///
/// A write that has been answered is durable. A write that failed has changed nothing. Each method fails with
/// [`ThreadStoreError::NoThread`] for a thread that is not there, unless it gives an option, and when the store itself
/// fails.
pub trait ThreadStore: std::fmt::Debug + Send + Sync {
    /// Makes a thread: its row, its row of the ledger, its first records and what its parent counts, at once.
    fn create(&self, new: NewThread) -> StoreFuture<'_, CreateOutcome>;

    /// Makes one step of a thread durable: records, settlements, reservation, status and approvals in one transaction.
    /// A claim that is not the thread's latest is refused ([`ThreadStoreError::Fenced`]).
    fn commit(&self, commit: ThreadCommit) -> StoreFuture<'_, CommitOutcome>;

    /// Gives a child that waits its place among its siblings, if it is its turn; says whether it has one. A thread that
    /// does not wait has.
    fn admit<'a>(
        &'a self,
        id: &'a ThreadId,
        claim: Claim,
        caps: SpawnCaps,
        at_ms: u64,
    ) -> StoreFuture<'a, bool>;

    /// Claims a thread for a process, so that it alone can commit.
    fn claim<'a>(
        &'a self,
        id: &'a ThreadId,
        owner: &'a Owner,
        policy: ClaimPolicy,
        at_ms: u64,
    ) -> StoreFuture<'a, ClaimOutcome>;

    /// Gives a thread up; the claim is worth nothing afterwards.
    fn release_claim<'a>(&'a self, id: &'a ThreadId, claim: Claim) -> StoreFuture<'a, ()>;

    /// Renews the leases of a process, for all its threads at once; gives those that another process took. One that
    /// the process gave up itself meanwhile was not taken.
    fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> StoreFuture<'_, Vec<(ThreadId, Claim)>>;

    /// Threads that are said to be at work, and that may be taken from their holders, seen from `observer`.
    fn orphans<'a>(&'a self, observer: &'a Owner, policy: ClaimPolicy) -> StoreFuture<'a, Vec<ThreadRow>>;

    /// Whether a thread that continues without the command that started it has not ended.
    fn has_detached(&self) -> StoreFuture<'_, bool>;

    /// Writes down why no process continues with a thread; the next claim clears it.
    fn set_note<'a>(&'a self, id: &'a ThreadId, reason: &'a str) -> StoreFuture<'a, ()>;

    /// Asks the process that runs a thread, on whichever host, to end it. The request stays until it is cleared.
    fn request_cancel<'a>(&'a self, id: &'a ThreadId, reason: &'a str, at_ms: u64) -> StoreFuture<'a, ()>;

    /// The requests to end threads that are not cleared.
    fn cancel_requests(&self) -> StoreFuture<'_, Vec<CancelRequest>>;

    /// Forgets the request to end a thread: the thread was stopped, or its user has resumed it.
    fn clear_cancel_request<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, ()>;

    /// Calls of a thread that are in flight, or were when its process died.
    fn open_reservations<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<Reservation>>;

    /// The whole journal of a thread, verified.
    fn journal<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<JournalRecord>>;

    /// A thread's row, to look at: it says itself whether it was forged.
    fn thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>>;

    /// Threads, the newest first.
    fn threads<'a>(&'a self, filter: &'a ThreadFilter) -> StoreFuture<'a, Vec<ThreadRow>>;

    /// The threads a thread has started, the oldest first.
    fn children<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>>;

    /// A thread and all below it, the oldest first.
    fn subtree<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>>;

    /// A thread's parent, that one's parent, and so on.
    fn ancestors<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>>;

    /// A tree in numbers.
    fn tree_totals<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, TreeTotals>;

    /// A thread's row of the ledger.
    fn ledger<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, LedgerRow>;

    /// What settled calls have cost, by thread and purpose, the dearest first.
    fn charges<'a>(&'a self, id: &'a ThreadId, scope: ChargeScope) -> StoreFuture<'a, Vec<Charge>>;

    /// What is spent and reserved of each of these budgets of a day or a month.
    fn rolling_usage<'a>(&'a self, budgets: &'a [RollingBudget]) -> StoreFuture<'a, Vec<RollingUsage>>;

    /// Keeps a part that many threads share; gives its name.
    fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> StoreFuture<'_, Digest>;

    /// Keeps a part for a thread: it goes when the thread is forgotten.
    fn put_blob_for<'a>(
        &'a self,
        thread: &'a ThreadId,
        bytes: Vec<u8>,
        at_ms: u64,
    ) -> StoreFuture<'a, Digest>;

    /// A part that was kept; [`ThreadStoreError::NoBlob`] when it is not there, or not what was kept.
    fn blob<'a>(&'a self, digest: &'a Digest) -> StoreFuture<'a, Vec<u8>>;

    /// Asks a person.
    fn add_approval(&self, approval: Approval) -> StoreFuture<'_, ()>;

    /// Answers a question, once; gives the question. [`ThreadStoreError::NoApproval`] when it is not there or answered.
    fn answer_approval<'a>(&'a self, id: &'a str, answer: &'a ApprovalDecision) -> StoreFuture<'a, Approval>;

    /// A question with its answer; `None` when there is none that the store vouches for.
    fn approval<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<ApprovalRecord>>;

    /// The open questions of a thread and all below it, or of all threads.
    fn open_approvals<'a>(&'a self, below: Option<&'a ThreadId>) -> StoreFuture<'a, OpenApprovals>;

    /// Threads that stopped to ask people, have no holder, and were answered.
    fn answered_threads(&self) -> StoreFuture<'_, Vec<ThreadId>>;

    /// Checks that all sums of the ledger are those of its calls; gives what is wrong.
    fn audit(&self) -> StoreFuture<'_, Vec<String>>;

    /// Receives every change that this opening of the store makes, once it is durable.
    fn subscribe(&self) -> ChangeReceiver;

    /// The place behind everything that is durable, for [`ThreadStore::changed_since`]; `None` when the store does not know.
    fn last_position(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Threads whose journals grew behind a place, in the order in which that became durable, in any process; at most
    /// `max_records` records are looked at. `None` when the store does not know, or the place is not one of its own: all
    /// threads are to be read then.
    fn changed_since(&self, position: u64, max_records: u64) -> StoreFuture<'_, Option<ChangedThreads>> {
        let _ = (position, max_records);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// A number that is another one whenever any process has changed the store.
    fn data_version(&self) -> StoreFuture<'_, i64>;

    /// Compares the store with what was recorded of it elsewhere.
    fn freshness(&self) -> StoreFuture<'_, StoreFreshness>;

    /// Refuses a store that is older than what was recorded of it ([`ThreadStoreError::Older`]).
    fn ensure_current(&self) -> StoreFuture<'_, ()>;

    /// Makes the store as it is now the latest: its user has restored it.
    fn accept_older(&self) -> StoreFuture<'_, ()>;

    /// Forgets trees that ended long ago; those with a thread that has not ended stay whole.
    fn prune<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, PruneReport>;

    /// The threads that [`ThreadStore::prune`] would forget now.
    fn prune_candidates<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Vec<ThreadId>>;

    /// Whether [`ThreadStore::prune_if_due`] would do anything now.
    fn is_prune_due(&self, at_ms: u64) -> StoreFuture<'_, bool>;

    /// As [`ThreadStore::prune`], if that was not done by itself for a day; `None` if it was.
    fn prune_if_due<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Option<PruneReport>>;

    /// Whether transcripts are kept here, for machines that share no files. Else they are files alone, and commits need not
    /// carry them.
    fn keeps_transcripts(&self) -> bool {
        false
    }

    /// A thread's transcript from a byte on, as far as it is kept here; at most [`crate::MAX_TRANSCRIPT_READ_BYTES`].
    fn transcript<'a>(&'a self, id: &'a ThreadId, from: u64) -> StoreFuture<'a, Vec<u8>> {
        let _ = (id, from);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The submission of the tree that a thread is in: workers run such threads, and no other process does.
    fn submission<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<Submission>> {
        let _ = id;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Submitted threads that wait for a worker: no process has them, or they may be taken from their holders, seen from
    /// `observer`; also those that stopped to ask people and were answered, and those that a person asked to resume. The
    /// oldest first; `only` this one, if it is named.
    fn submitted<'a>(
        &'a self,
        observer: &'a Owner,
        policy: ClaimPolicy,
        only: Option<&'a ThreadId>,
    ) -> StoreFuture<'a, Vec<SubmittedThread>> {
        let _ = (observer, policy, only);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Asks workers to resume a suspended thread as it stands now, with what the decision changes. A later request takes the
    /// place of this one; the decision counts as an answer does. [`ThreadStoreError::Conflict`] when it is not suspended.
    fn request_resume<'a>(&'a self, id: &'a ThreadId, decision: &'a ApprovalDecision) -> StoreFuture<'a, ()> {
        let _ = (id, decision);
        let message = "this store has no workers".to_owned();
        Box::pin(std::future::ready(Err(ThreadStoreError::Failed(message))))
    }

    /// Notes what a worker offers; an empty text says that it has ended.
    fn put_worker<'a>(&'a self, name: &'a str, body: &'a str, at_ms: u64) -> StoreFuture<'a, ()> {
        let _ = (name, body, at_ms);
        let message = "this store has no workers".to_owned();
        Box::pin(std::future::ready(Err(ThreadStoreError::Failed(message))))
    }

    /// The workers that have not ended, and those that died not long ago, by name.
    fn workers(&self) -> StoreFuture<'_, Vec<WorkerRecord>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The roots of trees that another store may take: those of this place, the oldest first.
    fn transferable(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        Box::pin(std::future::ready(Err(no_transfer())))
    }

    /// A tree as another store takes it, verified, parents before their children. [`ThreadStoreError::Running`] while a
    /// process has a thread of it.
    fn export_tree<'a>(&'a self, root: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadTransfer>> {
        let _ = root;
        Box::pin(std::future::ready(Err(no_transfer())))
    }

    /// Takes a tree of another store, all of it or nothing: what it uses must be there, and none of its threads. It is sealed
    /// as what this process writes is.
    fn import_tree(&self, threads: Vec<ThreadTransfer>, at_ms: u64) -> StoreFuture<'_, ()> {
        let _ = (threads, at_ms);
        Box::pin(std::future::ready(Err(no_transfer())))
    }

    /// Forgets a tree that another store has taken, as it was exported, the root first. [`ThreadStoreError::Running`] while
    /// a process has a thread of it, [`ThreadStoreError::Conflict`] when it has changed since.
    fn forget_tree(&self, exported: Vec<ThreadProgress>) -> StoreFuture<'_, ()> {
        let _ = exported;
        Box::pin(std::future::ready(Err(no_transfer())))
    }

    /// A thread's row, to rely on: a forged one is refused.
    fn verified_thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        Box::pin(async move {
            match self.thread(id).await? {
                Some(row) if row.is_forged => {
                    Err(ThreadStoreError::Forged { thread: id.clone(), what: crate::Forgery::Row })
                }
                found => Ok(found),
            }
        })
    }

    /// A thread with those it continues from and those that continue from it, the oldest first.
    fn chain<'a>(&'a self, row: &'a ThreadRow) -> StoreFuture<'a, Vec<ThreadRow>> {
        Box::pin(async move {
            let root = row.chain_root_id.as_ref().unwrap_or(&row.id);
            let mut chain: Vec<ThreadRow> = self.thread(root).await?.into_iter().collect();
            while let Some(next) = chain.last().and_then(|row| row.continuation_thread_id.clone()) {
                match self.thread(&next).await? {
                    Some(next) if !chain.iter().any(|row| row.id == next.id) => chain.push(next),
                    Some(_) | None => break,
                }
            }
            // Two may continue from one: the newest is in the line, and this one stands at its end.
            if !chain.iter().any(|one| one.id == row.id) {
                chain.push(row.clone());
            }
            Ok(chain)
        })
    }
}

/// A store that no other exchanges threads with.
fn no_transfer() -> ThreadStoreError {
    ThreadStoreError::Failed("this store cannot move threads".to_owned())
}
