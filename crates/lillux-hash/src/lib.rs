//! SHA-256 digests and canonical JSON.
//!
//! The part of the kernel that crates without I/O share: it has no files, no processes and no async runtime.

pub mod canonical;
pub mod digest;

pub use digest::Digest;
