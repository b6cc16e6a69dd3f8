//! Requests to end threads that another process may be running.

use rye_store::{CancelRequest, MAX_CANCEL_REQUEST_AGE_MS, ThreadChange, ThreadStoreError};
use rye_thread::thread_id::ThreadId;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_text};
use crate::record::parse_id;
use crate::writer::WriteTx;

/// Keeps a request. Old ones that no process took up are removed.
pub(crate) async fn request(
    tx: &mut WriteTx<'_>,
    id: &ThreadId,
    reason: &str,
    at_ms: u64,
) -> Result<(), DbError> {
    let name = id.as_str();
    let row = tx.reading().query_opt("SELECT thread FROM threads WHERE thread_id = $1", &[&name]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let thread: i64 = row.try_get(0)?;
    let oldest = to_integer(at_ms.saturating_sub(MAX_CANCEL_REQUEST_AGE_MS), "a time")?;
    let db = tx.writing();
    db.execute("DELETE FROM cancel_requests WHERE at_ms < $1", &[&oldest]).await?;
    let (reason, at_ms) = (to_text(reason), to_integer(at_ms, "a time")?);
    let sql = "INSERT INTO cancel_requests (thread, reason, at_ms) VALUES ($1, $2, $3)
         ON CONFLICT (thread) DO UPDATE SET at_ms = excluded.at_ms";
    db.execute(sql, &[&thread, &reason, &at_ms]).await?;
    tx.notify(ThreadChange { thread: id.clone(), status: None });
    Ok(())
}

/// All requests, the oldest first.
pub(crate) async fn list(db: &Db) -> Result<Vec<CancelRequest>, DbError> {
    let sql = "SELECT threads.thread_id, requests.reason FROM cancel_requests AS requests
         JOIN threads USING (thread) ORDER BY requests.at_ms, thread";
    let rows = db.query(sql, &[]).await?;
    let request = |row: &tokio_postgres::Row| {
        Ok(CancelRequest { thread: parse_id(row.try_get(0)?)?, reason: row.try_get(1)? })
    };
    rows.iter().map(request).collect()
}

/// Removes the request for a thread.
pub(crate) async fn clear(tx: &WriteTx<'_>, id: &ThreadId) -> Result<(), DbError> {
    let name = id.as_str();
    let sql = "DELETE FROM cancel_requests WHERE thread = (SELECT thread FROM threads WHERE thread_id = $1)";
    tx.writing().execute(sql, &[&name]).await?;
    Ok(())
}
