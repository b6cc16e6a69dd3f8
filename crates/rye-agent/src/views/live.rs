//! All threads of a place as they stand, kept up to date: every list is made from here, and the store is read once for
//! all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rye_engine::Result;

use super::live_row::{LiveFilter, LiveRow};
use super::thread_index::ThreadIndex;
use crate::status::ThreadStatus;
use crate::store::{Approval, ThreadFilter, ThreadRow};
use crate::thread_id::ThreadId;

/// Threads that are held; of more, the newest.
const MAX_LIVE_THREADS: usize = 50_000;
/// Records of journals that are looked at in one refresh.
const MAX_RECORDS: u64 = 20_000;
/// Threads whose running tool is looked for in one refresh.
const MAX_TOOL_LOOKUPS: usize = 32;
/// How often threads at work are looked at though nothing was written: their processes may be gone.
const ACTIVE_INTERVAL: Duration = Duration::from_secs(2);
/// How often everything is read again if anything was written: threads may have been pruned.
const RELOAD_INTERVAL: Duration = Duration::from_secs(300);
/// The same for a store that does not know what changed.
const UNORDERED_RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Parents that are followed up to the root.
const MAX_DEPTH: usize = 10_000;

/// What a refresh brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveChange {
    /// Threads that are new or stand differently.
    pub threads: Vec<ThreadId>,
    /// Questions that were asked.
    pub asked: Vec<String>,
    /// Questions that are answered, or gone.
    pub answered: Vec<String>,
    /// Whether everything was read again.
    pub is_reload: bool,
}

impl LiveChange {
    /// Whether it brought nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The threads of a place.
pub struct LiveThreads {
    index: ThreadIndex,
    rows: HashMap<ThreadId, LiveRow>,
    /// In the order they were made.
    order: Vec<ThreadId>,
    questions: BTreeMap<String, Approval>,
    position: u64,
    is_ordered: bool,
    version: Option<i64>,
    active_at: Instant,
    loaded_at: Instant,
}

impl LiveThreads {
    /// Reads all threads.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load(index: ThreadIndex) -> Result<Self> {
        let now = Instant::now();
        let mut live = Self {
            index,
            rows: HashMap::new(),
            order: Vec::new(),
            questions: BTreeMap::new(),
            position: 0,
            is_ordered: false,
            version: None,
            active_at: now,
            loaded_at: now,
        };
        live.version = Some(live.index.store.data_version()?);
        live.reload()?;
        Ok(live)
    }

    /// Where they are read from.
    #[must_use]
    pub fn index(&self) -> &ThreadIndex {
        &self.index
    }

    /// The place behind the last change that is in the rows, for [`crate::store::ThreadStore::changed_since`].
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// One thread.
    #[must_use]
    pub fn row(&self, id: &ThreadId) -> Option<&LiveRow> {
        self.rows.get(id)
    }

    /// Those that a filter leaves in, the newest first.
    pub fn rows<'a>(&'a self, filter: &'a LiveFilter) -> impl Iterator<Item = &'a LiveRow> {
        let rows = self.order.iter().rev().filter_map(|id| self.rows.get(id));
        rows.filter(|row| filter.matches(row))
    }

    /// Open questions, by id.
    #[must_use]
    pub fn questions(&self) -> &BTreeMap<String, Approval> {
        &self.questions
    }

