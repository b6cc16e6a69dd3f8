//! The seal of a thread's row in the registry: what is shown of a thread is what this user's rye wrote.
//!
//! It covers every column that people, parents and the transcript's check rely on, and the store the row belongs to. Who runs
//! the thread (`pid`, `epoch`, `heartbeat_ms`, `note`) is not covered: it changes without a step of the thread.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::DbError;
use super::chain::JournalHead;
use super::secret::{Mac, MacBuilder, macs_equal};
use super::writer::WriteTx;
use rye_store::BudgetCaps;
use rye_store::Forgery;
use rye_store::ThreadStoreError;
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

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
pub(super) const SEALED_COLUMN_COUNT: usize = 36;

/// Makes and checks the seals of one store's rows.
#[derive(Clone)]
pub(super) struct RowSealer {
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

impl RowSealer {
    /// The seal of a row whose sealed columns begin at `first`.
    fn compute(&self, row: &Row<'_>, first: usize) -> Result<[u8; 32], DbError> {
        let mut code = self.mac.builder("thread row 1");
        code.add(Some(&self.store.to_be_bytes()));
        for column in first..first + SEALED_COLUMN_COUNT {
            add_value(&mut code, row.get_ref(column)?);
        }
        Ok(*code.finish().as_bytes())
    }

    /// Whether a row is as it was sealed; its sealed columns begin at `first`, and the seal follows them.
    pub(super) fn is_valid(&self, row: &Row<'_>, first: usize) -> Result<bool, DbError> {
        let seal = row.get_ref(first + SEALED_COLUMN_COUNT)?;
        let ValueRef::Blob(seal) = seal else { return Ok(false) };
        Ok(macs_equal(&lillux::Digest::from_bytes(self.compute(row, first)?), seal))
    }
}

const FIND_ROW: &str = concat!("SELECT ", sealed_columns!(), ", row_mac FROM threads WHERE thread = ?1");
const BUMP_REVISION: &str =
    concat!("UPDATE threads SET revision = revision + 1 WHERE thread = ?1 RETURNING ", sealed_columns!());

/// What is wrong with a row that is not as it was sealed.
pub(super) fn forged_error(id: &ThreadId) -> DbError {
    DbError::from(ThreadStoreError::Forged { thread: id.clone(), what: Forgery::Row })
}

/// Refuses a row that is not as it was sealed: nothing is built on it, and it is never sealed again.
pub(super) fn check(tx: &WriteTx<'_, '_>, thread: i64, id: &ThreadId) -> Result<(), DbError> {
    let is_sealed = tx.query_row(FIND_ROW, [thread], |row| Ok(tx.seal.is_valid(row, 0)))??;
    if is_sealed { Ok(()) } else { Err(forged_error(id)) }
}

/// Columns under the seal that a step of a thread changes, by their place in `sealed_columns`.
pub(super) mod column {
    pub(crate) const STATUS: usize = 8;
    pub(crate) const REASON: usize = 9;
    pub(crate) const RESULT: usize = 10;
    pub(crate) const ERROR: usize = 11;
    pub(crate) const UPDATED_AT: usize = 13;
    pub(crate) const COMPLETED_AT: usize = 14;
    pub(crate) const TURNS: usize = 15;
    pub(crate) const INPUT_TOKENS: usize = 16;
    pub(crate) const OUTPUT_TOKENS: usize = 17;
    pub(crate) const SPEND: usize = 18;
    pub(crate) const ELAPSED_MS: usize = 19;
    pub(crate) const LIMITS: usize = 20;
    pub(crate) const HEAD_SEQ: usize = 28;
    pub(crate) const HEAD_HASH: usize = 29;
    pub(crate) const MAX_SPEND: usize = 30;
    pub(crate) const MAX_TOKENS: usize = 31;
    pub(crate) const TRANSCRIPT_SEQUENCE: usize = 32;
    pub(crate) const TRANSCRIPT_HASH: usize = 33;
    pub(crate) const REVISION: usize = 35;
}

/// The sealed columns of a row, as they are about to be written.
pub(super) struct SealedRow(Vec<Value>);

impl SealedRow {
    /// The columns that begin at `first`.
    pub(super) fn from_row(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        (first..first + SEALED_COLUMN_COUNT).map(|column| row.get(column)).collect::<Result<_, _>>().map(Self)
    }

    /// Changes a column.
    pub(super) fn set(&mut self, column: usize, value: impl Into<Value>) {
        if let Some(slot) = self.0.get_mut(column) {
            *slot = value.into();
        }
    }

    /// Changes a column if there is something to write.
    pub(super) fn set_some(&mut self, column: usize, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(column, value);
        }
    }

    /// Gives a column, to write it.
    pub(super) fn get(&self, column: usize) -> &Value {
        self.0.get(column).unwrap_or(&Value::Null)
    }

