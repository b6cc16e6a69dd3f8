//! What machines that share no files need of the store: transcripts, whose process may run a thread, and which workers
//! there are.
//!
//! `placements` says of each tree where it belongs: to the place that began it, or, with a submission, to any worker.

use lillux::Digest;
use rye_store::{
    ApprovalDecision, ClaimPolicy, Forgery, MAX_TRANSCRIPT_READ_BYTES, Owner, Submission, SubmittedThread,
    ThreadCommit, ThreadStoreError, TranscriptPart, WorkerRecord, resume_question,
};
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::claims::read_owner;
use crate::connection::ReadContext;
use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::record::{RECORD_COLUMN_COUNT, ThreadRecord, parse_id, record_columns};
use crate::seal::{Seal, Sealer};
use crate::writer::WriteTx;
use crate::{approvals, queries};

/// Submitted threads that are looked at at once.
const MAX_SUBMITTED: i64 = 500;

/// Workers that have not been heard of for this long have ended.
const WORKER_TTL_MS: i64 = 120_000;

/// Parts of transcripts, as they are to be written.
#[derive(Default)]
pub(crate) struct TranscriptRows {
    thread: Vec<i64>,
    start: Vec<i64>,
    bytes: Vec<Vec<u8>>,
    /// Where parts that replace others begin.
    replaced: Vec<(i64, i64)>,
}

impl TranscriptRows {
    /// Adds a part behind those of the thread that are waiting, or in their place.
    pub(crate) fn add(&mut self, thread: i64, part: &TranscriptPart) -> Result<(), DbError> {
        let from = to_integer(part.from, "a transcript")?;
        let end = |rows: &Self, index: usize| {
            let bytes = rows.bytes.get(index).map_or(0, Vec::len);
            rows.start
                .get(index)
                .copied()
                .unwrap_or(0)
                .saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX))
        };
        match self.thread.iter().rposition(|known| *known == thread) {
            Some(last) if end(self, last) == from => {
                if let Some(bytes) = self.bytes.get_mut(last) {
                    bytes.extend_from_slice(&part.bytes);
                }
                return Ok(());
            }
            _ => self.replaced.push((thread, from)),
        }
        self.thread.push(thread);
        self.start.push(from);
        self.bytes.push(part.bytes.clone());
        Ok(())
    }

    pub(crate) async fn save(&self, db: &Db) -> Result<(), DbError> {
        if self.thread.is_empty() {
            return Ok(());
        }
        let (threads, starts): (Vec<i64>, Vec<i64>) = self.replaced.iter().copied().unzip();
        // A process that takes a thread over writes the lines again that its journal has and the transcript lacks.
        const CUT: &str =
            "UPDATE transcripts SET bytes = substr(bytes, 1, (part.start - transcripts.start)::int)
             FROM unnest($1::bigint[], $2::bigint[]) AS part (thread, start)
             WHERE transcripts.thread = part.thread AND transcripts.start < part.start
                AND transcripts.start + octet_length(transcripts.bytes) > part.start";
        const FORGET: &str =
            "DELETE FROM transcripts USING unnest($1::bigint[], $2::bigint[]) AS part (thread, start)
             WHERE transcripts.thread = part.thread AND transcripts.start >= part.start";
        const INSERT: &str = "INSERT INTO transcripts (thread, start, bytes)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS part (thread, start, bytes)
             WHERE octet_length(bytes) > 0";
        // Sent together, in this order.
        db.prepare(&[CUT, FORGET, INSERT]).await?;
        futures_util::future::try_join3(
            db.execute(CUT, &[&threads, &starts]),
            db.execute(FORGET, &[&threads, &starts]),
            db.execute(INSERT, &[&self.thread, &self.start, &self.bytes]),
        )
        .await?;
        Ok(())
    }
}

/// Refuses a part that is longer than the database takes at once.
pub(crate) fn check_part(commit: &ThreadCommit) -> Result<(), DbError> {
    let too_long =
        commit.transcript.as_ref().is_some_and(|part| part.bytes.len() > rye_store::MAX_RECORD_BYTES);
    if too_long { Err(ThreadStoreError::TooLarge("a part of a transcript").into()) } else { Ok(()) }
}

