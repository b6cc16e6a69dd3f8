//! Work that blocks: done on threads of its own, so many at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rye_engine::verbs::execute::BlockingHook;
use tokio::sync::Semaphore;

use super::BoxFuture;

/// How long work waits for its turn at most.
pub(crate) const SLOT_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that blocks. The hook is notified when it begins to wait for others.
pub type BlockingWork = Box<dyn FnOnce(BlockingHook) + Send>;

/// Does work that blocks.
pub trait BlockingExecutor: Send + Sync {
    /// Does it; ready when it is done.
    fn run(&self, work: BlockingWork) -> BoxFuture<'static, ()>;
}

/// The runtime's threads for work that blocks, in turns: many threads do not get in each other's way, and those that wait
/// for others are left out.
#[derive(Clone, Debug)]
pub struct SlottedPool(pub Arc<Semaphore>);

impl BlockingExecutor for SlottedPool {
    fn run(&self, work: BlockingWork) -> BoxFuture<'static, ()> {
        let slots = Arc::clone(&self.0);
        Box::pin(async move {
            // Turns keep order, nothing more: those who do not end are passed by.
            let permit = tokio::time::timeout(SLOT_TIMEOUT, slots.acquire_owned()).await;
            let permit = Arc::new(Mutex::new(permit.ok().and_then(Result::ok)));
            let blocking_hook =
                BlockingHook::new(move || drop(permit.lock().unwrap_or_else(PoisonError::into_inner).take()));
            match tokio::task::spawn_blocking(move || work(blocking_hook)).await {
                Ok(()) => {}
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The process ends.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// Where in a spread of delays one falls, in thousandths, from the system's randomness.
#[must_use]
pub fn system_jitter() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) % 1001,
        Err(_) => 500,
    }
}