    /// The seal of these columns under the next revision.
    pub(super) fn seal_next(&mut self, seal: &RowSealer) -> Result<([u8; 32], u64), DbError> {
        let Value::Integer(last) = *self.get(column::REVISION) else {
            return Err(DbError::from(ThreadStoreError::TooLarge("the number of seals")));
        };
        let revision =
            last.checked_add(1).ok_or(DbError::from(ThreadStoreError::TooLarge("the number of seals")))?;
        self.set(column::REVISION, revision);
        let mut code = seal.mac.builder("thread row 1");
        code.add(Some(&seal.store.to_be_bytes()));
        self.0.iter().for_each(|value| add_value(&mut code, ValueRef::from(value)));
        Ok((*code.finish().as_bytes(), revision.unsigned_abs()))
    }
}

fn add_value(code: &mut MacBuilder, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => code.add(None),
        ValueRef::Integer(number) => code.add(Some(&number.to_be_bytes())),
        ValueRef::Real(number) => code.add(Some(&number.to_be_bytes())),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => code.add(Some(bytes)),
    }
}

/// Seals a row as it is now. Its caller has checked it before it changed it.
pub(super) fn reseal(tx: &mut WriteTx<'_, '_>, thread: i64, id: &ThreadId) -> Result<(), DbError> {
    let (seal, revision) = tx.query_row(BUMP_REVISION, [thread], |row| {
        Ok((tx.seal.compute(row, 0), row.get(column::REVISION)?))
    })?;
    let seal = seal?;
    tx.execute("UPDATE threads SET row_mac = ?2 WHERE thread = ?1", params![thread, seal.as_slice()])?;
    tx.record_head(id, row_head(revision, &seal));
    Ok(())
}

/// The head in a row with these two columns; a row that was never sealed has none that fits any.
pub(super) fn row_head(revision: u64, seal: &[u8]) -> RowHead {
    RowHead { revision, mac: seal.first_chunk().copied().unwrap_or_default() }
}

/// How far a thread's row has come.
pub(super) fn head(connection: &Connection, id: &ThreadId) -> Result<Option<RowHead>, DbError> {
    let found = connection
        .prepare_cached("SELECT revision, row_mac FROM threads WHERE thread_id = ?1")?
        .query_row([id.as_str()], |row| Ok(row_head(row.get(0)?, &row.get::<_, Vec<u8>>(1)?)))
        .optional()?;
    Ok(found)
}

/// Seals the rows of a store that an older rye made: those whose journal's head carries this user's seal.
pub(super) fn seal_all(connection: &Connection, seal: &RowSealer) -> Result<(), DbError> {
    let mut find = connection.prepare(concat!("SELECT ", sealed_columns!(), ", head_mac FROM threads"))?;
    let mut rows = find.query([])?;
    let mut sealed: Vec<(i64, [u8; 32])> = Vec::new();
    while let Some(row) = rows.next()? {
        let (thread, parent): (String, Option<String>) = (row.get(3)?, row.get(4)?);
        let hash: Vec<u8> = row.get(29)?;
        let caps = BudgetCaps { spend: row.get::<_, Option<u64>>(30)?.map(Nanos), tokens: row.get(31)? };
        let head =
            JournalHead { thread: &thread, parent: parent.as_deref(), seq: row.get(28)?, hash: &hash, caps };
        if head.is_valid_mac(&seal.mac, &row.get::<_, Vec<u8>>(SEALED_COLUMN_COUNT)?) {
            sealed.push((row.get(0)?, seal.compute(row, 0)?));
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
    fn sealed_column_indexes_are_correct() {
        let names: Vec<&str> = sealed_columns!().split(',').map(str::trim).collect();
        assert_eq!(names.len(), SEALED_COLUMN_COUNT);
        let columns = [
            (column::STATUS, "status"),
            (column::REASON, "reason"),
            (column::RESULT, "result"),
            (column::ERROR, "error"),
            (column::UPDATED_AT, "updated_at"),
            (column::COMPLETED_AT, "completed_at"),
            (column::TURNS, "turns"),
            (column::INPUT_TOKENS, "input_tokens"),
            (column::OUTPUT_TOKENS, "output_tokens"),
            (column::SPEND, "spend"),
            (column::ELAPSED_MS, "elapsed_ms"),
            (column::LIMITS, "limits"),
            (column::HEAD_SEQ, "head_seq"),
            (column::HEAD_HASH, "head_hash"),
            (column::MAX_SPEND, "max_spend"),
            (column::MAX_TOKENS, "max_tokens"),
            (column::TRANSCRIPT_SEQUENCE, "transcript_sequence"),
            (column::TRANSCRIPT_HASH, "transcript_hash"),
            (column::REVISION, "revision"),
        ];
        for (index, name) in columns {
            assert_eq!(names[index], name);
        }
    }
}
