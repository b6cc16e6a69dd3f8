//! What an installer said last, fit to be shown: no control characters, no secrets, not too much.

use rye_item::text::one_line;

use crate::http::Secrets;

/// How many lines are shown.
const MAX_LINES: usize = 15;
/// And how long each may be.
const MAX_LINE_LENGTH: usize = 400;
const HIDDEN_TEXT: &str = "[hidden]";

/// The last lines an installer printed, without the credentials of indexes.
#[must_use]
pub fn last_lines(stdout: &str, stderr: &str, secrets: &Secrets) -> Vec<String> {
    let lines = stdout.lines().chain(stderr.lines()).map(|line| one_line(line.trim_end()));
    let lines: Vec<String> = lines.filter(|line| !line.trim().is_empty()).collect();
    let tail = lines.iter().skip(lines.len().saturating_sub(MAX_LINES)).map(|line| {
        let line = secrets.redact(&strip_credentials(line));
        line.chars().take(MAX_LINE_LENGTH).collect()
    });
    tail.collect()
}

/// A text whose addresses name no user and no password.
fn strip_credentials(text: &str) -> String {
    let mut stripped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        stripped.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c)).unwrap_or(after.len());
        // A password may hold what ends an address elsewhere: up to the last `@` before a blank it is hidden as well.
        let word = after.find(char::is_whitespace).unwrap_or(after.len());
        match after[..end].rfind('@').or_else(|| after[..word].find('@')) {
            Some(at) => {
                stripped.push_str(HIDDEN_TEXT);
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    stripped.push_str(rest);
    stripped
}

/// Whether an installer refused a package because its hash is not the pinned one.
#[must_use]
pub fn is_hash_mismatch(printed: &str) -> bool {
    const WORDS: [&str; 5] = [
        "THESE PACKAGES DO NOT MATCH THE HASHES",
        "Hash mismatch for",
        "hash mismatch",
        "EINTEGRITY",
        "No matching hash",
    ];
    WORDS.iter().any(|words| printed.contains(words))
}
