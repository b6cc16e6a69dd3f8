//! The microkernel: hash, canonical JSON, Ed25519, content-addressed store, lockfiles, atomic files, locks, bounded
//! reads, HTTP, and the running of processes under supervision and confinement.
//!
//! It is given explicit paths and bytes. It knows nothing of `.ai/`, spaces or policy, and never searches for a path.
//!
//! Without the feature `system` there are keys and hashes only, which is what build scripts need.

#[cfg(feature = "system")]
pub mod cancel;
#[cfg(feature = "system")]
pub mod canonicalize;
#[cfg(feature = "system")]
pub mod change_monitor;
#[cfg(feature = "system")]
pub mod dir;
#[cfg(feature = "system")]
pub mod file;
#[cfg(feature = "system")]
pub mod http;
pub mod key;
#[cfg(feature = "system")]
pub mod lockfile;
#[cfg(feature = "system")]
pub mod name_watch;
#[cfg(feature = "system")]
pub mod object_store;
#[cfg(feature = "system")]
pub mod owner;
#[cfg(feature = "system")]
pub mod process;
#[cfg(feature = "system")]
pub mod real_paths;
#[cfg(feature = "system")]
pub mod sandbox;
#[cfg(feature = "system")]
pub mod socket;

#[cfg(feature = "system")]
pub use cancel::CancelToken;
#[cfg(feature = "system")]
pub use canonicalize::{CanonicalPathCache, canonicalize_existing};
#[cfg(feature = "system")]
pub use change_monitor::{ChangeMonitor, WatchedPaths};
pub use key::{Fingerprint, PublicKey, SecretKey, Signature};
pub use lillux_hash::{Digest, canonical, digest};
