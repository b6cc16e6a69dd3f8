//! `rye schedule` from outside: signed, verified at each run, never twice for one time, and its approvals denied.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run, text};
use crate::thread_approvals::write_gate;
use crate::thread_run::{threads, write_note_directive};
use crate::tool_support::eventually;

fn tick(user: &User) -> Vec<Value> {
    user.data(["schedule", "tick"])["runs"].as_array().cloned().unwrap_or_default()
}

/// What is due is decided by what was served: an earlier moment makes one due now.
fn set_served(user: &User, schedule: &str, minutes_ago: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let served = u64::try_from(now.as_millis()).expect("a time") - minutes_ago * 60_000;
    let path = user.home().join(".ai/config/agent/schedules.yaml");
    let file = std::fs::read_to_string(&path).expect("schedules");
    // Intervals count from when the schedule was added.
    let added = file.split("\"added_ms\":").nth(1).and_then(|rest| rest.split('}').next()).expect("a time");
    std::fs::write(&path, file.replace(added, &served.to_string())).expect("written");
    user.ok(["sign", "config", "agent/schedules", "--space", "user"]);
    let keys = user.public_key().parent().expect("a folder").to_owned();
    let state = keys.join("schedule_state.json");
    let mut states: Value = std::fs::read(&state)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_else(|| json!({}));
    states[schedule]["served_ms"] = json!(served);
    std::fs::write(&state, states.to_string()).expect("written");
}

fn added_user() -> User {
    let user = User::initialized();
    write_note_directive(&user);
    let arguments = ["schedule", "add", "team/note", "--every", "5m", "--provider", "offline"];
    let added = user.data(arguments);
    assert_eq!(added["schedule"]["id"], "team/note", "{added}");
    user
}

#[test]
fn due_schedule_starts_one_thread() {
    let user = added_user();
    assert_eq!(tick(&user), Vec::<Value>::new());
    set_served(&user, "team/note", 6);
    let runs = tick(&user);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0]["run"]["outcome"], "started", "{runs:?}");
    let id = text(&runs[0]["run"]["thread_id"]);
    assert_eq!(tick(&user), Vec::<Value>::new(), "one time is served once");
    user.ok(["thread", "wait", &id]);
    assert_eq!(threads(&user).len(), 1);
    assert_eq!(threads(&user)[0]["status"], "completed");
    let list = user.data(["schedule", "list"]);
    assert_eq!(list["schedules"][0]["runs"][0]["thread_id"], json!(id), "{list}");
    let shown = user.ok(["schedule", "list"]);
    assert!(shown.stdout.contains("every 5m") && shown.stdout.contains("started"), "{shown}");
    let vienna = ["schedule", "add", "team/note", "--name", "morning", "--cron", "0 7 1 1 *", "--time-zone"];
    let added = user.ok(vienna.into_iter().chain(["Europe/Vienna"]));
    assert!(added.stdout.contains("-01-01 07:00 CET"), "{added}");
    user.ok(["schedule", "remove", "morning"]);
    set_served(&user, "team/note", 60);
    let runs = tick(&user);
    let message = text(&runs[0]["run"]["message"]);
    assert!(message.contains("before this one"), "{runs:?}");
    user.ok(["thread", "wait", &text(&runs[0]["run"]["thread_id"])]);
}

#[test]
fn schedule_continues_after_clock_was_ahead() {
    let user = added_user();
    set_served(&user, "team/note", 6);
    edit_states(&user, |states| states["team/note"]["served_ms"] = json!(4_000_000_000_000_u64));
    let output = user.ok(["schedule", "tick"]);
    assert!(output.stderr.contains("the clock was ahead or is behind"), "{output}");
    let keys = user.public_key().parent().expect("a folder").to_owned();
    let states = std::fs::read(keys.join("schedule_state.json")).expect("states");
    let states: Value = serde_json::from_slice(&states).expect("JSON");
    let served = states["team/note"]["served_ms"].as_u64().expect("a time");
    assert!(served < 4_000_000_000_000, "{states}");
    assert!(!user.ok(["schedule", "tick"]).stderr.contains("ahead"), "said once");
}

/// The states of schedules, as a process that was killed left them.
fn edit_states(user: &User, edit: impl FnOnce(&mut Value)) {
    let path = user.public_key().parent().expect("a folder").join("schedule_state.json");
    let mut states: Value = serde_json::from_slice(&std::fs::read(&path).expect("states")).expect("JSON");
    edit(&mut states);
    std::fs::write(&path, states.to_string()).expect("written");
}

