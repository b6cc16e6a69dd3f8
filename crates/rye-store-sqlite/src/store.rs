//! The store's methods, each in the writer's transaction or on a reader's connection.

use std::sync::PoisonError;

use lillux::Digest;
use rye_store::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeReceiver, ChangedThreads, Charge,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, RollingBudget, RollingUsage,
    SpawnCaps, StoreFreshness, StoreFuture, ThreadChange, ThreadCommit, ThreadFilter, ThreadRow, ThreadStore,
    TreeGroup, TreeTotals,
};
use rye_thread::thread_id::ThreadId;

use crate::{
    DbError, SqliteStore, approvals, audit, blobs, cancel_requests, claims, commit, create, ledger, prune,
    queries, rolling, waits,
};

impl SqliteStore {
    /// An answer that is read at once, in the caller's thread.
    fn reading<'a, T: Send + 'a>(
        &'a self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, DbError> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move { self.read(query) })
    }
}

impl ThreadStore for SqliteStore {
    fn create(&self, new: NewThread) -> StoreFuture<'_, CreateOutcome> {
        Box::pin(self.write(move |tx| create::create(tx, &new)))
    }

    fn commit(&self, commit: ThreadCommit) -> StoreFuture<'_, CommitOutcome> {
        Box::pin(self.write(move |tx| commit::commit(tx, &commit)))
    }

    fn admit<'a>(
        &'a self,
        id: &'a ThreadId,
        claim: Claim,
        caps: SpawnCaps,
        at_ms: u64,
    ) -> StoreFuture<'a, bool> {
        let id = id.clone();
        Box::pin(self.write(move |tx| waits::admit(tx, &id, claim, caps, at_ms)))
    }

    fn claim<'a>(
        &'a self,
        id: &'a ThreadId,
        owner: &'a Owner,
        policy: ClaimPolicy,
        at_ms: u64,
    ) -> StoreFuture<'a, ClaimOutcome> {
        let (id, owner) = (id.clone(), owner.clone());
        Box::pin(self.write(move |tx| claims::claim(tx, &id, &owner, policy, at_ms)))
    }

    fn release_claim<'a>(&'a self, id: &'a ThreadId, claim: Claim) -> StoreFuture<'a, ()> {
        let id = id.clone();
        Box::pin(self.write(move |tx| claims::release(tx, &id, claim)))
    }

    fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> StoreFuture<'_, Vec<(ThreadId, Claim)>> {
        Box::pin(self.write(move |tx| claims::heartbeat(tx, &claims, at_ms)))
    }

    fn orphans<'a>(&'a self, observer: &'a Owner, policy: ClaimPolicy) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.reading(move |connection| queries::orphans(connection, &self.shared.seal, observer, policy))
    }

    fn has_detached(&self) -> StoreFuture<'_, bool> {
        self.reading(queries::has_detached)
    }

    fn set_note<'a>(&'a self, id: &'a ThreadId, reason: &'a str) -> StoreFuture<'a, ()> {
        let (id, reason) = (id.clone(), reason.to_owned());
        Box::pin(self.write(move |tx| claims::set_note(tx, &id, &reason)))
    }

    fn request_cancel<'a>(&'a self, id: &'a ThreadId, reason: &'a str, at_ms: u64) -> StoreFuture<'a, ()> {
        let (id, reason) = (id.clone(), reason.to_owned());
        Box::pin(self.write(move |tx| cancel_requests::request(tx, &id, &reason, at_ms)))
    }

    fn cancel_requests(&self) -> StoreFuture<'_, Vec<CancelRequest>> {
        self.reading(cancel_requests::list)
    }

    fn clear_cancel_request<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, ()> {
        let id = id.clone();
        Box::pin(self.write(move |tx| cancel_requests::clear(tx, &id)))
    }

    fn open_reservations<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<Reservation>> {
        self.reading(|connection| ledger::open_reservations(connection, queries::row_id(connection, id)?))
    }

    fn journal<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<JournalRecord>> {
        Box::pin(async move {
            self.ensure_thread_current(id)?;
            self.read(|connection| {
                // One moment for both, the head and the entries.
                let moment = connection.unchecked_transaction()?;
                queries::journal(&moment, &self.shared.seal.mac, id)
            })
        })
    }

    fn thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        self.reading(|connection| queries::thread(connection, &self.shared.seal, id))
    }

    fn threads<'a>(&'a self, filter: &'a ThreadFilter) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.reading(|connection| queries::threads(connection, &self.shared.seal, filter))
    }

    fn children<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.reading(|connection| queries::children(connection, &self.shared.seal, id))
    }

    fn subtree<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.reading(|connection| queries::subtree(connection, &self.shared.seal, id))
    }

    fn ancestors<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        self.reading(|connection| queries::ancestors(connection, &self.shared.seal, id))
    }

    fn tree_totals<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, TreeTotals> {
        self.reading(|connection| queries::tree_totals(connection, id))
    }

    fn ledger<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, LedgerRow> {
        self.reading(|connection| queries::ledger(connection, id))
    }

    fn charges<'a>(&'a self, id: &'a ThreadId, scope: ChargeScope) -> StoreFuture<'a, Vec<Charge>> {
        self.reading(move |connection| queries::charges(connection, id, scope))
    }

    fn rolling_usage<'a>(&'a self, budgets: &'a [RollingBudget]) -> StoreFuture<'a, Vec<RollingUsage>> {
        Box::pin(async move {
            rolling::read_usage(&self.shared.rolling, budgets).map_err(rye_store::ThreadStoreError::from)
        })
    }

    fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> StoreFuture<'_, Digest> {
        let digest = Digest::of(&bytes);
        Box::pin(self.write(move |tx| {
            blobs::put(tx, &digest, &bytes, at_ms)?;
            Ok(digest)
        }))
    }

    fn put_blob_for<'a>(
        &'a self,
        thread: &'a ThreadId,
        bytes: Vec<u8>,
        at_ms: u64,
    ) -> StoreFuture<'a, Digest> {
        let digest = Digest::of(&bytes);
        let thread = thread.clone();
        Box::pin(self.write(move |tx| {
            blobs::put(tx, &digest, &bytes, at_ms)?;
            blobs::add_use(tx, &digest, &thread)?;
            Ok(digest)
        }))
    }

    fn blob<'a>(&'a self, digest: &'a Digest) -> StoreFuture<'a, Vec<u8>> {
        self.reading(|connection| blobs::get(connection, digest))
    }

    fn add_approval(&self, approval: Approval) -> StoreFuture<'_, ()> {
        Box::pin(self.write(move |tx| {
            approvals::insert(tx, &approval)?;
            tx.notify(ThreadChange { thread: approval.thread.clone(), status: None });
            Ok(())
        }))
    }

    fn answer_approval<'a>(&'a self, id: &'a str, answer: &'a ApprovalDecision) -> StoreFuture<'a, Approval> {
        let (id, answer) = (id.to_owned(), answer.clone());
        Box::pin(self.write(move |tx| {
            let question = approvals::answer(tx, &id, &answer)?;
            tx.notify(ThreadChange { thread: question.thread.clone(), status: None });
            Ok(question)
        }))
    }

    fn approval<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<ApprovalRecord>> {
        self.reading(|connection| approvals::find(connection, &self.shared.seal.mac, id))
    }

    fn open_approvals<'a>(&'a self, below: Option<&'a ThreadId>) -> StoreFuture<'a, OpenApprovals> {
        self.reading(move |connection| {
            let of = match below {
                None => None,
                Some(id) => {
                    let rows = queries::subtree(connection, &self.shared.seal, id)?;
                    Some(rows.into_iter().map(|row| row.id).collect::<Vec<_>>())
                }
            };
            approvals::open(connection, &self.shared.seal.mac, of.as_deref())
        })
    }

    fn answered_threads(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.reading(approvals::answered_threads)
    }

    fn audit(&self) -> StoreFuture<'_, Vec<String>> {
        self.reading(|connection| {
            let moment = connection.unchecked_transaction()?;
            audit::audit(&moment)
        })
    }

    fn subscribe(&self) -> ChangeReceiver {
        self.shared.changes.subscribe()
    }

    fn last_position(&self) -> StoreFuture<'_, Option<u64>> {
        self.reading(|connection| queries::last_position(connection).map(Some))
    }

    fn changed_since(&self, position: u64, max_records: u64) -> StoreFuture<'_, Option<ChangedThreads>> {
        self.reading(move |connection| {
            queries::changed_since(connection, &self.shared.seal, position, max_records)
        })
    }

    fn data_version(&self) -> StoreFuture<'_, i64> {
        Box::pin(async move {
            let watcher = self.shared.watcher.lock().unwrap_or_else(PoisonError::into_inner);
            let version = watcher.query_row("PRAGMA data_version", [], |row| row.get(0));
            version.map_err(|error| DbError::from(error).with_path(&self.shared.database))
        })
    }

    fn freshness(&self) -> StoreFuture<'_, StoreFreshness> {
        Box::pin(async move { self.compare_with_record() })
    }

    fn ensure_current(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.refuse_older() })
    }

    fn accept_older(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.record_as_latest() })
    }

    fn prune<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, PruneReport> {
        Box::pin(self.prune_trees(options))
    }

    fn prune_candidates<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Vec<ThreadId>> {
        Box::pin(async move {
            let stored = self.disk_usage(options);
            let groups = self.read(|connection| prune::select_groups(connection, options, &stored))?;
            Ok(groups.iter().flat_map(TreeGroup::ids).cloned().collect())
        })
    }

    fn is_prune_due(&self, at_ms: u64) -> StoreFuture<'_, bool> {
        self.reading(move |connection| prune::is_due(connection, at_ms))
    }

    fn prune_if_due<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Option<PruneReport>> {
        Box::pin(async move {
            let at_ms = options.at_ms;
            // Noted first: of two processes one does it.
            let is_ours = self
                .write(move |tx| {
                    let is_due = prune::is_due(tx.connection, at_ms)?;
                    if is_due {
                        prune::record_time(tx.connection, prune::PRUNED_KEY, at_ms)?;
                    }
                    Ok(is_due)
                })
                .await?;
            if is_ours { self.prune_trees(options).await.map(Some) } else { Ok(None) }
        })
    }
}
