//! The space a bundle is installed into, and what is installed there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::beneath::{Folder, Kind};
use rye_bundle::archive::{self, Limits};
use rye_bundle::capabilities::Capabilities;
use rye_bundle::contents;
use rye_bundle::install::plan::{SameId, Sides};
use rye_bundle::install::{Found, Present, Site, State, generations};
use rye_bundle::manifest::MAX_BYTES;
use rye_bundle::verify::{self, Judge, Scope};
use rye_bundle::{BundleLock, FilePath, Manifest, ManifestFile, object};
use rye_exec::chain::Aliases;
use rye_item::space::Tier;
use rye_item::text::one_line;
use rye_item::{BundleId, ExtractorSet, ItemType};
use rye_space::bundle::Origin;
use rye_space::installed::{BUNDLES_FOLDER, LOCKFILE, SIGNER_FILE};
use rye_space::roots;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The largest installed file that is compared.
const LARGEST_FILE: u64 = 64 << 20;
const MOST_BUNDLES: usize = 10_000;

/// A space that can be written.
pub(super) struct Target {
    pub(super) tier: Tier,
    pub(super) ai: PathBuf,
    pub(super) site: Site,
    pub(super) state: State,
}

/// A bundle that is installed.
pub(super) struct Previous {
    pub(super) lock: BundleLock,
    /// Its manifest, if it can be read and is the one the lockfile was written for.
    pub(super) manifest: Option<Manifest>,
}

impl Target {
    /// The space `tier`.
    pub(super) fn open(engine: &Engine, tier: Tier) -> Result<Self> {
        let roots = &engine.workspace.roots;
        let ai = match tier {
            Tier::Project => roots.project_ai().filter(|ai| ai.is_dir()).ok_or_else(|| {
                Error::new(Code::PathNotFound, "there is no project here")
                    .hint("make one with rye init, or install for yourself: --space user")
            })?,
            Tier::User => roots.user_ai(),
            Tier::System => {
                return Err(Error::new(Code::SystemImmutable, "system space cannot be written")
                    .hint("install into --space project or --space user"));
            }
        };
        if !ai.is_dir() {
            return Err(
                Error::new(Code::PathNotFound, "you have no user space yet").hint("rye init makes one")
            );
        }
        let site = Site::open(&ai)?;
        let state = State::of(&roots.user_ai(), &roots::real(&ai));
        Ok(Self { tier, ai, site, state })
    }

    /// What is installed under this id.
    ///
    /// # Errors
    /// When its lockfile is there, but is none.
    pub(super) fn previous(&self, id: &BundleId) -> Result<Option<Previous>> {
        let damaged = |reason: &str| {
            Error::new(
                Code::DamagedInstall,
                format!("the lockfile of `{id}` in {} space cannot be used: {}", self.tier, one_line(reason)),
            )
            .detail("path", self.ai.join(BUNDLES_FOLDER).join(id.as_str()).join(LOCKFILE).display().to_string())
            .hint("take it back from version control; or remove that file, and install the bundle again with --force")
        };
        let bytes = match self.site.read(&lock_path(id)?, MAX_BYTES)? {
            Found::Nothing => return Ok(None),
            Found::Here(bytes) => bytes,
            Found::Other => return Err(damaged("it is no plain file")),
        };
        let lock = BundleLock::parse(&bytes).map_err(|reason| damaged(&reason))?;
        if lock.bundle_id != *id {
            return Err(damaged(&format!("it is that of `{}`", lock.bundle_id)));
        }
        let manifest = match self.site.read(&manifest_path(id)?, MAX_BYTES)? {
            Found::Here(bytes) if Digest::of(&bytes) == lock.manifest_hash => {
                ManifestFile::new(id, bytes).manifest().ok().cloned()
            }
            Found::Here(_) | Found::Nothing | Found::Other => None,
        };
        Ok(Some(Previous { lock, manifest }))
    }

    /// Everything a plan is made from. Items are known by the extractors, and executors by other names too.
    pub(super) fn sides(
        &self,
        id: &BundleId,
        new: BTreeMap<FilePath, Digest>,
        previous: Option<&Previous>,
        (extractors, aliases): (&ExtractorSet, &Aliases),
    ) -> Result<Sides> {
        let mut sides = Sides { new, claimed: self.claimed(id)?, ..Sides::default() };
        for path in previous.iter().flat_map(|previous| &previous.lock.files) {
            let manifest = previous.and_then(|previous| previous.manifest.as_ref());
            let entry = manifest.and_then(|manifest| manifest.files.get(path));
            let (present, is_as_brought) = match self.site.read(path, LARGEST_FILE)? {
                Found::Nothing => (Present::Absent, true),
                Found::Other => (Present::Other, false),
                Found::Here(bytes) => {
                    let is_same =
                        entry.is_some_and(|entry| object::compare(path, entry, &bytes, extractors).is_ok());
                    (Present::File(Digest::of(&bytes)), is_same)
                }
            };
            sides.present.insert(path.clone(), present);
            sides.brought.insert(path.clone(), is_as_brought);
        }
        for path in sides.new.keys() {
            if !sides.present.contains_key(path) {
                sides.present.insert(path.clone(), self.site.look(path, LARGEST_FILE)?);
            }
        }
        sides.same_id = self.same_ids(&sides.new, extractors, aliases)?;
        Ok(sides)
    }

