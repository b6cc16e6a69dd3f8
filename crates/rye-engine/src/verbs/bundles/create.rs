//! `bundle create`: items of the project, by category, as a signed bundle in a folder of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lillux::file::{self, TemporaryFolder};
use lillux::{Digest, Fingerprint, SecretKey};
use rye_bundle::FilePath;
use rye_bundle::archive::{self, Format};
use rye_bundle::create::{self as bundle, Collected, LeftOut, Recipe, Source, Staged, Unfit};
use rye_item::text::counted;
use rye_item::{BundleId, ItemId, Space};
use rye_space::manifest::{ASSET, Entrypoint};
use rye_trust::signature::Timestamp;
use rye_trust::{Identity, Signed};
use serde::Serialize;

use super::judge::max_bytes;
use super::pins;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign;

/// What to make.
#[derive(Clone, Debug)]
pub struct Request {
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
pub struct Created {
    /// The bundle.
    pub bundle_id: BundleId,
    /// Its version.
    pub version: String,
    /// Where it is.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// How many files its manifest lists.
    pub file_count: usize,
    /// How many of them there are of each type.
    pub files_by_type: BTreeMap<&'static str, usize>,
    /// The digest of its manifest's bytes.
    pub manifest_hash: Digest,
    /// The key that signed the manifest.
    pub signer: Fingerprint,
    /// The lockfiles it ships.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lockfiles: Vec<FilePath>,
    /// What was signed on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed: Vec<String>,
    /// What lies in these categories and was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// A bundle that is whole and out of sight, beside the place it is for.
#[derive(Debug)]
pub struct Workshop {
    holder: TemporaryFolder,
    /// What it holds.
    pub staged: Staged,
    /// What is told about it.
    pub created: Created,
}

impl Workshop {
    /// The folder that holds the bundle's `.ai/`.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.holder.path().join("bundle")
    }
}

/// Makes a bundle in the folder `out`, or as the archive its name asks for, whole or not at all.
///
/// # Errors
/// When an item cannot be part of it, nothing is there to pack, or `out` is taken.
pub fn create(engine: &Engine, request: &Request) -> Result<Created> {
    let workshop = stage(engine, request)?;
    match Format::of(&request.out) {
        None => file::rename_folder(&workshop.folder(), &request.out)?,
        Some(_) => archive::pack(&workshop.folder(), &workshop.staged.files, &request.out)?,
    }
    Ok(workshop.created)
}

/// Makes a bundle beside `out`, out of sight.
///
/// # Errors
/// As [`create`].
pub fn stage(engine: &Engine, request: &Request) -> Result<Workshop> {
    let mut recipe = recipe(request)?;
    refuse_taken(&request.out)?;
    let Some(ai) = engine.workspace.roots.project_ai().filter(|ai| ai.is_dir()) else {
        return Err(Error::new(Code::PathNotFound, "there is no project here").hint(
            "a bundle is made of a project's items: run it where `.ai` is, or name it with --project",
        ));
    };
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let source = Source {
        ai: &ai,
        space: &Space::Project,
        keys: &engine.workspace.keys,
        extractors: engine.workspace.spaces.extractors(),
        limit: max_bytes(engine),
    };
    let mut collected = bundle::collect(source, &recipe);
    let mut signed = Vec::new();
    if request.sign && !collected.unfit.is_empty() && collected.unfit.iter().all(|unfit| unfit.is_unsigned) {
        signed = sign_all(engine, &recipe, &ai, &collected.unfit)?;
        collected = bundle::collect(source, &recipe);
    }
    refuse_unfit(&recipe, &collected, request.sign)?;
    if let Some(wanted) = &recipe.entrypoint {
        let extractors = engine.workspace.spaces.extractors();
        let item = bundle::resolve_entrypoint(wanted, collected.files.keys(), extractors).map_err(|why| {
            Error::new(Code::InvalidArgument, why).hint("name an item of these categories: ID, or type:ID")
        })?;
        recipe.entrypoint = Some(Entrypoint { item_type: Some(item.item_type), id: item.id });
    }
    let documents = documents(engine, &recipe, &collected, &key, &now)?;
    let parent =
        request.out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    file::create_folders(parent, false)?;
    let holder = TemporaryFolder::new(parent, ".rye-bundle-")?;
    let extractors = engine.workspace.spaces.extractors();
    let stage = |name: &str, collected: &Collected| {
        bundle::stage(&holder.path().join(name), &recipe, collected, &documents, extractors, &key, &now)
    };
    let mut lockfiles = Vec::new();
    if request.with_lockfiles {
        // Tools are pinned as they lie in the bundle, which is then made once more with the lockfiles.
        stage("unpinned", &collected)?;
        let (unpinned, scratch) = (holder.path().join("unpinned"), holder.path().join("lockfiles"));
        let pins = pins::pin_tools(engine, &recipe.id, &unpinned, &key.public(), &scratch)?;
        lockfiles.extend(pins.keys().cloned());
        collected.files.extend(pins);
    }
    let staged = stage("bundle", &collected)?;
    let mut files_by_type = BTreeMap::new();
    for entry in staged.manifest.files.values() {
        let word = entry.item_type.map_or(ASSET, rye_item::ItemType::as_str);
        *files_by_type.entry(word).or_insert(0) += 1;
    }
    let created = Created {
        bundle_id: recipe.id,
        version: recipe.version.to_string(),
        path: request.out.clone(),
        file_count: staged.manifest.files.len(),
        files_by_type,
        manifest_hash: staged.manifest_hash,
        signer: key.public().fingerprint(),
        lockfiles,
        signed,
        left_out: collected.left_out,
    };
    Ok(Workshop { holder, staged, created })
}

fn recipe(request: &Request) -> Result<Recipe> {
    let version = semver::Version::parse(&request.version).map_err(|error| {
        let shown = rye_item::text::one_line(&request.version);
        Error::new(Code::InvalidArgument, format!("`{shown}` is no version: {error}"))
            .hint("a version has three numbers, such as 1.0.0")
    })?;
    if request.categories.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "which items? a category is missing")
            .hint("--category team packs what lies below `team/`"));
    }
    let categories: Vec<ItemId> = request
        .categories
        .iter()
        .map(|category| ItemId::new(category.trim_matches('/')))
        .collect::<std::result::Result<_, _>>()?;
    // A category inside another one would be packed twice.
    let categories: BTreeSet<ItemId> = categories.into_iter().collect();
    let is_inner = |id: &ItemId| categories.iter().any(|other| other != id && id.is_within(other.as_str()));
    Ok(Recipe {
        id: BundleId::new(request.id.as_str())?,
        version,
        description: request.description.clone(),
        entrypoint: request.entrypoint.as_deref().map(Entrypoint::new).transpose()?,
        categories: categories.iter().filter(|id| !is_inner(id)).cloned().collect(),
    })
}