/// A transcript from a byte on.
pub(crate) async fn transcript(db: &Db, id: &ThreadId, from: u64) -> Result<Vec<u8>, DbError> {
    let name = id.as_str();
    let from = to_integer(from, "a transcript")?;
    let sql = "SELECT start, bytes FROM transcripts JOIN threads USING (thread)
         WHERE thread_id = $1 AND start + octet_length(bytes) > $2 ORDER BY start LIMIT 256";
    let (mut bytes, mut next) = (Vec::new(), from);
    for row in db.query(sql, &[&name, &from]).await? {
        let start: i64 = row.try_get(0)?;
        let part: Vec<u8> = row.try_get(1)?;
        let skipped = next.saturating_sub(start);
        let part = usize::try_from(skipped).ok().and_then(|skipped| part.get(skipped..));
        // What is behind a gap is not the transcript.
        let Some(part) = part.filter(|_| start <= next) else { break };
        bytes.extend_from_slice(part);
        next = next.saturating_add(i64::try_from(part.len()).unwrap_or(i64::MAX));
        if bytes.len() >= MAX_TRANSCRIPT_READ_BYTES {
            bytes.truncate(MAX_TRANSCRIPT_READ_BYTES);
            break;
        }
    }
    Ok(bytes)
}

/// Notes where a new tree belongs.
pub(crate) async fn place(
    db: &Db,
    thread: i64,
    origin: &str,
    submission: Option<&Digest>,
    continued_root: Option<i64>,
) -> Result<(), DbError> {
    // A thread that continues another belongs where that one does.
    if let (Some(root), None) = (continued_root, submission) {
        let sql = "INSERT INTO placements (thread, origin, submission, submitted)
             SELECT $1, origin, submission, submitted FROM placements WHERE thread = $2";
        db.execute(sql, &[&thread, &root]).await?;
        return Ok(());
    }
    let digest = submission.map(|digest| digest.as_bytes().to_vec());
    let sql = "INSERT INTO placements (thread, origin, submission, submitted) VALUES ($1, $2, $3, $1)";
    db.execute(sql, &[&thread, &origin, &digest]).await?;
    Ok(())
}

fn to_submission(row: &Row, first: usize) -> Result<Submission, DbError> {
    let digest: Vec<u8> = row.try_get(first)?;
    let digest = <[u8; 32]>::try_from(digest.as_slice());
    let digest = digest.map_err(|_| DbError::damaged("the digest of a submission has another length"))?;
    Ok(Submission { root: parse_id(row.try_get(first + 1)?)?, digest: Digest::from_bytes(digest) })
}

/// The submission of the tree that a thread is in.
pub(crate) async fn submission(db: &Db, id: &ThreadId) -> Result<Option<Submission>, DbError> {
    let name = id.as_str();
    let sql =
        "SELECT submission, first.thread_id FROM threads JOIN placements ON placements.thread = threads.root
         JOIN threads AS first ON first.thread = placements.submitted
         WHERE threads.thread_id = $1 AND submission IS NOT NULL";
    db.query_opt(sql, &[&name]).await?.map(|row| to_submission(&row, 0)).transpose()
}

/// Submitted threads that wait for a worker.
pub(crate) async fn submitted(
    context: &ReadContext,
    observer: &Owner,
    policy: ClaimPolicy,
    only: Option<&ThreadId>,
) -> Result<Vec<SubmittedThread>, DbError> {
    const FIND: &str = concat!(
        "SELECT ",
        record_columns!(),
        ", placed.submission, placed.first, lease_ms, pid, pid_start, boot_id, host, epoch
         FROM threads JOIN LATERAL (
            SELECT placements.submission, begun.thread_id AS first FROM placements
            JOIN threads AS begun ON begun.thread = placements.submitted WHERE placements.thread = threads.root
         ) AS placed ON placed.submission IS NOT NULL
         WHERE completed_at IS NULL AND ($4::text IS NULL OR thread_id = $4)
            AND (pid IS NULL OR host = $1 OR lease_ms < $2)
            AND (status IN ('created', 'running') OR (status = 'suspended' AND pid IS NULL
                AND ((reason IN ('approval', 'limit', 'budget') AND EXISTS (
                        SELECT 1 FROM approvals WHERE approvals.thread = threads.thread AND kind <> 'resume'))
                    OR EXISTS (SELECT 1 FROM approvals WHERE id = 'resume-' || thread_id || '-' || head_seq))
                AND NOT EXISTS (SELECT 1 FROM approvals WHERE approvals.thread = threads.thread AND answer IS NULL)))
         ORDER BY thread LIMIT $3"
    );
    context.shared.clock.measure(&context.db).await?;
    let oldest = match policy {
        ClaimPolicy::Expired { now_ms, lease_ms } => {
            context.shared.clock.to_database(now_ms.saturating_sub(lease_ms))
        }
        ClaimPolicy::Free => 0,
        ClaimPolicy::Forced => i64::MAX,
    };
    let only = only.map(ThreadId::as_str);
    let mut found = Vec::new();
    let next = RECORD_COLUMN_COUNT;
    for row in context.db.query(FIND, &[&observer.host, &oldest, &MAX_SUBMITTED, &only]).await? {
        let heartbeat_ms = context.shared.clock.to_local(row.try_get(next + 2)?)?;
        let holder = read_owner(&row, next + 3)?;
        let is_free = holder.as_ref().is_none_or(|holder| {
            policy.can_take(holder, observer, heartbeat_ms, context.shared.probe.as_ref())
        });
        let record = ThreadRecord::from_row(&row, 0)?;
        let forgery = record.forgery(&context.seal);
        // A row that no key signed which counts is not the registry's. One of a key that was revoked is refused by name.
        let is_passed_over = forgery.as_ref().is_some_and(|why| !matches!(why, Forgery::RevokedKey { .. }));
        if !is_free || is_passed_over {
            continue;
        }
        let (signer, submission) = (record.seal.signer.clone(), to_submission(&row, next)?);
        let epoch = to_number(row.try_get(next + 7)?)?;
        let id = parse_id(&record.thread_id)?;
        if let Some(row) = queries::thread(context, &id).await? {
            found.push(SubmittedThread { row, submission, signer: Some(signer), epoch, forgery });
        }
    }
    Ok(found)
}

