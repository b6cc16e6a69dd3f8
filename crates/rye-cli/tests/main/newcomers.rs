//! What a newcomer meets in the first hours: each message says what to do next, and that works.

use std::fs;

use serde_json::json;

use crate::support::{User, run, text};
use crate::team::Member;

#[test]
fn init_in_a_clone_approves_nothing() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    let made = bob.data(["init"]);
    assert_eq!(
        (&made["approved"], &made["key_created"], &made["made_by_others"]),
        (&json!(false), &json!(true), &json!(true)),
        "{made}"
    );
    assert_eq!(bob.git(["status", "--porcelain"]), "", "nothing is written into the project");
    let again = bob.ok(["init"]);
    assert!(
        again.stderr.contains("others made this project") && again.stderr.contains("rye join"),
        "{again}"
    );
    assert!(!again.stderr.contains("next:"), "{again}");
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");

    bob.ok(["join", "--yes"]);
    let joined = bob.ok(["init"]);
    assert!(!joined.stderr.contains("others"), "{joined}");
}

#[test]
fn init_names_the_owner() {
    let user = User::new();
    user.assert_refused(["init", "--owner", "a\u{200b}b"], 2, "RYE0104");
    user.ok(["init", "--owner", "Ann Lee"]);
    assert_eq!(user.data(["keys", "list"])["keys"][0]["owner"], "Ann Lee");
    let again = user.ok(["init", "--owner", "Bo"]);
    assert!(again.stderr.contains("rye keys publish --owner Bo"), "{again}");
    user.ok(["keys", "publish", "--owner", "Bo"]);
    assert_eq!(user.data(["keys", "list"])["keys"][0]["owner"], "Bo", "the own document follows");
    user.ok(["execute", "examples/hello", "name=Ada"]);
}

#[test]
fn owner_is_read_from_git_config() {
    let user = User::new();
    user.context.write("home/.gitconfig", "[user]\n\tname = Ann Lee\n");
    let made = run(user.command().env_remove("USER").env_remove("LOGNAME").args(["init", "--json"]));
    assert_eq!(made.exit, 0, "{made}");
    assert_eq!(user.data(["keys", "list"])["keys"][0]["owner"], "Ann Lee");
}

#[test]
fn tool_without_executor_is_named() {
    let user = User::initialized();
    let source = rye_test::tool("team", "Deploys");
    let line = source.lines().find(|line| line.starts_with("__executor_id__")).expect("a line").to_owned();
    user.write("tools/team/deploy.py", source.replace(&format!("{line}\n"), ""));
    let signed = user.data(["sign", "tool", "team/deploy"]);
    let warning = text(&signed["warnings"][0]["message"]);
    assert!(
        warning.contains(r#"add the line: __executor_id__ = "rye/core/runtimes/python/function""#),
        "{warning}"
    );
    let refused = user.assert_refused(["execute", "team/deploy"], 9, "RYE0314");
    assert!(text(&refused["hints"][0]).starts_with("nothing says what runs `team/deploy`: add"), "{refused}");
    let checked = user.run(["ci"]);
    assert!(checked.stdout.contains("team/deploy can never run"), "{checked}");
    user.write("tools/team/deploy.py", source);
    assert!(!user.data(["sign", "tool", "team/deploy"]).to_string().contains("cannot run"));
    assert!(!user.run(["ci"]).stdout.contains("can never run"));
}

#[test]
fn signing_names_the_outdated_team_lockfile() {
    let alice = Member::founder("alice");
    alice.ok(["lock", "update", "--all", "--scope", "project"]);
    alice.write_tool("hi", "{\"said\": \"hello\"}");
    let signed = alice.ok(["sign", "tool", "team/hi"]);
    assert!(
        signed.stderr.contains("still pins the version before; to pin this one: rye lock update team/hi"),
        "{signed}"
    );
    let refused = alice.assert_refused(["execute", "team/hi"], 8, "RYE0501");
    assert!(
        text(&refused["hints"][0]).ends_with("if the change is intended: rye lock update team/hi"),
        "{refused}"
    );
    alice.ok(["lock", "update", "team/hi"]);
    alice.ok(["execute", "team/hi"]);

    // What a colleague changed is theirs to explain.
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let path = "lockfiles/team/hi@1.0.0.lock.json";
    let old = fs::read(alice.user.project().join(path)).expect("a lockfile");
    alice.write_tool("hi", "{\"said\": \"hey\"}");
    alice.ok(["sign", "tool", "team/hi"]);
    alice.ok(["lock", "update", "team/hi"]);
    alice.commit();
    bob.git(["checkout", "--quiet", "."]);
    bob.pull(&alice);
    fs::write(bob.user.project().join(path), old).expect("written");
    let refused = bob.assert_refused(["execute", "team/hi"], 8, "RYE0501");
    assert!(text(&refused["hints"][0]).contains("ask who changed the tool"), "{refused}");
}

#[test]
fn signing_unpublished_says_keys_publish() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.write_tool("bob", "{}");
    let signed = bob.ok(["sign", "tool", "team/bob"]);
    assert!(signed.stderr.contains("colleagues refuse this until you run: rye keys publish"), "{signed}");
    bob.ok(["keys", "publish"]);
    bob.write_tool("bob", "{\"a\": 1}");
    assert!(!bob.ok(["sign", "tool", "team/bob"]).stderr.contains("keys publish"));
}

