//! Threads that outlive their command: the process that runs them, from the outside.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{Run, User, run, text};
use crate::thread_run::{FILES, command_with_model, spawn_with_model, threads, write_directive};
use crate::tool_support::eventually;

/// The key of [`asking`].
const API_KEY: &str = "sk-of-a-test-0123456789";

/// How long a command waits for a thread that must end.
const WAIT_SECONDS: &str = "240";

fn user_with_directive() -> User {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    user
}

/// A model whose first so many requests get no answer.
fn hang_first(count: u64) -> FakeModel {
    FakeModel::start(
        move |request| if request.number <= count { FakeReply::hang() } else { FakeReply::text("Hello.") },
    )
}

fn runtime_dir(user: &User) -> PathBuf {
    user.home().join(".ai/config/keys/signing/background")
}

/// The processes that run threads of this user in the background.
fn processes(user: &User) -> Vec<u32> {
    let keys = user.home().join(".ai/config/keys/signing").display().to_string();
    let words = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_one = |pid: &u32| {
        let words = String::from_utf8_lossy(&words(pid)).replace('\0', " ");
        words.contains(&format!(" background --keys {keys} "))
    };
    let entries = std::fs::read_dir("/proc").expect("processes");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("sent").success());
}

/// Ends the one process of this user that runs threads.
fn kill_daemon(user: &User) {
    let found = processes(user);
    assert_eq!(found.len(), 1, "{found:?}");
    signal("-KILL", found[0]);
    assert!(eventually(|| processes(user).is_empty()));
}

fn wait_for_run(child: Child) -> Run {
    Run::from_output(&child.wait_with_output().expect("an end"))
}

/// Starts a thread in the background; its name.
fn start_in_background(user: &User, model: &FakeModel) -> String {
    let started = run(command_with_model(user, model).args(["--json", "run", "team/ask", "--async"]));
    assert_eq!(started.exit, 0, "{started}");
    text(&started.json()["thread_id"])
}

#[test]
fn concurrent_starts_share_one_idle_exiting_daemon() {
    let user = user_with_directive();
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("Hello.").with_gate(&pending));
    let words = ["--json", "run", "team/ask", "--async"];
    let starters: Vec<Child> = (0..4).map(|_| spawn_with_model(&user, &model, &words)).collect();
    let answers: Vec<Value> = starters.into_iter().map(|starter| wait_for_run(starter).json()).collect();
    let pids: Vec<u64> = answers.iter().filter_map(|answer| answer["pid"].as_u64()).collect();
    assert!(pids.len() == 4 && pids.iter().all(|pid| *pid == pids[0]), "{answers:?}");
    // Those that were not needed have ended.
    assert!(eventually(|| processes(&user).len() == 1));
    let environment = std::fs::read(format!("/proc/{}/environ", pids[0])).expect("an environment");
    assert_eq!(String::from_utf8_lossy(&environment), "", "it keeps nothing of its starter");
    assert_eq!(std::fs::read_link(format!("/proc/{}/cwd", pids[0])).expect("a folder"), Path::new("/"));
    gate.open();
    for answer in &answers {
        user.ok(["thread", "wait", &text(&answer["thread_id"]), "--timeout", WAIT_SECONDS]);
    }
    assert!(eventually(|| processes(&user).is_empty()), "it ends by itself");
    let left = std::fs::read_dir(runtime_dir(&user).join("places")).expect("places").count();
    assert_eq!(left, 0, "and remembers no place without threads");
}

#[test]
fn daemon_closes_inherited_descriptors() {
    let user = user_with_directive();
    let model = hang_first(9);
    let mut starter = user.program("sh");
    starter.env("OPENAI_API_KEY", API_KEY).env("OPENAI_BASE_URL", format!("{}/v1", model.url()));
    // Descriptor 3 is the pipe; rye knows nothing of it.
    let script = "exec 3>&1; \"$0\" -q run team/ask --async >/dev/null 2>&1";
    starter.args(["-c", script, crate::tool_support::RYE]).stdout(std::process::Stdio::piped());
    let output = starter.spawn().expect("started").wait_with_output().expect("the end of the pipe");
    assert!(output.status.success());
    assert_eq!(processes(&user).len(), 1, "it is running");
    kill_daemon(&user);
}

