//! The endpoint and the client over loopback, without a Restate server: `scripts/check-restate` has one.
#![allow(clippy::expect_used, reason = "in tests a failed expectation is a failed test")]

mod client;
mod endpoint;
