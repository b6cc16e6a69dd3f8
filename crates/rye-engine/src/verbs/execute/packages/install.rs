//! Running an installer: confined to the folder it fills and a temporary one, its report read, its failure told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::CancelToken;
use lillux::file::{self, FileMode};
use lillux::lockfile::LockedPackage;
use lillux::process::{self, ExitReason, ProcessCommand, ProcessLimits, ProcessResult};
use lillux::sandbox::{Confinement, ReadAccess};
use rye_exec::environment::{self, Environment};
use rye_exec::http::Secrets;
use rye_exec::packages::{
    self, Ecosystem, Installer, InstallerCommand, PackageError, PackageRecord, RequestedPackages,
};
use rye_exec::{Chain, sandbox};
use rye_item::text::one_line;
use rye_space::AI_FOLDER;
use serde_json::json;

use super::super::program_finder::HelperRun;
use super::super::run_dirs;
use super::{VENV_FOLDER, base_interpreter, installer_env, run_plan};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::programs;

/// How long one call of an installer may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// No report is larger.
const MAX_REPORT_BYTES: u64 = 64 << 20;

/// What is to be installed, where, and for whom.
pub(super) struct PackageInstall<'a> {
    pub(super) engine: &'a Engine,
    pub(super) chain: &'a Chain,
    pub(super) requested: &'a RequestedPackages,
    pub(super) pins: Option<&'a [LockedPackage]>,
    /// An empty folder, by its real path.
    pub(super) folder: &'a Path,
    pub(super) environment: &'a Environment,
    pub(super) cancel: &'a CancelToken,
    /// What was run, and what confined it.
    pub(super) helpers: &'a RefCell<Vec<HelperRun>>,
}

/// What all calls of one installation have in common.
struct InstallerRun<'a> {
    install: &'a PackageInstall<'a>,
    temporary: PathBuf,
    path: String,
    variables: BTreeMap<String, String>,
    confinement: Option<Confinement>,
    limits: ProcessLimits,
}

/// Installs the packages, and says which they are.
pub(super) fn install(request: &PackageInstall<'_>) -> Result<Vec<LockedPackage>> {
    let engine = request.engine;
    let folder = run_dirs::temporary_folder(engine)?;
    let temporary = fs_err::canonicalize(folder.path())?;
    let policy = engine.policies()?.environment;
    // The user's own, not what an item makes of it: what is found there is run with the installer's settings.
    let path_variable = engine.host.variables.get("PATH").map_or("", String::as_str);
    let path = programs::search_path(engine, path_variable);
    let (confinement, limits) = installer_confinement(request, &temporary)?;
    let run = InstallerRun {
        install: request,
        variables: installer_env::installer_variables(engine, &policy, &path, &temporary),
        temporary,
        path,
        confinement,
        limits,
    };
    match request.requested.ecosystem {
        Ecosystem::Python => run.install_python(),
        Ecosystem::Node => run.install_node(),
    }
}

/// Writing goes to the two folders; what is hidden from tools stays hidden, but for the installer's own settings. The
/// network is open as far as the user's settings allow.
fn installer_confinement(
    request: &PackageInstall<'_>,
    temporary: &Path,
) -> Result<(Option<Confinement>, ProcessLimits)> {
    let engine = request.engine;
    let roots = &engine.workspace.roots;
    let policy = engine.policies()?.sandbox;
    let paths = sandbox::SandboxPaths {
        project: request.folder.to_owned(),
        project_ai: request.folder.join(AI_FOLDER),
        user_ai: roots.user_ai(),
        home: engine.host.home.clone(),
        homes: run_dirs::home_dirs(engine),
        approved_projects: Vec::new(),
        program_folders: run_dirs::program_folders(request.environment),
        cache: roots.cache.clone(),
        key_files: engine.key_files(),
        temporary: Some(temporary.to_owned()),
        required: Vec::new(),
    };
    let mut plan = sandbox::plan(&policy, Some(&json!({"network": true})), &paths, &engine.host.variables)
        .map_err(|error| run_plan::sandbox_error(request.chain.tool().item().item_ref(), &error))?;
    let readable = installer_env::credentials_file(engine, request.requested.ecosystem);
    plan.add_visible(installer_env::installer_paths(engine, request.requested.ecosystem));
    // The folder is new: it has no names to protect.
    plan.access.write = vec![request.folder.to_owned(), temporary.to_owned()];
    plan.access.read_only.clear();
    plan.access.hidden.retain(|hidden| *hidden != readable);
    let sandbox = plan.confine_new_folder();
    let confinement = sandbox.map(|mut confinement| {
        confinement.read = ReadAccess::Everything;
        confinement
    });
    Ok((confinement, plan.limits))
}

