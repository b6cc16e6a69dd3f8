//! What a team ships: a bundle is a set of files below `.ai/`, named with their hashes in one signed manifest.
//!
//! Everything that comes in from outside (a folder, an archive, a registry) becomes a staged folder first; a staged folder
//! is judged against its manifest; a plan compares it with what is installed; a transaction carries the plan out whole or
//! not at all. Who may be trusted is said by the caller: this crate decides nothing about keys.

pub mod archive;
pub mod capabilities;
pub mod contents;
pub mod create;
pub mod install;
pub mod object;
pub mod project;
pub mod registry;
pub mod sbom;
pub mod signer_history;
pub mod verify;

pub use rye_space::installed::BundleLockfile;
pub use rye_space::manifest::{self, Manifest, ManifestFile};
pub use rye_space::path::{self, BundlePath, InvalidBundlePath};
