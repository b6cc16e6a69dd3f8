//! The microkernel: hash, canonical JSON, Ed25519, content-addressed store, lockfiles, atomic files, locks, bounded
//! reads, HTTP, and the running of processes under supervision and confinement.
//!
//! It is given explicit paths and bytes. It knows nothing of `.ai/`, spaces or policy, and never searches for a path.

pub mod cancel;
pub mod canonicalize;
pub mod change_monitor;
pub mod dir;
pub mod file;
pub mod http;
pub mod key;
pub mod lockfile;
pub mod name_watch;
pub mod object_store;
pub mod owner;
pub mod process;
pub mod sandbox;
pub mod socket;

pub use cancel::CancelToken;
pub use canonicalize::{CanonicalPathCache, canonicalize_existing};
pub use change_monitor::{ChangeMonitor, WatchedPaths};
pub use key::{Fingerprint, PublicKey, SecretKey, Signature};
pub use lillux_hash::{Digest, canonical, digest};
