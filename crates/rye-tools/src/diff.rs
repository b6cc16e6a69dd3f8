//! A unified diff of bounded size, for answers.

use std::time::Duration;

use similar::TextDiff;

use crate::show::push_cut;

const MOST_LINES: usize = 400;
const MOST_BYTES: usize = 32 * 1024;
const LINE_LIMIT: usize = 500;
/// After this the diff is coarser, but still true.
const PATIENCE: Duration = Duration::from_millis(200);

/// The diff from `old` to `new`, and whether it was cut.
#[must_use]
pub fn unified(path: &str, old: &str, new: &str) -> (String, bool) {
    if old == new {
        return (String::new(), false);
    }
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let mut out = format!("--- a/{path}\n+++ b/{path}\n");
    let mut shown = 0;
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        for line in hunk.to_string().split_terminator('\n') {
            if shown >= MOST_LINES || out.len() >= MOST_BYTES {
                out.push_str("… the rest of the diff is left out\n");
                return (out, true);
            }
            push_cut(&mut out, line, LINE_LIMIT);
            out.push('\n');
            shown += 1;
        }
    }
    (out, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_what_changed() {
        assert_eq!(
            unified("f", "a\nb\nc", "a\nB\nc"),
            (
                "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n\\ No newline at end of file\n"
                    .to_owned(),
                false
            )
        );
        assert_eq!(unified("f", "a", "a"), (String::new(), false));
    }

    #[test]
    fn a_large_diff_is_cut() {
        let new: String = (0..10_000).map(|number| format!("{number}\n")).collect();
        let (text, is_cut) = unified("f", "", &new);
        assert!(is_cut && text.lines().count() < MOST_LINES + 5 && text.ends_with("left out\n"));
        let (text, is_cut) = unified("f", "", &"x".repeat(1_000_000));
        assert!(!is_cut && text.len() < 2000, "{}", text.len());
    }
}
