//! Trees that move to or from another store. What comes is signed by this process's key.

use lillux::Digest;
use rye_store::{
    Approval, ApprovalRecord, Forgery, RESUME_KIND, ThreadProgress, ThreadStoreError, ThreadTransfer,
    TransferValue, journal_genesis, same_progress, transfer_call_columns, transfer_ledger_columns,
    transfer_thread_columns,
};
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::commit::JournalRows;
use crate::connection::ReadContext;
use crate::db::{Db, SqlValue};
use crate::db_error::DbError;
use crate::record::{ThreadRecord, parse_id, record_columns};
use crate::writer::WriteTx;
use crate::{approvals, blobs, cluster, prune, queries};

/// How much of a transcript is one row.
const TRANSCRIPT_PART_BYTES: usize = 1 << 20;

const INSERT_THREAD: &str = concat!(
    "INSERT INTO threads (thread, parent, root, lease_ms, revision, signer, seal, epoch, ",
    transfer_thread_columns!(),
    ") VALUES ($1, $2, $3, 0, 0, '', '', 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
        $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)"
);
const INSERT_LEDGER: &str = concat!(
    "INSERT INTO budget_ledger (thread, parent, ",
    transfer_ledger_columns!(),
    ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
);
const INSERT_CALL: &str = concat!(
    "INSERT INTO calls (thread, ",
    transfer_call_columns!(),
    ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
);
const FIND_THREAD: &str =
    concat!("SELECT ", transfer_thread_columns!(), " FROM threads WHERE thread_id = $1");
const FIND_LEDGER: &str =
    concat!("SELECT ", transfer_ledger_columns!(), " FROM budget_ledger WHERE thread_id = $1");
const FIND_CALLS: &str = concat!(
    "SELECT ",
    transfer_call_columns!(),
    " FROM calls WHERE thread = (SELECT thread FROM threads WHERE thread_id = $1) ORDER BY call"
);

/// A value of a transfer, as a column of any type takes it.
#[derive(Debug)]
struct ColumnValue<'a>(&'a TransferValue);

