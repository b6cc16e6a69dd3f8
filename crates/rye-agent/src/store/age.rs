//! Whether a store is as far as this user has seen it: an older copy that was put back is noticed, and named.

use super::{Store, StoreError, read, row_seal};
use crate::thread_id::ThreadId;

/// How a store stands against what was recorded of it in user space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreAge {
    /// Whether anything is recorded; if not, its age is not known.
    pub is_recorded: bool,
    /// Whether another store lies here than the one that was last used here.
    pub is_other: bool,
    /// Threads that had come further.
    pub older: Vec<ThreadId>,
    /// Threads that were here.
    pub missing: Vec<ThreadId>,
}

impl StoreAge {
    /// Whether the store is at least as far as it was.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.is_other && self.older.is_empty() && self.missing.is_empty()
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
        let other = self.is_other.then(|| "another store was last used here".to_owned());
        let parts = [other, first(&self.older, "had come further"), first(&self.missing, "missing")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Store {
    /// Compares the store with what was recorded of it.
    ///
    /// # Errors
    /// When the database fails.
    pub fn age(&self) -> Result<StoreAge, StoreError> {
        let record = &self.shared.record;
        let mut age =
            StoreAge { is_recorded: record.is_kept(), is_other: record.is_other(), ..StoreAge::default() };
        if age.is_other {
            return Ok(age);
        }
        // The record first: the store is then at least as far, even if another process writes meanwhile.
        let mut known = record.load();
        for (id, head) in self.read(read::heads)? {
            if let Some(last) = known.remove(id.as_str()).and_then(|recorded| recorded.head)
                && (head.revision < last.revision || (head.revision == last.revision && head != last))
            {
                age.older.push(id);
            }
        }
        let gone = known.into_iter().filter(|(_, recorded)| !recorded.may_be_gone);
        age.missing = gone.filter_map(|(id, _)| ThreadId::parse(&id).ok()).collect();
        age.missing.sort();
        Ok(age)
    }

    /// Refuses a store that is older than what was recorded of it.
    ///
    /// # Errors
    /// [`StoreError::Older`], or when the database fails.
    pub fn refuse_older(&self) -> Result<(), StoreError> {
        match self.age()?.problem() {
            Some(what) => Err(StoreError::Older { folder: self.shared.folder.clone(), what }),
            None => Ok(()),
        }
    }

    /// Makes the store as it is now the latest: its user has restored it.
    ///
    /// # Errors
    /// When the database fails, or the record cannot be written.
    pub fn accept_older(&self) -> Result<(), StoreError> {
        let heads = self.read(read::heads)?;
        Ok(self.shared.record.accept(&heads)?)
    }

    /// Refuses a thread that had come further than its row here.
    pub(super) fn refuse_older_thread(&self, id: &ThreadId) -> Result<(), StoreError> {
        let record = &self.shared.record;
        let last = record.load().remove(id.as_str()).and_then(|recorded| recorded.head);
        let older = |what: String| StoreError::Older { folder: self.shared.folder.clone(), what };
        if record.is_other() {
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
