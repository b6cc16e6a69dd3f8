//! The machine by itself: each test plays the world.

mod approvals;
mod config_keys;
mod harness;
mod properties;
mod turn_loop;
