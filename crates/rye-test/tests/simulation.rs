//! Threads on several hosts under crashes, freezes and takeovers: whatever happens, nothing is charged, called or ended
//! twice.
//!
//! `RYE_SIM_SEEDS` says how many seeds are tried, `RYE_SIM_SEED` which one alone.
#![expect(clippy::disallowed_methods, reason = "a variable sets the number of seeds")]
#![allow(clippy::expect_used, reason = "a test that cannot set up its folder has failed")]

use std::sync::Arc;

use rye_store::{StoreHandle, ThreadStore};
use rye_store_sqlite::{LedgerSpec, SqliteStore, ThreadSecret};
use rye_test::sim::{CrashPlan, PlantedBug, SimOptions, SimReport, memory_store, simulate};
use tempfile::TempDir;

fn temp_dir() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// One seed in memory.
fn run(seed: u64, options: &SimOptions) -> SimReport {
    let folder = temp_dir();
    simulate(seed, options, memory_store(), folder.path())
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("RYE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RYE_SIM_SEEDS").unwrap_or(default),
    }
}

fn assert_holds(seed: u64, report: &SimReport) {
    let trace = report.trace.join("\n");
    assert!(report.violations.is_empty(), "seed {seed}: {:#?}\n{trace}", report.violations);
}

#[test]
fn random_crashes_break_nothing() {
    let mut total = SimReport::default();
    let range = seeds(150);
    let count = range.end - range.start;
    for seed in range {
        let report = run(seed, &SimOptions::default());
        assert_holds(seed, &report);
        total.crashes += report.crashes;
        total.takeovers += report.takeovers;
        total.model_calls += report.model_calls;
        total.tool_effects += report.tool_effects;
        total.threads += report.threads;
        total.rolling_refusals += report.rolling_refusals;
        total.queued_children += report.queued_children;
        total.fallbacks += report.fallbacks;
        total.provider_suspensions += report.provider_suspensions;
        total.cancel_requests += report.cancel_requests;
        total.hooked_calls += report.hooked_calls;
        total.forks += report.forks;
    }
    // A simulation in which nothing happens holds too.
    if count >= 100 {
        assert!(total.crashes > count / 10 && total.takeovers > count / 10, "{total:?}");
        assert!(
            total.model_calls > count && total.tool_effects > count && total.threads > count,
            "{total:?}"
        );
        let rare = [
            total.rolling_refusals,
            total.queued_children,
            total.fallbacks,
            total.provider_suspensions,
            total.cancel_requests,
            total.hooked_calls,
            total.forks,
        ];
        assert!(rare.into_iter().all(|found| found > 0), "{total:?}");
    }
}

/// Dies before and after every write, or every so many, of the first calm seed that has what `is_wanted` says.
fn survive_crash_points(name: &str, stride: usize, is_wanted: impl Fn(&SimReport) -> bool) {
    let calm = SimOptions { crashes: CrashPlan::Never, bug: PlantedBug::None };
    let found = (0..400)
        .map(|seed| (seed, run(seed, &calm)))
        .find(|(_, report)| report.writes < MAX_WRITES && is_wanted(report));
    assert!(found.is_some(), "no seed with {name}");
    let Some((seed, calm)) = found else { return };
    assert_holds(seed, &calm);
    for write in (0..calm.writes).step_by(stride) {
        for is_before in [true, false] {
            let crashes = CrashPlan::At { write, is_before };
            let report = run(seed, &SimOptions { crashes, bug: PlantedBug::None });
            assert_holds(seed, &report);
            assert_eq!(report.crashes, 1, "{name}: write {write} of seed {seed}");
        }
    }
}

/// Every write when a number of seeds is asked for, as `scripts/check-simulation` does; else some, to be quick.
fn stride() -> usize {
    if std::env::var_os("RYE_SIM_SEEDS").is_some() { 1 } else { 7 }
}

/// How many writes a seed may have in which a host dies at each of them.
const MAX_WRITES: u64 = 80;

#[test]
fn every_crash_point_is_survived() {
    survive_crash_points("children and tools", 1, |report| {
        report.threads >= 3 && report.tool_effects >= 4 && report.queued_children == 0
    });
}

