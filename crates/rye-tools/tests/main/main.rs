//! The native tools, called as the engine calls them.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]
#![allow(clippy::disallowed_methods, reason = "tests make and look at files without the functions they test")]
#![allow(clippy::needless_pass_by_value, reason = "parameters are written where they are passed")]

mod attacks;
mod descriptors;
mod edits;
mod files;
mod support;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
