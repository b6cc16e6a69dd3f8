//! Trees that move to or from another store. What comes is sealed with this user's secret.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use rye_item::text::one_line;
use rye_store::{
    ApprovalRecord, BudgetCaps, Forgery, RESUME_KIND, ThreadChange, ThreadProgress, ThreadStoreError,
    ThreadTransfer, TransferValue, same_progress, transfer_call_columns, transfer_ledger_columns,
    transfer_thread_columns,
};
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

use super::commit::append;
use super::create::find_blob;
use super::row_seal::RowSealer;
use super::writer::WriteTx;
use super::{DbError, approvals, chain, prune, queries, row_seal};

const FIND_THREAD: &str =
    concat!("SELECT ", transfer_thread_columns!(), " FROM threads WHERE thread_id = ?1");
const FIND_LEDGER: &str =
    concat!("SELECT ", transfer_ledger_columns!(), " FROM budget_ledger WHERE thread_id = ?1");
const FIND_CALLS: &str = concat!(
    "SELECT ",
    transfer_call_columns!(),
    " FROM calls WHERE thread = (SELECT thread FROM threads WHERE thread_id = ?1) ORDER BY call"
);

/// The roots of trees, the oldest first.
pub(super) fn transferable(connection: &Connection) -> Result<Vec<ThreadId>, DbError> {
    let mut find =
        connection.prepare("SELECT thread_id FROM threads WHERE parent IS NULL ORDER BY thread")?;
    let ids = find.query_map([], |row| row.get::<_, String>(0))?;
    ids.map(|id| parse_id(&id?)).collect()
}

fn parse_id(text: &str) -> Result<ThreadId, DbError> {
    ThreadId::parse(text).map_err(|error| ThreadStoreError::Failed(error.to_string()).into())
}

fn conflict(id: &ThreadId, what: &str) -> DbError {
    ThreadStoreError::Conflict { thread: id.clone(), what: what.to_owned() }.into()
}

fn row_values(row: &Row<'_>) -> rusqlite::Result<Vec<TransferValue>> {
    let count = row.as_ref().column_count();
    (0..count)
        .map(|column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => TransferValue::Null,
                ValueRef::Integer(number) => TransferValue::Integer(number),
                // No column of these is one: the tables are strict.
                ValueRef::Real(number) => TransferValue::Text(number.to_string()),
                ValueRef::Text(bytes) => TransferValue::text(&String::from_utf8_lossy(bytes)),
                ValueRef::Blob(bytes) => TransferValue::Bytes(bytes.to_vec()),
            })
        })
        .collect()
}

/// A tree, verified.
pub(super) fn export_tree(
    connection: &Connection,
    seal: &RowSealer,
    root: &ThreadId,
) -> Result<Vec<ThreadTransfer>, DbError> {
    let mut threads = Vec::new();
    for row in queries::subtree(connection, seal, root)? {
        let id = row.id;
        if row.is_forged {
            return Err(row_seal::forged_error(&id));
        }
        if row.owner.is_some() || row.status.is_at_work() {
            return Err(ThreadStoreError::Running { thread: id }.into());
        }
        let name = id.as_str();
        let ledger = connection.prepare_cached(FIND_LEDGER)?.query_row([name], row_values).optional()?;
        let ledger = ledger.ok_or(ThreadStoreError::Forged { thread: id.clone(), what: Forgery::Ledger })?;
        let mut calls = connection.prepare_cached(FIND_CALLS)?;
        threads.push(ThreadTransfer {
            row: connection.prepare_cached(FIND_THREAD)?.query_row([name], row_values)?,
            ledger,
            calls: calls.query_map([name], row_values)?.collect::<Result<_, _>>()?,
            journal: queries::journal(connection, &seal.mac, &id)?,
            approvals: find_approvals(connection, seal, &id)?,
            blobs: find_blobs(connection, &id)?,
            transcript: Vec::new(),
            is_ended: row.completed_at.is_some(),
            parent: row.parent,
            id,
        });
    }
    Ok(threads)
}

