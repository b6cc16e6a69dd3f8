//! Holes that a review found, each closed: kept here so that they stay closed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::support::{User, copy_tree, rows, run, text};

/// A folder with a stranger's whole user space inside, but no `.ai` at its top.
fn clone_with_user_space() -> User {
    let (user, stranger) = (User::ready(), User::ready());
    stranger.signed_tool("evil", "A stranger's");
    fs::remove_dir_all(user.project().join(".ai")).expect("removed");
    copy_tree(&stranger.home().join(".ai"), &user.project().join("us/.ai"));
    copy_tree(&stranger.project().join(".ai/tools"), &user.project().join("us/.ai/tools"));
    user
}

#[test]
fn a_user_space_inside_the_current_folder_is_refused_without_any_project() {
    let user = clone_with_user_space();
    let inside = user.project().join("us");
    for space in [OsStr::new("us"), OsStr::new("."), inside.as_os_str()] {
        let mut command = user.command();
        command.env("USER_SPACE", space).args(["load", "tool", "team/evil", "--json"]);
        user.refused_by(&mut command, 4, "RYE0418");
    }
    let mut command = user.command();
    command.env("RYE_SIGNING_KEY_DIR", "us/.ai/config/keys/signing").args(["keys", "list", "--json"]);
    user.refused_by(&mut command, 4, "RYE0418");
}

#[test]
fn odd_characters_in_a_path_or_reason_spoil_no_record() {
    let user = User::ready();
    let odd = user.world.path().join("d\u{7f}\u{fffe}\"\\\n");
    fs::create_dir(&odd).expect("folder");
    user.ok(["trust".as_ref(), odd.as_os_str()]);
    assert_eq!(user.data(["doctor"])["errors"], 0);
    let again = user.run(["trust".as_ref(), odd.as_os_str(), "--json".as_ref()]).json();
    assert_eq!(again["data"]["changed"], false, "{again}");

    let author = User::ready();
    user.ok(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()]);
    user.ok(["keys", "revoke", &author.fingerprint(), "--reason", "a\u{7f}b\u{fffe}"]);
    let shown = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(shown["trust"], "revoked", "{shown}");
}

#[test]
fn one_file_name_that_is_no_text_spoils_no_answer() {
    let user = User::ready();
    let name = OsStr::from_bytes(b"x\xff.py");
    fs::write(user.project().join(".ai/tools").join(name), "").expect("written");
    assert!(user.run(["doctor", "--json"]).json()["data"]["findings"].is_array());
    let root = user.run(["verify", "--root", ".", "--json"]);
    assert_eq!(root.exit, 4, "{root}");
    assert!(root.json()["data"]["unreadable"].is_array());
    assert_eq!(user.run(["verify", "--root", "."]).exit, 4);
}

#[test]
fn a_key_without_its_document_signs_and_approves_nothing() {
    let (user, other) = (User::ready(), User::ready());
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
    let folder = user.world.path().join("other");
    fs::create_dir(&folder).expect("folder");
    let mut command = user.command();
    command.env("RYE_SIGNING_KEY_DIR", &keys).arg("trust").arg(&folder).arg("--json");
    user.refused_by(&mut command, 4, "RYE0404");
}

