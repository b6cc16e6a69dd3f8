//! System bundles: those inside the binary, and folders the user has configured or Python packages bring.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::ReadError;
use rye_item::{BundleId, ItemId, ItemType};
use rye_trust::Identity;

use crate::embedded::{BUNDLES, Embedded};
use crate::manifest::{self, FileHash, ManifestFile};
use crate::roots::AI_FOLDER;
use crate::scope;

/// Where a bundle's files are.
#[derive(Clone, Debug)]
pub enum BundleOrigin {
    /// Inside the binary.
    Embedded(&'static Embedded),
    /// A folder that holds `.ai/`.
    Folder(PathBuf),
}

/// Why a bundle's items may count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleTrust {
    /// The binary vouches for it.
    Embedded,
    /// The user approved its signer.
    Approved,
    /// It is not approved: its items are listed, and refused.
    NotApproved,
}

/// A bundle of the system space.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Its id.
    pub id: BundleId,
    /// Its version.
    pub version: String,
    /// The id prefixes its items must have; none means all.
    pub categories: Vec<String>,
    /// Where its files are.
    pub origin: BundleOrigin,
    /// Why its items may count.
    pub trust: BundleTrust,
    /// The identities it ships.
    pub signers: Vec<Identity>,
    /// The Python package it comes in, with its version, if it comes in one.
    pub package: Option<String>,
    /// The manifest that names it, if it is a folder that has one.
    pub manifest: Option<ManifestFile>,
    /// The files its manifest lists, from `.ai/` on: no others exist. `None` without a manifest.
    pub listed_files: Option<Arc<HashSet<String>>>,
}

/// A folder named in config or environment, with what the user says about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredBundle {
    /// The folder that holds `.ai/`.
    pub path: PathBuf,
    /// The bundle's id, if the folder does not say.
    pub id: Option<String>,
    /// The id prefixes to admit.
    pub categories: Option<Vec<String>>,
    /// The bundle's version, whatever its manifest says.
    pub version: Option<String>,
    /// The Python package the folder is in, with its version.
    pub package: Option<String>,
}

impl Bundle {
    /// Whether the bundle may hold this item. Which config is read, [`Bundle::config_refusal`] says.
    #[must_use]
    pub fn allows(&self, item_type: ItemType, id: &ItemId) -> bool {
        item_type == ItemType::Config || scope::allows_item(item_type, id, &self.categories)
    }

    /// Whether the file at `path` (from `.ai/` on) is one of the bundle's: what a manifest does not list does not exist.
    #[must_use]
    pub fn has_file(&self, path: &str) -> bool {
        self.listed_files.as_ref().is_none_or(|listed| listed.contains(path))
    }

