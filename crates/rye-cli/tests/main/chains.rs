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

fn in_project(user: &User, name: &str, executor: &str, more: &str) {
    user.write(&format!("tools/chain/{name}.yaml"), element(name, executor, more));
    user.ok(["sign", "tool", &format!("chain/{name}"), "--space", "project"]);
}

fn in_user(user: &User, name: &str, executor: &str, more: &str) {
    user.write_user(&format!("tools/chain/{name}.yaml"), element(name, executor, more));
    user.ok(["sign", "tool", &format!("chain/{name}"), "--space", "user"]);
}

fn spaces(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let chain = answer["chain"].as_array().expect("a chain");
    chain.iter().map(|element| (text(&element["item_id"]), text(&element["space"]))).collect()
}

fn dry(user: &User, name: &str) -> Value {
    user.ok(["execute", "tool", &format!("chain/{name}"), "--dry-run", "--json"]).json()
}

fn refused(user: &User, name: &str, code: &str) -> String {
    let error = user.refused(["execute", &format!("chain/{name}"), "--dry-run"], 9, code);
    error["error"].as_str().expect("a message").to_owned()
}

const SUBPROCESS: &str = "rye/core/primitives/subprocess";

#[test]
fn a_project_tool_may_run_on_a_user_runtime_and_a_system_primitive() {
    let user = User::ready();
    in_user(&user, "runtime", SUBPROCESS, RUNS);
    in_project(&user, "tool", "chain/runtime", "");
    let answer = dry(&user, "tool");
    let pair = |id: &str, space: &str| (id.to_owned(), space.to_owned());
    assert_eq!(
        spaces(&answer),
        [pair("chain/tool", "project"), pair("chain/runtime", "user"), pair(SUBPROCESS, "system:ryeos-core")]
    );
    assert_eq!((&answer["status"], &answer["validated_pairs"]), (&json!("validation_passed"), &json!(2)));
}

#[test]
fn short_names_and_names_of_other_implementations_resolve() {
    let user = User::ready();
    for (name, executor) in [("a", "subprocess"), ("b", "rye/core/primitives/execute"), ("c", SUBPROCESS)] {
        in_project(&user, name, executor, RUNS);
        let last = spaces(&dry(&user, name)).pop().expect("a primitive");
        assert_eq!(last, (SUBPROCESS.to_owned(), "system:ryeos-core".to_owned()));
    }
    user.write(
        "tools/chain/py.py",
        rye_test::tool("chain", "Short").replace("rye/core/runtimes/python/function", "python_runtime"),
    );
    user.ok(["sign", "tool", "chain/py"]);
    assert_eq!(spaces(&dry(&user, "py"))[1].0, "rye/core/runtimes/python/function");
}

#[test]
fn a_user_tool_cannot_depend_on_a_project_runtime() {
    let user = User::ready();
    in_project(&user, "runtime", SUBPROCESS, RUNS);
    in_user(&user, "tool", "chain/runtime", "");
    assert_eq!(
        refused(&user, "tool", "RYE0310"),
        "Tool 'chain/tool' from user space cannot depend on 'chain/runtime' from project space. Use a higher-precedence space version or pin the dependency. (chain: chain/tool → chain/runtime)"
    );
}

#[test]
fn a_user_tool_sees_the_users_runtime_though_the_project_has_one_of_that_name() {
    let user = User::ready();
    in_project(&user, "runtime", SUBPROCESS, RUNS);
    in_user(&user, "runtime", SUBPROCESS, RUNS);
    in_user(&user, "tool", "chain/runtime", "");
    assert_eq!(spaces(&dry(&user, "tool"))[1], ("chain/runtime".to_owned(), "user".to_owned()));
}

#[test]
fn a_circle_is_told_with_its_path() {
    let user = User::ready();
    in_project(&user, "a", "chain/b", "");
    in_project(&user, "b", "chain/a", "");
    assert_eq!(refused(&user, "a", "RYE0311"), "Circular dependency detected: chain/a → chain/b → chain/a");
    in_project(&user, "self", "chain/self", "");
    assert_eq!(refused(&user, "self", "RYE0311"), "Circular dependency detected: chain/self → chain/self");
}

