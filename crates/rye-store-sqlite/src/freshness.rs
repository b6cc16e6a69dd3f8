//! Whether a store is as far as this user has seen it: an older copy that was put back is noticed, and named.

use rye_store::{StoreFreshness, ThreadStoreError};
use rye_thread::thread_id::ThreadId;

use super::{DbError, SqliteStore, queries, row_seal};

impl SqliteStore {
    /// Compares the store with what was recorded of it.
    ///
    /// # Errors
    /// When the database fails.
    pub(super) fn compare_with_record(&self) -> Result<StoreFreshness, ThreadStoreError> {
        let record = &self.shared.head_log;
        let mut freshness = StoreFreshness {
            is_recorded: record.is_available(),
            is_replaced: record.is_other_store(),
            ..StoreFreshness::default()
        };
        if freshness.is_replaced {
            return Ok(freshness);
        }
        // The record first: the store is then at least as far, even if another process writes meanwhile.
        let mut known = record.load();
        for (id, head) in self.read(queries::heads)? {
            if let Some(last) = known.remove(id.as_str()).and_then(|recorded| recorded.head)
                && (head.revision < last.revision || (head.revision == last.revision && head != last))
            {
                freshness.rolled_back.push(id);
            }
        }
        let pruned = known.into_iter().filter(|(_, recorded)| !recorded.is_pruned);
        freshness.missing = pruned.filter_map(|(id, _)| ThreadId::parse(&id).ok()).collect();
        freshness.missing.sort();
        Ok(freshness)
    }

    /// Refuses a store that is older than what was recorded of it.
    ///
    /// # Errors
    /// [`ThreadStoreError::Older`], or when the database fails.
    pub(super) fn refuse_older(&self) -> Result<(), ThreadStoreError> {
        match self.compare_with_record()?.problem() {
            Some(what) => Err(ThreadStoreError::Older { folder: self.shared.folder.clone(), what }),
            None => Ok(()),
        }
    }

    /// Makes the store as it is now the latest: its user has restored it.
    ///
    /// # Errors
    /// When the database fails, or the record cannot be written.
    pub(super) fn record_as_latest(&self) -> Result<(), ThreadStoreError> {
        let heads = self.read(queries::heads)?;
        Ok(self.shared.head_log.accept(&heads).map_err(DbError::from)?)
    }

    /// Refuses a thread that had come further than its row here.
    pub(super) fn ensure_thread_current(&self, id: &ThreadId) -> Result<(), ThreadStoreError> {
        let record = &self.shared.head_log;
        let last = record.load().remove(id.as_str()).and_then(|recorded| recorded.head);
        let older = |what: String| ThreadStoreError::Older { folder: self.shared.folder.clone(), what };
        if record.is_other_store() {
            return Err(older("another store was last used here".to_owned()));
        }
        let Some(last) = last else { return Ok(()) };
        let head = self.read(|connection| row_seal::head(connection, id))?;
        match head {
            Some(head)
                if head.revision < last.revision || (head.revision == last.revision && head != last) =>
            {
                Err(older(format!("{id} had come further")))
            }
            Some(_) | None => Ok(()),
        }
    }
}
