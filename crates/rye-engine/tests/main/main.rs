//! The engine as a process that stays: what changes on disk is noticed.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs, reason = "tests")]

mod warm;
