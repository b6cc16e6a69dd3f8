//! What a schedule does now: pure, from its times, what it did before, and the clock.

use super::{MissedPolicy, OverlapPolicy, Schedule, ScheduleState, ScheduleTimes};

/// A time that is served later than this was missed.
pub const LATE_AFTER_MS: u64 = 10 * 60_000;

/// How many missed times are counted; beyond it they are only told to be more.
const MAX_COUNTED: u64 = 1000;

/// How far beyond the clock a time may have been served: more than a clock is off that is set by hand or by a server.
const MAX_AHEAD_MS: u64 = 10 * 60_000;

/// Follows a clock that was set back: a last time that lies further in the future than the next one no longer counts, and is
/// returned. Once the clock is past that time it counts again, as the clock may have been behind rather than ahead before.
pub fn follow_clock(times: &ScheduleTimes, state: &mut ScheduleState, now_ms: u64) -> Option<u64> {
    if let Some(ahead_ms) = state.ahead_ms.filter(|ahead_ms| *ahead_ms <= now_ms) {
        state.served_ms = state.served_ms.max(ahead_ms);
        state.ahead_ms = None;
    }
    let next_ms = times.next_after(now_ms)?;
    let served_ms = state.served_ms;
    if served_ms <= next_ms.max(now_ms.saturating_add(MAX_AHEAD_MS)) {
        return None;
    }
    state.ahead_ms = state.ahead_ms.max(Some(served_ms));
    state.served_ms = now_ms;
    Some(served_ms)
}

/// How many runs were missed, in words.
#[must_use]
pub fn format_missed_count(missed: u64) -> String {
    let most = MAX_COUNTED - 1;
    match missed {
        1 => "1 run".to_owned(),
        few if few < most => format!("{few} runs"),
        _ => format!("more than {most} runs"),
    }
}

/// What a schedule does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedRun {
    /// Nothing is due.
    Wait {
        /// When something is, if ever.
        next_ms: Option<u64>,
    },
    /// A thread starts.
    Start {
        /// The time it starts for.
        due_ms: u64,
        /// Earlier times that nothing started for.
        missed: u64,
    },
    /// Nothing starts: the last thread has not ended.
    Overlap {
        /// The time that was due.
        due_ms: u64,
        /// Earlier times that nothing started for.
        missed: u64,
        /// Whether a thread starts when the last one has ended.
        is_queued: bool,
    },
    /// Nothing starts: the times are too long ago.
    Missed {
        /// The last of them.
        due_ms: u64,
        /// How many.
        missed: u64,
    },
}

/// What a schedule does at a moment. `is_last_running` says whether its last thread has not ended.
#[must_use]
pub fn plan(
    schedule: &Schedule,
    times: &ScheduleTimes,
    state: &ScheduleState,
    now_ms: u64,
    is_last_running: bool,
) -> PlannedRun {
    if schedule.paused {
        return PlannedRun::Wait { next_ms: None };
    }
    // A time at or before the last one that was served never comes again, whatever the clock says.
    let mut served_ms = state.served_ms.max(schedule.added_ms);
    let (mut due_ms, mut count) = (None, 0);
    while let Some(next) = times.next_after(served_ms).filter(|next| *next <= now_ms) {
        (due_ms, served_ms) = (Some(next), next);
        count += 1;
        if count >= MAX_COUNTED {
            // The rest is not counted one by one.
            let last = last_before(times, now_ms, next);
            (due_ms, served_ms) = (Some(last), last);
            break;
        }
    }
    let Some(due_ms) = due_ms else {
        return match state.queued_ms {
            Some(due_ms) if !is_last_running => PlannedRun::Start { due_ms, missed: 0 },
            _ => PlannedRun::Wait { next_ms: times.next_after(served_ms) },
        };
    };
    let is_late = now_ms.saturating_sub(due_ms) > LATE_AFTER_MS;
    if is_late && schedule.missed == MissedPolicy::Skip {
        return PlannedRun::Missed { due_ms, missed: count };
    }
    let missed = count - 1;
    match schedule.overlap {
        OverlapPolicy::Skip if is_last_running => PlannedRun::Overlap { due_ms, missed, is_queued: false },
        OverlapPolicy::Queue if is_last_running => PlannedRun::Overlap { due_ms, missed, is_queued: true },
        OverlapPolicy::Skip | OverlapPolicy::Queue | OverlapPolicy::Allow => {
            PlannedRun::Start { due_ms, missed }
        }
    }
}

/// The last time at or before a moment, from `known` on.
fn last_before(times: &ScheduleTimes, now_ms: u64, known: u64) -> u64 {
    let (mut low, mut last) = (known, known);
    let mut high = now_ms;
    // Halving finds it: the next time after a moment is never before that of an earlier one.
    while low < high {
        let middle = low + (high - low) / 2;
        match times.next_after(middle).filter(|next| *next <= now_ms) {
            Some(next) => {
                last = next;
                low = next;
            }
            None => high = middle,
        }
    }
    last
}
