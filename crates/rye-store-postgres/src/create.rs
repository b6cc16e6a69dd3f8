//! A new thread: its row, its row of the ledger, its first records and what its parent counts, in one transaction.

use rye_item::timestamp::iso_timestamp;
use rye_store::{
    BudgetCaps, Claim, CreateOutcome, NewThread, ThreadChange, ThreadStoreError, journal_genesis,
};
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::commit::JournalRows;
use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::ledger;
use crate::record::{ThreadRecord, record_columns};
use crate::seal::Seal;
use crate::writer::{Locks, WriteTx};
use crate::{cluster, waits};

/// What is locked for a new thread: the trees of its parent and of the thread it continues.
pub(crate) fn locks(new: &NewThread) -> Locks {
    let threads = new.parent.iter().chain(&new.continuation_of).cloned().collect();
    Locks { threads, scopes: Vec::new() }
}

/// What is known of the threads that a new one belongs to.
struct NewThreadContext {
    number: i64,
    /// Whether a thread has its name already.
    is_there: bool,
    parent: Option<ThreadRecord>,
    before: Option<ThreadRecord>,
    /// Children of the parent at work, and those that wait.
    children: (u64, u64),
    /// Threads of the parent's tree at work.
    tree: u64,
    blobs: Vec<i64>,
}

const FIND_RECORD: &str = concat!("SELECT ", record_columns!(), " FROM threads WHERE thread_id = $1");

