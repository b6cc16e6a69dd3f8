//! Bringing a bundle's files into a space, and out again: what would change ([`plan`]), and changing it whole or not at
//! all ([`transaction`]). Whose bundle it is, and whether that may be, the caller has decided before.
//!
//! What an installation must remember between two commands (its journal, earlier versions, backups) lies in user space,
//! in a folder per space ([`install_state::InstallState`]), so that a cloned project cannot bring its own.

pub mod allowed_paths;
pub mod copy_source;
pub mod generations;
pub mod install_state;
mod journal;
pub mod plan;
pub mod target_dir;
pub mod transaction;

use lillux::dir::DirError;
use rye_item::BundleId;

use crate::archive::ArchiveError;
use crate::object;
use crate::path::BundlePath;

pub use generations::Generation;
pub use install_state::InstallState;
pub use plan::{ConflictPreference, FileAction, InstallPlan, PlanRow};
pub use target_dir::{FileState, PathLookup, TargetDir};
pub use transaction::{FileChange, Transaction, recover};

/// Why files could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Another installed bundle has the file.
    #[error("`{path}` belongs to the bundle `{owner}`")]
    OwnedByBundle {
        /// The file.
        path: BundlePath,
        /// The bundle that has it.
        owner: BundleId,
    },
    /// Files are in the way that this bundle did not bring.
    #[error("{} in the way: {}", count_files(paths.len()), render_paths(paths))]
    Occupied {
        /// The files.
        paths: Vec<BundlePath>,
    },
    /// Items with the same ids are there, in files with other extensions, or executors that a new item is another name of.
    #[error("{}", render_duplicates(files))]
    DuplicateItems {
        /// What is there, and what the bundle would put beside it.
        files: Vec<(BundlePath, BundlePath)>,
    },
    /// Something that is not a file stands in the way.
    #[error("`{path}` is in the way: it, or a folder above it, is a link or a special file")]
    NotAFile {
        /// The path.
        path: BundlePath,
    },
    /// A file changed between looking and doing.
    #[error("`{path}` was changed meanwhile")]
    ChangedConcurrently {
        /// The file.
        path: BundlePath,
    },
    /// The record of an interrupted change cannot be read.
    #[error("the record of an interrupted change, `{}`, cannot be used: {reason}", path.display())]
    DamagedJournal {
        /// The record.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A change failed, and so did taking it back.
    #[error("{failure}; taking it back failed too: {undoing}")]
    RollbackFailed {
        /// What failed first.
        failure: Box<Self>,
        /// What failed then.
        undoing: Box<Self>,
    },
    /// A folder holds something a bundle may not.
    #[error("`{}`: {reason}", rye_item::text::one_line(path))]
    InvalidFile {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An archive could not be made or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The system refused, beneath a folder.
    #[error(transparent)]
    Beneath(#[from] DirError),
}

fn count_files(count: usize) -> String {
    match count {
        1 => "a file is".to_owned(),
        count => format!("{count} files are"),
    }
}

fn render_duplicates(files: &[(BundlePath, BundlePath)]) -> String {
    const FEW: usize = 5;
    let mut pairs: Vec<String> = files
        .iter()
        .take(FEW)
        .map(|(there, new)| match object::object_name(there) == object::object_name(new) {
            true => format!("`{there}` has the same item id as the bundle's `{new}`"),
            false => {
                format!("`{there}` is also called like the bundle's `{new}`, which would run in its place")
            }
        })
        .collect();
    if files.len() > FEW {
        pairs.push("…".to_owned());
    }
    pairs.join("; ")
}

/// The first few of many paths.
fn render_paths(paths: &[BundlePath]) -> String {
    const FEW: usize = 5;
    let mut names: Vec<String> = paths.iter().take(FEW).map(|path| format!("`{path}`")).collect();
    if paths.len() > FEW {
        names.push("…".to_owned());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
