//! Working out what an installation would change, without changing anything: the bundle is brought to a private folder,
//! verified there to the last byte, weighed against what is remembered of it, and compared with what is installed.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::file::{self, LockedTempDir};
use lillux::{Digest, Fingerprint};
use rye_bundle::archive::{self, ArchiveLimits};
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::contents;
use rye_bundle::install::{
    ConflictPreference, Generation, InstallPlan, allowed_paths, copy_source, generations,
};
use rye_bundle::manifest::is_never_installed;
use rye_bundle::signer_history::BundleCandidate;
use rye_bundle::verify::{self, BundleScope, ManifestSigner, VerifyContext, VerifyFileProgress};
use rye_bundle::{BundlePath, Manifest, object};
use rye_item::space::SpaceTier;
use rye_item::text::one_line;
use rye_item::{BundleId, ItemId, ItemRef, ItemType, Space};
use rye_space::bundle::BundleOrigin;
use rye_space::spaces::CandidatePath;
use rye_trust::Subject;

use super::project_files::ProjectFile;
use super::target::{InstallTarget, InstalledBundle, manifest_path};
use super::trust::{InstallSigner, check_not_revoked, evaluate_trust};
use super::{ActionCounts, InstallOptions, InstallPreview, InstallSource};
use crate::chain_cache;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The largest file of a bundle.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_NAMED_FILES: usize = 20;

/// A bundle that could be installed.
pub struct PreparedInstall {
    /// What would change, for showing.
    pub preview: InstallPreview,
    pub(super) options: InstallOptions,
    pub(super) source: InstallSource,
    pub(super) target: InstallTarget,
    /// Holds the files until they are installed.
    pub(super) staged: LockedTempDir,
    /// Every file of the bundle, the ones that are not installed too.
    pub(super) all_files: Vec<BundlePath>,
    /// The files that are installed.
    pub(super) files: BTreeMap<BundlePath, Digest>,
    pub(super) manifest: Manifest,
    pub(super) manifest_bytes: Vec<u8>,
    pub(super) candidate: BundleCandidate,
    pub(super) plan: InstallPlan,
    /// The bundle's versions once it is installed.
    pub(super) history: Vec<Generation>,
    pub(super) is_rollback: bool,
    /// Files of the project that change in the same transaction.
    pub(super) project_files: Vec<ProjectFile>,
    /// Whether the project's manifest asked for it.
    pub(super) is_managed: bool,
}

impl PreparedInstall {
    /// The folder with the files.
    pub(super) fn folder(&self) -> PathBuf {
        bundle_folder(&self.staged)
    }

    /// The signed manifest.
    pub(crate) fn manifest_bytes(&self) -> &[u8] {
        &self.manifest_bytes
    }

    /// Makes the installation one that the project's manifest asked for, and changes `files` together with it.
    pub(crate) fn manage(&mut self, files: Vec<ProjectFile>) {
        self.is_managed = true;
        self.project_files = files;
    }

    /// The bundle.
    pub(crate) fn bundle_id(&self) -> &BundleId {
        &self.manifest.id
    }

    /// Its version, the digest of its manifest, and the digest it is known by where it came from.
    pub(crate) fn identity(&self) -> (&semver::Version, Digest, Option<&str>) {
        (&self.manifest.version, self.candidate.manifest_hash, self.source.digest.as_deref())
    }

    /// The files that would be installed.
    pub(crate) fn installed_paths(&self) -> impl Iterator<Item = &BundlePath> {
        self.files.keys()
    }

    /// Whether installing would change no file.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.plan.changes().is_empty()
            && self.preview.previous_version.as_deref() == Some(&self.preview.version)
    }
}

/// Prepares the installation of a bundle.
///
/// # Errors
/// When it is not a bundle, is not what its manifest says, changed for the worse since it was last seen, or files are in
/// the way. Nothing was changed then.
pub fn prepare(
    engine: &Engine,
    source: InstallSource,
    options: InstallOptions,
    progress: VerifyFileProgress<'_>,
) -> Result<PreparedInstall> {
    let target = InstallTarget::open(engine, options.space)?;
    Preparation { engine, source, options, target, history: None }.prepare(progress)
}

