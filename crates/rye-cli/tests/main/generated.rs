//! Directives from a seed, run twice: the transcripts are the same but for times and ids.
//!
//! `RYE_GENERATED_DIRECTIVES` and `RYE_GENERATED_SEED` choose how many and which; `scripts/check-generated` runs a hundred, also
//! once in files and once in a PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;

use rye_test::fake_model::FakeModel;
use rye_test::generated::{GENERATED_MODEL, GeneratedProject};
use serde_json::{Map, Value};

use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, threads};

/// How many directives a plain `cargo test` runs.
const DEFAULT_DIRECTIVES: usize = 6;

/// How often the questions of one thread are answered.
const MAX_ANSWERS: usize = 10;

/// What differs from run to run and says nothing: times, and what is made of ids, keys and times.
const VOLATILE_KEYS: [&str; 20] = [
    "timestamp",
    "ts",
    "duration_ms",
    "elapsed_ms",
    "elapsed_seconds",
    "duration",
    "started_at",
    "completed_at",
    "delay_ms",
    "pid",
    "prev",
    "sequence",
    "directive_hash",
    "integrity",
    "sig",
    "fp",
    "hash",
    "signature",
    "mtime",
    // Of a prompt that holds ids and times.
    "estimated",
];

/// Events that depend on when something arrived, and repeat what others say.
const VOLATILE_EVENTS: [&str; 2] = ["cognition_out_delta", "checkpoint"];

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A value without times; texts that are JSON are read as such, and ids are named by their directive.
fn normalize(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !VOLATILE_KEYS.contains(&key.as_str()));
            Value::Object(
                kept.map(|(key, value)| (rename(key, names), normalize(value, names))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(list) => list.iter().map(|value| normalize(value, names)).collect(),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ (Value::Object(_) | Value::Array(_))) => normalize(&inner, names),
            _ => Value::String(rename(text, names)),
        },
        other => other.clone(),
    }
}

fn rename(text: &str, names: &BTreeMap<String, String>) -> String {
    let text = names.iter().fold(text.to_owned(), |text, (id, name)| text.replace(id, name));
    without_call_numbers(&text)
}

/// The server numbers calls in the order in which requests arrive, which differs where threads run at the same time.
fn without_call_numbers(text: &str) -> String {
    let mut parts = text.split("call_");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        format!("{text}call_{rest}")
    })
}

/// A user whose threads are in files.
fn user_of_files() -> User {
    User::initialized()
}

/// A user whose threads are in a new schema of the PostgreSQL at this address.
fn user_of_postgres(url: &str) -> User {
    let user = User::initialized();
    let schema = format!("generated_{}", std::process::id());
    user.write_user(
        "config/config.yaml",
        format!(
            "version: \"1.0.0\"\ncategory: \"\"\nthreads:\n  store: team\n  stores:\n    team:\n      url: \"{url}\"\n      schema: {schema}\n"
        ),
    );
    user.ok(["sign", "config", "config", "--space", "user"]);
    user
}

/// Runs every generated root to its end; the transcripts of all threads, by directive.
fn run_all(user: &User, seed: u64, count: usize) -> BTreeMap<String, Vec<Value>> {
    let project = Arc::new(GeneratedProject::new(seed, count));
    for directive in &project.directives {
        user.write(&format!("directives/gen/{}.md", directive.name), &directive.text);
    }
    user.ok(["sign", "directive", "gen/*", "--yes"]);
    let script = Arc::clone(&project);
    let model = FakeModel::start(move |request| script.reply(request));
    for root in project.directives.iter().filter(|directive| directive.is_root) {
        let id = format!("gen/{}", root.name);
        let mut result = run(command_with_model(user, &model).args(["run", &id, "--model", GENERATED_MODEL]));
        for _ in 0..MAX_ANSWERS {
            let open =
                user.data(["thread", "approvals"])["approvals"].as_array().cloned().unwrap_or_default();
            let Some(question) = open.first() else { break };
            let word = if GeneratedProject::approves(&text(&question["what"])) { "approve" } else { "deny" };
            let request = text(&question["id"]);
            result = run(command_with_model(user, &model).args(["thread", word, &request]));
        }
        assert!([0, 1].contains(&result.exit), "{id} {result}");
    }
    let rows = threads(user);
    assert_eq!(rows.len(), project.directives.len(), "{rows:?}");
    // The digits of a thread's id are also part of other names, such as those of its questions.
    let digits = |row: &Value| text(&row["thread_id"]).trim_start_matches("thread-").to_owned();
    let mut names: BTreeMap<String, String> =
        rows.iter().map(|row| (digits(row), format!("<{}>", text(&row["directive"])))).collect();
    names.insert(user.context.path().display().to_string(), "<folder>".to_owned());
    let transcript = |row: &Value| {
        let id = text(&row["thread_id"]);
        let lines = user.ok(["--json", "thread", "transcript", &id]).stdout;
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lasting = events.filter(|event| !VOLATILE_EVENTS.contains(&text(&event["event_type"]).as_str()));
        lasting.map(|event| normalize(&event, &names)).collect::<Vec<_>>()
    };
    rows.iter().map(|row| (text(&row["directive"]), transcript(row))).collect()
}

/// The seed and the number of directives that the environment asks for.
fn settings() -> (u64, usize) {
    let count = usize::try_from(number_from("RYE_GENERATED_DIRECTIVES", 0)).unwrap_or(0);
    (number_from("RYE_GENERATED_SEED", 1), if count == 0 { DEFAULT_DIRECTIVES } else { count })
}

fn assert_same_transcripts(seed: u64, first: &User, second: &User, count: usize) {
    let (first, again) = (run_all(first, seed, count), run_all(second, seed, count));
    assert!(first.len() >= count, "{}", first.len());
    assert_eq!(first.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
    for (directive, events) in &first {
        let other = &again[directive];
        for (index, (was, is)) in events.iter().zip(other).enumerate() {
            assert_eq!(was, is, "seed {seed}, {directive}, event {index}");
        }
        assert_eq!(events.len(), other.len(), "seed {seed}, {directive}");
        assert!(events.len() > 2, "{directive}: {events:?}");
    }
}

#[test]
fn same_seed_gives_same_transcripts() {
    let (seed, count) = settings();
    assert_same_transcripts(seed, &user_of_files(), &user_of_files(), count);
}

#[test]
#[ignore = "needs a PostgreSQL: scripts/check-generated --store postgres"]
fn both_stores_give_same_transcripts() {
    let url = std::env::var("RYE_TEST_POSTGRES").expect("the address of a PostgreSQL");
    let (seed, count) = settings();
    assert_same_transcripts(seed, &user_of_files(), &user_of_postgres(&url), count);
}
