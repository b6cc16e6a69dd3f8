//! The system tier of the binary's own bundles: lockfiles made once per binary, read-only, in the cache beside the
//! materialised bundles. They may be lost at any time and are rebuilt.

use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use lillux::lockfile;
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType};
use rye_space::bundle::{Bundle, BundleOrigin};
use rye_space::embedded::Embedded;

use super::{ResolveTool, file_name, lockfile_timestamp};
use crate::engine::Engine;
use crate::error::Result;

/// The folder of this binary's lockfiles, made if need be; `None` when the cache cannot be written.
pub(crate) fn ensure(engine: &Engine) -> Option<PathBuf> {
    let resolve = |item: &ItemRef| crate::resolve::resolve_tool_in(engine, item, Some(SpaceTier::System));
    // What the binary pins of itself holds by its seal: without a cache nothing is lost but the record of it.
    generate(engine, &resolve).ok()
}

fn embedded_bundles(engine: &Engine) -> impl Iterator<Item = (&Bundle, &'static Embedded)> {
    engine.workspace.spaces.bundles().iter().filter_map(|bundle| match bundle.origin {
        BundleOrigin::Embedded(embedded) => Some((bundle, embedded)),
        BundleOrigin::Folder(_) => None,
    })
}

/// Another set of embedded bundles, another folder.
fn lockfiles_folder(engine: &Engine) -> PathBuf {
    let seals: Vec<String> = embedded_bundles(engine)
        .map(|(_, embedded)| format!("{}={}\n", embedded.id, embedded.seal))
        .collect();
    let key = Digest::of(seals.concat().as_bytes()).short();
    engine.workspace.roots.cache.join("bundles").join(format!("lockfiles-{key}"))
}

/// Makes the lockfiles of all embedded tools that run on something, whole or not at all, and gives their folder.
/// `resolve` must see system space alone.
///
/// # Errors
/// When the cache cannot be written.
pub fn generate(engine: &Engine, resolve: ResolveTool<'_>) -> Result<PathBuf> {
    let folder = lockfiles_folder(engine);
    if folder.is_dir() {
        return Ok(folder);
    }
    let bundles = engine.workspace.roots.cache.join("bundles");
    file::create_dirs(&bundles, true)?;
    let _lock = file::Lock::acquire(&bundles.join(".lockfiles.lock"))?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let staging = bundles.join(".lockfiles.new");
    file::remove_tree(&staging)?;
    file::create_dirs(&staging, false)?;
    let spaces: Vec<String> =
        embedded_bundles(engine).map(|(bundle, _)| format!("system:{}", bundle.id)).collect();
    let generated_at = lockfile_timestamp(engine)?;
    for (bundle, _) in embedded_bundles(engine) {
        for entry in engine.workspace.spaces.scan_bundle(bundle, &[ItemType::Tool]).entries {
            // A tool that does not resolve cannot run either; running it reports why.
            let Ok(resolved) = resolve(&entry.item) else { continue };
            let is_own = resolved.chain.iter().all(|element| spaces.contains(&element.space));
            if resolved.chain.len() < 2 || !is_own || resolved.uses_dev_mode {
                continue;
            }
            let name = file_name::lockfile_path(&entry.item.id, &resolved.root.version, None)?;
            // A later bundle may hold the same id; the first one is what resolves.
            if !staging.join(&name).exists() {
                let lockfile = resolved.to_lockfile(generated_at.clone(), None);
                lockfile::write_new(&staging, &name, &lockfile, FileMode::ReadOnly)?;
            }
        }
    }
    file::rename_dir(&staging, &folder)?;
    make_read_only(&folder)?;
    Ok(folder)
}

fn make_read_only(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_read_only(&entry.path())?;
        }
    }
    file::set_mode(folder, 0o555)
}
