//! The packages a tool asks for: found in the cache, or installed there once for everybody who asks for the same.
//!
//! A folder below `packages/` in the cache belongs to one interpreter, one list of requirements and, where a lockfile
//! pins them, one list of hashes. It counts once its record is written, which is the last thing that happens.

mod around;
mod install;

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lillux::file::{self, Lock, Mode as FileMode};
use lillux::lockfile::Dependency;
use rye_exec::Chain;
use rye_exec::environment::{Environment, Policy};
use rye_exec::packages::{self, Asked, Ecosystem, PackageError, Record};
use rye_item::text::counted;
use serde_json::{Value, json};

use super::tool::Told;
use super::{Mode, Request, surroundings};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, Demand};

const DAY: u64 = 24 * 60 * 60;
/// What nobody used for so long is removed when something new is installed.
const OLD: u64 = 30 * DAY;
/// How many folders are removed at once, so that no run waits long.
const REMOVED_AT_ONCE: usize = 8;
/// How often somebody who waits for another's installation looks again.
const PATIENCE: Duration = Duration::from_millis(50);
/// The environment in a folder of Python packages.
const ENVIRONMENT: &str = "env";
/// The modules in a folder of npm packages.
const MODULES: &str = "node_modules";

/// What a tool asks for, and what lockfiles say of it.
#[derive(Debug)]
pub(super) struct Wanted {
    asked: Asked,
    pins: Option<Vec<Dependency>>,
    /// What reaches a tool, read once for both.
    pub(super) policy: std::sync::Arc<Policy>,
    /// For Node, whose modules are linked when the tool is staged.
    place: Option<Place>,
}

impl Wanted {
    /// Whether the tool runs on an interpreter made for it.
    pub(super) fn has_own_interpreter(&self) -> bool {
        self.asked.ecosystem == Ecosystem::Python
    }

    /// The modules to link beside the tool, whether they are there yet or not.
    pub(super) fn modules(&self) -> Option<PathBuf> {
        self.place.as_ref().map(|place| place.folder.join(MODULES))
    }
}

