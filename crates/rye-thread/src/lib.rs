//! The pure thread: what it is, what can happen to it, and what it wants done.
//!
//! ```text
//! spec → State ⇄ step(state, event) → effects
//! ```
//!
//! Nothing here reads a file, asks the time, draws a random number or waits. A driver carries out the effects and feeds back
//! what came of them as events; a journal of those events is all that is needed to rebuild a thread's state.

pub mod action;
pub mod call_hooks;
pub mod capability;
pub mod classify;
pub mod config;
pub mod core_event;
pub mod cost;
pub mod definitions;
pub mod duration;
pub mod envelope;
pub mod hooks;
pub mod item_names;
pub mod journal;
pub mod limits;
pub mod machine;
pub mod model;
pub mod money;
pub mod risk;
pub mod rolling;
pub mod spec;
pub mod status;
pub mod thread_id;
