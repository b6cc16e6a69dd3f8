//! A program of the project is shown, and agreed to, before tools run on it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{User, differences, run, snapshot, text};
use crate::tool_support::{execute_data, write_function};

/// Writes a program of the project that says which one it is.
fn plant(user: &User, path: &str, word: &str) -> PathBuf {
    let script = format!("#!/bin/sh\nexport FROM_VENV={word}\nexec python3 \"$@\"\n");
    let planted = user.context.write(&format!("project/{path}"), script);
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    planted
}

/// A project with a tool that says which interpreter it runs on.
fn with_tool() -> User {
    let user = User::initialized();
    write_function(&user, "which", "import os\nreturn os.environ.get('FROM_VENV')");
    user
}

/// The new programs of a command that is refused and changes nothing.
fn refused(user: &User, words: &[&str]) -> Value {
    let before = snapshot(&user.context.path());
    let answer = run(user.command().arg("--json").args(words)).error(2, "RYE0105");
    let changed = differences(&before, &snapshot(&user.context.path()));
    assert!(changed.iter().all(|path| path.contains("cache")), "{changed:?}");
    assert!(answer["hints"].to_string().contains("--yes"), "{answer}");
    answer["data"]["new_programs"].clone()
}

#[test]
fn planted_interpreter_is_shown_before_it_is_recorded() {
    for words in
        [&["lock", "update", "team/which"][..], &["lock", "update", "--all"][..], &["trust", "."][..]]
    {
        let user = with_tool();
        let planted = plant(&user, ".venv/bin/python", "1");
        let programs = refused(&user, words);
        let program = &programs[0];
        assert_eq!(text(&program["path"]), ".venv/bin/python", "{programs}");
        assert_eq!(text(&program["real_path"]), planted.display().to_string(), "{programs}");
        assert_eq!((&program["is_in_project"], &program["is_system"]), (&json!(true), &json!(false)));
        assert_eq!(program["is_change"], false, "{programs}");
        assert!(text(&program["digest"]).len() == 16 && program["modified"].is_string(), "{programs}");
        assert!(text(&program["owner"]).contains("uid "), "{programs}");
        assert_eq!(execute_data(&user, "which", &[]), Value::Null);

        let agreed = run(user.command().arg("--quiet").args(words).arg("--yes"));
        assert_eq!(agreed.exit, 0, "{agreed}");
        for word in
            ["new program", ".venv/bin/python", "is in the project", "not a link", "sha256 ", "owner "]
        {
            assert!(agreed.stderr.contains(word), "{word}: {agreed}");
        }
        assert_eq!(execute_data(&user, "which", &[]), json!("1"));
        // What was seen once is not asked about again.
        user.ok(words);
    }
}

#[test]
fn changed_interpreter_is_shown_again() {
    let user = with_tool();
    plant(&user, ".venv/bin/python", "1");
    user.ok(["trust", ".", "--yes"]);
    plant(&user, ".venv/bin/python", "2");
    for words in [&["lock", "update", "team/which"][..], &["trust", "."][..]] {
        assert_eq!(refused(&user, words)[0]["is_change"], true);
    }
    assert_eq!(execute_data(&user, "which", &[]), Value::Null);
    user.ok(["lock", "update", "team/which", "--yes"]);
    assert_eq!(execute_data(&user, "which", &[]), json!("2"));
}

#[test]
fn launchers_of_node_are_shown_too() {
    let user = User::initialized();
    plant(&user, "node_modules/.bin/tsx", "1");
    let programs = refused(&user, &["trust", "."]);
    assert_eq!(text(&programs[0]["path"]), "node_modules/.bin/tsx", "{programs}");
}

#[test]
fn links_and_startup_files_are_named() {
    let user = with_tool();
    let made =
        user.program("python3").args(["-m", "venv", "--without-pip", ".venv"]).status().expect("python3");
    assert!(made.success());
    let real = std::fs::canonicalize(user.project().join(".venv/bin/python")).expect("a link");
    let programs = refused(&user, &["trust", "."]);
    assert_eq!(text(&programs[0]["real_path"]), real.display().to_string(), "{programs}");
    assert_eq!(programs[0]["is_in_project"], false, "{programs}");
    user.ok(["trust", ".", "--yes"]);

    let library = std::fs::read_dir(user.project().join(".venv/lib")).expect("a folder");
    let library = library.flatten().map(|entry| entry.path()).find(|path| path.is_dir()).expect("python");
    let planted = library.join("site-packages/evil.pth");
    std::fs::write(&planted, "import os\n").expect("planted");
    let programs = refused(&user, &["trust", "."]);
    let below = planted.strip_prefix(user.project()).expect("below").display().to_string();
    assert!(programs[0]["latest_startup_files"].to_string().contains(&below), "{programs}");
}

#[test]
fn planted_programs_are_named_whatever_their_time() {
    let user = with_tool();
    for number in 10..60 {
        plant(&user, &format!(".venv/bin/black{number}"), "1");
    }
    user.ok(["trust", ".", "--yes"]);
    for name in ["zebra", "git", "black11"] {
        plant(&user, &format!(".venv/bin/{name}"), "2");
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let file = std::fs::File::options().write(true).open(user.project().join(".venv/bin").join(name));
        file.expect("a file").set_modified(old).expect("a time");
    }
    let programs = refused(&user, &["trust", "."]);
    let folder = programs.as_array().expect("a list").iter().find(|program| program["path"] == ".venv/bin");
    let folder = folder.expect("the folder");
    let expected = [".venv/bin/git (runs in place of the system's)", ".venv/bin/black11", ".venv/bin/zebra"];
    assert_eq!(folder["latest_startup_files"], json!(expected), "{folder}");
    assert_eq!((&folder["changed_count"], &folder["replaced_programs"]), (&json!(3), &json!(1)));
    // Without a record of what was there before, everything is named or counted.
    std::fs::remove_dir_all(user.home().join(".ai/config/trust/programs")).expect("removed");
    let programs = refused(&user, &["trust", "."]);
    let folder = programs.as_array().expect("a list").iter().find(|program| program["path"] == ".venv/bin");
    assert_eq!(folder.expect("the folder")["changed_count"], json!(52));
}

#[test]
fn link_to_a_strangers_interpreter_is_not_the_systems() {
    let user = with_tool();
    let elsewhere = user.context.write("elsewhere/python", "#!/bin/sh\nexec python3 \"$@\"\n");
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    std::fs::create_dir_all(user.project().join(".venv/bin")).expect("folders");
    std::os::unix::fs::symlink(&elsewhere, user.project().join(".venv/bin/python")).expect("a link");
    let programs = refused(&user, &["trust", "."]);
    let program = &programs[0];
    // The folder for temporary files is everybody's.
    assert_eq!(
        (&program["is_in_project"], &program["is_system"]),
        (&json!(false), &json!(false)),
        "{programs}"
    );
}

#[test]
fn init_records_no_program_without_consent() {
    let user = User::new();
    plant(&user, ".venv/bin/python", "1");
    let made = user.ok(["init"]);
    let command = format!("rye trust {} --yes", shown(&user.project()));
    assert!(made.stderr.contains("new program") && made.stderr.contains(&command), "{made}");
    write_function(&user, "which", "import os\nreturn os.environ.get('FROM_VENV')");
    assert_eq!(execute_data(&user, "which", &[]), Value::Null);
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