fn refuse_taken(out: &Path) -> Result<()> {
    if std::fs::symlink_metadata(out).is_err() {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("`{}` is there already", out.display()))
        .hint("name another place with --out, or move it away"))
}

fn sign_all(engine: &Engine, recipe: &Recipe, ai: &Path, unfit: &[Unfit]) -> Result<Vec<String>> {
    let paths: Vec<PathBuf> =
        unfit.iter().map(|unfit| ai.join(unfit.path.trim_start_matches(".ai/"))).collect();
    let answer = sign::sign_paths(engine, &paths, &mut |_, _| {})?;
    if let Some(first) = answer.failed.first() {
        let failed: Vec<String> =
            answer.failed.iter().map(|failed| format!("{}: {}", failed.name, failed.error.message)).collect();
        return Err(Error::new(
            first.error.code,
            format!("{} of the bundle `{}` cannot be signed", counted(failed.len(), "item"), recipe.id),
        )
        .detail("problems", failed)
        .hint("correct them, then sign them: rye sign TYPE ID; no bundle was made"));
    }
    Ok(answer.signed.into_iter().map(|signed| format!("{}:{}", signed.item_type, signed.item_id)).collect())
}

fn refuse_unfit(recipe: &Recipe, collected: &Collected, did_sign: bool) -> Result<()> {
    if collected.unfit.is_empty() {
        if collected.files.is_empty() {
            let categories = recipe.categories.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            if let Some(first) = collected.left_out.first() {
                let message = format!(
                    "the project has nothing in {categories} that a bundle may hold: {}",
                    first.reason
                );
                return Err(Error::new(Code::NotFound, message)
                    .detail("path", first.path.as_str())
                    .detail("left_out", serde_json::to_value(&collected.left_out).unwrap_or_default())
                    .hint("name a category that holds directives, tools or knowledge: --category team"));
            }
            return Err(Error::new(Code::NotFound, format!("the project has no items in {categories}"))
                .hint("a category is the beginning of an id: rye search '*' --space project lists them"));
        }
        return Ok(());
    }
    let files = counted(collected.unfit.len(), "file");
    let error =
        Error::new(Code::Unbundleable, format!("{files} cannot be part of the bundle `{}`", recipe.id))
            .detail("unfit", serde_json::to_value(&collected.unfit).unwrap_or_default());
    let is_only_unsigned = collected.unfit.iter().all(|unfit| unfit.is_unsigned);
    Err(if is_only_unsigned && !did_sign {
        error.hint("read them, then sign them: rye sign TYPE ID; or all of them at once: --sign")
    } else {
        error.hint("correct each, then make the bundle again; nothing was written")
    })
}

/// The identity documents of everybody who signed something, each signed by its own key.
fn documents(
    engine: &Engine,
    recipe: &Recipe,
    collected: &Collected,
    key: &SecretKey,
    now: &Timestamp,
) -> Result<Vec<(Fingerprint, Vec<u8>)>> {
    let workspace = &engine.workspace;
    let own = key.public();
    let project = workspace.project_documents();
    let known: Vec<_> = workspace.user_documents.iter().chain(&project).collect();
    let owner = known
        .iter()
        .filter_map(|found| found.identity.as_ref().ok())
        .find(|identity| identity.key == own && identity.is_self_signed())
        .map_or("unknown", |identity| identity.owner.as_str());
    // A fresh document: the one in user space may say more than others need to know.
    let text = Identity::new(own.clone(), owner).to_document().into_bytes();
    let document = match rye_trust::sign(&text, &rye_trust::identity::format(), key, now) {
        Signed::Written { bytes, .. } => bytes,
        Signed::Unchanged(_) => text,
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
                format!("items of the bundle `{}` are signed by {signer}, who has no document signed by their own key", recipe.id),
            )
            .hint("get their document (rye keys export), or read those items and sign them yourself: rye sign TYPE ID"));
        };
        let (bytes, _) = file::read_bounded(&found.path, 64 << 10).map_err(|error| Error::read(&error))?;
        documents.push((*signer, bytes));
    }
    Ok(documents)
}
