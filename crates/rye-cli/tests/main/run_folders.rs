//! What a run makes beside its project: its own temporary folder, which other runs do not see, and names that are reserved.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::json;

use crate::support::{User, run, text};
use crate::tool_support::{RYE, assert_no_processes, eventually, execute_data, write_function};

/// A tool that leaves a secret in its temporary folder, says where, and waits for a file.
const HOLDS_A_SECRET: &str = r#"
import os, time
with open(os.environ["TMPDIR"] + "/secret", "w") as file:
    file.write("hush")
with open("place.new", "w") as file:
    file.write(os.environ["TMPDIR"])
os.rename("place.new", "place")
for _ in range(6000):
    if os.path.exists("end"):
        break
    time.sleep(0.01)
with open(os.environ["TMPDIR"] + "/secret") as file:
    return file.read()
"#;

/// A tool that looks for the folders of other runs: where a path leads, and beside its own.
const LOOKS_AROUND: &str = r#"
import os
place = params["place"]
def attempt(action):
    try:
        return action()
    except OSError as error:
        return "refused"
return {
    "secret": attempt(lambda: open(place + "/secret").read()),
    "write": attempt(lambda: open(place + "/planted", "w").close()),
    "beside": attempt(lambda: os.listdir(os.path.dirname(os.environ["TMPDIR"]))),
    "own": os.path.basename(os.environ["TMPDIR"]),
    "usable": attempt(lambda: open(os.environ["TMPDIR"] + "/x", "w").close()),
}
"#;

fn start(user: &User, name: &str) -> Child {
    let mut command = user.program(RYE);
    command.args(["--json", "execute", &format!("team/{name}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

#[test]
fn temporary_folders_of_other_runs_are_closed() {
    let user = User::initialized();
    write_function(&user, "holds", HOLDS_A_SECRET);
    write_function(&user, "looks", LOOKS_AROUND);
    let mut child = start(&user, "holds");
    let place_file = user.project().join("place");
    assert!(eventually(|| place_file.exists()));
    let place = fs::read_to_string(&place_file).expect("a place");
    assert_eq!(fs::read_to_string(format!("{place}/secret")).expect("written"), "hush");
    let data = execute_data(&user, "looks", &[&format!("place={place}")]);
    for action in ["secret", "write"] {
        assert_eq!(text(&data[action]), "refused", "{data}");
    }
    assert_eq!(data["beside"], json!([data["own"]]), "{data}");
    assert!(data["usable"].is_null(), "{data}");
    fs::write(user.project().join("end"), "").expect("written");
    assert!(child.wait().expect("ended").success());
    assert_no_processes(&user.home().display().to_string());
}

#[test]
fn tools_make_no_bundle_files_or_lockfiles_folder() {
    let user = User::initialized();
    let ai = user.project().join(".ai");
    let command = "mkdir lockfiles; rmdir lockfiles; for name in bundles.toml bundles.lock; do \
        echo x > .ai/$name; rm -f .ai/$name; mv -f .ai/$name .ai/other; done; ls .ai; true";
    let answer = user.data(["execute", "rye/bash", &format!("command={command}")]);
    let listed = text(&answer["stdout"]);
    assert!(listed.contains("bundles.toml") && !listed.contains("other"), "{answer}");
    for path in [ai.join("bundles.toml"), ai.join("bundles.lock"), user.project().join("lockfiles")] {
        assert!(!path.exists(), "{}", path.display());
    }
    // To a command beside the run, the project still asks for no bundle.
    let seen = user.data(["execute", "rye/bash", "command=cat .ai/bundles.toml"]);
    fs::write(ai.join("bundles.toml"), text(&seen["stdout"])).expect("written");
    let synced = run(user.command().args(["sync", "--json"]));
    fs::remove_file(ai.join("bundles.toml")).expect("removed");
    assert_eq!(synced.stdout, run(user.command().args(["sync", "--json"])).stdout);
}