fn find_approvals(
    connection: &Connection,
    seal: &RowSealer,
    id: &ThreadId,
) -> Result<Vec<ApprovalRecord>, DbError> {
    let mut find = connection.prepare_cached(
        "SELECT id FROM approvals WHERE kind <> ?2
            AND thread = (SELECT thread FROM threads WHERE thread_id = ?1) ORDER BY id",
    )?;
    let names = find.query_map([id.as_str(), RESUME_KIND], |row| row.get::<_, String>(0))?;
    let mut found = Vec::new();
    for name in names {
        let name = name?;
        let record = approvals::find(connection, &seal.mac, &name)?;
        found.push(
            record.ok_or_else(|| conflict(id, &format!("its question `{}` is forged", one_line(&name))))?,
        );
    }
    Ok(found)
}

fn find_blobs(connection: &Connection, id: &ThreadId) -> Result<Vec<lillux::Digest>, DbError> {
    let mut find = connection.prepare_cached(
        "SELECT digest FROM blobs JOIN uses USING (blob)
         WHERE thread = (SELECT thread FROM threads WHERE thread_id = ?1) ORDER BY digest",
    )?;
    let digests = find.query_map([id.as_str()], |row| row.get::<_, [u8; 32]>(0))?;
    Ok(digests.map(|digest| digest.map(lillux::Digest::from_bytes)).collect::<Result<_, _>>()?)
}

/// Takes a tree of another store.
pub(super) fn import_tree(
    tx: &mut WriteTx<'_, '_>,
    threads: &[ThreadTransfer],
    at_ms: u64,
) -> Result<(), DbError> {
    let known = tx.head_log.load();
    for transfer in threads {
        // One that was here before comes back further than it was when it left.
        let last = known.get(transfer.id.as_str()).and_then(|recorded| recorded.head);
        import(tx, transfer, last.map_or(0, |head| head.revision), at_ms)?;
        tx.notify(ThreadChange { thread: transfer.id.clone(), status: None });
    }
    Ok(())
}

