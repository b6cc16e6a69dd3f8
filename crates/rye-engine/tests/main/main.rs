//! The engine as a process that stays: what changes on disk is noticed.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs, reason = "tests")]

mod lock_sequences;
mod lockfiles;
mod long_running;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
