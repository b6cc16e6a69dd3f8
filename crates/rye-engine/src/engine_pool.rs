//! The engines of a process that stays: each opened when it is first wanted, and again when what it was opened from has
//! changed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::error::Result;

/// How an engine is opened.
type OpenEngine<K> = dyn Fn(&K) -> Result<Engine> + Send + Sync;

/// Engines by key: a project, or a place and an environment.
pub struct EnginePool<K> {
    open: Box<OpenEngine<K>>,
    max_engines: usize,
    /// The one used last is the last.
    slots: Mutex<Vec<(K, Arc<EngineSlot>)>>,
}

/// Where an engine is kept.
#[derive(Default)]
struct EngineSlot {
    engine: Mutex<Option<Arc<Engine>>>,
    /// Held while one is opened: others that want it wait.
    opening: Mutex<()>,
}

/// An engine of a pool.
#[derive(Clone)]
pub struct PooledEngine {
    /// The engine, as its files are now.
    pub engine: Arc<Engine>,
    /// How it was come by.
    pub origin: EngineOrigin,
}

/// Whether an engine was open already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineOrigin {
    /// It was, and nothing has changed since.
    Cached,
    /// It was opened for the first time.
    Opened,
    /// It was opened again, after a change.
    Reopened,
}

impl<K> fmt::Debug for EnginePool<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EnginePool").field("max_engines", &self.max_engines).finish_non_exhaustive()
    }
}

impl<K: Clone + PartialEq> EnginePool<K> {
    /// A pool of at most `max_engines`; the one not used for longest is dropped first.
    pub fn new(max_engines: usize, open: impl Fn(&K) -> Result<Engine> + Send + Sync + 'static) -> Self {
        Self { open: Box::new(open), max_engines, slots: Mutex::default() }
    }

    /// The same with an engine that was opened already.
    #[must_use]
    pub fn with_engine(self, key: &K, engine: Engine) -> Self {
        *lock(&self.slot(key).engine) = Some(Arc::new(engine));
        self
    }

    /// The engine of a key. It blocks while one is opened.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn engine(&self, key: &K) -> Result<PooledEngine> {
        let slot = self.slot(key);
        if let Some(engine) = slot.current() {
            return Ok(PooledEngine { engine, origin: EngineOrigin::Cached });
        }
        let _opening = lock(&slot.opening);
        if let Some(engine) = slot.current() {
            return Ok(PooledEngine { engine, origin: EngineOrigin::Cached });
        }
        let engine = Arc::new((self.open)(key)?);
        let previous = lock(&slot.engine).replace(Arc::clone(&engine));
        let origin = if previous.is_some() { EngineOrigin::Reopened } else { EngineOrigin::Opened };
        Ok(PooledEngine { engine, origin })
    }

    /// The engine of a key if it is open and nothing has changed since.
    #[must_use]
    pub fn current(&self, key: &K) -> Option<Arc<Engine>> {
        let slots = lock(&self.slots);
        let slot = slots.iter().find(|(known, _)| known == key).map(|(_, slot)| Arc::clone(slot));
        drop(slots);
        slot?.current()
    }

    /// Drops the engines of other keys.
    pub fn retain(&self, is_kept: impl Fn(&K) -> bool) {
        lock(&self.slots).retain(|(key, _)| is_kept(key));
    }

    /// The slot of a key, now the one used last.
    fn slot(&self, key: &K) -> Arc<EngineSlot> {
        let mut slots = lock(&self.slots);
        let (key, slot) = match slots.iter().position(|(known, _)| known == key) {
            Some(index) if index + 1 == slots.len() => return Arc::clone(&slots[index].1),
            Some(index) => slots.remove(index),
            None => (key.clone(), Arc::default()),
        };
        if slots.len() >= self.max_engines {
            slots.remove(0);
        }
        slots.push((key, Arc::clone(&slot)));
        slot
    }
}

impl EngineSlot {
    /// The engine, if it is as its files are now. They are looked at without holding the slot.
    fn current(&self) -> Option<Arc<Engine>> {
        let engine = lock(&self.engine).clone();
        engine.filter(|engine| engine.workspace.is_current())
    }
}

/// A panic while an engine was opened leaves none: it is opened again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
