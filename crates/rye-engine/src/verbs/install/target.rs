//! The space a bundle is installed into, and what is installed there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::dir::{Dir, DirEntryKind};
use rye_bundle::archive::{self, ArchiveLimits};
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::contents;
use rye_bundle::install::plan::{DuplicateItem, PlanInputs};
use rye_bundle::install::{FileState, InstallState, PathLookup, TargetDir, generations};
use rye_bundle::manifest::MAX_MANIFEST_BYTES;
use rye_bundle::verify::{self, BundleScope, VerifyContext};
use rye_bundle::{BundleLockfile, BundlePath, Manifest, ManifestFile, object};
use rye_exec::chain::Aliases;
use rye_item::space::SpaceTier;
use rye_item::text::one_line;
use rye_item::{BundleId, ExtractorSet, ItemType};
use rye_space::bundle::BundleOrigin;
use rye_space::installed::{BUNDLES_FOLDER, LOCKFILE_NAME, SIGNER_FILE};
use rye_space::roots;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The largest installed file that is compared.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_BUNDLES: usize = 10_000;

/// A space that can be written.
pub(super) struct InstallTarget {
    pub(super) tier: SpaceTier,
    pub(super) ai: PathBuf,
    pub(super) dir: TargetDir,
    pub(super) state: InstallState,
}

/// A bundle that is installed.
pub(super) struct InstalledBundle {
    pub(super) lock: BundleLockfile,
    /// Its manifest, if it can be read and is the one the lockfile was written for.
    pub(super) manifest: Option<Manifest>,
}

impl InstallTarget {
    /// The space `tier`.
    pub(super) fn open(engine: &Engine, tier: SpaceTier) -> Result<Self> {
        let roots = &engine.workspace.roots;
        let ai = match tier {
            SpaceTier::Project => roots.project_ai().filter(|ai| ai.is_dir()).ok_or_else(|| {
                Error::new(Code::PathNotFound, "not inside a project")
                    .hint("make one with rye init, or install for yourself: --space user")
            })?,
            SpaceTier::User => roots.user_ai(),
            SpaceTier::System => {
                return Err(Error::new(Code::SystemImmutable, "system space cannot be written")
                    .hint("install into --space project or --space user"));
            }
        };
        if !ai.is_dir() {
            return Err(
                Error::new(Code::PathNotFound, "you have no user space yet").hint("rye init makes one")
            );
        }
        let dir = TargetDir::open(&ai)?;
        let state = InstallState::for_space(&roots.user_ai(), &roots::canonicalize_existing(&ai));
        Ok(Self { tier, ai, dir, state })
    }

    /// What is installed under this id.
    ///
    /// # Errors
    /// When its lockfile is there, but is none.
    pub(super) fn installed_bundle(&self, id: &BundleId) -> Result<Option<InstalledBundle>> {
        let damaged = |reason: &str| {
            Error::new(
                Code::DamagedInstall,
                format!("the lockfile of `{id}` in {} space cannot be used: {}", self.tier, one_line(reason)),
            )
            .detail("path", self.ai.join(BUNDLES_FOLDER).join(id.as_str()).join(LOCKFILE_NAME).display().to_string())
            .hint("restore it from version control; or remove that file, and install the bundle again with --force")
        };
        let bytes = match self.dir.read(&lock_path(id)?, MAX_MANIFEST_BYTES)? {
            PathLookup::Absent => return Ok(None),
            PathLookup::Found(bytes) => bytes,
            PathLookup::Other => return Err(damaged("it is not a regular file")),
        };
        let lock = BundleLockfile::parse(&bytes).map_err(|reason| damaged(&reason))?;
        if lock.bundle_id != *id {
            return Err(damaged(&format!("it is that of `{}`", lock.bundle_id)));
        }
        let manifest = match self.dir.read(&manifest_path(id)?, MAX_MANIFEST_BYTES)? {
            PathLookup::Found(bytes) if Digest::of(&bytes) == lock.manifest_hash => {
                ManifestFile::new(id, bytes).manifest().ok().cloned()
            }
            PathLookup::Found(_) | PathLookup::Absent | PathLookup::Other => None,
        };
        Ok(Some(InstalledBundle { lock, manifest }))
    }

    /// Everything a plan is made from. Items are known by the extractors, and executors by other names too.
    pub(super) fn plan_inputs(
        &self,
        id: &BundleId,
        new: BTreeMap<BundlePath, Digest>,
        previous: Option<&InstalledBundle>,
        (extractors, aliases): (&ExtractorSet, &Aliases),
    ) -> Result<PlanInputs> {
        let mut inputs =
            PlanInputs { new, owned_by_others: self.claimed_files(id)?, ..PlanInputs::default() };
        for path in previous.iter().flat_map(|previous| &previous.lock.files) {
            let manifest = previous.and_then(|previous| previous.manifest.as_ref());
            let entry = manifest.and_then(|manifest| manifest.files.get(path));
            let (present, is_unmodified) = match self.dir.read(path, MAX_FILE_BYTES)? {
                PathLookup::Absent => (FileState::Absent, true),
                PathLookup::Other => (FileState::Other, false),
                PathLookup::Found(bytes) => {
                    let is_same = entry
                        .is_some_and(|entry| object::compare_entry(path, entry, &bytes, extractors).is_ok());
                    (FileState::File(Digest::of(&bytes)), is_same)
                }
            };
            inputs.present.insert(path.clone(), present);
            inputs.installed.insert(path.clone(), is_unmodified);
        }
        inputs.found.extend(previous.iter().flat_map(|previous| &previous.lock.found).cloned());
        for path in inputs.new.keys() {
            if !inputs.present.contains_key(path) {
                inputs.present.insert(path.clone(), self.dir.file_state(path, MAX_FILE_BYTES)?);
            }
        }
        inputs.duplicate_items = self.files_with_same_id(&inputs.new, extractors, aliases)?;
        Ok(inputs)
    }

