//! Whether a store is as far as this user has seen it: an older copy that was put back is noticed, and named.

use super::{ThreadStore, ThreadStoreError, queries, row_seal};
use crate::thread_id::ThreadId;

/// How a store stands against what was recorded of it in user space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFreshness {
    /// Whether anything is recorded; if not, its age is not known.
    pub is_recorded: bool,
    /// Whether another store lies here than the one that was last used here.
    pub is_replaced: bool,
    /// Threads that had come further.
    pub rolled_back: Vec<ThreadId>,
    /// Threads that were here.
    pub missing: Vec<ThreadId>,
}

impl StoreFreshness {
    /// Whether the store is at least as far as it was.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.is_replaced && self.rolled_back.is_empty() && self.missing.is_empty()
    }

    /// What is older or missing, in words; `None` when nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let first = |ids: &[ThreadId], what: &str| {
            ids.first().map(|id| match ids.len() {
                1 => format!("{id} {what}"),
                count => format!("{id} and {} more {what}", count - 1),
            })
        };
        let other = self.is_replaced.then(|| "another store was last used here".to_owned());
        let parts = [other, first(&self.rolled_back, "had come further"), first(&self.missing, "missing")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl ThreadStore {
    /// Compares the store with what was recorded of it.
    ///
    /// # Errors
    /// When the database fails.
    pub fn freshness(&self) -> Result<StoreFreshness, ThreadStoreError> {
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
    pub fn ensure_current(&self) -> Result<(), ThreadStoreError> {
        match self.freshness()?.problem() {
            Some(what) => Err(ThreadStoreError::Older { folder: self.shared.folder.clone(), what }),
            None => Ok(()),
        }
    }

    /// Makes the store as it is now the latest: its user has restored it.
    ///
    /// # Errors
    /// When the database fails, or the record cannot be written.
    pub fn accept_older(&self) -> Result<(), ThreadStoreError> {
        let heads = self.read(queries::heads)?;
        Ok(self.shared.head_log.accept(&heads)?)
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