/// A folder of packages, and what is in it if it is finished.
#[derive(Clone, Debug)]
struct Place {
    folder: PathBuf,
    is_pinned: bool,
    record: Option<Record>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Packages {
    folder: PathBuf,
    is_new: bool,
    /// The packages; `None` when they are not there yet and nothing may happen.
    pub(super) installed: Option<Vec<Dependency>>,
}

impl Packages {
    /// What the trace says of it.
    pub(super) fn shown(&self) -> Value {
        let packages = self.installed.iter().flatten();
        let packages: Vec<String> =
            packages.map(|package| format!("{} {}", package.name, package.version)).collect();
        let state = match (&self.installed, self.is_new) {
            (None, _) => "missing",
            (Some(_), true) => "installed",
            (Some(_), false) => "ready",
        };
        json!({"state": state, "path": self.folder.display().to_string(), "packages": packages})
    }
}

/// What a tool asks for; `None` for most.
///
/// # Errors
/// When it asks for what it may not, a lockfile is damaged, or `--locked` finds no pins.
pub(super) fn wanted(engine: &Engine, chain: &Chain, demand: Demand) -> Result<Option<Wanted>> {
    if chain.first_with(packages::FIELD).is_none() {
        return Ok(None);
    }
    let item = chain.tool().item().item_ref();
    let policy = engine.policies()?.environment;
    let refused = |error: &PackageError| Error::new(Code::InvalidInvocation, error.to_string()).of(item);
    let asked = packages::asked(chain, &policy).map_err(|error| {
        refused(&error).hint("a requirement is a name and versions: `requests==2.32.3`, `left-pad@1.3.0`")
    })?;
    let Some(asked) = asked else { return Ok(None) };
    let resolved = crate::resolved::of_chain(engine, chain);
    let pins = lockfiles::pinned_packages(engine, &resolved, &asked.asking)?;
    if let Some(pins) = &pins {
        packages::checked_pins(pins, &asked).map_err(|error| {
            Error::new(Code::LockCorrupt, error.to_string()).of(item).hint(format!(
                "take a good lockfile back, or remove it and pin anew: rye lock show {}",
                item.id
            ))
        })?;
    } else if demand == Demand::Locked {
        let message = format!("no lockfile pins the packages of {item}, and --locked asks for that");
        return Err(Error::new(Code::LockMissing, message)
            .of(item)
            .hint("run it once without --locked: that pins them"));
    }
    let place = match asked.ecosystem {
        Ecosystem::Python => None,
        Ecosystem::Node => {
            let system = [std::env::consts::OS.to_owned(), std::env::consts::ARCH.to_owned()];
            Some(place(engine, &asked, pins.as_deref(), &system))
        }
    };
    Ok(Some(Wanted { asked, pins, policy, place }))
}

/// Where packages for this interpreter are or will be. What was installed without pins serves those who pin the same.
fn place(engine: &Engine, asked: &Asked, pins: Option<&[Dependency]>, interpreter: &[String]) -> Place {
    let shelf = shelf(engine, asked.ecosystem);
    let folder = |pins| shelf.join(packages::key(interpreter, &asked.requirements, pins));
    let loose =
        Place { record: record(&folder(None), asked.ecosystem), folder: folder(None), is_pinned: false };
    match pins {
        None => loose,
        Some(pins) if loose.record.as_ref().is_some_and(|record| record.holds(pins)) => loose,
        Some(pins) => {
            let folder = folder(Some(pins));
            let record = record(&folder, asked.ecosystem).filter(|record| record.holds(pins));
            Place { record, folder, is_pinned: true }
        }
    }
}

fn shelf(engine: &Engine, ecosystem: Ecosystem) -> PathBuf {
    engine.workspace.roots.cache.join("packages").join(ecosystem.folder())
}

/// What a finished folder holds. One whose interpreter has gone is as good as none.
fn record(folder: &Path, ecosystem: Ecosystem) -> Option<Record> {
    let (bytes, _) = file::read_bounded(&folder.join(Record::FILE), Record::MOST_BYTES).ok()?;
    let is_whole = match ecosystem {
        Ecosystem::Python => packages::python_of(&folder.join(ENVIRONMENT)).is_file(),
        Ecosystem::Node => folder.join(MODULES).is_dir(),
    };
    Record::parse(&bytes).filter(|_| is_whole)
}

/// What an interpreter is known by: where it really is, and when it was put there.
fn interpreter_facts(interpreter: &Path) -> Result<Vec<String>> {
    let real = fs_err::canonicalize(interpreter)?;
    let metadata = fs_err::metadata(&real)?;
    Ok(vec![
        interpreter.display().to_string(),
        real.display().to_string(),
        metadata.len().to_string(),
        format!("{}.{}", metadata.mtime(), metadata.mtime_nsec()),
    ])
}

/// Sees to it that the packages are there, and that the tool runs with them.
///
/// # Errors
/// When they cannot be installed, or are not those that a lockfile pins.
pub(super) fn settle(
    engine: &Engine,
    chain: &Chain,
    wanted: &Wanted,
    environment: &mut Environment,
    request: &Request,
    told: &mut Told,
) -> Result<Packages> {
    let variable = wanted.asked.ecosystem.variable();
    let place = match &wanted.place {
        Some(place) => place.clone(),
        None => {
            let base = base(chain, environment, variable)?;
            if request.mode == Mode::DryRun && !base.exists() {
                told.notes.push("a run would find its interpreter, then its packages".to_owned());
                let folder = shelf(engine, wanted.asked.ecosystem);
                return Ok(Packages { folder, is_new: false, installed: None });
            }
            place(engine, &wanted.asked, wanted.pins.as_deref(), &interpreter_facts(&base)?)
        }
    };
    let mut settled = Packages { folder: place.folder.clone(), is_new: false, installed: None };
    match &place.record {
        Some(record) => {
            touch(&place.folder, engine.unix_seconds());
            settled.installed = Some(record.packages.clone());
        }
        None if request.mode == Mode::DryRun => {
            let count = wanted.asked.requirements.len();
            told.notes.push(format!("a run would install {} first", counted(count, "package")));
            return Ok(settled);
        }
        None => {
            let (packages, is_new) = first(engine, chain, wanted, &place, environment, request, told)?;
            if is_new {
                let shown: Vec<String> = packages
                    .iter()
                    .take(10)
                    .map(|package| format!("{} {}", package.name, package.version))
                    .collect();
                let more = if packages.len() > shown.len() { ", …" } else { "" };
                told.notes.push(format!(
                    "installed {}: {}{more}",
                    counted(packages.len(), "package"),
                    shown.join(", ")
                ));
            }
            settled.installed = Some(packages);
            settled.is_new = is_new;
        }
    }
    if wanted.has_own_interpreter() {
        let python = packages::python_of(&place.folder.join(ENVIRONMENT));
        // A sandbox that lets nothing be read but what is needed must let the interpreter read its own library.
        let real = fs_err::canonicalize(&python).ok();
        let library =
            real.as_deref().and_then(Path::parent).and_then(Path::parent).map(|prefix| prefix.join("lib"));
        environment.interpreters.extend(real.into_iter().chain(library.filter(|library| library.is_dir())));
        environment.variables.insert(variable.to_owned(), python.display().to_string());
    }
    environment.interpreters.push(place.folder);
    Ok(settled)
}

fn base(chain: &Chain, environment: &Environment, variable: &str) -> Result<PathBuf> {
    environment.variables.get(variable).map(PathBuf::from).ok_or_else(|| {
        Error::new(Code::NoInterpreter, format!("no interpreter for `{variable}` was found"))
            .of(chain.tool().item().item_ref())
            .hint("install Python 3, or name it: rye config show execution/environment")
    })
}

/// Installs, unless somebody else does so right now: then their packages are taken, once they are there.
fn first(
    engine: &Engine,
    chain: &Chain,
    wanted: &Wanted,
    place: &Place,
    environment: &Environment,
    request: &Request,
    told: &mut Told,
) -> Result<(Vec<Dependency>, bool)> {
    let ecosystem = wanted.asked.ecosystem;
    let shelf = shelf(engine, ecosystem);
    file::create_folders(&shelf, true)?;
    let tell = |line: &str| {
        if let Some(progress) = &request.progress {
            progress.tell(line);
        }
    };
    let _lock = lock(&lock_of(&place.folder), request, &tell)?;
    let is_held =
        |record: &Record| !place.is_pinned || wanted.pins.as_ref().is_none_or(|pins| record.holds(pins));
    if let Some(record) = record(&place.folder, ecosystem).filter(is_held) {
        return Ok((record.packages, false));
    }
    let asked = counted(wanted.asked.requirements.len(), "package");
    tell(&format!("installing {asked} for {} …", chain.tool().id()));
    // The folder has its final name from the start, because scripts in an environment hold its path. What is in it
    // counts for nothing until the record is there.
    file::remove_tree(&place.folder)?;
    file::create_folders(&place.folder, true)?;
    let helpers = RefCell::default();
    let order = install::Order {
        engine,
        chain,
        asked: &wanted.asked,
        pins: wanted.pins.as_deref().filter(|_| place.is_pinned),
        folder: &fs_err::canonicalize(&place.folder)?,
        environment,
        cancel: &request.cancel,
        helpers: &helpers,
    };
    let installed = install::install(&order).and_then(|packages| {
        let record = Record::new(packages);
        file::write_atomic(&place.folder.join(Record::FILE), record.to_text().as_bytes(), FileMode::Kept)?;
        Ok(record.packages)
    });
    if installed.is_err() {
        // What is left has no record and is removed by the next attempt if it stays.
        let _is_removed = file::remove_tree(&place.folder).is_ok();
    }
    told.helpers.extend(helpers.take());
    let packages = installed?;
    touch(&place.folder, engine.unix_seconds());
    prune(&shelf, &place.folder, engine.unix_seconds());
    Ok((packages, true))
}

fn lock_of(folder: &Path) -> PathBuf {
    folder.with_extension("lock")
}

fn lock(path: &Path, request: &Request, tell: &dyn Fn(&str)) -> Result<Lock> {
    let mut is_told = false;
    loop {
        if let Some(lock) = Lock::try_acquire(path)? {
            return Ok(lock);
        }
        if request.cancel.is_cancelled() {
            return Err(Error::new(Code::ToolCancelled, "the run was cancelled").of(&request.item));
        }
        if !is_told {
            is_told = true;
            tell("waiting for another rye, which installs the same packages …");
        }
        std::thread::sleep(PATIENCE);
    }
}

/// Notes that a folder is in use, once a day. A cache that cannot be written still serves.
fn touch(folder: &Path, now: u64) {
    if age(folder, now).is_some_and(|age| age < DAY) {
        return;
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
    let _is_touched = fs_err::File::open(folder).and_then(|folder| folder.set_modified(time)).is_ok();
}

fn age(folder: &Path, now: u64) -> Option<u64> {
    let metadata = folder.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
    Some(now.saturating_sub(u64::try_from(metadata.mtime()).unwrap_or(0)))
}

/// Removes folders nobody used for long. What cannot be removed stays for the next time: the run goes on without.
fn prune(shelf: &Path, own: &Path, now: u64) {
    let entries = std::fs::read_dir(shelf).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_old = |path: &PathBuf| path != own && age(path, now).is_some_and(|age| age > OLD);
    for folder in entries.filter(is_old).take(REMOVED_AT_ONCE) {
        let path = lock_of(&folder);
        if let Ok(Some(_lock)) = Lock::try_acquire(&path) {
            let _is_removed = file::remove_tree(&folder).and_then(|()| file::remove(&path)).is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_nobody_used_for_a_month_are_removed_and_used_ones_stay() {
        let world = rye_test::World::new();
        let shelf = world.cache().join("packages/python");
        let now = 100 * DAY;
        let make = |name: &str, days: u64| {
            let folder = shelf.join(name);
            world.write(&format!("cache/packages/python/{name}/packages.json"), "{}");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now - days * DAY);
            fs_err::File::open(&folder).expect("folder").set_modified(time).expect("set");
            folder
        };
        let (old, used, own) = (make("old", 31), make("used", 29), make("own", 99));
        prune(&shelf, &own, now);
        assert_eq!((old.exists(), used.exists(), own.exists()), (false, true, true));
        touch(&used, now);
        prune(&shelf, &own, now + 5 * DAY);
        assert_eq!((used.exists(), lock_of(&old).exists()), (true, false));
    }
}
