//! The threads of the background process: by place, and by the environment they were started in.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lillux::file::TempDirPool;
use lillux::process::Launcher;
use rye_agent::driver::MillisClock;
use rye_agent::store::{DATABASE, LedgerSpec, ThreadSecret, may_be_shared, open_existing_store};
use rye_agent::threads::{Threads, ThreadsSetup, WatchGuard};
use rye_engine::{
    Code, Engine, EngineOptions, EnginePool, Error, HostEnvironment, NativeTools, Result, WallClock,
};

use crate::location::ThreadsLocation;

/// How long a space without threads at work is kept open.
const IDLE_TTL: Duration = Duration::from_secs(10);

type Environment = BTreeMap<String, String>;

/// Where threads of one place run, in one environment.
pub(crate) struct ThreadSpace {
    pub(crate) threads: Threads,
    _watch_guard: WatchGuard,
    last_used: Mutex<Instant>,
}

/// What a space is opened by.
type SpaceKey = (ThreadsLocation, Environment);

/// All of them.
pub(crate) struct SpacePool {
    engines: Arc<EnginePool<SpaceKey>>,
    clock: Arc<dyn MillisClock>,
    spaces: Mutex<HashMap<SpaceKey, Arc<ThreadSpace>>>,
}

impl SpacePool {
    /// No spaces yet. `launcher` starts what their engines run.
    pub(crate) fn new(
        launcher: Launcher,
        engine_clock: fn() -> Box<dyn WallClock>,
        clock: Arc<dyn MillisClock>,
    ) -> Self {
        let temporaries = TempDirPool::with_capacity(2);
        let open = move |(location, environment): &SpaceKey| {
            let options = EngineOptions {
                wants_dev_mode: location.wants_dev_mode,
                is_warm: true,
                host: HostEnvironment {
                    variables: environment.clone(),
                    home: location.home.clone(),
                    current_dir: location.folder.clone(),
                    launcher: launcher.clone(),
                    temporary_folders: temporaries.clone(),
                    passphrase_prompt: None,
                },
                natives: NativeTools(rye_agent::thread_tools::native_tools()),
            };
            Engine::open(location.roots(), options, engine_clock())
        };
        // There are as many as spaces.
        Self { engines: Arc::new(EnginePool::new(usize::MAX, open)), clock, spaces: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SpaceKey, Arc<ThreadSpace>>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads of a place in an environment, opened when they are first wanted. It blocks, inside a runtime.
    pub(crate) fn get_or_open(
        &self,
        location: &ThreadsLocation,
        environment: &Environment,
    ) -> Result<Arc<ThreadSpace>> {
        let mut spaces = self.lock();
        let key = (location.clone(), environment.clone());
        if let Some(space) = spaces.get(&key) {
            *space.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Ok(Arc::clone(space));
        }
        let space = Arc::new(self.open_space(location, environment)?);
        spaces.insert(key, Arc::clone(&space));
        Ok(space)
    }

    fn open_space(&self, location: &ThreadsLocation, environment: &Environment) -> Result<ThreadSpace> {
        if !location.threads.join(DATABASE).is_file() && !may_be_shared(&location.roots()) {
            let path = rye_item::text::one_line(&location.threads.display().to_string());
            return Err(Error::new(Code::NoThread, format!("no threads in `{path}`")));
        }
        let (engines, key) = (Arc::clone(&self.engines), (location.clone(), environment.clone()));
        let threads = Threads::open(ThreadsSetup {
            engine: Arc::new(move || Ok(engines.engine(&key)?.engine)),
            environment: environment.clone(),
            listener: None,
            clock: Arc::clone(&self.clock),
            folder: location.threads.clone(),
            // Whatever these start runs here too.
            background: None,
            worker: None,
        })?;
        let watching = threads.watch();
        Ok(ThreadSpace { threads, _watch_guard: watching, last_used: Mutex::new(Instant::now()) })
    }

    /// How many threads are at work. Spaces that have had none for a while are closed.
    pub(crate) fn running_count(&self) -> usize {
        let mut spaces = self.lock();
        spaces.retain(|_, space| {
            let last_used = *space.last_used.lock().unwrap_or_else(PoisonError::into_inner);
            // A copy that is held elsewhere is about to be used.
            space.threads.running_count() > 0
                || last_used.elapsed() < IDLE_TTL
                || Arc::strong_count(space) > 1
        });
        self.engines.retain(|key| spaces.contains_key(key));
        spaces.values().map(|space| space.threads.running_count()).sum()
    }
}

/// Whether a place has no thread any more that continues by itself. What cannot be read may have some.
pub(crate) fn has_no_threads(location: &ThreadsLocation) -> bool {
    fn has_some(threads: &Path, signing_keys: &Path) -> Option<bool> {
        let secret = ThreadSecret::load(signing_keys).ok()??;
        let store = open_existing_store(threads, &secret, &LedgerSpec::default()).ok()??;
        store.has_detached().ok()
    }
    // What is in a store elsewhere is not asked here.
    if may_be_shared(&location.roots()) {
        return false;
    }
    !location.threads.join(DATABASE).exists()
        || has_some(&location.threads, &location.signing_keys) == Some(false)
}
