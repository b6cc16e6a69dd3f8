//! How long a thread has been at work, whatever the wall clock does.
//!
//! Records carry the wall clock's time. Where it was set, or where another process took the thread over, the time since
//! the last event is recorded beside it, as [`ThreadEvent::ClockChanged`].

use super::{MillisClock, ThreadDriver};
use crate::machine::{ThreadEvent, ThreadState};
use crate::status::ThreadStatus;

/// How far the wall clock may be from the monotonic one before it counts as set.
const MAX_CLOCK_DRIFT_MS: u64 = 1000;

/// The most that is counted between the last record of a process that died and the first of the next.
const MAX_INTERRUPTION_MS: u64 = 60_000;

/// The clocks as a driver last read them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkTimer {
    /// The wall clock and the monotonic one, when they were last compared or the wall clock was last set.
    anchor: Option<(u64, u64)>,
    /// The monotonic clock at the last event.
    event_ms: u64,
}

impl WorkTimer {
    /// The milliseconds at work since the last event, if the wall clock does not tell them. Call it once per event.
    fn clock_change(&mut self, state: &ThreadState, wall_ms: u64, monotonic_ms: u64) -> Option<u64> {
        let since_event = monotonic_ms.saturating_sub(self.event_ms);
        self.event_ms = monotonic_ms;
        let Some((anchor_wall, anchor_monotonic)) = self.anchor else {
            self.anchor = Some((wall_ms, monotonic_ms));
            return first_change(state, wall_ms);
        };
        let expected_wall = anchor_wall.saturating_add(monotonic_ms.saturating_sub(anchor_monotonic));
        if expected_wall.abs_diff(wall_ms) <= MAX_CLOCK_DRIFT_MS {
            return None;
        }
        self.anchor = Some((wall_ms, monotonic_ms));
        Some(since_event)
    }

    /// Milliseconds at work, now.
    pub(super) fn elapsed_ms(&self, state: &ThreadState, clock: &dyn MillisClock) -> u64 {
        match state.status() {
            ThreadStatus::Running if !state.is_waiting_for_budget() => {
                let since_event = clock.monotonic_ms().saturating_sub(self.event_ms);
                state.cost.elapsed_ms.saturating_add(since_event)
            }
            _ => state.cost.elapsed_ms,
        }
    }
}

/// The same for the first event in this process: there is only the time of the last record to compare with.
fn first_change(state: &ThreadState, wall_ms: u64) -> Option<u64> {
    let last_ms = state.last_event_ms();
    match state.status() {
        ThreadStatus::Created => None,
        _ if wall_ms < last_ms => Some(0),
        ThreadStatus::Running if wall_ms - last_ms > MAX_INTERRUPTION_MS => Some(MAX_INTERRUPTION_MS),
        _ => None,
    }
}

impl ThreadDriver {
    /// The event that comes first if the wall clock does not tell how long the thread has been at work.
    pub(super) fn clock_change(&mut self, at_ms: u64) -> Option<ThreadEvent> {
        let monotonic_ms = self.deps.clock.monotonic_ms();
        let elapsed_ms = self.timer.clock_change(&self.state, at_ms, monotonic_ms)?;
        Some(ThreadEvent::ClockChanged { elapsed_ms })
    }
}
