//! The bundles that a project asks for (`.ai/bundles.toml`) and what they were resolved to (`.ai/bundles.lock`): reading,
//! changing and writing the two files. Pure: the caller reads the bytes, fetches and installs.
//!
//! Both files come with a clone. They are read within bounds, unknown keys are errors, and each problem names its line.

mod lock;
mod manifest;
mod source;
mod table_reader;

pub use lock::{LockedBundle, ProjectLock};
pub use manifest::{BundleRequirement, ProjectManifest};
pub use source::{GitSource, InvalidSource, RegistrySource, RequirementSource, SourceFields};

/// The manifest, from the project's folder.
pub const PROJECT_MANIFEST_PATH: &str = ".ai/bundles.toml";
/// Its lock.
pub const PROJECT_LOCK_PATH: &str = ".ai/bundles.lock";
/// The largest manifest or lock.
pub const MAX_PROJECT_FILE_BYTES: u64 = 1 << 20;
/// How many bundles a project may ask for.
pub const MAX_PROJECT_BUNDLES: usize = 500;
