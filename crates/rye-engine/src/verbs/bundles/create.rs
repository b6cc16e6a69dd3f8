//! `bundle create`: items of the project, by category, as a signed bundle in a folder of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lillux::file::{self, LockedTempDir};
use lillux::{Digest, Fingerprint, SecretKey};
use rye_bundle::BundlePath;
use rye_bundle::archive::{self, ArchiveFormat};
use rye_bundle::create::{
    self as bundle, BundleSource, BundleSpec, CollectedContents, ExcludedFile, InvalidContent, StagedBundle,
};
use rye_item::text::counted;
use rye_item::{BundleId, ItemId, Space};
use rye_space::manifest::{ASSET_TYPE, Entrypoint};
use rye_trust::signature::Timestamp;
use rye_trust::{Identity, SignOutcome};
use serde::Serialize;

use super::lockfile_pins;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign;

/// What to make.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The bundle's id.
    pub id: String,
    /// Its version.
    pub version: String,
    /// What it is for.
    pub description: String,
    /// What `rye bundle run` executes.
    pub entrypoint: Option<String>,
    /// The id prefixes whose items it holds.
    pub categories: Vec<String>,
    /// Where to put it; must not be there yet.
    pub out: PathBuf,
    /// Whether unsigned items are signed first.
    pub sign: bool,
    /// Whether it ships a lockfile of each of its tools.
    pub with_lockfiles: bool,
}

/// What was made.
#[derive(Clone, Debug, Serialize)]
pub struct CreatedBundle {
    /// The bundle.
    pub bundle_id: BundleId,
    /// Its version.
    pub version: String,
    /// Where it is.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// How many files its manifest lists.
    pub file_count: usize,
    /// How many of them there are of each type.
    pub files_by_type: BTreeMap<&'static str, usize>,
    /// The digest of its manifest's bytes.
    pub manifest_hash: Digest,
    /// The key that signed the manifest.
    pub signer: Fingerprint,
    /// Other keys that signed items of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_signers: Vec<Fingerprint>,
    /// The lockfiles it ships.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lockfiles: Vec<BundlePath>,
    /// What was signed on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed: Vec<String>,
    /// What lies in these categories and was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "left_out")]
    pub excluded: Vec<ExcludedFile>,
}

/// A bundle that is whole and out of sight, beside the place it is for.
#[derive(Debug)]
pub struct BundleBuild {
    temporary_folder: LockedTempDir,
    /// What it holds.
    pub staged: StagedBundle,
    /// What is reported about it.
    pub created: CreatedBundle,
}

impl BundleBuild {
    /// The folder that holds the bundle's `.ai/`.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.temporary_folder.path().join("bundle")
    }
}

/// Makes a bundle in the folder `out`, or as the archive its name asks for, whole or not at all.
///
/// # Errors
/// When an item cannot be part of it, nothing is there to pack, or `out` is taken.
pub fn create(engine: &Engine, request: &CreateRequest) -> Result<CreatedBundle> {
    let build = stage(engine, request)?;
    match ArchiveFormat::from_path(&request.out) {
        None => file::rename_dir(&build.folder(), &request.out)?,
        Some(_) => archive::pack(&build.folder(), &build.staged.files, &request.out)?,
    }
    Ok(build.created)
}

