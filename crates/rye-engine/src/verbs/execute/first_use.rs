//! Whether an item ran before on this machine: a mark in the cache for each.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_item::ItemRef;

use crate::engine::Engine;

/// More items than are used in one process.
const MAX_CACHED_ITEMS: usize = 4096;

/// The items this process knows to have a mark.
#[derive(Default)]
pub(crate) struct UsedItems(Mutex<HashSet<ItemRef>>);

/// Marks the item as used; says whether it is the first time. A cache that cannot be written makes every time the first.
pub(super) fn mark_used(engine: &Engine, item: &ItemRef) -> bool {
    let mut used = engine.used_items.0.lock().unwrap_or_else(PoisonError::into_inner);
    if used.contains(item) {
        return false;
    }
    let folder = engine.workspace.roots.cache.join("used");
    let path = folder.join(Digest::of(item.to_string().as_bytes()).short());
    if path.exists() {
        if used.len() < MAX_CACHED_ITEMS {
            used.insert(item.clone());
        }
        return false;
    }
    // The mark is a convenience: losing it only marks a first use again.
    let _ = file::create_dirs(&folder, true)
        .and_then(|()| file::write_atomic(&path, item.to_string().as_bytes(), FileMode::Private));
    true
}
