//! A simulator of threads on several hosts: one store, paused time, one seed.
//!
//! ```text
//! seed → hosts (ThreadDriver, heartbeat, takeover) → SimStore → MemoryStore or SqliteStore
//!                                                       └ checker, at each commit
//! ```
//!
//! Hosts run the real [`rye_agent::driver::ThreadDriver`] with simulated parts: a store that dies before or after a commit
//! and hosts that freeze for longer than their lease, models that count their calls and are out of order at times, tools and
//! hooks that count their effects, children that queue, budgets of a day, and people who allow more, fork threads or want
//! them ended. Claiming, replaying and taking over are those of [`rye_agent::threads`], written again without an engine.
//! Thread ids, jitter, delays and times come from the seed only, so the same seed gives the same trace.

mod checker;
mod children;
mod host;
mod journal;
mod parts;
mod people;
mod rng;
mod scenario;
mod templates;
mod windows;
mod world;

use std::path::Path;
use std::sync::Arc;

use rye_store::StoreHandle;

use world::World;

/// A bug that is planted to see that the checker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// None.
    #[default]
    None,
    /// A commit with an older claim is accepted.
    MissingFence,
    /// The model is called before its reservation is durable.
    ReservationAfterCall,
    /// A call is charged twice.
    DoubleSettlement,
    /// A request to end a thread is forgotten before the end is durable.
    LostCancelRequest,
}

/// When hosts die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPlan {
    /// Never.
    Never,
    /// At one write to the store, counted from 0.
    At {
        /// Which.
        write: u64,
        /// Before it is made, or after.
        is_before: bool,
    },
    /// Now and then; hosts also freeze.
    Random,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// When hosts die.
    pub crashes: CrashPlan,
    /// A bug to find.
    pub bug: PlantedBug,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { crashes: CrashPlan::Random, bug: PlantedBug::None }
    }
}

/// What came of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimReport {
    /// What happened, in order.
    pub trace: Vec<String>,
    /// What must not happen and did.
    pub violations: Vec<String>,
    /// Writes to the store.
    pub writes: u64,
    /// Hosts that died.
    pub crashes: u64,
    /// Threads that were taken over.
    pub takeovers: u64,
    /// Calls of the model.
    pub model_calls: u64,
    /// Effects of tools.
    pub tool_effects: u64,
    /// Threads.
    pub threads: u64,
    /// Calls that a budget of a day refused.
    pub rolling_refusals: u64,
    /// Children that waited for their place.
    pub queued_children: u64,
    /// Times that a thread went over to its next model.
    pub fallbacks: u64,
    /// Times that a thread stopped because no provider answered.
    pub provider_suspensions: u64,
    /// Requests to end a thread that another host ran.
    pub cancel_requests: u64,
    /// Calls that a hook blocked or changed.
    pub hooked_calls: u64,
    /// Threads that began at a turn of another.
    pub forks: u64,
    /// Transcripts that were behind their journals at the end, and were completed from them.
    pub repaired_transcripts: u64,
}

/// Simulates one seed on a store of its own, with the files of threads below `threads_dir`.
///
/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn simulate(seed: u64, options: &SimOptions, store: StoreHandle, threads_dir: &Path) -> SimReport {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let report = runtime.block_on(async {
        let world = Arc::new(World::new(seed, *options, store, threads_dir));
        host::run(&world).await;
        checker::finish(&world);
        world.report()
    });
    drop(runtime);
    report
}

/// The store in memory, for [`simulate`].
#[must_use]
pub fn memory_store() -> StoreHandle {
    let store: Arc<dyn rye_store::ThreadStore> =
        Arc::new(rye_store::MemoryStore::new(Arc::new(parts::NoProcess), rye_store::LedgerRules::default()));
    StoreHandle::from(store)
}
