//! A stranger's project: cloning it must never be enough for its items to count.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::support::{User, copy_file, copy_tree, rows, run, text};

/// A user who has cloned a project that a stranger made, signed and sent along with everything a project can hold.
fn clone_project() -> (User, User) {
    let other_user = User::initialized();
    other_user.signed_tool("evil", "Signed by a stranger");
    let user = User::initialized();
    fs::remove_dir_all(user.project()).expect("removed");
    copy_tree(&other_user.project(), &user.project());
    // The stranger's key, self-signed, and their approvals and revocations, where a user's own would be.
    copy_tree(&other_user.home().join(".ai/config"), &user.project().join(".ai/config"));
    let revoked = user.project().join(format!(".ai/config/keys/revoked/{}.toml", user.fingerprint()));
    fs::create_dir_all(revoked.parent().expect("a folder")).expect("folders");
    fs::write(revoked, "reason = \"x\"\n").expect("written");
    // The user's approval of the folder was for another content, so it is taken back.
    user.ok(["trust", "--revoke"]);
    (user, other_user)
}

#[test]
fn cloned_project_trusts_no_keys() {
    let (user, other_user) = clone_project();
    let refusal = user.assert_refused(["load", "tool", "team/evil"], 4, "RYE0404");
    assert_eq!(refusal["fingerprint"], other_user.fingerprint().as_str());
    user.assert_refused(["load", "tool", "team/evil", "--to", "user"], 4, "RYE0404");
    user.assert_refused(["load", "directive", "examples/greet"], 4, "RYE0404");
    user.assert_refused(["verify", "tool", "team/evil"], 4, "RYE0404");
    let found = user.data(["search", "stranger"]);
    let row = &rows(&found)[0];
    assert_eq!(
        (&row["verdict"], &row["signed"], &row["coverage"]),
        (&json!("untrusted"), &json!(false), &json!("none"))
    );
    let human = user.ok(["search", "stranger"]);
    assert!(human.stdout.contains("[untrusted]"), "{human}");
    assert_eq!(user.data(["why", "tool", "team/evil"])["item"]["verdict"], "untrusted");
    let listed = user.data(["keys", "show", &other_user.fingerprint()]);
    assert_eq!(listed["trust"], "none");
}

#[test]
fn cloned_project_cannot_revoke_or_approve() {
    let (user, _) = clone_project();
    user.write("tools/team/own.py", rye_test::tool("team", "Own"));
    user.ok(["sign", "tool", "team/own"]);
    user.ok(["load", "tool", "team/own"]);
    let doctor = user.run(["doctor", "--json"]).json();
    let findings = doctor["data"]["findings"].as_array().expect("findings");
    let project = findings.iter().find(|finding| finding["check"] == "project").expect("a finding");
    assert_eq!(project["level"], "info", "{project}");
}

#[test]
fn approving_a_project_does_not_trust_its_keys() {
    let (user, _) = clone_project();
    user.ok(["trust", "."]);
    user.assert_refused(["load", "tool", "team/evil"], 4, "RYE0404");
}

