//! Threads that outlive the command that started them: one process per user runs them, started when it is first needed,
//! gone when it has nothing to do.
//!
//! ```text
//! starter: reach ─► register the thread (no owner, detached) ─► "take these" ─► answer
//! process: peer's uid, one bounded line ─► engine and threads of that place ─► claim, resume ─► answer
//! ```
//!
//! A thread is in its project's store before the daemon is asked to run it, so that a crash in between loses nothing. The
//! daemon is asked to take over threads without an owner (new threads and those a crash has left are the same to it), or to
//! resume a stopped one with what a person changes. Places with such threads are remembered in files; environments, which
//! hold keys, never are.

mod client;
mod daemon;
mod location;
mod protocol;
mod runtime_dir;
mod space_pool;

pub use client::DaemonClient;
pub use daemon::{DaemonSetup, serve};
pub use location::ThreadsLocation;