#[test]
fn crashes_around_budgets_and_queues_are_survived() {
    survive_crash_points("a budget of a day", stride(), |report| report.rolling_refusals > 0);
    survive_crash_points("children that queue", stride(), |report| report.queued_children > 0);
}

#[test]
fn crashes_around_outages_are_survived() {
    survive_crash_points("a fallback", stride(), |report| report.fallbacks > 0);
    survive_crash_points("no provider", stride(), |report| report.provider_suspensions > 0);
}

#[test]
fn crashes_around_people_and_hooks_are_survived() {
    survive_crash_points("a cancel request", stride(), |report| report.cancel_requests > 0);
    survive_crash_points("hooks", stride(), |report| report.hooked_calls > 1);
    survive_crash_points("a fork", stride(), |report| report.forks > 0);
}

#[test]
fn same_seed_gives_same_trace() {
    let mut events = 0;
    for seed in 0..10 {
        let (first, second) = (run(seed, &SimOptions::default()), run(seed, &SimOptions::default()));
        assert_eq!(first, second, "seed {seed}");
        events += first.trace.len();
    }
    assert!(events > 100, "{events}");
    assert_ne!(run(1, &SimOptions::default()).trace, run(2, &SimOptions::default()).trace);
}

/// How many seeds it takes until the checker finds a bug.
fn seeds_to_find(bug: PlantedBug) -> Option<u64> {
    let options = SimOptions { bug, ..SimOptions::default() };
    (0..1000).find(|seed| !run(*seed, &options).violations.is_empty())
}

#[test]
fn each_planted_bug_is_found() {
    let bugs = [
        PlantedBug::MissingFence,
        PlantedBug::ReservationAfterCall,
        PlantedBug::DoubleSettlement,
        PlantedBug::LostCancelRequest,
    ];
    for bug in bugs {
        assert!(seeds_to_find(bug).is_some(), "{bug:?}");
    }
}

#[test]
fn sqlite_store_breaks_nothing_either() {
    for seed in seeds(20) {
        let folder = temp_dir();
        let secret = ThreadSecret::new([42; 32]);
        let store = SqliteStore::open(&folder.path().join("threads"), &secret, &LedgerSpec::default());
        let store: Arc<dyn ThreadStore> = Arc::new(store.expect("a store"));
        let store = StoreHandle::from(store);
        assert_holds(seed, &simulate(seed, &SimOptions::default(), store, folder.path()));
    }
}

/// The same on a real PostgreSQL, whose address is in `RYE_TEST_POSTGRES`.
#[cfg(feature = "database")]
#[test]
fn postgres_store_breaks_nothing_either() {
    use std::time::{SystemTime, UNIX_EPOCH};

    use lillux::SecretKey;
    use rye_store_postgres::{DEFAULT_RETRY_FOR, PostgresAddress, PostgresOptions, PostgresStore, StoreKeys};
    use rye_store_sqlite::SystemProbe;

    let url = std::env::var("RYE_TEST_POSTGRES").expect("RYE_TEST_POSTGRES: run scripts/check-postgres");
    let now_ms = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        u64::try_from(since.as_millis()).expect("a time")
    };
    let mut total = SimReport::default();
    for seed in seeds(20) {
        let folder = temp_dir();
        let schema = format!("sim_{}_{seed}", std::process::id());
        let store = PostgresStore::open(PostgresOptions {
            address: PostgresAddress::parse(&url, &schema).expect("an address"),
            keys: StoreKeys::fixed(SecretKey::from_seed(&[42; 32]), []),
            rules: rye_store::LedgerRules::default(),
            probe: Arc::new(SystemProbe),
            clock: Arc::new(now_ms),
            retry_for: DEFAULT_RETRY_FOR,
            origin: String::new(),
        });
        let store: Arc<dyn ThreadStore> = Arc::new(store.expect("a store"));
        let report = simulate(seed, &SimOptions::default(), StoreHandle::from(store), folder.path());
        assert_holds(seed, &report);
        total.crashes += report.crashes;
        total.takeovers += report.takeovers;
        total.threads += report.threads;
    }
    println!(
        "on PostgreSQL: {} threads, {} crashes, {} takeovers",
        total.threads, total.crashes, total.takeovers
    );
}