#[test]
fn project_config_stays_in_the_project() {
    let (user, other_user) = clone_project();
    let bundle = user.context.path().join("bundle");
    copy_tree(&other_user.project(), &bundle);
    copy_file(
        &other_user.identity_document(),
        &bundle.join(format!(".ai/config/keys/trusted/{}.toml", other_user.fingerprint())),
    );
    fs::rename(bundle.join(".ai/tools/team"), bundle.join(".ai/tools/far")).expect("renamed");
    let config = format!(
        "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [\"{}\"]\ndev_mode:\n  projects: [\"{}\"]\nintegrity:\n  partial_coverage: allow\nitems:\n  max_bytes: 1000000000\nsearch:\n  limit: 7\n",
        bundle.display(),
        user.project().display()
    );
    user.write("config/config.yaml", config);
    user.write(
        "config/agent/agent.yaml",
        "version: \"1.0.0\"\ncategory: agent\nprovider:\n  default: evil\n",
    );
    for is_signed in [false, true] {
        if is_signed {
            // By the stranger, whose key is not trusted here.
            for file in ["config/config.yaml", "config/agent/agent.yaml"] {
                copy_file(
                    &user.project().join(".ai").join(file),
                    &other_user.project().join(".ai").join(file),
                );
                other_user.ok(["sign", &format!(".ai/{file}")]);
                copy_file(
                    &other_user.project().join(".ai").join(file),
                    &user.project().join(".ai").join(file),
                );
            }
        }
        let output = user.run(["config", "show", "--json"]);
        assert_eq!(output.exit, 0, "{output}");
        for key in ["bundles.paths", "dev_mode.projects", "integrity.partial_coverage", "items.max_bytes"] {
            assert!(
                output.stderr.contains(&format!("`{key}` in project config is ignored")),
                "{key}: {output}"
            );
        }
        let data = &output.json()["data"];
        assert_eq!(data["config"]["config"]["bundles"]["paths"], json!([]));
        assert_eq!(data["config"]["config"]["integrity"]["partial_coverage"], "deny");
        assert_eq!(data["config"]["config"]["dev_mode"]["projects"], json!([]));
        assert_eq!(data["config"]["config"]["search"]["limit"], 7);
        assert_eq!(data["config"]["agent/agent"]["provider"]["default"], json!(null));
        let ignored = data["ignored"].as_array().expect("ignored");
        assert!(ignored.iter().any(|row| row["key"] == "provider.default"), "{output}");
        let human = user.ok(["config", "show", "agent/agent"]);
        assert!(human.stderr.contains("provider.default"), "{human}");
        let bundles = user.data(["bundle", "list"])["bundles"].as_array().expect("bundles").clone();
        assert!(bundles.iter().all(|row| row["path"].is_null()), "{bundles:?}");
        user.assert_command_refused(
            user.command().env("RYE_DEV_MODE", "1").args(["load", "tool", "team/evil", "--json"]),
            4,
            "RYE0404",
        );
    }
}

#[test]
fn project_extractor_needs_approval() {
    let (user, other_user) = clone_project();
    let extractor = "version: \"1.0.0\"\ntool_type: extractor\nexecutor_id: null\ncategory: rye/core/extractors/tool\ndescription: x\nextensions: [.exe]\nparser: yaml/yaml\nsignature_format: {prefix: \"#\"}\n";
    let file = "tools/rye/core/extractors/tool/tool_extractor.yaml";
    other_user.write(file, extractor);
    other_user.ok(["sign", &format!(".ai/{file}")]);
    copy_file(&other_user.project().join(".ai").join(file), &user.project().join(".ai").join(file));
    user.write("tools/team/virus.exe", "version: \"1.0.0\"\n");
    user.assert_refused(["load", "tool", "team/virus"], 3, "RYE0201");
    user.ok(["trust", "."]);
    let run = user.run(["load", "tool", "team/virus", "--json"]);
    run.error(3, "RYE0201");
    assert!(run.stderr.contains("tool_extractor.yaml"), "{run}");
}

#[test]
fn a_user_space_inside_the_project_is_refused() {
    let (user, other_user) = clone_project();
    copy_tree(&other_user.home(), &user.project().join("evil"));
    for space in ["evil", ".ai", "./evil/../evil"] {
        for words in [
            vec!["load", "tool", "team/evil"],
            vec!["search", "evil"],
            vec!["sign", "tool", "team/evil"],
            vec!["keys", "list"],
            vec!["init"],
        ] {
            user.assert_command_refused(
                user.command().env("USER_SPACE", space).args(&words).arg("--json"),
                4,
                "RYE0418",
            );
        }
    }
    user.assert_refused(["--user-space", "evil", "load", "tool", "team/evil"], 4, "RYE0418");
    user.assert_command_refused(
        user.command().env("HOME", user.project().join("evil")).args(["load", "tool", "team/evil", "--json"]),
        4,
        "RYE0418",
    );
    // Through a link that stands elsewhere.
    let link = user.context.path().join("innocent");
    symlink(user.project().join("evil"), &link).expect("link");
    user.assert_command_refused(
        user.command().env("USER_SPACE", &link).args(["load", "tool", "team/evil", "--json"]),
        4,
        "RYE0418",
    );
}