    /// Files of the space that have the id of a new item, but another extension; and executors that the new item's id is
    /// another name of.
    fn files_with_same_id(
        &self,
        new: &BTreeMap<BundlePath, Digest>,
        extractors: &ExtractorSet,
        aliases: &Aliases,
    ) -> Result<BTreeMap<BundlePath, DuplicateItem>> {
        let mut found = BTreeMap::new();
        for path in new.keys() {
            let Some(item_type) = object::item_type(path, extractors) else { continue };
            let id = object::object_name(path).1;
            let names = aliases.targets(id).filter(|_| item_type == ItemType::Tool);
            let ids: Vec<&str> = std::iter::once(id).chain(names).collect();
            let extensions = &extractors.for_type(item_type).extensions;
            for (id, extension) in ids.iter().flat_map(|id| extensions.iter().map(move |end| (id, end))) {
                let other = file_path(format!(".ai/{}/{id}{extension}", item_type.folder()))?;
                if new.contains_key(&other) {
                    continue;
                }
                let present = self.dir.file_state(&other, MAX_FILE_BYTES)?;
                if !matches!(present, FileState::Absent) {
                    found.insert(other, DuplicateItem { new: path.clone(), present });
                }
            }
        }
        Ok(found)
    }

    /// What the installed version asked for as its maker made it; nothing if none is installed. `scratch` is made.
    pub(super) fn installed_capabilities(
        &self,
        previous: Option<&InstalledBundle>,
        context: VerifyContext<'_>,
        scratch: &Path,
    ) -> Result<BundleCapabilities> {
        let Some(previous) = previous else {
            return Ok(BundleCapabilities::default());
        };
        let id = &previous.lock.bundle_id;
        let archive = generations::archive_path(&self.state, id, &previous.lock.manifest_hash);
        // What is kept may be gone; what lies in the space then has to do, without what was changed there.
        let folder = match archive::unpack(&archive, &ArchiveLimits::default(), scratch) {
            Ok(_) => scratch.to_owned(),
            Err(_) => self.ai.parent().unwrap_or(&self.ai).to_owned(),
        };
        let Ok(manifest) = ManifestFile::read(&folder.join(rye_space::AI_FOLDER), id) else {
            return Ok(BundleCapabilities::default());
        };
        let origin = BundleOrigin::Folder(folder);
        let subject = verify::VerifyTarget {
            origin: &origin,
            manifest: &manifest,
            identities: &[],
            scope: BundleScope::Installed,
        };
        Ok(BundleCapabilities::from_files(&contents::read_all(subject, context)))
    }

    /// Which files other installed bundles brought, by name without case.
    fn claimed_files(&self, id: &BundleId) -> Result<BTreeMap<String, BundleId>> {
        let mut claimed = BTreeMap::new();
        for other in self.installed_ids()?.into_iter().filter(|other| other != id) {
            // A lockfile that cannot be read claims nothing: whatever it listed is then simply in the way.
            let Ok(Some(previous)) = self.installed_bundle(&other) else { continue };
            claimed.extend(previous.lock.files.iter().map(|path| (path.case_folded(), other.clone())));
        }
        Ok(claimed)
    }

    /// The bundles that have a folder in the space.
    pub(super) fn installed_ids(&self) -> Result<Vec<BundleId>> {
        let folder = Dir::open(&self.ai).map_err(rye_bundle::install::InstallError::from)?;
        let Ok(folder) = folder.open_child_dir(OsStr::new(BUNDLES_FOLDER)) else {
            return Ok(Vec::new());
        };
        let (entries, _) = folder.entries(MAX_BUNDLES).map_err(rye_bundle::install::InstallError::from)?;
        let names = entries.iter().filter(|entry| entry.kind == DirEntryKind::Dir);
        Ok(names.filter_map(|entry| BundleId::new(entry.name.to_str()?).ok()).collect())
    }

    /// What stands at `path` now.
    pub(super) fn file_digest(&self, path: &BundlePath) -> Result<Option<Digest>> {
        match self.dir.file_state(path, MAX_FILE_BYTES)? {
            FileState::Absent => Ok(None),
            FileState::File(digest) => Ok(Some(digest)),
            FileState::Other => {
                Err(rye_bundle::install::InstallError::NotAFile { path: path.clone() }.into())
            }
        }
    }
}

/// Where the lockfile of a bundle lies.
pub(super) fn lock_path(id: &BundleId) -> Result<BundlePath> {
    file_path(format!(".ai/{BUNDLES_FOLDER}/{id}/{LOCKFILE_NAME}"))
}

/// Where the document of a bundle's signer lies.
pub(super) fn signer_path(id: &BundleId) -> Result<BundlePath> {
    file_path(format!(".ai/{BUNDLES_FOLDER}/{id}/{SIGNER_FILE}"))
}

/// Where the manifest of a bundle lies.
pub(super) fn manifest_path(id: &BundleId) -> Result<BundlePath> {
    file_path(Manifest::path_for(id))
}

fn file_path(text: String) -> Result<BundlePath> {
    BundlePath::new(text).map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}
