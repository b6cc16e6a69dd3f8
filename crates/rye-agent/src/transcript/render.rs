//! A transcript as a page to read.

use std::fmt::Write;

use serde_json::Value;

use super::TranscriptEvent;
use crate::cost::Cost;
use crate::status::ThreadStatus;

/// The longest page.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// The longest result of a tool on it.
const MAX_RESULT_CHARS: usize = 2000;
/// The longest text in a tool's input.
const MAX_INPUT_CHARS: usize = 500;

/// What a page says about its thread.
#[derive(Clone, Debug)]
pub struct PageHeader<'a> {
    /// The directive.
    pub directive: &'a str,
    /// Where the thread stands.
    pub status: ThreadStatus,
    /// What it has used.
    pub cost: Cost,
}

/// The page: questions, answers, tools and their results, and what it cost. Long texts are cut, and so is the page.
#[must_use]
pub fn render_markdown(header: &PageHeader<'_>, events: &[TranscriptEvent]) -> String {
    let mut page = format!("# {}\n", single_line(header.directive));
    let mut turn = 1;
    for event in events {
        let piece = render_event(event, &mut turn);
        if page.len() + piece.len() > MAX_PAGE_BYTES {
            page.push_str("\n… the rest is in the transcript\n");
            break;
        }
        page.push_str(&piece);
    }
    let (cost, mut status) = (&header.cost, header.status.to_string());
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

fn single_line(text: &str) -> String {
    rye_item::text::one_line(text)
}

fn render_event(event: &TranscriptEvent, turn: &mut u64) -> String {
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
            let text_block = format!("\n### Response - Turn {turn}\n\n{}\n", text("text"));
            *turn += 1;
            text_block
        }
        "tool_call_start" => {
            let input = truncate_values(&event.payload["input"]);
            let input = serde_json::to_string_pretty(&input).unwrap_or_default();
            format!("\n### Tool: {}\n\n{}", single_line(text("tool")), code_fence("json", &input))
        }
        "tool_call_result" => render_result(&event.payload),
        "tool_call_changed" => {
            let arguments = truncate_values(&event.payload["arguments"]);
            let arguments = serde_json::to_string_pretty(&arguments).unwrap_or_default();
            let fence = code_fence("json", &arguments);
            format!("\n### Arguments changed by hook {}\n\n{fence}", single_line(text("hook")))
        }
        "tool_result_changed" => {
            let hook = single_line(text("hook"));
            let (word, result) = match event.payload.get("error").and_then(Value::as_str) {
                Some(error) => ("withheld", error),
                None => ("replaced", text("output")),
            };
            let fence = code_fence("", &truncate(result, MAX_RESULT_CHARS));
            format!("\n### Result {word} by hook {hook}\n\n{fence}")
        }
        _ => String::new(),
    }
}

fn render_result(payload: &Value) -> String {
    let to_text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if let Some(error) = payload.get("error").filter(|error| !error.is_null()) {
        return format!("\n### Error\n\n{}", code_fence("", &truncate(&to_text(error), MAX_RESULT_CHARS)));
    }
    // A result is often JSON written as text.
    let output = match &payload["output"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| payload["output"].clone()),
        other => other.clone(),
    };
    let inner = output.get("data").filter(|data| data.is_object()).unwrap_or(&output);
    let output_text = ["output", "stdout"].iter().find_map(|name| inner.get(name)).unwrap_or(&output);
    let mut body = truncate(&to_text(output_text), MAX_RESULT_CHARS);
    for (name, mark) in [("stderr", "[stderr]"), ("error", "[error]")] {
        if let Some(text) = inner.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()) {
            body.push_str(&format!("\n{mark} {}", truncate(text, MAX_RESULT_CHARS)));
        }
    }
    format!("\n### Result\n\n{}", code_fence("", &body))
}

/// The value with its long texts cut.
fn truncate_values(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(truncate(text, MAX_INPUT_CHARS)),
        Value::Array(items) => items.iter().map(truncate_values).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), truncate_values(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
    }
}

/// A fence that what is inside cannot close.
fn code_fence(language: &str, body: &str) -> String {
    let longest = body.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{body}\n{fence}\n")
}
