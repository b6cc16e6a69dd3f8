//! Watching the spaces while a process stays warm: as long as nothing stirs, the index need not be compared again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rye_item::ItemType;

use crate::spaces::Spaces;

/// Watches the folders of the spaces.
#[derive(Debug)]
pub struct SpaceWatcher {
    _watcher: RecommendedWatcher,
    is_dirty: Arc<AtomicBool>,
}

impl SpaceWatcher {
    /// Watches the item folders of every space that is a folder; `None` when the system cannot watch them all.
    /// A type folder that does not exist yet is watched through its parent.
    #[must_use]
    pub fn start(spaces: &Spaces) -> Option<Self> {
        Self::start_with_callback(spaces, &ItemType::SEARCHABLE, || {})
    }

    /// As [`SpaceWatcher::start`] for items of these types, and calls `on_change` from another thread after each change.
    #[must_use]
    pub fn start_with_callback(
        spaces: &Spaces,
        item_types: &[ItemType],
        on_change: impl Fn() + Send + 'static,
    ) -> Option<Self> {
        let is_dirty = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_dirty);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error means lost events: something may have stirred.
            let is_change = event.map_or(true, |event| !matches!(event.kind, EventKind::Access(_)));
            if is_change {
                flag.store(true, Ordering::SeqCst);
                on_change();
            }
        })
        .ok()?;
        for folder in spaces.order().filter_map(|space| spaces.folder(&space)) {
            watch_space(&mut watcher, &folder, item_types)?;
        }
        Some(Self { _watcher: watcher, is_dirty })
    }

    /// Whether anything stirred since the last call.
    #[must_use]
    pub fn take_dirty(&self) -> bool {
        self.is_dirty.swap(false, Ordering::SeqCst)
    }
}

fn watch_space(watcher: &mut RecommendedWatcher, folder: &Path, item_types: &[ItemType]) -> Option<()> {
    if !folder.is_dir() {
        let parent = folder.parent().filter(|parent| parent.is_dir())?;
        return watcher.watch(parent, RecursiveMode::NonRecursive).ok();
    }
    for item_type in item_types {
        let path = folder.join(item_type.folder());
        if path.is_dir() {
            watcher.watch(&path, RecursiveMode::Recursive).ok()?;
        }
    }
    watcher.watch(folder, RecursiveMode::NonRecursive).ok()
}
