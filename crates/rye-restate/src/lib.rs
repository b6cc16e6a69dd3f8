//! Hands submitted threads to workers through a [Restate](https://restate.dev) server.
//!
//! The store keeps threads: rows, journals, leases. This crate only moves the word that a thread waits:
//!
//! ```text
//! a thread waits ─ POST Thread/{id}/drive/send, key {id}:{epoch} ─→ Restate ─ HTTP/2 ─→ endpoint ─→ worker claims it in the store
//! ```
//!
//! - [`RestateSettings`]: where Restate is and where workers are, as signed settings say it.
//! - [`RestateClient`]: sends what waits, and registers the workers' endpoint.
//! - [`serve`]: the endpoint: an accept loop of its own, because the one of the SDK leaves Nagle's algorithm on. It verifies that
//!   requests are signed by the Restate server that settings name ([`IdentityKey`]), and calls a [`DriveHandler`].
//!
//! Nothing but the hand-over is journaled in Restate: `drive` has no steps. It returns when the thread has ended or waits for a
//! person; it fails, and is called again, while another worker has the thread or this one cannot take it. So a worker that dies
//! is replaced when the lease in the store ends. What is called twice, too early or by a stranger changes nothing: the worker
//! takes only what the store has, signed, and what no other process holds.

mod client;
mod endpoint;
mod identity;
mod server;
mod settings;

pub use client::{RestateClient, RestateError};
pub use endpoint::{DriveHandler, DriveReply, SERVICE};
pub use identity::{IdentityKey, IdentityRefusal};
pub use server::{EndpointSetup, listen, serve};
pub use settings::RestateSettings;
