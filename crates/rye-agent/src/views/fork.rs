//! Where a thread was forked.

use rye_engine::Result;

use super::ThreadIndex;
use crate::spec::ForkSource;
use crate::store::ThreadRow;
use crate::threads::fork_source;

impl ThreadIndex {
    /// Where a thread was forked, if it was.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn fork_source(&self, row: &ThreadRow) -> Result<Option<ForkSource>> {
        if row.is_forged {
            return Ok(None);
        }
        fork_source(&self.store, row)
    }

    /// The same, in words.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn fork_label(&self, row: &ThreadRow) -> Result<Option<String>> {
        let source = self.fork_source(row)?;
        Ok(source.map(|source| format!("forked from {} at turn {}", source.thread_id, source.turn)))
    }
}
