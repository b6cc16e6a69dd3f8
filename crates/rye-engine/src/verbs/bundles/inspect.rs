//! `bundle inspect`, `bundle sbom` and what `bundle run` executes: what is in a bundle.

use std::collections::BTreeMap;

use lillux::Digest;
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::contents::{self, BundleFile};
use rye_bundle::create::resolve_entrypoint;
use rye_bundle::sbom::{self, SbomInputs};
use rye_bundle::verify::VerifyContext;
use rye_item::text::counted;
use rye_item::{ItemRef, ItemType};
use rye_space::Manifest;
use serde::Serialize;
use serde_json::Value;

use super::LocatedBundle;
use super::find::find_by_id;
use super::verification::{self, BundleVerification};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What a bundle is and holds.
#[derive(Clone, Debug, Serialize)]
pub struct BundleInspection {
    /// What it says it is.
    pub bundle: BundleSummary,
    /// Its files.
    pub files: Vec<BundleFileRow>,
    /// How many there are.
    pub file_count: usize,
    /// How many of each type.
    pub files_by_type: BTreeMap<&'static str, usize>,
    /// Bytes of all files together.
    pub size: u64,
    /// What its items ask for.
    pub capabilities: BundleCapabilities,
    /// Whether it is what its maker signed.
    pub verification: BundleVerification,
}

/// The head of a manifest.
#[derive(Clone, Debug, Serialize)]
pub struct BundleSummary {
    /// The bundle.
    pub id: String,
    /// Its version.
    pub version: String,
    /// What `rye bundle run` executes.
    pub entrypoint: Option<String>,
    /// What it is for.
    pub description: String,
    /// When it was made.
    pub created_at: Option<String>,
    /// The id prefixes its items have.
    pub categories: Vec<String>,
    /// The digest of the manifest's bytes.
    pub manifest_hash: Digest,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct BundleFileRow {
    /// Its path.
    pub path: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its id, if it is an item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Whether it carries its own signature.
    pub inline_signed: bool,
}

fn readable_manifest(found: &LocatedBundle) -> Result<&Manifest> {
    found.manifest.manifest().map_err(|problems| {
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::new(Code::BundleFailed, format!("the manifest of `{}` cannot be read", found.manifest.id()))
            .detail("problems", list)
            .hint("get the bundle again, or report it to its maker")
    })
}

fn read_files(engine: &Engine, found: &LocatedBundle) -> Vec<BundleFile> {
    let context = VerifyContext {
        keys: &engine.workspace.keys,
        extractors: engine.workspace.spaces.extractors(),
        limit: engine.workspace.max_item_bytes(),
    };
    contents::read_all(found.verify_target(), context)
}

/// What a bundle is and holds. Files that are not what the manifest says are left out, and named in `verification`.
///
/// # Errors
/// When its manifest cannot be read.
pub fn inspect(engine: &Engine, found: &LocatedBundle) -> Result<BundleInspection> {
    let manifest = readable_manifest(found)?;
    let files = read_files(engine, found);
    let mut files_by_type = BTreeMap::new();
    files.iter().for_each(|file| *files_by_type.entry(file.kind).or_insert(0) += 1);
    Ok(BundleInspection {
        bundle: BundleSummary {
            id: manifest.id.to_string(),
            version: manifest.version.to_string(),
            entrypoint: manifest.entrypoint.as_ref().map(ToString::to_string),
            description: rye_item::text::one_line(&manifest.description),
            created_at: manifest.created_at.as_ref().map(ToString::to_string),
            categories: manifest.categories.clone(),
            manifest_hash: found.manifest.hash(),
        },
        file_count: files.len(),
        files_by_type,
        size: files.iter().map(|file| file.size).sum(),
        capabilities: BundleCapabilities::from_files(&files),
        files: files
            .iter()
            .map(|file| BundleFileRow {
                path: file.path.to_string(),
                kind: file.kind,
                item_id: file.item.as_ref().map(|item| item.id.to_string()),
                size: file.size,
                inline_signed: file.signer.is_some(),
            })
            .collect(),
        verification: verification::verify(engine, found, &|_, _| {}),
    })
}

/// The bundle's bill of materials (CycloneDX 1.6). Only of a bundle that is what its maker signed: a bill of other
/// files would be worth nothing.
///
/// # Errors
/// When the bundle does not verify.
pub fn sbom(engine: &Engine, found: &LocatedBundle) -> Result<Value> {
    let manifest = readable_manifest(found)?;
    let verification = verification::verify(engine, found, &|_, _| {});
    if let Some(error) = verification.failure() {
        return Err(error);
    }
    let files = read_files(engine, found);
    Ok(sbom::build_sbom(SbomInputs {
        manifest,
        manifest_hash: &found.manifest.hash(),
        signer: verification.report.signer.as_ref(),
        files: &files,
        tool_version: env!("CARGO_PKG_VERSION"),
    }))
}

/// The item `rye bundle run ID` executes: the entrypoint, if the bundle is part of a space and that is where the item
/// is found.
///
/// # Errors
/// When there is no such bundle, it has no entrypoint, or another item stands in its way.
pub fn entrypoint(engine: &Engine, id: &str) -> Result<ItemRef> {
    let found = find_by_id(engine, id)?;
    let manifest = readable_manifest(&found)?;
    let Some(wanted) = &manifest.entrypoint else {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("the bundle `{}` has no entrypoint", manifest.id),
        )
        .hint(format!("see what it holds: rye bundle inspect {}", manifest.id)));
    };
    let extractors = engine.workspace.spaces.extractors();
    let item = resolve_entrypoint(wanted, manifest.files.keys(), extractors)
        .map_err(|why| Error::new(Code::BundleFailed, why).hint("report it to the bundle's maker"))?;
    let candidates = engine.workspace.spaces.candidate_paths(&item);
    let first = candidates.iter().find(|candidate| candidate.is_found);
    match (first, &found.space) {
        (Some(candidate), Some(space)) if candidate.space == *space => Ok(item),
        (Some(candidate), _) => Err(Error::new(
            Code::Ambiguous,
            format!(
                "{item} of {} space shadows the entrypoint of the bundle `{}`",
                candidate.space, manifest.id
            ),
        )
        .for_item(&item)
        .hint(format!("run that one by its name: rye execute {} {}", item.item_type, item.id))),
        (None, _) => Err(Error::new(
            Code::NotFound,
            format!("the entrypoint {item} of the bundle `{}` is missing", manifest.id),
        )
        .for_item(&item)
        .hint(format!("rye bundle verify {}", manifest.id))),
    }
}

/// The word for a file's type, in the plural.
#[must_use]
pub fn pluralize(kind: &str, count: usize) -> String {
    match (kind, count) {
        (_, 1) => format!("1 {kind}"),
        (word, _) if word == ItemType::Knowledge.as_str() => format!("{count} knowledge entries"),
        (word, _) => counted(count, word),
    }
}
