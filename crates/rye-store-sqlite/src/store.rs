//! The store's methods, each in the writer's transaction or on a reader's connection.

use std::sync::PoisonError;

use lillux::Digest;
use rye_store::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeReceiver, ChangedThreads, Charge,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow,
    NewThread, OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, RollingBudget, RollingUsage,
    SpawnCaps, StoreFreshness, StoreFuture, ThreadChange, ThreadCommit, ThreadFilter, ThreadProgress,
    ThreadRow, ThreadStore, ThreadStoreError, ThreadTransfer, TreeGroup, TreeTotals, can_block,
};
use rye_thread::thread_id::ThreadId;

use crate::row_seal::RowSealer;
use crate::{
    DbError, SqliteStore, approvals, audit, blobs, cancel_requests, claims, commit, create, ledger, prune,
    queries, reply, rolling, transfer, waits,
};

impl SqliteStore {
    /// An answer that is read on a thread of the store, or at once on the caller's if it waits for it.
    pub(crate) fn reading<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection, &RowSealer) -> Result<T, DbError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        self.blocking(move |store| store.read(|connection| query(connection, &store.shared.seal)))
    }

    /// The same for work that is more than one query.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ThreadStoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(async move {
            if can_block() {
                return work(self);
            }
            let (sender, receiver) = reply::reply();
            let store = self.clone();
            self.shared.reader_pool.submit(move || {
                let answer = work(&store);
                drop(store);
                sender.send(answer);
            });
            let lost = || ThreadStoreError::Failed("its reader has ended".to_owned());
            receiver.recv().await.unwrap_or_else(|| Err(lost()))
        })
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
        let observer = observer.clone();
        self.reading(move |connection, seal| queries::orphans(connection, seal, &observer, policy))
    }

    fn has_detached(&self) -> StoreFuture<'_, bool> {
        self.reading(|connection, _| queries::has_detached(connection))
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
        self.reading(|connection, _| cancel_requests::list(connection))
    }

    fn clear_cancel_request<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, ()> {
        let id = id.clone();
        Box::pin(self.write(move |tx| cancel_requests::clear(tx, &id)))
    }

    fn open_reservations<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<Reservation>> {
        let id = id.clone();
        self.reading(move |connection, _| {
            ledger::open_reservations(connection, queries::row_id(connection, &id)?)
        })
    }

    fn journal<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<JournalRecord>> {
        let id = id.clone();
        self.blocking(move |store| {
            store.ensure_thread_current(&id)?;
            store.read(|connection| {
                // One moment for both, the head and the entries.
                let moment = connection.unchecked_transaction()?;
                queries::journal(&moment, &store.shared.seal.mac, &id)
            })
        })
    }

    fn thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        let id = id.clone();
        self.reading(move |connection, seal| queries::thread(connection, seal, &id))
    }

    fn threads<'a>(&'a self, filter: &'a ThreadFilter) -> StoreFuture<'a, Vec<ThreadRow>> {
        let filter = filter.clone();
        self.reading(move |connection, seal| queries::threads(connection, seal, &filter))
    }

    fn children<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(move |connection, seal| queries::children(connection, seal, &id))
    }

    fn subtree<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(move |connection, seal| queries::subtree(connection, seal, &id))
    }

    fn ancestors<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(move |connection, seal| queries::ancestors(connection, seal, &id))
    }

    fn tree_totals<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, TreeTotals> {
        let id = id.clone();
        self.reading(move |connection, _| queries::tree_totals(connection, &id))
    }

    fn ledger<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, LedgerRow> {
        let id = id.clone();
        self.reading(move |connection, _| queries::ledger(connection, &id))
    }

    fn charges<'a>(&'a self, id: &'a ThreadId, scope: ChargeScope) -> StoreFuture<'a, Vec<Charge>> {
        let id = id.clone();
        self.reading(move |connection, _| queries::charges(connection, &id, scope))
    }

    fn rolling_usage<'a>(&'a self, budgets: &'a [RollingBudget]) -> StoreFuture<'a, Vec<RollingUsage>> {
        let budgets = budgets.to_vec();
        self.blocking(move |store| Ok(rolling::read_usage(&store.shared.rolling, &budgets)?))
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
        let digest = *digest;
        self.reading(move |connection, _| blobs::get(connection, &digest))
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
        let id = id.to_owned();
        self.reading(move |connection, seal| approvals::find(connection, &seal.mac, &id))
    }

    fn open_approvals<'a>(&'a self, below: Option<&'a ThreadId>) -> StoreFuture<'a, OpenApprovals> {
        let below = below.cloned();
        self.reading(move |connection, seal| {
            let of = match &below {
                None => None,
                Some(id) => {
                    let rows = queries::subtree(connection, seal, id)?;
                    Some(rows.into_iter().map(|row| row.id).collect::<Vec<_>>())
                }
            };
            approvals::open(connection, &seal.mac, of.as_deref())
        })
    }

    fn answered_threads(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.reading(|connection, _| approvals::answered_threads(connection))
    }

    fn audit(&self) -> StoreFuture<'_, Vec<String>> {
        self.reading(|connection, _| {
            let moment = connection.unchecked_transaction()?;
            audit::audit(&moment)
        })
    }

    fn subscribe(&self) -> ChangeReceiver {
        self.shared.changes.subscribe()
    }

    fn last_position(&self) -> StoreFuture<'_, Option<u64>> {
        self.reading(|connection, _| queries::last_position(connection).map(Some))
    }

    fn changed_since(&self, position: u64, max_records: u64) -> StoreFuture<'_, Option<ChangedThreads>> {
        self.reading(move |connection, seal| queries::changed_since(connection, seal, position, max_records))
    }

    fn data_version(&self) -> StoreFuture<'_, i64> {
        self.blocking(|store| {
            let watcher = store.shared.watcher.lock().unwrap_or_else(PoisonError::into_inner);
            let version = watcher.query_row("PRAGMA data_version", [], |row| row.get(0));
            version.map_err(|error| DbError::from(error).with_path(&store.shared.database))
        })
    }

    fn freshness(&self) -> StoreFuture<'_, StoreFreshness> {
        self.blocking(Self::compare_with_record)
    }

    fn ensure_current(&self) -> StoreFuture<'_, ()> {
        self.blocking(Self::refuse_older)
    }

    fn accept_older(&self) -> StoreFuture<'_, ()> {
        self.blocking(Self::record_as_latest)
    }

    fn prune<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, PruneReport> {
        Box::pin(self.prune_trees(options))
    }

    fn prune_candidates<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Vec<ThreadId>> {
        let options = *options;
        self.blocking(move |store| {
            let stored = store.disk_usage(&options);
            let groups = store.read(|connection| prune::select_groups(connection, &options, &stored))?;
            Ok(groups.iter().flat_map(TreeGroup::ids).cloned().collect())
        })
    }

    fn is_prune_due(&self, at_ms: u64) -> StoreFuture<'_, bool> {
        self.reading(move |connection, _| prune::is_due(connection, at_ms))
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

    fn transferable(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.reading(|connection, _| transfer::transferable(connection))
    }

    fn export_tree<'a>(&'a self, root: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadTransfer>> {
        let root = root.clone();
        self.reading(move |connection, seal| transfer::export_tree(connection, seal, &root))
    }

    fn import_tree(&self, threads: Vec<ThreadTransfer>, at_ms: u64) -> StoreFuture<'_, ()> {
        Box::pin(self.write(move |tx| transfer::import_tree(tx, &threads, at_ms)))
    }

    fn forget_tree(&self, exported: Vec<ThreadProgress>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(move |tx| transfer::forget_tree(tx, &exported)))
    }
}
