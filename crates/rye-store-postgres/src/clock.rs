//! The database's clock: leases and waits of several machines are compared by it, and by no machine's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number};

/// This process's clock, in milliseconds since 1970.
pub type LocalClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A difference up to this is the time of a question and its answer.
const MAX_JITTER_MS: i64 = 1_000;

/// Translates this process's times into the database's and back.
pub(crate) struct DatabaseClock {
    local: LocalClock,
    /// What is added to a time of this process.
    skew_ms: AtomicI64,
}

impl DatabaseClock {
    pub(crate) fn new(local: LocalClock) -> Self {
        Self { local, skew_ms: AtomicI64::new(0) }
    }

    /// Compares the two clocks. A clock that was set, here or there, is noticed.
    pub(crate) async fn measure(&self, db: &Db) -> Result<(), DbError> {
        let before = to_integer((self.local)(), "a time")?;
        let there: i64 =
            db.query_value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
        let found = there.saturating_sub(before);
        let known = self.skew_ms.load(Ordering::Relaxed);
        if found.saturating_sub(known).abs() > MAX_JITTER_MS {
            self.skew_ms.store(found, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A time of this process, as the database's clock has it.
    pub(crate) fn to_database(&self, at_ms: u64) -> i64 {
        let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
        at_ms.saturating_add(self.skew_ms.load(Ordering::Relaxed))
    }

    /// A time of the database, as this process's clock has it.
    pub(crate) fn to_local(&self, there_ms: i64) -> Result<u64, DbError> {
        to_number(there_ms.saturating_sub(self.skew_ms.load(Ordering::Relaxed)).max(0))
    }
}
