//! Directive → thread: a model loop with limits, budgets that hold over the whole tree, hooks, permissions that only
//! narrow, a signed transcript, and a journal from which it continues after a crash.
//!
//! ```text
//! directive → ThreadSpec → State ⇄ step(state, event) → effects → driver → event → journal → step …
//! ```

pub mod callback;
pub mod cluster;
pub mod config;
pub mod definitions;
pub mod dispatch;
pub mod driver;
pub mod file_inputs;
pub mod models;
pub mod preflight;
pub mod prepare;
pub mod provider_chain;
mod receipt_summary;
pub mod redact;
pub mod result_format;
pub mod rolling;
pub mod schedule;
pub mod store;
#[cfg(test)]
mod test_support;
pub mod thread_tools;
pub mod threads;
pub mod tool_context;
pub mod transcript;
pub mod views;

pub use rye_thread::{
    action, capability, classify, core_event, cost, envelope, hooks, journal, limits, machine, money, risk,
    spec, status, thread_id,
};

/// A new thread's name, from the system's randomness.
///
/// # Errors
/// When the system has none.
pub(crate) fn random_thread_id() -> Result<thread_id::ThreadId, getrandom::Error> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)?;
    Ok(thread_id::ThreadId::from_random(bytes))
}
