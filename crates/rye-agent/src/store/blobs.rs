//! Parts that many threads share, kept once, by hash.

use lillux::Digest;
use rusqlite::{Connection, OptionalExtension, params};

use super::ThreadStoreError;
use super::error::to_sqlite_integer;
use super::writer::WriteTx;
use crate::thread_id::ThreadId;

pub(super) fn put(
    tx: &WriteTx<'_, '_>,
    digest: &Digest,
    bytes: &[u8],
    at_ms: u64,
) -> Result<(), ThreadStoreError> {
    tx.execute(
        "INSERT INTO blobs (digest, at_ms, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET at_ms = max(at_ms, excluded.at_ms)",
        params![digest.as_bytes().as_slice(), to_sqlite_integer(at_ms, "a time")?, bytes],
    )?;
    Ok(())
}

/// Notes that a thread uses a part.
pub(super) fn add_use(
    tx: &WriteTx<'_, '_>,
    digest: &Digest,
    thread: &ThreadId,
) -> Result<(), ThreadStoreError> {
    let thread = super::queries::row_id(tx.connection, thread)?;
    tx.execute(
        "INSERT INTO uses (thread, blob) SELECT ?1, blob FROM blobs WHERE digest = ?2 ON CONFLICT DO NOTHING",
        params![thread, digest.as_bytes().as_slice()],
    )?;
    Ok(())
}

/// The part of this name, if it is there and is what its name says.
pub(super) fn get(connection: &Connection, digest: &Digest) -> Result<Vec<u8>, ThreadStoreError> {
    let bytes: Option<Vec<u8>> = connection
        .prepare_cached("SELECT bytes FROM blobs WHERE digest = ?1")?
        .query_row([digest.as_bytes().as_slice()], |row| row.get(0))
        .optional()?;
    bytes
        .filter(|bytes| Digest::of(bytes) == *digest)
        .ok_or_else(|| ThreadStoreError::NoBlob(digest.to_hex()))
}