/// Makes a bundle beside `out`, out of sight.
///
/// # Errors
/// As [`create`].
pub fn stage(engine: &Engine, request: &CreateRequest) -> Result<BundleBuild> {
    let mut spec = bundle_spec(request)?;
    check_out_is_free(&request.out)?;
    let Some(ai) = engine.workspace.roots.project_ai().filter(|ai| ai.is_dir()) else {
        return Err(Error::new(Code::PathNotFound, "not inside a project").hint(
            "a bundle is made of a project's items: run it where `.ai` is, or name it with --project",
        ));
    };
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let source = BundleSource {
        ai: &ai,
        space: &Space::Project,
        keys: &engine.workspace.keys,
        extractors: engine.workspace.spaces.extractors(),
        limit: engine.workspace.max_item_bytes(),
    };
    let mut collected = bundle::collect(source, &spec);
    let mut signed = Vec::new();
    if request.sign
        && !collected.invalid.is_empty()
        && collected.invalid.iter().all(|invalid| invalid.is_unsigned)
    {
        signed = sign_unsigned(engine, &spec, &ai, &collected.invalid)?;
        collected = bundle::collect(source, &spec);
    }
    check_contents(&spec, &collected, request.sign)?;
    if let Some(entrypoint) = &spec.entrypoint {
        let extractors = engine.workspace.spaces.extractors();
        let item =
            bundle::resolve_entrypoint(entrypoint, collected.files.keys(), extractors).map_err(|why| {
                Error::new(Code::InvalidArgument, why)
                    .hint("name an item of these categories: ID, or type:ID")
            })?;
        spec.entrypoint = Some(Entrypoint { item_type: Some(item.item_type), id: item.id });
    }
    let documents = identity_documents(engine, &spec, &collected, &key, &now)?;
    let parent =
        request.out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    file::create_dirs(parent, false)?;
    let temporary_folder = LockedTempDir::new(parent, ".rye-bundle-")?;
    let extractors = engine.workspace.spaces.extractors();
    let stage = |name: &str, collected: &CollectedContents| {
        bundle::stage(
            &temporary_folder.path().join(name),
            &spec,
            collected,
            &documents,
            extractors,
            &key,
            &now,
        )
    };
    let mut lockfiles = Vec::new();
    if request.with_lockfiles {
        // Tools are pinned as they lie in the bundle, which is then made again with the lockfiles.
        stage("unpinned", &collected)?;
        let (unpinned, scratch) =
            (temporary_folder.path().join("unpinned"), temporary_folder.path().join("lockfiles"));
        let pins = lockfile_pins::pin_tools(engine, &spec.id, &unpinned, &key.public_key(), &scratch)?;
        lockfiles.extend(pins.keys().cloned());
        collected.files.extend(pins);
    }
    let staged = stage("bundle", &collected)?;
    let own = key.public_key().fingerprint();
    let others = collected.signers.iter().filter(|signer| **signer != own).copied().collect();
    let mut files_by_type = BTreeMap::new();
    for entry in staged.manifest.files.values() {
        let word = entry.item_type.map_or(ASSET_TYPE, rye_item::ItemType::as_str);
        *files_by_type.entry(word).or_insert(0) += 1;
    }
    let created = CreatedBundle {
        bundle_id: spec.id,
        version: spec.version.to_string(),
        path: request.out.clone(),
        file_count: staged.manifest.files.len(),
        files_by_type,
        manifest_hash: staged.manifest_hash,
        signer: own,
        other_signers: others,
        lockfiles,
        signed,
        excluded: collected.excluded,
    };
    Ok(BundleBuild { temporary_folder, staged, created })
}

fn bundle_spec(request: &CreateRequest) -> Result<BundleSpec> {
    let version = semver::Version::parse(&request.version).map_err(|error| {
        let clean_version = rye_item::text::one_line(&request.version);
        Error::new(Code::InvalidArgument, format!("invalid version `{clean_version}`: {error}"))
            .hint("a version has three numbers, such as 1.0.0")
    })?;
    if request.categories.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "no category given")
            .hint("--category team packs the items below `team/`"));
    }
    let categories: Vec<ItemId> = request
        .categories
        .iter()
        .map(|category| ItemId::new(category.trim_matches('/')))
        .collect::<std::result::Result<_, _>>()?;
    // A category inside another one would be packed twice.
    let categories: BTreeSet<ItemId> = categories.into_iter().collect();
    let is_inner = |id: &ItemId| categories.iter().any(|other| other != id && id.is_within(other.as_str()));
    Ok(BundleSpec {
        id: BundleId::new(request.id.as_str())?,
        version,
        description: request.description.clone(),
        entrypoint: request.entrypoint.as_deref().map(Entrypoint::new).transpose()?,
        categories: categories.iter().filter(|id| !is_inner(id)).cloned().collect(),
    })
}

fn check_out_is_free(out: &Path) -> Result<()> {
    if std::fs::symlink_metadata(out).is_err() {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("`{}` already exists", out.display()))
        .hint("name another place with --out, or move it away"))
}

