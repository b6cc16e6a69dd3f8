//! How many threads there may be, and which of these caps a new child would exceed.

use crate::CreateOutcome;

/// How many threads there may be; `None` is any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnCaps {
    /// Children the parent may start, over its whole life.
    pub spawns: Option<u64>,
    /// Levels of threads below the parent.
    pub depth: Option<u64>,
    /// Children of the parent that have not ended.
    pub concurrent_children: Option<u64>,
    /// Threads of the whole tree that have not ended.
    pub total_threads: Option<u64>,
    /// Whether a child beyond `concurrent_children` waits for its place; else it is refused.
    pub queues_children: bool,
}

impl SpawnCaps {
    /// The first of these caps that a new child would exceed. `spawned` and `depth` are its parent's. What only some caps
    /// need is counted only for them: `children` gives the parent's children at work and those that wait for a place,
    /// `tree` the threads of the whole tree that have not ended.
    ///
    /// # Errors
    /// When something cannot be counted.
    pub fn first_refused<E>(
        &self,
        spawned: u64,
        depth: u64,
        children: impl FnOnce() -> Result<(u64, u64), E>,
        tree: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<CreateOutcome>, E> {
        let refused = |cap, max, count| Ok(Some(CreateOutcome::Refused { cap, max, count }));
        if let Some(max) = self.spawns.filter(|max| spawned >= *max) {
            return refused(SpawnCap::Spawns, max, spawned);
        }
        if self.depth == Some(0) {
            return refused(SpawnCap::Depth, depth, depth);
        }
        let mut is_queued = false;
        if let Some(max) = self.concurrent_children {
            let (at_work, queued) = children()?;
            if !self.queues_children && at_work >= max {
                return refused(SpawnCap::ConcurrentChildren, max, at_work);
            }
            is_queued = self.queues_children && at_work.saturating_add(queued) >= max;
        }
        if let Some(max) = self.total_threads.filter(|_| !is_queued) {
            let count = tree()?;
            if count >= max {
                return refused(SpawnCap::TotalThreads, max, count);
            }
        }
        Ok(None)
    }
}

/// One of [`SpawnCaps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnCap {
    /// Children over the parent's life.
    Spawns,
    /// Levels.
    Depth,
    /// Children that have not ended.
    ConcurrentChildren,
    /// Threads of the tree that have not ended.
    TotalThreads,
}

impl SpawnCap {
    /// As settings name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spawns => "spawns",
            Self::Depth => "depth",
            Self::ConcurrentChildren => "max_concurrent_children",
            Self::TotalThreads => "max_total_threads",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn first_exceeded_cap_is_named_and_others_not_counted() {
        let all = SpawnCaps {
            spawns: Some(3),
            depth: Some(1),
            concurrent_children: Some(2),
            total_threads: Some(5),
            queues_children: false,
        };
        let counted = Cell::new(0);
        let check = |caps: SpawnCaps, spawned, at_work, queued, tree| {
            let count = |value| {
                counted.set(counted.get() + 1);
                Ok::<_, Infallible>(value)
            };
            let Ok(refused) = caps.first_refused(
                spawned,
                4,
                || count((at_work, queued)),
                || count((tree, 0)).map(|two| two.0),
            );
            refused
        };
        let refused = |cap, max, count| Some(CreateOutcome::Refused { cap, max, count });
        assert_eq!(check(all, 3, 2, 0, 5), refused(SpawnCap::Spawns, 3, 3));
        assert_eq!(check(SpawnCaps { depth: Some(0), ..all }, 2, 2, 0, 5), refused(SpawnCap::Depth, 4, 4));
        assert_eq!(counted.get(), 0);
        assert_eq!(check(all, 2, 2, 0, 5), refused(SpawnCap::ConcurrentChildren, 2, 2));
        assert_eq!(check(all, 2, 1, 1, 5), refused(SpawnCap::TotalThreads, 5, 5));
        let queues = SpawnCaps { queues_children: true, ..all };
        assert_eq!(check(queues, 2, 1, 1, 5), None, "it is not at work while it waits for a place");
        assert_eq!(check(queues, 2, 1, 0, 5), refused(SpawnCap::TotalThreads, 5, 5));
        assert_eq!(check(SpawnCaps::default(), 9, 9, 9, 9), None);
    }
}
