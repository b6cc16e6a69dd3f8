//! Recorded journals lead to the states they led to when they were recorded.
//!
//! `tests/journals` holds journals of every released format, made by `scripts/record-journals` with the release's own
//! binary, and in `states` what each record led to. A change of the machine that changes one of them would make a thread of
//! that release resume as something it never was.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests of a crate without files"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux_hash::Digest;
use rye_thread::capability::PermittedAction;
use rye_thread::journal::JournalHeader;
use rye_thread::machine::{Effect, ThreadEvent, ThreadState, step};
use rye_thread::spec::{ThreadSpec, ThreadTemplate};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The recorded journals by name.
fn journals() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), read(path))).collect()
}

fn spec(first: &Value) -> Arc<ThreadSpec> {
    let header = JournalHeader::parse(first["body"].to_string().as_bytes()).expect("a header");
    let template = folder().join(format!("templates/{}.json", header.template));
    let bytes = std::fs::read(&template).expect("a template");
    assert_eq!(Digest::of(&bytes).to_string(), header.template, "{}", template.display());
    let shared: ThreadTemplate = serde_json::from_slice(&bytes).expect("a template");
    Arc::new(ThreadSpec { instance: header.own, template: Arc::new(shared) })
}

/// What each record of a journal led to.
fn replay(journal: &Value) -> (Vec<Value>, ThreadState) {
    let records = journal["records"].as_array().expect("records");
    let mut state = ThreadState::new(spec(&records[0]));
    let mut states = Vec::new();
    for record in &records[1..] {
        let event: ThreadEvent = serde_json::from_value(record["body"].clone()).expect("an event");
        let effects = step(&mut state, record["at_ms"].as_u64().expect("a time"), event);
        states.push(observe(&state, &effects));
    }
    (states, state)
}

/// Everything about a state that others can see. The words are the test's own: a renamed type changes nothing here.
fn observe(state: &ThreadState, effects: &[Effect]) -> Value {
    let messages = serde_json::to_vec(&state.messages).expect("JSON");
    json!({
        "status": state.status().as_str(),
        "waits_for": state.waits_for(),
        "cost": state.cost,
        "limits": state.limits,
        "calls": state.calls,
        "messages": state.messages.len(),
        "messages_digest": Digest::of(&messages).short(),
        "running": state.running_tools(),
        "outcome": state.outcome(),
        "effects": effects.iter().map(observe_effect).collect::<Vec<_>>(),
    })
}

fn observe_effect(effect: &Effect) -> Value {
    let granted = |action: &PermittedAction| {
        json!({
            "action": action.action(),
            "asker": action.principal(),
            "capabilities": action.capabilities(),
        })
    };
    match effect {
        Effect::RunHook { hook, action, .. } => json!({"run_hook": hook, "granted": granted(action)}),
        Effect::CallModel { call, request, cost_bound: worst } => json!({
            "call_model": call,
            "request": Digest::of(&serde_json::to_vec(request).expect("JSON")).short(),
            "spend": worst.spend,
            "tokens": worst.tokens,
        }),
        Effect::AwaitBudget { call, cost_bound, deadline_ms } => json!({
            "await_budget": call,
            "spend": cost_bound.spend,
            "tokens": cost_bound.tokens,
            "deadline_ms": deadline_ms,
        }),
        Effect::Sleep { ms } => json!({"sleep": ms}),
        Effect::Dispatch { index, action } => json!({"dispatch": index, "granted": granted(action)}),
        Effect::Spawn { index, action, child } => {
            json!({"spawn": index, "granted": granted(action), "child": child})
        }
        Effect::Orchestrate { index, action } => json!({"orchestrate": index, "granted": granted(action)}),
        Effect::ReadArtifact { index, params } => json!({"read_artifact": index, "params": params}),
        Effect::Emit { event_type, payload } => {
            let payload = payload.to_string();
            let payload = if payload.len() > 300 { Digest::of(payload.as_bytes()).short() } else { payload };
            json!({"emit": event_type, "payload": payload})
        }
        Effect::EmitAs { event_type, payload, criticality } => {
            json!({"emit_as": event_type, "payload": payload, "criticality": criticality})
        }
        Effect::RecordSpend { call, used, hook } => {
            json!({"record_spend": call, "used": used, "hook": hook})
        }
        Effect::SaveState(trigger) => json!({"save": format!("{trigger:?}").to_lowercase()}),
        Effect::RequestApproval(question) => json!({"ask": question}),
        Effect::Suspend(outcome) => json!({"suspend": outcome}),
        Effect::End(outcome) => json!({"end": outcome}),
    }
}

