//! Every key of the shipped files, and the test in which changing it changes what happens.
//!
//! A new key without a row fails here, and so does a row whose test is gone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::tests::shipped;
use super::*;

/// Why a key is there.
#[derive(Clone, Copy, Debug)]
enum Proof {
    /// The test in which changing it changes what happens.
    Test(&'static str),
    /// It is words for people.
    Words,
}

use Proof::{Test, Words};

/// File, key (`*` stands for anything), proof. The first row that fits a key is its own.
const KEYS: &[(&str, &str, Proof)] = &[
    ("agent", "provider.default", Test("two_providers_for_one_tier_are_an_error_until_one_is_preferred")),
    ("agent", "max_output_tokens", Test("an_answer_is_no_longer_than_the_settings_allow")),
    ("agent", "tier_mapping", Test("the_own_tier_mapping_goes_over_what_providers_say")),
    ("budget_ledger_schema", "table.name", Test("a_promise_of_the_program_cannot_be_changed")),
    ("budget_ledger_schema", "table.*", Test("the_ledger_may_have_more_columns_and_indexes")),
    ("budget_ledger_schema", "operations.reserve.*", Test("a_promise_of_the_program_cannot_be_changed")),
    (
        "budget_ledger_schema",
        "operations.report_actual.clamp_to_reserved",
        Test("the_truth_is_recorded_and_a_clamp_only_limits_what_parents_are_charged"),
    ),
    (
        "budget_ledger_schema",
        "operations.release.on_status",
        Test("a_row_of_the_ledger_is_closed_when_its_thread_ends_as_the_settings_say"),
    ),
    (
        "budget_ledger_schema",
        "cleanup.archive_after_days",
        Test("archive_after_days_is_when_an_ended_tree_goes"),
    ),
    (
        "budget_ledger_schema",
        "cleanup.vacuum_interval_days",
        Test("vacuum_interval_days_is_how_often_the_database_is_made_small"),
    ),
    (
        "budget_ledger_schema",
        "cleanup.remove_archived_after_days",
        Test("remove_archived_after_days_is_when_the_archive_is_emptied"),
    ),
    ("budget_ledger_schema", "cleanup.keep_trees", Test("keep_trees_is_how_many_ended_trees_stay")),
    ("budget_ledger_schema", "cleanup.max_megabytes", Test("max_megabytes_is_how_much_room_is_taken")),
    (
        "budget_ledger_schema",
        "cleanup.automatic",
        Test("automatic_forgets_once_a_day_when_threads_are_started"),
    ),
    ("capability_risk", "*.description", Words),
    ("capability_risk", "classifications.*", Test("risk_most_specific_pattern_wins")),
    (
        "capability_risk",
        "risk_levels.*.policy",
        Test("risk_everything_is_blocked_and_allowed_with_its_own_acknowledgement"),
    ),
    (
        "coordination",
        "coordination.wait_threads.default_timeout",
        Test("the_own_timeout_of_waiting_goes_first"),
    ),
    (
        "coordination",
        "coordination.wait_threads.max_timeout",
        Test("the_longest_wait_is_what_max_timeout_says"),
    ),
    (
        "coordination",
        "coordination.continuation.trigger_threshold",
        Test("the_trigger_threshold_is_where_old_turns_go_without_a_summary"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_directive",
        Test("what_does_not_fit_is_summarised_as_the_configuration_says"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_model",
        Test("what_does_not_fit_is_summarised_as_the_configuration_says"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_limit_overrides.*",
        Test("what_does_not_fit_is_summarised_as_the_configuration_says"),
    ),
    (
        "coordination",
        "coordination.continuation.resume_ceiling_tokens",
        Test("the_resume_ceiling_is_how_much_of_the_conversation_goes_along"),
    ),
    (
        "coordination",
        "coordination.continuation.summary_max_tokens",
        Test("what_does_not_fit_is_summarised_as_the_configuration_says"),
    ),
    (
        "coordination",
        "coordination.transcript_integrity",
        Test("transcript_integrity_decides_whether_a_changed_transcript_is_read"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.enabled",
        Test("where_nobody_is_to_look_for_them_abandoned_threads_stay_as_they_are"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.scan_on_startup",
        Test("threads_of_another_project_go_on_when_the_process_starts_unless_its_settings_say_no"),
    ),
    (
        "coordination",
        "coordination.orphan_detection.stale_threshold_minutes",
        Test("a_thread_whose_process_cannot_be_asked_is_abandoned_once_it_was_silent_for_long"),
    ),
    ("error_classification", "*.description", Words),
    ("error_classification", "patterns.[].name", Words),
    (
        "error_classification",
        "patterns.[].retry_policy.policy",
        Test("a_named_policy_may_be_changed_where_it_is_named"),
    ),
    (
        "error_classification",
        "patterns.[].retry_policy.*",
        Test("a_server_that_says_when_is_heard_and_never_undercut"),
    ),
    (
        "error_classification",
        "patterns.*",
        Test("config_loader_deep_merge_by_id_project_override_and_extends"),
    ),
    ("error_classification", "default.*", Test("what_no_pattern_matches_is_what_the_default_says")),
    ("error_classification", "*.default", Test("what_a_policy_leaves_out_is_what_its_type_says")),
    ("error_classification", "retry_policy_types.*", Test("a_promise_of_the_program_cannot_be_changed")),
    ("events", "*.description", Words),
    ("events", "criticality_levels.*", Test("a_promise_of_the_program_cannot_be_changed")),
    ("events", "event_types.*.emit_config.async", Test("what_is_waited_for_is_said_once")),
    (
        "events",
        "event_types.*.emit_config.throttle_seconds",
        Test("throttle_is_how_often_words_on_their_way_are_written"),
    ),
    (
        "events",
        "event_types.*.emit_config.accumulate_on_error",
        Test("accumulate_on_error_decides_whether_interrupted_thoughts_are_kept"),
    ),
    ("events", "event_types.*.emit_on_error", Test("emit_on_error_decides_whether_a_broken_stream_is_told")),
    ("events", "event_types.*.payload_schema.*", Test("events_loader_config_criticality_and_emit_on_error")),
    ("events", "event_types.*.category", Test("every_mistake_is_told_with_its_place")),
    ("events", "event_types.*.criticality", Test("event_emitter_criticality_routing_from_config")),
    ("hook_conditions", "*.description", Words),
    ("hook_conditions", "action_*", Test("what_shows_only_after_merging_is_refused_too")),
    ("hook_conditions", "*.layer", Test("hooks_run_by_layer_and_the_users_come_first")),
    ("hook_conditions", "*.condition.*", Test("hooks_loader_builtin_infra_and_override_by_id")),
    ("hook_conditions", "*.event", Test("only_params_are_filled_in_and_the_event_has_two_names")),
    ("hook_conditions", "*.action.params.*", Test("only_params_are_filled_in_and_the_event_has_two_names")),
    ("hook_conditions", "*.action.*", Test("what_a_shipped_hook_does_is_what_its_action_says")),
    ("hook_conditions", "*.grants", Test("a_projects_hook_has_no_more_rights_than_the_thread")),
    ("hook_conditions", "*.position", Test("a_hooks_position_and_wrap_decide_how_its_text_stands")),
    ("hook_conditions", "*.wrap", Test("a_hooks_position_and_wrap_decide_how_its_text_stands")),
    ("resilience", "retry.max_retries", Test("max_retries_is_how_often_a_failing_model_is_asked_again")),
    ("resilience", "retry.policies.*", Test("a_named_policy_is_what_resilience_says")),
    ("resilience", "limits.defaults.spend_currency", Test("a_promise_of_the_program_cannot_be_changed")),
    (
        "resilience",
        "limits.defaults.*",
        Test("of_300_children_on_a_parent_that_can_fund_100_exactly_100_call_the_model"),
    ),
    (
        "resilience",
        "limits.enforcement.check_before_turn",
        Test("check_before_turn_stops_a_thread_before_its_first_call"),
    ),
    (
        "resilience",
        "limits.enforcement.check_after_turn",
        Test("check_after_turn_stops_a_thread_when_a_turn_is_over"),
    ),
    ("resilience", "limits.enforcement.on_exceed", Test("on_exceed_decides_where_no_hook_does")),
    ("resilience", "checkpoint.persistence.*", Test("a_promise_of_the_program_cannot_be_changed")),
    ("resilience", "checkpoint.triggers.pre_turn", Test("state_is_written_at_the_moments_that_are_chosen")),
    ("resilience", "checkpoint.triggers.post_llm", Test("state_is_written_at_the_moments_that_are_chosen")),
    ("resilience", "checkpoint.triggers.post_tools", Test("state_is_written_at_the_moments_that_are_chosen")),
    ("resilience", "checkpoint.triggers.on_error", Test("state_is_written_at_the_moments_that_are_chosen")),
    ("resilience", "coordination.wait_timeout_seconds", Test("the_own_timeout_of_waiting_goes_first")),
    ("resilience", "coordination.fail_fast", Test("fail_fast_ends_the_waiting_at_the_first_failure")),
    (
        "resilience",
        "coordination.cancel_siblings_on_failure",
        Test("cancel_siblings_on_failure_ends_those_still_at_work"),
    ),
    (
        "resilience",
        "coordination.max_wait_thread_ids",
        Test("max_wait_thread_ids_is_how_many_one_call_waits_for"),
    ),
    (
        "resilience",
        "coordination.completion_event_ttl_seconds",
        Test("completion_event_ttl_is_how_long_a_result_is_repeated"),
    ),
    ("resilience", "child_policy.on_parent_cancel", Test("children_of_a_cancelled_parent_follow_its_policy")),
    (
        "resilience",
        "child_policy.on_parent_complete",
        Test("children_of_a_completed_parent_follow_its_policy"),
    ),
    ("resilience", "child_policy.on_parent_error", Test("children_of_a_failed_parent_follow_its_policy")),
    (
        "resilience",
        "concurrency.max_concurrent_children",
        Test("max_concurrent_children_is_how_many_run_beside_each_other"),
    ),
    ("resilience", "concurrency.max_total_threads", Test("max_total_threads_is_how_many_a_tree_has_at_work")),
    ("resilience", "tool_preload.enabled", Test("preload_what_does_not_fit_is_left_out_and_said")),
    ("resilience", "tool_preload.max_tokens", Test("preload_what_does_not_fit_is_left_out_and_said")),
];

/// The keys of a document; elements of a list with ids count as one.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| keys(value, &below(key), found));
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(|one| one.get("id").is_some()) => {
            for element in list.iter().filter_map(Value::as_object) {
                let own = element.iter().filter(|(key, _)| !["id", "origin"].contains(&key.as_str()));
                own.for_each(|(key, value)| keys(value, &below(&format!("[].{key}")), found));
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

fn fits(pattern: &str, key: &str) -> bool {
    let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
    regex::Regex::new(&format!("^{}$", parts.join(".*"))).expect("a pattern").is_match(key)
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_key_of_the_shipped_files_has_a_test_that_changes_it() {
    let config = shipped();
    let mut used = BTreeSet::new();
    for name in NAMES.into_iter().filter(|name| *name != "hooks") {
        let mut all = BTreeSet::new();
        keys(&config.values()[name], "", &mut all);
        for key in all {
            let row = KEYS.iter().position(|(file, pattern, _)| *file == name && fits(pattern, &key));
            used.insert(row.unwrap_or_else(|| panic!("`{key}` of {name}.yaml has no row here")));
        }
    }
    let unused: Vec<_> = (0..KEYS.len()).filter(|row| !used.contains(row)).map(|row| KEYS[row]).collect();
    assert!(unused.is_empty(), "rows without a key: {unused:?}");
}

#[test]
fn every_test_that_a_key_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("../rye-cli/tests"), &mut files);
    sources(&root.join("../rye-thread/src"), &mut files);
    if root.join("tests").is_dir() {
        sources(&root.join("tests"), &mut files);
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