#[test]
fn wait_survives_a_killed_daemon() {
    let user = user_with_directive();
    let model = hang_first(1);
    let id = start_in_background(&user, &model);
    model.wait_for_requests(1);
    let waiter = spawn_with_model(&user, &model, &["--json", "thread", "wait", &id]);
    let follower = spawn_with_model(&user, &model, &["thread", "tail", &id]);
    kill_daemon(&user);
    let waited = wait_for_run(waiter);
    assert_eq!(waited.exit, 0, "{waited}");
    assert_eq!(waited.json()["data"]["results"][&id]["status"], "completed", "{waited}");
    let followed = wait_for_run(follower);
    assert!(followed.exit == 0 && followed.stdout.contains("completed"), "{followed}");
    assert_eq!(model.count(), 2, "one in flight, one after");
    let row = threads(&user).remove(0);
    assert_eq!((&row["status"], &row["is_detached"]), (&json!("completed"), &json!(true)), "{row}");
    user.ok(["thread", "verify", &id]);
}

#[test]
fn listing_resumes_an_abandoned_thread() {
    let user = user_with_directive();
    let model = hang_first(1);
    let id = start_in_background(&user, &model);
    model.wait_for_requests(1);
    kill_daemon(&user);
    // A process that starts slowly has not taken the thread up when the first list is printed.
    let is_taken_up = || {
        let listed = run(command_with_model(&user, &model).args(["--json", "thread", "list"])).json();
        listed["data"]["threads"][0]["is_interrupted"] == false
    };
    assert!(eventually(is_taken_up), "no list resumed it");
    user.ok(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
}

#[test]
fn killed_starter_has_started_its_thread() {
    let user = user_with_directive();
    let model = hang_first(1);
    let first = start_in_background(&user, &model);
    model.wait_for_requests(1);
    // It is stopped: what is asked of it now is never answered.
    signal("-STOP", processes(&user)[0]);
    let mut starter = spawn_with_model(&user, &model, &["run", "team/ask", "--async"]);
    assert!(eventually(|| threads(&user).len() == 2), "it is there before any process runs it");
    starter.kill().expect("killed");
    starter.wait().expect("an end");
    kill_daemon(&user);
    for row in threads(&user) {
        let id = text(&row["thread_id"]);
        let waited =
            run(command_with_model(&user, &model).args(["thread", "wait", &id, "--timeout", WAIT_SECONDS]));
        assert_eq!(waited.exit, 0, "{waited}");
    }
    assert_eq!(threads(&user).len(), 2);
    assert_eq!(model.count(), 3, "the first thread's call was in flight");
    assert!(threads(&user).iter().any(|row| row["thread_id"] == first));
}

/// Every file below a folder.
fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => collect_files(&entry.path(), found),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

#[test]
fn environment_stays_off_disk_and_dir_private() {
    let user = user_with_directive();
    let model = hang_first(1);
    let id = start_in_background(&user, &model);
    model.wait_for_requests(1);
    kill_daemon(&user);
    let waited =
        run(command_with_model(&user, &model).args(["thread", "wait", &id, "--timeout", WAIT_SECONDS]));
    assert_eq!(waited.exit, 0, "{waited}");
    let mut all = Vec::new();
    [user.home(), user.project(), user.context.cache()]
        .iter()
        .for_each(|folder| collect_files(folder, &mut all));
    assert!(all.len() > 10);
    for path in all {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let is_in = bytes.windows(API_KEY.len()).any(|window| window == API_KEY.as_bytes());
        assert!(!is_in, "{}", path.display());
    }
    let mode = |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&runtime_dir(&user)), 0o700);
    for entry in std::fs::read_dir(runtime_dir(&user)).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    // One that others may enter is not used.
    assert!(eventually(|| processes(&user).is_empty()));
    std::fs::set_permissions(runtime_dir(&user), std::fs::Permissions::from_mode(0o755)).expect("opened up");
    let before = threads(&user).len();
    let refused = run(command_with_model(&user, &model).args(["--json", "run", "team/ask", "--async"]));
    refused.error(1, "RYE1136");
    assert_eq!(threads(&user).len(), before, "no thread is left behind");
}

