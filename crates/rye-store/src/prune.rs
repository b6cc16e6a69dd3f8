//! Which threads are forgotten: whole trees that ended, with the trees their threads continued in or came from.
//!
//! A tree goes only when all of its threads have ended and none asks a person anything.

use std::collections::{BTreeMap, HashMap};

use rye_item::timestamp::iso_timestamp;
use rye_thread::config::LedgerSchema;
use rye_thread::thread_id::ThreadId;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How long ago a part was last kept that goes with the threads that used it.
const RELEASED_BLOB_AGE_MS: u64 = 10_000;

/// What to forget: each of the first three alone is reason enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    /// Now.
    pub at_ms: u64,
    /// Trees whose last thread ended so many days ago, or earlier.
    pub after_days: Option<u64>,
    /// Trees beyond this many that have ended, the newest first.
    pub keep_trees: Option<u64>,
    /// The oldest trees, until all that is stored has no more bytes than this. Their folders are removed.
    pub max_bytes: Option<u64>,
    /// What becomes of the others' folders.
    pub disposal: FolderDisposal,
    /// Folders go that were moved to the archive so many days ago, or earlier.
    pub remove_archived_after_days: Option<u64>,
    /// How often the database is rewritten without its gaps; never, when `None`.
    pub vacuum_interval_days: Option<u64>,
}

impl PruneOptions {
    /// What these settings let be forgotten now.
    #[must_use]
    pub fn of_settings(settings: &LedgerSchema, at_ms: u64) -> Self {
        Self {
            at_ms,
            after_days: Some(settings.archive_after_days),
            keep_trees: settings.keep_trees,
            max_bytes: settings.max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20)),
            disposal: FolderDisposal::Archive,
            remove_archived_after_days: settings.remove_archived_after_days,
            vacuum_interval_days: Some(settings.vacuum_interval_days),
        }
    }

    /// Shared parts that no thread uses go when they are as old as this: a younger one is about to be used.
    #[must_use]
    pub fn blobs_before_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.after_days.unwrap_or(1).min(1).saturating_mul(DAY_MS))
    }

    /// Shared parts that only forgotten threads used go as soon as they are as old as this: a younger one may have been kept again
    /// for a thread that is about to start.
    #[must_use]
    pub fn released_blobs_before_ms(&self) -> u64 {
        self.at_ms.saturating_sub(RELEASED_BLOB_AGE_MS)
    }

    /// Whether automatic pruning is due: it was last done a day ago or, if never, the oldest thread is a day old.
    #[must_use]
    pub fn is_due(at_ms: u64, last_ms: Option<u64>, first_created_at: Option<&str>) -> bool {
        match last_ms {
            Some(last) => last.saturating_add(DAY_MS) <= at_ms,
            None => {
                first_created_at.is_some_and(|first| *first <= *iso_timestamp(at_ms.saturating_sub(DAY_MS)))
            }
        }
    }
}

/// What becomes of a forgotten thread's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderDisposal {
    /// It moves to `archive/`, transcript and all.
    Archive,
    /// It is removed.
    Remove,
}

/// What went, or would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Threads.
    pub threads: Vec<ThreadId>,
    /// Shared parts that no thread uses any more.
    pub blobs: u64,
    /// Folders of the archive.
    pub archived: u64,
    /// Whether the database was rewritten.
    pub is_vacuumed: bool,
    /// What is stored now, if a maximum was asked for.
    pub stored_bytes: Option<u64>,
}

/// A thread, as far as pruning looks at it.
#[derive(Clone, Debug)]
pub struct PruneRow {
    /// Its number in the store.
    pub row: i64,
    /// Its name.
    pub id: ThreadId,
    /// The number of its tree's root.
    pub root: i64,
    /// When it ended.
    pub completed_at: Option<String>,
    /// Threads it continues from, or that continue from it.
    pub links: [Option<String>; 3],
    /// Whether a question of its is open.
    pub is_asking: bool,
}

