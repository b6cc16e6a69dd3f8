//! Moments in UTC as text.

use jiff::{SignedDuration, civil};

/// The moment `seconds` after 1970, as `2026-01-02T03:04:05Z`; `None` after the year 9999.
#[must_use]
pub fn utc_seconds(seconds: u64) -> Option<String> {
    let duration = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
    let moment = civil::date(1970, 1, 1).at(0, 0, 0, 0).checked_add(duration).ok()?;
    Some(format!("{moment}Z"))
}

/// A moment in UTC, to the millisecond: `2026-01-02T03:04:05.678Z`.
#[must_use]
pub fn iso_timestamp(at_ms: u64) -> String {
    let Some(seconds) = utc_seconds(at_ms / 1000) else {
        return "9999-12-31T23:59:59.999Z".to_owned();
    };
    let seconds = seconds.trim_end_matches('Z');
    let mut timestamp = String::with_capacity(seconds.len() + 5);
    timestamp.push_str(seconds);
    timestamp.push('.');
    let thousandths = at_ms % 1000;
    timestamp.extend([100, 10, 1].map(|divisor| char::from(b'0' + (thousandths / divisor % 10) as u8)));
    timestamp.push('Z');
    timestamp
}

/// The milliseconds since 1970 of a timestamp that [`iso_timestamp`] wrote; `None` for any other text.
#[must_use]
pub fn parse_iso_timestamp(text: &str) -> Option<u64> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}
