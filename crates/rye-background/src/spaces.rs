//! The threads of the background process: by place, and by the environment they were started in.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lillux::file::TemporaryFolders;
use lillux::process::Launcher;
use rye_agent::driver::Clock;
use rye_agent::store::{DATABASE, LedgerSpec, Secret, Store};
use rye_agent::threads::{Setup, Threads, Watching};
use rye_engine::{Code, Engine, Error, Host, Natives, Options, Result};

use crate::place::Place;

/// How long a space without threads at work is kept open.
const KEPT_FOR: Duration = Duration::from_secs(10);

type Environment = BTreeMap<String, String>;

/// Where threads of one place run, in one environment.
pub(crate) struct Space {
    pub(crate) threads: Threads,
    _watching: Watching,
    used: Mutex<Instant>,
}

/// All of them.
pub(crate) struct Spaces {
    pub(crate) launcher: Launcher,
    pub(crate) temporaries: TemporaryFolders,
    pub(crate) engine_clock: fn() -> Box<dyn rye_engine::Clock>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) open: Mutex<HashMap<(Place, Environment), Arc<Space>>>,
}

impl Spaces {
    fn all(&self) -> MutexGuard<'_, HashMap<(Place, Environment), Arc<Space>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads of a place in an environment, opened when they are first wanted. It blocks, inside a runtime.
    pub(crate) fn space(&self, place: &Place, environment: &Environment) -> Result<Arc<Space>> {
        let mut all = self.all();
        let key = (place.clone(), environment.clone());
        if let Some(space) = all.get(&key) {
            *space.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Ok(Arc::clone(space));
        }
        let space = Arc::new(self.opened(place, environment)?);
        all.insert(key, Arc::clone(&space));
        Ok(space)
    }

    fn opened(&self, place: &Place, environment: &Environment) -> Result<Space> {
        if !place.threads.join(DATABASE).is_file() {
            let shown = rye_item::text::one_line(&place.threads.display().to_string());
            return Err(Error::new(Code::NoThread, format!("there are no threads in `{shown}`")));
        }
        let host = Host {
            environment: environment.clone(),
            home: place.home.clone(),
            folder: place.folder.clone(),
            launcher: self.launcher.clone(),
            temporaries: self.temporaries.clone(),
        };
        let (roots, wants_dev_mode, clock) = (place.roots(), place.wants_dev_mode, self.engine_clock);
        let open = move || {
            let options = Options {
                wants_dev_mode,
                is_warm: true,
                host: host.clone(),
                natives: Natives(rye_agent::internal::all()),
            };
            Engine::open(roots.clone(), options, clock()).map(Arc::new)
        };
        let kept = Mutex::new(open()?);
        let door = move || {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.workspace.is_current() {
                *kept = open()?;
            }
            Ok(Arc::clone(&kept))
        };
        let threads = Threads::open(Setup {
            engine: Arc::new(door),
            environment: environment.clone(),
            listener: None,
            clock: Arc::clone(&self.clock),
            folder: place.threads.clone(),
            // Whatever these start runs here too.
            background: None,
        })?;
        let watching = threads.watch();
        Ok(Space { threads, _watching: watching, used: Mutex::new(Instant::now()) })
    }

    /// How many threads are at work. Spaces that have had none for a while are closed.
    pub(crate) fn live_count(&self) -> usize {
        let mut all = self.all();
        all.retain(|_, space| {
            let used = *space.used.lock().unwrap_or_else(PoisonError::into_inner);
            // A copy that somebody holds is about to be used.
            space.threads.live_count() > 0 || used.elapsed() < KEPT_FOR || Arc::strong_count(space) > 1
        });
        all.values().map(|space| space.threads.live_count()).sum()
    }
}

/// Whether a place has no thread any more that goes on by itself. What cannot be read may have some.
pub(crate) fn is_over(place: &Place) -> bool {
    fn has_some(threads: &Path, signing_keys: &Path) -> Option<bool> {
        let secret = Secret::load(signing_keys).ok()??;
        let store = Store::open_existing(threads, &secret, &LedgerSpec::default()).ok()??;
        store.has_detached().ok()
    }
    !place.threads.join(DATABASE).exists() || has_some(&place.threads, &place.signing_keys) == Some(false)
}
