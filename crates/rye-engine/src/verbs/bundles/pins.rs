//! The lockfiles a bundle ships: what its tools resolve to where the bundle is part of the system space.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lillux::{PublicKey, file, lockfile};
use rye_bundle::FilePath;
use rye_item::space::Tier;
use rye_item::{BundleId, ItemType, Space};
use rye_space::bundle::{self, Bundle, Configured, Standing};
use rye_space::{AI_FOLDER, Roots, Spaces};
use rye_trust::Identity;

use super::judge::max_bytes;
use crate::engine::{Clock, Engine, Options};
use crate::error::{Code, Error, Result};
use crate::lockfiles;
use crate::verbs::lock;

/// The moment a bundle is made at.
struct Fixed(u64);

impl Clock for Fixed {
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
) -> Result<BTreeMap<FilePath, Vec<u8>>> {
    let (inside, bundle) = engine_with(engine, id, folder, signer)?;
    let generated_at = lockfiles::moment(&inside)?;
    let own = format!("system:{id}");
    let mut pins = BTreeMap::new();
    let spaces = &inside.workspace.spaces;
    for entry in spaces.walk_bundle(&bundle, &[ItemType::Tool]).entries {
        let is_runnable =
            spaces.locate(&entry.item, Some(Tier::System)).is_ok_and(|located| lock::is_runnable(&located));
        if !is_runnable {
            continue;
        }
        let resolved = crate::resolved::resolved_in(&inside, &entry.item, Some(Tier::System))
            .map_err(|error| unresolved(id, error))?;
        // Another bundle's tool of that id is found first: this one is never run.
        if resolved.space() != own || resolved.is_forgiven {
            continue;
        }
        let name = lockfiles::name::relative(&entry.item.id, &resolved.root.version, None)?;
        lockfile::write(scratch, &name, &resolved.to_lockfile(generated_at.clone(), None))?;
        let (bytes, _) =
            file::read_beneath(scratch, &name, lockfile::MAX_BYTES).map_err(|error| Error::read(&error))?;
        let path = FilePath::new(format!("{AI_FOLDER}/{}/{}", lockfiles::tiers::FOLDER, name.display()))
            .map_err(|error| Error::new(Code::Unbundleable, error.to_string()))?;
        pins.insert(path, bytes);
    }
    Ok(pins)
}

fn unresolved(id: &BundleId, error: Error) -> Error {
    let message = format!("a tool of the bundle `{id}` cannot be pinned: {}", error.message);
    let pinned = Error::new(Code::Unbundleable, message)
        .hint("a bundle's tools run on what the bundle and rye hold: add what is missing with --category")
        .hint("or make the bundle without --with-lockfiles");
    Error { item: error.item, ..pinned }
}

/// The user's workspace without a project, with the bundle as its user would have approved it.
fn engine_with(
    engine: &Engine,
    id: &BundleId,
    folder: &Path,
    signer: &PublicKey,
) -> Result<(Engine, Bundle)> {
    let roots = Roots { project: None, ..engine.workspace.roots.clone() };
    let options = Options { host: engine.host.clone(), ..Options::default() };
    let mut inside = Engine::open(roots.clone(), options, Box::new(Fixed(engine.unix_seconds())))?;
    let configured =
        Configured { path: folder.to_owned(), id: Some(id.to_string()), ..Configured::default() };
    let mut bundle =
        bundle::in_folder(&configured).map_err(|reason| Error::new(Code::Unbundleable, reason))?;
    bundle.standing = Standing::Approved;
    let workspace = &mut inside.workspace;
    workspace.keys.replace_bundle(id, bundle.signers.iter().cloned());
    let maker = Identity::new(signer.clone(), id.as_str());
    workspace.keys.add_listed(&Space::System(id.clone()), &maker, bundle.unsigned_files());
    let others = workspace.spaces.bundles().iter().filter(|known| known.id != *id).cloned();
    let bundles = others.chain([bundle.clone()]).collect();
    let extractors = Arc::clone(workspace.spaces.extractors());
    workspace.spaces = Spaces::new(&roots, bundles, extractors, max_bytes(engine));
    Ok((inside, bundle))
}
