//! Holes that a review found, each closed: kept here so that they stay closed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::support::{User, copy_tree, rows, run, text};

/// A folder with a stranger's whole user space inside, but no `.ai` at its top.
fn clone_with_user_space() -> User {
    let (user, other_user) = (User::initialized(), User::initialized());
    other_user.signed_tool("evil", "A stranger's");
    fs::remove_dir_all(user.project().join(".ai")).expect("removed");
    copy_tree(&other_user.home().join(".ai"), &user.project().join("us/.ai"));
    copy_tree(&other_user.project().join(".ai/tools"), &user.project().join("us/.ai/tools"));
    user
}

#[test]
fn user_space_in_current_folder_is_refused() {
    let user = clone_with_user_space();
    let inside = user.project().join("us");
    for space in [OsStr::new("us"), OsStr::new("."), inside.as_os_str()] {
        let mut command = user.command();
        command.env("USER_SPACE", space).args(["load", "tool", "team/evil", "--json"]);
        user.assert_command_refused(&mut command, 4, "RYE0418");
    }
    let mut command = user.command();
    command.env("RYE_SIGNING_KEY_DIR", "us/.ai/config/keys/signing").args(["keys", "list", "--json"]);
    user.assert_command_refused(&mut command, 4, "RYE0418");
}

#[test]
fn odd_characters_do_not_corrupt_records() {
    let user = User::initialized();
    let odd = user.context.path().join("d\u{7f}\u{fffe}\"\\\n");
    fs::create_dir(&odd).expect("folder");
    user.ok(["trust".as_ref(), odd.as_os_str()]);
    assert_eq!(user.data(["doctor"])["errors"], 0);
    let again = user.run(["trust".as_ref(), odd.as_os_str(), "--json".as_ref()]).json();
    assert_eq!(again["data"]["changed"], false, "{again}");

    let author = User::initialized();
    user.ok(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()]);
    user.ok(["keys", "revoke", &author.fingerprint(), "--reason", "a\u{7f}b\u{fffe}"]);
    let output = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(output["trust"], "revoked", "{output}");
}

#[test]
fn non_utf8_file_name_does_not_break_output() {
    let user = User::initialized();
    let name = OsStr::from_bytes(b"x\xff.py");
    fs::write(user.project().join(".ai/tools").join(name), "").expect("written");
    assert!(user.run(["doctor", "--json"]).json()["data"]["findings"].is_array());
    let root = user.run(["verify", "--root", ".", "--json"]);
    assert_eq!(root.exit, 4, "{root}");
    assert!(root.json()["data"]["unreadable"].is_array());
    assert_eq!(user.run(["verify", "--root", "."]).exit, 4);
}

#[test]
fn key_needs_its_identity_document() {
    let (user, other) = (User::initialized(), User::initialized());
    user.signed_tool("one", "One");
    let keys = other.home().join(".ai/config/keys/signing");
    for words in [
        &["trust", "."][..],
        &["sign", "tool", "team/one"],
        &["load", "tool", "rye/core/schemas/config.config-schema", "--to", "project"],
    ] {
        let mut command = user.command();
        command.env("RYE_SIGNING_KEY_DIR", &keys).args(words).arg("--json");
        let run = run(&mut command);
        if words[0] == "trust" {
            // Approved already: nothing to sign.
            assert_eq!(run.exit, 0, "{run}");
        } else {
            run.error(4, "RYE0404");
        }
    }
    let folder = user.context.path().join("other");
    fs::create_dir(&folder).expect("folder");
    let mut command = user.command();
    command.env("RYE_SIGNING_KEY_DIR", &keys).arg("trust").arg(&folder).arg("--json");
    user.assert_command_refused(&mut command, 4, "RYE0404");
}

