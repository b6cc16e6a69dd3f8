//! What a team ships: a bundle is a set of files below `.ai/`, named with their hashes in one signed manifest.
//!
//! Everything that comes in from outside (a folder, an archive, a registry) becomes a staged folder first; a staged folder
//! is judged against its manifest; a plan compares it with what is installed; a transaction carries the plan out whole or
//! not at all. Who may be trusted is said by the caller: this crate decides nothing about keys.

pub mod path;

pub use path::{FilePath, InvalidPath};
