//! The project files that a thread is to have on another machine, as people and directives name them.

use std::fmt;
use std::str::FromStr;

use crate::text::one_line;

/// What people call the files of their own project.
pub const SNAPSHOT_WORD: &str = "snapshot";

/// What people call no files.
const NO_FILES_WORD: &str = "none";

/// The project files that a thread is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutRequest {
    /// None, though its directive may ask for some.
    NoFiles,
    /// The files of the project as they are now.
    Snapshot,
    /// One commit of a repository.
    Git {
        /// `git+https://…` or `git+ssh://…`.
        address: String,
        /// The commit, in full.
        commit: String,
    },
}

/// A text that names no project files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid checkout `{}`: expected none, snapshot or git+URL@COMMIT, the commit in full",
    one_line(text)
)]
pub struct InvalidCheckout {
    text: String,
}

impl FromStr for CheckoutRequest {
    type Err = InvalidCheckout;

    fn from_str(text: &str) -> Result<Self, InvalidCheckout> {
        match text {
            NO_FILES_WORD => return Ok(Self::NoFiles),
            SNAPSHOT_WORD => return Ok(Self::Snapshot),
            _ => {}
        }
        let found = text.rsplit_once('@').filter(|(address, _)| address.starts_with("git+"));
        match found {
            Some((address, commit)) if is_commit(commit) => {
                Ok(Self::Git { address: address.to_owned(), commit: commit.to_owned() })
            }
            _ => Err(InvalidCheckout { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for CheckoutRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFiles => formatter.write_str(NO_FILES_WORD),
            Self::Snapshot => formatter.write_str(SNAPSHOT_WORD),
            Self::Git { address, commit } => write!(formatter, "{address}@{commit}"),
        }
    }
}

/// Whether a text is a whole commit id.
#[must_use]
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_ids_are_whole() {
        assert!(is_commit(&"a".repeat(40)) && is_commit(&"0".repeat(64)));
        assert!(!is_commit(&"A".repeat(40)) && !is_commit("abc"));
    }

    #[test]
    fn checkouts_name_a_whole_commit() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let git = CheckoutRequest::Git {
            address: "git+ssh://git@a.example/kit".to_owned(),
            commit: commit.to_owned(),
        };
        for expected in [CheckoutRequest::NoFiles, CheckoutRequest::Snapshot, git] {
            assert_eq!(expected.to_string().parse(), Ok(expected));
        }
        for text in ["", "main", "git+https://a.example/kit", "git+https://a.example/kit@main", "https://a@b"]
        {
            assert!(text.parse::<CheckoutRequest>().is_err(), "{text}");
        }
    }
}
