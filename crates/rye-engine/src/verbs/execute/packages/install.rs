//! Running an installer: confined to the folder it fills and a temporary one, its report read, its failure told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::Cancel;
use lillux::confine::{Confinement, Reading};
use lillux::file::{self, Mode};
use lillux::lockfile::Dependency;
use lillux::process::{self, Command, End, Finished, Limits};
use rye_exec::environment::{self, Environment};
use rye_exec::http::Secrets;
use rye_exec::packages::{self, Asked, Ecosystem, Installer, PackageError, Record, Step};
use rye_exec::{Chain, sandbox};
use rye_item::text::one_line;
use rye_space::AI_FOLDER;
use serde_json::json;

use super::super::finder::HelperRun;
use super::super::folders;
use super::{ENVIRONMENT, around, base, surroundings};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::programs;

/// How long one call of an installer may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// No report is larger.
const MOST_REPORT: u64 = 64 << 20;

/// What is to be installed, where, and for whom.
pub(super) struct Order<'a> {
    pub(super) engine: &'a Engine,
    pub(super) chain: &'a Chain,
    pub(super) asked: &'a Asked,
    pub(super) pins: Option<&'a [Dependency]>,
    /// An empty folder, by its real path.
    pub(super) folder: &'a Path,
    pub(super) environment: &'a Environment,
    pub(super) cancel: &'a Cancel,
    /// What was run, and what confined it.
    pub(super) helpers: &'a RefCell<Vec<HelperRun>>,
}

/// What all calls of one installation have in common.
struct Site<'a> {
    order: &'a Order<'a>,
    temporary: PathBuf,
    path: String,
    variables: BTreeMap<String, String>,
    confinement: Option<Confinement>,
    limits: Limits,
}

/// Installs the packages, and says which they are.
pub(super) fn install(order: &Order<'_>) -> Result<Vec<Dependency>> {
    let engine = order.engine;
    let folder = folders::temporary(engine)?;
    let temporary = fs_err::canonicalize(folder.path())?;
    let policy = engine.policies()?.environment;
    // The user's own, not what an item makes of it: what is found there is run with the installer's settings.
    let given = engine.host.environment.get("PATH").map_or("", String::as_str);
    let path = programs::search_path(engine, given);
    let (confinement, limits) = confinement(order, &temporary)?;
    let site = Site {
        order,
        variables: around::variables(engine, &policy, &path, &temporary),
        temporary,
        path,
        confinement,
        limits,
    };
    match order.asked.ecosystem {
        Ecosystem::Python => site.python(),
        Ecosystem::Node => site.node(),
    }
}

/// Writing goes to the two folders; what is hidden from tools stays hidden, but for the installer's own settings. The
/// network is open as far as the user's settings open it to anybody.
fn confinement(order: &Order<'_>, temporary: &Path) -> Result<(Option<Confinement>, Limits)> {
    let engine = order.engine;
    let roots = &engine.workspace.roots;
    let policy = engine.policies()?.sandbox;
    let places = sandbox::Places {
        project: order.folder.to_owned(),
        project_ai: order.folder.join(AI_FOLDER),
        user_ai: roots.user_ai(),
        home: engine.host.home.clone(),
        homes: folders::homes(engine),
        program_folders: folders::program_folders(order.environment),
        cache: roots.cache.clone(),
        signing_keys: roots.signing_keys.clone(),
        temporary: Some(temporary.to_owned()),
        needed: Vec::new(),
    };
    let mut plan = sandbox::plan(&policy, Some(&json!({"network": true})), &places, &engine.host.environment)
        .map_err(|error| surroundings::sandbox_error(order.chain.tool().item().item_ref(), &error))?;
    let readable = around::readable(engine, order.asked.ecosystem);
    plan.show(around::settings_and_caches(engine, order.asked.ecosystem));
    // Nothing in the folder is anybody's yet: it has no names to protect.
    plan.access.write = vec![order.folder.to_owned(), temporary.to_owned()];
    plan.access.read_only.clear();
    plan.access.hidden.retain(|hidden| *hidden != readable);
    let confined = plan.confine_new_folder();
    let confinement = confined.map(|mut confinement| {
        confinement.read = Reading::Everything;
        confinement
    });
    Ok((confinement, plan.limits))
}

