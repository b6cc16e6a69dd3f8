//! A store in memory: everything a store does, for as long as the process lives.

mod cluster;
mod commit;
mod ledger;
mod queries;
mod retention;
mod rolling;
mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux_hash::Digest;
use rye_thread::thread_id::ThreadId;

use crate::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeHub, ChangeReceiver, Charge,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow,
    LedgerRules, MAX_CANCEL_REQUEST_AGE_MS, NewThread, OpenApprovals, Owner, OwnerProbe, PruneOptions,
    PruneReport, Reservation, RollingBudget, RollingUsage, SpawnCaps, StoreFreshness, StoreFuture,
    Submission, SubmittedThread, ThreadChange, ThreadCommit, ThreadFilter, ThreadRow, ThreadStore,
    ThreadStoreError, TreeTotals, WorkerRecord,
};

/// A store that keeps everything in memory. Copies are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<MemoryShared>,
}

struct MemoryShared {
    tables: Mutex<MemoryTables>,
    changes: ChangeHub,
    probe: Arc<dyn OwnerProbe>,
    rules: LedgerRules,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("MemoryStore")
    }
}

/// What the store holds. Rows have numbers, and a younger thread has a higher one.
#[derive(Default)]
struct MemoryTables {
    threads: BTreeMap<i64, MemoryThread>,
    rows: HashMap<ThreadId, i64>,
    blobs: BTreeMap<[u8; 32], MemoryBlob>,
    approvals: BTreeMap<String, ApprovalRecord>,
    waits: BTreeMap<i64, waits::MemoryWait>,
    cancel_requests: BTreeMap<i64, (u64, String)>,
    rolling: rolling::MemoryRolling,
    workers: BTreeMap<String, WorkerRecord>,
    version: i64,
    pruned_ms: Option<u64>,
}

struct MemoryThread {
    row: ThreadRow,
    parent: Option<i64>,
    root: i64,
    epoch: u64,
    journal: Vec<JournalRecord>,
    ledger: LedgerRow,
    calls: BTreeMap<u64, ledger::Call>,
    blobs: BTreeSet<[u8; 32]>,
    transcript: Vec<u8>,
    /// Of the root of a tree that was submitted, or continues one: the thread that was, and by what.
    submission: Option<(ThreadId, Digest)>,
}

struct MemoryBlob {
    bytes: Vec<u8>,
    at_ms: u64,
}

impl MemoryTables {
    fn number(&self, id: &ThreadId) -> Result<i64, ThreadStoreError> {
        self.rows.get(id).copied().ok_or_else(|| ThreadStoreError::NoThread(id.clone()))
    }

    fn get(&self, id: &ThreadId) -> Result<&MemoryThread, ThreadStoreError> {
        let number = self.number(id)?;
        self.threads.get(&number).ok_or_else(|| ThreadStoreError::NoThread(id.clone()))
    }

    /// A thread's row, with what it waits for.
    fn shown_row(&self, thread: &MemoryThread) -> ThreadRow {
        let number = self.rows.get(&thread.row.id);
        let wait = number.and_then(|number| self.waits.get(number));
        let is_submitted = cluster::submission(self, thread).is_some();
        ThreadRow { waiting: wait.map(|wait| wait.kind), is_submitted, ..thread.row.clone() }
    }

    fn get_mut(&mut self, id: &ThreadId) -> Result<&mut MemoryThread, ThreadStoreError> {
        let number = self.number(id)?;
        self.threads.get_mut(&number).ok_or_else(|| ThreadStoreError::NoThread(id.clone()))
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(probe: Arc<dyn OwnerProbe>, rules: LedgerRules) -> Self {
        let shared = MemoryShared { tables: Mutex::default(), changes: ChangeHub::default(), probe, rules };
        Self { shared: Arc::new(shared) }
    }

    fn tables(&self) -> MutexGuard<'_, MemoryTables> {
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, query: impl FnOnce(&MemoryTables) -> Result<T, ThreadStoreError>) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
    {
        let answer = query(&self.tables());
        Box::pin(std::future::ready(answer))
    }