    /// Files of the space that have the id of a new item, but another extension; and executors that the new item's id is
    /// another name of.
    fn same_ids(
        &self,
        new: &BTreeMap<FilePath, Digest>,
        extractors: &ExtractorSet,
        aliases: &Aliases,
    ) -> Result<BTreeMap<FilePath, SameId>> {
        let mut found = BTreeMap::new();
        for path in new.keys() {
            let Some(item_type) = object::item_type(path, extractors) else { continue };
            let id = object::name(path).1;
            let names = aliases.targets(id).filter(|_| item_type == ItemType::Tool);
            let ids: Vec<&str> = std::iter::once(id).chain(names).collect();
            let extensions = &extractors.of(item_type).extensions;
            for (id, extension) in ids.iter().flat_map(|id| extensions.iter().map(move |end| (id, end))) {
                let other = plain(format!(".ai/{}/{id}{extension}", item_type.folder()))?;
                if new.contains_key(&other) {
                    continue;
                }
                let present = self.site.look(&other, LARGEST_FILE)?;
                if !matches!(present, Present::Absent) {
                    found.insert(other, SameId { new: path.clone(), present });
                }
            }
        }
        Ok(found)
    }

    /// What the installed version asked for as its maker made it; nothing if none is installed. `scratch` is made.
    pub(super) fn capabilities(
        &self,
        previous: Option<&Previous>,
        judge: Judge<'_>,
        scratch: &Path,
    ) -> Result<Capabilities> {
        let Some(previous) = previous else {
            return Ok(Capabilities::default());
        };
        let id = &previous.lock.bundle_id;
        let kept = generations::archive_path(&self.state, id, &previous.lock.manifest_hash);
        // What is kept may be gone; what lies in the space then has to do, without what was changed there.
        let folder = match archive::unpack(&kept, &Limits::default(), scratch) {
            Ok(_) => scratch.to_owned(),
            Err(_) => self.ai.parent().unwrap_or(&self.ai).to_owned(),
        };
        let Ok(manifest) = ManifestFile::read(&folder.join(rye_space::AI_FOLDER), id) else {
            return Ok(Capabilities::default());
        };
        let origin = Origin::Folder(folder);
        let subject =
            verify::Target { origin: &origin, manifest: &manifest, vouchers: &[], scope: Scope::Installed };
        Ok(Capabilities::of(&contents::read_all(subject, judge)))
    }

    /// Which files other installed bundles brought, by name without case.
    fn claimed(&self, id: &BundleId) -> Result<BTreeMap<String, BundleId>> {
        let mut claimed = BTreeMap::new();
        for other in self.installed()?.into_iter().filter(|other| other != id) {
            // A lockfile that cannot be read claims nothing: whatever it listed is then simply in the way.
            let Ok(Some(previous)) = self.previous(&other) else { continue };
            claimed.extend(previous.lock.files.iter().map(|path| (path.folded(), other.clone())));
        }
        Ok(claimed)
    }

    /// The bundles that have a folder in the space.
    fn installed(&self) -> Result<Vec<BundleId>> {
        let folder = Folder::open(&self.ai).map_err(rye_bundle::install::InstallError::from)?;
        let Ok(folder) = folder.child_folder(OsStr::new(BUNDLES_FOLDER)) else {
            return Ok(Vec::new());
        };
        let (entries, _) = folder.entries(MOST_BUNDLES).map_err(rye_bundle::install::InstallError::from)?;
        let names = entries.iter().filter(|entry| entry.kind == Kind::Folder);
        Ok(names.filter_map(|entry| BundleId::new(entry.name.to_str()?).ok()).collect())
    }

    /// What stands at `path` now.
    pub(super) fn digest(&self, path: &FilePath) -> Result<Option<Digest>> {
        match self.site.look(path, LARGEST_FILE)? {
            Present::Absent => Ok(None),
            Present::File(digest) => Ok(Some(digest)),
            Present::Other => Err(rye_bundle::install::InstallError::InTheWay { path: path.clone() }.into()),
        }
    }
}

/// Where the lockfile of a bundle lies.
pub(super) fn lock_path(id: &BundleId) -> Result<FilePath> {
    plain(format!(".ai/{BUNDLES_FOLDER}/{id}/{LOCKFILE}"))
}

/// Where the document of a bundle's signer lies.
pub(super) fn signer_path(id: &BundleId) -> Result<FilePath> {
    plain(format!(".ai/{BUNDLES_FOLDER}/{id}/{SIGNER_FILE}"))
}

/// Where the manifest of a bundle lies.
pub(super) fn manifest_path(id: &BundleId) -> Result<FilePath> {
    plain(Manifest::location(id))
}

fn plain(text: String) -> Result<FilePath> {
    FilePath::new(text).map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}