#[test]
fn recorded_journals_lead_to_recorded_states() {
    let journals = journals();
    assert!(journals.len() > 100, "{} journals", journals.len());
    for (name, journal) in &journals {
        let (states, _) = replay(journal);
        let recorded = read(&folder().join(format!("states/{name}.json")));
        let recorded = recorded.as_array().expect("states");
        assert_eq!(states.len(), recorded.len(), "{name}");
        for (number, (now, then)) in states.iter().zip(recorded).enumerate() {
            assert_eq!(now, then, "{name}, record {}", number + 2);
        }
    }
}

#[test]
fn replay_agrees_with_the_registry() {
    for (name, journal) in journals() {
        let (_, state) = replay(&journal);
        let row = &journal["final"];
        let cost = &state.cost;
        let of_replay = json!({
            "status": state.status().as_str(),
            "turns": cost.turns,
            "input_tokens": cost.input_tokens,
            "output_tokens": cost.output_tokens,
            "spend": cost.spend,
            "error": state.outcome().and_then(|outcome| outcome.error.clone()),
        });
        for (key, value) in of_replay.as_object().expect("an object") {
            assert_eq!(value, &row[key], "{name}: {key}");
        }
    }
}

#[test]
fn recorded_journals_hold_every_event_phase_and_effect() {
    let mut seen = BTreeSet::new();
    let mut protocols = BTreeSet::new();
    for (_, journal) in journals() {
        protocols.insert(journal["protocol"].as_str().expect("a protocol").to_owned());
        for record in &journal["records"].as_array().expect("records")[1..] {
            seen.insert(format!("event {}", record["body"]["event"].as_str().expect("an event")));
        }
        for state in replay(&journal).0 {
            seen.insert(format!("phase {}", state["waits_for"].as_str().expect("a phase")));
            for effect in state["effects"].as_array().expect("effects") {
                seen.extend(effect.as_object().expect("an effect").keys().map(|key| format!("effect {key}")));
            }
        }
    }
    let wanted = [
        "event started",
        "event hook_done",
        "event answered",
        "event failed",
        "event refused",
        "event slept",
        "event tool_done",
        "event tool_asked",
        "event tool_answered",
        "event child_started",
        "event interrupted",
        "event cancel_requested",
        "event expired",
        "event resumed",
        "phase hook",
        "phase model",
        "phase retry",
        "phase tools",
        "phase person",
        "phase nothing",
        "effect run_hook",
        "effect call_model",
        "effect sleep",
        "effect dispatch",
        "effect spawn",
        "effect orchestrate",
        "effect read_artifact",
        "effect emit",
        "effect save",
        "effect ask",
        "effect suspend",
        "effect end",
    ];
    let missing: Vec<_> = wanted.iter().filter(|word| !seen.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for protocol in ["openai", "anthropic", "offline"] {
        assert!(protocols.contains(protocol), "{protocol}");
    }
}

/// Records what new journals lead to: `cargo test -p rye-thread --test journals -- --ignored`. What was recorded stays.
#[test]
#[ignore = "writes files"]
fn record_states() {
    std::fs::create_dir_all(folder().join("states")).expect("a folder");
    for (name, journal) in journals() {
        let path = folder().join(format!("states/{name}.json"));
        if path.exists() {
            continue;
        }
        let lines: Vec<String> = replay(&journal).0.iter().map(Value::to_string).collect();
        let text = format!("[\n{}\n]\n", lines.join(",\n"));
        std::fs::write(&path, text).expect("a file");
    }
}