/// Prepares the return to the version that was installed before this one.
///
/// # Errors
/// When the bundle is not installed, or no earlier version is kept; otherwise as [`prepare`].
pub fn prepare_rollback(
    engine: &Engine,
    id: &BundleId,
    space: Option<SpaceTier>,
    preference: ConflictPreference,
    progress: VerifyFileProgress<'_>,
) -> Result<PreparedInstall> {
    let target = super::uninstall::find_target(engine, id, space)?;
    let options =
        InstallOptions { space: target.tier, force: false, preference, trust: None, allows_downgrade: true };
    let Some(previous) = target.installed_bundle(id)? else {
        return Err(super::uninstall::not_installed_error(id, space));
    };
    let known = generations::read_generations(&target.state, id)?;
    let Some((generation, history)) = generations::previous_generation(&known, &previous.lock.manifest_hash)
    else {
        return Err(Error::new(
            Code::NoGeneration,
            format!("no version of `{id}` before {} is stored", previous.lock.version),
        )
        .hint("install the version you want: rye install SRC --allow-downgrade"));
    };
    let source = InstallSource {
        name: generation.source.clone().unwrap_or_else(|| id.to_string()),
        digest: generation.source_digest.clone(),
        path: generations::archive_path(&target.state, id, &generation.manifest_hash),
    };
    let preparation = Preparation { engine, source, options, target, history: Some(history) };
    let prepared = preparation.prepare(progress)?;
    if prepared.candidate.manifest_hash != generation.manifest_hash || prepared.manifest.id != *id {
        return Err(Error::new(
            Code::DamagedInstall,
            format!("the stored version of `{id}` is another bundle"),
        )
        .hint("install the version you want: rye install SRC --allow-downgrade"));
    }
    Ok(prepared)
}

/// Where the files of a bundle lie in the folder they were brought to.
pub(crate) fn bundle_folder(staged: &LockedTempDir) -> PathBuf {
    staged.path().join("bundle")
}

/// Copies a folder or unpacks an archive into a private folder ([`bundle_folder`]) and returns its files.
pub(crate) fn stage_source(engine: &Engine, source: &Path) -> Result<(LockedTempDir, Vec<BundlePath>)> {
    let metadata = fs_err::metadata(source).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(Code::PathNotFound, format!("`{}` does not exist", source.display())).hint(
                "name a folder that holds `.ai`, an archive (.tar.zst, .zip), or oci://registry/repository",
            )
        }
        _ => Error::io(&error),
    })?;
    let cache = &engine.workspace.roots.cache;
    let unwritable = |error: std::io::Error| {
        Error::new(Code::Io, format!("the cache `{}` cannot be written: {error}", cache.display()))
            .hint("make it writable, or name another folder with XDG_CACHE_HOME")
    };
    file::create_dirs(cache, true).map_err(unwritable)?;
    let staged = LockedTempDir::new(cache, "install-").map_err(unwritable)?;
    let into = bundle_folder(&staged);
    let files = if metadata.is_dir() {
        if !source.join(rye_space::AI_FOLDER).is_dir() {
            return Err(no_bundle_error(source));
        }
        file::create_dirs(&into, true)?;
        copy_source::copy_folder(source, &ArchiveLimits::default(), &into)?
    } else {
        archive::unpack(source, &ArchiveLimits::default(), &into)?
    };
    Ok((staged, files))
}

/// An installation approves the signer for the bundle's id, and a signer approved for the id of a built-in bundle may
/// replace that bundle.
fn check_not_built_in(engine: &Engine, id: &BundleId) -> Result<()> {
    let bundles = engine.workspace.spaces.bundles().iter();
    let mut built_in = bundles.filter(|bundle| matches!(bundle.origin, BundleOrigin::Embedded(_)));
    if engine.workspace.available_bundles.iter().any(|bundle| bundle.id == *id)
        || built_in.any(|bundle| bundle.id == *id)
    {
        let message = format!("`{id}` is the id of a bundle that comes with rye");
        let hint = "to replace it, name its folder in `bundles.paths` of your config and approve it: rye bundle trust";
        return Err(Error::new(Code::FileRefused, message).hint(hint));
    }
    Ok(())
}

