//! Running, supervising and confining processes, from outside.
#![allow(clippy::expect_used, clippy::panic, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod callbacks;
mod confinement;
mod deaths;
mod interactive;
mod ordinary_user;
mod prewarm;
mod sandbox_attacks;
mod supervision;
mod support;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
