//! Where items live, from outside: the bundles that the build has sealed into the binary.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod directives;
mod embedded;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
