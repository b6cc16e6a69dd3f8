//! When the threads of a tree ran: model calls, tools, children and waits, as their transcripts have them.

use std::collections::HashMap;

use rye_engine::Result;
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::store::ThreadRow;
use crate::transcript::{self, TranscriptEvent, TranscriptPosition};

/// Threads of a tree that are shown.
const MAX_THREADS: usize = 300;
/// Events of one transcript that are looked at.
const MAX_EVENTS: usize = 20_000;
/// Spans of one thread that are shown.
const MAX_SPANS: usize = 2000;

/// Something that took time.
struct Span<'a> {
    kind: &'static str,
    name: String,
    from: &'a str,
    to: Option<&'a str>,
}

/// The spans of the threads of a tree, the root first, as JSON.
///
/// # Errors
/// When the store cannot be read.
pub fn timeline_value(index: &ThreadIndex, rows: &[ThreadRow]) -> Result<Value> {
    let mut is_truncated = rows.len() > MAX_THREADS;
    let mut threads = Vec::new();
    for row in rows.iter().take(MAX_THREADS) {
        let path = index.transcript_path(&row.id);
        let batch = transcript::read(&path, TranscriptPosition::default(), MAX_EVENTS).unwrap_or_default();
        let spans = spans(&batch.events);
        is_truncated |= batch.events.len() >= MAX_EVENTS || spans.len() > MAX_SPANS;
        let shown = spans
            .iter()
            .take(MAX_SPANS)
            .map(|span| json!({"kind": span.kind, "name": span.name, "from": span.from, "to": span.to}));
        let is_over = row.status.is_terminal() || index.is_idle(row);
        threads.push(json!({
            "thread_id": row.id,
            "directive": row.directive,
            "depth": row.depth,
            "parent_thread_id": row.parent,
            "status": index.effective_status(row),
            "started_at": row.created_at,
            "ended_at": row.completed_at.as_ref().or(is_over.then_some(&row.updated_at)),
            "spans": shown.collect::<Vec<_>>(),
        }));
    }
    Ok(json!({"threads": threads, "is_truncated": is_truncated}))
}

/// What took time, in the order in which it began.
fn spans(events: &[TranscriptEvent]) -> Vec<Span<'_>> {
    let mut spans: Vec<Span<'_>> = Vec::new();
    let mut open: HashMap<String, usize> = HashMap::new();
    // When the model could be asked: what came before is done.
    let mut ready: Option<&str> = None;
    let mut wait: Option<usize> = None;
    for event in events.iter().filter(|event| !event.is_droppable) {
        let at = event.timestamp.as_str();
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str).unwrap_or_default();
        let event_type = event.event_type.as_str();
        if let Some(waited) = wait.take_if(|_| event_type != "checkpoint") {
            spans[waited].to = Some(at);
            ready = Some(at);
        }
        match event_type {
            "cognition_out" => {
                let from = ready.unwrap_or(at);
                spans.push(Span { kind: "model", name: text("model").to_owned(), from, to: Some(at) });
                ready = Some(at);
            }
            "tool_call_start" => {
                open.insert(text("call_id").to_owned(), spans.len());
                spans.push(Span { kind: "tool", name: text("tool").to_owned(), from: at, to: None });
            }
            "tool_call_result" => {
                if let Some(started) = open.remove(text("call_id")) {
                    spans[started].to = Some(at);
                }
                ready = Some(at);
            }
            "child_thread_started" => {
                open.insert(text("child_thread_id").to_owned(), spans.len());
                let name = text("child_directive").to_owned();
                spans.push(Span { kind: "child", name, from: at, to: None });
            }
            "child_thread_finished" => {
                if let Some(started) = open.remove(text("child_thread_id")) {
                    spans[started].to = Some(at);
                }
            }
            "budget_waiting" | "human_approval_requested" | "thread_suspended" | "retry_scheduled" => {
                wait = Some(spans.len());
                spans.push(Span { kind: "wait", name: event_type.to_owned(), from: at, to: None });
            }
            _ => ready = ready.or(Some(at)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: u64, event_type: &str, payload: Value) -> TranscriptEvent {
        TranscriptEvent {
            line: second,
            event_type: event_type.to_owned(),
            timestamp: second.to_string(),
            payload,
            is_droppable: false,
            sequence: Some(second),
            raw: Value::Null,
        }
    }

    #[test]
    fn spans_cover_model_tools_and_waits() {
        let events = [
            event(1, "thread_started", json!({})),
            event(3, "cognition_out", json!({"model": "m"})),
            event(4, "tool_call_start", json!({"call_id": "c", "tool": "t"})),
            event(5, "tool_call_result", json!({"call_id": "c"})),
            event(6, "human_approval_requested", json!({})),
            event(7, "checkpoint", json!({})),
            event(9, "thread_resumed", json!({})),
            event(10, "cognition_out", json!({"model": "m"})),
            event(11, "tool_call_start", json!({"call_id": "d", "tool": "u"})),
        ];
        let found: Vec<(&str, String, String, Option<String>)> = spans(&events)
            .into_iter()
            .map(|span| (span.kind, span.name, span.from.to_owned(), span.to.map(str::to_owned)))
            .collect();
        let span = |kind, name: &str, from: u64, to: Option<u64>| {
            (kind, name.to_owned(), from.to_string(), to.map(|to| to.to_string()))
        };
        assert_eq!(
            found,
            [
                span("model", "m", 1, Some(3)),
                span("tool", "t", 4, Some(5)),
                span("wait", "human_approval_requested", 6, Some(9)),
                span("model", "m", 9, Some(10)),
                span("tool", "u", 11, None),
            ]
        );
    }
}