#[test]
fn user_space_containing_the_project_is_refused() {
    let (user, other_user) = clone_project();
    // The clone's own `.ai` would be the user space: the stranger's keys and tools with it.
    copy_tree(&other_user.home().join(".ai/config"), &user.project().join(".ai/config"));
    let deep = user.project().join("src/deep");
    fs::create_dir_all(&deep).expect("folders");
    let project = user.project().display().to_string();
    let link = user.context.path().join("innocent");
    symlink(user.project(), &link).expect("a link");
    let half = user.context.path().join("half");
    fs::create_dir(&half).expect("a folder");
    symlink(user.project().join(".ai"), half.join(".ai")).expect("a link");
    let spaces = [
        project.clone(),
        format!("{project}/"),
        format!("{project}/src/.."),
        format!("{project}/src/deep"),
        link.display().to_string(),
        half.display().to_string(),
    ];
    for folder in [user.project(), deep.clone()] {
        for variable in ["USER_SPACE", "RYE_SIGNING_KEY_DIR"] {
            for space in &spaces {
                let mut command = user.command();
                command.current_dir(&folder).env(variable, space);
                command.args(["execute", "tool", "team/evil", "--json"]);
                user.assert_command_refused(&mut command, 4, "RYE0418");
            }
        }
    }
    // A nested project does not hide the checkout around it.
    fs::create_dir(user.project().join(".git")).expect("a folder");
    fs::create_dir(deep.join(".ai")).expect("a folder");
    copy_tree(&other_user.home(), &user.project().join("vendored"));
    for space in [project.clone(), format!("{project}/vendored")] {
        let mut command = user.command();
        command.current_dir(&deep).env("USER_SPACE", space).args(["search", "evil", "--json"]);
        user.assert_command_refused(&mut command, 4, "RYE0418");
    }
}

#[test]
fn a_key_folder_inside_the_project_is_refused() {
    let (user, other_user) = clone_project();
    copy_tree(&other_user.home().join(".ai/config/keys/signing"), &user.project().join("keys"));
    for folder in ["keys", ".ai/config/keys/signing", "not/there"] {
        for words in [vec!["load", "tool", "team/evil"], vec!["sign", "tool", "team/evil"], vec!["init"]] {
            user.assert_command_refused(
                user.command().env("RYE_SIGNING_KEY_DIR", folder).args(&words).arg("--json"),
                4,
                "RYE0418",
            );
        }
    }
}

#[test]
fn symlinked_project_is_refused() {
    let (user, other_user) = clone_project();
    let away = user.context.path().join("away");
    copy_tree(&other_user.project(), &away);
    fs::remove_dir_all(user.project().join(".ai")).expect("removed");
    symlink(away.join(".ai"), user.project().join(".ai")).expect("link");
    for words in [
        vec!["load", "tool", "team/evil"],
        vec!["sign", "tool", "team/evil"],
        vec!["search", "evil"],
        vec!["init"],
        vec!["trust"],
        vec!["doctor"],
    ] {
        user.assert_refused(&words, 4, "RYE0205");
    }
}

