//! What a pin covers and how it is changed: imported files, tools that come and go in front of each other, installed
//! bundles, moved projects, and the commands that look after lockfiles.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::install::{BundleAuthor, install};
use crate::support::{User, run, text};
use crate::tool_support::{execute, function_text, write_function, write_signed_tool};

fn in_kit_category(text: &str) -> String {
    text.replace("\"team\"", "\"team/kit\"")
}

/// A user with the Python package `team/kit`, whose tool `team/kit/main` imports `json` and gives what that is called.
fn user_with_package() -> User {
    let user = User::initialized();
    let main = function_text("", "import json\nreturn getattr(json, 'OWNER', 'standard')");
    user.write("tools/team/kit/main.py", in_kit_category(&main));
    user.write("tools/team/kit/__init__.py", in_kit_category(&rye_test::tool("team", "A package")));
    user.ok(["sign", "tool", "team/kit/*", "--yes"]);
    user
}

fn add_module(user: &User, name: &str) -> PathBuf {
    let text = format!("{}\nOWNER = 'module'\n", in_kit_category(&rye_test::tool("team", "A module")));
    let path = user.write(&format!("tools/team/kit/{name}.py"), text);
    user.ok(["sign", "tool", &format!("team/kit/{name}")]);
    path
}

fn lockfile(user: &User, name: &str) -> PathBuf {
    user.home().join(format!(".ai/lockfiles/{name}@1.0.0.lock.json"))
}

fn change(path: &PathBuf, edit: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).expect("a lockfile")).expect("JSON");
    edit(&mut value);
    fs::write(path, value.to_string()).expect("changed");
}

fn execute_error(user: &User, id: &str) -> String {
    for words in [vec!["execute", id], vec!["execute", id, "--locked"], vec!["execute", id, "--dry-run"]] {
        user.assert_refused(words, 8, "RYE0501");
    }
    text(&user.assert_refused(["execute", id, "--frozen"], 8, "RYE0501")["error"])
}

#[test]
fn new_signed_file_beside_pin_is_refused() {
    let user = user_with_package();
    assert_eq!(user.data(["execute", "team/kit/main"]), json!("standard"));
    let module = add_module(&user, "json");
    let error = execute_error(&user, "team/kit/main");
    assert!(error.contains("the file `json.py` is new: it was not pinned"), "{error}");
    assert_eq!(user.data(["lock", "list"])["lockfiles"][0]["state"], "mismatch");
    let updated = user.data(["lock", "update", "team/kit/main"]);
    assert_eq!(updated["lockfiles"][0]["changes"][0]["element"], "json.py", "{updated}");
    user.ok(["execute", "team/kit/main", "--locked"]);
    fs::remove_file(module).expect("removed");
    let error = execute_error(&user, "team/kit/main");
    assert!(error.contains("the file `json.py` was pinned and is not used any more"), "{error}");
}

#[test]
fn file_that_appears_anywhere_importable_is_refused() {
    let user = user_with_package();
    user.ok(["execute", "team/kit/main"]);
    // Deeper in the package, and in a package around it.
    for (folder, category) in [("team/kit/sub", "team/kit/sub"), ("team", "team")] {
        let text = rye_test::tool(category, "A module");
        let paths = ["__init__", "extra"].map(|name| {
            let path = user.write(&format!("tools/{folder}/{name}.py"), &text);
            user.ok(["sign", "tool", &format!("{folder}/{name}")]);
            path
        });
        let error = execute_error(&user, "team/kit/main");
        assert!(error.contains("is new: it was not pinned"), "{error}");
        paths.into_iter().for_each(|path| fs::remove_file(path).expect("removed"));
        user.ok(["execute", "team/kit/main", "--locked"]);
    }
    // A tool that was alone becomes a package.
    let user = User::initialized();
    write_function(&user, "alone", "return 1");
    execute(&user, "alone", &[]);
    for name in ["__init__", "json"] {
        write_signed_tool(&user, &format!("team/{name}"), "py", &rye_test::tool("team", "A module"));
    }
    assert!(execute_error(&user, "team/alone").contains("is new: it was not pinned"));
}

#[test]
fn lockfile_without_imports_pins_none() {
    let user = user_with_package();
    let path = lockfile(&user, "team/kit/main");
    user.ok(["execute", "team/kit/main"]);
    add_module(&user, "helper");
    user.ok(["lock", "update", "team/kit/main"]);
    let edits: [fn(&mut Value); 3] = [
        |value| value["verified_deps"] = Value::Null,
        |value| value["verified_deps"] = json!([]),
        |value| {
            value.as_object_mut().expect("an object").remove("verified_deps");
        },
    ];
    for edit in edits {
        change(&path, edit);
        assert!(execute_error(&user, "team/kit/main").contains("is new: it was not pinned"));
        user.ok(["lock", "update", "team/kit/main"]);
        user.ok(["execute", "team/kit/main", "--locked"]);
    }
    // Without anything to import, such a lockfile matches.
    write_function(&user, "plain", "return 1");
    let plain = lockfile(&user, "team/plain");
    execute(&user, "plain", &[]);
    for edit in edits {
        change(&plain, edit);
        execute(&user, "plain", &["--locked"]);
    }
}

