use serde_json::{Value, json};

use super::*;

const ROOT: &str = "thread-000000000001";
const CHILD: &str = "thread-000000000002";

fn view(streams: bool) -> ThreadView {
    ThreadView::new(ViewOptions {
        stream: streams,
        show_inner_calls: false,
        is_verbose: false,
        omit_reason: false,
        width: 30,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "a payload reads best where it is sent")]
fn event(view: &mut ThreadView, thread: &str, kind: &str, payload: Value) -> Vec<String> {
    let lines = view.handle_event(&json!({"thread_id": thread, "event_type": kind, "payload": payload}));
    lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
}

#[test]
fn finished_call_is_one_line() {
    let mut view = view(false);
    let call = json!({"tool": "read", "call_id": "1", "input": {"path": "notes.txt"}});
    assert_eq!(event(&mut view, ROOT, "tool_call_start", call), Vec::<String>::new());
    assert!(view.status_line(0).ends_with("· read"), "{}", view.status_line(0));
    let result = json!({"call_id": "1", "duration_ms": 12, "output": "text"});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", result), ["✓ read · path=notes.txt · 12 ms"]);
    let call = json!({"tool": "rye_execute", "call_id": "3", "input": {"item_id": "rye/bash", "parameters": {"command": "ls"}}});
    event(&mut view, ROOT, "tool_call_start", call);
    let result = json!({"call_id": "3", "duration_ms": 1, "output": "x"});
    assert_eq!(
        event(&mut view, ROOT, "tool_call_result", result),
        ["✓ rye_execute rye/bash · command=ls · 1 ms"]
    );
    let call = json!({"tool": "write", "call_id": "2", "input": {}});
    event(&mut view, ROOT, "tool_call_start", call);
    let result = json!({"call_id": "2", "duration_ms": 0, "error": "{\"error\": \"not granted\"}"});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", result), ["✗ write · 0 ms · not granted"]);
}

#[test]
fn changes_of_hooks_are_shown() {
    let mut view = view(false);
    let call = json!({"tool": "read", "call_id": "1", "input": {"path": "secret.txt"}});
    event(&mut view, ROOT, "tool_call_start", call);
    let changed = json!({"call_id": "1", "hook": "scrub", "arguments": {"path": "notes.txt"}});
    assert_eq!(
        event(&mut view, ROOT, "tool_call_changed", changed),
        ["! hook scrub changed the arguments of read to path=notes.txt"]
    );
    let result = json!({"call_id": "1", "duration_ms": 3, "output": "text"});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", result), ["✓ read · path=notes.txt · 3 ms"]);
    let replaced = json!({"call_id": "1", "hook": "scrub", "output": "clean"});
    assert_eq!(
        event(&mut view, ROOT, "tool_result_changed", replaced),
        ["! hook scrub replaced the result of read"]
    );
    let withheld = json!({"call_id": "1", "hook": "guard", "error": "not for models"});
    assert_eq!(
        event(&mut view, ROOT, "tool_result_changed", withheld),
        ["! hook guard withheld the result of read: not for models"]
    );
}

#[test]
fn resumed_view_names_earlier_calls() {
    let mut view = view(false);
    view.set_root(ROOT, 1, 0, Nanos(0));
    let starts = [
        json!({"tool": "read", "call_id": "1", "input": {}}),
        json!({"tool": "write", "call_id": "2", "input": {}}),
    ];
    let done = json!({"call_id": "1", "output": "text"});
    let events = starts.iter().map(|start| ("tool_call_start", start)).chain([("tool_call_result", &done)]);
    view.add_running_calls(ROOT, events);
    let result = json!({"call_id": "2", "duration_ms": 3, "output": "text"});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", result), ["✓ write · 3 ms"]);
}

#[test]
fn answered_call_keeps_its_name() {
    let mut view = view(false);
    let start = json!({"tool": "write", "call_id": "1", "input": {"path": "a.txt"}});
    event(&mut view, ROOT, "tool_call_start", start);
    event(&mut view, ROOT, "thread_suspended", json!({"cost": {"turns": 1}}));
    assert!(!view.status_line(0).contains("write"), "it waits for an answer");
    event(&mut view, ROOT, "thread_resumed", json!({"directive": "a", "model": "m"}));
    assert!(view.status_line(0).ends_with(" · write"), "{}", view.status_line(0));
    let result = json!({"call_id": "1", "duration_ms": 3, "output": "text"});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", result), ["✓ write · path=a.txt · 3 ms"]);
}

#[test]
fn denied_question_is_no_success() {
    let mut view = view(false);
    let started = json!({"call_id": "1", "tool": "ask", "input": {"prompt": "Deploy?"}});
    event(&mut view, ROOT, "tool_call_start", started.clone());
    let output = json!({"status": "success", "approved": false, "message": "not today"}).to_string();
    let denied = json!({"call_id": "1", "duration_ms": 3, "output": output});
    assert_eq!(
        event(&mut view, ROOT, "tool_call_result", denied),
        ["✗ ask · prompt=Deploy? · 3 ms · denied"]
    );
    event(&mut view, ROOT, "tool_call_start", started);
    let output = json!({"status": "success", "approved": true}).to_string();
    let allowed = json!({"call_id": "1", "duration_ms": 3, "output": output});
    assert_eq!(event(&mut view, ROOT, "tool_call_result", allowed), ["✓ ask · prompt=Deploy? · 3 ms"]);
}

#[test]
fn retries_are_counted_as_retries() {
    let mut view = view(false);
    let first = json!({"attempt": 1, "of": 3, "delay_ms": 2000, "error": "overloaded"});
    assert_eq!(event(&mut view, ROOT, "retry_scheduled", first), ["↻ retry 1 of 3 in 2.0 s: overloaded"]);
}

#[test]
fn budget_wait_names_the_budget() {
    let mut view = view(false);
    let wait = |owner: &str| json!({"thread_id": owner, "what": "spend", "most": 0.02, "used": 0.004, "reserved": 0.01, "asked": 0.008});
    assert_eq!(
        event(&mut view, ROOT, "budget_waiting", wait(ROOT)),
        ["◷ waits for its own budget: $0.004 used and $0.01 reserved of $0.02, $0.008 asked"]
    );
    let mut tokens = wait(CHILD);
    tokens["what"] = json!("tokens");
    for (key, amount) in [("most", 900), ("used", 100), ("reserved", 700), ("asked", 200)] {
        tokens[key] = json!(amount);
    }
    assert_eq!(
        event(&mut view, ROOT, "budget_waiting", tokens),
        [format!("◷ waits for the budget of {CHILD}: 100 used and 700 reserved of 900 tokens, 200 asked")]
    );
}

#[test]
fn streamed_text_wraps_at_spaces() {
    let mut view = view(true);
    view.set_root(ROOT, 0, 0, Nanos(0));
    assert_eq!(view.push_text(ROOT, "Hello"), Vec::<String>::new());
    assert_eq!(view.partial_line(), "Hello");
    assert_eq!(view.push_text(ROOT, ", world\nthe next line is rather "), ["Hello, world"]);
    assert_eq!(view.push_text(ROOT, "long, is it not"), ["the next line is rather long,"]);
    assert_eq!(view.partial_line(), "is it not");
    assert_eq!(view.push_text(CHILD, "unseen\n"), Vec::<String>::new());
    let text = "Hello, world\nthe next line is rather long, is it not";
    assert_eq!(event(&mut view, ROOT, "cognition_out", json!({"text": text})), ["is it not"]);
    assert!(view.has_printed(text) && !view.has_printed("Hello"));
}

#[test]
fn split_escape_codes_are_removed() {
    let mut view = view(true);
    view.set_root(ROOT, 0, 0, Nanos(0));
    let mut lines = view.push_text(ROOT, "a\u{1b}");
    lines.extend(view.push_text(ROOT, "[2Jb\u{1b}]0;ti"));
    lines.extend(view.push_text(ROOT, "tle\u{7}c\r\u{8}\n"));
    assert_eq!(lines, ["abc"]);
    let call = json!({"tool": "x\u{1b}[2J", "call_id": "1", "input": {"k\n": "\u{1b}[1A"}});
    event(&mut view, ROOT, "tool_call_start", call);
    let result = json!({"call_id": "1", "error": "\u{9b}2Jbad"});
    let line = view
        .handle_event(&json!({"thread_id": ROOT, "event_type": "tool_call_result", "payload": result}))
        .concat();
    let plain = anstream::adapter::strip_str(&line).to_string();
    assert!(!plain.chars().any(rye_item::text::is_unsafe) && !plain.contains("2J"), "{plain:?}");
}

#[test]
fn final_response_is_left_to_the_result() {
    let mut view = view(false);
    assert_eq!(event(&mut view, ROOT, "cognition_out", json!({"text": "I look."})), Vec::<String>::new());
    let call = json!({"tool": "read", "call_id": "1", "input": {}});
    assert_eq!(event(&mut view, ROOT, "tool_call_start", call), ["I look."]);
    event(&mut view, ROOT, "cognition_out", json!({"text": "Done."}));
    assert!(!view.has_printed("Done."));
    let lines = event(&mut view, ROOT, "thread_completed", json!({"cost": {"turns": 2, "spend": 0.01}}));
    assert_eq!(lines, ["✓ completed · 2 turns · 0 tokens · $0.01"]);
    assert_eq!(view.flush(), ["Done."]);
}

#[test]
fn child_prints_start_and_end_lines() {
    let mut view = view(false);
    event(
        &mut view,
        ROOT,
        "thread_started",
        json!({"directive": "a", "model": "m", "limits": {"turns": 5, "spend": 1.0}}),
    );
    let started = json!({"child_thread_id": CHILD, "child_directive": "b"});
    assert_eq!(event(&mut view, ROOT, "child_thread_started", started), [format!("  ↳ b · {CHILD}")]);
    event(&mut view, CHILD, "thread_started", json!({"directive": "b", "model": "m"}));
    event(
        &mut view,
        CHILD,
        "cognition_out",
        json!({"text": "x", "input_tokens": 1000, "output_tokens": 34, "spend": 0.002}),
    );
    assert_eq!(view.status_line(1500), "turn 1/5 · 1,034 tokens · $0.002/$1.00 · 1.5 s");
    let ended = json!({"error": "no luck", "cost": {"turns": 1, "input_tokens": 1000, "output_tokens": 34, "spend": 0.002}});
    let lines = event(&mut view, CHILD, "thread_error", ended);
    assert_eq!(lines, ["  ✗ failed · b · 1 turn · 1,034 tokens · $0.002 · no luck"]);
}

#[test]
fn running_time_is_not_truncated() {
    let ended = |payload: Value| event(&mut view(false), ROOT, "thread_completed", payload).concat();
    let cost = json!({"turns": 1, "elapsed_seconds": 1});
    assert!(ended(json!({"cost": cost, "elapsed_ms": 1600})).ends_with("· 1.6 s"));
    assert!(ended(json!({"cost": cost})).ends_with("· 1.0 s"), "older threads recorded whole seconds");
    assert!(ended(json!({"cost": cost, "elapsed_ms": 400})).ends_with("· $0"));
}

#[test]
fn first_line_names_candidate_providers() {
    let started = json!({"directive": "a", "provider": "b", "model": "m", "candidates": ["b", "c"]});
    let lines = event(&mut view(false), ROOT, "thread_started", started);
    assert!(lines[0].starts_with("▶ a · b (first of b, c) · m · "), "{lines:?}");
}