#[test]
fn killed_start_without_thread_is_said_to_fail() {
    let user = added_user();
    set_served(&user, "team/note", 1);
    let never_made = json!("thread-0123456789ab");
    edit_states(&user, |states| {
        let run = json!({"due_ms": 1, "at_ms": 1, "outcome": "starting", "thread_id": never_made.clone()});
        states["team/note"]["thread_id"] = never_made.clone();
        states["team/note"]["runs"] = json!([run]);
    });
    let runs = tick(&user);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0]["run"]["outcome"], "failed", "{runs:?}");
    assert!(text(&runs[0]["run"]["message"]).contains("was killed"), "{runs:?}");
    assert_eq!(threads(&user), Vec::<Value>::new());
    assert_eq!(tick(&user), Vec::<Value>::new(), "it is said once");
}

#[test]
fn killed_start_with_thread_is_not_doubled() {
    let user = added_user();
    set_served(&user, "team/note", 6);
    let runs = tick(&user);
    let id = text(&runs[0]["run"]["thread_id"]);
    // As if the process had been killed before it wrote that the thread was there.
    edit_states(&user, |states| {
        let run = &mut states["team/note"]["runs"][0];
        run["outcome"] = json!("starting");
        assert_eq!(run["thread_id"], json!(id), "it is named before it is started");
    });
    let runs = tick(&user);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!((&runs[0]["run"]["outcome"], &runs[0]["run"]["thread_id"]), (&json!("started"), &json!(id)));
    user.ok(["thread", "wait", &id]);
    assert_eq!(threads(&user).len(), 1);
}

#[test]
fn changed_directive_or_schedule_starts_nothing() {
    let user = added_user();
    set_served(&user, "team/note", 6);
    let path = user.project().join(".ai/directives/team/note.md");
    let mut directive = std::fs::read_to_string(&path).expect("a directive");
    directive.push_str("\nAnd more.\n");
    std::fs::write(&path, directive).expect("written");
    let runs = tick(&user);
    assert_eq!(runs[0]["run"]["outcome"], "failed", "{runs:?}");
    assert!(!text(&runs[0]["run"]["message"]).is_empty());
    let file = user.home().join(".ai/config/agent/schedules.yaml");
    let text = std::fs::read_to_string(&file).expect("schedules");
    std::fs::write(&file, text.replace("\"5m\"", "\"1m\"")).expect("written");
    let result = run(user.command().args(["schedule", "tick"]));
    assert_eq!(result.exit, 0, "{result}");
    assert!(result.stderr.contains("schedules"), "{result}");
    let refused = run(user.command().args(["schedule", "add", "team/note", "--every", "1h", "--name", "b"]));
    assert_ne!(refused.exit, 0, "a file that does not verify is not written over: {refused}");
    user.write("config/agent/schedules.yaml", "version: \"1.0.0\"\ncategory: agent\nschedules: []\n");
    let list = user.data(["schedule", "list"]);
    assert_eq!(list["schedules"], json!([]), "{list}");
}

#[test]
fn schedules_are_paused_removed_and_run() {
    let user = added_user();
    user.ok(["schedule", "pause", "team/note"]);
    set_served(&user, "team/note", 6);
    assert_eq!(tick(&user), Vec::<Value>::new());
    user.ok(["schedule", "resume", "team/note"]);
    assert_eq!(tick(&user), Vec::<Value>::new(), "what was due meanwhile is not made up for");
    let started = user.data(["schedule", "run", "team/note"]);
    user.ok(["thread", "wait", &text(&started["thread_id"])]);
    user.ok(["schedule", "remove", "team/note"]);
    assert_eq!(user.data(["schedule", "list"])["schedules"], json!([]));
    assert_ne!(run(user.command().args(["schedule", "remove", "team/note"])).exit, 0);
    let invalid = run(user.command().args(["schedule", "add", "team/note", "--cron", "0 25 * * *"]));
    assert!(invalid.stderr.contains("invalid cron expression"), "{invalid}");
    let unknown = run(user.command().args(["schedule", "add", "team/nothing", "--every", "1h"]));
    assert_ne!(unknown.exit, 0, "{unknown}");
}

