//! `bundle …`: which bundles there are, what they hold, whether they are what their makers signed, and making one.

mod approve;
mod create;
mod find;
mod inspect;
mod judge;
mod pins;

use std::path::PathBuf;

use lillux::Fingerprint;
pub use rye_bundle::capabilities::Capabilities;
use rye_bundle::object;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::ManifestFile;
use rye_space::bundle::{Bundle, Origin, Standing};
use rye_space::installed::{self, Installed};
use serde::Serialize;

use crate::engine::Engine;

pub use approve::{Approved, Revoked, Switched, revoke, switch, trust};
pub use create::{Created, Request as CreateRequest, Workshop, create, stage};
pub(crate) use find::find_folder;
pub use find::{Found, find};
pub use inspect::{About, FileRow, Inspected, entrypoint, inspect, plural, sbom};
pub use judge::{Judged, SignerTrust, verify};

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
    let hidden = if is_approved { hidden_items(engine, installed) } else { Vec::new() };
    let signature = installed.manifest.as_ref().ok().and_then(ManifestFile::signature);
    let revoked = signature.as_ref().and_then(|line| revoked_note(engine, &line.fingerprint));
    BundleRow {
        bundle_id: installed.id.to_string(),
        space: installed.space.clone(),
        version: manifest.map_or_else(|| "unknown".to_owned(), |manifest| manifest.version.to_string()),
        standing: match (&revoked, is_approved) {
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
            .or_else(|| judged.into_iter().find_map(Result::err).filter(|_| !is_approved))
            .or_else(|| hidden_note(&hidden)),
    }
}

/// Items that an installed bundle brought into user space and the project hides: they are not what runs here.
#[must_use]
pub fn hidden_items(engine: &Engine, installed: &Installed) -> Vec<ItemRef> {
    let spaces = &engine.workspace.spaces;
    let Some(Ok(lock)) = (installed.space == Space::User).then_some(&installed.lock) else {
        return Vec::new();
    };
    let is_hidden = |item: &ItemRef| {
        let found = spaces.places(item).into_iter().find(|place| place.is_found);
        found.is_some_and(|place| place.space == Space::Project)
    };
    let items = lock.files.iter().filter_map(|path| {
        let item_type = object::item_type(path, spaces.extractors())?;
        Some(ItemRef::new(item_type, ItemId::new(object::name(path).1).ok()?))
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
    let is_embedded_id = rye_space::bundle::embedded().iter().any(|known| known.id == bundle.id);
    // One approved key that is not revoked is enough.
    let mut notes =
        workspace.approvals.pins_of(&bundle.id).map(|pin| revoked_note(engine, &pin.key.fingerprint()));
    let revoked = match bundle.standing {
        Standing::Approved => notes.next().flatten().filter(|_| notes.all(|note| note.is_some())),
        Standing::Embedded | Standing::NotApproved => None,
    };
    BundleRow {
        bundle_id: bundle.id.to_string(),
        space: Space::System(bundle.id.clone()),
        version: bundle.version.clone(),
        standing: match bundle.standing {
            Standing::Embedded if !bundle.is_opt_in() => "embedded",
            Standing::Embedded if workspace.approvals.has_enabled(&bundle.id) => "enabled",
            Standing::Embedded => "available",
            Standing::Approved if revoked.is_some() => "revoked",
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
            Standing::Approved if revoked.is_some() => revoked,
            Standing::Approved if is_embedded_id => Some("replaces the embedded one".to_owned()),
            Standing::NotApproved if is_embedded_id => {
                Some("would replace the embedded one if it were approved".to_owned())
            }
            Standing::Embedded | Standing::Approved | Standing::NotApproved => None,
        },
    }
}
