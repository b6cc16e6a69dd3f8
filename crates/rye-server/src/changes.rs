//! Telling clients that items appeared, changed or vanished: the server's own project is watched once somebody has
//! listed or subscribed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rye_engine::Engine;
use rye_item::{ItemId, ItemType, Space};
use rye_space::search::Watcher;
use rye_space::stamp::Stamp;
use tokio::sync::{Notify, broadcast};

use crate::offers;
use crate::pool::Pace;
use crate::session::Shared;

/// What happens close together is told once.
const QUIET: Duration = Duration::from_millis(100);
/// Changes a slow client may lag behind before it is told to list anew.
const BACKLOG: usize = 256;

/// Something a client may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The list of prompts may be another.
    Prompts,
    /// The list of resources may be another.
    Resources,
    /// This resource says something else now, or is gone.
    Resource(String),
}

/// Who is told.
pub(crate) struct Changes {
    sender: broadcast::Sender<Change>,
    is_watching: AtomicBool,
}

/// How directives and knowledge look on disk.
type Look = BTreeMap<(ItemType, ItemId), Vec<(Space, Stamp)>>;

impl Changes {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::channel(BACKLOG).0, is_watching: AtomicBool::new(false) }
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Change> {
        self.sender.subscribe()
    }
}

/// Begins to watch, if nothing does yet.
pub(crate) fn watch(shared: &Arc<Shared>) {
    if shared.projects.setup().door.is_none() && !shared.changes.is_watching.swap(true, Ordering::SeqCst) {
        tokio::spawn(follow(Arc::clone(shared)));
    }
}

/// Looks, waits until something stirs, looks again, tells the difference. Ends with the runtime.
async fn follow(shared: Arc<Shared>) {
    let stirred = Arc::new(Notify::new());
    let mut last: Option<Look> = None;
    let mut _watcher = None;
    // Nobody listens: nobody needs to know.
    let tell = |change: Change| drop(shared.changes.sender.send(change));
    loop {
        let (look, watcher) = look_again(&shared, Arc::clone(&stirred)).await;
        // The new watcher was there before the look: nothing falls between.
        _watcher = watcher;
        if let Some(look) = look {
            last.iter().flat_map(|last| differences(last, &look)).for_each(tell);
            last = Some(look);
        }
        tokio::select! {
            () = stirred.notified() => {}
            () = shared.projects.reopened.notified() => {
                // Keys or settings changed: what may be used may be another, though no item changed.
                [Change::Prompts, Change::Resources].into_iter().for_each(tell);
            }
        }
        tokio::time::sleep(QUIET).await;
    }
}

async fn look_again(shared: &Arc<Shared>, stirred: Arc<Notify>) -> (Option<Look>, Option<Watcher>) {
    let inner = Arc::clone(shared);
    let looked = shared.pool.run(Pace::Quick, move || {
        let engine = inner.projects.engine(None)?.engine;
        // Watched anew each time: folders may have come and gone.
        let watcher = Watcher::telling(&engine.workspace.spaces, move || stirred.notify_one());
        Ok((look(&engine), watcher))
    });
    // A project that cannot be opened offers nothing; the next request says why.
    looked.await.map_or((None, None), |(look, watcher)| (Some(look), watcher))
}

fn look(engine: &Engine) -> Look {
    let spaces = &engine.workspace.spaces;
    let mut look = Look::new();
    for space in spaces.order() {
        for entry in spaces.walk(&space, &[ItemType::Directive, ItemType::Knowledge]).entries {
            let key = (entry.item.item_type, entry.item.id);
            look.entry(key).or_default().push((space.clone(), entry.stamp));
        }
    }
    look
}

fn differences(before: &Look, after: &Look) -> Vec<Change> {
    let mut changes = Vec::new();
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    for key in keys.filter(|key| before.get(*key) != after.get(*key)) {
        let list = match key.0 {
            ItemType::Directive => Change::Prompts,
            ItemType::Knowledge | ItemType::Tool | ItemType::Config => Change::Resources,
        };
        if key.0 == ItemType::Knowledge {
            changes.push(Change::Resource(offers::uri(&key.1)));
        }
        if !changes.contains(&list) {
            changes.push(list);
        }
    }
    changes
}
