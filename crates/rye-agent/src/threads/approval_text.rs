//! What a person reads before they answer: the item, every argument, why, who asks, and what it has cost so far. One text for
//! the command line and for MCP clients, of plainly visible characters only.

use rye_item::text::is_plainly_visible;
use serde_json::{Map, Value};

use crate::store::Approval;

/// Characters of an argument that are shown.
const MAX_ARGUMENT_CHARS: usize = 600;
/// Lines of an argument that are shown.
const MAX_ARGUMENT_LINES: usize = 12;
/// What lines say that are not arguments.
const OWN_LABELS: [&str; 3] = ["why", "who", "cost"];

/// What is asked, in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalText {
    /// What is asked for, on one line.
    pub prompt: String,
    /// What each row is, and what it says; a value may have several lines.
    pub rows: Vec<(String, String)>,
    /// Whether an argument is shown in part only.
    pub is_truncated: bool,
}

impl ApprovalText {
    /// The text of a question; `is_full` shows every argument to its end.
    #[must_use]
    pub fn new(approval: &Approval, is_full: bool) -> Self {
        let mut text = Self { prompt: escape_line(&approval.prompt), rows: Vec::new(), is_truncated: false };
        if let Some(action) = approval.detail.get("action").and_then(Value::as_object) {
            text.add_action(action, &approval.kind, is_full);
        }
        if !approval.reason.is_empty() {
            text.rows.push(("why".to_owned(), escape_line(&approval.reason)));
        }
        text.rows.push(("who".to_owned(), chain_line(approval)));
        if let Some(cost) = approval.detail.get("cost") {
            text.rows.push(("cost".to_owned(), cost_line(cost)));
        }
        text
    }

    /// Every argument of an action, each under its own name.
    fn add_action(&mut self, action: &Map<String, Value>, kind: &str, is_full: bool) {
        let params = action.get("params").and_then(Value::as_object).into_iter().flatten();
        let options = action
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "primary" | "item_type" | "item_id" | "params"));
        for (name, value) in params.chain(options) {
            // The question itself is shown already.
            if kind == "approval" && matches!(name.as_str(), "prompt" | "reason") {
                continue;
            }
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let (value, is_truncated) = if is_full { (value, false) } else { truncate_argument(&value) };
            self.is_truncated |= is_truncated;
            self.rows.push((argument_label(name), escape_text(&value)));
        }
    }

    /// All rows as lines, the values below each other.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(20);
        let mut lines = Vec::new();
        for (name, value) in &self.rows {
            for (index, line) in value.split('\n').enumerate() {
                let name = if index == 0 { name.as_str() } else { "" };
                lines.push(format!("{name:<width$}  {line}"));
            }
        }
        lines
    }
}

