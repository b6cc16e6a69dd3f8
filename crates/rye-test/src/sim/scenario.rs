//! What a seed has besides threads and crashes: budgets of a day, outages of providers, hooks, a fallback model.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use rye_store::RollingBudget;
use rye_thread::money::Nanos;
use rye_thread::rolling::{PeriodCaps, RollingCaps, TimeZone};

use super::rng::SimRng;
use super::templates::{CHILD_DIRECTIVE, TemplateKind};
use super::world::lock;

/// Where most simulations begin, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_767_323_045_000;

/// A midnight in UTC: some simulations begin shortly before it, so that a day ends in the middle.
const MIDNIGHT_MS: u64 = 1_767_398_400_000;

/// The project that all threads are of.
const PROJECT: &str = "/sim";

/// What one seed has.
pub(super) struct Scenario {
    /// When it begins.
    pub(super) epoch_ms: u64,
    /// Which hooks are around calls.
    pub(super) hooks: TemplateKind,
    /// Whether there is a second model behind the first.
    pub(super) has_fallback: bool,
    /// Budgets of a day; a person may raise them.
    caps: Mutex<RollingCaps>,
    /// When each provider does not answer, in milliseconds since the beginning.
    outages: [Option<Range<u64>>; 2],
    /// How many times a person asks for the end of a thread.
    pub(super) cancel_count: u64,
    /// How many forks there may be.
    pub(super) forks_left: Mutex<u64>,
}

impl Scenario {
    pub(super) fn new(rng: &SimRng) -> Self {
        let is_late = rng.chance(300);
        let epoch_ms = if is_late { MIDNIGHT_MS - rng.range(5_000, 300_000) } else { EPOCH_MS };
        let hooks = match rng.below(10) {
            0 | 1 => TemplateKind::ToolHooks,
            2 => TemplateKind::ModelHooks,
            _ => TemplateKind::Plain,
        };
        let has_fallback = rng.chance(400);
        let caps = if rng.chance(500) { rolling_caps(rng) } else { RollingCaps::default() };
        let outage = || {
            rng.chance(250).then(|| {
                let start = rng.range(0, 60_000);
                start..start + rng.range(5_000, 600_000)
            })
        };
        let outages = [outage(), outage()];
        let cancel_count = if rng.chance(250) { rng.range(1, 2) } else { 0 };
        Self {
            epoch_ms,
            hooks,
            has_fallback,
            caps: Mutex::new(caps),
            outages,
            cancel_count,
            forks_left: Mutex::new(u64::from(rng.chance(200))),
        }
    }

    /// The budgets that spending by `directives` counts against now.
    pub(super) fn budgets(&self, directives: &[String], at_ms: u64) -> Vec<RollingBudget> {
        let caps = lock(&self.caps);
        if caps.is_empty() {
            return Vec::new();
        }
        caps.budgets(Some(PROJECT), directives, at_ms, &TimeZone::UTC).expect("a calendar")
    }

    /// A person allows more a day.
    pub(super) fn raise_budgets(&self, more: Nanos) {
        let mut caps = lock(&self.caps);
        let raise = |caps: &mut PeriodCaps| caps.day = caps.day.map(|day| day.plus(more));
        raise(&mut caps.user);
        raise(&mut caps.project);
        caps.directives.values_mut().for_each(raise);
    }

    /// Whether a provider answers nothing at this moment.
    pub(super) fn is_down(&self, provider: usize, now_ms: u64) -> bool {
        let since = now_ms.saturating_sub(self.epoch_ms);
        self.outages.get(provider).and_then(Option::as_ref).is_some_and(|outage| outage.contains(&since))
    }
}

/// Budgets of a day that may be too small for what is simulated.
fn rolling_caps(rng: &SimRng) -> RollingCaps {
    let day = |rng: &SimRng, low: u64, high: u64| PeriodCaps {
        day: Some(Nanos(rng.range(low, high))),
        ..PeriodCaps::default()
    };
    let project = if rng.chance(300) { day(rng, 30_000, 600_000) } else { PeriodCaps::default() };
    let directives = match rng.chance(400) {
        true => BTreeMap::from([(CHILD_DIRECTIVE.to_owned(), day(rng, 20_000, 200_000))]),
        false => BTreeMap::new(),
    };
    RollingCaps { user: day(rng, 30_000, 800_000), project, directives, time_zone: None }
}
