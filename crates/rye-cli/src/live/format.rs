//! Numbers, times and values in few words. What comes from outside leaves here without anything a terminal could obey.

use rye_agent::money::Nanos;
use serde_json::Value;

pub use rye_agent::views::truncate;

/// The longest value of an argument that is shown.
const MAX_VALUE_LENGTH: usize = 40;

/// `12 ms`, `1.2 s`, `2m 05s`, `3h 07m`, `4 d`.
pub fn format_duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..=59 => format!("{seconds}.{} s", ms % 1000 / 100),
        60..=3599 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..=172_799 => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// How long ago, roughly: `now`, `12 s`, `2m 05s`, ….
pub fn format_age(ms: u64) -> String {
    match ms / 1000 {
        0 => "now".to_owned(),
        seconds @ 1..=59 => format!("{seconds} s"),
        _ => format_duration(ms),
    }
}

/// `1,234,567`.
pub fn format_count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 turn`, `3 turns`.
pub fn pluralize(number: u64, word: &str) -> String {
    let suffix = if number == 1 { "" } else { "s" };
    format!("{} {word}{suffix}", format_count(number))
}

/// `$0.0031`: rounded to four places, which are enough to look at; the whole amount is in JSON.
pub fn format_money(money: Nanos) -> String {
    const NANOS_PER_TICK: u64 = 100_000;
    match money.0 {
        0 => "$0".to_owned(),
        1..NANOS_PER_TICK => "<$0.0001".to_owned(),
        nanos => {
            let ticks = nanos.saturating_add(NANOS_PER_TICK / 2) / NANOS_PER_TICK;
            let (whole, rest) = (ticks / 10_000, ticks % 10_000);
            let rest = format!("{rest:04}");
            let rest = rest.trim_end_matches('0');
            format!("${whole}.{rest:0<2}")
        }
    }
}

/// As [`truncate`], for what a person answers: nothing in it is hidden.
pub fn truncate_question(text: &str, max: usize) -> String {
    truncate(&rye_item::text::reveal_hidden(&rye_item::text::strip_controls(text)), max)
}

/// `path=notes.txt limit=5`: a call's arguments.
pub fn format_arguments(input: &Value, max: usize) -> String {
    let Value::Object(fields) = input else {
        return String::new();
    };
    let mut output = String::new();
    for (name, value) in fields {
        let value = match value {
            Value::String(text) => truncate(text, MAX_VALUE_LENGTH),
            other => truncate(&other.to_string(), MAX_VALUE_LENGTH),
        };
        if !output.is_empty() {
            output.push(' ');
        }
        output.push_str(&format!("{}={value}", truncate(name, MAX_VALUE_LENGTH)));
        if output.chars().count() > max {
            break;
        }
    }
    truncate(&output, max)
}

/// What a failed call says, without its envelope.
pub fn error_message(content: &str, max: usize) -> String {
    let inner = serde_json::from_str::<Value>(content).ok();
    let inner = inner.as_ref().and_then(|value| value.get("error")).and_then(Value::as_str);
    truncate(inner.unwrap_or(content), max)
}

/// Milliseconds since 1970 of a moment as the store writes it: `2026-01-02T03:04:05.678Z`, or without the fraction.
pub fn parse_timestamp_ms(timestamp: &str) -> Option<u64> {
    let moment: jiff::Timestamp = timestamp.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_use_the_fitting_unit() {
        let texts = [0, 999, 1000, 59_999, 60_000, 3_600_000, 172_800_000].map(format_duration);
        assert_eq!(texts, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1m 00s", "1h 00m", "2 d"]);
    }

    #[test]
    fn numbers_are_grouped_and_money_is_rounded() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([pluralize(1, "turn"), pluralize(2, "turn")], ["1 turn", "2 turns"]);
        let texts =
            [0, 99_999, 3_100_000, 1_000_000_000, 1_999_999_999].map(|nanos| format_money(Nanos(nanos)));
        assert_eq!(texts, ["$0", "<$0.0001", "$0.0031", "$1.00", "$2.00"]);
    }

    #[test]
    fn truncated_text_has_no_control_characters() {
        assert_eq!(truncate("a\n\u{1b}[2Jb   c", 10), "a b c");
        assert_eq!(truncate("abcdef", 3), "abc…");
        assert_eq!(truncate(&" ".repeat(1000), 3), "…");
        let shown = format_arguments(&json!({"path": "a\u{1b}]0;x\u{7}b", "limit": 5}), 60);
        assert_eq!(shown, "path=ab limit=5");
        assert_eq!(format_arguments(&json!({"text": "x".repeat(100)}), 20), "text=xxxxxxxxxxxxxxx…");
    }

    #[test]
    fn timestamps_round_trip() {
        assert_eq!(parse_timestamp_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_timestamp_ms("2000-02-29T12:00:01.500Z"), Some(951_825_601_500));
        for at_ms in [0, 951_782_400_123, 1_767_225_599_999, 4_102_444_800_000] {
            assert_eq!(parse_timestamp_ms(&rye_agent::transcript::iso_timestamp(at_ms)), Some(at_ms));
        }
        assert_eq!(["", "soon", "2026-13-01T00:00:00Z"].map(parse_timestamp_ms), [None; 3]);
    }

    #[test]
    fn error_message_drops_the_envelope() {
        assert_eq!(error_message(r#"{"status":"error","error":"no such file"}"#, 80), "no such file");
        assert_eq!(error_message("boom\nagain", 80), "boom again");
    }
}
