//! `bundle …`: which bundles there are, what they hold, whether they are what their makers signed, and making one.

mod approve;
mod create;
mod find;
mod inspect;
mod lockfile_pins;
mod verification;

use std::path::PathBuf;

use lillux::Fingerprint;
pub use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::object;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::ManifestFile;
use rye_space::bundle::{Bundle, BundleOrigin, BundleTrust};
use rye_space::installed::{self, BundleInstallation};
use serde::Serialize;

use crate::engine::Engine;

pub(crate) use approve::trust_in_project;
pub use approve::{ApprovedSigner, BundleToggle, WithdrawnApproval, revoke, set_enabled, trust};
pub use create::{BundleBuild, CreateRequest, CreatedBundle, create, stage};
pub(crate) use find::find_folder;
pub use find::{LocatedBundle, find};
pub use inspect::{BundleFileRow, BundleInspection, BundleSummary, entrypoint, inspect, pluralize, sbom};
pub use verification::{BundleVerification, SignerTrust, verify};

/// A bundle as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct BundleRow {
    /// Its id.
    pub bundle_id: String,
    /// Its label as a space.
    pub space: Space,
    /// Its version.
    pub version: String,
    /// `installed`, `embedded`, `enabled`, `available`, `approved`, `not approved` or `revoked`.
    #[serde(rename = "standing")]
    pub status: &'static str,
    /// Its folder, if it is one.
    #[serde(serialize_with = "rye_space::serde_path::option")]
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
    /// How it stands to others of its id, or why it is not trusted.
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
        for id in installed::installed_ids(&ai) {
            rows.push(installed_row(engine, &BundleInstallation::read(&ai, &space, &id)));
        }
    }
    let system = workspace
        .spaces
        .bundles()
        .iter()
        .chain(&workspace.shadowed_bundles)
        .chain(&workspace.available_bundles);
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

fn installed_row(engine: &Engine, installed: &BundleInstallation) -> BundleRow {
    let manifest = installed.manifest.as_ref().ok().and_then(|file| file.manifest().ok());
    let pins = engine.workspace.approvals.pins_of(&installed.id);
    let checks: Vec<Result<_, String>> = pins.map(|pin| installed.trusted_files(&pin.key)).collect();
    let is_approved = checks.iter().any(Result::is_ok);
    let hidden = if is_approved { hidden_items(engine, installed) } else { Vec::new() };
    let signature = installed.manifest.as_ref().ok().and_then(ManifestFile::signature);
    let revoked = signature.as_ref().and_then(|line| revoked_note(engine, &line.fingerprint));
    BundleRow {
        bundle_id: installed.id.to_string(),
        space: installed.space.clone(),
        version: manifest.map_or_else(|| "unknown".to_owned(), |manifest| manifest.version.to_string()),
        status: match (&revoked, is_approved) {
            (Some(_), _) => "revoked",
            (None, true) => "installed",
            (None, false) => "not approved",
        },
        path: Some(installed.ai.parent().unwrap_or(&installed.ai).to_owned()),
        categories: manifest.map(|manifest| manifest.categories.clone()).unwrap_or_default(),
        signers: signature.map(|line| line.fingerprint).into_iter().collect(),
        items: manifest
            .map_or(0, |manifest| manifest.files.values().filter(|file| file.item_type.is_some()).count()),
        package: None,
        note: revoked
            .or_else(|| checks.into_iter().find_map(Result::err).filter(|_| !is_approved))
            .or_else(|| hidden_note(&hidden)),
    }
}

/// Items that an installed bundle brought into user space and the project hides: they are not what runs here.
#[must_use]
pub fn hidden_items(engine: &Engine, installed: &BundleInstallation) -> Vec<ItemRef> {
    let spaces = &engine.workspace.spaces;
    let Some(Ok(lock)) = (installed.space == Space::User).then_some(&installed.lock) else {
        return Vec::new();
    };
    let is_hidden = |item: &ItemRef| {
        let found = spaces.candidate_paths(item).into_iter().find(|candidate| candidate.is_found);
        found.is_some_and(|candidate| candidate.space == Space::Project)
    };
    let items = lock.files.iter().filter_map(|path| {
        let item_type = object::item_type(path, spaces.extractors())?;
        Some(ItemRef::new(item_type, ItemId::new(object::object_name(path).1).ok()?))
    });
    items.filter(|item| item.item_type != ItemType::Config && is_hidden(item)).collect()
}

/// Says that a key is revoked, if it is.
fn revoked_note(engine: &Engine, fingerprint: &Fingerprint) -> Option<String> {
    let revocation = engine.workspace.keys.revocation(fingerprint)?;
    let reason = rye_item::text::one_line(&revocation.reason);
    Some(format!("the key {fingerprint} is revoked: {reason}; its items do not run"))
}

fn hidden_note(hidden: &[ItemRef]) -> Option<String> {
    const FEW: usize = 3;
    let mut names: Vec<String> = hidden.iter().take(FEW).map(ToString::to_string).collect();
    if hidden.len() > FEW {
        names.push("…".to_owned());
    }
    (!names.is_empty()).then(|| format!("hidden by project space: {}", names.join(", ")))
}

fn system_row(engine: &Engine, bundle: &Bundle) -> BundleRow {
    let workspace = &engine.workspace;
    let is_embedded_id = rye_space::bundle::embedded_bundles().iter().any(|known| known.id == bundle.id);
    // One approved key that is not revoked is enough.
    let mut notes =
        workspace.approvals.pins_of(&bundle.id).map(|pin| revoked_note(engine, &pin.key.fingerprint()));
    let revoked = match bundle.trust {
        BundleTrust::Approved => notes.next().flatten().filter(|_| notes.all(|note| note.is_some())),
        BundleTrust::Embedded | BundleTrust::NotApproved => None,
    };
    BundleRow {
        bundle_id: bundle.id.to_string(),
        space: Space::System(bundle.id.clone()),
        version: bundle.version.clone(),
        status: match bundle.trust {
            BundleTrust::Embedded if !bundle.is_opt_in() => "embedded",
            BundleTrust::Embedded if workspace.approvals.has_enabled(&bundle.id) => "enabled",
            BundleTrust::Embedded => "available",
            BundleTrust::Approved if revoked.is_some() => "revoked",
            BundleTrust::Approved => "approved",
            BundleTrust::NotApproved => "not approved",
        },
        path: match &bundle.origin {
            BundleOrigin::Embedded(_) => None,
            BundleOrigin::Folder(path) => Some(path.clone()),
        },
        categories: bundle.categories.clone(),
        signers: bundle.signers.iter().map(|signer| signer.fingerprint).collect(),
        items: workspace.spaces.scan_bundle(bundle, &ItemType::SEARCHABLE).entries.len(),
        package: bundle.package.clone(),
        note: match bundle.trust {
            BundleTrust::Approved if revoked.is_some() => revoked,
            BundleTrust::Approved if is_embedded_id => Some("replaces the embedded one".to_owned()),
            BundleTrust::NotApproved if is_embedded_id => {
                Some("would replace the embedded one if it were approved".to_owned())
            }
            BundleTrust::Embedded | BundleTrust::Approved | BundleTrust::NotApproved => None,
        },
    }
}
