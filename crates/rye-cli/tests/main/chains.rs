//! Chains: what follows what, in which spaces, and every way in which that is refused.

use serde_json::{Value, json};

use crate::support::User;

/// A YAML tool `chain/<name>` that runs on `executor`, with further lines.
fn element(name: &str, executor: &str, more: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: {executor}\ncategory: chain\nname: {name}\ndescription: An element\n{more}"
    )
}

/// A runtime that runs `true`.
const RUNS: &str = "config:\n  command: /bin/true\n";

fn write_project_element(user: &User, name: &str, executor: &str, more: &str) {
    user.write(&format!("tools/chain/{name}.yaml"), element(name, executor, more));
    user.ok(["sign", "tool", &format!("chain/{name}"), "--space", "project"]);
}

fn write_user_element(user: &User, name: &str, executor: &str, more: &str) {
    user.write_user(&format!("tools/chain/{name}.yaml"), element(name, executor, more));
    user.ok(["sign", "tool", &format!("chain/{name}"), "--space", "user"]);
}

fn spaces(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let chain = answer["chain"].as_array().expect("a chain");
    chain.iter().map(|element| (text(&element["item_id"]), text(&element["space"]))).collect()
}

fn dry_run(user: &User, name: &str) -> Value {
    user.ok(["execute", "tool", &format!("chain/{name}"), "--dry-run", "--json"]).json()
}

fn dry_run_error(user: &User, name: &str, code: &str) -> String {
    let error = user.assert_refused(["execute", &format!("chain/{name}"), "--dry-run"], 9, code);
    error["error"].as_str().expect("a message").to_owned()
}

const SUBPROCESS: &str = "rye/core/primitives/subprocess";

#[test]
fn chain_spans_project_user_and_system() {
    let user = User::initialized();
    write_user_element(&user, "runtime", SUBPROCESS, RUNS);
    write_project_element(&user, "tool", "chain/runtime", "");
    let answer = dry_run(&user, "tool");
    let pair = |id: &str, space: &str| (id.to_owned(), space.to_owned());
    assert_eq!(
        spaces(&answer),
        [pair("chain/tool", "project"), pair("chain/runtime", "user"), pair(SUBPROCESS, "system:ryeos-core")]
    );
    assert_eq!((&answer["status"], &answer["validated_pairs"]), (&json!("validation_passed"), &json!(2)));
}

#[test]
fn short_and_legacy_names_resolve() {
    let user = User::initialized();
    for (name, executor) in [("a", "subprocess"), ("b", "rye/core/primitives/execute"), ("c", SUBPROCESS)] {
        write_project_element(&user, name, executor, RUNS);
        let last = spaces(&dry_run(&user, name)).pop().expect("a primitive");
        assert_eq!(last, (SUBPROCESS.to_owned(), "system:ryeos-core".to_owned()));
    }
    user.write(
        "tools/chain/py.py",
        rye_test::tool("chain", "Short").replace("rye/core/runtimes/python/function", "python_runtime"),
    );
    user.ok(["sign", "tool", "chain/py"]);
    assert_eq!(spaces(&dry_run(&user, "py"))[1].0, "rye/core/runtimes/python/function");
}

#[test]
fn user_tool_cannot_use_project_runtime() {
    let user = User::initialized();
    write_project_element(&user, "runtime", SUBPROCESS, RUNS);
    write_user_element(&user, "tool", "chain/runtime", "");
    assert_eq!(
        dry_run_error(&user, "tool", "RYE0310"),
        "Tool 'chain/tool' from user space cannot depend on 'chain/runtime' from project space. Use a higher-precedence space version or pin the dependency. (chain: chain/tool → chain/runtime)"
    );
}

#[test]
fn user_tool_ignores_shadowing_project_runtime() {
    let user = User::initialized();
    write_project_element(&user, "runtime", SUBPROCESS, RUNS);
    write_user_element(&user, "runtime", SUBPROCESS, RUNS);
    write_user_element(&user, "tool", "chain/runtime", "");
    assert_eq!(spaces(&dry_run(&user, "tool"))[1], ("chain/runtime".to_owned(), "user".to_owned()));
}

