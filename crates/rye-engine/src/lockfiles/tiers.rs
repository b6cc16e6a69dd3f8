//! Where lockfiles lie: project, user, system. Which of them count for a tool, and which one is written.

pub(crate) mod newer;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lillux::lockfile::{self, Lockfile};
use rye_exec::lock::Resolved;
use rye_item::ItemId;
use rye_item::space::Tier;
use rye_space::bundle::{Bundle, Origin, Standing};
use rye_space::stamp::Watched;
use rye_space::{AI_FOLDER, FilePath};
use serde_json::Value;

use super::{name, system};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The folder of lockfiles, below a project, below a space's `.ai`.
pub(crate) const FOLDER: &str = "lockfiles";
/// Deeper than an id can be.
const MAX_DEPTH: usize = 64;
/// More lockfiles than anybody has.
const MAX_FILES: usize = 20_000;

/// A folder of lockfiles; nothing in it is followed out of `root`.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    /// The tier it is of.
    pub(crate) tier: Tier,
    /// The folder that must not be left.
    root: PathBuf,
    /// Where the lockfiles are below it.
    below: &'static str,
    /// The files of the bundle that ships it, from `.ai/` on: no others exist. `None` where every file does.
    listed: Option<Arc<HashSet<String>>>,
}

impl Shelf {
    fn path(&self, name: &Path) -> PathBuf {
        self.root.join(self.relative(name))
    }

    fn relative(&self, name: &Path) -> PathBuf {
        Path::new(self.below).join(name)
    }

    fn has(&self, name: &Path) -> bool {
        let path = || format!("{AI_FOLDER}/{}", self.relative(name).display());
        self.listed.as_ref().is_none_or(|listed| listed.contains(&path()))
    }

    fn read(&self, name: &Path) -> Result<Option<Lockfile>> {
        if !self.has(name) {
            return Ok(None);
        }
        Ok(lockfile::read(&self.root, &self.relative(name))?)
    }