#[test]
fn signing_a_tool_accepts_no_new_import() {
    let user = user_with_package();
    user.ok(["execute", "team/kit/main"]);
    add_module(&user, "json");
    let main = function_text("", "import json\nreturn 2");
    user.write("tools/team/kit/main.py", in_kit_category(&main));
    user.ok(["sign", "tool", "team/kit/main"]);
    execute_error(&user, "team/kit/main");
    user.ok(["lock", "update", "team/kit/main"]);
    assert_eq!(user.data(["execute", "team/kit/main", "--locked"]), json!(2));
}

#[test]
fn changed_package_json_is_refused() {
    let user = User::initialized();
    let tool = "// Says so.\nexport const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"rye/core/runtimes/node/node\";\nexport const __category__ = \"team/web\";\nexport const __tool_description__ = \"Says so\";\nconsole.log(\"1\");\n";
    user.write("tools/team/web/main.js", tool);
    user.ok(["sign", "tool", "team/web/main"]);
    // Pinned without a run: no Node is needed for that.
    user.ok(["lock", "update", "team/web/main"]);
    let package = user.write("tools/team/web/package.json", "{\"type\": \"module\"}");
    assert!(execute_error(&user, "team/web/main").contains("the file `package.json` is new"));
    user.ok(["lock", "update", "team/web/main"]);
    assert_eq!(user.data(["lock", "verify"])["ok"], 1);
    fs::write(&package, "{\"imports\": {\"#x\": \"./y.js\"}}").expect("changed");
    assert!(execute_error(&user, "team/web/main").contains("the file `package.json` changed"));
    user.ok(["lock", "update", "team/web/main"]);
    user.write("tools/team/web/node_modules/left/index.js", "export default 1;");
    assert!(execute_error(&user, "team/web/main").contains("the file `node_modules/` is new"));
}

#[test]
fn hidden_tool_keeps_its_pin_when_removed_here() {
    let user = User::initialized();
    user.write_user("tools/team/x.sh", shell_tool("1"));
    user.ok(["sign", "tool", "team/x", "--space", "user"]);
    execute(&user, "x", &[]);
    write_signed_tool(&user, "team/x", "sh", &shell_tool("2"));
    let answered = user.data(["lock", "remove", "team/x"]);
    assert_eq!(
        (&answered["removed"], &answered["kept"][0]["scope"]),
        (&json!([]), &json!("user")),
        "{answered}"
    );
    execute_error(&user, "team/x");
}

fn shell_tool(output: &str) -> String {
    format!(
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: Is run\n\necho {output}\n"
    )
}

#[test]
fn unshadowed_tool_runs_after_one_update() {
    let user = User::initialized();
    user.write_user("tools/team/x.sh", shell_tool("1"));
    user.ok(["sign", "tool", "team/x", "--space", "user"]);
    assert_eq!(execute(&user, "x", &[])["data"], 1);
    let path = write_signed_tool(&user, "team/x", "sh", &shell_tool("2"));
    execute_error(&user, "team/x");
    user.ok(["lock", "update", "team/x"]);
    assert_eq!(execute(&user, "x", &["--locked"])["data"], 2);
    fs::remove_file(path).expect("removed");
    assert!(execute_error(&user, "team/x").contains("was pinned in project space, found in user"));
    let updated = user.ok(["lock", "update", "team/x"]);
    assert!(updated.stdout.contains("removed team/x@1.0.0"), "{updated}");
    assert_eq!(execute(&user, "x", &["--locked"])["data"], 1);
}

#[test]
fn reinstalled_bundle_is_not_blocked_by_old_pins() {
    for space in ["project", "user"] {
        let (maker, user) = (BundleAuthor::new(), User::initialized());
        let first = maker.create("1.0.0");
        install(&user, &first, &maker, &["--space", space]);
        assert_eq!(user.data(["execute", "team/hi"]), json!(1));
        let done = user.data(["uninstall", "gifts"]);
        assert_eq!(done["lockfiles"].as_array().map(Vec::len), Some(1), "{done}");
        assert!(!lockfile(&user, "team/hi").exists());
        maker.write_tool("hi", "2");
        install(&user, &maker.create("1.1.0"), &maker, &["--space", space]);
        assert_eq!(user.data(["execute", "team/hi"]), json!(2));
        assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(2));
        // The team's lockfile is left, and named.
        user.ok(["lock", "update", "team/hi", "--scope", "project"]);
        let done = user.data(["uninstall", "gifts"]);
        assert_eq!(done["lockfiles_left"].as_array().map(Vec::len), Some(1), "{done}");
    }
}

