//! Where lockfiles lie: project, user, system. Which of them count for a tool, and which one is written.

pub(crate) mod other_versions;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lillux::lockfile::{self, Lockfile};
use rye_exec::lock::ResolvedTool;
use rye_item::ItemId;
use rye_item::space::SpaceTier;
use rye_space::bundle::{Bundle, BundleOrigin, BundleTrust};
use rye_space::file_stamp::{MonitoredSet, WatchSet};
use rye_space::{AI_FOLDER, BundlePath};
use serde_json::Value;

use super::{file_name, system};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The folder of lockfiles, below a project, below a space's `.ai`.
pub(crate) const LOCKFILES_FOLDER: &str = "lockfiles";
/// Deeper than an id can be.
const MAX_DEPTH: usize = 64;
/// More lockfiles than any user has.
const MAX_LOCKFILES: usize = 20_000;

/// A folder of lockfiles; nothing in it is followed out of `root`.
#[derive(Clone, Debug)]
pub(crate) struct LockfileDir {
    /// The tier it is of.
    pub(crate) tier: SpaceTier,
    /// The folder that must not be left.
    root: PathBuf,
    /// Where the lockfiles are below it.
    relative_folder: &'static str,
    /// The files of the bundle that ships it, from `.ai/` on: no others exist. `None` where every file does.
    manifest_files: Option<Arc<HashSet<String>>>,
}

impl LockfileDir {
    fn path(&self, name: &Path) -> PathBuf {
        self.root.join(self.relative(name))
    }

    fn relative(&self, name: &Path) -> PathBuf {
        Path::new(self.relative_folder).join(name)
    }

    fn is_listed(&self, name: &Path) -> bool {
        let path = || format!("{AI_FOLDER}/{}", self.relative(name).display());
        self.manifest_files.as_ref().is_none_or(|listed| listed.contains(&path()))
    }

    /// Whether there is a lockfile of a tool here, of whichever version.
    pub(crate) fn has_lockfile_of(&self, id: &ItemId) -> bool {
        let names = self.path(Path::new(id.as_str()));
        let (Some(folder), Some(name)) = (names.parent(), names.file_name().and_then(|name| name.to_str()))
        else {
            return false;
        };
        let start = format!("{name}@");
        let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
        entries
            .into_iter()
            .any(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&start)))
    }

    fn read(&self, name: &Path) -> Result<Option<Lockfile>> {
        if !self.is_listed(name) {
            return Ok(None);
        }
        Ok(lockfile::read(&self.root, &self.relative(name))?)
    }

    /// Creates the lockfile and returns its path; `None` if it exists already.
    pub(crate) fn write_new(&self, name: &Path, lockfile: &Lockfile) -> Result<Option<PathBuf>> {
        let mode = lillux::file::FileMode::Preserve;
        match lockfile::write_new(&self.root, &self.relative(name), lockfile, mode) {
            Ok(path) => Ok(Some(path)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the lockfile.
    pub(crate) fn remove(&self, name: &Path) -> Result<()> {
        Ok(lillux::file::remove_beneath(&self.root, &self.relative(name))?)
    }

    /// Makes or replaces the lockfile.
    pub(crate) fn write(&self, name: &Path, lockfile: &Lockfile) -> Result<PathBuf> {
        Ok(lockfile::write(&self.root, &self.relative(name), lockfile)?)
    }
}

/// A lockfile that counts for a tool.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveLockfile {
    /// Where it is from.
    pub(crate) tier: SpaceTier,
    /// The file.
    pub(crate) path: PathBuf,
    /// What it says.
    pub(crate) lockfile: Lockfile,
}

/// A place for a lockfile, and what is there now.
#[derive(Debug)]
pub(crate) struct LockfileSlot {
    /// The folder.
    pub(crate) dir: LockfileDir,
    /// The name below it.
    pub(crate) name: PathBuf,
    /// What is there; an error when it is damaged.
    pub(crate) current: Result<Option<Lockfile>>,
}

impl LockfileSlot {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path(&self.name)
    }
}