    /// Makes the lockfile and gives its path; `None` when somebody was first.
    pub(crate) fn write_new(&self, name: &Path, lockfile: &Lockfile) -> Result<Option<PathBuf>> {
        let mode = lillux::file::Mode::Kept;
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
pub(crate) struct Found {
    /// Where it is from.
    pub(crate) tier: Tier,
    /// The file.
    pub(crate) path: PathBuf,
    /// What it says.
    pub(crate) lockfile: Lockfile,
}

/// A place for a lockfile, and what is there now.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The folder.
    pub(crate) shelf: Shelf,
    /// The name below it.
    pub(crate) name: PathBuf,
    /// What is there; an error when it is damaged.
    pub(crate) current: Result<Option<Lockfile>>,
}

impl Slot {
    pub(crate) fn path(&self) -> PathBuf {
        self.shelf.path(&self.name)
    }
}

/// The project's own lockfiles, if there is a project.
pub(crate) fn project_shelf(engine: &Engine) -> Option<Shelf> {
    let roots = &engine.workspace.roots;
    let root = roots.project.clone().filter(|_| roots.project_ai().is_some_and(|ai| ai.is_dir()))?;
    Some(Shelf { tier: Tier::Project, root, below: FOLDER, listed: None })
}

/// The user's lockfiles.
pub(crate) fn user_shelf(engine: &Engine) -> Shelf {
    Shelf { tier: Tier::User, root: engine.workspace.roots.user_ai(), below: FOLDER, listed: None }
}

/// The lockfiles of bundles: those this binary made for its own, and those that approved folders ship.
pub(crate) fn system_shelves(engine: &Engine) -> Vec<Shelf> {
    let bundles = engine.workspace.spaces.bundles().iter();
    let approved = bundles.filter(|bundle| bundle.standing == Standing::Approved);
    let shipped = approved.filter_map(|bundle| {
        let listed = bundle.listed.clone();
        Some(Shelf { tier: Tier::System, root: bundle.folder()?, below: FOLDER, listed })
    });
    let own = system::ensure(engine).map(|root| Shelf { tier: Tier::System, root, below: "", listed: None });
    own.into_iter().chain(shipped).collect()
}

/// The project as lockfiles of user scope name it.
pub(crate) fn here(engine: &Engine) -> Option<String> {
    let project = engine.workspace.roots.project.as_ref()?;
    Some(rye_space::roots::real(project).to_string_lossy().into_owned())
}

/// Where new lockfiles are written, as the settings say; without a project there is only user scope.
pub(crate) fn scope(engine: &Engine) -> Tier {
    let setting = engine.workspace.settings.get("lockfiles.scope").and_then(Value::as_str);
    if setting == Some("project") && project_shelf(engine).is_some() { Tier::Project } else { Tier::User }
}

/// The project a lockfile of user scope belongs to, if the tool is a project's.
pub(crate) fn owner(engine: &Engine, resolved: &Resolved) -> Option<String> {
    here(engine).filter(|_| resolved.space() == "project")
}

/// What marks the tools of user and system space, where their plain name is taken by a project's.
fn user_mark(engine: &Engine) -> String {
    rye_space::roots::real(&engine.workspace.roots.user).to_string_lossy().into_owned()
}

fn id_of(resolved: &Resolved) -> Result<ItemId> {
    Ok(ItemId::new(resolved.root.tool_id.as_str())?)
}

/// The space of the tool a lockfile pins.
pub(crate) fn pinned_space(lockfile: &Lockfile) -> &str {
    lockfile.resolved_chain.first().map_or("", |entry| entry.space.as_str())
}

/// Whether it pins a tool of user or system space that the project's tool now hides. Such a pin is the user's own: the
/// project's tool gets a lockfile beside it, never in its place.
pub(crate) fn is_others_pin(lockfile: &Lockfile, resolved: &Resolved) -> bool {
    lockfile.project.is_none() && pinned_space(lockfile) != "project" && resolved.space() == "project"
}

/// More tools than are run in one process.
const MOST_KEPT: usize = 1024;

/// The lockfiles found for tools that were run before, by id, version and space, and what they were found by looking at.
#[derive(Default)]
pub(crate) struct Kept(Mutex<HashMap<[String; 3], (Watched, FoundAll)>>);

/// Lockfiles that count for a tool.
type FoundAll = Arc<FoundLockfiles>;

/// The lockfiles that count for a tool, project first, then user, then system.
#[derive(Debug)]
pub(crate) struct FoundLockfiles {
    /// Those of its version.
    all: Vec<Found>,
    /// Those of newer versions, damaged ones included.
    pub(crate) newer: Vec<Scanned>,
}

impl FoundLockfiles {
    /// Those of its version.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Found> {
        self.all.iter()
    }
}

impl Kept {
    /// Forgets everything: bundles or settings have changed.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Every lockfile that counts for the tool, project first, then user, then system.
///
/// # Errors
/// When one of them is damaged or pins another tool: that is never the same as absent.
pub(crate) fn found(engine: &Engine, resolved: &Resolved) -> Result<FoundAll> {
    let root = &resolved.root;
    let key = [root.tool_id.clone(), root.version.clone(), resolved.space().to_owned()];
    let mut kept = engine.kept_locks.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((watched, found)) = kept.get(&key)
        && watched.is_unchanged()
    {
        return Ok(Arc::clone(found));
    }
    kept.remove(&key);
    // Making the bundles' lockfiles comes back here.
    drop(kept);
    let began = engine.unix_nanoseconds();
    let mut watched = Watched::default();
    let found = Arc::new(look(engine, resolved, &mut watched)?);
    if watched.is_settled(began) {
        let mut kept = engine.kept_locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key, (watched, Arc::clone(&found)));
    }
    Ok(found)
}

