//! The packages a tool asks for: found in the cache, or installed there once for everybody who asks for the same.
//!
//! A folder below `packages/` in the cache belongs to one interpreter, one list of requirements and, where a lockfile
//! pins them, one list of hashes. It counts once its record is written, which is the last thing that happens.

mod install;
mod installer_env;

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lillux::file::{self, FileMode, Lock};
use lillux::lockfile::LockedPackage;
use rye_exec::Chain;
use rye_exec::environment::{Environment, EnvironmentPolicy};
use rye_exec::packages::{self, Ecosystem, PackageError, PackageRecord, RequestedPackages};
use rye_item::text::counted;
use serde_json::{Value, json};

use super::tool::RunMessages;
use super::{ExecuteMode, ExecuteRequest, missing_program, run_plan};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, LockMode};

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
/// Folders unused for this long are removed when something new is installed.
const MAX_AGE_SECONDS: u64 = 30 * SECONDS_PER_DAY;
/// How many folders are removed at once, so that no run waits long.
const MAX_REMOVALS: usize = 8;
/// How often a process that waits for another's installation checks again.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The environment in a folder of Python packages.
const VENV_FOLDER: &str = "env";
/// The modules in a folder of npm packages.
const NODE_MODULES: &str = "node_modules";

/// What a tool asks for, and what lockfiles say of it.
#[derive(Debug)]
pub(super) struct PackageRequest {
    requested: RequestedPackages,
    pins: Option<Vec<LockedPackage>>,
    /// What reaches a tool, read once for both.
    pub(super) policy: std::sync::Arc<EnvironmentPolicy>,
    /// For Node, whose modules are linked when the tool is staged.
    slot: Option<PackageSlot>,
}

impl PackageRequest {
    /// Whether the tool runs on an interpreter made for it.
    pub(super) fn has_own_interpreter(&self) -> bool {
        self.requested.ecosystem == Ecosystem::Python
    }

    /// The modules to link beside the tool, whether they are there yet or not.
    pub(super) fn modules(&self) -> Option<PathBuf> {
        self.slot.as_ref().map(|slot| slot.folder.join(NODE_MODULES))
    }
}