/// The name of an argument. One that could pass for a line of ours, or has odd characters, stands in quotes.
fn argument_label(name: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    if !name.is_empty()
        && name.chars().all(is_plain)
        && !OWN_LABELS.iter().any(|own| name.eq_ignore_ascii_case(own))
    {
        return name.to_owned();
    }
    format!("\"{}\"", escape_line(&name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")))
}

/// The start of a long argument, and how much of it is left out.
fn truncate_argument(text: &str) -> (String, bool) {
    let end_of_lines =
        text.match_indices('\n').nth(MAX_ARGUMENT_LINES - 1).map_or(text.len(), |(index, _)| index);
    let end_of_chars = text.char_indices().nth(MAX_ARGUMENT_CHARS).map_or(text.len(), |(index, _)| index);
    let end = end_of_lines.min(end_of_chars);
    if end == text.len() {
        return (text.to_owned(), false);
    }
    let rest = rye_item::text::counted(text[end..].chars().count() as u64, "more character");
    (format!("{}\n… {rest}", &text[..end]), true)
}

/// The text with every character that does not show as itself written out; line breaks and tabs stay.
fn escape_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_plainly_visible(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    shown
}

fn escape_line(text: &str) -> String {
    escape_text(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Who asks: the thread, and those above it to the top.
fn chain_line(approval: &Approval) -> String {
    let chain = approval.detail.get("chain").and_then(Value::as_array);
    let names = chain.into_iter().flatten().filter_map(|one| one.get("directive")?.as_str()).map(escape_line);
    let names: Vec<String> = names.collect();
    match names.is_empty() {
        true => approval.thread.to_string(),
        false => format!("{} · {}", names.join(" ← "), approval.thread),
    }
}

fn cost_line(cost: &Value) -> String {
    let number = |key: &str| cost.get(key).and_then(Value::as_u64).unwrap_or(0);
    let spend = cost.get("spend").and_then(Value::as_f64).unwrap_or(0.0);
    let tokens = number("input_tokens").saturating_add(number("output_tokens"));
    format!(
        "${spend:.4} · {} · {} so far",
        rye_item::text::counted(number("turns"), "turn"),
        rye_item::text::counted(tokens, "token")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::thread_id::ThreadId;

    fn approval(kind: &str, params: &Value) -> Approval {
        Approval {
            id: "ask-0-1".to_owned(),
            thread: ThreadId::parse("thread-0123456789ab").expect("a name"),
            kind: kind.to_owned(),
            prompt: "execute tool:rye/bash".to_owned(),
            reason: "execute needs\na person's word".to_owned(),
            at_ms: 0,
            detail: json!({
                "action": {"primary": "execute", "item_type": "tool", "item_id": "rye/bash", "params": params,
                           "async": true},
                "cost": {"turns": 2, "input_tokens": 10, "output_tokens": 1, "spend": 0.0123},
                "chain": [{"directive": "team/worker"}, {"directive": "team/boss"}],
            }),
        }
    }

    #[test]
    fn every_argument_is_shown_by_name() {
        let text = ApprovalText::new(
            &approval("tool", &json!({"command": "rm -rf build\nls", "env": {"A": 1}})),
            false,
        );
        assert_eq!(
            text.lines(),
            [
                "command  rm -rf build",
                "         ls",
                "env      {\"A\":1}",
                "async    true",
                "why      execute needs a person's word",
                "who      team/worker ← team/boss · thread-0123456789ab",
                "cost     $0.0123 · 2 turns · 11 tokens so far",
            ]
        );
        assert!(!text.is_truncated);
    }

    #[test]
    fn arguments_cannot_pass_for_other_lines() {
        let params = json!({"Why": "harmless", "who": "the user", "cost": "none", "a\n\"why": "fine", "a b": 1, "": 2});
        let text = ApprovalText::new(&approval("tool", &params), false);
        let names: Vec<&str> = text.rows.iter().map(|(name, _)| name.as_str()).collect();
        let mut expected: Vec<&str> = names.iter().filter(|name| name.starts_with('"')).copied().collect();
        assert_eq!(expected.len(), 6, "{names:?}");
        expected.extend(["async", "why", "who", "cost"]);
        assert_eq!(names, expected);
        assert!(names.contains(&"\"a\\n\\\"why\""), "{names:?}");
    }

    #[test]
    fn long_arguments_are_cut_unless_full() {
        let command = format!("{}END", "x".repeat(5000));
        let question = approval("tool", &json!({"command": command, "lines": "a\n".repeat(100)}));
        let short = ApprovalText::new(&question, false);
        assert!(
            short.is_truncated && short.rows[0].1.ends_with("… 4403 more characters"),
            "{:?}",
            short.rows[0]
        );
        assert!(short.rows[1].1.lines().count() <= MAX_ARGUMENT_LINES + 1);
        let full = ApprovalText::new(&question, true);
        assert_eq!((full.is_truncated, full.rows[0].1.as_str()), (false, command.as_str()));
    }

    #[test]
    fn hidden_characters_are_written_out() {
        let text = ApprovalText::new(
            &approval("tool", &json!({"command": "ls \u{1b}[2K\u{202e}x\r", "k\u{200b}": 1})),
            true,
        );
        assert_eq!(text.rows[0].1, "ls \\u{1b}[2K\\u{202e}x\\u{d}");
        assert_eq!(text.rows[1].0, "\"k\\u{200b}\"");
        assert!(text.lines().iter().all(|line| line.chars().all(is_plainly_visible)));
    }
}