#[test]
fn cycle_error_names_the_path() {
    let user = User::initialized();
    write_project_element(&user, "a", "chain/b", "");
    write_project_element(&user, "b", "chain/a", "");
    assert_eq!(
        dry_run_error(&user, "a", "RYE0311"),
        "Circular dependency detected: chain/a → chain/b → chain/a"
    );
    write_project_element(&user, "self", "chain/self", "");
    assert_eq!(
        dry_run_error(&user, "self", "RYE0311"),
        "Circular dependency detected: chain/self → chain/self"
    );
}

#[test]
fn missing_executor_error_names_the_path() {
    let user = User::initialized();
    write_project_element(&user, "b", "nonexistent_runtime", "");
    write_project_element(&user, "a", "chain/b", "");
    assert_eq!(
        dry_run_error(&user, "a", "RYE0313"),
        "Executor not found: nonexistent_runtime (chain: chain/a → chain/b → nonexistent_runtime)"
    );
}

#[test]
fn chain_without_primitive_is_refused() {
    let user = User::initialized();
    write_project_element(&user, "end", "null", "");
    write_project_element(&user, "a", "chain/end", "");
    assert_eq!(
        dry_run_error(&user, "a", "RYE0314"),
        "Unknown primitive: chain/end (chain: chain/a → chain/end)"
    );
}

#[test]
fn chain_length_is_limited_to_ten() {
    let user = User::initialized();
    write_project_element(&user, "e9", SUBPROCESS, RUNS);
    for depth in (1..9).rev() {
        write_project_element(&user, &format!("e{depth}"), &format!("chain/e{}", depth + 1), "");
    }
    assert_eq!(spaces(&dry_run(&user, "e1")).len(), 10);
    write_project_element(&user, "e0", "chain/e1", "");
    let message = dry_run_error(&user, "e0", "RYE0312");
    assert!(message.starts_with("Chain too deep (max 10): chain/e0 → chain/e1 → "), "{message}");
    assert!(message.ends_with(&format!("chain/e9 → {SUBPROCESS}")), "{message}");
}

#[test]
fn versions_and_inputs_are_checked_along_the_chain() {
    let user = User::initialized();
    let wants = format!("child_constraints:\n  chain/tool: {{min_version: \"2.0.0\"}}\n{RUNS}");
    write_project_element(&user, "runtime", SUBPROCESS, &wants);
    write_project_element(&user, "tool", "chain/runtime", "");
    assert_eq!(
        dry_run_error(&user, "tool", "RYE0310"),
        "Chain validation failed: Version constraint failed: 'chain/tool' version 1.0.0 < minimum required 2.0.0"
    );
    let wants = format!("inputs: [source, argv]\n{RUNS}");
    write_project_element(&user, "runtime", SUBPROCESS, &wants);
    write_project_element(&user, "tool", "chain/runtime", "outputs: [source]\n");
    assert_eq!(
        dry_run_error(&user, "tool", "RYE0310"),
        "Chain validation failed: I/O mismatch: 'chain/runtime' requires inputs ['argv'] not provided by 'chain/tool' (outputs: ['source'])"
    );
}

#[test]
fn unsigned_element_stops_the_chain() {
    let user = User::initialized();
    write_project_element(&user, "runtime", SUBPROCESS, RUNS);
    write_project_element(&user, "tool", "chain/runtime", "");
    user.write("tools/chain/runtime.yaml", element("runtime", SUBPROCESS, RUNS));
    let error = user.assert_refused(["execute", "chain/tool"], 4, "RYE0401");
    assert_eq!(error["item_id"], "chain/runtime");
    user.write(
        "tools/chain/runtime.yaml",
        String::from_utf8(user.read("tools/chain/tool.yaml"))
            .expect("text")
            .replace("chain/runtime", SUBPROCESS),
    );
    user.assert_refused(["execute", "chain/tool"], 4, "RYE0402");
}

#[test]
fn why_shows_the_chain_and_its_problem() {
    let user = User::initialized();
    write_project_element(&user, "tool", "chain/gone", "");
    let why = user.ok(["why", "tool", "chain/tool"]).stdout;
    assert!(why.contains("cannot run: Executor not found: chain/gone"), "{why}");
    let why = user.data(["why", "tool", "examples/hello"]);
    assert_eq!(why["chain_problem"], Value::Null);
    let ids: Vec<_> =
        why["chain"].as_array().expect("a chain").iter().map(|element| element["item_id"].clone()).collect();
    assert_eq!(json!(ids), json!(["examples/hello", "rye/core/runtimes/python/function", SUBPROCESS]));
    assert!(why["chain"][0]["signer"]["fingerprint"].is_string());
}
