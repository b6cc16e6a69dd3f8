//! What happens when one value is changed, and when it is changed to nonsense.

use rye_item::merge;
use serde_json::json;

use super::*;

/// The shipped values with one of them changed.
fn config_with(name: &str, over: &Value) -> Result<ThreadConfig> {
    let mut values = shipped().values().clone();
    let merged = merge::merge(&values[name], over);
    values.insert(name.to_owned(), merged);
    from_values(&values)
}

#[test]
fn fixed_settings_cannot_be_changed() {
    for (name, text) in [
        ("budget_ledger_schema", "table: {name: other}\n"),
        ("budget_ledger_schema", "operations: {reserve: {isolation: DEFERRED}}\n"),
        ("budget_ledger_schema", "operations: {reserve: {check_remaining: false}}\n"),
        ("error_classification", "retry_policy_types: {exponential: {formula: base}}\n"),
        ("error_classification", "retry_policy_types: {exponential: {parameters: {base: {type: string}}}}\n"),
        ("error_classification", "retry_policy_types: {exponential: {parameters: {max: {type: string}}}}\n"),
        ("error_classification", "retry_policy_types: {fixed: {formula: base}}\n"),
        ("error_classification", "retry_policy_types: {fixed: {parameters: {delay: {type: string}}}}\n"),
        ("error_classification", "retry_policy_types: {use_header: {formula: base}}\n"),
        (
            "error_classification",
            "retry_policy_types: {use_header: {parameters: {header: {type: number}}}}\n",
        ),
        (
            "error_classification",
            "retry_policy_types: {use_header: {parameters: {fallback: {type: number}}}}\n",
        ),
        ("error_classification", "retry_policy_types: {none: {formula: base}}\n"),
        ("error_classification", "retry_policy_types: {none: {parameters: {x: {}}}}\n"),
        ("events", "criticality_levels: {critical: {durability: best_effort}}\n"),
        ("events", "criticality_levels: {critical: {async: true}}\n"),
        ("events", "criticality_levels: {droppable: {durability: guaranteed}}\n"),
        ("events", "criticality_levels: {droppable: {async: false}}\n"),
        ("events", "criticality_levels: {droppable: {fallback: wait}}\n"),
        ("resilience", "limits: {defaults: {spend_currency: EUR}}\n"),
        ("resilience", "checkpoint: {persistence: {atomic_write: false}}\n"),
        ("resilience", "checkpoint: {persistence: {format: yaml}}\n"),
    ] {
        assert_eq!(diagnostics(name, text).len(), 1, "{name}: {text}");
    }
}

#[test]
fn async_flag_must_match_criticality() {
    for (event, is_async) in [("cognition_out_delta", false), ("thread_started", true)] {
        let over = json!({"event_types": {event: {"emit_config": {"async": is_async}}}});
        let message = config_with("events", &over).expect_err("refused").message;
        assert!(message.contains(&format!("event_types.{event}.emit_config.async")), "{message}");
    }
}

#[test]
fn unmatched_error_uses_default() {
    let over = json!({"default": {"category": "transient", "retryable": true, "retry_policy": {"type": "fixed", "delay": 2}}});
    let found = config_with("error_classification", &over)
        .expect("a configuration")
        .classification
        .classify(&json!({}));
    assert_eq!(
        (found.category.as_str(), found.retryable, found.code.as_str()),
        ("transient", true, "default")
    );
    assert_eq!(found.policy.delay_ms(0, &Default::default(), 0, 0), 2000);
}

#[test]
fn policy_type_supplies_missing_values() {
    let delay = |policy: Value, attempt| {
        let over = json!({
            "patterns": [{"id": "x", "category": "transient", "retryable": true, "match": {"path": "x", "op": "exists"}, "retry_policy": policy}],
            "retry_policy_types": {
                "exponential": {"parameters": {"base": {"default": 7}, "max": {"default": 9}}},
                "fixed": {"parameters": {"delay": {"default": 11}}},
                "use_header": {"parameters": {"header": {"default": "x-wait"}}},
            },
        });
        let headers = [("x-wait".to_owned(), "13".to_owned())].into();
        let config = config_with("error_classification", &over).expect("a configuration");
        config.classification.classify(&json!({"x": 1})).policy.delay_ms(attempt, &headers, 0, 0)
    };
    assert_eq!([0, 1].map(|attempt| delay(json!({"type": "exponential"}), attempt)), [7000, 9000]);
    assert_eq!(delay(json!({"type": "fixed"}), 0), 11_000);
    assert_eq!(delay(json!({"type": "use_header"}), 0), 13_000);
}

