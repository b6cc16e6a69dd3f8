//! The `rye` command from outside: what a user types, what comes back, and what stays on disk. Every test has a home,
//! a project and a cache of its own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of tests fail as tests do, and break files in ways the engine never would"
)]
#![allow(clippy::needless_pass_by_value, reason = "a message reads best where it is sent")]

mod architecture;
mod attacks;
mod background;
mod bundle_config;
mod bundle_create;
mod bundle_manifest;
mod bundle_neighbours;
mod bundle_pins;
mod bundle_sources;
mod bundle_trust;
mod bundles;
mod chains;
mod ci;
mod config;
mod config_values;
mod dev_mode;
mod downgrades;
mod examples;
mod export;
mod faults;
mod file_inputs;
mod foreign_programs;
mod generated;
mod git_folders;
mod git_leftovers;
mod git_planted;
mod git_unindexed;
mod hints;
mod hostile_input;
mod hostile_project;
mod import;
mod index;
mod init;
mod install;
mod install_attacks;
mod install_faults;
mod install_upgrades;
mod item_programs;
mod join;
mod key_encryption;
mod keys;
mod killed_commands;
mod linked_folders;
mod lock_commands;
mod lockfiles;
mod mcp_answer_size;
mod mcp_client;
mod mcp_consent;
mod mcp_exposed;
mod mcp_http;
mod mcp_install;
mod mcp_limits;
mod mcp_redaction;
mod mcp_robustness;
mod mcp_server;
mod mcp_threads;
mod mcp_tools;
mod model_settings;
mod new_items;
mod newcomers;
mod offline_runs;
mod output;
mod packages;
mod pins;
mod program_consent;
mod project_owners;
mod python_bundles;
mod query;
mod registries;
mod regressions;
mod replaced_files;
mod results;
mod rotate;
mod roundtrip;
mod run_environment;
mod run_folders;
mod schedules;
mod search_questions;
mod shared_store_settings;
mod shipped_lists;
mod sign_checks;
mod sign_consent;
mod spaces;
mod store_recovery;
mod support;
mod team;
mod texts;
mod thread_approvals;
mod thread_budgets;
mod thread_costs;
mod thread_events;
mod thread_forks;
mod thread_hooks;
mod thread_notifications;
mod thread_records;
mod thread_rollback;
mod thread_rolling_budgets;
mod thread_run;
mod thread_views;
mod toctou;
mod tool_callbacks;
mod tool_refusals;
mod tool_support;
mod trust;
mod trust_hints;
mod type_confusion;
mod ui_access;
mod ui_api;
mod ui_events;
mod ui_support;
mod ui_top;
mod unnamed_items;
mod unsigned_bytes;
mod user_space;
mod vocabulary;
mod write_roots;
mod wrong_commands;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