/// The project's own lockfiles, if there is a project.
pub(crate) fn project_dir(engine: &Engine) -> Option<LockfileDir> {
    let roots = &engine.workspace.roots;
    let root = roots.project.clone().filter(|_| roots.project_ai().is_some_and(|ai| ai.is_dir()))?;
    Some(LockfileDir {
        tier: SpaceTier::Project,
        root,
        relative_folder: LOCKFILES_FOLDER,
        manifest_files: None,
    })
}

/// The user's lockfiles.
pub(crate) fn user_dir(engine: &Engine) -> LockfileDir {
    LockfileDir {
        tier: SpaceTier::User,
        root: engine.workspace.roots.user_ai(),
        relative_folder: LOCKFILES_FOLDER,
        manifest_files: None,
    }
}

/// The lockfiles of bundles: those this binary made for its own, and those that approved folders ship.
pub(crate) fn system_dirs(engine: &Engine) -> Vec<LockfileDir> {
    let bundles = engine.workspace.spaces.bundles().iter();
    let approved = bundles.filter(|bundle| bundle.trust == BundleTrust::Approved);
    let bundled = approved.filter_map(|bundle| {
        let listed = bundle.listed_files.clone();
        Some(LockfileDir {
            tier: SpaceTier::System,
            root: bundle.folder()?,
            relative_folder: LOCKFILES_FOLDER,
            manifest_files: listed,
        })
    });
    let own = system::ensure(engine).map(|root| LockfileDir {
        tier: SpaceTier::System,
        root,
        relative_folder: "",
        manifest_files: None,
    });
    own.into_iter().chain(bundled).collect()
}

/// The project as lockfiles of user scope name it.
pub(crate) fn current_project(engine: &Engine) -> Option<String> {
    let project = engine.workspace.roots.project.as_ref()?;
    Some(rye_space::roots::canonicalize_existing(project).to_string_lossy().into_owned())
}

/// Where new lockfiles are written, as the settings say; without a project there is only user scope.
pub(crate) fn write_scope(engine: &Engine) -> SpaceTier {
    let setting = engine.workspace.settings.get("lockfiles.scope").and_then(Value::as_str);
    if setting == Some("project") && project_dir(engine).is_some() {
        SpaceTier::Project
    } else {
        SpaceTier::User
    }
}

/// The project a lockfile of user scope belongs to, if the tool is a project's.
pub(crate) fn owner_project(engine: &Engine, resolved: &ResolvedTool) -> Option<String> {
    current_project(engine).filter(|_| resolved.space() == "project")
}

/// What marks the tools of user and system space, where their plain name is taken by a project's.
fn user_suffix(engine: &Engine) -> String {
    rye_space::roots::canonicalize_existing(&engine.workspace.roots.user).to_string_lossy().into_owned()
}

fn tool_id(resolved: &ResolvedTool) -> Result<ItemId> {
    Ok(ItemId::new(resolved.root.tool_id.as_str())?)
}

/// The space of the tool a lockfile pins.
pub(crate) fn pinned_space(lockfile: &Lockfile) -> &str {
    lockfile.resolved_chain.first().map_or("", |entry| entry.space.as_str())
}

/// Whether it pins a tool of user or system space that the project's tool now hides. Such a pin is the user's own: the
/// project's tool gets a lockfile beside it, never in its place.
pub(crate) fn is_shadowed_pin(lockfile: &Lockfile, resolved: &ResolvedTool) -> bool {
    lockfile.project.is_none() && pinned_space(lockfile) != "project" && resolved.space() == "project"
}

/// More tools than are run in one process.
const MAX_CACHED_TOOLS: usize = 1024;

/// The lockfiles found for tools that were run before, by id, version and space, and what they were found by looking at.
#[derive(Default)]
pub(crate) struct LockfileCache(Mutex<HashMap<[String; 3], (MonitoredSet, EffectiveLockfiles)>>);

