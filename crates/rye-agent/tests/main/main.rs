//! Threads from the outside: directives, providers, the store, in one temporary world each.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod approvals;
mod background;
mod budget;
mod cancellation;
mod clocks;
mod config_effects;
mod continuation;
mod coordination;
mod freshness;
mod hook_tools;
mod needed_person;
mod offline;
mod orchestration;
mod pipelines;
mod prompts_and_hooks;
mod provider_protocols;
mod resume;
mod retention;
mod sandbox_escapes;
mod test_space;

#[test]
fn every_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