#[test]
fn misspelt_input_reference_is_a_problem() {
    let user = User::initialized();
    let source = rye_test::directive("team", "sum", "Sums up").replace(
        "</metadata>",
        "</metadata>\n  <inputs><input name=\"article\" type=\"string\" required=\"true\">What</input></inputs>",
    );
    let with_body = |reference: &str| format!("{source}\nSum up {reference}.\n");
    user.write("directives/team/sum.md", with_body("{input:artcle}"));
    let refused = user.assert_refused(["sign", "directive", "team/sum"], 9, "RYE0301");
    let problem = &refused["problems"][0];
    assert_eq!(
        text(&problem["message"]),
        "`artcle` is not an input of this directive; did you mean `article`?"
    );
    assert!(text(&problem["snippet"]["text"]).contains("{input:artcle}"), "{refused}");
    user.write("directives/team/sum.md", with_body("{input:something-else?}"));
    let signed = user.data(["sign", "directive", "team/sum"]);
    assert!(text(&signed["warnings"][0]["message"]).ends_with("its inputs are: article"), "{signed}");
    user.write("directives/team/sum.md", with_body("{input:article}"));
    assert!(user.data(["sign", "directive", "team/sum"]).get("warnings").is_none());

    let shown = user.ok(["load", "directive", "team/sum"]);
    assert!(shown.stderr.contains("input article: string, required"), "{shown}");
    assert!(!shown.stdout.contains("input article: string"), "{shown}");
    let refused = user.run(["schedule", "add", "team/sum", "--every", "1h"]);
    assert!(refused.exit != 0 && refused.stderr.contains("--input article=…"), "{refused}");
}

#[test]
fn offline_failure_names_model_keys() {
    let user = User::initialized();
    user.write("directives/team/sum.md", rye_test::directive("team", "sum", "Sums up"));
    user.ok(["sign", "directive", "team/sum"]);
    let way = "to ask a model: export ANTHROPIC_API_KEY=… (or ";
    let failed = user.run(["run", "team/sum"]);
    assert!(failed.exit == 1 && failed.stderr.contains(way), "{failed}");
    assert!(failed.stderr.contains("--provider ollama"), "{failed}");
    let models = |environment: &[(&str, &str)]| {
        let report = run(user.command().envs(environment.iter().copied()).args(["doctor", "--json"])).json();
        let findings = report["data"]["findings"].as_array().expect("findings").clone();
        findings.into_iter().find(|finding| finding["check"] == "models").expect("models")
    };
    assert!(text(&models(&[])["remedy"]).starts_with(way));
    assert_eq!(models(&[("OPENAI_API_KEY", "sk-1")])["message"], "a key is set for openai");
    let added = user.ok(["schedule", "add", "team/sum", "--every", "1h"]);
    assert!(added.stderr.contains(way), "{added}");
}

#[test]
fn hints_work_when_followed() {
    let user = User::initialized();
    let stderr = |words: &[&str]| user.run(words).stderr;
    assert!(stderr(&["execute", "examples/hello", "--article", "tea"]).contains("KEY=VALUE: article=tea"));
    assert!(stderr(&["pin", "examples/hello"]).contains("rye lock update ID"));
    assert!(stderr(&["config", "show", "search.limit"]).contains("rye config get search.limit"));
    user.ok(["config", "get", "search.limit"]);
    assert!(stderr(&["remove", "examples/hello"]).contains("rye why examples/hello"));
    assert!(stderr(&["bundle", "upgrade", "gifts-2.0.0.tar.zst"]).contains("rye add gifts-2.0.0.tar.zst"));
    for (word, far) in [("hi", "ls"), ("function", "runtimes"), ("node", "runtimes")] {
        let answer = stderr(&["execute", word]);
        assert!(!answer.contains(far), "{answer}");
    }
    let keyless = User::new();
    for words in [["keys", "show"], ["keys", "export"]] {
        assert!(keyless.run(words).stderr.contains("make one: rye init"), "{words:?}");
    }
    assert!(keyless.run(["doctor"]).stdout.contains("make it one: rye init"));
}

#[test]
fn several_ids_of_a_type_are_signed() {
    let user = User::initialized();
    for name in ["a", "b"] {
        user.write(&format!("tools/team/{name}.py"), rye_test::tool("team", name));
    }
    user.ok(["sign", "tool", "team/a", "team/b"]);
    user.ok(["verify", "tool", "team/a", "team/b"]);
    assert!(user.run(["sign", "tool", "team/a.py", "team/b.py"]).stderr.contains("quote the pattern"));
}

#[test]
fn refused_tool_shows_its_refusal_alone() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/a", "--lang", "bash"]);
    let updated = user.ok(["lock", "update", "team/a", "--scope", "project"]);
    assert!(updated.stderr.contains("commit lockfiles/"), "{updated}");
    let mut source = user.read("tools/team/a.sh");
    source.extend_from_slice(b"# changed\n");
    user.write("tools/team/a.sh", source);
    user.ok(["sign", "team/a"]);
    let tested = user.run(["test", "team/a"]);
    assert!(tested.stdout.contains("doesn't match the team's lockfile"), "{tested}");
    assert!(!tested.stdout.contains("found nothing"), "{tested}");
}

#[test]
fn untrusted_items_lead_to_join() {
    let alice = Member::founder("alice");
    for name in ["a", "b", "c", "d"] {
        alice.write_tool(name, "{}");
    }
    alice.ok(["sign", "tool", "team/*", "--yes"]);
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    let refused = bob.run(["verify"]);
    assert!(refused.exit != 0 && refused.stderr.contains("in this project only: rye join"), "{refused}");
    let report = bob.run(["doctor"]).stdout;
    assert!(report.contains("more like these; --json lists all"), "{report}");
}
