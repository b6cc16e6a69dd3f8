//! The store's methods, each in the writer's transaction or on a reader's connection.

use lillux::Digest;
use rye_store::{
    Approval, ApprovalDecision, ApprovalRecord, CancelRequest, ChangeReceiver, Charge, ChargeScope, Claim,
    ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRow, NewThread,
    OpenApprovals, Owner, PruneOptions, PruneReport, Reservation, RollingBudget, RollingUsage, SpawnCaps,
    StoreFreshness, StoreFuture, Submission, SubmittedThread, ThreadChange, ThreadCommit, ThreadFilter,
    ThreadProgress, ThreadRow, ThreadStore, ThreadStoreError, ThreadTransfer, TreeGroup, TreeTotals,
    WorkerRecord,
};
use rye_thread::thread_id::ThreadId;

use crate::connection::ReadContext;
use crate::db_error::DbError;
use crate::writer::{Locks, WriteTx};
use crate::{
    PostgresStore, approvals, audit, blobs, cancel_requests, claims, cluster, create, prune, queries,
    rolling, transfer, waits,
};

impl PostgresStore {
    fn writing<'a, T, W>(&'a self, locks: Locks, work: W) -> StoreFuture<'a, T>
    where
        T: Send + 'static,
        W: AsyncFnMut(&mut WriteTx<'_>) -> Result<T, DbError> + Send + 'static,
    {
        Box::pin(async move {
            self.inner.writer.submit(locks, work).await.map_err(|error| self.with_address(error))
        })
    }

    fn reading<'a, T, Q>(&'a self, query: Q) -> StoreFuture<'a, T>
    where
        T: Send + 'static,
        Q: AsyncFn(&ReadContext) -> Result<T, DbError> + Send + 'static,
    {
        Box::pin(
            async move { self.inner.readers.read(query).await.map_err(|error| self.with_address(error)) },
        )
    }

    fn with_address(&self, error: DbError) -> ThreadStoreError {
        error.with_address(&self.inner.shared.address.to_string())
    }

    async fn prune_trees(&self, options: PruneOptions) -> Result<PruneReport, ThreadStoreError> {
        let chosen = self
            .reading(async move |context: &ReadContext| prune::select(&context.db, &options).await)
            .await?;
        let locks =
            Locks { threads: chosen.iter().flat_map(TreeGroup::ids).cloned().collect(), ..Locks::default() };
        let work = async move |tx: &mut WriteTx<'_>| prune::delete(tx, &options, &chosen).await;
        let (groups, blobs) = self.writing(locks, work).await?;
        let stored_bytes = match options.max_bytes {
            Some(_) => Some(
                self.reading(async |context: &ReadContext| prune::stored_bytes(&context.db).await).await?,
            ),
            None => None,
        };
        let threads = groups.iter().flat_map(TreeGroup::ids).cloned().collect();
        Ok(PruneReport { threads, blobs, stored_bytes, ..PruneReport::default() })
    }
}

impl ThreadStore for PostgresStore {
    fn create(&self, new: NewThread) -> StoreFuture<'_, CreateOutcome> {
        let locks = create::locks(&new);
        self.writing(locks, async move |tx: &mut WriteTx<'_>| create::create(tx, &new).await)
    }

