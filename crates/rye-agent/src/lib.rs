//! Directive → thread: a model loop with limits, budgets that hold over the whole tree, hooks, permissions that only
//! narrow, a signed transcript, and a journal from which it goes on after a crash.
//!
//! ```text
//! directive → ThreadSpec → State ⇄ step(state, event) → effects → driver → event → journal → step …
//! ```

pub mod action;
pub mod capability;
pub mod classify;
pub mod config;
pub mod cost;
pub mod definitions;
pub mod dispatch;
pub mod door;
pub mod driver;
pub mod facts;
pub mod hooks;
pub mod internal;
pub mod journal;
pub mod limits;
pub mod machine;
pub mod models;
pub mod money;
pub mod preflight;
pub mod prepare;
pub mod redact;
pub mod risk;
pub mod shape;
pub mod spec;
pub mod status;
pub mod store;
#[cfg(test)]
mod test_world;
pub mod thread_id;
pub mod threads;
pub mod transcript;
