//! How a store stands against what was recorded of it elsewhere.

use rye_thread::thread_id::ThreadId;

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
    /// Whether the store is at least as far as recorded.
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