/// Lockfiles that count for a tool.
type EffectiveLockfiles = Arc<FoundLockfiles>;

/// The lockfiles that count for a tool, project first, then user, then system.
#[derive(Debug)]
pub(crate) struct FoundLockfiles {
    /// Those of its version.
    all: Vec<EffectiveLockfile>,
    /// Pins of other versions that this one does not run beside: of newer ones, damaged ones included, and of a tool of the
    /// user's that this one hides.
    pub(crate) other_versions: Vec<ScannedLockfile>,
}

impl FoundLockfiles {
    /// Those of its version.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, EffectiveLockfile> {
        self.all.iter()
    }
}

impl LockfileCache {
    /// Forgets everything: bundles or settings have changed.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Every lockfile that counts for the tool, project first, then user, then system.
///
/// # Errors
/// When one of them is damaged or pins another tool: that is never the same as absent.
pub(crate) fn effective_lockfiles(engine: &Engine, resolved: &ResolvedTool) -> Result<EffectiveLockfiles> {
    let root = &resolved.root;
    let key = [root.tool_id.clone(), root.version.clone(), resolved.space().to_owned()];
    let mut cache = engine.lockfile_cache.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((watch_set, found)) = cache.get(&key)
        && watch_set.is_unchanged()
    {
        return Ok(Arc::clone(found));
    }
    cache.remove(&key);
    // Making the bundles' lockfiles comes back here.
    drop(cache);
    let started_at = engine.unix_nanoseconds();
    let mut watch_set = WatchSet::default();
    let found = Arc::new(find_lockfiles(engine, resolved, &mut watch_set)?);
    if watch_set.is_settled(started_at) {
        let mut cache = engine.lockfile_cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED_TOOLS {
            cache.clear();
        }
        cache.insert(key, (MonitoredSet::new(watch_set), Arc::clone(&found)));
    }
    Ok(found)
}

/// Looks for them, each place watched before it is looked at.
fn find_lockfiles(
    engine: &Engine,
    resolved: &ResolvedTool,
    watch_set: &mut WatchSet,
) -> Result<FoundLockfiles> {
    let id = tool_id(resolved)?;
    let plain = file_name::lockfile_path(&id, &resolved.root.version, None)?;
    let mut all = Vec::new();
    // Where there is no `.ai` there is no project.
    engine.workspace.roots.project_ai().into_iter().for_each(|ai| watch_set.add_folder(ai));
    if let Some(dir) = project_dir(engine) {
        all.extend(read_for_tool(&dir, &plain, resolved, watch_set)?);
    }
    all.extend(user_lockfiles(engine, &id, &plain, resolved, watch_set)?);
    if let Some((bundle, dir)) = bundle_dir(engine, resolved.space()) {
        watch_set.add(dir.path(&plain));
        if let Some(lockfile) = read_bundled(engine, bundle, &dir, &plain)? {
            let path = dir.path(&plain);
            let lockfile = check_tool_id(&path, lockfile, resolved)?;
            all.push(EffectiveLockfile { tier: SpaceTier::System, path, lockfile });
        }
    }
    let other_versions = other_versions::find(engine, resolved, &all, watch_set)?;
    Ok(FoundLockfiles { all, other_versions })
}

/// A lockfile that a bundle ships: those inside the binary are made by it; a folder's signed manifest lists it. What that
/// does not list does not exist.
///
/// # Errors
/// When it is damaged, or the manifest lists other bytes.
fn read_bundled(
    engine: &Engine,
    bundle: &Bundle,
    dir: &LockfileDir,
    name: &Path,
) -> Result<Option<Lockfile>> {
    if matches!(bundle.origin, BundleOrigin::Embedded(_)) {
        return dir.read(name);
    }
    let mut pins = engine.workspace.approvals.pins_of(&bundle.id);
    let file = bundle.manifest.as_ref().filter(|file| pins.any(|pin| file.is_signed_by(&pin.key)));
    let manifest = file.and_then(|file| file.manifest().ok());
    let listed = BundlePath::new(format!("{AI_FOLDER}/{LOCKFILES_FOLDER}/{}", name.display())).ok();
    let Some((listed, manifest)) = listed.zip(manifest) else { return Ok(None) };
    let Some(entry) = manifest.files.get(&listed) else { return Ok(None) };
    let path = dir.path(name);
    let bytes = match lillux::file::read_beneath(&dir.root, &dir.relative(name), lockfile::MAX_LOCKFILE_BYTES)
    {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(Error::read(&error)),
    };
    let extractors = engine.workspace.spaces.extractors();
    if let Err(why) = rye_bundle::object::compare_entry(&listed, entry, &bytes, extractors) {
        let message = format!("the lockfile `{}` is damaged: {why}", path.display());
        return Err(Error::new(Code::LockCorrupt, message)
            .detail("path", path.display().to_string())
            .hint(format!("get the bundle again from its maker: rye bundle verify {}", bundle.id)));
    }
    Ok(Some(lockfile::parse(&path, &bytes)?))
}

/// The lockfiles that go with a bundle. They speak for its own tools alone: to put another tool over one of them is
/// what spaces are for.
fn bundle_dir<'a>(engine: &'a Engine, space: &str) -> Option<(&'a Bundle, LockfileDir)> {
    let id = space.strip_prefix("system:")?;
    let bundle = engine.workspace.spaces.bundles().iter().find(|bundle| bundle.id.as_str() == id)?;
    let (root, below, listed) = match (&bundle.origin, &bundle.trust) {
        (BundleOrigin::Embedded(_), _) => (system::ensure(engine)?, "", None),
        (BundleOrigin::Folder(_), BundleTrust::Approved) => {
            (bundle.folder()?, LOCKFILES_FOLDER, bundle.listed_files.clone())
        }
        (BundleOrigin::Folder(_), BundleTrust::Embedded | BundleTrust::NotApproved) => return None,
    };
    Some((
        bundle,
        LockfileDir { tier: SpaceTier::System, root, relative_folder: below, manifest_files: listed },
    ))
}