/// Looks for them, each place watched before it is looked at.
fn look(engine: &Engine, resolved: &Resolved, watched: &mut Watched) -> Result<FoundLockfiles> {
    let id = id_of(resolved)?;
    let plain = name::relative(&id, &resolved.root.version, None)?;
    let mut all = Vec::new();
    // Where there is no `.ai` there is no project.
    engine.workspace.roots.project_ai().into_iter().for_each(|ai| watched.add(ai));
    if let Some(shelf) = project_shelf(engine) {
        all.extend(read_for(&shelf, &plain, resolved, watched)?);
    }
    all.extend(found_of_user(engine, &id, &plain, resolved, watched)?);
    if let Some((bundle, shelf)) = bundle_shelf(engine, resolved.space()) {
        watched.add(shelf.path(&plain));
        if let Some(lockfile) = read_shipped(engine, bundle, &shelf, &plain)? {
            let path = shelf.path(&plain);
            let lockfile = named_truly(&path, lockfile, resolved)?;
            all.push(Found { tier: Tier::System, path, lockfile });
        }
    }
    let newer = newer::look(engine, resolved, &all, watched)?;
    Ok(FoundLockfiles { all, newer })
}

/// A lockfile that a bundle ships: those inside the binary are made by it; a folder's signed manifest lists it. What that
/// does not list does not exist.
///
/// # Errors
/// When it is damaged, or the manifest lists other bytes.
fn read_shipped(engine: &Engine, bundle: &Bundle, shelf: &Shelf, name: &Path) -> Result<Option<Lockfile>> {
    if matches!(bundle.origin, Origin::Embedded(_)) {
        return shelf.read(name);
    }
    let mut pins = engine.workspace.approvals.pins_of(&bundle.id);
    let file = bundle.manifest.as_ref().filter(|file| pins.any(|pin| file.is_signed_by(&pin.key)));
    let manifest = file.and_then(|file| file.manifest().ok());
    let listed = FilePath::new(format!("{AI_FOLDER}/{FOLDER}/{}", name.display())).ok();
    let Some((listed, manifest)) = listed.zip(manifest) else { return Ok(None) };
    let Some(entry) = manifest.files.get(&listed) else { return Ok(None) };
    let path = shelf.path(name);
    let bytes = match lillux::file::read_beneath(&shelf.root, &shelf.relative(name), lockfile::MAX_BYTES) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(Error::read(&error)),
    };
    let extractors = engine.workspace.spaces.extractors();
    if let Err(why) = rye_bundle::object::compare(&listed, entry, &bytes, extractors) {
        let message = format!("the lockfile `{}` is damaged: {why}", path.display());
        return Err(Error::new(Code::LockCorrupt, message)
            .detail("path", path.display().to_string())
            .hint(format!("get the bundle again from its maker: rye bundle verify {}", bundle.id)));
    }
    Ok(Some(lockfile::parse(&path, &bytes)?))
}

/// The lockfiles that go with a bundle. They speak for its own tools alone: to put another tool over one of them is
/// what spaces are for.
fn bundle_shelf<'a>(engine: &'a Engine, space: &str) -> Option<(&'a Bundle, Shelf)> {
    let id = space.strip_prefix("system:")?;
    let bundle = engine.workspace.spaces.bundles().iter().find(|bundle| bundle.id.as_str() == id)?;
    let (root, below, listed) = match (&bundle.origin, &bundle.standing) {
        (Origin::Embedded(_), _) => (system::ensure(engine)?, "", None),
        (Origin::Folder(_), Standing::Approved) => (bundle.folder()?, FOLDER, bundle.listed.clone()),
        (Origin::Folder(_), Standing::Embedded | Standing::NotApproved) => return None,
    };
    Some((bundle, Shelf { tier: Tier::System, root, below, listed }))
}

fn read_for(shelf: &Shelf, name: &Path, resolved: &Resolved, watched: &mut Watched) -> Result<Option<Found>> {
    watched.add(shelf.path(name));
    let Some(lockfile) = shelf.read(name)? else {
        return Ok(None);
    };
    let path = shelf.path(name);
    let lockfile = named_truly(&path, lockfile, resolved)?;
    Ok(Some(Found { tier: shelf.tier, path, lockfile }))
}

