//! The endpoint and the client over loopback, without a Restate server: `scripts/check-restate` has one.

mod client;
mod endpoint;