fn read_for_tool(
    dir: &LockfileDir,
    name: &Path,
    resolved: &ResolvedTool,
    watch_set: &mut WatchSet,
) -> Result<Option<EffectiveLockfile>> {
    watch_set.add(dir.path(name));
    let Some(lockfile) = dir.read(name)? else {
        return Ok(None);
    };
    let path = dir.path(name);
    let lockfile = check_tool_id(&path, lockfile, resolved)?;
    Ok(Some(EffectiveLockfile { tier: dir.tier, path, lockfile }))
}

/// Refuses a lockfile that pins another tool than the one it is looked up for.
fn check_tool_id(path: &Path, lockfile: Lockfile, resolved: &ResolvedTool) -> Result<Lockfile> {
    if lockfile.root.tool_id == resolved.root.tool_id {
        return Ok(lockfile);
    }
    let pinned = rye_item::text::one_line(&lockfile.root.tool_id);
    let message = format!("the lockfile `{}` is damaged: it pins `{pinned}`", path.display());
    Err(Error::new(Code::LockCorrupt, message)
        .detail("path", path.display().to_string())
        .detail("field", "root.tool_id")
        .hint(format!("if the tool is correct as it is now: rye lock update {}", resolved.root.tool_id)))
}

/// The user's lockfiles that count here: not those of other projects' tools, and not the pin of a hidden tool once
/// the user has pinned the one that hides it.
fn user_lockfiles(
    engine: &Engine,
    id: &ItemId,
    plain: &Path,
    resolved: &ResolvedTool,
    watch_set: &mut WatchSet,
) -> Result<Vec<EffectiveLockfile>> {
    let dir = user_dir(engine);
    let this_project = current_project(engine);
    let mut read_suffixed = |suffix: &str| -> Result<Option<EffectiveLockfile>> {
        let name = file_name::lockfile_path(id, &resolved.root.version, Some(suffix))?;
        let found = read_for_tool(&dir, &name, resolved, watch_set)?;
        // `1.0.0+0badcafe` may be another version's plain name.
        Ok(found.filter(|found| found.lockfile.root.version == resolved.root.version))
    };
    let of_project = this_project.as_deref().map(&mut read_suffixed).transpose()?.flatten();
    let of_project = of_project.filter(|found| found.lockfile.project == this_project);
    let of_user = read_suffixed(&user_suffix(engine))?.filter(|found| found.lockfile.project.is_none());
    let is_pinned_here = of_project.is_some();
    let is_effective = |found: &EffectiveLockfile| match &found.lockfile.project {
        Some(project) => Some(project) == this_project.as_ref(),
        None => !(is_pinned_here && is_shadowed_pin(&found.lockfile, resolved)),
    };
    let plain = read_for_tool(&dir, plain, resolved, watch_set)?;
    Ok(of_project.into_iter().chain([plain, of_user].into_iter().flatten().filter(is_effective)).collect())
}