#[test]
fn upgrade_that_changes_an_imported_file_keeps_pins() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let module = |value: u32| format!("{}\nVALUE = {value}\n", rye_test::tool("team", "A module"));
    maker.user.write("tools/team/__init__.py", rye_test::tool("team", "A package"));
    maker.user.write("tools/team/helper.py", module(1));
    maker.user.write("tools/team/hi.py", function_text("", "from . import helper\nreturn helper.VALUE"));
    fs::remove_file(maker.user.project().join(".ai/tools/team/data.json")).expect("removed");
    install(&user, &maker.create("1.0.0"), &maker, &[]);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
    maker.user.write("tools/team/helper.py", module(2));
    maker.user.write("tools/team/more.py", rye_test::tool("team", "More"));
    let done = install(&user, &maker.create("2.0.0"), &maker, &[]);
    assert_eq!(done["lockfiles"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(2));
    user.ok(["bundle", "rollback", "gifts"]);
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(1));
    // A file of the user's own beside it is not imported.
    write_signed_tool(&user, "team/json", "py", &rye_test::tool("team", "Not of the bundle"));
    let done = install(&user, &maker.create("3.0.0"), &maker, &[]);
    assert_eq!(done["lockfiles"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(2));
    // What the bundle did not bring is not agreed to with it.
    write_signed_tool(&user, "team/helper", "py", &module(9));
    let done = install(&user, &maker.create("4.0.0"), &maker, &[]);
    assert_eq!(done["lockfiles"], json!([]), "{done}");
    execute_error(&user, "team/hi");
}

#[test]
fn stale_lockfile_is_reported_where_replaced() {
    let user = User::initialized();
    write_function(&user, "x", "return 1");
    execute(&user, "x", &[]);
    let outdate = |path: &PathBuf, version: &str| {
        change(path, |value| {
            for index in [1, 2] {
                let entry = &mut value["resolved_chain"][index];
                entry["provider_version"] = json!(version);
                entry["integrity"] = json!("0".repeat(64));
            }
        });
    };
    let own = lockfile(&user, "team/x");
    outdate(&own, "99.0.0");
    let before = fs::read(&own).expect("a lockfile");
    let notes = |words: &[&str]| execute(&user, "x", words)["notes"].to_string();
    for flag in ["--frozen", "--dry-run"] {
        let output = notes(&[flag]);
        assert!(
            output.contains("is stale: the bundle `ryeos-core` was downgraded from 99.0.0 to "),
            "{output}"
        );
        assert!(output.contains("rye lock update team/x") && !output.contains("replaced"), "{output}");
        assert_eq!(fs::read(&own).expect("a lockfile"), before);
    }
    let output = notes(&[]);
    assert!(output.contains("replaced the lockfile") && output.contains("was downgraded"), "{output}");
    assert_eq!(execute(&user, "x", &["--locked"])["lock"]["state"], "held");

    // The team's lockfile is not replaced by a run that writes to user scope.
    user.ok(["lock", "update", "team/x", "--scope", "project"]);
    let team = user.project().join("lockfiles/team/x@1.0.0.lock.json");
    outdate(&team, "0.0.1");
    let before = fs::read(&team).expect("a lockfile");
    let output = notes(&[]);
    assert!(output.contains("is stale: the bundle `ryeos-core` was upgraded from 0.0.1 to "), "{output}");
    assert!(!output.contains("replaced"), "{output}");
    assert_eq!(fs::read(&team).expect("a lockfile"), before);
    user.ok(["lock", "update", "team/x"]);
    execute(&user, "x", &["--locked"]);
}