#[test]
fn a_tool_that_says_nothing_of_its_place_counts_nowhere_in_a_project() {
    let user = User::ready();
    let key = fs::read_to_string(user.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let content = "__version__ = \"1.0.0\"\n";
    let line = rye_test::signature(&key, content.as_bytes());
    user.write("tools/team/prod/deploy.py", format!("# {line}\n{content}"));
    user.refused(["load", "tool", "team/prod/deploy"], 4, "RYE0403");
}

#[test]
fn a_path_that_is_no_item_beside_one_that_is_fails_cleanly() {
    let user = User::ready();
    fs::write(user.project().join("README"), "x").expect("written");
    let run = user.run(["sign", ".ai/tools/examples/hello.py", "README", "--json"]);
    assert_eq!(run.exit, 2, "{run}");
    assert_eq!(run.json()["data"]["failed"][0]["code"], "RYE0206");
}

#[test]
fn a_type_folder_that_is_linked_out_is_not_walked() {
    let user = User::ready();
    let outside = user.world.path().join("outside");
    fs::create_dir(&outside).expect("folder");
    fs::write(outside.join("payroll.py"), "x").expect("written");
    fs::remove_dir_all(user.project().join(".ai/tools")).expect("removed");
    symlink(&outside, user.project().join(".ai/tools")).expect("linked");
    assert_eq!(user.found("payroll"), Vec::<String>::new());
    let verified = user.run(["verify", "--json"]);
    assert_eq!(verified.exit, 4, "{verified}");
    assert!(text(&verified.json()["data"]["unreadable"][0]["reason"]).contains("leaves its space"));
}

#[test]
fn identity_documents_behind_a_link_are_not_the_projects() {
    let user = User::ready();
    let author = User::ready();
    let folder = user.project().join(".ai/config/keys");
    fs::create_dir_all(&folder).expect("folders");
    symlink(author.home().join(".ai/config/keys/trusted"), folder.join("trusted")).expect("linked");
    let listed = user.data(["keys", "list"]);
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn one_space_has_one_row_per_id() {
    let user = User::ready();
    let source = user.project().join(".ai/tools/examples/hello.py");
    fs::copy(&source, source.with_extension("sh")).expect("copied");
    let found = user.data(["search", "hello", "--space", "project", "--type", "tool"]);
    assert_eq!(rows(&found).len(), 1, "{found}");
    assert_eq!(found["total"], 1);
    assert_eq!(rows(&user.data(["search", "hello", "--type", "tool", "--all"])).len(), 2);
}

#[test]
fn a_bundle_nobody_approved_counts_for_nothing_whoever_signed_it() {
    let (user, author) = (User::ready(), User::ready());
    author.signed_tool("gift", "A gift");
    user.ok(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()]);
    let bundle = user.world.path().join("bun");
    copy_tree(&author.project().join(".ai/tools"), &bundle.join(".ai/tools"));
    let mut command = user.command();
    command.env("RYE_BUNDLE_PATH", &bundle).args(["load", "tool", "team/gift", "--json"]);
    user.refused_by(&mut command, 4, "RYE0404");
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
fn a_file_that_is_no_regular_file_is_not_passed_over_in_silence() {
    let user = User::ready();
    symlink("/etc/hostname", user.project().join(".ai/tools/link.py")).expect("linked");
    let verified = user.run(["verify", "--json"]);
    assert_eq!(verified.exit, 4, "{verified}");
    assert_eq!(verified.json()["data"]["unreadable"][0]["code"], "RYE0205");
}

#[test]
fn a_foreign_database_is_not_opened_as_the_index() {
    let user = User::ready();
    user.found("hello");
    let folder = user.world.cache().join("rye/index");
    let index = fs::read_dir(&folder)
        .expect("index folder")
        .map(|entry| entry.expect("entry").path())
        .find(|path| path.extension().is_some_and(|extension| extension == "db"))
        .expect("an index");
    let foreign = user.world.path().join("foreign.db");
    fs::rename(&index, &foreign).expect("moved");
    let before = fs::read(&foreign).expect("read");
    symlink(&foreign, &index).expect("linked");
    assert_eq!(user.found("hello").len(), 2);
    assert_eq!(fs::read(&foreign).expect("read"), before);
}

#[test]
fn a_system_tool_loads_without_a_cache() {
    let user = User::ready();
    let mut command = user.command();
    command.env("XDG_CACHE_HOME", "/dev/null").args([
        "load",
        "tool",
        "rye/core/schemas/config.config-schema",
    ]);
    assert_eq!(run(&mut command).exit, 0);
}

#[test]
fn a_setting_whose_key_has_a_dot_is_shown_with_its_value() {
    let user = User::ready();
    user.write_user("config/team/prices.yaml", "version: \"1.0.0\"\ncategory: team\nmodels:\n  gpt-4.1: 3\n");
    user.ok(["sign", "config", "team/prices", "--space", "user"]);
    let shown = user.data(["config", "show", "team/prices"]);
    assert_eq!(shown["settings"][0]["value"], 3, "{shown}");
    assert_eq!(shown["config"]["team/prices"]["models"]["gpt-4.1"], 3);
}

#[test]
fn the_command_line_says_what_is_missing() {
    let user = User::ready();
    assert!(
        text(&user.run(["load", "tool", "--json"]).error(2, "RYE0104")["error"]).contains("an id is missing")
    );
    let refusal = user.run(["sign", "tool", "a", "b", "--json"]).error(2, "RYE0104");
    assert!(text(&refusal["hints"][0]).contains("quote"), "{refusal}");
    let missed = user.data(["search", "helo"]);
    assert_eq!(missed["suggestions"][0], "examples/hello", "{missed}");
    assert!(text(&user.run(["completions", "bash", "--json"]).json()["data"]["script"]).contains("rye"));
}
