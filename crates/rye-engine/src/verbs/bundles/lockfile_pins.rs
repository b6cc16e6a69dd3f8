//! The lockfiles a bundle ships: what its tools resolve to where the bundle is part of the system space.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lillux::{PublicKey, file, lockfile};
use rye_bundle::BundlePath;
use rye_item::space::SpaceTier;
use rye_item::{BundleId, ItemType, Space};
use rye_space::bundle::{self, Bundle, BundleTrust, ConfiguredBundle};
use rye_space::{AI_FOLDER, Roots, Spaces};
use rye_trust::Identity;

use crate::engine::{Engine, EngineOptions, WallClock};
use crate::error::{Code, Error, Result};
use crate::lockfiles;
use crate::verbs::lock;

/// The moment a bundle is made at.
struct FixedClock(u64);

impl WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        self.0
    }
}

/// Pins the tools of the bundle in `folder`, which `signer` signed, without running them. `scratch` is a folder that is
/// removed later.
///
/// # Errors
/// When a tool does not resolve with what the bundle and the system space hold: it could not run there.
pub(super) fn pin_tools(
    engine: &Engine,
    id: &BundleId,
    folder: &Path,
    signer: &PublicKey,
    scratch: &Path,
) -> Result<BTreeMap<BundlePath, Vec<u8>>> {
    let (isolated, bundle) = engine_with_bundle(engine, id, folder, signer)?;
    let generated_at = lockfiles::lockfile_timestamp(&isolated)?;
    let own = format!("system:{id}");
    let mut pins = BTreeMap::new();
    let spaces = &isolated.workspace.spaces;
    for entry in spaces.scan_bundle(&bundle, &[ItemType::Tool]).entries {
        let is_runnable = spaces
            .locate(&entry.item, Some(SpaceTier::System))
            .is_ok_and(|located| lock::is_runnable(&located));
        if !is_runnable {
            continue;
        }
        let resolved = crate::resolve::resolve_tool_in(&isolated, &entry.item, Some(SpaceTier::System))
            .map_err(|error| unresolved_error(id, error))?;
        // Another bundle's tool of that id is found first: this one is never run.
        if resolved.space() != own || resolved.uses_dev_mode {
            continue;
        }
        let name = lockfiles::file_name::lockfile_path(&entry.item.id, &resolved.root.version, None)?;
        lockfile::write(scratch, &name, &resolved.to_lockfile(generated_at.clone(), None))?;
        let (bytes, _) = file::read_beneath(scratch, &name, lockfile::MAX_LOCKFILE_BYTES)
            .map_err(|error| Error::read(&error))?;
        let path = BundlePath::new(format!(
            "{AI_FOLDER}/{}/{}",
            lockfiles::locations::LOCKFILES_FOLDER,
            name.display()
        ))
        .map_err(|error| Error::new(Code::Unbundleable, error.to_string()))?;
        pins.insert(path, bytes);
    }
    Ok(pins)
}

fn unresolved_error(id: &BundleId, error: Error) -> Error {
    let message = format!("a tool of the bundle `{id}` cannot be pinned: {}", error.message);
    let pinned = Error::new(Code::Unbundleable, message)
        .hint("a bundle's tools run on what the bundle and rye hold: add what is missing with --category")
        .hint("or make the bundle without --with-lockfiles");
    Error { item: error.item, ..pinned }
}

/// The user's workspace without a project, with the bundle as its user would have approved it.
fn engine_with_bundle(
    engine: &Engine,
    id: &BundleId,
    folder: &Path,
    signer: &PublicKey,
) -> Result<(Engine, Bundle)> {
    let roots = Roots { project: None, ..engine.workspace.roots.clone() };
    let options = EngineOptions { host: engine.host.clone(), ..EngineOptions::default() };
    let mut isolated = Engine::open(roots.clone(), options, Box::new(FixedClock(engine.unix_seconds())))?;
    let configured =
        ConfiguredBundle { path: folder.to_owned(), id: Some(id.to_string()), ..ConfiguredBundle::default() };
    let mut bundle =
        bundle::open_folder(&configured).map_err(|reason| Error::new(Code::Unbundleable, reason))?;
    bundle.trust = BundleTrust::Approved;
    let workspace = &mut isolated.workspace;
    workspace.keys.replace_bundle(id, bundle.signers.iter().cloned());
    let signer_identity = Identity::new(signer.clone(), id.as_str());
    workspace.keys.add_manifest_entries(
        &Space::System(id.clone()),
        &signer_identity,
        bundle.unsigned_files(),
    );
    let others = workspace.spaces.bundles().iter().filter(|known| known.id != *id).cloned();
    let bundles = others.chain([bundle.clone()]).collect();
    let extractors = Arc::clone(workspace.spaces.extractors());
    workspace.spaces = Spaces::new(&roots, bundles, extractors, engine.workspace.max_item_bytes());
    Ok((isolated, bundle))
}
