//! Requests to end threads that another process may be running.

use rusqlite::{Connection, params};

use super::db_error::to_sqlite_integer;
use super::writer::WriteTx;
use super::{DbError, queries};
use rye_store::{CancelRequest, MAX_CANCEL_REQUEST_AGE_MS, ThreadChange, ThreadStoreError};
use rye_thread::thread_id::ThreadId;

/// Keeps a request. Old ones that no process took up are removed.
pub(super) fn request(
    tx: &mut WriteTx<'_, '_>,
    id: &ThreadId,
    reason: &str,
    at_ms: u64,
) -> Result<(), DbError> {
    let thread = queries::row_id(tx.connection, id)?;
    let oldest = to_sqlite_integer(at_ms.saturating_sub(MAX_CANCEL_REQUEST_AGE_MS), "a time")?;
    tx.execute("DELETE FROM cancel_requests WHERE at_ms < ?1", [oldest])?;
    tx.execute(
        "INSERT INTO cancel_requests (thread, reason, at_ms) VALUES (?1, ?2, ?3)
         ON CONFLICT (thread) DO UPDATE SET at_ms = excluded.at_ms",
        params![thread, reason, to_sqlite_integer(at_ms, "a time")?],
    )?;
    tx.notify(ThreadChange { thread: id.clone(), status: None });
    Ok(())
}

/// All requests, the oldest first.
pub(super) fn list(connection: &Connection) -> Result<Vec<CancelRequest>, DbError> {
    let sql = "SELECT threads.thread_id, requests.reason FROM cancel_requests AS requests
               JOIN threads USING (thread) ORDER BY requests.at_ms, thread";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut requests = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let thread = ThreadId::parse(&id).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
        requests.push(CancelRequest { thread, reason: row.get(1)? });
    }
    Ok(requests)
}

/// Removes the request for a thread.
pub(super) fn clear(tx: &mut WriteTx<'_, '_>, id: &ThreadId) -> Result<(), DbError> {
    let sql = "DELETE FROM cancel_requests WHERE thread = (SELECT thread FROM threads WHERE thread_id = ?1)";
    tx.execute(sql, [id.as_str()])?;
    Ok(())
}
