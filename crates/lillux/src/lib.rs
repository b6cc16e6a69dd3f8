//! The microkernel: hash, canonical JSON, Ed25519, content-addressed store, atomic files, locks, bounded reads.
//!
//! It is given explicit paths and bytes. It knows nothing of `.ai/`, spaces or policy, and never searches for a path.

pub mod cancel;
pub mod canonical;
pub mod digest;
pub mod file;
pub mod key;
pub mod store;

pub use cancel::Cancel;
pub use digest::Digest;
pub use key::{Fingerprint, PublicKey, SecretKey, Signature};
