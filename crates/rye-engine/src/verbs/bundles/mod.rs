//! `bundle …`: which bundles there are, what they hold, whether they are what their makers signed, and making one.

mod approve;
mod create;
mod find;
mod inspect;
mod judge;
mod pins;

use std::path::PathBuf;

use lillux::Fingerprint;
use rye_item::{ItemType, Space};
use rye_space::ManifestFile;
use rye_space::bundle::{Bundle, Origin, Standing};
use rye_space::installed::{self, Installed};
use serde::Serialize;

use crate::engine::Engine;

pub use approve::{Approved, Switched, switch, trust};
pub use create::{Created, Request as CreateRequest, Workshop, create, stage};
pub(crate) use find::find_folder;
pub use find::{Found, find};
pub use inspect::{About, FileRow, Inspected, entrypoint, inspect, plural, sbom};
pub use judge::{Judged, verify};

/// A bundle as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct BundleRow {
    /// Its id.
    pub bundle_id: String,
    /// Its label as a space.
    pub space: Space,
    /// Its version.
    pub version: String,
    /// `installed`, `embedded`, `enabled`, `available`, `approved` or `not approved`.
    pub standing: &'static str,
    /// Its folder, if it is one.
    #[serde(serialize_with = "rye_space::shown::option")]
    pub path: Option<PathBuf>,
    /// The id prefixes its items must have.
    pub categories: Vec<String>,
    /// The keys it ships.
    pub signers: Vec<Fingerprint>,
    /// How many items it has.
    pub items: usize,
    /// The Python package it comes in, with its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// How it stands to others of its id, or why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Lists the bundles in the order they are looked at, then those that are not looked at.
#[must_use]
pub fn list(engine: &Engine) -> Vec<BundleRow> {
    let workspace = &engine.workspace;
    let mut rows: Vec<BundleRow> = Vec::new();
    let spaces =
        [(workspace.roots.project_ai(), Space::Project), (Some(workspace.roots.user_ai()), Space::User)];
    for (ai, space) in spaces {
        let Some(ai) = ai else { continue };
        for id in installed::ids_in(&ai) {
            rows.push(installed_row(engine, &Installed::read(&ai, &space, &id)));
        }
    }
    let system = workspace.spaces.bundles().iter().chain(&workspace.rivals).chain(&workspace.available);
    rows.extend(system.map(|bundle| system_row(engine, bundle)));
    // The first of an id is the one that is found; what stands behind it says so.
    for index in 1..rows.len() {
        let (before, row) = rows.split_at_mut(index);
        let row = &mut row[0];
        if let Some(first) = before.iter().find(|other| other.bundle_id == row.bundle_id)
            && row.note.is_none()
        {
            row.note = Some(format!("behind the one in {} space", first.space));
        }
    }
    rows
}

fn installed_row(engine: &Engine, installed: &Installed) -> BundleRow {
    let manifest = installed.manifest.as_ref().ok().and_then(|file| file.manifest().ok());
    let pins = engine.workspace.approvals.pins_of(&installed.id);
    let judged: Vec<Result<_, String>> = pins.map(|pin| installed.vouched(&pin.key)).collect();
    let is_approved = judged.iter().any(Result::is_ok);
    BundleRow {
        bundle_id: installed.id.to_string(),
        space: installed.space.clone(),
        version: manifest.map_or_else(|| "unknown".to_owned(), |manifest| manifest.version.to_string()),
        standing: if is_approved { "installed" } else { "not approved" },
        path: Some(installed.ai.parent().unwrap_or(&installed.ai).to_owned()),
        categories: manifest.map(|manifest| manifest.categories.clone()).unwrap_or_default(),
        signers: installed
            .manifest
            .as_ref()
            .ok()
            .and_then(ManifestFile::signature)
            .map(|line| line.fingerprint)
            .into_iter()
            .collect(),
        items: manifest
            .map_or(0, |manifest| manifest.files.values().filter(|file| file.item_type.is_some()).count()),
        package: None,
        note: judged.into_iter().find_map(Result::err).filter(|_| !is_approved),
    }
}

fn system_row(engine: &Engine, bundle: &Bundle) -> BundleRow {
    let workspace = &engine.workspace;
    let is_embedded_id = rye_space::bundle::embedded().iter().any(|known| known.id == bundle.id);
    BundleRow {
        bundle_id: bundle.id.to_string(),
        space: Space::System(bundle.id.clone()),
        version: bundle.version.clone(),
        standing: match bundle.standing {
            Standing::Embedded if !bundle.is_opt_in() => "embedded",
            Standing::Embedded if workspace.approvals.has_enabled(&bundle.id) => "enabled",
            Standing::Embedded => "available",
            Standing::Approved => "approved",
            Standing::NotApproved => "not approved",
        },
        path: match &bundle.origin {
            Origin::Embedded(_) => None,
            Origin::Folder(path) => Some(path.clone()),
        },
        categories: bundle.categories.clone(),
        signers: bundle.signers.iter().map(|signer| signer.fingerprint).collect(),
        items: workspace.spaces.walk_bundle(bundle, &ItemType::FINDABLE).entries.len(),
        package: bundle.package.clone(),
        note: match bundle.standing {
            Standing::Approved if is_embedded_id => Some("replaces the embedded one".to_owned()),
            Standing::NotApproved if is_embedded_id => {
                Some("would replace the embedded one if it were approved".to_owned())
            }
            Standing::Embedded | Standing::Approved | Standing::NotApproved => None,
        },
    }
}