#[test]
fn a_missing_executor_is_told_with_the_path_so_far() {
    let user = User::ready();
    in_project(&user, "b", "nonexistent_runtime", "");
    in_project(&user, "a", "chain/b", "");
    assert_eq!(
        refused(&user, "a", "RYE0313"),
        "Executor not found: nonexistent_runtime (chain: chain/a → chain/b → nonexistent_runtime)"
    );
}

#[test]
fn a_chain_that_ends_in_no_primitive_is_refused() {
    let user = User::ready();
    in_project(&user, "end", "null", "");
    in_project(&user, "a", "chain/end", "");
    assert_eq!(refused(&user, "a", "RYE0314"), "Unknown primitive: chain/end (chain: chain/a → chain/end)");
}

#[test]
fn ten_elements_are_the_most() {
    let user = User::ready();
    in_project(&user, "e9", SUBPROCESS, RUNS);
    for depth in (1..9).rev() {
        in_project(&user, &format!("e{depth}"), &format!("chain/e{}", depth + 1), "");
    }
    assert_eq!(spaces(&dry(&user, "e1")).len(), 10);
    in_project(&user, "e0", "chain/e1", "");
    let message = refused(&user, "e0", "RYE0312");
    assert!(message.starts_with("Chain too deep (max 10): chain/e0 → chain/e1 → "), "{message}");
    assert!(message.ends_with(&format!("chain/e9 → {SUBPROCESS}")), "{message}");
}

#[test]
fn versions_and_inputs_are_checked_along_the_chain() {
    let user = User::ready();
    let wants = format!("child_constraints:\n  chain/tool: {{min_version: \"2.0.0\"}}\n{RUNS}");
    in_project(&user, "runtime", SUBPROCESS, &wants);
    in_project(&user, "tool", "chain/runtime", "");
    assert_eq!(
        refused(&user, "tool", "RYE0310"),
        "Chain validation failed: Version constraint failed: 'chain/tool' version 1.0.0 < minimum required 2.0.0"
    );
    let wants = format!("inputs: [source, argv]\n{RUNS}");
    in_project(&user, "runtime", SUBPROCESS, &wants);
    in_project(&user, "tool", "chain/runtime", "outputs: [source]\n");
    assert_eq!(
        refused(&user, "tool", "RYE0310"),
        "Chain validation failed: I/O mismatch: 'chain/runtime' requires inputs ['argv'] not provided by 'chain/tool' (outputs: ['source'])"
    );
}

#[test]
fn an_element_nobody_signed_stops_the_chain() {
    let user = User::ready();
    in_project(&user, "runtime", SUBPROCESS, RUNS);
    in_project(&user, "tool", "chain/runtime", "");
    user.write("tools/chain/runtime.yaml", element("runtime", SUBPROCESS, RUNS));
    let error = user.refused(["execute", "chain/tool"], 4, "RYE0401");
    assert_eq!(error["item_id"], "chain/runtime");
    user.write(
        "tools/chain/runtime.yaml",
        String::from_utf8(user.read("tools/chain/tool.yaml"))
            .expect("text")
            .replace("chain/runtime", SUBPROCESS),
    );
    user.refused(["execute", "chain/tool"], 4, "RYE0402");
}

#[test]
fn why_draws_the_chain_and_says_what_is_wrong_with_it() {
    let user = User::ready();
    in_project(&user, "tool", "chain/gone", "");
    let why = user.ok(["why", "tool", "chain/tool"]).stdout;
    assert!(why.contains("cannot run: Executor not found: chain/gone"), "{why}");
    let why = user.data(["why", "tool", "examples/hello"]);
    assert_eq!(why["chain_problem"], Value::Null);
    let ids: Vec<_> =
        why["chain"].as_array().expect("a chain").iter().map(|element| element["item_id"].clone()).collect();
    assert_eq!(json!(ids), json!(["examples/hello", "rye/core/runtimes/python/function", SUBPROCESS]));
    assert!(why["chain"][0]["signer"]["fingerprint"].is_string());
}