/// Trees that go together.
#[derive(Clone, Debug)]
pub struct TreeGroup {
    /// Number and name of each thread.
    pub threads: Vec<(i64, ThreadId)>,
    /// When the last of them ended.
    pub ended_at: String,
    /// What becomes of their folders.
    pub disposal: FolderDisposal,
}

impl TreeGroup {
    /// The names of its threads.
    pub fn ids(&self) -> impl Iterator<Item = &ThreadId> {
        self.threads.iter().map(|(_, id)| id)
    }
}

/// The groups that are to go, the newest first. `rows` are all threads, the newest first; `total_bytes` is what the whole
/// store takes, `group_bytes` what one group does.
///
/// # Errors
/// Those of `group_bytes`.
pub fn select_groups<E>(
    rows: &[PruneRow],
    options: &PruneOptions,
    total_bytes: u64,
    mut group_bytes: impl FnMut(&TreeGroup) -> Result<u64, E>,
) -> Result<Vec<TreeGroup>, E> {
    let mut ended = ended_groups(rows, options.disposal);
    ended.sort_by(|one, other| other.ended_at.cmp(&one.ended_at));
    let before = options
        .after_days
        .map(|days| iso_timestamp(options.at_ms.saturating_sub(days.saturating_mul(DAY_MS))));
    let is_beyond = |index: usize| options.keep_trees.is_some_and(|keep| index as u64 >= keep);
    let is_old = |group: &TreeGroup| before.as_ref().is_some_and(|before| group.ended_at <= *before);
    let mut is_selected: Vec<bool> =
        ended.iter().enumerate().map(|(index, group)| is_beyond(index) || is_old(group)).collect();
    if let Some(max_bytes) = options.max_bytes {
        let mut remaining = total_bytes;
        for (group, is_selected) in ended.iter_mut().zip(&mut is_selected).rev() {
            if remaining <= max_bytes {
                break;
            }
            group.disposal = FolderDisposal::Remove;
            *is_selected = true;
            remaining = remaining.saturating_sub(group_bytes(group)?);
        }
    }
    let mut is_selected = is_selected.into_iter();
    ended.retain(|_| is_selected.next() == Some(true));
    Ok(ended)
}

/// Groups of trees of which nothing is in use.
fn ended_groups(rows: &[PruneRow], disposal: FolderDisposal) -> Vec<TreeGroup> {
    let root_of: HashMap<&str, i64> = rows.iter().map(|row| (row.id.as_str(), row.root)).collect();
    let mut groups = UnionFind::default();
    for row in rows {
        for link in row.links.iter().flatten() {
            if let Some(other) = root_of.get(link.as_str()) {
                groups.union(row.root, *other);
            }
        }
    }
    let mut found: BTreeMap<i64, Option<TreeGroup>> = BTreeMap::new();
    for row in rows {
        let group = found
            .entry(groups.find(row.root))
            .or_insert_with(|| Some(TreeGroup { threads: Vec::new(), ended_at: String::new(), disposal }));
        match (&row.completed_at, group.as_mut()) {
            (Some(at), Some(group)) if !row.is_asking => {
                group.threads.push((row.row, row.id.clone()));
                if *at > group.ended_at {
                    group.ended_at.clone_from(at);
                }
            }
            // Something of it is in use.
            _ => *group = None,
        }
    }
    found.into_values().flatten().collect()
}

/// Which roots belong together.
#[derive(Default)]
struct UnionFind(HashMap<i64, i64>);

impl UnionFind {
    fn find(&mut self, root: i64) -> i64 {
        let mut at = root;
        while let Some(next) = self.0.get(&at).copied().filter(|next| *next != at) {
            at = next;
        }
        self.0.insert(root, at);
        at
    }

    fn union(&mut self, one: i64, other: i64) {
        let (one, other) = (self.find(one), self.find(other));
        self.0.insert(one.max(other), one.min(other));
    }
}
