//! Durations as configuration files write them.

/// The longest duration: one day. No delay or timeout of a thread needs more.
const MAX_MILLISECONDS: f64 = 86_400_000.0;

/// Seconds as files write them, in milliseconds.
#[must_use]
pub fn milliseconds(seconds: f64) -> u64 {
    let milliseconds = (seconds * 1000.0).round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped right here")]
    if milliseconds.is_finite() { milliseconds.clamp(0.0, MAX_MILLISECONDS) as u64 } else { 0 }
}