#[test]
fn check_requires_every_project_tool_pinned() {
    let user = User::initialized();
    fs::remove_dir_all(user.project().join(".ai/tools/examples")).expect("removed");
    assert_eq!(user.data(["lock", "check"])["checked"], 0);
    write_function(&user, "one", "return 1");
    write_function(&user, "two", "return 2");
    let runtime = "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: shell\ndescription: Runs\nconfig:\n  command: /bin/bash\n  args: [\"{tool_path}\"]\n";
    write_signed_tool(&user, "team/shell", "yaml", runtime);
    let report = user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert_eq!((&report["data"]["checked"], &report["data"]["unpinned"]), (&json!(2), &json!(2)), "{report}");
    execute(&user, "one", &[]);
    let states = |report: &Value| {
        let tools = report["tools"].as_array().expect("tools");
        tools.iter().map(|tool| text(&tool["state"])).collect::<Vec<_>>()
    };
    let report = user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert_eq!(states(&report["data"]), ["ok", "unpinned"], "{report}");
    let all = user.data(["lock", "update", "--all"]);
    assert_eq!(all["tools"].as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(states(&user.data(["lock", "check"])), ["ok", "ok"]);
    assert_eq!(user.ok(["lock", "check"]).stdout, "2 tools checked: 2 ok\n");

    // The user's own pins do not make a tool pinned for the team.
    user.assert_refused(["lock", "check", "--scope", "project"], 8, "RYE0506");
    user.ok(["lock", "update", "--all", "--scope", "project"]);
    user.ok(["lock", "check", "--scope", "project"]);

    write_function(&user, "two", "return 3");
    let report = user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert_eq!(states(&report["data"]), ["ok", "mismatch"], "{report}");
    assert_eq!(report["data"]["tools"][1]["differences"][0]["what"], "hash", "{report}");
    user.write("tools/team/two.py", function_text("", "return 4"));
    let report = user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert_eq!(states(&report["data"]), ["ok", "refused"], "{report}");
    // What cannot be pinned does not stop the others, and is named.
    let failed = run(user.command().args(["--json", "lock", "update", "--all"])).error(4, "RYE0401");
    assert_eq!(failed["data"]["failed"][0]["tool_id"], "team/two", "{failed}");
    assert_eq!(failed["data"]["tools"].as_array().map(Vec::len), Some(1), "{failed}");
    write_function(&user, "two", "return 4");
    fs::write(user.project().join("lockfiles/team/one@1.0.0.lock.json"), "{").expect("damaged");
    let report = user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert_eq!(states(&report["data"]), ["corrupt", "mismatch"], "{report}");
    user.ok(["lock", "update", "--all"]);
    user.ok(["lock", "check"]);
}

#[test]
fn check_and_update_all_need_a_project() {
    let user = User::initialized();
    let elsewhere = user.context.path().join("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a folder");
    for words in [["lock", "check", "--json"], ["lock", "update", "--all"]] {
        let run = run(user.command().current_dir(&elsewhere).args(words));
        assert_eq!(run.exit, 3, "{run}");
    }
    assert_eq!(user.run(["lock", "update"]).exit, 2);
    assert_eq!(user.run(["lock", "update", "team/x", "--all"]).exit, 2);
}

#[test]
fn removed_pin_is_gone_and_others_stay() {
    let user = User::initialized();
    write_function(&user, "x", "return 1");
    user.assert_refused(["lock", "remove", "team/x"], 3, "RYE0504");
    execute(&user, "x", &[]);
    user.ok(["lock", "update", "team/x", "--scope", "project"]);
    // Another project pins its own tool of that name.
    let other = user.context.path().join("other");
    crate::support::copy_tree(&user.project(), &other);
    fs::remove_dir_all(other.join("lockfiles")).expect("removed");
    let run = run(user.command().current_dir(&other).args(["execute", "team/x"]));
    assert_eq!(run.exit, 0, "{run}");

    let removed = user.data(["lock", "remove", "team/x", "--scope", "user"]);
    assert_eq!(removed["removed"].as_array().map(Vec::len), Some(1), "{removed}");
    assert_eq!(removed["kept"][0]["state"], "elsewhere", "{removed}");
    assert!(user.project().join("lockfiles/team/x@1.0.0.lock.json").exists());
    let removed = user.data(["lock", "remove", "team/x"]);
    assert_eq!(removed["removed"][0]["scope"], "project", "{removed}");
    user.assert_refused(["execute", "team/x", "--locked"], 8, "RYE0502");
    user.assert_refused(["lock", "remove", "rye/core/system/time"], 3, "RYE0504");
    user.assert_refused(["lock", "remove", "../x"], 2, "RYE0101");
}

#[test]
fn moved_project_names_its_old_pins() {
    let user = User::initialized();
    write_function(&user, "x", "return 1");
    execute(&user, "x", &[]);
    let moved = user.context.path().join("moved");
    let old = user.project();
    fs::rename(&old, &moved).expect("moved");
    let run = run(user.command().current_dir(&moved).args(["--json", "execute", "team/x"]));
    assert_eq!(run.exit, 0, "{run}");
    let warnings = run.json()["warnings"].to_string();
    let expected = format!("`team/x` is pinned for `{}`, which is gone", old.display());
    assert!(warnings.contains(&expected) && warnings.contains("nothing changed since"), "{run}");
}
