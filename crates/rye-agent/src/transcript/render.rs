//! A transcript as a page to read.

use std::fmt::Write;

use serde_json::Value;

use super::Event;
use crate::cost::Cost;
use crate::status::Status;

/// The longest page.
const MOST_PAGE: usize = 4 << 20;
/// The longest result of a tool on it.
const MOST_RESULT: usize = 2000;
/// The longest text in a tool's input.
const MOST_INPUT: usize = 500;

/// What a page says about its thread.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// The directive.
    pub directive: &'a str,
    /// Where the thread stands.
    pub status: Status,
    /// What it has used.
    pub cost: Cost,
}

/// The page: questions, answers, tools and their results, and what it cost. Long texts are cut, and so is the page.
#[must_use]
pub fn render_markdown(about: &About<'_>, events: &[Event]) -> String {
    let mut page = format!("# {}\n", line(about.directive));
    let mut turn = 1;
    for event in events {
        let piece = piece(event, &mut turn);
        if page.len() + piece.len() > MOST_PAGE {
            page.push_str("\n… the rest is in the transcript\n");
            break;
        }
        page.push_str(&piece);
    }
    let (cost, mut status) = (&about.cost, about.status.to_string());
    if let Some(first) = status.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let tenths = cost.elapsed_ms / 100;
    // Writing to text cannot fail.
    let _ = write!(
        page,
        "\n---\n\n**{status}** -- {}, {}, ${:.4}, {}.{}s\n",
        rye_item::text::counted(cost.turns, "turn"),
        rye_item::text::counted(cost.tokens(), "token"),
        cost.spend.dollars(),
        tenths / 10,
        tenths % 10
    );
    page
}

fn line(text: &str) -> String {
    rye_item::text::one_line(text)
}

fn piece(event: &Event, turn: &mut u64) -> String {
    let text = |name: &str| event.payload.get(name).and_then(Value::as_str).unwrap_or_default();
    match event.event_type.as_str() {
        "system_prompt" => format!("\n## System Prompt\n\n{}\n", text("text")),
        "cognition_in" if text("role") == "tool" => String::new(),
        "cognition_in" => format!("\n---\n\n## Input - Turn {turn}\n\n{}\n", text("text")),
        "cognition_reasoning" => {
            let quoted: Vec<String> = text("text").lines().map(|line| format!("> *{line}*")).collect();
            format!("\n{}\n", quoted.join("\n"))
        }
        "cognition_out" => {
            let shown = format!("\n### Response - Turn {turn}\n\n{}\n", text("text"));
            *turn += 1;
            shown
        }
        "tool_call_start" => {
            let input = shortened(&event.payload["input"]);
            let input = serde_json::to_string_pretty(&input).unwrap_or_default();
            format!("\n### Tool: {}\n\n{}", line(text("tool")), fenced("json", &input))
        }
        "tool_call_result" => result(&event.payload),
        _ => String::new(),
    }
}

fn result(payload: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if let Some(error) = payload.get("error").filter(|error| !error.is_null()) {
        return format!("\n### Error\n\n{}", fenced("", &cut(&shown(error), MOST_RESULT)));
    }
    // A result is often JSON written as text.
    let output = match &payload["output"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| payload["output"].clone()),
        other => other.clone(),
    };
    let inner = output.get("data").filter(|data| data.is_object()).unwrap_or(&output);
    let found = ["output", "stdout"].iter().find_map(|name| inner.get(name)).unwrap_or(&output);
    let mut body = cut(&shown(found), MOST_RESULT);
    for (name, mark) in [("stderr", "[stderr]"), ("error", "[error]")] {
        if let Some(text) = inner.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()) {
            body.push_str(&format!("\n{mark} {}", cut(text, MOST_RESULT)));
        }
    }
    format!("\n### Result\n\n{}", fenced("", &body))
}

/// The value with its long texts cut.
fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(cut(text, MOST_INPUT)),
        Value::Array(items) => items.iter().map(shortened).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), shortened(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
    }
}

/// A fence that what is inside cannot close.
fn fenced(language: &str, body: &str) -> String {
    let longest = body.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{body}\n{fence}\n")
}
