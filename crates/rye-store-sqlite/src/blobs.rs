//! Parts that many threads share, kept once, by hash.

use lillux::Digest;
use rusqlite::{Connection, OptionalExtension, params};

use super::DbError;
use super::db_error::to_sqlite_integer;
use super::writer::WriteTx;
use rye_store::ThreadStoreError;
use rye_thread::thread_id::ThreadId;

/// Keeps a part. One that was kept and changed since is what its name says again.
pub(super) fn put(tx: &WriteTx<'_, '_>, digest: &Digest, bytes: &[u8], at_ms: u64) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO blobs (digest, at_ms, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET at_ms = max(at_ms, excluded.at_ms), bytes = excluded.bytes",
        params![digest.as_bytes().as_slice(), to_sqlite_integer(at_ms, "a time")?, bytes],
    )?;
    Ok(())
}

/// Notes that a thread uses a part.
pub(super) fn add_use(tx: &WriteTx<'_, '_>, digest: &Digest, thread: &ThreadId) -> Result<(), DbError> {
    let thread = super::queries::row_id(tx.connection, thread)?;
    tx.execute(
        "INSERT INTO uses (thread, blob) SELECT ?1, blob FROM blobs WHERE digest = ?2 ON CONFLICT DO NOTHING",
        params![thread, digest.as_bytes().as_slice()],
    )?;
    Ok(())
}

/// The part of this name, if it is there and is what its name says.
pub(super) fn get(connection: &Connection, digest: &Digest) -> Result<Vec<u8>, DbError> {
    let bytes: Option<Vec<u8>> = connection
        .prepare_cached("SELECT bytes FROM blobs WHERE digest = ?1")?
        .query_row([digest.as_bytes().as_slice()], |row| row.get(0))
        .optional()?;
    bytes
        .filter(|bytes| Digest::of(bytes) == *digest)
        .ok_or_else(|| DbError::from(ThreadStoreError::NoBlob(digest.to_hex())))
}