#[test]
fn tool_without_category_is_misplaced() {
    let user = User::initialized();
    let key = fs::read_to_string(user.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let content = "__version__ = \"1.0.0\"\n";
    let line = rye_test::signature(&key, content.as_bytes());
    user.write("tools/team/prod/deploy.py", format!("# {line}\n{content}"));
    user.assert_refused(["load", "tool", "team/prod/deploy"], 4, "RYE0403");
}

#[test]
fn mixed_valid_and_invalid_paths_fail_cleanly() {
    let user = User::initialized();
    fs::write(user.project().join("README"), "x").expect("written");
    let run = user.run(["sign", ".ai/tools/examples/hello.py", "README", "--json"]);
    assert_eq!(run.exit, 2, "{run}");
    assert_eq!(run.json()["data"]["failed"][0]["code"], "RYE0206");
}

#[test]
fn symlinked_type_folder_is_not_read() {
    let user = User::initialized();
    let outside = user.context.path().join("outside");
    fs::create_dir(&outside).expect("folder");
    fs::write(outside.join("payroll.py"), "x").expect("written");
    fs::remove_dir_all(user.project().join(".ai/tools")).expect("removed");
    symlink(&outside, user.project().join(".ai/tools")).expect("linked");
    assert_eq!(user.search_ids("payroll"), Vec::<String>::new());
    let verified = user.run(["verify", "--json"]);
    assert_eq!(verified.exit, 4, "{verified}");
    assert!(text(&verified.json()["data"]["unreadable"][0]["reason"]).contains("leaves its space"));
}

#[test]
fn symlinked_identity_documents_are_ignored() {
    let user = User::initialized();
    let author = User::initialized();
    let folder = user.project().join(".ai/config/keys");
    fs::remove_dir_all(folder.join("trusted")).expect("removed");
    symlink(author.home().join(".ai/config/keys/trusted"), folder.join("trusted")).expect("linked");
    let listed = user.data(["keys", "list"]);
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn one_space_has_one_row_per_id() {
    let user = User::initialized();
    let source = user.project().join(".ai/tools/examples/hello.py");
    fs::copy(&source, source.with_extension("sh")).expect("copied");
    let found = user.data(["search", "hello", "--space", "project", "--type", "tool"]);
    assert_eq!(rows(&found).len(), 1, "{found}");
    assert_eq!(found["total"], 1);
    assert_eq!(rows(&user.data(["search", "hello", "--type", "tool", "--all"])).len(), 2);
}

#[test]
fn unapproved_bundle_is_ignored() {
    let (user, author) = (User::initialized(), User::initialized());
    author.signed_tool("gift", "A gift");
    user.ok(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()]);
    let bundle = user.context.path().join("bun");
    copy_tree(&author.project().join(".ai/tools"), &bundle.join(".ai/tools"));
    let mut command = user.command();
    command.env("RYE_BUNDLE_PATH", &bundle).args(["load", "tool", "team/gift", "--json"]);
    user.assert_command_refused(&mut command, 4, "RYE0404");
    let mut command = user.command();
    command.env("RYE_BUNDLE_PATH", &bundle).args([
        "bundle",
        "trust",
        "bun",
        "--signer",
        &author.fingerprint(),
    ]);
    assert_eq!(run(&mut command).exit, 0);
    let mut command = user.command();
    command.env("RYE_BUNDLE_PATH", &bundle).args(["load", "tool", "team/gift"]);
    assert_eq!(run(&mut command).exit, 0);
}

#[test]
fn special_files_are_reported() {
    let user = User::initialized();
    symlink("/etc/hostname", user.project().join(".ai/tools/link.py")).expect("linked");
    let verified = user.run(["verify", "--json"]);
    assert_eq!(verified.exit, 4, "{verified}");
    assert_eq!(verified.json()["data"]["unreadable"][0]["code"], "RYE0205");
}

#[test]
fn foreign_database_is_not_used_as_index() {
    let user = User::initialized();
    user.search_ids("hello");
    let folder = user.context.cache().join("rye/index");
    let index = fs::read_dir(&folder)
        .expect("index folder")
        .map(|entry| entry.expect("entry").path())
        .find(|path| path.extension().is_some_and(|extension| extension == "db"))
        .expect("an index");
    let foreign = user.context.path().join("foreign.db");
    fs::rename(&index, &foreign).expect("moved");
    let before = fs::read(&foreign).expect("read");
    symlink(&foreign, &index).expect("linked");
    assert_eq!(user.search_ids("hello").len(), 2);
    assert_eq!(fs::read(&foreign).expect("read"), before);
}

#[test]
fn a_system_tool_loads_without_a_cache() {
    let user = User::initialized();
    let mut command = user.command();
    command.env("XDG_CACHE_HOME", "/dev/null").args([
        "load",
        "tool",
        "rye/core/schemas/config.config-schema",
    ]);
    assert_eq!(run(&mut command).exit, 0);
}

#[test]
fn dotted_setting_key_shows_its_value() {
    let user = User::initialized();
    user.write_user("config/team/prices.yaml", "version: \"1.0.0\"\ncategory: team\nmodels:\n  gpt-4.1: 3\n");
    user.ok(["sign", "config", "team/prices", "--space", "user"]);
    let output = user.data(["config", "show", "team/prices"]);
    assert_eq!(output["settings"][0]["value"], 3, "{output}");
    assert_eq!(output["config"]["team/prices"]["models"]["gpt-4.1"], 3);
}

#[test]
fn missing_arguments_are_named() {
    let user = User::initialized();
    assert!(
        text(&user.run(["load", "tool", "--json"]).error(2, "RYE0104")["error"]).contains("no tool id given")
    );
    let refusal = user.run(["sign", "tool", "a", "b", "--json"]).error(2, "RYE0104");
    assert!(text(&refusal["hints"][0]).contains("quote"), "{refusal}");
    let missed = user.data(["search", "helo"]);
    assert_eq!(missed["results"][0]["item_id"], "examples/hello", "{missed}");
    assert!(text(&user.run(["completions", "bash", "--json"]).json()["data"]["script"]).contains("rye"));
}
