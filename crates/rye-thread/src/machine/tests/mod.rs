//! The machine by itself: each test plays the world.

mod approvals;
mod budgets;
mod call_hooks;
mod config_keys;
mod control_results;
mod core_events;
mod fallbacks;
mod forks;
mod harness;
mod hook_policy;
mod hook_tools;
mod properties;
mod records;
mod turn_loop;
mod usage;