async fn find_record(tx: &WriteTx<'_>, id: Option<&ThreadId>) -> Result<Option<ThreadRecord>, DbError> {
    let Some(id) = id else { return Ok(None) };
    let name = id.as_str();
    let row = tx.reading().query_opt(FIND_RECORD, &[&name]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    ThreadRecord::from_row(&row, 0)?.check(tx.seal, id).map(Some)
}

async fn counts(db: &Db, sql: &'static str, parent: Option<&ThreadId>) -> Result<Option<Row>, DbError> {
    match parent.map(ThreadId::as_str) {
        Some(name) => db.query_opt(sql, &[&name]).await,
        None => Ok(None),
    }
}

async fn load_context(tx: &WriteTx<'_>, new: &NewThread) -> Result<NewThreadContext, DbError> {
    let db = tx.reading();
    let name = new.id.as_str();
    let is_there = "SELECT EXISTS (SELECT 1 FROM threads WHERE thread_id = $1)";
    let parent = new.parent.as_ref();
    let (number, is_there, parent, before) = futures_util::future::try_join4(
        db.query_value::<i64>("SELECT nextval('thread_numbers')", &[]),
        db.query_value::<bool>(is_there, &[&name]),
        find_record(tx, parent),
        find_record(tx, new.continuation_of.as_ref()),
    )
    .await?;
    if let (Some(record), Some(id)) = (&parent, &new.parent)
        && record.completed_at.is_some()
    {
        return Err(ThreadStoreError::ParentEnded { parent: id.clone() }.into());
    }
    let (children, tree, blobs) = futures_util::future::try_join3(
        counts(db, waits::COUNT_CHILDREN, new.parent.as_ref()),
        counts(db, waits::COUNT_TREE, new.parent.as_ref()),
        find_blobs(db, new),
    )
    .await?;
    let children = match children {
        Some(row) => (to_number(row.try_get(0)?)?, to_number(row.try_get(1)?)?),
        None => (0, 0),
    };
    let tree = tree.map(|row| row.try_get(0)).transpose()?.map_or(Ok(0), to_number)?;
    Ok(NewThreadContext { number, is_there, parent, before, children, tree, blobs })
}

/// The numbers of the shared parts, which stay until the transaction ends.
async fn find_blobs(db: &Db, new: &NewThread) -> Result<Vec<i64>, DbError> {
    let mut blobs = Vec::new();
    for digest in &new.blobs {
        let bytes = digest.as_bytes().as_slice();
        let row = db.query_opt("SELECT blob FROM blobs WHERE digest = $1 FOR KEY SHARE", &[&bytes]).await?;
        let row = row.ok_or_else(|| ThreadStoreError::NoBlob(digest.to_hex()))?;
        blobs.push(row.try_get(0)?);
    }
    Ok(blobs)
}

impl NewThreadContext {
    /// Whether the parent has as many children at work, or waiting for a place, as may be at work.
    fn is_full(&self, new: &NewThread) -> bool {
        let max = new.caps.concurrent_children;
        max.is_some_and(|max| self.children.0.saturating_add(self.children.1) >= max)
    }

    fn check_caps(&self, new: &NewThread) -> Result<Option<CreateOutcome>, DbError> {
        let Some(parent) = &self.parent else { return Ok(None) };
        let (spawned, depth) = (to_number(parent.spawn_count)?, to_number(parent.depth)?);
        new.caps.first_refused(spawned, depth, || Ok(self.children), || Ok(self.tree))
    }
}

/// Makes a thread, or says which cap is reached.
pub(crate) async fn create(tx: &mut WriteTx<'_>, new: &NewThread) -> Result<CreateOutcome, DbError> {
    let found = load_context(tx, new).await?;
    if let Some(outcome) = found.check_caps(new)? {
        return Ok(outcome);
    }
    if found.is_there {
        return Err(ThreadStoreError::Exists(new.id.clone()).into());
    }
    let is_queued = found.parent.is_some() && new.caps.queues_children && found.is_full(new);
    let mut record = new_record(&found, new)?;
    let journal = JournalRows::new(&mut record, &new.records)?;
    record.seal_next(tx.seal)?;
    let db = tx.writing();
    insert(tx, new, &record).await?;
    journal.save(db).await?;
    if is_queued {
        waits::queue_child(db, record.thread, tx.clock.to_database(new.at_ms)).await?;
    }
    if found.parent.is_none() {
        let continued = found.before.as_ref().map(|before| before.root);
        cluster::place(db, record.thread, tx.origin, new.submission.as_ref(), continued).await?;
    }
    for blob in &found.blobs {
        let sql = "INSERT INTO uses (thread, blob) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        db.execute(sql, &[&record.thread, blob]).await?;
    }
    let depth = to_number(record.depth)?;
    let is_same = new.parent.is_some() && new.parent == new.continuation_of;
    let mut before = found.before.filter(|_| !is_same);
    if let Some(mut parent) = found.parent {
        parent.spawn_count = parent
            .spawn_count
            .checked_add(1)
            .ok_or(ThreadStoreError::TooLarge("the children of a thread"))?;
        if is_same {
            parent.continuation_thread_id = Some(new.id.to_string());
        }
        parent.seal_next(tx.seal)?;
        ThreadRecord::update_all(&[&parent], db).await?;
    }
    if let Some(before) = &mut before {
        before.continuation_thread_id = Some(new.id.to_string());
        before.seal_next(tx.seal)?;
        ThreadRecord::update_all(&[before], db).await?;
    }
    tx.notify(ThreadChange { thread: new.id.clone(), status: Some(ThreadStatus::Created) });
    Ok(CreateOutcome::Created { claim: Claim { epoch: 1 }, depth, is_queued })
}

fn new_record(found: &NewThreadContext, new: &NewThread) -> Result<ThreadRecord, DbError> {
    let at = iso_timestamp(new.at_ms);
    let parent = found.parent.as_ref();
    let caps = BudgetCaps { spend: new.max_spend, tokens: new.max_tokens };
    let limits =
        serde_json::to_string(&new.limits).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
    let before = found.before.as_ref();
    Ok(ThreadRecord {
        thread: found.number,
        parent: parent.map(|parent| parent.thread),
        root: parent.map_or(found.number, |parent| parent.root),
        thread_id: new.id.to_string(),
        parent_id: new.parent.as_ref().map(ToString::to_string),
        directive: to_text(&new.directive),
        title: to_text(&new.title),
        depth: parent.map_or(0, |parent| parent.depth.saturating_add(1)),
        status: ThreadStatus::Created.as_str().to_owned(),
        reason: None,
        result: None,
        error: None,
        created_at: at.clone(),
        updated_at: at,
        completed_at: None,
        turns: 0,
        input_tokens: 0,
        output_tokens: 0,
        spend: 0,
        elapsed_ms: 0,
        limits,
        spawn_count: 0,
        model: to_text(&new.model),
        provider: to_text(&new.provider),
        capabilities: new.capabilities.to_hex(),
        continuation_of: new.continuation_of.as_ref().map(ToString::to_string),
        continuation_thread_id: None,
        chain_root_id: before
            .map(|before| before.chain_root_id.clone().unwrap_or_else(|| before.thread_id.clone())),
        head_seq: 0,
        head_hash: journal_genesis(&new.id).as_bytes().to_vec(),
        max_spend: ledger::spend_column(caps)?,
        max_tokens: ledger::tokens_column(caps)?,
        transcript_sequence: None,
        transcript_hash: None,
        is_detached: new.is_detached || parent.is_some_and(|parent| parent.is_detached),
        revision: 0,
        seal: Seal { signer: String::new(), signature: String::new() },
    })
}

async fn insert(tx: &WriteTx<'_>, new: &NewThread, record: &ThreadRecord) -> Result<(), DbError> {
    let db = tx.writing();
    let owner = new.owner.as_ref();
    let pid = owner.map(|owner| i64::from(owner.pid));
    let pid_start = owner.map(|owner| to_integer(owner.pid_start, "a time")).transpose()?;
    let boot_id = owner.map(|owner| to_text(&owner.boot_id));
    let host = owner.map(|owner| to_text(&owner.host));
    let lease_ms = tx.clock.to_database(new.at_ms);
    let sql = "INSERT INTO threads (thread, parent, root, thread_id, parent_id, directive, title, depth, status, created_at,
            updated_at, turns, input_tokens, output_tokens, spend, elapsed_ms, limits, spawn_count, model, provider,
            capabilities, continuation_of, chain_root_id, head_seq, head_hash, max_spend, max_tokens, detached, revision,
            signer, seal, epoch, pid, pid_start, boot_id, host, lease_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, 0, 0, 0, 0, 0, $11, 0, $12, $13, $14, $15, $16, $17, $18,
            $19, $20, $21, $22, $23, $24, 1, $25, $26, $27, $28, $29)";
    let inserted = db
        .execute(
            sql,
            &[
                &record.thread,
                &record.parent,
                &record.root,
                &record.thread_id,
                &record.parent_id,
                &record.directive,
                &record.title,
                &record.depth,
                &record.status,
                &record.created_at,
                &record.limits,
                &record.model,
                &record.provider,
                &record.capabilities,
                &record.continuation_of,
                &record.chain_root_id,
                &record.head_seq,
                &record.head_hash,
                &record.max_spend,
                &record.max_tokens,
                &record.is_detached,
                &record.revision,
                &record.seal.signer,
                &record.seal.signature,
                &pid,
                &pid_start,
                &boot_id,
                &host,
                &lease_ms,
            ],
        )
        .await;
    inserted.map_err(|error| match error.is_duplicate("threads_thread_id") {
        true => error.with_error(ThreadStoreError::Exists(new.id.clone())),
        false => error,
    })?;
    let (max_spend, max_tokens) = (&record.max_spend, &record.max_tokens);
    let values: [crate::db::SqlValue<'_>; 7] = [
        &record.thread,
        &record.parent,
        &record.thread_id,
        &record.parent_id,
        max_spend,
        max_tokens,
        &record.created_at,
    ];
    db.execute(ledger::INSERT_ROW, &values).await?;
    Ok(())
}
