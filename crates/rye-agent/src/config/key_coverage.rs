//! Every key of the shipped files, and the test in which changing it changes what happens.
//!
//! A new key without a row fails here, and so does a row whose test is gone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::tests::shipped;
use super::*;

/// Why a key is there.
#[derive(Clone, Copy, Debug)]
enum KeyCoverage {
    /// The test in which changing it changes what happens.
    Test(&'static str),
    /// It is words for people.
    Text,
}

use KeyCoverage::{Test, Text};

/// File, key (`*` stands for anything), proof. The first row that fits a key is its own.
const KEYS: &[(&str, &str, KeyCoverage)] = &[
    ("agent", "provider.default", Test("several_keys_choose_first_provider_by_name")),
    ("agent", "max_output_tokens", Test("max_output_tokens_caps_responses")),
    ("agent", "tier_mapping", Test("tier_mapping_overrides_providers")),
    ("agent", "tiers", Test("listed_models_are_fallbacks_in_order")),
    ("budget_ledger_schema", "table.name", Test("fixed_settings_cannot_be_changed")),
    ("budget_ledger_schema", "table.*", Test("ledger_allows_extra_columns_and_indexes")),
    ("budget_ledger_schema", "operations.reserve.*", Test("fixed_settings_cannot_be_changed")),
    (
        "budget_ledger_schema",
        "operations.report_actual.clamp_to_reserved",
        Test("clamp_limits_only_parent_charges"),
    ),
    ("budget_ledger_schema", "operations.release.on_status", Test("release_on_status_closes_ledger_row")),
    ("budget_ledger_schema", "cleanup.archive_after_days", Test("archive_after_days_sets_prune_age")),
    (
        "budget_ledger_schema",
        "cleanup.vacuum_interval_days",
        Test("vacuum_interval_days_sets_vacuum_frequency"),
    ),
    (
        "budget_ledger_schema",
        "cleanup.remove_archived_after_days",
        Test("remove_archived_after_days_empties_archive"),
    ),
    ("budget_ledger_schema", "cleanup.keep_trees", Test("keep_trees_bounds_ended_trees")),
    ("budget_ledger_schema", "cleanup.max_megabytes", Test("max_megabytes_bounds_disk_usage")),
    ("budget_ledger_schema", "cleanup.automatic", Test("automatic_cleanup_prunes_on_start")),
    ("capability_risk", "*.description", Text),
    ("capability_risk", "classifications.*", Test("risk_most_specific_pattern_wins")),
    ("capability_risk", "risk_levels.*.policy", Test("wildcard_needs_unrestricted_acknowledgement")),
    (
        "coordination",
        "coordination.wait_threads.default_timeout",
        Test("wait_threads_timeout_overrides_resilience"),
    ),
    ("coordination", "coordination.wait_threads.max_timeout", Test("max_timeout_caps_waiting")),
    (
        "coordination",
        "coordination.continuation.trigger_threshold",
        Test("trigger_threshold_starts_compaction"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_directive",
        Test("overflowing_history_is_summarized"),
    ),
    ("coordination", "coordination.continuation.summary_model", Test("overflowing_history_is_summarized")),
    (
        "coordination",
        "coordination.continuation.summary_limit_overrides.*",
        Test("overflowing_history_is_summarized"),
    ),
    (
        "coordination",
        "coordination.continuation.resume_ceiling_tokens",
        Test("resume_ceiling_bounds_kept_conversation"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_max_tokens",
        Test("overflowing_history_is_summarized"),
    ),
    (
        "coordination",
        "coordination.transcript_integrity",
        Test("transcript_integrity_controls_tampered_reads"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.enabled",
        Test("disabled_orphan_detection_resumes_nothing"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.scan_on_startup",
        Test("daemon_resumes_other_projects_unless_disabled"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.stale_threshold_minutes",
        Test("stale_remote_thread_is_abandoned"),
    ),
    ("error_classification", "*.description", Text),
    ("error_classification", "patterns.[].name", Text),
    ("error_classification", "patterns.[].retry_policy.policy", Test("named_policy_can_be_overridden")),
    ("error_classification", "patterns.[].retry_policy.*", Test("retry_after_header_is_never_undercut")),
    ("error_classification", "patterns.*", Test("config_layers_merge_by_id")),
    ("error_classification", "default.*", Test("unmatched_error_uses_default")),
    ("error_classification", "*.default", Test("policy_type_supplies_missing_values")),
    ("error_classification", "retry_policy_types.*", Test("fixed_settings_cannot_be_changed")),
    ("events", "*.description", Text),
    ("events", "criticality_levels.*", Test("fixed_settings_cannot_be_changed")),
    ("events", "event_types.*.emit_config.async", Test("async_flag_must_match_criticality")),
    ("events", "event_types.*.emit_config.throttle_seconds", Test("throttle_limits_delta_writes")),
    (
        "events",
        "event_types.*.emit_config.accumulate_on_error",
        Test("accumulate_on_error_controls_partial_reasoning"),
    ),
    ("events", "event_types.*.emit_on_error", Test("emit_on_error_controls_partial_output")),
    ("events", "event_types.*.payload_schema.*", Test("events_have_configured_criticality")),
    ("events", "event_types.*.category", Test("every_diagnostic_has_a_position")),
    ("events", "event_types.*.criticality", Test("event_emitter_criticality_routing_from_config")),
    ("hook_conditions", "*.description", Text),
    ("hook_conditions", "action_*", Test("invalid_merged_config_is_rejected")),
    ("hook_conditions", "*.layer", Test("hooks_are_ordered_by_layer_and_origin")),
    ("hook_conditions", "*.condition.*", Test("hooks_are_overridden_by_id")),
    ("hook_conditions", "*.event", Test("only_params_are_interpolated")),
    ("hook_conditions", "*.action.params.*", Test("only_params_are_interpolated")),
    ("hook_conditions", "*.action.*", Test("shipped_hook_follows_its_action")),
    ("hook_conditions", "*.grants", Test("project_hook_is_limited_to_thread_capabilities")),
    ("hook_conditions", "*.position", Test("hook_position_and_wrap_format_context")),
    ("hook_conditions", "*.wrap", Test("hook_position_and_wrap_format_context")),
    ("resilience", "retry.max_retries", Test("max_retries_bounds_model_retries")),
    ("resilience", "retry.policies.*", Test("named_policy_comes_from_resilience")),
    ("resilience", "limits.defaults.spend_currency", Test("fixed_settings_cannot_be_changed")),
    ("resilience", "limits.defaults.*", Test("parent_budget_funds_exactly_100_children")),
    ("resilience", "limits.enforcement.check_before_turn", Test("check_before_turn_blocks_first_call")),
    ("resilience", "limits.enforcement.check_after_turn", Test("check_after_turn_suspends_at_limit")),
    ("resilience", "limits.enforcement.on_exceed", Test("on_exceed_applies_without_hooks")),
    ("resilience", "checkpoint.persistence.*", Test("fixed_settings_cannot_be_changed")),
    ("resilience", "checkpoint.triggers.pre_turn", Test("checkpoint_triggers_can_be_disabled")),
    ("resilience", "checkpoint.triggers.post_llm", Test("checkpoint_triggers_can_be_disabled")),
    ("resilience", "checkpoint.triggers.post_tools", Test("checkpoint_triggers_can_be_disabled")),
    ("resilience", "checkpoint.triggers.on_error", Test("checkpoint_triggers_can_be_disabled")),
    ("resilience", "coordination.wait_timeout_seconds", Test("wait_threads_timeout_overrides_resilience")),
    ("resilience", "coordination.fail_fast", Test("fail_fast_ends_wait_at_first_failure")),
    (
        "resilience",
        "coordination.cancel_siblings_on_failure",
        Test("cancel_siblings_on_failure_cancels_running_siblings"),
    ),
    ("resilience", "coordination.max_wait_thread_ids", Test("max_wait_thread_ids_bounds_one_call")),
    ("resilience", "coordination.completion_event_ttl_seconds", Test("completion_event_ttl_expires_results")),
    ("resilience", "child_policy.on_parent_cancel", Test("children_of_a_cancelled_parent_follow_its_policy")),
    (
        "resilience",
        "child_policy.on_parent_complete",
        Test("children_of_a_completed_parent_follow_its_policy"),
    ),
    ("resilience", "child_policy.on_parent_error", Test("children_of_a_failed_parent_follow_its_policy")),
    ("resilience", "concurrency.max_concurrent_children", Test("max_concurrent_children_is_enforced")),
    ("resilience", "concurrency.max_total_threads", Test("max_total_threads_is_enforced")),
    ("resilience", "concurrency.queue_timeout_seconds", Test("queue_timeout_ends_waiting_children")),
    ("resilience", "hooks.call_timeout_seconds", Test("slow_hook_before_call_blocks_it")),
    ("resilience", "tool_preload.enabled", Test("preload_skips_tools_beyond_budget")),
    ("resilience", "tool_preload.max_tokens", Test("preload_skips_tools_beyond_budget")),
];

/// The keys of a document; elements of a list with ids count as one.
fn collect_keys(value: &Value, path: &str, key_set: &mut BTreeSet<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| collect_keys(value, &below(key), key_set));
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(|one| one.get("id").is_some()) => {
            for element in list.iter().filter_map(Value::as_object) {
                let own = element.iter().filter(|(key, _)| !["id", "origin"].contains(&key.as_str()));
                own.for_each(|(key, value)| collect_keys(value, &below(&format!("[].{key}")), key_set));
            }
        }
        _ => {
            key_set.insert(path.to_owned());
        }
    }
}

fn key_matches(pattern: &str, key: &str) -> bool {
    let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
    regex::Regex::new(&format!("^{}$", parts.join(".*"))).expect("a pattern").is_match(key)
}

fn collect_sources(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

#[test]
fn every_shipped_key_has_a_test() {
    let config = shipped();
    let mut used = BTreeSet::new();
    for name in CONFIG_NAMES.into_iter().filter(|name| *name != "hooks") {
        let mut all = BTreeSet::new();
        collect_keys(&config.values()[name], "", &mut all);
        for key in all {
            let row = KEYS.iter().position(|(file, pattern, _)| *file == name && key_matches(pattern, &key));
            used.insert(row.unwrap_or_else(|| panic!("`{key}` of {name}.yaml has no row here")));
        }
    }
    let unused: Vec<_> = (0..KEYS.len()).filter(|row| !used.contains(row)).map(|row| KEYS[row]).collect();
    assert!(unused.is_empty(), "rows without a key: {unused:?}");
}

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect_sources(&root.join("src"), &mut files);
    collect_sources(&root.join("../rye-cli/tests"), &mut files);
    collect_sources(&root.join("../rye-thread/src"), &mut files);
    collect_sources(&root.join("../rye-store-sqlite/src"), &mut files);
    collect_sources(&root.join("../rye-test/src/store_contract"), &mut files);
    if root.join("tests").is_dir() {
        collect_sources(&root.join("tests"), &mut files);
    }
    let text = |path: &PathBuf| lillux::file::read_bounded(path, 1 << 20).expect("a file").0;
    let texts: Vec<String> =
        files.iter().map(|path| String::from_utf8(text(path)).expect("a text")).collect();
    for (file, key, proof) in KEYS {
        if let Test(name) = proof {
            let declared = format!("fn {name}(");
            assert!(texts.iter().any(|text| text.contains(&declared)), "{file} {key}: {name}");
        }
    }
}
