//! A thread's row in the registry, with all columns under its seal.

use lillux::Digest;
use rye_store::{BudgetCaps, Forgery, ThreadStoreError};
use rye_thread::money::Nanos;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::db::Db;
use crate::db_error::{DbError, to_number};
use crate::seal::{Seal, Sealer};

/// The columns that [`ThreadRecord::from_row`] reads, in its order.
macro_rules! record_columns {
    () => {
        "thread, parent, root, thread_id, parent_id, directive, title, depth, status, reason, result, error, created_at, \
         updated_at, completed_at, turns, input_tokens, output_tokens, spend, elapsed_ms, limits, spawn_count, model, provider, \
         capabilities, continuation_of, continuation_thread_id, chain_root_id, head_seq, head_hash, max_spend, max_tokens, \
         transcript_sequence, transcript_hash, detached, revision, signer, seal"
    };
}
pub(crate) use record_columns;

/// How many these are.
pub(crate) const RECORD_COLUMN_COUNT: usize = 38;

/// A thread's row.
#[derive(Clone, Debug)]
pub(crate) struct ThreadRecord {
    pub(crate) thread: i64,
    pub(crate) parent: Option<i64>,
    pub(crate) root: i64,
    pub(crate) thread_id: String,
    pub(crate) parent_id: Option<String>,
    pub(crate) directive: String,
    pub(crate) title: String,
    pub(crate) depth: i64,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) created_at: String,
    pub(crate) updated_at: String,
    pub(crate) completed_at: Option<String>,
    pub(crate) turns: i64,
    pub(crate) input_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) spend: i64,
    pub(crate) elapsed_ms: i64,
    pub(crate) limits: String,
    pub(crate) spawn_count: i64,
    pub(crate) model: String,
    pub(crate) provider: String,
    pub(crate) capabilities: String,
    pub(crate) continuation_of: Option<String>,
    pub(crate) continuation_thread_id: Option<String>,
    pub(crate) chain_root_id: Option<String>,
    pub(crate) head_seq: i64,
    pub(crate) head_hash: Vec<u8>,
    pub(crate) max_spend: Option<i64>,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) transcript_sequence: Option<i64>,
    pub(crate) transcript_hash: Option<Vec<u8>>,
    pub(crate) is_detached: bool,
    pub(crate) revision: i64,
    pub(crate) seal: Seal,
}

impl ThreadRecord {
    /// The row whose columns begin at `first`.
    pub(crate) fn from_row(row: &Row, first: usize) -> Result<Self, DbError> {
        Ok(Self {
            thread: row.try_get(first)?,
            parent: row.try_get(first + 1)?,
            root: row.try_get(first + 2)?,
            thread_id: row.try_get(first + 3)?,
            parent_id: row.try_get(first + 4)?,
            directive: row.try_get(first + 5)?,
            title: row.try_get(first + 6)?,
            depth: row.try_get(first + 7)?,
            status: row.try_get(first + 8)?,
            reason: row.try_get(first + 9)?,
            result: row.try_get(first + 10)?,
            error: row.try_get(first + 11)?,
            created_at: row.try_get(first + 12)?,
            updated_at: row.try_get(first + 13)?,
            completed_at: row.try_get(first + 14)?,
            turns: row.try_get(first + 15)?,
            input_tokens: row.try_get(first + 16)?,
            output_tokens: row.try_get(first + 17)?,
            spend: row.try_get(first + 18)?,
            elapsed_ms: row.try_get(first + 19)?,
            limits: row.try_get(first + 20)?,
            spawn_count: row.try_get(first + 21)?,
            model: row.try_get(first + 22)?,
            provider: row.try_get(first + 23)?,
            capabilities: row.try_get(first + 24)?,
            continuation_of: row.try_get(first + 25)?,
            continuation_thread_id: row.try_get(first + 26)?,
            chain_root_id: row.try_get(first + 27)?,
            head_seq: row.try_get(first + 28)?,
            head_hash: row.try_get(first + 29)?,
            max_spend: row.try_get(first + 30)?,
            max_tokens: row.try_get(first + 31)?,
            transcript_sequence: row.try_get(first + 32)?,
            transcript_hash: row.try_get(first + 33)?,
            is_detached: row.try_get(first + 34)?,
            revision: row.try_get(first + 35)?,
            seal: Seal { signer: row.try_get(first + 36)?, signature: row.try_get(first + 37)? },
        })
    }

