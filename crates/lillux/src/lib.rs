//! The microkernel: hash, canonical JSON, Ed25519, content-addressed store, lockfiles, atomic files, locks, bounded
//! reads, HTTP, and the running of processes under supervision and confinement.
//!
//! It is given explicit paths and bytes. It knows nothing of `.ai/`, spaces or policy, and never searches for a path.

pub mod beneath;
pub mod cancel;
pub mod confine;
pub mod file;
pub mod http;
pub mod key;
pub mod lockfile;
pub mod owner;
pub mod process;
pub mod real;
pub mod socket;
pub mod store;

pub use cancel::Cancel;
pub use key::{Fingerprint, PublicKey, SecretKey, Signature};
pub use lillux_hash::{Digest, canonical, digest};
pub use real::{RealPaths, real};