    /// Changes the tables, and tells of it. `work` fails before it changes anything, or not at all.
    fn write<T>(
        &self,
        work: impl FnOnce(&mut MemoryTables) -> Result<(T, Option<ThreadChange>), ThreadStoreError>,
    ) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
    {
        let mut tables = self.tables();
        let answer = work(&mut tables).map(|(value, change)| {
            tables.version += 1;
            drop(tables);
            if let Some(change) = change {
                self.shared.changes.send(&change);
            }
            value
        });
        Box::pin(std::future::ready(answer))
    }
}

/// A change of a thread that leaves its status.
fn touched(thread: &ThreadId) -> Option<ThreadChange> {
    Some(ThreadChange { thread: thread.clone(), status: None })
}

impl ThreadStore for MemoryStore {
    fn create(&self, new: NewThread) -> StoreFuture<'_, CreateOutcome> {
        self.write(|tables| commit::create(tables, &new))
    }

    fn commit(&self, commit: ThreadCommit) -> StoreFuture<'_, CommitOutcome> {
        self.write(|tables| commit::commit(tables, &self.shared.rules, commit))
    }

    fn admit<'a>(
        &'a self,
        id: &'a ThreadId,
        claim: Claim,
        caps: SpawnCaps,
        at_ms: u64,
    ) -> StoreFuture<'a, bool> {
        self.write(|tables| {
            let number = tables.number(id)?;
            commit::fence(tables.get(id)?, claim, id)?;
            let is_admitted = tables.admit(number, caps, at_ms);
            Ok((is_admitted, touched(id).filter(|_| is_admitted)))
        })
    }

    fn claim<'a>(
        &'a self,
        id: &'a ThreadId,
        owner: &'a Owner,
        policy: ClaimPolicy,
        at_ms: u64,
    ) -> StoreFuture<'a, ClaimOutcome> {
        self.write(|tables| {
            let thread = tables.get_mut(id)?;
            if let Some(holder) = &thread.row.owner
                && !policy.can_take(holder, owner, thread.row.heartbeat_ms, &*self.shared.probe)
            {
                return Ok((ClaimOutcome::Held { by: holder.clone() }, None));
            }
            thread.epoch += 1;
            thread.row.heartbeat_ms = at_ms;
            thread.row.note = None;
            let from = thread.row.owner.replace(owner.clone());
            Ok((ClaimOutcome::Claimed { claim: Claim { epoch: thread.epoch }, from }, None))
        })
    }

    fn release_claim<'a>(&'a self, id: &'a ThreadId, claim: Claim) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            let thread = tables.get_mut(id).map_err(|_| ThreadStoreError::Fenced(id.clone()))?;
            commit::fence(thread, claim, id)?;
            commit::release(thread);
            Ok(((), None))
        })
    }

    fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> StoreFuture<'_, Vec<(ThreadId, Claim)>> {
        self.write(|tables| {
            let mut lost = Vec::new();
            for (id, claim) in claims {
                match tables.get_mut(&id) {
                    Ok(thread) if thread.epoch == claim.epoch => thread.row.heartbeat_ms = at_ms,
                    // Its own process gave it up meanwhile.
                    Ok(thread) if thread.epoch == claim.epoch + 1 && thread.row.owner.is_none() => {}
                    Ok(_) | Err(_) => lost.push((id, claim)),
                }
            }
            Ok((lost, None))
        })
    }

    fn orphans<'a>(&'a self, observer: &'a Owner, policy: ClaimPolicy) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.read(|tables| Ok(queries::orphans(tables, observer, policy, &*self.shared.probe)))
    }

    fn has_detached(&self) -> StoreFuture<'_, bool> {
        self.read(|tables| {
            let mut threads = tables.threads.values();
            Ok(threads.any(|thread| thread.row.is_detached && thread.row.completed_at.is_none()))
        })
    }

    fn set_note<'a>(&'a self, id: &'a ThreadId, reason: &'a str) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            if let Ok(thread) = tables.get_mut(id)
                && thread.row.owner.is_none()
                && thread.row.completed_at.is_none()
            {
                thread.row.note = Some(reason.to_owned());
            }
            Ok(((), touched(id)))
        })
    }

    fn request_cancel<'a>(&'a self, id: &'a ThreadId, reason: &'a str, at_ms: u64) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            let number = tables.number(id)?;
            let oldest = at_ms.saturating_sub(MAX_CANCEL_REQUEST_AGE_MS);
            tables.cancel_requests.retain(|_, (at_ms, _)| *at_ms >= oldest);
            tables.cancel_requests.entry(number).or_insert_with(|| (at_ms, reason.to_owned())).0 = at_ms;
            Ok(((), touched(id)))
        })
    }

    fn cancel_requests(&self) -> StoreFuture<'_, Vec<CancelRequest>> {
        self.read(|tables| {
            let mut requests: Vec<_> = tables.cancel_requests.iter().collect();
            requests.sort_by_key(|(number, (at_ms, _))| (*at_ms, **number));
            let request = |(number, (_, reason)): (&i64, &(u64, String))| {
                let thread = tables.threads.get(number)?.row.id.clone();
                Some(CancelRequest { thread, reason: reason.clone() })
            };
            Ok(requests.into_iter().filter_map(request).collect())
        })
    }

    fn clear_cancel_request<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            if let Ok(number) = tables.number(id) {
                tables.cancel_requests.remove(&number);
            }
            Ok(((), None))
        })
    }

    fn open_reservations<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<Reservation>> {
        self.read(|tables| Ok(ledger::open_reservations(&tables.get(id)?.calls)))
    }

    fn journal<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<JournalRecord>> {
        self.read(|tables| Ok(tables.get(id)?.journal.clone()))
    }

    fn thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        self.read(|tables| Ok(tables.get(id).ok().map(|thread| tables.shown_row(thread))))
    }

    fn threads<'a>(&'a self, filter: &'a ThreadFilter) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.read(|tables| Ok(queries::threads(tables, filter)))
    }

    fn children<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.read(|tables| queries::children(tables, id))
    }

    fn subtree<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.read(|tables| {
            let members = queries::subtree(tables, id)?;
            Ok(members.into_iter().map(|thread| tables.shown_row(thread)).collect())
        })
    }

    fn ancestors<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.read(|tables| queries::ancestors(tables, id))
    }

    fn tree_totals<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, TreeTotals> {
        self.read(|tables| queries::tree_totals(tables, id))
    }

    fn ledger<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, LedgerRow> {
        self.read(|tables| Ok(tables.get(id)?.ledger.clone()))
    }

    fn charges<'a>(&'a self, id: &'a ThreadId, scope: ChargeScope) -> StoreFuture<'a, Vec<Charge>> {
        self.read(|tables| queries::charges(tables, id, scope))
    }

    fn rolling_usage<'a>(&'a self, budgets: &'a [RollingBudget]) -> StoreFuture<'a, Vec<RollingUsage>> {
        self.read(|tables| Ok(budgets.iter().map(|budget| tables.rolling.usage(budget)).collect()))
    }

    fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> StoreFuture<'_, Digest> {
        self.write(|tables| Ok((retention::put_blob(tables, bytes, at_ms), None)))
    }

    fn put_blob_for<'a>(
        &'a self,
        thread: &'a ThreadId,
        bytes: Vec<u8>,
        at_ms: u64,
    ) -> StoreFuture<'a, Digest> {
        self.write(|tables| {
            tables.number(thread)?;
            let digest = retention::put_blob(tables, bytes, at_ms);
            tables.get_mut(thread)?.blobs.insert(*digest.as_bytes());
            Ok((digest, None))
        })
    }

    fn blob<'a>(&'a self, digest: &'a Digest) -> StoreFuture<'a, Vec<u8>> {
        self.read(|tables| {
            let found = tables.blobs.get(digest.as_bytes()).map(|blob| blob.bytes.clone());
            found.ok_or_else(|| ThreadStoreError::NoBlob(digest.to_hex()))
        })
    }

    fn add_approval(&self, approval: Approval) -> StoreFuture<'_, ()> {
        self.write(|tables| {
            commit::check_approvals(tables, std::slice::from_ref(&approval))?;
            let change = touched(&approval.thread);
            commit::insert_approval(tables, approval);
            Ok(((), change))
        })
    }

    fn answer_approval<'a>(&'a self, id: &'a str, answer: &'a ApprovalDecision) -> StoreFuture<'a, Approval> {
        self.write(|tables| {
            let found = tables.approvals.get_mut(id).filter(|record| record.answer.is_none());
            let record = found.ok_or_else(|| ThreadStoreError::NoApproval(rye_item::text::one_line(id)))?;
            record.answer = Some(answer.clone());
            Ok((record.approval.clone(), touched(&record.approval.thread)))
        })
    }

    fn approval<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<ApprovalRecord>> {
        self.read(|tables| Ok(tables.approvals.get(id).cloned()))
    }

    fn open_approvals<'a>(&'a self, below: Option<&'a ThreadId>) -> StoreFuture<'a, OpenApprovals> {
        self.read(|tables| queries::open_approvals(tables, below))
    }

    fn answered_threads(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.read(|tables| Ok(queries::answered_threads(tables)))
    }

    fn audit(&self) -> StoreFuture<'_, Vec<String>> {
        self.read(|tables| Ok(ledger::audit(tables)))
    }

    fn subscribe(&self) -> ChangeReceiver {
        self.shared.changes.subscribe()
    }

    fn data_version(&self) -> StoreFuture<'_, i64> {
        self.read(|tables| Ok(tables.version))
    }

    fn freshness(&self) -> StoreFuture<'_, StoreFreshness> {
        self.read(|_| Ok(StoreFreshness::default()))
    }

    fn ensure_current(&self) -> StoreFuture<'_, ()> {
        self.read(|_| Ok(()))
    }

    fn accept_older(&self) -> StoreFuture<'_, ()> {
        self.read(|_| Ok(()))
    }

    fn keeps_transcripts(&self) -> bool {
        true
    }

    fn transcript<'a>(&'a self, id: &'a ThreadId, from: u64) -> StoreFuture<'a, Vec<u8>> {
        self.read(|tables| Ok(cluster::transcript(tables.get(id)?, from)))
    }

    fn submission<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<Submission>> {
        self.read(|tables| Ok(cluster::submission(tables, tables.get(id)?)))
    }

    fn submitted<'a>(
        &'a self,
        observer: &'a Owner,
        policy: ClaimPolicy,
        only: Option<&'a ThreadId>,
    ) -> StoreFuture<'a, Vec<SubmittedThread>> {
        self.read(|tables| {
            let mut found = cluster::submitted(tables, observer, policy, &*self.shared.probe);
            found.retain(|found| only.is_none_or(|only| found.row.id == *only));
            Ok(found)
        })
    }

    fn request_resume<'a>(&'a self, id: &'a ThreadId, decision: &'a ApprovalDecision) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            cluster::request_resume(tables, id, decision)?;
            Ok(((), touched(id)))
        })
    }

    fn put_worker<'a>(&'a self, name: &'a str, body: &'a str, at_ms: u64) -> StoreFuture<'a, ()> {
        self.write(|tables| {
            cluster::put_worker(tables, name, body, at_ms);
            Ok(((), None))
        })
    }

    fn workers(&self) -> StoreFuture<'_, Vec<WorkerRecord>> {
        self.read(|tables| Ok(tables.workers.values().cloned().collect()))
    }

    fn prune<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, PruneReport> {
        self.write(|tables| Ok((retention::prune(tables, options), None)))
    }

    fn prune_candidates<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Vec<ThreadId>> {
        self.read(|tables| {
            let groups = retention::select(tables, options);
            Ok(groups.into_iter().flat_map(|group| group.threads).map(|(_, id)| id).collect())
        })
    }

    fn is_prune_due(&self, at_ms: u64) -> StoreFuture<'_, bool> {
        self.read(|tables| Ok(retention::is_due(tables, at_ms)))
    }

    fn prune_if_due<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Option<PruneReport>> {
        self.write(|tables| {
            if !retention::is_due(tables, options.at_ms) {
                return Ok((None, None));
            }
            tables.pruned_ms = Some(options.at_ms);
            Ok((Some(retention::prune(tables, options)), None))
        })
    }
}
