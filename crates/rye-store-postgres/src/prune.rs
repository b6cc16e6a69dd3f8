//! Forgetting threads that have ended, whole trees at a time.
//!
//! A tree goes with the trees that its threads went on in or came from, and only when all of them have ended and none asks
//! a person anything. The database gives the room back by itself.

use std::collections::BTreeMap;

use rye_store::{PruneOptions, PruneRow, TreeGroup, select_groups};

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number};
use crate::record::parse_id;
use crate::writer::WriteTx;

/// What `facts` calls the last time that pruning was done by itself.
const PRUNED_KEY: &str = "pruned_ms";

const FIND_ROWS: &str =
    "SELECT thread, thread_id, root, completed_at, continuation_of, continuation_thread_id, chain_root_id,
        EXISTS (SELECT 1 FROM approvals WHERE approvals.thread = threads.thread AND answer IS NULL)
     FROM threads ORDER BY thread DESC";

const JOURNAL_BYTES: &str = "SELECT thread, sum(octet_length(body))::bigint FROM journal GROUP BY thread";

/// Of parts that one thread alone uses.
const PART_BYTES: &str =
    "SELECT thread, sum(octet_length(bytes))::bigint FROM uses JOIN blob_chunks USING (blob)
     WHERE blob IN (SELECT blob FROM uses GROUP BY blob HAVING count(*) = 1) GROUP BY thread";

const STORED_BYTES: &str = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
     WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND relkind = 'r'";

/// How many bytes the store takes.
pub(crate) async fn stored_bytes(db: &Db) -> Result<u64, DbError> {
    to_number(db.query_value(STORED_BYTES, &[]).await?)
}

/// The groups that are to go, the newest first.
pub(crate) async fn select(db: &Db, options: &PruneOptions) -> Result<Vec<TreeGroup>, DbError> {
    let mut rows = Vec::new();
    for row in db.query(FIND_ROWS, &[]).await? {
        rows.push(PruneRow {
            row: row.try_get(0)?,
            id: parse_id(row.try_get(1)?)?,
            root: row.try_get(2)?,
            completed_at: row.try_get(3)?,
            links: [row.try_get(4)?, row.try_get(5)?, row.try_get(6)?],
            is_asking: row.try_get(7)?,
        });
    }
    let mut stored: BTreeMap<i64, u64> = BTreeMap::new();
    let mut total = 0;
    if options.max_bytes.is_some() {
        total = stored_bytes(db).await?;
        for sql in [JOURNAL_BYTES, PART_BYTES] {
            for row in db.query(sql, &[]).await? {
                let bytes = to_number(row.try_get(1)?)?;
                let all: &mut u64 = stored.entry(row.try_get(0)?).or_default();
                *all = all.saturating_add(bytes);
            }
        }
    }
    select_groups(&rows, options, total, |group| {
        let bytes = group.threads.iter().map(|(row, _)| stored.get(row).copied().unwrap_or(0));
        Ok(bytes.fold(0, u64::saturating_add))
    })
}

/// Takes these groups out of the database, except those that are in use.
pub(crate) async fn delete(
    tx: &WriteTx<'_>,
    options: &PruneOptions,
    chosen: &[TreeGroup],
) -> Result<(Vec<TreeGroup>, u64), DbError> {
    // The trees of those that were chosen are locked: what is chosen again of them stays as it is.
    let locked: Vec<i64> =
        chosen.iter().flat_map(|group| group.threads.iter().map(|(row, _)| *row)).collect();
    let is_locked = |group: &TreeGroup| group.threads.iter().all(|(row, _)| locked.contains(row));
    let groups: Vec<TreeGroup> = select(tx.reading(), options).await?.into_iter().filter(is_locked).collect();
    let rows: Vec<i64> = groups.iter().flat_map(|group| group.threads.iter().map(|(row, _)| *row)).collect();
    let db = tx.writing();
    let released = db.query("SELECT DISTINCT blob FROM uses WHERE thread = ANY($1)", &[&rows]).await?;
    let released: Vec<i64> = released.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    delete_rows(db, &rows).await?;
    // A part that was kept a moment ago is about to be used.
    let before = to_integer(options.blobs_before_ms(), "a time")?;
    let unused = "DELETE FROM blobs WHERE at_ms <= $1 AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let blobs = db.execute(unused, &[&before]).await?;
    let released_before = to_integer(options.released_blobs_before_ms(), "a time")?;
    let of_groups = "DELETE FROM blobs WHERE at_ms <= $1 AND blob = ANY($2)
         AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let blobs = blobs + db.execute(of_groups, &[&released_before, &released]).await?;
    Ok((groups, blobs))
}

/// Takes threads out of all tables.
pub(crate) async fn delete_rows(db: &Db, rows: &[i64]) -> Result<(), DbError> {
    for sql in [
        "DELETE FROM journal WHERE thread = ANY($1)",
        "DELETE FROM calls WHERE thread = ANY($1)",
        "DELETE FROM uses WHERE thread = ANY($1)",
        "DELETE FROM approvals WHERE thread = ANY($1)",
        "DELETE FROM waits WHERE thread = ANY($1)",
        "DELETE FROM transcripts WHERE thread = ANY($1)",
        "DELETE FROM placements WHERE thread = ANY($1)",
        "DELETE FROM cancel_requests WHERE thread = ANY($1)",
        "DELETE FROM budget_ledger WHERE thread = ANY($1)",
        "DELETE FROM threads WHERE thread = ANY($1)",
    ] {
        db.execute(sql, &[&rows]).await?;
    }
    Ok(())
}

/// Whether nothing was forgotten by itself for a day, and there is something older than that.
pub(crate) async fn is_due(db: &Db, at_ms: u64) -> Result<bool, DbError> {
    let last = db.query_opt("SELECT value FROM facts WHERE name = $1", &[&PRUNED_KEY]).await?;
    let last: Option<i64> = last.map(|row| row.try_get(0)).transpose()?;
    let first = db.query_opt("SELECT created_at FROM threads ORDER BY thread LIMIT 1", &[]).await?;
    let first: Option<String> = first.map(|row| row.try_get(0)).transpose()?;
    Ok(PruneOptions::is_due(at_ms, last.map(to_number).transpose()?, first.as_deref()))
}

/// Notes that it is done now, if it is due: of two processes one does it.
pub(crate) async fn take_turn(tx: &WriteTx<'_>, at_ms: u64) -> Result<bool, DbError> {
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('rye prune ' || current_schema(), 0))::text";
    tx.reading().query(lock, &[]).await?;
    if !is_due(tx.reading(), at_ms).await? {
        return Ok(false);
    }
    let sql = "INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    tx.writing().execute(sql, &[&PRUNED_KEY, &to_integer(at_ms, "a time")?]).await?;
    Ok(true)
}