/// Says something to the process, and gives what it answers.
fn send_raw(user: &User, bytes: &[u8]) -> String {
    let folder = runtime_dir(user);
    let socket = std::fs::read_dir(&folder).expect("a folder").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.ends_with(".sock").then_some(name)
    });
    let socket = socket.last().expect("a socket");
    let mut stream = lillux::socket::connect(&folder, &socket).expect("connected");
    // It may have refused already what takes too long.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn daemon_survives_malformed_requests() {
    let user = user_with_directive();
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("Hello.").with_gate(&pending));
    let id = start_in_background(&user, &model);
    let location =
        std::fs::read_dir(runtime_dir(&user).join("places")).expect("places").next().expect("a place");
    let location: Value =
        serde_json::from_slice(&std::fs::read(location.expect("an entry").path()).expect("a place"))
            .expect("JSON");
    let request = |change: &dyn Fn(&mut Value)| {
        let mut request = json!({"place": location, "environment": {}, "threads": [id]});
        change(&mut request);
        format!("{request}\n").into_bytes()
    };
    let elsewhere = "/nowhere/at/all";
    let cases: [(Vec<u8>, &str); 8] = [
        (b"".to_vec(), "one line"),
        (b"half a line".to_vec(), "one line"),
        (b"\xff\xfe\0garbage\n".to_vec(), "not understood"),
        (b"{}\n".to_vec(), "not understood"),
        (vec![b'x'; 5 << 20], "one line"),
        (request(&|request| request["more"] = json!(1)), "not understood"),
        (request(&|request| request["threads"] = json!(["../../etc"])), "not understood"),
        (request(&|request| request["place"]["signing_keys"] = json!(elsewhere)), "another user's"),
    ];
    for (bytes, why) in cases {
        let answer = send_raw(&user, &bytes);
        assert!(answer.contains("refused") && answer.contains(why), "{why}: {answer}");
    }
    let nowhere = send_raw(&user, &request(&|request| request["place"]["threads"] = json!(elsewhere)));
    assert!(nowhere.contains("no threads in"), "{nowhere}");
    let missing = send_raw(&user, &request(&|request| request["threads"] = json!(["thread-000000000000"])));
    assert!(missing.contains(r#""left":{"thread-000000000000":"#), "{missing}");
    // A thread that runs is not started a second time.
    let again = send_raw(&user, &request(&|_| {}));
    assert!(again.contains(r#""left":{}"#), "{again}");
    gate.open();
    user.ok(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
    assert_eq!(model.count(), 1);
}

#[test]
fn frozen_daemon_does_not_hide_the_thread() {
    let user = user_with_directive();
    let model = hang_first(1);
    let first = start_in_background(&user, &model);
    model.wait_for_requests(1);
    let daemon = processes(&user)[0];
    signal("-STOP", daemon);
    let left = run(command_with_model(&user, &model).args(["run", "team/ask", "--async"]));
    signal("-CONT", daemon);
    assert_eq!(left.exit, 1, "{left}");
    let id = left.stdout.trim();
    assert!(id.starts_with("thread-"), "{left}");
    assert!(left.stderr.contains("has not answered"), "{left}");
    assert!(left.stderr.contains(&format!("rye thread resume {id}")), "{left}");
    // The request was sent: the process runs it once it is awake again.
    let waited =
        run(command_with_model(&user, &model).args(["thread", "wait", id, "--timeout", WAIT_SECONDS]));
    assert_eq!(waited.exit, 0, "{waited}");
    user.ok(["thread", "cancel", &first]);
}

#[test]
fn thread_without_api_key_records_the_reason() {
    let user = user_with_directive();
    let model = hang_first(1);
    let id = start_in_background(&user, &model);
    model.wait_for_requests(1);
    kill_daemon(&user);
    // This command has no key to give.
    let waited = user.run(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
    assert_eq!(waited.exit, 1, "{waited}");
    assert!(waited.stdout.contains("interrupted") && waited.stderr.contains("OPENAI_API_KEY"), "{waited}");
    let output = user.ok(["thread", "show", &id]);
    assert!(output.stdout.contains("interrupted") && output.stdout.contains("OPENAI_API_KEY"), "{output}");
    assert_eq!(threads(&user)[0]["status"], "running", "it has not failed");
    let waited =
        run(command_with_model(&user, &model).args(["thread", "wait", &id, "--timeout", WAIT_SECONDS]));
    assert_eq!((waited.exit, threads(&user)[0]["note"].is_null()), (0, true), "{waited}");
}

#[test]
fn daemon_resumes_other_projects_unless_disabled() {
    for is_wanted in [true, false] {
        let user = user_with_directive();
        let text = format!(
            "version: \"1.0.0\"\ncategory: agent\nname: coordination\ncoordination: {{orphan_detection: {{scan_on_startup: {is_wanted}}}}}\n"
        );
        user.write("config/agent/coordination.yaml", text);
        user.ok(["sign", "config", "agent/coordination", "--space", "project"]);
        let model = hang_first(1);
        let id = start_in_background(&user, &model);
        model.wait_for_requests(1);
        kill_daemon(&user);
        // A user starts something elsewhere.
        let other = user.context.home().join("other");
        std::fs::create_dir_all(&other).expect("a folder");
        run(user.command().current_dir(&other).args(["init"]));
        let greet = ["--json", "run", "examples/greet", "name=Ada", "--async", "--provider", "offline"];
        let elsewhere = run(command_with_model(&user, &model).current_dir(&other).args(greet));
        assert_eq!(elsewhere.exit, 0, "{elsewhere}");
        let greeting = crate::support::text(&elsewhere.json()["thread_id"]);
        let waited = user.command().current_dir(&other).args(["thread", "wait", &greeting]).output();
        assert!(waited.expect("an end").status.success());
        if is_wanted {
            model.wait_for_requests(2);
        } else {
            assert!(eventually(|| processes(&user).is_empty()), "there was nothing else to do");
            assert_eq!(model.count(), 1);
        }
        let waited =
            run(command_with_model(&user, &model).args(["thread", "wait", &id, "--timeout", WAIT_SECONDS]));
        assert_eq!((waited.exit, model.count()), (0, 2), "{waited}");
    }
}

#[test]
fn thread_outlives_the_server_that_started_it() {
    let user = user_with_directive();
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("Hello.").with_gate(&pending));
    let url = format!("{}/v1", model.url());
    let mut client =
        Client::connect_with(&user, &[("OPENAI_API_KEY", API_KEY), ("OPENAI_BASE_URL", &url)], json!({}));
    let order = json!({"item_id": "directive:team/ask", "thread": "fork", "async": true});
    let answer = client.call("rye_execute", order);
    let (id, pid) = (text(&answer["data"]["thread_id"]), answer["data"]["pid"].as_u64());
    assert_eq!(processes(&user).first().map(|pid| u64::from(*pid)), pid, "{answer}");
    model.wait_for_requests(1);
    client.close();
    gate.open();
    user.ok(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
    assert_eq!(model.count(), 1);
}

#[test]
fn server_leaves_no_zombie_process() {
    let user = user_with_directive();
    let mut client = Client::connect(&user);
    let order = json!({"item_id": "directive:team/ask", "thread": "fork", "async": true});
    let answer = client.call("rye_execute", order);
    let pid = answer["data"]["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let process = PathBuf::from(format!("/proc/{pid}"));
    assert!(eventually(|| !process.exists()), "it ends, and its parent collects it");
    client.close();
}

#[test]
fn tool_cannot_reach_the_daemon() {
    let user = user_with_directive();
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("Hello.").with_gate(&pending));
    let id = start_in_background(&user, &model);
    let body = format!(
        "import glob, os, socket\nfolder = {:?}\nfound = glob.glob(folder + '/*.sock')\ntry:\n    names = os.listdir(folder)\nexcept OSError:\n    names = []\nreturn {{'found': found, 'names': names}}",
        runtime_dir(&user).display().to_string()
    );
    crate::tool_support::write_function(&user, "reach", &body);
    let result = crate::tool_support::execute_data(&user, "reach", &[]);
    assert_eq!(result, json!({"found": [], "names": []}), "its folder is hidden");
    gate.open();
    user.ok(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
}

#[test]
fn detached_child_outlives_its_run() {
    let user = User::initialized();
    let rights = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
    write_directive(&user, "lead", rights, "", "I am the lead.");
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |request| {
        if request.body.to_string().contains("Say hello.") {
            return FakeReply::text("Hello.").with_gate(&pending);
        }
        let child = json!({"directive_name": "team/ask", "async_exec": true});
        match request.tool_results {
            0 => FakeReply::calls([("rye_agent_threads_thread_directive", child)]),
            _ => FakeReply::text("done"),
        }
    });
    let led = run(command_with_model(&user, &model).args(["run", "team/lead"]));
    assert_eq!((led.exit, led.stdout.as_str()), (0, "done\n"), "{led}");
    let rows = threads(&user);
    let (child, root) = (text(&rows[0]["thread_id"]), text(&rows[1]["thread_id"]));
    let output = format!("still running in the background: 1 thread it started; rye thread tree {root}");
    assert!(led.stderr.contains(&output), "{led}");
    gate.open();
    user.ok(["thread", "wait", &child, "--timeout", WAIT_SECONDS]);
}

#[test]
fn copied_project_resumes_no_threads() {
    let user = user_with_directive();
    let model = hang_first(1);
    let id = start_in_background(&user, &model);
    model.wait_for_requests(1);
    kill_daemon(&user);
    let copy = user.home().join("copy");
    crate::support::copy_tree(&user.project(), &copy);
    let wait = ["thread", "wait", id.as_str(), "--timeout", WAIT_SECONDS];
    let list = ["--json", "thread", "list"];
    let listed = run(command_with_model(&user, &model).current_dir(&copy).args(list));
    assert_eq!(listed.json()["data"]["threads"][0]["is_interrupted"], true, "{listed}");
    let waited = run(command_with_model(&user, &model).current_dir(&copy).args(wait));
    assert!(waited.exit == 1 && waited.stdout.contains("interrupted"), "{waited}");
    assert_eq!((model.count(), processes(&user).len()), (1, 0));
    // Where it was started it does.
    let waited = run(command_with_model(&user, &model).args(wait));
    assert_eq!((waited.exit, model.count()), (0, 2), "{waited}");
}

#[test]
fn failed_daemon_start_leaves_no_thread() {
    let user = user_with_directive();
    let model = hang_first(0);
    let id = start_in_background(&user, &model);
    user.ok(["thread", "wait", &id, "--timeout", WAIT_SECONDS]);
    assert!(eventually(|| processes(&user).is_empty()));
    for entry in std::fs::read_dir(runtime_dir(&user)).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "lock") && path.is_file() {
            std::fs::remove_file(&path).expect("removed");
            std::fs::create_dir(&path).expect("something else in its place");
        }
    }
    let refused = run(command_with_model(&user, &model).args(["--json", "run", "team/ask", "--async"]));
    let error = refused.error(1, "RYE1136");
    assert!(text(&error["error"]).contains("it ends as soon as it is started"), "{error}");
    assert_eq!((threads(&user).len(), model.count()), (1, 1));
}

#[test]
fn interrupt_reaches_background_children() {
    let user = User::initialized();
    let rights = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
    write_directive(&user, "lead", rights, "", "I am the lead.");
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(move |request| {
        if request.body.to_string().contains("Say hello.") {
            return FakeReply::hang();
        }
        let child = json!({"directive_name": "team/ask", "async_exec": true});
        match request.tool_results {
            0 => FakeReply::calls([("rye_agent_threads_thread_directive", child)]),
            _ => {
                let ids: Vec<Value> = request
                    .tool_result_texts()
                    .iter()
                    .filter_map(|result| serde_json::from_str(result).ok())
                    .collect();
                let wait = json!({"operation": "wait_threads", "thread_ids": [ids[0]["thread_id"]]});
                FakeReply::calls([("rye_agent_threads_orchestrator", wait)])
            }
        }
    });
    let led = spawn_with_model(&user, &model, &["run", "team/lead"]);
    // The lead has asked twice, the child once.
    model.wait_for_requests(3);
    signal("-INT", led.id());
    let led = wait_for_run(led);
    assert_eq!(led.exit, 7, "{led}");
    assert!(eventually(|| threads(&user).iter().all(|row| row["status"] == "cancelled")));
    model.wait_for_abandoned(1);
}