impl ToSql for ColumnValue<'_> {
    fn to_sql(
        &self,
        column: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            TransferValue::Null => Ok(IsNull::Yes),
            TransferValue::Integer(number) if *column == Type::BOOL => (*number != 0).to_sql(column, out),
            TransferValue::Integer(number) => number.to_sql_checked(column, out),
            TransferValue::Text(text) => text.to_sql_checked(column, out),
            TransferValue::Bytes(bytes) => bytes.to_sql_checked(column, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The values of a row.
fn row_values(row: &Row) -> Result<Vec<TransferValue>, DbError> {
    let value = |(index, column): (usize, &tokio_postgres::Column)| -> Result<TransferValue, DbError> {
        let found = match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(index)?.map(TransferValue::Integer),
            Type::BOOL => {
                row.try_get::<_, Option<bool>>(index)?.map(|flag| TransferValue::Integer(i64::from(flag)))
            }
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(index)?.map(TransferValue::Bytes),
            _ => row.try_get::<_, Option<String>>(index)?.map(TransferValue::Text),
        };
        Ok(found.unwrap_or(TransferValue::Null))
    };
    row.columns().iter().enumerate().map(value).collect()
}

/// The roots of trees that began at this place.
pub(crate) async fn transferable(context: &ReadContext) -> Result<Vec<ThreadId>, DbError> {
    let sql = "SELECT thread_id FROM threads JOIN placements USING (thread)
         WHERE parent IS NULL AND origin = $1 ORDER BY thread";
    let rows = context.db.query(sql, &[&context.shared.origin]).await?;
    rows.iter().map(|row| parse_id(row.try_get(0)?)).collect()
}

fn conflict(id: &ThreadId, what: &str) -> DbError {
    ThreadStoreError::Conflict { thread: id.clone(), what: what.to_owned() }.into()
}

/// A tree, verified.
pub(crate) async fn export_tree(
    context: &ReadContext,
    root: &ThreadId,
) -> Result<Vec<ThreadTransfer>, DbError> {
    let mut threads = Vec::new();
    for row in queries::subtree(context, root).await? {
        let id = row.id;
        queries::verified_thread(context, &id).await?;
        if row.owner.is_some() || row.status.is_at_work() {
            return Err(ThreadStoreError::Running { thread: id }.into());
        }
        let db = &context.db;
        let name = id.as_str();
        let found = db.query_opt(FIND_THREAD, &[&name]).await?;
        let found = found.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
        let ledger = db.query_opt(FIND_LEDGER, &[&name]).await?;
        let ledger =
            ledger.ok_or_else(|| ThreadStoreError::Forged { thread: id.clone(), what: Forgery::Ledger })?;
        let calls = db.query(FIND_CALLS, &[&name]).await?;
        threads.push(ThreadTransfer {
            row: row_values(&found)?,
            ledger: row_values(&ledger)?,
            calls: calls.iter().map(row_values).collect::<Result<_, _>>()?,
            journal: queries::journal(context, &id).await?,
            approvals: find_approvals(context, &id).await?,
            blobs: find_blobs(db, &id).await?,
            transcript: find_transcript(db, &id).await?,
            is_ended: row.completed_at.is_some(),
            parent: row.parent,
            id,
        });
    }
    Ok(threads)
}

async fn find_approvals(context: &ReadContext, id: &ThreadId) -> Result<Vec<ApprovalRecord>, DbError> {
    let name = id.as_str();
    let sql = "SELECT id FROM approvals WHERE kind <> $2
            AND thread = (SELECT thread FROM threads WHERE thread_id = $1) ORDER BY id";
    let mut found = Vec::new();
    for row in context.db.query(sql, &[&name, &RESUME_KIND]).await? {
        let question: String = row.try_get(0)?;
        let record = approvals::find(&context.db, &context.seal, &question).await?;
        // A question that no listed key signed moves nowhere, and neither does its thread.
        found.push(record.ok_or_else(|| conflict(id, &format!("its question `{question}` is forged")))?);
    }
    Ok(found)
}

async fn find_blobs(db: &Db, id: &ThreadId) -> Result<Vec<Digest>, DbError> {
    let name = id.as_str();
    let sql = "SELECT digest FROM blobs JOIN uses USING (blob)
         WHERE thread = (SELECT thread FROM threads WHERE thread_id = $1) ORDER BY digest";
    let rows = db.query(sql, &[&name]).await?;
    let digest = |row: &Row| -> Result<Digest, DbError> {
        let bytes: Vec<u8> = row.try_get(0)?;
        let bytes = <[u8; 32]>::try_from(bytes.as_slice());
        Ok(Digest::from_bytes(bytes.map_err(|_| DbError::damaged("a digest has another length"))?))
    };
    rows.iter().map(digest).collect()
}

async fn find_transcript(db: &Db, id: &ThreadId) -> Result<Vec<u8>, DbError> {
    let mut bytes = Vec::new();
    loop {
        let part = cluster::transcript(db, id, bytes.len() as u64).await?;
        if part.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&part);
    }
}

/// Takes a tree of another store.
pub(crate) async fn import_tree(tx: &WriteTx<'_>, threads: &[ThreadTransfer]) -> Result<(), DbError> {
    for transfer in threads {
        import(tx, transfer).await?;
    }
    Ok(())
}

async fn import(tx: &WriteTx<'_>, transfer: &ThreadTransfer) -> Result<(), DbError> {
    let (db, id) = (tx.reading(), &transfer.id);
    let number: i64 = db.query_value("SELECT nextval('thread_numbers')", &[]).await?;
    let (parent, root) = match &transfer.parent {
        None => (None, number),
        Some(parent) => {
            let name = parent.as_str();
            let found =
                db.query_opt("SELECT thread, root FROM threads WHERE thread_id = $1", &[&name]).await?;
            let found = found.ok_or_else(|| ThreadStoreError::NoThread(parent.clone()))?;
            (Some(found.try_get::<_, i64>(0)?), found.try_get::<_, i64>(1)?)
        }
    };
    let db = tx.writing();
    let inserted = insert_values(db, INSERT_THREAD, &[&number, &parent, &root], &transfer.row).await;
    inserted.map_err(|error| match error.is_duplicate("threads_thread_id") {
        true => error.with_error(ThreadStoreError::Exists(id.clone())),
        false => error,
    })?;
    insert_values(db, INSERT_LEDGER, &[&number, &parent], &transfer.ledger).await?;
    for call in &transfer.calls {
        insert_values(db, INSERT_CALL, &[&number], call).await?;
    }
    seal(tx, number, transfer).await?;
    for record in &transfer.approvals {
        let question: &Approval = &record.approval;
        approvals::insert(tx, question).await?;
        if let Some(answer) = &record.answer {
            approvals::answer(tx, &question.id, answer).await?;
        }
    }
    for digest in &transfer.blobs {
        blobs::add_use(tx, digest, id).await?;
    }
    let mut start = 0_i64;
    for part in transfer.transcript.chunks(TRANSCRIPT_PART_BYTES) {
        let sql = "INSERT INTO transcripts (thread, start, bytes) VALUES ($1, $2, $3)";
        db.execute(sql, &[&number, &start, &part]).await?;
        start = start.saturating_add(i64::try_from(part.len()).unwrap_or(i64::MAX));
    }
    if parent.is_none() {
        cluster::place(db, number, tx.origin, None, None).await?;
    }
    Ok(())
}

