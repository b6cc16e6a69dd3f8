//! Telling clients that items appeared, changed or vanished: the server's own project is watched once a client has
//! listed or subscribed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rye_engine::Engine;
use rye_item::{ItemId, ItemType, Space};
use rye_space::file_stamp::FileStamp;
use rye_space::search::SpaceWatcher;
use tokio::sync::{Notify, broadcast};

use crate::catalog;
use crate::session::ServerState;
use crate::worker_pool::Lane;

/// What happens close together is reported once.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(100);
/// Changes a slow client may lag behind before it is asked to list again.
const MAX_BACKLOG: usize = 256;

/// Something a client may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CatalogChange {
    /// The list of tools may be another.
    Tools,
    /// The list of prompts may be another.
    Prompts,
    /// The list of resources may be another.
    Resources,
    /// This resource says something else now, or is gone.
    Resource(String),
}

impl CatalogChange {
    /// Every list may be another.
    pub(crate) const LISTS: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];
}

/// Who is notified.
pub(crate) struct ChangeNotifier {
    sender: broadcast::Sender<CatalogChange>,
    is_watching: AtomicBool,
}

/// How items look on disk.
type CatalogSnapshot = BTreeMap<(ItemType, ItemId), Vec<(Space, FileStamp)>>;

impl ChangeNotifier {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::channel(MAX_BACKLOG).0, is_watching: AtomicBool::new(false) }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<CatalogChange> {
        self.sender.subscribe()
    }
}

/// Begins to watch, if nothing does yet.
pub(crate) fn start_watching(shared: &Arc<ServerState>) {
    if shared.engines.setup().callback.is_none() && !shared.changes.is_watching.swap(true, Ordering::SeqCst) {
        tokio::spawn(watch_loop(Arc::clone(shared)));
    }
}

/// Looks, waits until something stirs, looks again, tells the difference. Ends with the runtime.
async fn watch_loop(shared: Arc<ServerState>) {
    let changed = Arc::new(Notify::new());
    let mut last: Option<CatalogSnapshot> = None;
    let mut _watcher = None;
    // No client listens.
    let send = |change: CatalogChange| drop(shared.changes.sender.send(change));
    loop {
        let (snapshot, watcher) = refresh(&shared, Arc::clone(&changed)).await;
        // The new watcher was there before the look: nothing falls between.
        _watcher = watcher;
        if let Some(snapshot) = snapshot {
            last.iter().flat_map(|last| diff(last, &snapshot)).for_each(send);
            last = Some(snapshot);
        }
        tokio::select! {
            () = changed.notified() => {}
            () = shared.engines.on_reopen.notified() => {
                // Keys or settings changed: what may be used may be another, though no item changed.
                CatalogChange::LISTS.into_iter().for_each(send);
            }
        }
        tokio::time::sleep(DEBOUNCE_INTERVAL).await;
    }
}

async fn refresh(
    shared: &Arc<ServerState>,
    changed: Arc<Notify>,
) -> (Option<CatalogSnapshot>, Option<SpaceWatcher>) {
    let inner = Arc::clone(shared);
    let result = shared.pool.run(Lane::Quick, move || {
        let engine = inner.engines.engine(None)?.engine;
        // Watched again each time: folders may have come and gone.
        let watcher =
            SpaceWatcher::start_with_callback(&engine.workspace.spaces, &ItemType::SEARCHABLE, move || {
                changed.notify_one()
            });
        Ok((take_snapshot(&engine), watcher))
    });
    // A project that cannot be opened offers nothing; the next request says why.
    result.await.map_or((None, None), |(snapshot, watcher)| (Some(snapshot), watcher))
}

fn take_snapshot(engine: &Engine) -> CatalogSnapshot {
    let spaces = &engine.workspace.spaces;
    let mut snapshot = CatalogSnapshot::new();
    for space in spaces.order() {
        for entry in spaces.scan(&space, &ItemType::SEARCHABLE).entries {
            let key = (entry.item.item_type, entry.item.id);
            snapshot.entry(key).or_default().push((space.clone(), entry.stamp));
        }
    }
    snapshot
}

fn diff(before: &CatalogSnapshot, after: &CatalogSnapshot) -> Vec<CatalogChange> {
    let mut changes = Vec::new();
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    for key in keys.filter(|key| before.get(*key) != after.get(*key)) {
        let list = match key.0 {
            ItemType::Tool => CatalogChange::Tools,
            ItemType::Directive => CatalogChange::Prompts,
            ItemType::Knowledge | ItemType::Config => CatalogChange::Resources,
        };
        if key.0 == ItemType::Knowledge {
            changes.push(CatalogChange::Resource(catalog::resource_uri(&key.1)));
        }
        if !changes.contains(&list) {
            changes.push(list);
        }
    }
    changes
}
