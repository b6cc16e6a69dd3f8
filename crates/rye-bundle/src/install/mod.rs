//! Bringing a bundle's files into a space, and out again: what would change ([`plan`]), and changing it whole or not at
//! all ([`transaction`]). Whose bundle it is, and whether that may be, the caller has decided before.
//!
//! What an installation must remember between two commands (its journal, earlier versions, backups) lies in user space,
//! in a folder per space ([`State`]): a project somebody else made can bring none of it along.

pub mod generations;
mod journal;
pub mod place;
pub mod plan;
pub mod site;
pub mod stage;
pub mod state;
pub mod transaction;

use lillux::beneath::BeneathError;
use rye_item::BundleId;

use crate::archive::ArchiveError;
use crate::object;
use crate::path::FilePath;

pub use generations::Generation;
pub use plan::{Action, Plan, Preference, Row};
pub use site::{Found, Present, Site};
pub use state::State;
pub use transaction::{Change, Transaction, recover};

/// Why files could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Another installed bundle has the file.
    #[error("`{path}` belongs to the bundle `{owner}`")]
    Claimed {
        /// The file.
        path: FilePath,
        /// The bundle that has it.
        owner: BundleId,
    },
    /// Files are in the way that this bundle did not bring.
    #[error("{} in the way: {}", counted(paths.len()), listed(paths))]
    Occupied {
        /// The files.
        paths: Vec<FilePath>,
    },
    /// Items with the same ids are there, in files with other extensions, or executors that a new item is another name of.
    #[error("{}", shadowed(files))]
    Shadows {
        /// What is there, and what the bundle would put beside it.
        files: Vec<(FilePath, FilePath)>,
    },
    /// Something that is no file stands in the way.
    #[error("`{path}` is in the way: it, or a folder it lies in, is neither a file nor a folder of its own")]
    InTheWay {
        /// The path.
        path: FilePath,
    },
    /// A file changed between looking and doing.
    #[error("`{path}` was changed meanwhile")]
    ChangedMeanwhile {
        /// The file.
        path: FilePath,
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
    NotUndone {
        /// What failed first.
        failure: Box<Self>,
        /// What failed then.
        undoing: Box<Self>,
    },
    /// A folder holds something a bundle may not.
    #[error("`{}`: {reason}", rye_item::text::one_line(path))]
    Refused {
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
    Beneath(#[from] BeneathError),
}

fn counted(count: usize) -> String {
    match count {
        1 => "a file is".to_owned(),
        count => format!("{count} files are"),
    }
}

fn shadowed(files: &[(FilePath, FilePath)]) -> String {
    const FEW: usize = 5;
    let mut pairs: Vec<String> = files
        .iter()
        .take(FEW)
        .map(|(there, new)| match object::name(there) == object::name(new) {
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
fn listed(paths: &[FilePath]) -> String {
    const FEW: usize = 5;
    let mut names: Vec<String> = paths.iter().take(FEW).map(|path| format!("`{path}`")).collect();
    if paths.len() > FEW {
        names.push("…".to_owned());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