fn sign_unsigned(
    engine: &Engine,
    spec: &BundleSpec,
    ai: &Path,
    invalid: &[InvalidContent],
) -> Result<Vec<String>> {
    let paths: Vec<PathBuf> =
        invalid.iter().map(|invalid| ai.join(invalid.path.trim_start_matches(".ai/"))).collect();
    let response = sign::sign_paths(engine, &paths, None, &mut |_, _| {})?;
    if let Some(first) = response.failed.first() {
        let failed: Vec<String> = response
            .failed
            .iter()
            .map(|failed| format!("{}: {}", failed.name, failed.error.message))
            .collect();
        return Err(Error::new(
            first.error.code,
            format!("{} of the bundle `{}` cannot be signed", counted(failed.len(), "item"), spec.id),
        )
        .detail("problems", failed)
        .hint("correct them, then sign them: rye sign TYPE ID; no bundle was made"));
    }
    Ok(response.signed.into_iter().map(|signed| format!("{}:{}", signed.item_type, signed.item_id)).collect())
}

fn check_contents(spec: &BundleSpec, collected: &CollectedContents, did_sign: bool) -> Result<()> {
    if collected.invalid.is_empty() {
        if collected.files.is_empty() {
            let categories = spec.categories.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            if let Some(first) = collected.excluded.first() {
                let message = format!(
                    "the project has nothing in {categories} that a bundle may hold: {}",
                    first.reason
                );
                return Err(Error::new(Code::NotFound, message)
                    .detail("path", first.path.as_str())
                    .detail("left_out", serde_json::to_value(&collected.excluded).unwrap_or_default())
                    .hint("name a category that holds directives, tools or knowledge: --category team"));
            }
            return Err(Error::new(Code::NotFound, format!("the project has no items in {categories}"))
                .hint("a category is the beginning of an id: rye search '*' --space project lists them"));
        }
        return Ok(());
    }
    let files = counted(collected.invalid.len(), "file");
    let error = Error::new(Code::Unbundleable, format!("{files} cannot be part of the bundle `{}`", spec.id))
        .detail("unfit", serde_json::to_value(&collected.invalid).unwrap_or_default());
    let is_only_unsigned = collected.invalid.iter().all(|invalid| invalid.is_unsigned);
    Err(if is_only_unsigned && !did_sign {
        error.hint("read them, then sign them: rye sign TYPE ID; or all of them at once: --sign")
    } else {
        error.hint("correct each, then make the bundle again; nothing was written")
    })
}

/// The identity documents of everybody who signed something, each signed by its own key.
fn identity_documents(
    engine: &Engine,
    spec: &BundleSpec,
    collected: &CollectedContents,
    key: &SecretKey,
    now: &Timestamp,
) -> Result<Vec<(Fingerprint, Vec<u8>)>> {
    let workspace = &engine.workspace;
    let own = key.public_key();
    let project = workspace.project_documents();
    let known: Vec<_> = workspace.user_documents.iter().chain(&project).collect();
    let owner = known
        .iter()
        .filter_map(|found| found.identity.as_ref().ok())
        .find(|identity| identity.key == own && identity.is_self_signed())
        .map_or("unknown", |identity| identity.owner.as_str());
    // A fresh document: the one in user space may say more than others need to know.
    let text = Identity::new(own.clone(), owner).to_document().into_bytes();
    let document = match rye_trust::sign(&text, &rye_trust::identity::signature_format(), key, now) {
        SignOutcome::Written { bytes, .. } => bytes,
        SignOutcome::Unchanged(_) => text,
    };
    let mut documents = vec![(own.fingerprint(), document)];
    for signer in collected.signers.iter().filter(|signer| **signer != own.fingerprint()) {
        let found = known.iter().find(|found| {
            found.identity.as_ref().is_ok_and(|identity| {
                identity.fingerprint == *signer && identity.is_self_signed() && identity.projects.is_none()
            })
        });
        let Some(found) = found else {
            return Err(Error::new(
                Code::Unbundleable,
                format!("items of the bundle `{}` are signed by {signer}, who has no document signed by their own key", spec.id),
            )
            .hint("get their document (rye keys export), or read those items and sign them yourself: rye sign TYPE ID"));
        };
        let (bytes, _) = file::read_bounded(&found.path, 64 << 10).map_err(|error| Error::read(&error))?;
        documents.push((*signer, bytes));
    }
    Ok(documents)
}