const FIND_SUSPENDED: &str = concat!("SELECT ", record_columns!(), ", pid FROM threads WHERE thread_id = $1");

/// Keeps a person's request to resume a suspended thread: a question and its answer, in the place of an earlier one.
pub(crate) async fn request_resume(
    tx: &WriteTx<'_>,
    id: &ThreadId,
    decision: &ApprovalDecision,
) -> Result<(), DbError> {
    let name = id.as_str();
    let row = tx.reading().query_opt(FIND_SUSPENDED, &[&name]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let record = ThreadRecord::from_row(&row, 0)?.check(tx.seal, id)?;
    let holder: Option<i64> = row.try_get(RECORD_COLUMN_COUNT)?;
    if record.status()? != ThreadStatus::Suspended || holder.is_some() {
        let what = "it is not suspended".to_owned();
        return Err(ThreadStoreError::Conflict { thread: id.clone(), what }.into());
    }
    let question = resume_question(id, to_number(record.head_seq)?, decision);
    tx.writing().execute("DELETE FROM approvals WHERE id = $1", &[&question.id]).await?;
    approvals::insert(tx, &question).await?;
    approvals::answer(tx, &question.id, decision).await.map(drop)
}

fn worker_digest(sealer: &Sealer, name: &str, body: &str) -> Digest {
    let mut fields = sealer.fields("worker 1");
    fields.text(name);
    fields.text(body);
    fields.finish()
}

/// Notes what a worker offers, or that it has ended.
pub(crate) async fn put_worker(tx: &WriteTx<'_>, name: &str, body: &str) -> Result<(), DbError> {
    let (name, body) = (to_text(name), to_text(body));
    if body.is_empty() {
        tx.writing().execute("DELETE FROM workers WHERE name = $1", &[&name]).await?;
        return Ok(());
    }
    let seal = tx.seal.seal(&worker_digest(tx.seal, &name, &body));
    let sql = "INSERT INTO workers (name, body, signer, seal, seen_ms)
         VALUES ($1, $2, $3, $4, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
         ON CONFLICT (name) DO UPDATE SET body = excluded.body, signer = excluded.signer, seal = excluded.seal,
            seen_ms = excluded.seen_ms";
    tx.writing().execute(sql, &[&name, &body, &seal.signer, &seal.signature]).await?;
    let old = "DELETE FROM workers WHERE seen_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 86400000";
    tx.writing().execute(old, &[]).await?;
    Ok(())
}

/// The workers that were heard of not long ago.
pub(crate) async fn workers(context: &ReadContext) -> Result<Vec<WorkerRecord>, DbError> {
    let sql = "SELECT name, body, signer, seal, seen_ms FROM workers
         WHERE seen_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1 ORDER BY name";
    context.shared.clock.measure(&context.db).await?;
    let mut workers = Vec::new();
    for row in context.db.query(sql, &[&WORKER_TTL_MS]).await? {
        let (name, body): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let seal = Seal { signer: row.try_get(2)?, signature: row.try_get(3)? };
        let is_valid = context.seal.is_valid(&worker_digest(&context.seal, &name, &body), &seal);
        let seen_ms = context.shared.clock.to_local(row.try_get(4)?)?;
        workers.push(WorkerRecord { name, body, seen_ms, signer: is_valid.then_some(seal.signer) });
    }
    Ok(workers)
}