    /// Why the bundle's config `id` is not read, though its signature is valid; `None` when it is.
    #[must_use]
    pub fn config_refusal(&self, id: &ItemId, is_signer_general: bool) -> Option<&'static str> {
        match self.origin {
            BundleOrigin::Embedded(_) => None,
            BundleOrigin::Folder(_) if self.listed_files.is_none() => {
                Some("config of a bundle is read only if its signed manifest lists it")
            }
            BundleOrigin::Folder(_) => scope::config_refusal(id, &self.categories, is_signer_general),
        }
    }

    /// Whether it is inside the binary and counts only once the user has enabled it.
    #[must_use]
    pub fn is_opt_in(&self) -> bool {
        matches!(&self.origin, BundleOrigin::Embedded(embedded) if embedded.is_opt_in)
    }

    /// The files its manifest lists as carrying no signature of their own, with their content.
    #[must_use]
    pub fn unsigned_files(&self) -> Vec<(String, FileHash)> {
        let Some(Ok(manifest)) = self.manifest.as_ref().map(ManifestFile::manifest) else {
            return Vec::new();
        };
        let unsigned = manifest.files.iter().filter(|(_, entry)| !entry.inline_signed);
        unsigned.map(|(path, entry)| (path.to_string(), entry.hash)).collect()
    }

    /// The folder that holds the bundle's items, if it is one.
    #[must_use]
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.origin {
            BundleOrigin::Embedded(_) => None,
            BundleOrigin::Folder(path) => Some(path.join(AI_FOLDER)),
        }
    }

    /// What a YAML item inside the binary says, in JSON, by its path (`.ai/…`).
    #[must_use]
    pub fn embedded_fields(&self, path: &str) -> Option<&'static str> {
        match &self.origin {
            BundleOrigin::Embedded(embedded) => embedded.fields(path),
            BundleOrigin::Folder(_) => None,
        }
    }

    /// A file of the bundle by its path below `.ai/`.
    ///
    /// # Errors
    /// When it cannot be read; a missing file is `None`.
    pub fn read(&self, relative: &str, limit: u64) -> Result<Option<Vec<u8>>, ReadError> {
        match &self.origin {
            BundleOrigin::Embedded(embedded) => {
                Ok(embedded.file(&format!("{AI_FOLDER}/{relative}")).map(<[u8]>::to_vec))
            }
            BundleOrigin::Folder(path) => {
                match lillux::file::read_beneath(&path.join(AI_FOLDER), Path::new(relative), limit) {
                    Ok((bytes, _)) => Ok(Some(bytes)),
                    Err(error) if error.is_absent() => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// The bundles inside the binary.
#[must_use]
pub fn embedded_bundles() -> Vec<Bundle> {
    BUNDLES
        .iter()
        .filter_map(|embedded| {
            Some(Bundle {
                id: BundleId::new(embedded.id).ok()?,
                version: embedded.version.to_owned(),
                categories: embedded.categories.iter().map(|category| (*category).to_owned()).collect(),
                origin: BundleOrigin::Embedded(embedded),
                trust: BundleTrust::Embedded,
                signers: embedded.identities(),
                package: None,
                manifest: None,
                listed_files: None,
            })
        })
        .collect()
}

/// The bundle in a configured folder, not approved yet.
///
/// # Errors
/// Why the folder holds no bundle, in words.
pub fn open_folder(configured: &ConfiguredBundle) -> Result<Bundle, String> {
    let path = &configured.path;
    let display_path = path.display();
    if !path.is_absolute() {
        return Err(format!("`{display_path}` is not an absolute path"));
    }
    if !path.join(AI_FOLDER).is_dir() {
        return Err(format!("`{display_path}` holds no `.ai` folder"));
    }
    let signers = crate::keys::identities_in(&path.join(AI_FOLDER).join("config/keys/trusted"))
        .into_iter()
        .filter_map(|found| found.identity.ok())
        .filter(Identity::is_self_signed)
        .collect::<Vec<_>>();
    let manifest = choose_manifest(path, configured.id.as_deref(), &signers);
    let parsed_manifest = manifest.as_ref().and_then(|file| file.parsed.as_ref().ok());
    let id = match (&configured.id, parsed_manifest) {
        (Some(id), _) => id.clone(),
        (None, Some(manifest)) => manifest.id.to_string(),
        (None, None) => {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.to_owned()
        }
    };
    Ok(Bundle {
        id: BundleId::new(id).map_err(|error| format!("`{display_path}`: {error}"))?,
        version: configured
            .version
            .clone()
            .or_else(|| parsed_manifest.map(|manifest| manifest.version.to_string()))
            .unwrap_or_else(|| "0.0.0".to_owned()),
        categories: configured
            .categories
            .clone()
            .or_else(|| parsed_manifest.map(|manifest| manifest.categories.clone()))
            .unwrap_or_default(),
        origin: BundleOrigin::Folder(path.clone()),
        trust: BundleTrust::NotApproved,
        signers,
        package: configured.package.clone(),
        listed_files: manifest.as_ref().map(|file| Arc::new(file.listed_files())),
        manifest,
    })
}

/// The manifest that names the bundle in a folder: the wanted one, else one signed by a key the bundle ships, else the
/// first that can be read, else the first.
#[must_use]
pub fn choose_manifest(path: &Path, id_filter: Option<&str>, signers: &[Identity]) -> Option<ManifestFile> {
    let ai = path.join(AI_FOLDER);
    let mut files: Vec<ManifestFile> = manifest::manifest_ids(&ai)
        .iter()
        .filter(|id| id_filter.is_none_or(|id_filter| id_filter == id.as_str()))
        .filter_map(|id| ManifestFile::read(&ai, id).ok())
        .collect();
    let is_readable = |file: &ManifestFile| file.manifest().is_ok();
    let is_by_own_signer = |file: &ManifestFile| {
        is_readable(file) && signers.iter().any(|signer| file.is_signed_by(&signer.key))
    };
    let best = files.iter().position(is_by_own_signer).or_else(|| files.iter().position(is_readable));
    let best = best.unwrap_or(0);
    (best < files.len()).then(|| files.swap_remove(best))
}
