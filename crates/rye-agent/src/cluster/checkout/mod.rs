//! The project files of a submitted tree: what a submission names, a fresh folder of it on a worker, and what the tree changed
//! in it, which comes back as a patch. Applying a patch is the user's own act.

mod apply;
mod apply_steps;
mod collect;
mod content;
mod fresh;
mod left_out;
mod patch;
mod repository_shape;
mod rules;
mod snapshot;
mod walk;

use rye_engine::{Code, Error, Result};
use rye_item::checkout::{InvalidCheckout, SNAPSHOT_WORD};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

pub use apply::ApplyReport;
pub(super) use fresh::PatchRecorder;
pub(super) use fresh::TreeCheckout;
pub(super) use left_out::LeftOutFiles;
pub(crate) use patch::KeptPatch;
pub use patch::{CheckoutPatch, PatchSummary, read_patch};
pub use rules::CheckoutRules;
pub use rye_item::checkout::CheckoutRequest;
pub(super) use snapshot::{FrozenSnapshot, freeze_snapshot};

/// What a worker offers that makes checkouts of snapshots.
pub(super) const SNAPSHOT_LABEL: &str = "checkout:snapshot";
/// What a worker offers that fetches repositories.
pub(super) const GIT_LABEL: &str = "checkout:git";

/// Reads what users call the project files of a thread.
///
/// # Errors
/// When it is neither `none`, `snapshot` nor `git+URL@COMMIT`.
pub fn parse_checkout(text: &str) -> Result<CheckoutRequest> {
    text.parse().map_err(|error: InvalidCheckout| {
        Error::new(Code::InvalidArgument, error.to_string())
            .hint("the commit in full: --checkout git+https://HOST/REPOSITORY@$(git rev-parse HEAD)")
    })
}

/// The project files of a submission, as its signature covers them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "snake_case")]
pub enum Checkout {
    /// Files that were frozen when the thread was submitted.
    Snapshot {
        /// The digest of the list of files, which names the parts that hold them.
        manifest: String,
    },
    /// One commit of a repository.
    Git {
        /// Its address.
        address: String,
        /// The commit.
        commit: String,
    },
}

impl Checkout {
    /// What a worker must offer.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Snapshot { .. } => SNAPSHOT_LABEL,
            Self::Git { .. } => GIT_LABEL,
        }
    }

    /// What a patch is against.
    fn source(&self) -> String {
        match self {
            Self::Snapshot { manifest } => format!("{SNAPSHOT_WORD} {manifest}"),
            Self::Git { address, commit } => format!("{address}@{commit}"),
        }
    }
}

/// Whether a worker that fetches from these places fetches from this address: whole parts of the path count.
fn is_allowed_address(address: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|prefix| {
        let prefix = prefix.trim_end_matches('/');
        address.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// A place that a worker may fetch repositories from, as its operator writes it.
///
/// # Errors
/// When it is none.
pub(super) fn check_fetch_prefix(text: &str) -> Result<()> {
    let rest = text.strip_prefix("git+").and_then(|rest| rest.split_once("://")).map(|(_, rest)| rest);
    if rest.is_some_and(|rest| !rest.trim_matches('/').is_empty()) && !text.contains("..") {
        return Ok(());
    }
    let message =
        format!("invalid --checkout-from address `{}`: expected git+https://HOST/PATH/", one_line(text));
    Err(Error::new(Code::InvalidArgument, message)
        .hint("rye worker --checkout-from git+https://github.com/acme/"))
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(Code::CheckoutRefused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_places_are_fetched_from() {
        let allowed = ["git+https://a.example/team/".to_owned()];
        for (address, expected) in [
            ("git+https://a.example/team/kit", true),
            ("git+https://a.example/team", true),
            ("git+https://a.example/teamwork/kit", false),
            ("git+https://a.example.evil/team/kit", false),
            ("git+file:///etc", false),
        ] {
            assert_eq!(is_allowed_address(address, &allowed), expected, "{address}");
        }
        assert!(!is_allowed_address("git+https://a.example/team/kit", &[]));
        for place in ["", "https://a.example", "git+https://", "git+https://a.example/../b"] {
            assert!(check_fetch_prefix(place).is_err(), "{place}");
        }
    }
}