#[test]
fn named_policy_comes_from_resilience() {
    let mut values = shipped().values().clone();
    values["resilience"]["retry"]["policies"] = json!({
        "exponential": {"type": "exponential", "base": 1, "max_delay": 6},
        "fixed": {"type": "fixed", "delay": 4},
        "rate_limited": {"type": "use_header", "header": "x-wait", "fallback": {"policy": "exponential", "base": 3}},
        "other": {"type": "none"},
    });
    let delay = |policy: &str, attempt, headers: &[(&str, &str)]| {
        let mut values = values.clone();
        values["error_classification"]["patterns"] = json!([{"id": "x", "category": "transient", "retryable": true,
            "match": {"path": "x", "op": "exists"}, "retry_policy": {"policy": policy}}]);
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let config = ThreadConfig::from_values(&values).expect("a configuration");
        config.classification.classify(&json!({"x": 1})).policy.delay_ms(attempt, &headers, 0, 0)
    };
    assert_eq!([0, 5].map(|attempt| delay("exponential", attempt, &[])), [1000, 6000]);
    assert_eq!(delay("fixed", 0, &[]), 4000);
    assert_eq!(delay("rate_limited", 0, &[("x-wait", "8")]), 8000);
    assert_eq!([0, 1].map(|attempt| delay("rate_limited", attempt, &[])), [3000, 6000]);
    assert_eq!(delay("other", 3, &[]), 0);
}

#[test]
fn wait_threads_timeout_overrides_resilience() {
    let over = json!({"coordination": {"wait_timeout_seconds": 1.5}});
    assert_eq!(config_with("resilience", &over).expect("a configuration").wait_timeout_ms(), 1500);
    let over = json!({"coordination": {"wait_threads": {"default_timeout": 2.5}}});
    assert_eq!(config_with("coordination", &over).expect("a configuration").wait_timeout_ms(), 2500);
}

#[test]
fn every_diagnostic_has_a_position() {
    let cases = [
        (
            "events",
            "event_types:\n  a:\n    category: tool\n    criticality: important\n",
            "4:5",
            "important",
        ),
        (
            "events",
            "event_types:\n  a:\n    category: tool\n    criticality: critical\n    colour: red\n",
            "5:5",
            "unknown key",
        ),
        ("events", "criticality_levels:\n  critical:\n    durability: none\n", "3:5", "none"),
        (
            "events",
            "event_types:\n  a:\n    category: tool\n    criticality: critical\n    payload_schema: {type: 7}\n",
            "5:5",
            "schema",
        ),
        (
            "error_classification",
            "patterns:\n  - id: a\n    category: odd\n    match: {path: a}\n",
            "3:5",
            "odd",
        ),
        (
            "error_classification",
            "patterns:\n  - id: a\n    category: permanent\n    match:\n      any:\n        - path: a\n          op: equals\n          value: 1\n",
            "7:11",
            "unknown operator `equals`",
        ),
        (
            "error_classification",
            "patterns:\n  - id: a\n    category: permanent\n    match:\n      path: a\n      op: regex\n      value: \"(\"\n",
            "4:5",
            "bad pattern",
        ),
        (
            "error_classification",
            "patterns:\n  - id: a\n    category: permanent\n    match: {path: a}\n    retry_policy:\n      type: linear\n",
            "6:7",
            "linear",
        ),
        ("error_classification", "operators:\n  like: {description: d}\n", "2:3", "unknown key"),
        (
            "hook_conditions",
            "builtin_hooks:\n  - id: a\n    event: eror\n    action: {primary: load}\n",
            "3:5",
            "eror",
        ),
        (
            "hook_conditions",
            "builtin_hooks:\n  - id: a\n    event: error\n    action:\n      primary: run\n",
            "5:7",
            "run",
        ),
        (
            "hook_conditions",
            "builtin_hooks:\n  - id: a\n    event: error\n    action: {primary: load, item_id: \"x/${y}\"}\n",
            "4:29",
            "x/${y}",
        ),
        ("hook_conditions", "infra_hooks:\n  - id: a\n    event: error\n", "2:5", "valid"),
        (
            "hooks",
            "hooks:\n  - id: a\n    event: error\n    condition: {path: x, op: is, value: 1}\n    action: {primary: load}\n",
            "4:26",
            "unknown operator `is`",
        ),
        ("hooks", "hook: []\n", "1:1", "unknown key"),
        ("resilience", "limits:\n  defaults:\n    max_turns: 3\n", "3:5", "unknown key"),
        ("resilience", "limits:\n  defaults:\n    turns: lots\n", "3:5", "lots"),
        ("resilience", "limits:\n  enforcement:\n    on_exceed: ignore\n", "3:5", "ignore"),
        ("resilience", "checkpoint:\n  persistence:\n    atomic_write: false\n", "3:5", "false"),
        (
            "budget_ledger_schema",
            "table:\n  columns:\n    - {name: \"x; drop table y\", type: TEXT}\n",
            "3:8",
            "drop table",
        ),
        ("budget_ledger_schema", "table:\n  name: other\n", "2:3", "other"),
        ("capability_risk", "classifications:\n  - {risk: mild, patterns: [rye.*]}\n", "2:6", "mild"),
        ("coordination", "coordination:\n  continuation:\n    trigger_threshold: 2\n", "3:5", "2"),
        ("agent", "tier_mapping:\n  fast: 3\n", "2:3", "3"),
    ];
    for (name, text, position, part) in cases {
        let found = diagnostics(name, text);
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        let start = format!("f.yaml:{position}: ");
        assert!(
            lines.iter().any(|line| line.starts_with(&start) && line.contains(part)),
            "{start}…{part}: {lines:?}"
        );
    }
}

