//! What an item is: ids, types, spaces and their order, actions, metadata; text to parsed item; conditions,
//! interpolation, merge.
//!
//! Everything here is a function over values: no files, no environment, no async, and no clock but the one that stops
//! a parser on a text made to be slow. Reading items from disk belongs to `rye-space`, deciding who vouches for them
//! to `rye-trust`.

pub mod checkout;
#[cfg(feature = "parsers")]
pub mod condition;
pub mod diagnostic;
pub mod extractor;
pub mod file_name;
pub mod id;
#[cfg(feature = "parsers")]
pub mod inputs;
#[cfg(feature = "parsers")]
pub mod interpolate;
pub mod json;
pub mod merge;
pub mod metadata;
#[cfg(feature = "schemas")]
pub mod parameters;
#[cfg(feature = "parsers")]
pub mod parse;
mod primary_action;
pub mod repository;
pub mod scope;
pub mod space;
pub mod text;
pub mod timestamp;
pub mod validate;
pub mod yaml;

/// The value every parser makes.
pub use serde_json::Value;

pub use diagnostic::{Diagnostic, ParsedItem, SourcePosition};
pub use extractor::{Extractor, ExtractorSet, SignatureFormat};
pub use id::{InvalidId, ItemId, ItemRef, ItemType};
pub use primary_action::{PrimaryAction, UnknownPrimaryAction};
pub use space::{BundleId, Space};