/// The place of a tool's lockfile in project or user scope.
///
/// # Errors
/// When there is no project, or the version cannot be part of a name.
pub(crate) fn slot(engine: &Engine, resolved: &ResolvedTool, scope: SpaceTier) -> Result<LockfileSlot> {
    let id = tool_id(resolved)?;
    let name = file_name::lockfile_path(&id, &resolved.root.version, None)?;
    let dir = match scope {
        SpaceTier::Project => project_dir(engine).ok_or_else(|| {
            Error::new(Code::InvalidArgument, "not inside a project that could hold a lockfile")
                .hint("give it with --project, or write to user scope")
        })?,
        SpaceTier::User => user_dir(engine),
        SpaceTier::System => {
            return Err(Error::new(Code::SystemImmutable, "system lockfiles cannot be changed")
                .hint("pin the tool in user or project scope: rye lock update ID --scope user"));
        }
    };
    let current = dir.read(&name);
    if scope == SpaceTier::Project {
        return Ok(LockfileSlot { dir, name, current });
    }
    let this_project = current_project(engine);
    let is_own = match &current {
        // What pins another tool than its name says is damaged, whatever project it names.
        Ok(Some(lockfile)) if lockfile.root.tool_id != resolved.root.tool_id => true,
        Ok(Some(lockfile)) => match &lockfile.project {
            Some(project) => Some(project) == this_project.as_ref(),
            None => !is_shadowed_pin(lockfile, resolved),
        },
        Ok(None) | Err(_) => true,
    };
    let suffix = owner_project(engine, resolved).unwrap_or_else(|| user_suffix(engine));
    let suffixed = file_name::lockfile_path(&id, &resolved.root.version, Some(&suffix))?;
    let second = dir.read(&suffixed);
    let is_suffixed_in_use = matches!(current, Ok(None))
        && match &second {
            // `1.0.0+0badcafe` may be another version's plain name.
            Ok(Some(lockfile)) => lockfile.root.version == resolved.root.version,
            Ok(None) => false,
            Err(_) => true,
        };
    if is_own && !is_suffixed_in_use {
        return Ok(LockfileSlot { dir, name, current });
    }
    Ok(LockfileSlot { dir, name: suffixed, current: second })
}