fn no_bundle_error(source: &Path) -> Error {
    Error::new(Code::NoManifest, format!("`{}` holds no bundle", source.display()))
        .hint("a bundle has a signed manifest, `.ai/bundles/ID/manifest.yaml`: rye bundle create makes one")
}

/// What a preparation begins with.
struct Preparation<'a> {
    engine: &'a Engine,
    source: InstallSource,
    options: InstallOptions,
    target: InstallTarget,
    /// The bundle's versions after a rollback.
    history: Option<Vec<Generation>>,
}

impl Preparation<'_> {
    fn prepare(self, progress: VerifyFileProgress<'_>) -> Result<PreparedInstall> {
        let Self { engine, source, options, target, history } = self;
        let is_rollback = history.is_some();
        let (staged, all_files) = stage_source(engine, &source.path)?;
        let folder = bundle_folder(&staged);
        let extractors = engine.workspace.spaces.extractors();
        let origin = BundleOrigin::Folder(folder.clone());
        let identities = verify::shipped_identities(&origin);
        let file = rye_space::bundle::choose_manifest(&folder, None, &identities)
            .ok_or_else(|| no_bundle_error(&source.path))?;
        if let Some(line) = file.signature() {
            check_not_revoked(&engine.workspace.keys, &line.fingerprint)?;
        }
        let context = VerifyContext { keys: &engine.workspace.keys, extractors, limit: MAX_FILE_BYTES };
        let subject = verify::VerifyTarget {
            origin: &origin,
            manifest: &file,
            identities: &identities,
            scope: BundleScope::Standalone,
        };
        let report = verify::verify(subject, context, progress);
        let signer = match &report.signer {
            Some(signer) if report.is_verified() => signer.clone(),
            _ => return Err(verification_error(&report)),
        };
        let manifest = file.manifest().map_err(|_| verification_error(&report))?.clone();
        let id = manifest.id.clone();
        check_not_built_in(engine, &id)?;
        check_item_signers(engine, &target, &report, &signer)?;
        let candidate = BundleCandidate {
            signer: Some(signer.key.clone()),
            version: manifest.version.clone(),
            manifest_hash: file.hash(),
        };
        let decision = evaluate_trust(engine, &id, &candidate, signer.trusted, &options)?;

        let files = files_to_install(&folder, &manifest)?;
        let previous = target.installed_bundle(&id)?;
        let plan = plan(engine, &target, &id, &files, previous.as_ref(), &options)?;
        let history = match history {
            Some(history) => history,
            None => {
                let next = Generation {
                    version: manifest.version.clone(),
                    manifest_hash: candidate.manifest_hash,
                    source: Some(source.name.clone()),
                    source_digest: source.digest.clone(),
                };
                let known = generations::read_generations(&target.state, &id)?;
                generations::after_install(with_source(known, previous.as_ref()), next)
            }
        };
        let capabilities = BundleCapabilities::from_files(&contents::read_all(subject, context));
        let known =
            target.installed_capabilities(previous.as_ref(), context, &staged.path().join("installed"))?;
        let was_managed = previous.as_ref().is_some_and(|previous| previous.lock.managed);
        let (hides, hidden_by) = find_shadowing(engine, &target, &files);
        let preview = InstallPreview {
            bundle_id: id.to_string(),
            version: manifest.version.to_string(),
            previous_version: previous.map(|previous| previous.lock.version.to_string()),
            description: one_line(&manifest.description),
            space: target.tier,
            signer: InstallSigner {
                fingerprint: signer.fingerprint,
                owner: signer.owner,
                trusted: signer.trusted,
                approved: decision.approved,
                needs_trust: decision.needs_trust,
                key: signer.key,
            },
            items: count_items(&files, extractors),
            counts: ActionCounts::from_plan(&plan),
            files: plan.rows.clone(),
            capabilities_added: capabilities.added_since(&known),
            capabilities_removed: known.added_since(&capabilities),
            capabilities,
            hides,
            hidden_by,
            warnings: decision.warnings,
        };
        let manifest_bytes = file.bytes().to_vec();
        Ok(PreparedInstall {
            preview,
            options,
            source,
            target,
            staged,
            all_files,
            files,
            manifest,
            manifest_bytes,
            candidate,
            plan,
            history,
            is_rollback,
            project_files: Vec::new(),
            // What a manifest asked for stays so when another version is installed over it.
            is_managed: was_managed,
        })
    }
}