    /// What is sealed: every column that people, parents and the transcript's check rely on. Who runs the thread is not:
    /// it changes without a step of the thread.
    fn digest(&self, sealer: &Sealer) -> Digest {
        let mut fields = sealer.fields("thread row 1");
        fields.number(self.thread);
        fields.optional_number(self.parent);
        fields.number(self.root);
        fields.text(&self.thread_id);
        fields.optional_text(self.parent_id.as_deref());
        fields.text(&self.directive);
        fields.text(&self.title);
        fields.number(self.depth);
        fields.text(&self.status);
        fields.optional_text(self.reason.as_deref());
        fields.optional_text(self.result.as_deref());
        fields.optional_text(self.error.as_deref());
        fields.text(&self.created_at);
        fields.text(&self.updated_at);
        fields.optional_text(self.completed_at.as_deref());
        let used = [self.turns, self.input_tokens, self.output_tokens, self.spend, self.elapsed_ms];
        used.into_iter().for_each(|number| fields.number(number));
        fields.text(&self.limits);
        fields.number(self.spawn_count);
        fields.text(&self.model);
        fields.text(&self.provider);
        fields.text(&self.capabilities);
        fields.optional_text(self.continuation_of.as_deref());
        fields.optional_text(self.continuation_thread_id.as_deref());
        fields.optional_text(self.chain_root_id.as_deref());
        fields.number(self.head_seq);
        fields.bytes(&self.head_hash);
        fields.optional_number(self.max_spend);
        fields.optional_number(self.max_tokens);
        fields.optional_number(self.transcript_sequence);
        fields.optional_bytes(self.transcript_hash.as_deref());
        fields.number(i64::from(self.is_detached));
        fields.number(self.revision);
        fields.finish()
    }

    /// Whether the row is as it was sealed, by a key that counts.
    pub(crate) fn is_sealed(&self, sealer: &Sealer) -> bool {
        sealer.is_valid(&self.digest(sealer), &self.seal)
    }

    /// Why the row is refused; `None` when it is valid.
    pub(crate) fn forgery(&self, sealer: &Sealer) -> Option<Forgery> {
        let why = || sealer.revocation("its row in the registry", &self.seal).unwrap_or(Forgery::Row);
        (!self.is_sealed(sealer)).then(why)
    }

    /// Refuses a row that is not as it was sealed: nothing is built on it, and it is never sealed again.
    pub(crate) fn check(self, sealer: &Sealer, id: &ThreadId) -> Result<Self, DbError> {
        let forgery =
            self.forgery(sealer).or_else(|| (self.thread_id != id.as_str()).then_some(Forgery::Row));
        forgery.map_or(Ok(self), |what| Err(forged_error(id, what)))
    }

    /// Seals the row under its next revision.
    pub(crate) fn seal_next(&mut self, sealer: &Sealer) -> Result<(), DbError> {
        self.revision =
            self.revision.checked_add(1).ok_or(ThreadStoreError::TooLarge("the number of seals"))?;
        self.seal = sealer.seal(&self.digest(sealer));
        Ok(())
    }

    pub(crate) fn status(&self) -> Result<ThreadStatus, DbError> {
        parse_status(&self.status)
    }

    pub(crate) fn caps(&self) -> Result<BudgetCaps, DbError> {
        let spend = self.max_spend.map(to_number).transpose()?.map(Nanos);
        Ok(BudgetCaps { spend, tokens: self.max_tokens.map(to_number).transpose()? })
    }

