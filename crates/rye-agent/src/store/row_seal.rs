//! The seal of a thread's row in the registry: what is shown of a thread is what this user's rye wrote.
//!
//! It covers every column that people, parents and the transcript's check rely on, and the store the row belongs to. Who runs
//! the thread (`pid`, `epoch`, `heartbeat_ms`, `note`) is not covered: it changes without a step of the thread.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::chain::Sealed;
use super::error::Forgery;
use super::secret::{Mac, is_same};
use super::values::{Maxima, ThreadRow};
use super::writer::Desk;
use super::{Store, StoreError};
use crate::money::Nanos;
use crate::thread_id::ThreadId;

/// The columns under the seal; their order is part of it.
macro_rules! sealed_columns {
    () => {
        "thread, parent, root, thread_id, parent_id, directive, title, depth, status, reason, result, error, created_at, \
         updated_at, completed_at, turns, input_tokens, output_tokens, spend, elapsed_ms, limits, spawn_count, model, provider, \
         capabilities, continuation_of, continuation_thread_id, chain_root_id, head_seq, head_hash, max_spend, max_tokens, \
         transcript_sequence, transcript_hash, detached, revision"
    };
}
pub(super) use sealed_columns;

/// How many these are.
pub(super) const COUNT: usize = 36;

/// Makes and checks the seals of one store's rows.
#[derive(Clone)]
pub(super) struct RowSeal {
    pub(super) mac: Mac,
    /// The store's own number: rows cannot move from one store to another.
    pub(super) store: i64,
}

/// How far a thread has come: each seal of its row has the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowHead {
    pub(super) revision: u64,
    pub(super) mac: [u8; 16],
}

impl RowSeal {
    /// The seal of a row whose sealed columns begin at `first`.
    fn of(&self, row: &Row<'_>, first: usize) -> Result<[u8; 32], StoreError> {
        let mut code = self.mac.fields("thread row 1");
        code.add(Some(&self.store.to_be_bytes()));
        for column in first..first + COUNT {
            match row.get_ref(column)? {
                ValueRef::Null => code.add(None),
                ValueRef::Integer(number) => code.add(Some(&number.to_be_bytes())),
                ValueRef::Real(number) => code.add(Some(&number.to_be_bytes())),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => code.add(Some(bytes)),
            }
        }
        Ok(*code.finish().as_bytes())
    }

    /// Whether a row is as it was sealed; its sealed columns begin at `first`, and the seal follows them.
    pub(super) fn is_sealed(&self, row: &Row<'_>, first: usize) -> Result<bool, StoreError> {
        let seal = row.get_ref(first + COUNT)?;
        let ValueRef::Blob(seal) = seal else { return Ok(false) };
        Ok(is_same(&lillux::Digest::from_bytes(self.of(row, first)?), seal))
    }
}

impl Store {
    /// A thread's row, to rely on.
    ///
    /// # Errors
    /// When it was forged, or the database fails.
    pub fn sealed_thread(&self, id: &ThreadId) -> Result<Option<ThreadRow>, StoreError> {
        match self.thread(id)? {
            Some(row) if row.is_forged => Err(forged(id)),
            found => Ok(found),
        }
    }
}

const FIND: &str = concat!("SELECT ", sealed_columns!(), ", row_mac FROM threads WHERE thread = ?1");
const ADVANCE: &str =
    concat!("UPDATE threads SET revision = revision + 1 WHERE thread = ?1 RETURNING ", sealed_columns!());

/// What is wrong with a row that is not as it was sealed.
pub(super) fn forged(id: &ThreadId) -> StoreError {
    StoreError::Forged { thread: id.clone(), what: Forgery::Row }
}

/// Refuses a row that is not as it was sealed: nothing is built on it, and it is never sealed again.
pub(super) fn check(desk: &Desk<'_, '_>, thread: i64, id: &ThreadId) -> Result<(), StoreError> {
    let is_sealed = desk.query_row(FIND, [thread], |row| Ok(desk.seal.is_sealed(row, 0)))??;
    if is_sealed { Ok(()) } else { Err(forged(id)) }
}

/// The next seal of a row: its sealed columns, as a statement that advances `revision` returns them.
pub(super) struct NextSeal {
    revision: u64,
    seal: Result<[u8; 32], StoreError>,
}

impl NextSeal {
    pub(super) fn of(desk: &Desk<'_, '_>, row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { revision: row.get(COUNT - 1)?, seal: desk.seal.of(row, 0) })
    }

    /// Writes the seal. Its caller has checked the row before it changed it.
    pub(super) fn write(self, desk: &mut Desk<'_, '_>, thread: i64, id: &ThreadId) -> Result<(), StoreError> {
        let seal = self.seal?;
        desk.execute("UPDATE threads SET row_mac = ?2 WHERE thread = ?1", params![thread, seal.as_slice()])?;
        desk.note_head(id, head_of(self.revision, &seal));
        Ok(())
    }
}

/// Seals a row as it is now. Its caller has checked it before it changed it.
pub(super) fn renew(desk: &mut Desk<'_, '_>, thread: i64, id: &ThreadId) -> Result<(), StoreError> {
    let next = desk.query_row(ADVANCE, [thread], |row| NextSeal::of(desk, row))?;
    next.write(desk, thread, id)
}

/// The head in a row with these two columns; a row that was never sealed has none that fits any.
pub(super) fn head_of(revision: u64, seal: &[u8]) -> RowHead {
    RowHead { revision, mac: seal.first_chunk().copied().unwrap_or_default() }
}

/// How far a thread's row has come.
pub(super) fn head(connection: &Connection, id: &ThreadId) -> Result<Option<RowHead>, StoreError> {
    let found = connection
        .prepare_cached("SELECT revision, row_mac FROM threads WHERE thread_id = ?1")?
        .query_row([id.as_str()], |row| Ok(head_of(row.get(0)?, &row.get::<_, Vec<u8>>(1)?)))
        .optional()?;
    Ok(found)
}

/// Seals the rows of a store that an older rye made: those whose journal's head carries this user's seal.
pub(super) fn seal_all(connection: &Connection, seal: &RowSeal) -> Result<(), StoreError> {
    let mut find = connection.prepare(concat!("SELECT ", sealed_columns!(), ", head_mac FROM threads"))?;
    let mut rows = find.query([])?;
    let mut sealed: Vec<(i64, [u8; 32])> = Vec::new();
    while let Some(row) = rows.next()? {
        let (thread, parent): (String, Option<String>) = (row.get(3)?, row.get(4)?);
        let hash: Vec<u8> = row.get(29)?;
        let maxima = Maxima { spend: row.get::<_, Option<u64>>(30)?.map(Nanos), tokens: row.get(31)? };
        let head =
            Sealed { thread: &thread, parent: parent.as_deref(), seq: row.get(28)?, hash: &hash, maxima };
        if head.is_sealed(&seal.mac, &row.get::<_, Vec<u8>>(COUNT)?) {
            sealed.push((row.get(0)?, seal.of(row, 0)?));
        }
    }
    let mut write = connection.prepare("UPDATE threads SET row_mac = ?2 WHERE thread = ?1")?;
    for (thread, seal) in sealed {
        write.execute(params![thread, seal.as_slice()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_sealed_columns_is_right() {
        assert_eq!(sealed_columns!().split(',').count(), COUNT);
    }
}
