//! Running, supervising and confining processes, from outside.
#![allow(clippy::expect_used, clippy::panic, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod closed;
mod confinement;
mod deaths;
mod doors;
mod opened;
mod ordinary_user;
mod supervision;
mod support;
mod waiting;

/// A test file that nobody declares would never run; one beside this folder would be another binary.
#[test]
fn every_file_of_this_folder_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
