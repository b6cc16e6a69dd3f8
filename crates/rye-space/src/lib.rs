//! Where items live: the three spaces, bundles, layered config, the search index. All reading of items from disk.
//!
//! It finds and reads; it decides nothing about trust (that is `rye-trust`) and executes nothing.

pub mod accounts;
pub mod approvals;
pub mod bundle;
pub mod config;
pub mod embedded;
pub mod installed;
pub mod keys;
pub mod located;
pub mod manifest;
pub mod ownership;
pub mod path;
pub mod programs;
pub mod python;
pub mod roots;
pub mod schema;
pub mod scope;
pub mod search;
pub mod shown;
pub mod signed_ids;
pub mod spaces;
pub mod stamp;
pub mod walk;
pub mod workspace;
pub mod write_root;

pub use located::Located;
pub use manifest::{Manifest, ManifestFile};
pub use path::{FilePath, InvalidPath};
pub use roots::{AI_FOLDER, Roots, RootsError};
pub use spaces::{LocateError, Place, Spaces};
pub use workspace::{OpenError, Workspace};
pub use write_root::{ProtectedFolders, WriteRefusal};
