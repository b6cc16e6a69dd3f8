//! Numbers, times and values in few words. What comes from outside leaves here without anything a terminal could obey.

use rye_agent::money::Nanos;
use serde_json::Value;

/// The longest value of an argument that is shown.
const LONGEST_VALUE: usize = 40;

/// `12 ms`, `1.2 s`, `2m 05s`, `3h 07m`, `4 d`.
pub fn duration(ms: u64) -> String {
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
pub fn ago(ms: u64) -> String {
    match ms / 1000 {
        0 => "now".to_owned(),
        seconds @ 1..=59 => format!("{seconds} s"),
        _ => duration(ms),
    }
}

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// `1 turn`, `3 turns`.
pub fn several(number: u64, word: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {word}{end}", count(number))
}

/// `$0.0031`: four places are enough to look at; the whole amount is in JSON.
pub fn amount(money: Nanos) -> String {
    const PLACE: u64 = 100_000;
    match money.0 {
        0 => "$0".to_owned(),
        1..PLACE => "<$0.0001".to_owned(),
        nanos => {
            let places = nanos / PLACE;
            let (whole, rest) = (places / 10_000, places % 10_000);
            let rest = format!("{rest:04}");
            let rest = rest.trim_end_matches('0');
            format!("${whole}.{rest:0<2}")
        }
    }
}

/// One line of at most `most` characters.
pub fn short(text: &str, most: usize) -> String {
    // A text may be huge: only its beginning is looked at, and enough of it to know that there is more.
    let begin: String = text.chars().take(most.saturating_mul(4).saturating_add(64)).collect();
    let line = rye_item::text::one_line(&begin);
    let is_cut = begin.len() < text.len();
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None if is_cut => format!("{line}…"),
        None => line,
    }
}

/// `path=notes.txt limit=5`: a call's arguments.
pub fn arguments(input: &Value, most: usize) -> String {
    let Value::Object(fields) = input else {
        return String::new();
    };
    let mut shown = String::new();
    for (name, value) in fields {
        let value = match value {
            Value::String(text) => short(text, LONGEST_VALUE),
            other => short(&other.to_string(), LONGEST_VALUE),
        };
        if !shown.is_empty() {
            shown.push(' ');
        }
        shown.push_str(&format!("{}={value}", short(name, LONGEST_VALUE)));
        if shown.chars().count() > most {
            break;
        }
    }
    short(&shown, most)
}

/// What a failed call says, without its envelope.
pub fn failure(content: &str, most: usize) -> String {
    let inner = serde_json::from_str::<Value>(content).ok();
    let inner = inner.as_ref().and_then(|value| value.get("error")).and_then(Value::as_str);
    short(inner.unwrap_or(content), most)
}

/// Milliseconds since 1970 of a moment as the store writes it: `2026-01-02T03:04:05.678Z`, or without the fraction.
pub fn unix_ms(moment: &str) -> Option<u64> {
    let number = |from: usize, to: usize| moment.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let ms = number(20, 23).unwrap_or(0);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the day that is sometimes there comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let shown = [0, 999, 1000, 59_999, 60_000, 3_600_000, 172_800_000].map(duration);
        assert_eq!(shown, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1m 00s", "1h 00m", "2 d"]);
    }

    #[test]
    fn numbers_have_groups_and_money_four_places() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([several(1, "turn"), several(2, "turn")], ["1 turn", "2 turns"]);
        let shown = [0, 99_999, 3_100_000, 1_000_000_000, 1_999_999_999].map(|nanos| amount(Nanos(nanos)));
        assert_eq!(shown, ["$0", "<$0.0001", "$0.0031", "$1.00", "$1.9999"]);
    }

    #[test]
    fn a_text_is_one_line_without_anything_a_terminal_obeys() {
        assert_eq!(short("a\n\u{1b}[2Jb   c", 10), "a b c");
        assert_eq!(short("abcdef", 3), "abc…");
        assert_eq!(short(&" ".repeat(1000), 3), "…");
        let shown = arguments(&json!({"path": "a\u{1b}]0;x\u{7}b", "limit": 5}), 60);
        assert_eq!(shown, "path=ab limit=5");
        assert_eq!(arguments(&json!({"text": "x".repeat(100)}), 20), "text=xxxxxxxxxxxxxxx…");
    }

    #[test]
    fn moments_are_read_back() {
        assert_eq!(unix_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(unix_ms("2000-02-29T12:00:01.500Z"), Some(951_825_601_500));
        for at_ms in [0, 951_782_400_123, 1_767_225_599_999, 4_102_444_800_000] {
            assert_eq!(unix_ms(&rye_agent::transcript::iso(at_ms)), Some(at_ms));
        }
        assert_eq!(["", "soon", "2026-13-01T00:00:00Z"].map(unix_ms), [None; 3]);
    }

    #[test]
    fn a_failure_is_told_without_its_envelope() {
        assert_eq!(failure(r#"{"status":"error","error":"no such file"}"#, 80), "no such file");
        assert_eq!(failure("boom\nagain", 80), "boom again");
    }
}