#[test]
fn link_out_of_the_space_is_refused() {
    let user = User::initialized();
    let secret = user.context.write("outside/secret.py", rye_test::tool("team", "TOPSECRET"));
    let outside = secret.parent().expect("a folder").to_owned();
    let tools = user.project().join(".ai/tools");
    fs::create_dir_all(tools.join("team")).expect("folders");
    symlink(&secret, tools.join("team/absolute.py")).expect("link");
    symlink("../../../../outside/secret.py", tools.join("team/relative.py")).expect("link");
    symlink(&outside, tools.join("absolute")).expect("link");
    symlink("../../../outside", tools.join("relative")).expect("link");
    symlink("absolute/secret.py", tools.join("twice.py")).expect("link");
    symlink("/no/such/file", tools.join("team/nowhere.py")).expect("link");
    symlink("loop.py", tools.join("team/loop.py")).expect("link");
    for id in ["team/absolute", "team/relative", "absolute/secret", "relative/secret", "twice"] {
        for verb in ["load", "why", "sign", "verify"] {
            user.assert_refused([verb, "tool", id], 4, "RYE0205");
        }
        user.assert_refused(["load", "tool", id, "--to", "user"], 4, "RYE0205");
    }
    for path in [".ai/tools/team/absolute.py", ".ai/tools/team/relative.py", ".ai/tools/twice.py"] {
        user.assert_refused(["sign", path], 4, "RYE0205");
    }
    for path in [".ai/tools/absolute/secret.py", ".ai/tools/relative/secret.py"] {
        user.assert_refused(["sign", path], 2, "RYE0206");
    }
    for id in ["team/nowhere", "team/loop"] {
        let before = user.snapshot();
        let run = user.run(["load", "tool", id, "--json"]);
        assert!(run.exit == 3 || run.exit == 4, "{run}");
        assert_eq!(before, user.snapshot());
    }
    for words in [vec!["search", "*", "--all"], vec!["verify", "--metadata"], vec!["doctor"]] {
        let run = user.run(words.iter().chain(&["--json"]));
        assert!(!run.stdout.contains("TOPSECRET"), "{run}");
    }
    assert_eq!(user.search_ids("TOPSECRET"), Vec::<String>::new());
    assert_eq!(fs::read(&secret).expect("read"), rye_test::tool("team", "TOPSECRET").as_bytes());
    let doctor = user.run(["doctor", "--json"]).json();
    let strays = doctor["data"]["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|finding| finding["check"] == "places")
        .count();
    assert_eq!(strays, 7, "{doctor}");
}

#[test]
fn a_link_within_the_space_is_followed() {
    let user = User::initialized();
    user.signed_tool("real", "Real");
    let team = user.project().join(".ai/tools/team");
    symlink("real.py", team.join("alias.py")).expect("link");
    // Without a name in it, the tool counts only under the ids it was signed as.
    user.assert_refused(["load", "tool", "team/alias"], 4, "RYE0403");
    assert_eq!(user.data(["sign", "tool", "team/alias"])["unchanged"], true);
    user.ok(["load", "tool", "team/alias"]);
    assert!(fs::symlink_metadata(team.join("alias.py")).expect("there").is_symlink());
}

#[test]
fn moved_signed_file_is_misplaced() {
    let user = User::initialized();
    for name in ["one", "two"] {
        user.write(&format!("directives/team/{name}.md"), rye_test::directive("team", name, name));
        user.write(&format!("knowledge/team/{name}.md"), rye_test::knowledge("team", name, name, name));
    }
    user.write("config/team/one.yaml", "version: \"1.0.0\"\ncategory: team\nx: 1\n");
    user.write("config/other/one.yaml", "version: \"1.0.0\"\ncategory: other\nx: 2\n");
    user.write("tools/team/data.yaml", crate::support::TOOLS[1].1);
    user.ok(["sign", "tool", "team/data"]);
    user.signed_tool("one", "One");
    let named = rye_test::tool("team", "Named").replace("\n\n", "\n__tool_name__ = \"named\"\n\n");
    user.write("tools/team/named.py", named);
    user.write("tools/team/plain.yaml", crate::support::TOOLS[1].1.to_owned() + "\nname: plain\n");
    user.ok(["sign", "tool", "team/named"]);
    user.ok(["sign", "tool", "team/plain"]);
    for (item_type, pattern) in
        [("directive", "team/*"), ("knowledge", "team/*"), ("config", "team/*"), ("config", "other/*")]
    {
        user.ok(["sign", item_type, pattern]);
    }
    let ai = user.project().join(".ai");
    for (from, to) in [
        ("directives/team/one.md", "directives/team/two.md"),
        ("knowledge/team/one.md", "knowledge/team/two.md"),
        ("config/team/one.yaml", "config/other/one.yaml"),
        ("tools/team/one.py", "tools/other/one.py"),
        ("tools/team/named.py", "tools/team/renamed.py"),
        ("tools/team/plain.yaml", "tools/team/replaced.yaml"),
        ("config/team/one.yaml", "tools/team/cross.yaml"),
        ("tools/team/data.yaml", "config/team/data.yaml"),
        ("knowledge/team/one.md", "knowledge/other/one.md"),
        ("directives/team/one.md", "directives/other/one.md"),
    ] {
        copy_file(&ai.join(from), &ai.join(to));
    }
    for (item_type, id) in [
        ("directive", "team/two"),
        ("knowledge", "team/two"),
        ("config", "other/one"),
        ("tool", "other/one"),
        ("tool", "team/cross"),
        ("config", "team/data"),
        ("knowledge", "other/one"),
        ("directive", "other/one"),
    ] {
        let refusal = user.assert_refused(["load", item_type, id], 4, "RYE0403");
        assert_eq!(refusal["verdict"], "misplaced");
        let verified = user.assert_refused(["verify", item_type, id], 4, "RYE0403");
        assert_eq!(verified["data"]["misplaced"], 1);
        user.assert_refused(["sign", item_type, id], 9, "RYE0301");
    }
    assert!(
        text(&user.assert_refused(["load", "tool", "other/one"], 4, "RYE0403")["error"]).contains("category")
    );
}

#[test]
fn copied_file_keeps_its_foreign_signer() {
    let (user, other_user) = clone_project();
    copy_file(
        &other_user.project().join(".ai/tools/team/evil.py"),
        &user.home().join(".ai/tools/team/other.py"),
    );
    user.assert_refused(["load", "tool", "team/other"], 4, "RYE0404");
    let run = run(user.command().args(["verify", "--json"]));
    run.error(4, "RYE0404");
}