/// Refuses a lockfile that pins another tool than the one it is looked up for.
fn named_truly(path: &Path, lockfile: Lockfile, resolved: &Resolved) -> Result<Lockfile> {
    if lockfile.root.tool_id == resolved.root.tool_id {
        return Ok(lockfile);
    }
    let pinned = rye_item::text::one_line(&lockfile.root.tool_id);
    let message = format!("the lockfile `{}` is damaged: it pins `{pinned}`", path.display());
    Err(Error::new(Code::LockCorrupt, message)
        .detail("path", path.display().to_string())
        .detail("field", "root.tool_id")
        .hint(format!("if the tool as it is now is right: rye lock update {}", resolved.root.tool_id)))
}

/// The user's lockfiles that count here: not those of other projects' tools, and not the pin of a hidden tool once
/// the user has pinned the one that hides it.
fn found_of_user(
    engine: &Engine,
    id: &ItemId,
    plain: &Path,
    resolved: &Resolved,
    watched: &mut Watched,
) -> Result<Vec<Found>> {
    let shelf = user_shelf(engine);
    let here = here(engine);
    let mut marked = |place: &str| -> Result<Option<Found>> {
        let name = name::relative(id, &resolved.root.version, Some(place))?;
        let found = read_for(&shelf, &name, resolved, watched)?;
        // `1.0.0+0badcafe` may be another version's plain name.
        Ok(found.filter(|found| found.lockfile.root.version == resolved.root.version))
    };
    let of_project = here.as_deref().map(&mut marked).transpose()?.flatten();
    let of_project = of_project.filter(|found| found.lockfile.project == here);
    let of_user = marked(&user_mark(engine))?.filter(|found| found.lockfile.project.is_none());
    let is_pinned_here = of_project.is_some();
    let counts = |found: &Found| match &found.lockfile.project {
        Some(project) => Some(project) == here.as_ref(),
        None => !(is_pinned_here && is_others_pin(&found.lockfile, resolved)),
    };
    let plain = read_for(&shelf, plain, resolved, watched)?;
    Ok(of_project.into_iter().chain([plain, of_user].into_iter().flatten().filter(counts)).collect())
}

/// The place of a tool's lockfile in project or user scope.
///
/// # Errors
/// When there is no project, or the version cannot be part of a name.
pub(crate) fn slot(engine: &Engine, resolved: &Resolved, scope: Tier) -> Result<Slot> {
    let id = id_of(resolved)?;
    let name = name::relative(&id, &resolved.root.version, None)?;
    let shelf = match scope {
        Tier::Project => project_shelf(engine).ok_or_else(|| {
            Error::new(Code::InvalidArgument, "there is no project here to hold a lockfile")
                .hint("name it with --project, or write to user scope")
        })?,
        Tier::User => user_shelf(engine),
        Tier::System => {
            return Err(Error::new(Code::SystemImmutable, "system lockfiles cannot be changed")
                .hint("pin the tool in user or project scope: rye lock update ID --scope user"));
        }
    };
    let current = shelf.read(&name);
    if scope == Tier::Project {
        return Ok(Slot { shelf, name, current });
    }
    let here = here(engine);
    let is_own = match &current {
        // What pins another tool than its name says is damaged, whatever project it names.
        Ok(Some(lockfile)) if lockfile.root.tool_id != resolved.root.tool_id => true,
        Ok(Some(lockfile)) => match &lockfile.project {
            Some(project) => Some(project) == here.as_ref(),
            None => !is_others_pin(lockfile, resolved),
        },
        Ok(None) | Err(_) => true,
    };
    let mark = owner(engine, resolved).unwrap_or_else(|| user_mark(engine));
    let marked = name::relative(&id, &resolved.root.version, Some(&mark))?;
    let second = shelf.read(&marked);
    let is_marked_in_use = matches!(current, Ok(None))
        && match &second {
            // `1.0.0+0badcafe` may be another version's plain name.
            Ok(Some(lockfile)) => lockfile.root.version == resolved.root.version,
            Ok(None) => false,
            Err(_) => true,
        };
    if is_own && !is_marked_in_use {
        return Ok(Slot { shelf, name, current });
    }
    Ok(Slot { shelf, name: marked, current: second })
}

