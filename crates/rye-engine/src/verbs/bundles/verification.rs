//! `bundle verify`: whether a bundle is what its maker signed, and whether the user trusts that maker.

use std::path::PathBuf;

use rye_bundle::verify::{self, BundleReport, VerifyContext, VerifyFileProgress};
use rye_item::Space;
use serde::Serialize;

use super::LocatedBundle;
use crate::engine::Engine;
use crate::error::{Code, Error};

/// The report on a bundle, and what the user has to do with its signer.
#[derive(Clone, Debug, Serialize)]
pub struct BundleVerification {
    /// The report.
    #[serde(flatten)]
    pub report: BundleReport,
    /// Whether the user trusts the signer, everywhere or for this bundle.
    pub approved: bool,
    /// For what the signer is trusted.
    pub trust: SignerTrust,
    /// Where the bundle is.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// The space it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
}

/// For what a bundle's signer is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignerTrust {
    /// The bundle is part of the binary.
    BuiltIn,
    /// For everything it signs.
    Everywhere,
    /// For the items of this bundle, and for nothing else.
    BundleOnly,
    /// For nothing.
    None,
}

impl SignerTrust {
    /// The words for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BuiltIn => "part of rye",
            Self::Everywhere => "trusted by you for everything it signs",
            Self::BundleOnly => "approved by you for this bundle only",
            Self::None => "not trusted by you",
        }
    }
}

impl BundleVerification {
    /// The failure, unless every layer holds.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let report = &self.report;
        if report.is_verified() {
            return None;
        }
        let mut parts = Vec::new();
        if let Some(error) = &report.manifest_error {
            parts.push(format!("its manifest: {error}"));
        }
        for (count, word) in [
            (report.files_tampered.len(), "tampered"),
            (report.files_missing.len(), "missing"),
            (report.files_unlisted.len(), "unlisted"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {word}"));
            }
        }
        let message = format!("the bundle `{}` does not verify: {}", report.bundle_id, parts.join(", "));
        let error = Error::new(Code::BundleFailed, message)
            .hint("get it again from its maker, or make it again: rye bundle create");
        Some(Error { item: Some(report.bundle_id.to_string()), ..error })
    }
}

/// Judges a bundle against its manifest. Whether its signer is trusted is said beside the report: a bundle may be
/// whole, and a stranger's.
#[must_use]
pub fn verify(
    engine: &Engine,
    found: &LocatedBundle,
    progress: VerifyFileProgress<'_>,
) -> BundleVerification {
    let workspace = &engine.workspace;
    let context = VerifyContext {
        keys: &workspace.keys,
        extractors: workspace.spaces.extractors(),
        limit: engine.workspace.max_item_bytes(),
    };
    let report = verify::verify(found.verify_target(), context, progress);
    let is_sealed = matches!(found.origin, rye_space::bundle::BundleOrigin::Embedded(_));
    let trust = match &report.signer {
        None => SignerTrust::None,
        Some(_) if is_sealed => SignerTrust::BuiltIn,
        Some(signer) if signer.trusted => SignerTrust::Everywhere,
        Some(signer) if workspace.approvals.pins_of(&report.bundle_id).any(|pin| pin.key == signer.key) => {
            SignerTrust::BundleOnly
        }
        Some(_) => SignerTrust::None,
    };
    BundleVerification {
        report,
        approved: trust != SignerTrust::None,
        trust,
        path: found.display_path(),
        space: found.space.clone(),
    }
}
