//! Threads from the outside: directives, providers, the store, in one temporary world each.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod background;
mod budget;
mod cancelling;
mod continuing;
mod coordination;
mod escapes;
mod offline;
mod orchestration;
mod people;
mod pipelines;
mod resume;
mod retention;
mod rows;
mod settings;
mod space;
mod wire;

#[test]
fn every_file_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}