/// Every place of user scope that is looked at for the tool: its plain name, the project's, the user's.
///
/// # Errors
/// When the version cannot be part of a name.
pub(crate) fn user_slots(engine: &Engine, resolved: &ResolvedTool) -> Result<Vec<LockfileSlot>> {
    let (id, dir) = (tool_id(resolved)?, user_dir(engine));
    let suffixes = [None, current_project(engine), Some(user_suffix(engine))];
    // The plain name has no mark; a missing project has no place.
    let suffixes = suffixes.into_iter().enumerate().filter(|(index, mark)| *index == 0 || mark.is_some());
    let slot = |mark: Option<String>| {
        let name = file_name::lockfile_path(&id, &resolved.root.version, mark.as_deref())?;
        let current = dir.read(&name).and_then(|found| match found {
            Some(lockfile) => check_tool_id(&dir.path(&name), lockfile, resolved).map(Some),
            None => Ok(None),
        });
        Ok(LockfileSlot { dir: dir.clone(), name, current })
    };
    suffixes.map(|(_, mark)| slot(mark)).collect()
}

/// Lockfiles of user scope that pin this version of the tool for a project whose folder is gone: removed, or moved.
pub(crate) fn orphaned_lockfiles(engine: &Engine, resolved: &ResolvedTool) -> Vec<EffectiveLockfile> {
    let prefix = format!("{}@{}", resolved.root.tool_id, resolved.root.version);
    let is_named = |name: &str| {
        let rest =
            name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(file_name::LOCKFILE_EXTENSION));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    };
    let is_orphaned = |lockfile: &Lockfile| {
        let project = lockfile.project.as_deref().map(Path::new);
        project.is_some_and(|project| !project.is_dir())
            && (&lockfile.root.tool_id, &lockfile.root.version)
                == (&resolved.root.tool_id, &resolved.root.version)
    };
    let scanned = scan_matching(&user_dir(engine), &is_named);
    scanned
        .into_iter()
        .filter_map(|scanned| Some((scanned.path, scanned.lockfile.ok()?)))
        .filter(|(_, lockfile)| is_orphaned(lockfile))
        .map(|(path, lockfile)| EffectiveLockfile { tier: SpaceTier::User, path, lockfile })
        .collect()
}

/// A lockfile as a folder holds it, whether it can be read or not.
#[derive(Debug)]
pub(crate) struct ScannedLockfile {
    /// Where it is from.
    pub(crate) tier: SpaceTier,
    /// The file.
    pub(crate) path: PathBuf,
    /// Its name below its folder, with `/`.
    pub(crate) name: String,
    /// What it says.
    pub(crate) lockfile: Result<Lockfile>,
}

/// Every lockfile of a folder, by name. Linked folders are not entered.
pub(crate) fn scan(dir: &LockfileDir) -> Vec<ScannedLockfile> {
    scan_matching(dir, &|_| true)
}

/// The lockfiles of a folder whose name below it is wanted.
pub(crate) fn scan_matching(dir: &LockfileDir, is_match: &dyn Fn(&str) -> bool) -> Vec<ScannedLockfile> {
    let mut names = Vec::new();
    let mut pending = vec![(dir.root.join(dir.relative_folder), String::new(), 0)];
    while let Some((folder, prefix, depth)) = pending.pop() {
        if std::fs::symlink_metadata(&folder).is_ok_and(|metadata| metadata.is_symlink()) {
            continue;
        }
        // A folder that is missing or not readable has nothing to list.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(file_name) = entry.file_name().into_string() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            if file_name.starts_with('.') || names.len() >= MAX_LOCKFILES {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEPTH {
                pending.push((entry.path(), format!("{prefix}{file_name}/"), depth + 1));
            } else if !kind.is_dir() && file_name.ends_with(file_name::LOCKFILE_EXTENSION) {
                names.push(format!("{prefix}{file_name}"));
            }
        }
    }
    names.retain(|name| is_match(name) && dir.is_listed(Path::new(name)));
    names.sort();
    let read = |name: String| {
        let relative = Path::new(&name);
        let lockfile = dir.read(relative).and_then(|lockfile| {
            lockfile
                .ok_or_else(|| Error::new(Code::LockCorrupt, "the lockfile was removed while it was read"))
        });
        ScannedLockfile { tier: dir.tier, path: dir.path(relative), lockfile, name }
    };
    names.into_iter().map(read).collect()
}