    fn commit(&self, commit: ThreadCommit) -> StoreFuture<'_, CommitOutcome> {
        Box::pin(
            async move { self.inner.writer.commit(commit).await.map_err(|error| self.with_address(error)) },
        )
    }

    fn admit<'a>(
        &'a self,
        id: &'a ThreadId,
        claim: Claim,
        caps: SpawnCaps,
        at_ms: u64,
    ) -> StoreFuture<'a, bool> {
        let (locks, id) = (Locks::thread(id), id.clone());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| waits::admit(tx, &id, claim, caps, at_ms).await)
    }

    fn claim<'a>(
        &'a self,
        id: &'a ThreadId,
        owner: &'a Owner,
        policy: ClaimPolicy,
        at_ms: u64,
    ) -> StoreFuture<'a, ClaimOutcome> {
        let (locks, id, owner) = (Locks::thread(id), id.clone(), owner.clone());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| {
            claims::claim(tx, &id, &owner, policy, at_ms).await
        })
    }

    fn release_claim<'a>(&'a self, id: &'a ThreadId, claim: Claim) -> StoreFuture<'a, ()> {
        let (locks, id) = (Locks::thread(id), id.clone());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| claims::release(tx, &id, claim).await)
    }

    fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> StoreFuture<'_, Vec<(ThreadId, Claim)>> {
        let locks = claims::heartbeat_locks(&claims);
        self.writing(locks, async move |tx: &mut WriteTx<'_>| claims::heartbeat(tx, &claims, at_ms).await)
    }

    fn orphans<'a>(&'a self, observer: &'a Owner, policy: ClaimPolicy) -> StoreFuture<'a, Vec<ThreadRow>> {
        let observer = observer.clone();
        self.reading(async move |context: &ReadContext| queries::orphans(context, &observer, policy).await)
    }

    fn has_detached(&self) -> StoreFuture<'_, bool> {
        self.reading(async |context: &ReadContext| queries::has_detached(context).await)
    }

    fn set_note<'a>(&'a self, id: &'a ThreadId, reason: &'a str) -> StoreFuture<'a, ()> {
        let (locks, id, reason) = (Locks::thread(id), id.clone(), reason.to_owned());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| claims::set_note(tx, &id, &reason).await)
    }

    fn request_cancel<'a>(&'a self, id: &'a ThreadId, reason: &'a str, at_ms: u64) -> StoreFuture<'a, ()> {
        let (id, reason) = (id.clone(), reason.to_owned());
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            cancel_requests::request(tx, &id, &reason, at_ms).await
        })
    }

    fn cancel_requests(&self) -> StoreFuture<'_, Vec<CancelRequest>> {
        self.reading(async |context: &ReadContext| cancel_requests::list(&context.db).await)
    }

    fn clear_cancel_request<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, ()> {
        let id = id.clone();
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            cancel_requests::clear(tx, &id).await
        })
    }

    fn open_reservations<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<Reservation>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::open_reservations(context, &id).await)
    }

    fn journal<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<JournalRecord>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::journal(context, &id).await)
    }

    fn thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::thread(context, &id).await)
    }

    fn verified_thread<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<ThreadRow>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::verified_thread(context, &id).await)
    }

    fn threads<'a>(&'a self, filter: &'a ThreadFilter) -> StoreFuture<'a, Vec<ThreadRow>> {
        let filter = filter.clone();
        self.reading(async move |context: &ReadContext| queries::threads(context, &filter).await)
    }

    fn children<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::children(context, &id).await)
    }

    fn subtree<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::subtree(context, &id).await)
    }

    fn ancestors<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadRow>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::ancestors(context, &id).await)
    }

    fn tree_totals<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, TreeTotals> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::tree_totals(context, &id).await)
    }

    fn ledger<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, LedgerRow> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::ledger(context, &id).await)
    }

    fn charges<'a>(&'a self, id: &'a ThreadId, scope: ChargeScope) -> StoreFuture<'a, Vec<Charge>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| queries::charges(context, &id, scope).await)
    }

    fn rolling_usage<'a>(&'a self, budgets: &'a [RollingBudget]) -> StoreFuture<'a, Vec<RollingUsage>> {
        let budgets = budgets.to_vec();
        self.reading(async move |context: &ReadContext| {
            let mut usage = Vec::with_capacity(budgets.len());
            for budget in &budgets {
                usage.push(rolling::usage(&context.db, budget).await?);
            }
            Ok(usage)
        })
    }

    fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> StoreFuture<'_, Digest> {
        let digest = Digest::of(&bytes);
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            blobs::put(tx, &digest, &bytes, at_ms).await?;
            Ok(digest)
        })
    }

    fn put_blob_for<'a>(
        &'a self,
        thread: &'a ThreadId,
        bytes: Vec<u8>,
        at_ms: u64,
    ) -> StoreFuture<'a, Digest> {
        let digest = Digest::of(&bytes);
        let (locks, thread) = (Locks::thread(thread), thread.clone());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| {
            blobs::put(tx, &digest, &bytes, at_ms).await?;
            blobs::add_use(tx, &digest, &thread).await?;
            Ok(digest)
        })
    }

    fn blob<'a>(&'a self, digest: &'a Digest) -> StoreFuture<'a, Vec<u8>> {
        let digest = *digest;
        self.reading(async move |context: &ReadContext| blobs::get(&context.db, &digest).await)
    }

    fn add_approval(&self, approval: Approval) -> StoreFuture<'_, ()> {
        let locks = Locks::thread(&approval.thread);
        self.writing(locks, async move |tx: &mut WriteTx<'_>| {
            approvals::insert(tx, &approval).await?;
            tx.notify(ThreadChange { thread: approval.thread.clone(), status: None });
            Ok(())
        })
    }

    fn answer_approval<'a>(&'a self, id: &'a str, answer: &'a ApprovalDecision) -> StoreFuture<'a, Approval> {
        let (id, answer) = (id.to_owned(), answer.clone());
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            let question = approvals::answer(tx, &id, &answer).await?;
            tx.notify(ThreadChange { thread: question.thread.clone(), status: None });
            Ok(question)
        })
    }

    fn approval<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<ApprovalRecord>> {
        let id = id.to_owned();
        self.reading(async move |context: &ReadContext| {
            approvals::find(&context.db, &context.seal, &id).await
        })
    }

    fn open_approvals<'a>(&'a self, below: Option<&'a ThreadId>) -> StoreFuture<'a, OpenApprovals> {
        let below = below.cloned();
        self.reading(async move |context: &ReadContext| {
            let of = match &below {
                None => None,
                Some(id) => {
                    let rows = queries::subtree(context, id).await?;
                    Some(rows.into_iter().map(|row| row.id).collect::<Vec<_>>())
                }
            };
            approvals::open(&context.db, &context.seal, of.as_deref()).await
        })
    }

    fn answered_threads(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.reading(async |context: &ReadContext| approvals::answered_threads(&context.db).await)
    }

    fn audit(&self) -> StoreFuture<'_, Vec<String>> {
        self.reading(async |context: &ReadContext| audit::audit(&context.db).await)
    }

    fn subscribe(&self) -> ChangeReceiver {
        self.inner.shared.changes.subscribe()
    }

    fn data_version(&self) -> StoreFuture<'_, i64> {
        Box::pin(async move { Ok(self.inner.shared.version.current()) })
    }

    fn freshness(&self) -> StoreFuture<'_, StoreFreshness> {
        Box::pin(async move { Ok(StoreFreshness::default()) })
    }

    fn ensure_current(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { Ok(()) })
    }

    fn accept_older(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { Ok(()) })
    }

    fn keeps_transcripts(&self) -> bool {
        true
    }

    fn transcript<'a>(&'a self, id: &'a ThreadId, from: u64) -> StoreFuture<'a, Vec<u8>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| cluster::transcript(&context.db, &id, from).await)
    }

    fn submission<'a>(&'a self, id: &'a ThreadId) -> StoreFuture<'a, Option<Submission>> {
        let id = id.clone();
        self.reading(async move |context: &ReadContext| cluster::submission(&context.db, &id).await)
    }

    fn submitted<'a>(
        &'a self,
        observer: &'a Owner,
        policy: ClaimPolicy,
        only: Option<&'a ThreadId>,
    ) -> StoreFuture<'a, Vec<SubmittedThread>> {
        let (observer, only) = (observer.clone(), only.cloned());
        self.reading(async move |context: &ReadContext| {
            cluster::submitted(context, &observer, policy, only.as_ref()).await
        })
    }

    fn request_resume<'a>(&'a self, id: &'a ThreadId, decision: &'a ApprovalDecision) -> StoreFuture<'a, ()> {
        let (locks, id, decision) = (Locks::thread(id), id.clone(), decision.clone());
        self.writing(locks, async move |tx: &mut WriteTx<'_>| {
            cluster::request_resume(tx, &id, &decision).await
        })
    }

    fn put_worker<'a>(&'a self, name: &'a str, body: &'a str, _: u64) -> StoreFuture<'a, ()> {
        let (name, body) = (name.to_owned(), body.to_owned());
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            cluster::put_worker(tx, &name, &body).await
        })
    }

    fn workers(&self) -> StoreFuture<'_, Vec<WorkerRecord>> {
        self.reading(async |context: &ReadContext| cluster::workers(context).await)
    }

    fn transferable(&self) -> StoreFuture<'_, Vec<ThreadId>> {
        self.reading(async |context: &ReadContext| transfer::transferable(context).await)
    }

    fn export_tree<'a>(&'a self, root: &'a ThreadId) -> StoreFuture<'a, Vec<ThreadTransfer>> {
        let root = root.clone();
        self.reading(async move |context: &ReadContext| transfer::export_tree(context, &root).await)
    }

    fn import_tree(&self, threads: Vec<ThreadTransfer>, _: u64) -> StoreFuture<'_, ()> {
        self.writing(Locks::default(), async move |tx: &mut WriteTx<'_>| {
            transfer::import_tree(tx, &threads).await?;
            for transfer in &threads {
                tx.notify(ThreadChange { thread: transfer.id.clone(), status: None });
            }
            Ok(())
        })
    }

    fn forget_tree(&self, exported: Vec<ThreadProgress>) -> StoreFuture<'_, ()> {
        let locks = exported.first().map_or_else(Locks::default, |root| Locks::thread(&root.thread));
        self.writing(locks, async move |tx: &mut WriteTx<'_>| transfer::forget_tree(tx, &exported).await)
    }

    fn prune<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, PruneReport> {
        Box::pin(self.prune_trees(*options))
    }

    fn prune_candidates<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Vec<ThreadId>> {
        let options = *options;
        self.reading(async move |context: &ReadContext| {
            let groups = prune::select(&context.db, &options).await?;
            Ok(groups.iter().flat_map(TreeGroup::ids).cloned().collect())
        })
    }

    fn is_prune_due(&self, at_ms: u64) -> StoreFuture<'_, bool> {
        self.reading(async move |context: &ReadContext| prune::is_due(&context.db, at_ms).await)
    }

    fn prune_if_due<'a>(&'a self, options: &'a PruneOptions) -> StoreFuture<'a, Option<PruneReport>> {
        let options = *options;
        Box::pin(async move {
            let work = async move |tx: &mut WriteTx<'_>| prune::take_turn(tx, options.at_ms).await;
            let is_ours = self.writing(Locks::default(), work).await?;
            if is_ours { self.prune_trees(options).await.map(Some) } else { Ok(None) }
        })
    }
}