/// Every place of user scope that is looked at for the tool: its plain name, the project's, the user's.
///
/// # Errors
/// When the version cannot be part of a name.
pub(crate) fn user_slots(engine: &Engine, resolved: &Resolved) -> Result<Vec<Slot>> {
    let (id, shelf) = (id_of(resolved)?, user_shelf(engine));
    let marks = [None, here(engine), Some(user_mark(engine))];
    // The plain name has no mark; a missing project has no place.
    let marks = marks.into_iter().enumerate().filter(|(index, mark)| *index == 0 || mark.is_some());
    let slot = |mark: Option<String>| {
        let name = name::relative(&id, &resolved.root.version, mark.as_deref())?;
        let current = shelf.read(&name).and_then(|found| match found {
            Some(lockfile) => named_truly(&shelf.path(&name), lockfile, resolved).map(Some),
            None => Ok(None),
        });
        Ok(Slot { shelf: shelf.clone(), name, current })
    };
    marks.map(|(_, mark)| slot(mark)).collect()
}

/// Lockfiles of user scope that pin this version of the tool for a project whose folder is gone: removed, or moved.
pub(crate) fn of_gone_projects(engine: &Engine, resolved: &Resolved) -> Vec<Found> {
    let prefix = format!("{}@{}", resolved.root.tool_id, resolved.root.version);
    let is_named = |name: &str| {
        let rest = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(name::ENDING));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    };
    let is_gone = |lockfile: &Lockfile| {
        let project = lockfile.project.as_deref().map(Path::new);
        project.is_some_and(|project| !project.is_dir())
            && (&lockfile.root.tool_id, &lockfile.root.version)
                == (&resolved.root.tool_id, &resolved.root.version)
    };
    let scanned = scan_named(&user_shelf(engine), &is_named);
    scanned
        .into_iter()
        .filter_map(|scanned| Some((scanned.path, scanned.lockfile.ok()?)))
        .filter(|(_, lockfile)| is_gone(lockfile))
        .map(|(path, lockfile)| Found { tier: Tier::User, path, lockfile })
        .collect()
}

/// A lockfile as a folder holds it, whether it can be read or not.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Where it is from.
    pub(crate) tier: Tier,
    /// The file.
    pub(crate) path: PathBuf,
    /// Its name below its folder, with `/`.
    pub(crate) name: String,
    /// What it says.
    pub(crate) lockfile: Result<Lockfile>,
}

/// Every lockfile of a folder, by name. Linked folders are not entered.
pub(crate) fn scan(shelf: &Shelf) -> Vec<Scanned> {
    scan_named(shelf, &|_| true)
}

/// The lockfiles of a folder whose name below it is wanted.
pub(crate) fn scan_named(shelf: &Shelf, is_wanted: &dyn Fn(&str) -> bool) -> Vec<Scanned> {
    let mut names = Vec::new();
    let mut pending = vec![(shelf.root.join(shelf.below), String::new(), 0)];
    while let Some((folder, prefix, depth)) = pending.pop() {
        if std::fs::symlink_metadata(&folder).is_ok_and(|metadata| metadata.is_symlink()) {
            continue;
        }
        // A folder that is not there, or that nobody may look into, holds nothing that could be shown.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(file_name) = entry.file_name().into_string() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            if file_name.starts_with('.') || names.len() >= MAX_FILES {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEPTH {
                pending.push((entry.path(), format!("{prefix}{file_name}/"), depth + 1));
            } else if !kind.is_dir() && file_name.ends_with(name::ENDING) {
                names.push(format!("{prefix}{file_name}"));
            }
        }
    }
    names.retain(|name| is_wanted(name) && shelf.has(Path::new(name)));
    names.sort();
    let read = |name: String| {
        let relative = Path::new(&name);
        let lockfile = shelf.read(relative).and_then(|lockfile| {
            lockfile.ok_or_else(|| Error::new(Code::LockCorrupt, "the lockfile went away while it was read"))
        });
        Scanned { tier: shelf.tier, path: shelf.path(relative), lockfile, name }
    };
    names.into_iter().map(read).collect()
}