    /// Writes the columns that change, and the seals, of several rows.
    pub(crate) async fn update_all(records: &[&Self], db: &Db) -> Result<(), DbError> {
        if records.is_empty() {
            return Ok(());
        }
        let sql = "UPDATE threads SET status = new.status, reason = new.reason, result = new.result, error = new.error,
                updated_at = new.updated_at, completed_at = new.completed_at, turns = new.turns,
                input_tokens = new.input_tokens, output_tokens = new.output_tokens, spend = new.spend,
                elapsed_ms = new.elapsed_ms, limits = new.limits, spawn_count = new.spawn_count,
                continuation_thread_id = new.continuation_thread_id, head_seq = new.head_seq, head_hash = new.head_hash,
                max_spend = new.max_spend, max_tokens = new.max_tokens, transcript_sequence = new.transcript_sequence,
                transcript_hash = new.transcript_hash, revision = new.revision, signer = new.signer, seal = new.seal
             FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
                $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::text[],
                $16::bigint[], $17::bytea[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bytea[], $22::bigint[],
                $23::text[], $24::text[])
                AS new (number, status, reason, result, error, updated_at, completed_at, turns, input_tokens, output_tokens,
                    spend, elapsed_ms, limits, spawn_count, continuation_thread_id, head_seq, head_hash, max_spend,
                    max_tokens, transcript_sequence, transcript_hash, revision, signer, seal)
             WHERE threads.thread = new.number";
        let numbers = |get: fn(&Self) -> i64| records.iter().map(|one| get(one)).collect::<Vec<i64>>();
        let optional =
            |get: fn(&Self) -> Option<i64>| records.iter().map(|one| get(one)).collect::<Vec<Option<i64>>>();
        fn column<'a, T>(records: &[&'a ThreadRecord], get: fn(&'a ThreadRecord) -> T) -> Vec<T> {
            records.iter().map(|one| get(one)).collect()
        }
        db.execute(
            sql,
            &[
                &numbers(|one| one.thread),
                &column(records, |one| one.status.as_str()),
                &column(records, |one| one.reason.as_deref()),
                &column(records, |one| one.result.as_deref()),
                &column(records, |one| one.error.as_deref()),
                &column(records, |one| one.updated_at.as_str()),
                &column(records, |one| one.completed_at.as_deref()),
                &numbers(|one| one.turns),
                &numbers(|one| one.input_tokens),
                &numbers(|one| one.output_tokens),
                &numbers(|one| one.spend),
                &numbers(|one| one.elapsed_ms),
                &column(records, |one| one.limits.as_str()),
                &numbers(|one| one.spawn_count),
                &column(records, |one| one.continuation_thread_id.as_deref()),
                &numbers(|one| one.head_seq),
                &column(records, |one| one.head_hash.as_slice()),
                &optional(|one| one.max_spend),
                &optional(|one| one.max_tokens),
                &optional(|one| one.transcript_sequence),
                &column(records, |one| one.transcript_hash.as_deref()),
                &numbers(|one| one.revision),
                &column(records, |one| one.seal.signer.as_str()),
                &column(records, |one| one.seal.signature.as_str()),
            ],
        )
        .await?;
        Ok(())
    }
}

/// What is wrong with a row that is not as it was sealed.
pub(crate) fn forged_error(id: &ThreadId, what: Forgery) -> DbError {
    ThreadStoreError::Forged { thread: id.clone(), what }.into()
}

/// Reads a status that the store wrote.
pub(crate) fn parse_status(word: &str) -> Result<ThreadStatus, DbError> {
    ThreadStatus::parse(word).ok_or_else(|| DbError::damaged(&format!("`{word}` is not a status")))
}

/// Reads a name that the store wrote.
pub(crate) fn parse_id(text: &str) -> Result<ThreadId, DbError> {
    ThreadId::parse(text).map_err(|error| DbError::damaged(&error.to_string()))
}
