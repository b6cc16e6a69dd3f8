//! Texts in few words.

/// One line of at most `max` characters.
#[must_use]
pub fn truncate(text: &str, max: usize) -> String {
    // A text may be huge: only its beginning is looked at, and enough of it to know that there is more.
    let begin: String = text.chars().take(max.saturating_mul(4).saturating_add(64)).collect();
    let line = rye_item::text::one_line(&begin);
    let is_cut = begin.len() < text.len();
    match line.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None if is_cut => format!("{line}…"),
        None => line,
    }
}
