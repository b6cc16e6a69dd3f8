//! Source trees in, plans out, and back again.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod formats;
mod hostile;
mod round_trip;
mod support;