impl Site<'_> {
    fn python(&self) -> Result<Vec<Dependency>> {
        let engine = self.order.engine;
        let base = base(self.order.chain, self.order.environment, Ecosystem::Python.variable())?;
        self.check_base(&base)?;
        let base = self.real_python(base)?;
        let environment = self.order.folder.join(ENVIRONMENT);
        let uv = environment::find_on_path("uv", &self.path);
        match packages::choose(uv, around::settings(engine)) {
            Installer::Uv(uv) => self.with_uv(&uv, &base, &environment),
            Installer::Pip => self.with_pip(&base, &environment),
        }
    }

    /// Refuses an interpreter that only an item leads to: it would run with the installer's network and credentials,
    /// which are more than the tool's.
    fn check_base(&self, base: &Path) -> Result<()> {
        let named = self.order.engine.host.environment.get(Ecosystem::Python.variable());
        let name = base.file_name().unwrap_or_default();
        let mut folders = self.path.split(':').map(Path::new);
        if named.is_some_and(|named| Path::new(named) == base)
            || folders.any(|folder| folder.join(name) == base)
        {
            return Ok(());
        }
        let shown = one_line(&base.display().to_string());
        let folder = one_line(&base.parent().unwrap_or(base).display().to_string());
        Err(self
            .failed(&format!(
                "`{shown}` is not on your PATH, and packages are installed with your own Python only"
            ))
            .hint(format!("put the folder `{folder}` on your PATH and run it again")))
    }

    /// The interpreter itself: what stands for it on the PATH may be a version manager's script, which does more.
    fn real_python(&self, base: PathBuf) -> Result<PathBuf> {
        let arguments = ["-c", "import sys; print(sys.executable)"].map(str::to_owned).to_vec();
        let finished = self.run(&Step { program: base.clone(), arguments })?;
        let told = PathBuf::from(finished.stdout.text().trim());
        Ok(if finished.end == End::Exited(0) && told.is_absolute() && told.is_file() { told } else { base })
    }

    fn with_uv(&self, uv: &Path, base: &Path, environment: &Path) -> Result<Vec<Dependency>> {
        let settings = around::uv_settings(self.order.engine);
        let (settings, cache) = (settings.as_deref(), self.temporary.join("uv"));
        self.call(&packages::uv_environment(uv, settings, &cache, base, environment))?;
        let pins = self.temporary.join("pins.txt");
        let installed = match self.order.pins {
            Some(pinned) => {
                self.write(&pins, &packages::pins_file(pinned))?;
                pinned.to_vec()
            }
            None => {
                let asked = self.asked_file()?;
                self.call(&packages::uv_compile(uv, settings, &cache, environment, (&asked, &pins)))?;
                let text = String::from_utf8_lossy(&self.read(&pins)?).into_owned();
                let compiled = packages::compiled(&text).map_err(|error| self.unreadable(&error))?;
                // Written again, so that what is installed is what was understood.
                self.write(&pins, &packages::pins_file(&compiled))?;
                compiled
            }
        };
        self.call(&packages::uv_install(uv, settings, &cache, environment, &pins))?;
        Ok(installed)
    }

    fn with_pip(&self, base: &Path, environment: &Path) -> Result<Vec<Dependency>> {
        let pip = self.pip(base, environment)?;
        let report = self.temporary.join("report.json");
        let file = match self.order.pins {
            Some(pins) => {
                let path = self.temporary.join("pins.txt");
                self.write(&path, &packages::pins_file(pins))?;
                path
            }
            None => self.asked_file()?,
        };
        self.call(&packages::pip_install(&pip, &file, &report, self.order.pins.is_some()))?;
        let found = packages::pip_report(&self.read(&report)?).map_err(|error| self.unreadable(&error))?;
        // Hashes were checked by pip, against all that are pinned.
        Ok(self.order.pins.map_or(found, <[Dependency]>::to_vec))
    }

    /// An environment, and how pip is called on it: the interpreter's pip works on another environment if it is not
    /// too old, which saves each one a copy; otherwise the environment gets its own.
    fn pip(&self, base: &Path, environment: &Path) -> Result<Step> {
        let place = environment.display().to_string();
        let python = packages::python_of(environment);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let step =
            |program: &Path, list: &[&str]| Step { program: program.to_owned(), arguments: words(list) };
        let asked = self.run(&step(base, &["-m", "pip", "--version"]))?;
        let version = packages::pip_version(&asked.stdout.text());
        if asked.end == End::Exited(0) && version.is_some_and(|version| version >= packages::OLDEST_PIP) {
            self.call(&step(base, &["-m", "venv", "--without-pip", &place]))?;
            return Ok(step(base, &["-m", "pip", "--python", &python.display().to_string()]));
        }
        self.call(&step(base, &["-m", "venv", &place]))?;
        Ok(step(&python, &["-m", "pip"]))
    }

    fn node(&self) -> Result<Vec<Dependency>> {
        let folder = self.order.folder;
        let npm = environment::find_on_path("npm", &self.path).ok_or_else(|| {
            self.failed("npm was not found").hint("install Node with npm, and see that it is on the PATH")
        })?;
        let pins = self.order.pins;
        self.write(
            &folder.join("package.json"),
            &packages::package_json(&self.order.asked.requirements, pins),
        )?;
        let cache = self.temporary.join("npm");
        self.call(&packages::lock_command(&npm, folder, &cache))?;
        let lock = self.read(&folder.join("package-lock.json"))?;
        let found = packages::package_lock(&lock).map_err(|error| self.unreadable(&error))?;
        if pins.is_some_and(|pins| !Record::new(found.clone()).holds(pins)) {
            return Err(self.mismatch("the registry gives other packages than those the lockfile pins"));
        }
        self.call(&packages::modules_command(&npm, folder, &cache))?;
        // What npm installs by a file, nobody may have changed since it was read.
        if self.read(&folder.join("package-lock.json"))? != lock {
            return Err(self.failed("`package-lock.json` changed while it was used"));
        }
        file::create_folders(&folder.join(super::MODULES), true)?;
        Ok(found)
    }

    fn asked_file(&self) -> Result<PathBuf> {
        let path = self.temporary.join("asked.txt");
        self.write(&path, &packages::asked_file(&self.order.asked.requirements))?;
        Ok(path)
    }

    fn write(&self, path: &Path, text: &str) -> Result<()> {
        Ok(file::write_atomic(path, text.as_bytes(), Mode::Kept)?)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let (bytes, _) = file::read_bounded(path, MOST_REPORT).map_err(|error| Error::read(&error))?;
        Ok(bytes)
    }

    fn run(&self, step: &Step) -> Result<Finished> {
        let command = Command {
            program: step.program.clone().into_os_string(),
            arguments: step.arguments.clone(),
            environment: self.variables.clone(),
            folder: self.temporary.clone(),
            stdin: Vec::new(),
            timeout: TIMEOUT,
            has_result_channel: false,
            limits: self.limits.clone(),
            log: None,
        };
        let launcher = &self.order.engine.host.launcher;
        let finished = process::run(launcher, &command, self.confinement.as_ref(), self.order.cancel)
            .map_err(super::super::run::start_error)?;
        let helper = HelperRun {
            kind: "packages",
            command: vec![step.program.display().to_string()],
            receipt: finished.receipt.clone(),
        };
        let mut helpers = self.order.helpers.borrow_mut();
        // One row for each way of being confined: an installation takes many calls.
        if !helpers.iter().any(|known| known.receipt == helper.receipt) {
            helpers.push(helper);
        }
        Ok(finished)
    }

    /// Runs a step that must work.
    fn call(&self, step: &Step) -> Result<()> {
        let finished = self.run(step)?;
        let (stdout, stderr) = (finished.stdout.text(), finished.stderr.text());
        let why = match finished.end {
            End::Exited(0) => return Ok(()),
            End::Cancelled => {
                return Err(Error::new(
                    Code::ToolCancelled,
                    "the run was cancelled while packages were installed",
                )
                .of(self.order.chain.tool().item().item_ref()));
            }
            End::TimedOut => format!("it took longer than {} seconds", TIMEOUT.as_secs()),
            End::Exited(code) => format!("the installer ended with {code}"),
            End::Signalled(signal) => format!("the installer was ended by signal {signal}"),
            End::TooManyProcesses { limit } => format!("the installer started more than {limit} processes"),
            End::SupervisorLost => "its supervisor was killed or did not answer".to_owned(),
        };
        let lines = packages::last_lines(&stdout, &stderr, &Secrets::of(&self.variables));
        let told = lines.iter().rev().find(|line| line.to_lowercase().contains("error")).or(lines.last());
        let why = told.map_or(why.clone(), |line| format!("{why}: {line}"));
        let error = if packages::is_other_hash(&stdout) || packages::is_other_hash(&stderr) {
            self.mismatch("the index gives another file than the one the lockfile pins")
        } else {
            self.failed(&why).hint(
                "where packages come from is in your own settings of pip, uv or npm, never in the project's",
            )
        };
        Err(error.detail("output", json!(lines)))
    }

    fn failed(&self, why: &str) -> Error {
        let tool = self.order.chain.tool();
        Error::new(Code::Dependencies, format!("the packages of {} could not be installed: {why}", tool.id()))
            .of(tool.item().item_ref())
    }

    fn mismatch(&self, why: &str) -> Error {
        let tool = self.order.chain.tool();
        Error::new(Code::LockMismatch, format!("the packages of {} are not the pinned ones: {why}", tool.id()))
            .of(tool.item().item_ref())
            .hint("wheels differ between systems and Python versions: pin where it runs, or ask who changed the index")
    }

    fn unreadable(&self, error: &PackageError) -> Error {
        self.failed(&error.to_string()).hint("a newer pip (22.3 or later), uv or npm may be needed")
    }
}
