//! Which bundle a user means: a folder, an archive, or the id of one that is installed, configured or inside the binary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::LockedTempDir;
use rye_bundle::verify::{self, BundleScope, VerifyTarget};
use rye_item::text::one_line;
use rye_item::{BundleId, Space};
use rye_space::bundle::{Bundle, BundleOrigin, choose_manifest};
use rye_space::installed::{self, BundleInstallation};
use rye_space::{AI_FOLDER, ManifestFile, roots};
use rye_trust::Identity;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// A bundle that was found, with its manifest.
#[derive(Clone, Debug)]
pub struct LocatedBundle {
    /// Where its files are.
    pub origin: BundleOrigin,
    /// Its manifest.
    pub manifest: ManifestFile,
    /// How it lies there.
    pub scope: BundleScope,
    /// The space it is part of; `None` for a folder that was named.
    pub space: Option<Space>,
    /// Whose keys vouch for it, beside those the user trusts.
    pub identities: Vec<Identity>,
    /// The archive it came in, with the folder that holds its files meanwhile.
    unpacked: Option<Arc<(PathBuf, LockedTempDir)>>,
}

impl LocatedBundle {
    /// What is judged.
    #[must_use]
    pub fn verify_target(&self) -> VerifyTarget<'_> {
        VerifyTarget {
            origin: &self.origin,
            manifest: &self.manifest,
            identities: &self.identities,
            scope: self.scope,
        }
    }

    /// The same bundle, with the temporary folder that holds it and the name it is shown by.
    pub(crate) fn with_temporary_folder(self, display_path: PathBuf, folder: LockedTempDir) -> Self {
        Self { unpacked: Some(Arc::new((display_path, folder))), ..self }
    }

    /// Where it is, for showing.
    #[must_use]
    pub fn display_path(&self) -> PathBuf {
        match (&self.unpacked, &self.origin) {
            (Some(unpacked), _) => unpacked.0.clone(),
            (None, BundleOrigin::Embedded(embedded)) => PathBuf::from(format!("<{}>", embedded.id)),
            (None, BundleOrigin::Folder(folder)) => folder.clone(),
        }
    }
}

/// Finds the bundle that `word` names: a path from `folder` on if it looks like one, else an id, else the name of a
/// folder or an archive.
///
/// # Errors
/// When there is none, or it has no manifest.
pub fn find(engine: &Engine, word: &str, folder: &Path) -> Result<LocatedBundle> {
    let is_path = word.contains('/') || word == "." || word == "..";
    let path = folder.join(word);
    match find_id(engine, word) {
        Some(found) if !is_path => found,
        Some(_) | None if is_archive(&path) => find_archive(engine, &path),
        Some(_) | None if path.exists() => find_folder(engine, &path),
        Some(_) | None if is_path => {
            Err(Error::new(Code::PathNotFound, format!("`{}` does not exist", one_line(word)))
                .hint("name a folder that holds `.ai`, or the id of a bundle: rye bundle list"))
        }
        Some(_) | None => Err(bundle_not_found(word)),
    }
}

/// Finds the bundle with the id `word`.
///
/// # Errors
/// As [`find`].
pub(super) fn find_by_id(engine: &Engine, word: &str) -> Result<LocatedBundle> {
    find_id(engine, word).unwrap_or_else(|| Err(bundle_not_found(word)))
}

/// Whether the path is a file that is not a manifest: its bytes tell later what it is.
fn is_archive(path: &Path) -> bool {
    path.is_file() && path.extension().is_none_or(|extension| extension != "yaml")
}

fn find_archive(engine: &Engine, path: &Path) -> Result<LocatedBundle> {
    let (temporary, _) = crate::verbs::install::stage_source(engine, path)?;
    let found = find_folder(engine, &crate::verbs::install::bundle_folder(&temporary))?;
    Ok(found.with_temporary_folder(path.to_owned(), temporary))
}

fn bundle_not_found(word: &str) -> Error {
    Error::new(Code::NoBundle, format!("no bundle is called `{}`", one_line(word)))
        .hint("rye bundle list shows them; for a folder, give its path: ./folder")
}

/// The bundle `id` where it counts first: installed in the project, in user space, then the system space.
fn find_id(engine: &Engine, word: &str) -> Option<Result<LocatedBundle>> {
    let id = &BundleId::new(word).ok()?;
    let workspace = &engine.workspace;
    let spaces =
        [(workspace.roots.project_ai(), Space::Project), (Some(workspace.roots.user_ai()), Space::User)];
    for (ai, space) in spaces {
        if let Some(ai) = ai
            && installed::installed_ids(&ai).contains(id)
        {
            return Some(locate_installed(engine, &BundleInstallation::read(&ai, &space, id)));
        }
    }
    let mut bundles = workspace
        .spaces
        .bundles()
        .iter()
        .chain(&workspace.shadowed_bundles)
        .chain(&workspace.available_bundles);
    bundles.find(|bundle| bundle.id == *id).map(locate_system)
}