/// A folder of packages, and what is in it if it is finished.
#[derive(Clone, Debug)]
struct PackageSlot {
    folder: PathBuf,
    is_pinned: bool,
    record: Option<PackageRecord>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct InstalledPackages {
    folder: PathBuf,
    is_new: bool,
    /// The packages; `None` when they are not there yet and nothing may happen.
    pub(super) installed: Option<Vec<LockedPackage>>,
}

impl InstalledPackages {
    /// What the trace says of it.
    pub(super) fn to_trace(&self) -> Value {
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
pub(super) fn package_request(
    engine: &Engine,
    chain: &Chain,
    lock_mode: LockMode,
) -> Result<Option<PackageRequest>> {
    if chain.first_field(packages::DEPENDENCIES_FIELD).is_none() {
        return Ok(None);
    }
    let item = chain.tool().item().item_ref();
    let policy = engine.policies()?.environment;
    let refused =
        |error: &PackageError| Error::new(Code::InvalidInvocation, error.to_string()).for_item(item);
    let requested = packages::requested_packages(chain, &policy).map_err(|error| {
        refused(&error).hint("a requirement is a name and versions: `requests==2.32.3`, `left-pad@1.3.0`")
    })?;
    let Some(requested) = requested else { return Ok(None) };
    let resolved = crate::resolve::resolve_chain(engine, chain);
    let pins = lockfiles::pinned_packages(engine, &resolved, &requested.requested_by)?;
    if let Some(pins) = &pins {
        packages::check_pins(pins, &requested).map_err(|error| {
            Error::new(Code::LockCorrupt, error.to_string())
                .for_item(item)
                .hint(format!("restore the lockfile, or remove it and pin again: rye lock show {}", item.id))
        })?;
    } else if lock_mode == LockMode::Locked {
        let message = format!("no lockfile pins the packages of {item}, and --locked asks for that");
        return Err(Error::new(Code::LockMissing, message)
            .for_item(item)
            .hint("run it once without --locked to pin them"));
    }
    let slot = match requested.ecosystem {
        Ecosystem::Python => None,
        Ecosystem::Node => {
            let system = [std::env::consts::OS.to_owned(), std::env::consts::ARCH.to_owned()];
            Some(find_slot(engine, &requested, pins.as_deref(), &system))
        }
    };
    Ok(Some(PackageRequest { requested, pins, policy, slot }))
}

/// Where packages for this interpreter are or will be. What was installed without pins serves those who pin the same.
fn find_slot(
    engine: &Engine,
    requested: &RequestedPackages,
    pins: Option<&[LockedPackage]>,
    interpreter: &[String],
) -> PackageSlot {
    let cache_dir = ecosystem_cache(engine, requested.ecosystem);
    let folder = |pins| cache_dir.join(packages::cache_key(interpreter, &requested.requirements, pins));
    let unpinned = PackageSlot {
        record: read_record(&folder(None), requested.ecosystem),
        folder: folder(None),
        is_pinned: false,
    };
    match pins {
        None => unpinned,
        Some(pins) if unpinned.record.as_ref().is_some_and(|record| record.matches(pins)) => unpinned,
        Some(pins) => {
            let folder = folder(Some(pins));
            let record = read_record(&folder, requested.ecosystem).filter(|record| record.matches(pins));
            PackageSlot { record, folder, is_pinned: true }
        }
    }
}

fn ecosystem_cache(engine: &Engine, ecosystem: Ecosystem) -> PathBuf {
    engine.workspace.roots.cache.join("packages").join(ecosystem.folder())
}

/// What a finished folder holds. One whose interpreter has gone is as good as none.
fn read_record(folder: &Path, ecosystem: Ecosystem) -> Option<PackageRecord> {
    let (bytes, _) =
        file::read_bounded(&folder.join(PackageRecord::FILE_NAME), PackageRecord::MAX_BYTES).ok()?;
    let is_whole = match ecosystem {
        Ecosystem::Python => packages::venv_python(&folder.join(VENV_FOLDER)).is_file(),
        Ecosystem::Node => folder.join(NODE_MODULES).is_dir(),
    };
    PackageRecord::parse(&bytes).filter(|_| is_whole)
}

/// What an interpreter is known by: where it really is, and when it was put there.
fn interpreter_identity(interpreter: &Path) -> Result<Vec<String>> {
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
pub(super) fn ensure_installed(
    engine: &Engine,
    chain: &Chain,
    package_request: &PackageRequest,
    environment: &mut Environment,
    request: &ExecuteRequest,
    messages: &mut RunMessages,
) -> Result<InstalledPackages> {
    let variable = package_request.requested.ecosystem.variable();
    let slot = match &package_request.slot {
        Some(slot) => slot.clone(),
        None => {
            let base = base_interpreter(chain, environment, variable)?;
            if request.mode == ExecuteMode::DryRun && !base.exists() {
                messages.notes.push("a run would first find its interpreter, then its packages".to_owned());
                let folder = ecosystem_cache(engine, package_request.requested.ecosystem);
                return Ok(InstalledPackages { folder, is_new: false, installed: None });
            }
            find_slot(
                engine,
                &package_request.requested,
                package_request.pins.as_deref(),
                &interpreter_identity(&base)?,
            )
        }
    };
    let mut result = InstalledPackages { folder: slot.folder.clone(), is_new: false, installed: None };
    match &slot.record {
        Some(record) => {
            touch(&slot.folder, engine.unix_seconds());
            result.installed = Some(record.packages.clone());
        }
        None if request.mode == ExecuteMode::DryRun => {
            let count = package_request.requested.requirements.len();
            messages.notes.push(format!("a run would install {} first", counted(count, "package")));
            return Ok(result);
        }
        None => {
            let (packages, is_new) =
                install_once(engine, chain, package_request, &slot, environment, request, messages)?;
            if is_new {
                let names: Vec<String> = packages
                    .iter()
                    .take(10)
                    .map(|package| format!("{} {}", package.name, package.version))
                    .collect();
                let more = if packages.len() > names.len() { ", …" } else { "" };
                messages.notes.push(format!(
                    "installed {}: {}{more}",
                    counted(packages.len(), "package"),
                    names.join(", ")
                ));
            }
            result.installed = Some(packages);
            result.is_new = is_new;
        }
    }
    if package_request.has_own_interpreter() {
        let python = packages::venv_python(&slot.folder.join(VENV_FOLDER));
        // A sandbox that lets nothing be read but what is needed must let the interpreter read its own library.
        let real = fs_err::canonicalize(&python).ok();
        let library =
            real.as_deref().and_then(Path::parent).and_then(Path::parent).map(|prefix| prefix.join("lib"));
        environment.interpreters.extend(real.into_iter().chain(library.filter(|library| library.is_dir())));
        environment.variables.insert(variable.to_owned(), python.display().to_string());
    }
    environment.interpreters.push(slot.folder);
    Ok(result)
}

fn base_interpreter(chain: &Chain, environment: &Environment, variable: &str) -> Result<PathBuf> {
    environment.variables.get(variable).map(PathBuf::from).ok_or_else(|| {
        let missing = environment.missing_interpreters.iter().find(|missing| missing.variable == variable);
        if let Some(missing) = missing {
            return missing_program::error(chain, missing);
        }
        Error::new(Code::NoInterpreter, format!("no interpreter for `{variable}` was found"))
            .for_item(chain.tool().item().item_ref())
            .hint("install Python 3, or name it: rye config show execution/environment")
    })
}

/// Installs, unless another process is doing so: then its packages are used once they are complete.
fn install_once(
    engine: &Engine,
    chain: &Chain,
    package_request: &PackageRequest,
    slot: &PackageSlot,
    environment: &Environment,
    request: &ExecuteRequest,
    messages: &mut RunMessages,
) -> Result<(Vec<LockedPackage>, bool)> {
    let ecosystem = package_request.requested.ecosystem;
    let cache_dir = ecosystem_cache(engine, ecosystem);
    file::create_dirs(&cache_dir, true)?;
    let report = |line: &str| {
        if let Some(progress) = &request.progress {
            progress.report(line);
        }
    };
    let _lock = acquire_lock(&lock_path(&slot.folder), request, &report)?;
    let matches_pins = |record: &PackageRecord| {
        !slot.is_pinned || package_request.pins.as_ref().is_none_or(|pins| record.matches(pins))
    };
    if let Some(record) = read_record(&slot.folder, ecosystem).filter(matches_pins) {
        return Ok((record.packages, false));
    }
    let count_text = counted(package_request.requested.requirements.len(), "package");
    report(&format!("installing {count_text} for {} …", chain.tool().id()));
    // The folder has its final name from the start, because scripts in an environment hold its path. What is in it
    // counts for nothing until the record is there.
    file::remove_tree(&slot.folder)?;
    file::create_dirs(&slot.folder, true)?;
    let helpers = RefCell::default();
    let install = install::PackageInstall {
        engine,
        chain,
        requested: &package_request.requested,
        pins: package_request.pins.as_deref().filter(|_| slot.is_pinned),
        folder: &fs_err::canonicalize(&slot.folder)?,
        environment,
        cancel: &request.cancel,
        helpers: &helpers,
    };
    let installed = install::install(&install).and_then(|packages| {
        let record = PackageRecord::new(packages);
        file::write_atomic(
            &slot.folder.join(PackageRecord::FILE_NAME),
            record.to_text().as_bytes(),
            FileMode::Preserve,
        )?;
        Ok(record.packages)
    });
    if installed.is_err() {
        // What is left has no record and is removed by the next attempt if it stays.
        let _is_removed = file::remove_tree(&slot.folder).is_ok();
    }
    messages.helpers.extend(helpers.take());
    let packages = installed?;
    touch(&slot.folder, engine.unix_seconds());
    prune(&cache_dir, &slot.folder, engine.unix_seconds());
    Ok((packages, true))
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.with_extension("lock")
}

fn acquire_lock(path: &Path, request: &ExecuteRequest, report: &dyn Fn(&str)) -> Result<Lock> {
    let mut is_reported = false;
    loop {
        if let Some(lock) = Lock::try_acquire(path)? {
            return Ok(lock);
        }
        if request.cancel.is_cancelled() {
            return Err(Error::new(Code::ToolCancelled, "the run was cancelled").for_item(&request.item));
        }
        if !is_reported {
            is_reported = true;
            report("waiting for another rye that is installing the same packages …");
        }
        std::thread::sleep(LOCK_POLL_INTERVAL);
    }
}

/// Notes that a folder is in use, once a day. A cache that cannot be written still serves.
fn touch(folder: &Path, now: u64) {
    if age(folder, now).is_some_and(|age| age < SECONDS_PER_DAY) {
        return;
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
    let _is_touched = fs_err::File::open(folder).and_then(|folder| folder.set_modified(time)).is_ok();
}

fn age(folder: &Path, now: u64) -> Option<u64> {
    let metadata = folder.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
    Some(now.saturating_sub(u64::try_from(metadata.mtime()).unwrap_or(0)))
}

/// Removes folders that were not used for long. Folders that cannot be removed are left for the next time.
fn prune(cache_dir: &Path, own: &Path, now: u64) {
    let entries = std::fs::read_dir(cache_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_old = |path: &PathBuf| path != own && age(path, now).is_some_and(|age| age > MAX_AGE_SECONDS);
    for folder in entries.filter(is_old).take(MAX_REMOVALS) {
        let path = lock_path(&folder);
        if let Ok(Some(_lock)) = Lock::try_acquire(&path) {
            let _is_removed = file::remove_tree(&folder).and_then(|()| file::remove(&path)).is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_unused_for_a_month_are_pruned() {
        let world = rye_test::TestContext::new();
        let cache_dir = world.cache().join("packages/python");
        let now = 100 * SECONDS_PER_DAY;
        let make = |name: &str, days: u64| {
            let folder = cache_dir.join(name);
            world.write(&format!("cache/packages/python/{name}/packages.json"), "{}");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now - days * SECONDS_PER_DAY);
            fs_err::File::open(&folder).expect("folder").set_modified(time).expect("set");
            folder
        };
        let (old, used, own) = (make("old", 31), make("used", 29), make("own", 99));
        prune(&cache_dir, &own, now);
        assert_eq!((old.exists(), used.exists(), own.exists()), (false, true, true));
        touch(&used, now);
        prune(&cache_dir, &own, now + 5 * SECONDS_PER_DAY);
        assert_eq!((used.exists(), lock_path(&old).exists()), (true, false));
    }
}