async fn insert_values(
    db: &Db,
    sql: &'static str,
    first: &[SqlValue<'_>],
    values: &[TransferValue],
) -> Result<(), DbError> {
    let columns: Vec<ColumnValue<'_>> = values.iter().map(ColumnValue).collect();
    let own = columns.iter().map(|column| column as SqlValue<'_>);
    let all: Vec<SqlValue<'_>> = first.iter().copied().chain(own).collect();
    db.execute(sql, &all).await.map(drop)
}

/// Writes the journal and seals the row: the journal must lead to the head that the row names.
async fn seal(tx: &WriteTx<'_>, number: i64, transfer: &ThreadTransfer) -> Result<(), DbError> {
    const FIND: &str = concat!("SELECT ", record_columns!(), " FROM threads WHERE thread = $1");
    let row = tx.reading().query_opt(FIND, &[&number]).await?;
    let row = row.ok_or_else(|| DbError::damaged("a thread was not kept"))?;
    let mut record = ThreadRecord::from_row(&row, 0)?;
    let expected = (record.head_seq, std::mem::take(&mut record.head_hash));
    record.head_seq = 0;
    record.head_hash = journal_genesis(&transfer.id).as_bytes().to_vec();
    let journal = JournalRows::new(&mut record, &transfer.journal)?;
    if (record.head_seq, &record.head_hash) != (expected.0, &expected.1) {
        return Err(conflict(&transfer.id, "its journal does not lead to its head"));
    }
    journal.save(tx.writing()).await?;
    record.seal_next(tx.seal)?;
    ThreadRecord::update_all(&[&record], tx.writing()).await
}

/// Forgets a tree that another store has taken, if it is as it was exported.
pub(crate) async fn forget_tree(tx: &WriteTx<'_>, exported: &[ThreadProgress]) -> Result<(), DbError> {
    let Some(root) = exported.first().map(|first| &first.thread) else { return Ok(()) };
    let name = root.as_str();
    let sql = "SELECT thread, pid, thread_id, head_seq, head_hash,
            (SELECT count(*) FROM approvals WHERE approvals.thread = threads.thread AND kind <> $2 AND answer IS NOT NULL)
        FROM threads WHERE root = (SELECT thread FROM threads WHERE thread_id = $1)";
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    for row in tx.reading().query(sql, &[&name, &RESUME_KIND]).await? {
        if row.try_get::<_, Option<i64>>(1)?.is_some() {
            return Err(ThreadStoreError::Running { thread: root.clone() }.into());
        }
        rows.push(row.try_get(0)?);
        let hash: Vec<u8> = row.try_get(4)?;
        let hash = <[u8; 32]>::try_from(hash.as_slice());
        found.push(ThreadProgress {
            thread: parse_id(row.try_get(2)?)?,
            seq: row.try_get(3)?,
            hash: Digest::from_bytes(hash.map_err(|_| DbError::damaged("a hash has another length"))?),
            answers: row.try_get(5)?,
        });
    }
    if !same_progress(exported, found) {
        return Err(conflict(root, "it has changed since it was copied"));
    }
    prune::delete_rows(tx.writing(), &rows).await
}