/// The versions, the installed one with the source its lockfile names: an earlier version of `rye` may have left it out.
fn with_source(mut known: Vec<Generation>, previous: Option<&InstalledBundle>) -> Vec<Generation> {
    let Some(lock) = previous.map(|previous| &previous.lock) else { return known };
    let installed = known.iter_mut().filter(|generation| generation.manifest_hash == lock.manifest_hash);
    for generation in installed.filter(|generation| generation.source.is_none()) {
        generation.source.clone_from(&lock.source);
        generation.source_digest.clone_from(&lock.source_digest);
    }
    known
}

/// The plan as things are now.
pub(super) fn plan(
    engine: &Engine,
    target: &InstallTarget,
    id: &BundleId,
    files: &BTreeMap<BundlePath, Digest>,
    previous: Option<&InstalledBundle>,
    options: &InstallOptions,
) -> Result<InstallPlan> {
    let extractors = engine.workspace.spaces.extractors();
    let inputs = target.plan_inputs(
        id,
        files.clone(),
        previous,
        (extractors, &chain_cache::executor_aliases(engine)),
    )?;
    let plan = InstallPlan::new(&inputs, options.preference, options.force)?;
    // Without a lockfile the folder of that name was not installed by rye.
    let manifest = manifest_path(id)?;
    if previous.is_none() && !options.force && target.file_digest(&manifest)?.is_some() {
        return Err(rye_bundle::install::InstallError::Occupied { paths: vec![manifest] }.into());
    }
    Ok(plan)
}

/// The files that are installed, with their digests; those a bundle may not bring are all named.
fn files_to_install(folder: &Path, manifest: &Manifest) -> Result<BTreeMap<BundlePath, Digest>> {
    let mut files = BTreeMap::new();
    let mut refused = Vec::new();
    for path in manifest.files.keys().filter(|path| !is_never_installed(path)) {
        if let Some(reason) = allowed_paths::refusal_reason(path, &manifest.categories) {
            refused.push((path, reason));
            continue;
        }
        let (bytes, _) = file::read_beneath(folder, path.as_path(), MAX_FILE_BYTES)
            .map_err(|error| Error::read(&error))?;
        files.insert(path.clone(), Digest::of(&bytes));
    }
    let Some((path, reason)) = refused.first() else {
        return Ok(files);
    };
    let problems: Vec<_> = refused
        .iter()
        .take(MAX_NAMED_FILES)
        .map(|(path, reason)| serde_json::json!({ "message": format!("{path}: {reason}") }))
        .collect();
    Err(Error::new(Code::FileRefused, format!("`{}` would install `{path}`: {reason}", manifest.id))
        .detail("problems", problems)
        .hint("ask its maker for a bundle without such files"))
}

/// How many items of which type there are.
fn count_items(
    files: &BTreeMap<BundlePath, Digest>,
    extractors: &rye_item::ExtractorSet,
) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for path in files.keys() {
        let kind = object::item_type(path, extractors).map_or("asset", ItemType::as_str);
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts
}

