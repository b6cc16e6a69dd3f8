//! Parts that many threads share, kept once, by hash, in pieces of bounded size.

use lillux::Digest;
use rye_store::ThreadStoreError;
use rye_thread::thread_id::ThreadId;

use crate::db::Db;
use crate::db_error::{DbError, to_integer};
use crate::writer::WriteTx;

/// The size of a piece: the server holds a value in memory as a whole.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) async fn put(tx: &WriteTx<'_>, digest: &Digest, bytes: &[u8], at_ms: u64) -> Result<(), DbError> {
    let db = tx.writing();
    let (name, at_ms) = (digest.as_bytes().as_slice(), to_integer(at_ms, "a time")?);
    let sql = "INSERT INTO blobs (digest, at_ms) VALUES ($1, $2)
         ON CONFLICT (digest) DO UPDATE SET at_ms = greatest(blobs.at_ms, excluded.at_ms) RETURNING blob, (xmax = 0)";
    let row = db.query_opt(sql, &[&name, &at_ms]).await?;
    let row = row.ok_or_else(|| DbError::damaged("a part was not kept"))?;
    let (blob, is_new): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
    if !is_new {
        return Ok(());
    }
    for (chunk, bytes) in (0_i64..).zip(bytes.chunks(CHUNK_BYTES)) {
        let sql = "INSERT INTO blob_chunks (blob, chunk, bytes) VALUES ($1, $2, $3)";
        db.execute(sql, &[&blob, &chunk, &bytes]).await?;
    }
    Ok(())
}

/// Notes that a thread uses a part, which must be there.
pub(crate) async fn add_use(tx: &WriteTx<'_>, digest: &Digest, thread: &ThreadId) -> Result<(), DbError> {
    let (name, id) = (digest.as_bytes().as_slice(), thread.as_str());
    let find = "SELECT thread FROM threads WHERE thread_id = $1";
    let row = tx.reading().query_opt(find, &[&id]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(thread.clone()))?;
    let number: i64 = row.try_get(0)?;
    let row = tx.reading().query_opt("SELECT blob FROM blobs WHERE digest = $1", &[&name]).await?;
    let blob: i64 = row.ok_or_else(|| ThreadStoreError::NoBlob(digest.to_hex()))?.try_get(0)?;
    let sql = "INSERT INTO uses (thread, blob) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.writing().execute(sql, &[&number, &blob]).await?;
    Ok(())
}

/// The part of this name, if it is there and is what its name says.
pub(crate) async fn get(db: &Db, digest: &Digest) -> Result<Vec<u8>, DbError> {
    let name = digest.as_bytes().as_slice();
    let sql = "SELECT bytes FROM blobs LEFT JOIN blob_chunks USING (blob) WHERE digest = $1 ORDER BY chunk";
    let rows = db.query(sql, &[&name]).await?;
    let mut bytes = Vec::new();
    for row in &rows {
        bytes.extend_from_slice(row.try_get::<_, Option<&[u8]>>(0)?.unwrap_or_default());
    }
    if rows.is_empty() || Digest::of(&bytes) != *digest {
        return Err(ThreadStoreError::NoBlob(digest.to_hex()).into());
    }
    Ok(bytes)
}