fn import(
    tx: &mut WriteTx<'_, '_>,
    transfer: &ThreadTransfer,
    revision: u64,
    at_ms: u64,
) -> Result<(), DbError> {
    let id = &transfer.id;
    let number: i64 =
        tx.query_row("SELECT coalesce(max(thread), 0) + 1 FROM threads", [], |row| row.get(0))?;
    let (parent, root) = match &transfer.parent {
        None => (None, number),
        Some(parent) => {
            let sql = "SELECT thread, root FROM threads WHERE thread_id = ?1";
            let found =
                tx.query_row(sql, [parent.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let (parent, root): (i64, i64) =
                found.ok_or_else(|| ThreadStoreError::NoThread(parent.clone()))?;
            (Some(parent), root)
        }
    };
    let is_there = "SELECT EXISTS (SELECT 1 FROM threads WHERE thread_id = ?1)";
    if tx.query_row(is_there, [id.as_str()], |row| row.get(0))? {
        return Err(ThreadStoreError::Exists(id.clone()).into());
    }
    let head = transfer.head().ok_or_else(|| conflict(id, "its row names no head"))?;
    let caps = |number: Option<i64>| number.map(|number| u64::try_from(number).unwrap_or(0));
    let sealed = chain::JournalHead {
        thread: id.as_str(),
        parent: transfer.parent.as_ref().map(ThreadId::as_str),
        seq: u64::try_from(head.seq).unwrap_or(0),
        hash: head.hash.as_bytes(),
        caps: BudgetCaps { spend: caps(head.max_spend).map(Nanos), tokens: caps(head.max_tokens) },
    };
    let own = [
        Value::from(number),
        parent.map_or(Value::Null, Value::from),
        Value::from(root),
        Value::from(super::db_error::to_sqlite_integer(at_ms, "a time")?),
        Value::from(sealed.mac(&tx.seal.mac).as_bytes().to_vec()),
        Value::from(1_i64),
        Value::from(super::db_error::to_sqlite_integer(revision, "the number of seals")?),
    ];
    let columns = concat!(
        "thread, parent, root, heartbeat_ms, head_mac, epoch, revision, ",
        transfer_thread_columns!()
    );
    insert(tx, "threads", columns, own, &transfer.row)?;
    let journal = append(tx, number, 0, chain::genesis(id), &transfer.journal)?;
    if (journal.0, journal.1) != (sealed.seq, head.hash) {
        return Err(conflict(id, "its journal does not lead to its head"));
    }
    let place = || [Value::from(number), parent.map_or(Value::Null, Value::from)];
    insert(
        tx,
        "budget_ledger",
        concat!("thread, parent, ", transfer_ledger_columns!()),
        place(),
        &transfer.ledger,
    )?;
    for call in &transfer.calls {
        insert(tx, "calls", concat!("thread, ", transfer_call_columns!()), [Value::from(number)], call)?;
    }
    row_seal::reseal(tx, number, id)?;
    for record in &transfer.approvals {
        approvals::insert(tx, &record.approval)?;
        if let Some(answer) = &record.answer {
            approvals::answer(tx, &record.approval.id, answer)?;
        }
    }
    for digest in &transfer.blobs {
        let blob = find_blob(tx, digest)?;
        tx.execute("INSERT OR IGNORE INTO uses (thread, blob) VALUES (?1, ?2)", [number, blob])?;
    }
    Ok(())
}

fn insert(
    tx: &WriteTx<'_, '_>,
    table: &str,
    columns: &str,
    first: impl IntoIterator<Item = Value>,
    values: &[TransferValue],
) -> Result<(), DbError> {
    let own = values.iter().map(|value| match value {
        TransferValue::Null => Value::Null,
        TransferValue::Integer(number) => Value::from(*number),
        TransferValue::Text(text) => Value::from(text.clone()),
        TransferValue::Bytes(bytes) => Value::from(bytes.clone()),
    });
    let all: Vec<Value> = first.into_iter().chain(own).collect();
    let places = vec!["?"; all.len()].join(", ");
    let sql = format!("INSERT INTO {table} ({columns}) VALUES ({places})");
    tx.connection.prepare_cached(&sql)?.execute(params_from_iter(all))?;
    Ok(())
}

/// Forgets a tree that another store has taken, if it is as it was exported.
pub(super) fn forget_tree(tx: &WriteTx<'_, '_>, exported: &[ThreadProgress]) -> Result<(), DbError> {
    let Some(root) = exported.first().map(|first| &first.thread) else { return Ok(()) };
    let mut find = tx.connection.prepare_cached(
        "SELECT thread, pid, thread_id, head_seq, head_hash,
            (SELECT count(*) FROM approvals WHERE approvals.thread = threads.thread AND kind <> ?2 AND answer IS NOT NULL)
         FROM threads WHERE root = (SELECT thread FROM threads WHERE thread_id = ?1)",
    )?;
    let mut read = find.query([root.as_str(), RESUME_KIND])?;
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    while let Some(row) = read.next()? {
        if row.get::<_, Option<i64>>(1)?.is_some() {
            return Err(ThreadStoreError::Running { thread: root.clone() }.into());
        }
        rows.push(row.get(0)?);
        found.push(ThreadProgress {
            thread: parse_id(&row.get::<_, String>(2)?)?,
            seq: row.get(3)?,
            hash: lillux::Digest::from_bytes(row.get(4)?),
            answers: row.get(5)?,
        });
    }
    let ids: Vec<ThreadId> = found.iter().map(|one| one.thread.clone()).collect();
    if !same_progress(exported, found) {
        return Err(conflict(root, "it has changed since it was copied"));
    }
    tx.head_log.mark_pruned(ids.iter());
    // Children are younger than their parents.
    rows.sort_unstable();
    rows.iter().rev().try_for_each(|row| prune::delete_row(tx, *row))
}