    /// How many threads stand where.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        self.rows.values().for_each(|row| *counts.entry(row.status).or_insert(0) += 1);
        counts
    }

    /// Reads what changed since the last time.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn refresh(&mut self) -> Result<LiveChange> {
        let version = self.index.store.data_version()?;
        let mut change = LiveChange::default();
        if self.version != Some(version) {
            let interval = if self.is_ordered { RELOAD_INTERVAL } else { UNORDERED_RELOAD_INTERVAL };
            if self.loaded_at.elapsed() >= interval {
                self.version = Some(version);
                return self.reload();
            }
            if self.is_ordered {
                self.version = Some(version);
                self.refresh_questions(&mut change)?;
                loop {
                    let Some(changed) = self.index.store.changed_since(self.position, MAX_RECORDS)? else {
                        return self.reload();
                    };
                    self.position = changed.position;
                    change.threads.extend(self.update(changed.threads)?);
                    if changed.is_complete {
                        break;
                    }
                }
            }
        }
        if self.active_at.elapsed() >= ACTIVE_INTERVAL {
            self.active_at = Instant::now();
            self.refresh_active(&mut change)?;
        }
        change.threads.sort();
        change.threads.dedup();
        Ok(change)
    }

    /// Threads with changes behind `position`, or `None` where that is not known: everything is to be shown again.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn changed_since(&self, position: u64, max_threads: usize) -> Result<Option<Vec<ThreadId>>> {
        if !self.is_ordered || position > self.position {
            return Ok(None);
        }
        let Some(changed) = self.index.store.changed_since(position, MAX_RECORDS)? else { return Ok(None) };
        let is_known = changed.is_complete && changed.threads.len() <= max_threads;
        Ok(is_known.then(|| changed.threads.into_iter().map(|row| row.id).collect()))
    }

    fn reload(&mut self) -> Result<LiveChange> {
        self.loaded_at = Instant::now();
        // The place first: what is written while the rows are read is read again.
        let position = self.index.store.last_position()?;
        self.is_ordered = position.is_some();
        self.position = position.unwrap_or(0);
        let mut change = LiveChange { is_reload: true, ..LiveChange::default() };
        self.refresh_questions(&mut change)?;
        let limit = Some(MAX_LIVE_THREADS as u64);
        let mut rows = self.index.store.threads(&ThreadFilter { limit, ..ThreadFilter::default() })?;
        rows.reverse();
        self.rows.clear();
        self.order.clear();
        change.threads = self.update(rows)?;
        Ok(change)
    }

    fn refresh_questions(&mut self, change: &mut LiveChange) -> Result<()> {
        let open = self.index.store.open_approvals(None)?.approvals;
        let open: BTreeMap<String, Approval> =
            open.into_iter().map(|question| (question.id.clone(), question)).collect();
        change.asked.extend(open.keys().filter(|id| !self.questions.contains_key(*id)).cloned());
        change.answered.extend(self.questions.keys().filter(|id| !open.contains_key(*id)).cloned());
        let before = std::mem::replace(&mut self.questions, open);
        // Whether it asks is part of why a thread needs attention.
        let asking: BTreeSet<ThreadId> = change
            .asked
            .iter()
            .chain(&change.answered)
            .filter_map(|id| self.questions.get(id).or(before.get(id)))
            .map(|question| question.thread.clone())
            .collect();
        let known: Vec<ThreadRow> = asking
            .iter()
            .filter(|id| self.rows.contains_key(*id))
            .filter_map(|id| self.index.store.thread(id).transpose())
            .collect::<std::result::Result<_, _>>()?;
        change.threads.extend(self.update(known)?);
        Ok(())
    }

    /// Threads at work: whether their processes are still there, and what they wait for.
    fn refresh_active(&mut self, change: &mut LiveChange) -> Result<()> {
        let statuses = vec![ThreadStatus::Created, ThreadStatus::Running];
        let limit = Some(MAX_LIVE_THREADS as u64);
        let filter = ThreadFilter { statuses, limit, ..ThreadFilter::default() };
        let rows = self.index.store.threads(&filter)?;
        let stands_differently = |row: &ThreadRow| {
            self.rows.get(&row.id).is_none_or(|known| {
                known.status != self.index.effective_status(row)
                    || known.row.waiting != row.waiting
                    || known.row.note != row.note
                    || known.row.status != row.status
            })
        };
        let changed: Vec<ThreadRow> = rows.into_iter().filter(stands_differently).collect();
        change.threads.extend(self.update(changed)?);
        Ok(())
    }

    /// Takes rows over, the oldest first, with those above them, whose sums they change; gives the names of all.
    fn update(&mut self, rows: Vec<ThreadRow>) -> Result<Vec<ThreadId>> {
        let wants_tool = rows.len() <= MAX_TOOL_LOOKUPS;
        let mut changed: BTreeSet<ThreadId> = BTreeSet::new();
        let mut above: BTreeSet<ThreadId> = BTreeSet::new();
        let asking: BTreeSet<ThreadId> =
            self.questions.values().map(|question| question.thread.clone()).collect();
        let is_reload = self.rows.is_empty();
        for row in rows {
            let id = row.id.clone();
            let mut root = id.clone();
            let mut next = row.parent.clone();
            for _ in 0..MAX_DEPTH {
                let Some(parent) = next else { break };
                if !is_reload {
                    above.insert(parent.clone());
                }
                next = self.rows.get(&parent).and_then(|row| row.row.parent.clone());
                root = parent;
            }
            let ledger = self.index.store.ledger(&id)?;
            let live = LiveRow::new(&self.index, row, ledger, root, asking.contains(&id), wants_tool);
            if self.rows.insert(id.clone(), live).is_none() {
                self.order.push(id.clone());
            }
            changed.insert(id);
        }
        above.retain(|id| !changed.contains(id));
        for id in &above {
            let Some(known) = self.rows.get(id) else { continue };
            let ledger = self.index.store.ledger(id)?;
            if ledger != known.ledger {
                let (row, root) = (known.row.clone(), known.root.clone());
                let live = LiveRow::new(&self.index, row, ledger, root, asking.contains(id), wants_tool);
                self.rows.insert(id.clone(), live);
                changed.insert(id.clone());
            }
        }
        let excess = self.order.len().saturating_sub(MAX_LIVE_THREADS);
        for id in self.order.drain(..excess) {
            self.rows.remove(&id);
        }
        Ok(changed.into_iter().collect())
    }
}
