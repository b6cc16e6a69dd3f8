//! Every core event is emitted by a recorded journal or a play below, fits its schema, and is declared and documented.
#![allow(clippy::disallowed_methods, reason = "tests of a crate without files")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::harness::{Harness, TestSpec, shipped_config};
use crate::core_event::{CORE_EVENTS, core_event, render_event_list};
use crate::definitions::SkippedTool;
use crate::journal::JournalHeader;
use crate::machine::{Effect, ThreadEvent, ThreadState, step};
use crate::money::Nanos;
use crate::spec::{ThreadSpec, ThreadTemplate};
use crate::status::ThreadStatus;

/// Events that the transcript writes itself; its own tests emit them.
const WRITER_EVENTS: [&str; 2] = ["checkpoint", "cognition_out_delta"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The events of a recorded journal, which fit their schemas but for what older releases did not record.
fn recorded_events(journal: &Value) -> BTreeSet<String> {
    let records = journal["records"].as_array().expect("records");
    let header = JournalHeader::parse(records[0]["body"].to_string().as_bytes()).expect("a header");
    let template = read(&folder().join(format!("templates/{}.json", header.template)));
    let template: ThreadTemplate = serde_json::from_value(template).expect("a template");
    let spec = Arc::new(ThreadSpec { instance: header.own, template: Arc::new(template) });
    let mut state = ThreadState::new(spec);
    let mut events = BTreeSet::new();
    for record in &records[1..] {
        let event: ThreadEvent = serde_json::from_value(record["body"].clone()).expect("an event");
        for effect in step(&mut state, record["at_ms"].as_u64().expect("a time"), event) {
            let Effect::Emit { event_type, payload } = effect else { continue };
            if let Some(schema) = core_event(&event_type) {
                let checked = schema.check(&payload);
                let is_unrecorded = ["permission_denied", "child_thread_finished"].contains(&schema.name);
                assert!(checked.is_ok() || is_unrecorded, "{checked:?}: {payload}");
            }
            events.insert(event_type);
        }
    }
    events
}

fn played_events() -> BTreeSet<String> {
    let mut events = BTreeSet::new();
    let mut collect = |play: &Harness| events.extend(play.event_types().into_iter().map(str::to_owned));
    for status in [ThreadStatus::Killed, ThreadStatus::Continued] {
        let mut play = Harness::start(TestSpec::default());
        play.apply(ThreadEvent::Terminated {
            status,
            reason: "thread-1".to_owned(),
            spend: Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
        });
        collect(&play);
    }
    let mut play = Harness::start(TestSpec::default());
    play.apply(ThreadEvent::Redacted { count: 1, names: vec!["DB_PASSWORD".to_owned()] });
    collect(&play);
    let mut play = Harness::start(super::fallbacks::spec_with(&["second"]));
    play.fail(super::harness::model_error(401));
    collect(&play);
    let mut spec = ThreadSpec::clone(&TestSpec::default().build());
    let template = Arc::make_mut(&mut spec.template);
    let reason = "its schema is too large".to_owned();
    template.definitions.skipped = vec![SkippedTool { item_id: "team/large".to_owned(), reason }];
    let mut play = Harness::new(Arc::new(spec));
    play.apply(ThreadEvent::Started);
    collect(&play);
    super::call_hooks::hooked_threads().iter().for_each(&mut collect);
    collect(&super::budgets::waiting_thread());
    collect(&super::forks::forked_thread());
    collect(&super::usage::impossible_usage_thread());
    events
}

#[test]
fn every_core_event_is_emitted() {
    let mut events = played_events();
    for entry in std::fs::read_dir(folder()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            events.extend(recorded_events(&read(&path)));
        }
    }
    events.extend(WRITER_EVENTS.map(str::to_owned));
    let missing: Vec<&str> =
        CORE_EVENTS.iter().map(|schema| schema.name).filter(|name| !events.contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn shipped_declarations_match_core_events() {
    let events = shipped_config().events;
    for schema in CORE_EVENTS {
        let declared = events.event(schema.name).unwrap_or_else(|| panic!("{} is declared", schema.name));
        assert_eq!(
            (declared.category.as_str(), declared.criticality),
            (schema.category, schema.criticality),
            "{}",
            schema.name
        );
        let payload = declared.payload_schema.as_ref().expect("a schema");
        let expected = schema.to_json_schema();
        assert_eq!(payload["required"], expected["required"], "{}", schema.name);
        let (own, all) = (&payload["properties"], &expected["properties"]);
        for (name, property) in own.as_object().expect("properties") {
            assert_eq!(property["type"], all[name]["type"], "{}.{name}", schema.name);
            assert_eq!(property["enum"], all[name]["enum"], "{}.{name}", schema.name);
        }
        assert_eq!(
            own.as_object().map(|own| own.len()),
            all.as_object().map(|all| all.len()),
            "{}",
            schema.name
        );
    }
    let unknown: Vec<&str> = events.names().filter(|name| core_event(name).is_none()).collect();
    assert_eq!(unknown, ["checkpoint_saved"], "declared, and emitted by a shipped hook");
}

/// `RYE_UPDATE_DOCS=1 cargo test -p rye-thread events_page` writes the list again.
#[test]
fn events_page_lists_every_event() {
    const BEGIN: &str = "<!-- the list below is made from the code -->\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/threads/events.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (front, list) = page.split_once(BEGIN).expect("the mark");
    let expected = render_event_list();
    if list != expected && std::env::var_os("RYE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{front}{BEGIN}{expected}")).expect("written");
        return;
    }
    assert_eq!(list, expected, "docs/threads/events.md is out of date");
}