fn locate_installed(engine: &Engine, installed: &BundleInstallation) -> Result<LocatedBundle> {
    let manifest = installed.manifest.clone().map_err(|why| {
        Error::new(Code::NoManifest, format!("the manifest of `{}` cannot be read: {why}", installed.id))
            .hint("install the bundle again")
    })?;
    // A pin goes before what the folder itself says; without one, the folder's own word is judged, and is not trust.
    let pins = engine.workspace.approvals.pins_of(&installed.id);
    let mut identities: Vec<Identity> =
        pins.map(|pin| Identity::new(pin.key.clone(), installed.id.as_str())).collect();
    if identities.is_empty() {
        identities.extend(installed.signer());
    }
    Ok(LocatedBundle {
        origin: BundleOrigin::Folder(installed.ai.parent().unwrap_or(&installed.ai).to_owned()),
        manifest,
        scope: BundleScope::Installed,
        space: Some(installed.space.clone()),
        unpacked: None,
        identities,
    })
}

fn locate_system(bundle: &Bundle) -> Result<LocatedBundle> {
    let manifest = match (&bundle.origin, &bundle.manifest) {
        (_, Some(manifest)) => Some(manifest.clone()),
        (BundleOrigin::Embedded(embedded), None) => embedded
            .file(&rye_space::Manifest::path_for(&bundle.id))
            .map(|bytes| ManifestFile::new(&bundle.id, bytes.to_vec())),
        (BundleOrigin::Folder(_), None) => None,
    };
    Ok(LocatedBundle {
        manifest: manifest.ok_or_else(|| manifest_not_found(&bundle.id))?,
        identities: verify::shipped_identities(&bundle.origin),
        origin: bundle.origin.clone(),
        scope: BundleScope::Standalone,
        space: Some(Space::System(bundle.id.clone())),
        unpacked: None,
    })
}

fn manifest_not_found(what: &dyn std::fmt::Display) -> Error {
    Error::new(Code::NoManifest, format!("`{what}` has no manifest"))
        .hint("a bundle's manifest is `.ai/bundles/ID/manifest.yaml`; rye bundle create makes one")
        .hint("without one, `rye verify --root DIR` judges its items one by one")
}

/// The bundle in a folder that holds `.ai/`; in a project or user space, the only one that is installed there.
pub(crate) fn find_folder(engine: &Engine, path: &Path) -> Result<LocatedBundle> {
    let (real, selected) = bundle_root(&roots::canonicalize_existing(path));
    let ai = real.join(AI_FOLDER);
    if !ai.is_dir() {
        return Err(Error::new(Code::NoManifest, format!("`{}` holds no `.ai` folder", path.display()))
            .hint("name the folder that contains `.ai`"));
    }
    let roots = &engine.workspace.roots;
    let spaces = [(roots.project.clone(), Space::Project), (Some(roots.user.clone()), Space::User)];
    for (root, space) in spaces {
        if root.is_some_and(|root| roots::canonicalize_existing(&root) == real) {
            let mut ids = installed::installed_ids(&ai);
            ids.retain(|id| selected.as_deref().is_none_or(|selected| selected == id.as_str()));
            match ids.as_slice() {
                // Nothing is installed: the folder may be a bundle as it was made, with the command run inside it.
                [] => {}
                [id] => return locate_installed(engine, &BundleInstallation::read(&ai, &space, id)),
                several => {
                    let ids = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    let message = format!("several bundles are installed here: {ids}");
                    return Err(Error::new(Code::Ambiguous, message).hint("name one by its id"));
                }
            }
        }
    }
    let origin = BundleOrigin::Folder(real.clone());
    let identities = verify::shipped_identities(&origin);
    let manifest = choose_manifest(&real, selected.as_deref(), &identities)
        .ok_or_else(|| manifest_not_found(&path.display()))?;
    Ok(LocatedBundle {
        origin,
        manifest,
        scope: BundleScope::Standalone,
        space: None,
        identities,
        unpacked: None,
    })
}

/// The folder that holds `.ai/`, and the bundle that is meant if the path names its folder or its manifest: one of
/// several in the same folder.
fn bundle_root(real: &Path) -> (PathBuf, Option<String>) {
    let folder = if real.is_file() { real.parent().unwrap_or(real) } else { real };
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let parts: Vec<&Path> = folder.ancestors().take(4).collect();
    match parts.as_slice() {
        [own, bundles, ai, root]
            if name(bundles).as_deref() == Some(installed::BUNDLES_FOLDER)
                && name(ai).as_deref() == Some(AI_FOLDER) =>
        {
            ((*root).to_owned(), name(own))
        }
        _ => (real.to_owned(), None),
    }
}
