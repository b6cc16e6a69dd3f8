//! `bundle verify`: whether a bundle is what its maker signed, and whether the user trusts that maker.

use std::path::PathBuf;

use rye_bundle::verify::{self, Judge, Progress, Report};
use rye_item::Space;
use serde::Serialize;
use serde_json::Value;

use super::Found;
use crate::engine::Engine;
use crate::error::{Code, Error};

/// The report on a bundle, and what the user has to do with its signer.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The report.
    #[serde(flatten)]
    pub report: Report,
    /// Whether the user trusts the signer, everywhere or for this bundle.
    pub approved: bool,
    /// Where the bundle is.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// The space it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
}

impl Judged {
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
pub fn verify(engine: &Engine, found: &Found, progress: Progress<'_>) -> Judged {
    let workspace = &engine.workspace;
    let judge =
        Judge { keys: &workspace.keys, extractors: workspace.spaces.extractors(), limit: max_bytes(engine) };
    let report = verify::verify(found.target(), judge, progress);
    let is_sealed = matches!(found.origin, rye_space::bundle::Origin::Embedded(_));
    let approved = report.signer.as_ref().is_some_and(|signer| {
        let mut pins = workspace.approvals.pins_of(&report.bundle_id);
        is_sealed || signer.trusted || pins.any(|pin| pin.key == signer.key)
    });
    Judged { report, approved, path: found.place(), space: found.space.clone() }
}

/// The largest file that is read.
pub(super) fn max_bytes(engine: &Engine) -> u64 {
    engine.workspace.settings.get("items.max_bytes").and_then(Value::as_u64).unwrap_or(8 << 20)
}
