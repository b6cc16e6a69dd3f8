//! A unified diff of bounded size, for answers.

use std::time::Duration;

use similar::TextDiff;

use crate::display::push_truncated;

const MAX_LINES: usize = 400;
const MAX_BYTES: usize = 32 * 1024;
const MAX_LINE_CHARS: usize = 500;
/// After this the diff is coarser, but still true.
const DIFF_TIMEOUT: Duration = Duration::from_secs(2);

/// The diff from `old` to `new`, and whether it was cut.
#[must_use]
pub fn unified_diff(path: &str, old: &str, new: &str) -> (String, bool) {
    if old == new {
        return (String::new(), false);
    }
    let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let mut out = format!("--- a/{path}\n+++ b/{path}\n");
    let mut line_count = 0;
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        for line in hunk.to_string().split_terminator('\n') {
            if line_count >= MAX_LINES || out.len() >= MAX_BYTES {
                out.push_str("… the rest of the diff is left out\n");
                return (out, true);
            }
            push_truncated(&mut out, line, MAX_LINE_CHARS);
            out.push('\n');
            line_count += 1;
        }
    }
    (out, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_shows_changed_lines() {
        assert_eq!(
            unified_diff("f", "a\nb\nc", "a\nB\nc"),
            (
                "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n\\ No newline at end of file\n"
                    .to_owned(),
                false
            )
        );
        assert_eq!(unified_diff("f", "a", "a"), (String::new(), false));
    }

    #[test]
    fn large_diff_is_truncated() {
        let new: String = (0..10_000).map(|number| format!("{number}\n")).collect();
        let (text, is_cut) = unified_diff("f", "", &new);
        assert!(is_cut && text.lines().count() < MAX_LINES + 5 && text.ends_with("left out\n"));
        let (text, is_cut) = unified_diff("f", "", &"x".repeat(1_000_000));
        assert!(!is_cut && text.len() < 2000, "{}", text.len());
    }
}