/// What the items of a bundle do to those of other spaces with the same id: which of them they hide, whatever their
/// extension, and which hide them.
fn find_shadowing(
    engine: &Engine,
    target: &InstallTarget,
    files: &BTreeMap<BundlePath, Digest>,
) -> (Vec<String>, Vec<String>) {
    let spaces = &engine.workspace.spaces;
    let (mut hides, mut hidden_by) = (Vec::new(), Vec::new());
    for path in files.keys() {
        let Some(item_type) = object::item_type(path, spaces.extractors()) else { continue };
        // Config is merged: no file of it hides another.
        if item_type == ItemType::Config {
            continue;
        }
        let Ok(id) = ItemId::new(object::object_name(path).1) else { continue };
        let item = ItemRef::new(item_type, id);
        for (other, candidate) in others(engine, &item) {
            let shown = match other == item {
                true => format!("{item} of {}", candidate.space),
                false => format!("{other} of {}, also called `{}`", candidate.space, item.id),
            };
            match candidate.space.tier().precedence().cmp(&target.tier.precedence()) {
                Ordering::Less => hides.push(shown),
                Ordering::Greater => hidden_by.push(shown),
                // One of the same space is refused by the plan.
                Ordering::Equal => {}
            }
        }
    }
    (hides, hidden_by)
}

/// Where an item of this id is, and where the executors are that its id is another name of.
fn others(engine: &Engine, item: &ItemRef) -> Vec<(ItemRef, CandidatePath)> {
    let aliases = chain_cache::executor_aliases(engine);
    let targets = aliases.targets(item.id.as_str()).filter(|_| item.item_type == ItemType::Tool);
    let targets = targets.filter_map(|id| Some(ItemRef::new(ItemType::Tool, ItemId::new(id).ok()?)));
    let mut found = Vec::new();
    for other in std::iter::once(item.clone()).chain(targets) {
        let places =
            engine.workspace.spaces.candidate_paths(&other).into_iter().filter(|place| place.is_found);
        found.extend(places.map(|place| (other.clone(), place)));
    }
    found
}

/// Refuses a bundle with items that would be refused once they are installed: there its signer alone vouches for them,
/// beside the keys that the user trusts.
fn check_item_signers(
    engine: &Engine,
    target: &InstallTarget,
    report: &verify::BundleReport,
    signer: &ManifestSigner,
) -> Result<()> {
    let space = if target.tier == SpaceTier::User { Space::User } else { Space::Project };
    let keys = &engine.workspace.keys;
    let is_refused = |key: &&Fingerprint| **key != signer.fingerprint && keys.find(key, &space).is_none();
    let refused: Vec<String> =
        report.item_signers.iter().filter(is_refused).map(ToString::to_string).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let message = format!(
        "`{}` is signed by {}, but items of it by {}, which you do not trust",
        report.bundle_id,
        signer.fingerprint,
        refused.join(", ")
    );
    Err(Error::new(Code::UnknownSigner, message)
        .detail("fingerprints", refused)
        .hint("its maker reads these items, signs them with their own key, and makes the bundle again")
        .hint("or, if you know the owner of that key: rye keys trust FILE"))
}

/// The refusal of a bundle that is not what its manifest says: every file that is not.
fn verification_error(report: &verify::BundleReport) -> Error {
    let id = &report.bundle_id;
    let reason = match &report.manifest_error {
        Some(reason) => format!("its manifest: {}", one_line(reason)),
        None => format!(
            "{} tampered, {} missing, {} not listed",
            report.files_tampered.len(),
            report.files_missing.len(),
            report.files_unlisted.len()
        ),
    };
    let tampered = report.files_tampered.iter().map(|path| {
        let reason = report.reasons.get(path.as_str()).map_or("it was changed", String::as_str);
        format!("{path}: {reason}")
    });
    let missing = report.files_missing.iter().map(|path| format!("{path}: it is missing"));
    let unlisted =
        report.files_unlisted.iter().map(|path| format!("{}: not listed in the manifest", one_line(path)));
    let problems: Vec<_> = tampered
        .chain(missing)
        .chain(unlisted)
        .take(MAX_NAMED_FILES)
        .map(|message| serde_json::json!({ "message": message }))
        .collect();
    Error::new(Code::BundleFailed, format!("`{id}` is not what its maker signed: {reason}"))
        .detail("problems", problems)
        .hint("nothing was installed; get the bundle again from its maker")
}
