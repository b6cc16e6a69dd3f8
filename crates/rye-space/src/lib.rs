//! Where items live: the three spaces, bundles, layered config, the search index. All reading of items from disk.
//!
//! It finds and reads; it decides nothing about trust (that is `rye-trust`) and executes nothing.

pub mod accounts;
pub mod approvals;
pub mod bundle;
pub mod checkouts;
pub mod config;
pub mod embedded;
pub mod file_stamp;
pub mod handovers;
pub mod installed;
pub mod item_file;
pub mod keys;
pub mod manifest;
pub mod ownership;
pub mod path;
pub mod programs;
pub mod python_bundles;
pub mod roots;
pub mod scan;
pub mod schema;
pub mod scope;
pub mod search;
pub mod serde_path;
pub mod signed_ids;
pub mod spaces;
pub mod workspace;
pub mod write_root;

pub use item_file::ItemFile;
pub use manifest::{Manifest, ManifestFile};
pub use path::{BundlePath, InvalidBundlePath};
pub use roots::{AI_FOLDER, RESERVED_FILE_TEXT, Roots, RootsError};
pub use spaces::{CandidatePath, LocateError, Spaces};
pub use workspace::{Workspace, WorkspaceError};
pub use write_root::{ProtectedFolders, WriteRefusal};