#[test]
fn diagnostics_of_all_files_are_reported() {
    let world = approved_world();
    let path =
        world.write("home/.ai/config/agent/resilience.yaml", "retry:\n  max_retries: many\ncolour: red\n");
    world.write(
        "home/.ai/config/agent/hooks.yaml",
        "hooks:\n  - id: a\n    event: eror\n    action: {primary: load}\n",
    );
    let error = load(&world).expect_err("refused");
    assert_eq!(error.code, Code::ThreadConfig);
    for part in [
        "3 mistakes",
        &format!("{}:2:3: retry.max_retries", path.display()),
        ":3:1: colour",
        ":3:5: hooks[0].event",
    ] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    assert_eq!(error.details["problems"].as_array().map(Vec::len), Some(3));
}

#[test]
fn invalid_merged_config_is_rejected() {
    let refused = |name: &str, over: Value| config_with(name, &over).expect_err("refused").message;
    for (name, over, part) in [
        (
            "budget_ledger_schema",
            json!({"table": {"columns": [{"name": "thread_id", "type": "TEXT", "primary_key": true}]}}),
            "`max_spend` is missing",
        ),
        (
            "budget_ledger_schema",
            json!({"table": {"indexes": [{"name": "i", "columns": ["gone"]}]}}),
            "no column `gone`",
        ),
        ("hook_conditions", json!({"action_primaries": ["load"]}), "`execute` is not among action_primaries"),
        (
            "hook_conditions",
            json!({"action_item_types": ["tool"]}),
            "`directive` is not among action_item_types",
        ),
        (
            "error_classification",
            json!({"patterns": [{"id": "x", "category": "transient", "match": {"path": "a"}, "retry_policy": {"policy": "gone"}}]}),
            "no policy `gone`",
        ),
        (
            "coordination",
            json!({"coordination": {"continuation": {"summary_limit_overrides": {"turn": 1}}}}),
            "unknown limit `turn`",
        ),
    ] {
        let message = refused(name, over);
        assert!(message.contains(part) && message.contains(&format!("agent/{name}.yaml")), "{message}");
    }
    assert!(ThreadConfig::from_values(&Map::new()).is_err());
}

#[test]
fn ledger_allows_extra_columns_and_indexes() {
    let mut values = shipped().values().clone();
    let table = &mut values["budget_ledger_schema"]["table"];
    table["columns"]
        .as_array_mut()
        .expect("columns")
        .push(json!({"name": "team", "type": "TEXT", "nullable": true}));
    table["indexes"].as_array_mut().expect("indexes").push(json!({"name": "idx_team", "columns": ["team"]}));
    let ledger = ThreadConfig::from_values(&values).expect("a configuration").ledger;
    let further: Vec<&str> = ledger.extra_columns().map(|column| column.name.as_str()).collect();
    assert_eq!((further, ledger.indexes.len()), (vec!["team"], 3));
}