impl InstallerRun<'_> {
    fn install_python(&self) -> Result<Vec<LockedPackage>> {
        let engine = self.install.engine;
        let base =
            base_interpreter(self.install.chain, self.install.environment, Ecosystem::Python.variable())?;
        self.check_interpreter(&base)?;
        let base = self.resolve_python(base)?;
        let environment = self.install.folder.join(VENV_FOLDER);
        let uv = environment::find_on_path("uv", &self.path);
        match packages::choose_installer(uv, installer_env::index_settings(engine)) {
            Installer::Uv(uv) => self.install_with_uv(&uv, &base, &environment),
            Installer::Pip => self.install_with_pip(&base, &environment),
        }
    }

    /// Refuses an interpreter that only an item leads to: it would run with the installer's network and credentials,
    /// which are more than the tool's.
    fn check_interpreter(&self, base: &Path) -> Result<()> {
        let named = self.install.engine.host.variables.get(Ecosystem::Python.variable());
        let name = base.file_name().unwrap_or_default();
        let mut folders = self.path.split(':').map(Path::new);
        if named.is_some_and(|named| Path::new(named) == base)
            || folders.any(|folder| folder.join(name) == base)
        {
            return Ok(());
        }
        let path_text = one_line(&base.display().to_string());
        let folder = one_line(&base.parent().unwrap_or(base).display().to_string());
        Err(self
            .install_error(&format!(
                "`{path_text}` is not on your PATH, and packages are installed with your own Python only"
            ))
            .hint(format!("put the folder `{folder}` on your PATH and run it again")))
    }

    /// The interpreter itself: what stands for it on the PATH may be a version manager's script, which does more.
    fn resolve_python(&self, base: PathBuf) -> Result<PathBuf> {
        let arguments = ["-c", "import sys; print(sys.executable)"].map(str::to_owned).to_vec();
        let finished = self.run_command(&InstallerCommand { program: base.clone(), arguments })?;
        let executable = PathBuf::from(finished.stdout.to_text().trim());
        Ok(if finished.exit == ExitReason::Exited(0) && executable.is_absolute() && executable.is_file() {
            executable
        } else {
            base
        })
    }

    fn install_with_uv(&self, uv: &Path, base: &Path, environment: &Path) -> Result<Vec<LockedPackage>> {
        let settings = installer_env::uv_settings(self.install.engine);
        let (settings, cache) = (settings.as_deref(), self.temporary.join("uv"));
        self.run_checked(&packages::uv_venv(uv, settings, &cache, base, environment))?;
        let pins = self.temporary.join("pins.txt");
        let installed = match self.install.pins {
            Some(pinned) => {
                self.write(&pins, &packages::pins_file(pinned))?;
                pinned.to_vec()
            }
            None => {
                let requirements = self.write_requirements()?;
                self.run_checked(&packages::uv_compile(
                    uv,
                    settings,
                    &cache,
                    environment,
                    (&requirements, &pins),
                ))?;
                let text = String::from_utf8_lossy(&self.read(&pins)?).into_owned();
                let compiled = packages::parse_compiled(&text).map_err(|error| self.report_error(&error))?;
                // Written again, so that what is installed is what was understood.
                self.write(&pins, &packages::pins_file(&compiled))?;
                compiled
            }
        };
        self.run_checked(&packages::uv_install(uv, settings, &cache, environment, &pins))?;
        Ok(installed)
    }

    fn install_with_pip(&self, base: &Path, environment: &Path) -> Result<Vec<LockedPackage>> {
        let pip = self.prepare_pip(base, environment)?;
        let report = self.temporary.join("report.json");
        let file = match self.install.pins {
            Some(pins) => {
                let path = self.temporary.join("pins.txt");
                self.write(&path, &packages::pins_file(pins))?;
                path
            }
            None => self.write_requirements()?,
        };
        self.run_checked(&packages::pip_install(&pip, &file, &report, self.install.pins.is_some()))?;
        let found =
            packages::parse_pip_report(&self.read(&report)?).map_err(|error| self.report_error(&error))?;
        // Hashes were checked by pip, against all that are pinned.
        Ok(self.install.pins.map_or(found, <[LockedPackage]>::to_vec))
    }

    /// An environment, and how pip is called on it: the interpreter's pip works on another environment if it is not
    /// too old, which saves each one a copy; otherwise the environment gets its own.
    fn prepare_pip(&self, base: &Path, environment: &Path) -> Result<InstallerCommand> {
        let environment_text = environment.display().to_string();
        let python = packages::venv_python(environment);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let step = |program: &Path, list: &[&str]| InstallerCommand {
            program: program.to_owned(),
            arguments: words(list),
        };
        let version_output = self.run_command(&step(base, &["-m", "pip", "--version"]))?;
        let version = packages::parse_pip_version(&version_output.stdout.to_text());
        if version_output.exit == ExitReason::Exited(0)
            && version.is_some_and(|version| version >= packages::MIN_PIP_VERSION)
        {
            self.run_checked(&step(base, &["-m", "venv", "--without-pip", &environment_text]))?;
            return Ok(step(base, &["-m", "pip", "--python", &python.display().to_string()]));
        }
        self.run_checked(&step(base, &["-m", "venv", &environment_text]))?;
        Ok(step(&python, &["-m", "pip"]))
    }

    fn install_node(&self) -> Result<Vec<LockedPackage>> {
        let folder = self.install.folder;
        let npm = environment::find_on_path("npm", &self.path).ok_or_else(|| {
            self.install_error("npm was not found")
                .hint("install Node with npm, and see that it is on the PATH")
        })?;
        let pins = self.install.pins;
        self.write(
            &folder.join("package.json"),
            &packages::package_json(&self.install.requested.requirements, pins),
        )?;
        let cache = self.temporary.join("npm");
        self.run_checked(&packages::npm_lock_command(&npm, folder, &cache))?;
        let lock = self.read(&folder.join("package-lock.json"))?;
        let found = packages::parse_package_lock(&lock).map_err(|error| self.report_error(&error))?;
        if pins.is_some_and(|pins| !PackageRecord::new(found.clone()).matches(pins)) {
            return Err(
                self.mismatch_error("the registry returned different packages than the lockfile pins")
            );
        }
        self.run_checked(&packages::npm_install_command(&npm, folder, &cache))?;
        // The file that npm installs from must not have changed since it was read.
        if self.read(&folder.join("package-lock.json"))? != lock {
            return Err(self.install_error("`package-lock.json` changed while it was used"));
        }
        file::create_dirs(&folder.join(super::NODE_MODULES), true)?;
        Ok(found)
    }

    fn write_requirements(&self) -> Result<PathBuf> {
        let path = self.temporary.join("asked.txt");
        self.write(&path, &packages::requirements_file(&self.install.requested.requirements))?;
        Ok(path)
    }

    fn write(&self, path: &Path, text: &str) -> Result<()> {
        Ok(file::write_atomic(path, text.as_bytes(), FileMode::Preserve)?)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let (bytes, _) = file::read_bounded(path, MAX_REPORT_BYTES).map_err(|error| Error::read(&error))?;
        Ok(bytes)
    }

    fn run_command(&self, step: &InstallerCommand) -> Result<ProcessResult> {
        let command = ProcessCommand {
            program: step.program.clone().into_os_string(),
            arguments: step.arguments.clone(),
            environment: self.variables.clone(),
            current_dir: self.temporary.clone(),
            stdin: Vec::new(),
            timeout: INSTALL_TIMEOUT,
            has_result_channel: false,
            limits: self.limits.clone(),
            log: None,
        };
        let launcher = &self.install.engine.host.launcher;
        let finished = process::run(launcher, &command, self.confinement.as_ref(), self.install.cancel)
            .map_err(super::super::run::start_error)?;
        let helper = HelperRun {
            kind: "packages",
            command: vec![step.program.display().to_string()],
            receipt: finished.receipt.clone(),
        };
        let mut helpers = self.install.helpers.borrow_mut();
        // One row for each way of being confined: an installation takes many calls.
        if !helpers.iter().any(|known| known.receipt == helper.receipt) {
            helpers.push(helper);
        }
        Ok(finished)
    }

    /// Runs a step that must work.
    fn run_checked(&self, step: &InstallerCommand) -> Result<()> {
        let finished = self.run_command(step)?;
        let (stdout, stderr) = (finished.stdout.to_text(), finished.stderr.to_text());
        let why = match finished.exit {
            ExitReason::Exited(0) => return Ok(()),
            ExitReason::Cancelled => {
                return Err(Error::new(
                    Code::ToolCancelled,
                    "the run was cancelled while packages were installed",
                )
                .for_item(self.install.chain.tool().item().item_ref()));
            }
            ExitReason::TimedOut => format!("it took longer than {} seconds", INSTALL_TIMEOUT.as_secs()),
            ExitReason::Exited(code) => format!("the installer ended with {code}"),
            ExitReason::Signalled(signal) => format!("the installer was ended by signal {signal}"),
            ExitReason::TooManyProcesses { limit } => {
                format!("the installer started more than {limit} processes")
            }
            ExitReason::SupervisorLost => "its supervisor was killed or did not answer".to_owned(),
        };
        let lines = packages::last_lines(&stdout, &stderr, &Secrets::from_environment(&self.variables));
        let error_line =
            lines.iter().rev().find(|line| line.to_lowercase().contains("error")).or(lines.last());
        let why = error_line.map_or(why.clone(), |line| format!("{why}: {line}"));
        let error = if packages::is_hash_mismatch(&stdout) || packages::is_hash_mismatch(&stderr) {
            self.mismatch_error("the index returned a different file than the lockfile pins")
        } else {
            self.install_error(&why)
                .hint("package sources come from your own pip, uv or npm settings, never from the project's")
        };
        Err(error.detail("output", json!(lines)))
    }

    fn install_error(&self, why: &str) -> Error {
        let tool = self.install.chain.tool();
        Error::new(Code::Dependencies, format!("the packages of {} could not be installed: {why}", tool.id()))
            .for_item(tool.item().item_ref())
    }

    fn mismatch_error(&self, why: &str) -> Error {
        let tool = self.install.chain.tool();
        Error::new(Code::LockMismatch, format!("the packages of {} are not the pinned ones: {why}", tool.id()))
            .for_item(tool.item().item_ref())
            .hint("wheels differ between systems and Python versions: pin where it runs, or ask who changed the index")
    }

    fn report_error(&self, error: &PackageError) -> Error {
        self.install_error(&error.to_string()).hint("a newer pip (22.3 or later), uv or npm may be needed")
    }
}
