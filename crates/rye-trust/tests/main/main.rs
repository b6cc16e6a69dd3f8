//! Who vouches for bytes, from outside: vectors of the original, laws of signing, every way to tamper, every rule of
//! the key ring.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod covered;
mod identity;
mod keyring;
mod manifest_entries;
mod roundtrip;
mod support;
mod tamper;
mod vectors;

/// A test file that is not declared would never run; one beside this folder would be another binary.
#[test]
fn every_test_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