#[test]
fn unattended_approvals_are_denied() {
    let user = User::initialized();
    write_gate(&user, "end");
    user.data(["schedule", "add", "team/gate", "--every", "1h"]);
    let started = user.data(["schedule", "run", "team/gate"]);
    let id = text(&started["thread_id"]);
    let status = || text(&user.data(["thread", "show", &id])["status"]);
    assert!(eventually(|| status() == "suspended"), "{}", status());
    tick(&user);
    assert!(eventually(|| status() == "error"), "{}", user.data(["thread", "show", &id]));
    let shown = user.data(["thread", "show", &id]).to_string();
    assert!(shown.contains("this run is unattended"), "{shown}");
    assert!(!user.project().join("out.txt").exists());
    user.ok(["schedule", "remove", "team/gate"]);
    user.data(["schedule", "add", "team/gate", "--every", "1h", "--approvals", "wait"]);
    let started = user.data(["schedule", "run", "team/gate"]);
    let id = text(&started["thread_id"]);
    let status = || text(&user.data(["thread", "show", &id])["status"]);
    assert!(eventually(|| status() == "suspended"), "{}", status());
    tick(&user);
    assert_eq!(user.data(["thread", "approvals"])["approvals"].as_array().map(Vec::len), Some(1));
    // Its time comes while it waits: nothing starts beside it.
    set_served(&user, "team/gate", 65);
    let runs = tick(&user);
    assert_eq!(runs[0]["run"]["outcome"], "skipped", "{runs:?}");
    assert!(text(&runs[0]["run"]["message"]).contains(&id), "{runs:?}");
}

#[test]
fn systemd_units_name_this_binary() {
    let user = User::initialized();
    let units = user.data(["schedule", "systemd"]);
    let service = text(&units["service"]);
    assert!(service.contains("schedule tick") && service.contains("ExecStart=\"/"), "{service}");
    assert!(text(&units["timer"]).contains("OnCalendar=minutely"));
    let dir = user.home().join("units");
    let words = ["schedule", "systemd", "--write", "--dir", &dir.to_string_lossy()];
    user.ok(words);
    assert!(dir.join("rye-schedule.timer").is_file() && dir.join("rye-schedule.service").is_file());
}

#[test]
fn clients_read_the_schedules_of_their_project() {
    let user = added_user();
    let other = user.context.path().join("elsewhere");
    std::fs::create_dir(&other).expect("a folder");
    let mut client = Client::connect(&user);
    let listed = client.request("resources/list", json!({}));
    assert_eq!(listed["resources"][0]["uri"], "rye://schedules", "{listed}");
    let mut read = || {
        let answer = client.request("resources/read", json!({"uri": "rye://schedules"}));
        serde_json::from_str::<Value>(&text(&answer["contents"][0]["text"])).expect("JSON")
    };
    let schedules = read();
    assert_eq!(schedules["schedules"][0]["schedule"]["id"], "team/note", "{schedules}");
    assert!(schedules["schedules"][0]["next_at"].is_string(), "{schedules}");
    let path = user.home().join(".ai/config/agent/schedules.yaml");
    let file = std::fs::read_to_string(&path).expect("schedules");
    let project = user.project().display().to_string();
    std::fs::write(&path, file.replace(&project, &other.display().to_string())).expect("written");
    user.ok(["sign", "config", "agent/schedules", "--space", "user"]);
    assert_eq!(read(), json!({"schedules": []}));
}

#[test]
fn schedule_that_never_starts_is_refused() {
    let user = User::initialized();
    write_note_directive(&user);
    let run = user.run(["--json", "schedule", "add", "team/note", "--cron", "0 0 30 2 *"]);
    let error = run.error(2, "RYE0104");
    assert!(text(&error["error"]).contains("would never start"), "{error}");
    assert_eq!(user.data(["schedule", "list"])["schedules"], json!([]));
}

#[test]
fn background_watcher_is_named_and_ends_itself() {
    let user = User::initialized();
    let none = user.ok(["schedule", "watch", "--background"]);
    assert!(none.stderr.contains("no schedules"), "{none}");
    user.ok(["schedule", "watch", "--until-none"]);
    write_note_directive(&user);
    user.ok(["schedule", "add", "team/note", "--every", "5m", "--provider", "offline"]);
    user.ok(["schedule", "watch", "--background"]);
    let pid = || user.data(["schedule", "list"])["watcher_pid"].as_u64();
    assert!(eventually(|| pid().is_some()), "{}", user.data(["schedule", "list"]));
    let pid = pid().expect("a process");
    let listed = user.ok(["schedule", "list"]);
    assert!(listed.stderr.contains(&format!("to stop it: kill {pid}")), "{listed}");
    let again = user.ok(["schedule", "watch", "--background"]);
    assert!(again.stderr.contains(&format!("kill {pid}")), "{again}");
    user.ok(["schedule", "remove", "team/note"]);
    // Not `schedule list` again and again, which would keep the machine busy.
    let program = PathBuf::from(format!("/proc/{pid}/exe"));
    assert!(eventually(|| !program.exists()), "process {pid} has not ended");
    let list = user.data(["schedule", "list"]);
    assert_eq!((&list["is_watched"], &list["watcher_pid"]), (&json!(false), &Value::Null), "{list}");
}
