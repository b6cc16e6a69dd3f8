//! Programs of projects: recorded when the user approves a project or updates a lockfile, compared at each run.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rye_exec::environment::{
    self, CommandOutput, Contribution, EnvironmentInputs, ProgramError, ProgramFinder, ProgramParts,
    TemplateContext,
};
use rye_item::text::{one_line, shell_word};
use rye_item::{ItemRef, ItemType};
use rye_space::AI_FOLDER;
use rye_space::programs::ProgramRecords;
use rye_space::roots;
use serde::Serialize;
use serde_json::{Value, json};

use crate::chain_cache;
use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::execute::project_programs;

mod review;

pub use review::{NewProgram, ProgramReview};

/// How deep folders of tools are looked through for programs of their own.
const MAX_DEPTH: usize = 16;
/// Folders that package managers fill.
const PACKAGE_FOLDERS: [&str; 3] = [".venv", "venv", "node_modules"];

/// Folders of programs that people put on their PATH.
const PROGRAM_FOLDERS: [&str; 3] = [".venv/bin", "venv/bin", "node_modules/.bin"];

/// What came of recording programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramRecordReport {
    /// The programs, below the project.
    pub programs: Vec<String>,
    /// Programs that are not used, and why.
    pub skipped: Vec<String>,
}

/// The recorded programs of the engine's project, read when one is asked for.
pub(crate) struct ProgramChecker<'a> {
    engine: &'a Engine,
    records: OnceCell<ProgramRecords>,
    checked: RefCell<BTreeMap<PathBuf, std::result::Result<(), String>>>,
}

impl<'a> ProgramChecker<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine, records: OnceCell::new(), checked: RefCell::default() }
    }

    /// Whether a program of the project is what was recorded.
    ///
    /// # Errors
    /// Why it is not used, with the command that records it.
    pub(crate) fn check(&self, program: &Path) -> std::result::Result<(), String> {
        if let Some(known) = self.checked.borrow().get(program) {
            return known.clone();
        }
        let result = self.compare(program);
        self.checked.borrow_mut().insert(program.to_owned(), result.clone());
        result
    }

    fn compare(&self, program: &Path) -> std::result::Result<(), String> {
        let workspace = &self.engine.workspace;
        let path_text = one_line(&program.display().to_string());
        let Some(project) = workspace.roots.project.as_deref() else {
            return Err(format!("`{path_text}` is not used: not inside a project"));
        };
        let records =
            self.records.get_or_init(|| ProgramRecords::read(&workspace.roots.user_ai(), &workspace.keys));
        if let Some(problem) = &records.problem {
            return Err(format!("`{path_text}` is not used: {}", one_line(problem)));
        }
        let real = roots::canonicalize_existing(project);
        let command = format!("rye trust {}", shell_word(&real.display().to_string()));
        let key = real.to_str().zip(record_key(project, program));
        let consequence = if program.is_dir() { "comes last on the PATH" } else { "is not used" };
        let Some(record) = key.and_then(|(project, path)| records.find(project, &path)) else {
            return Err(format!(
                "`{path_text}` {consequence}: tools can write there, and it is not recorded; look at it, and if it is yours, record it: {command}"
            ));
        };
        let parts = collect_parts(self.engine, program, project);
        let parts = parts.map_err(|error| format!("`{path_text}` is not used: {error}"))?;
        let is_same =
            parts.stamp() == record.stamp || parts.digest().is_ok_and(|digest| digest == record.digest);
        if is_same {
            return Ok(());
        }
        let changed =
            if program.is_dir() { "a program in it" } else { "it, or a file it loads when it starts," };
        Err(format!(
            "`{path_text}` {consequence}: {changed} changed since it was recorded; look at it, and if you changed it, \
             record it again: {command}"
        ))
    }
}

/// In a project that holds the user's home, what lies outside package folders is the user's own.
fn collect_parts(
    engine: &Engine,
    program: &Path,
    project: &Path,
) -> std::result::Result<ProgramParts, ProgramError> {
    if !engine.host.home.starts_with(project) {
        return ProgramParts::collect(program, project);
    }
    let is_package =
        |path: &Path| path.file_name().is_some_and(|name| PACKAGE_FOLDERS.iter().any(|known| name == *known));
    let folder = program.ancestors().find(|path| is_package(path)).unwrap_or(project);
    ProgramParts::collect(program, folder)
}

/// How a record names a program.
fn record_key(project: &Path, program: &Path) -> Option<String> {
    program.strip_prefix(project).unwrap_or(program).to_str().map(str::to_owned)
}

/// The search path for programs that run with more than a tool's rights: installers, credential helpers. Nothing of it lies
/// in a project, this one or another, approved or not: tools can write there.
pub(crate) fn search_path(engine: &Engine, path: &str) -> String {
    let roots = &engine.workspace.roots;
    let is_outside = |entry: &&str| {
        let entry = Path::new(entry);
        if !entry.is_absolute() || roots::project_above(entry, &roots.user, &engine.host.home).is_some() {
            return false;
        }
        let Some(project) = &roots.project else { return true };
        engine.host.home.starts_with(project)
            || !entry.starts_with(project) && !roots::is_at_or_below(entry, project)
    };
    path.split(':').filter(is_outside).collect::<Vec<_>>().join(":")
}

/// Notes every program of the project that is looked at, and uses none.
#[derive(Default)]
pub(crate) struct ProgramCollector {
    pub(crate) programs: RefCell<BTreeSet<PathBuf>>,
}

impl ProgramFinder for ProgramCollector {
    fn find(&self, name: &str, path: &str) -> Option<PathBuf> {
        environment::find_on_path(name, path)
    }

    fn run_command(&self, _: &[String], _: &BTreeMap<String, String>) -> CommandOutput {
        CommandOutput::DryRun
    }

    fn check_recorded(&self, program: &Path) -> std::result::Result<(), String> {
        self.programs.borrow_mut().insert(program.to_owned());
        Err(String::new())
    }
}

/// The programs that runtimes look for in the project `folder`, as they are now.
///
/// # Errors
/// When the record is damaged.
pub fn review_project(engine: &Engine, folder: &Path) -> Result<ProgramReview> {
    let collector = ProgramCollector::default();
    let policies = engine.policies()?;
    let inputs = EnvironmentInputs {
        host_variables: &engine.host.variables,
        project: Some(folder),
        user_space: &engine.workspace.roots.user,
        is_project_approved: true,
        policy: &policies.environment,
        allows_project_programs: true,
    };
    let mut roots = vec![folder.to_owned()];
    collect_tool_roots(&folder.join(AI_FOLDER).join(ItemType::Tool.folder()), 0, &mut roots);
    for interpreter in declared_interpreters(engine) {
        let env_config = json!({"interpreter": interpreter});
        for root in &roots {
            let place = root.display().to_string();
            let context = TemplateContext {
                anchor_path: place.clone(),
                tool_dir: place,
                project_path: folder.display().to_string(),
                ..TemplateContext::default()
            };
            let contribution =
                Contribution { item_id: "runtime", is_project: true, env_config: Some(&env_config) };
            // An interpreter that is described wrongly is reported when a tool uses it.
            let _ = environment::resolve(&[contribution], &context, &inputs, &collector);
        }
    }
    let (mut folders, programs): (BTreeSet<PathBuf>, Vec<PathBuf>) = {
        let found = collector.programs.take().into_iter();
        let (folders, programs): (Vec<_>, Vec<_>) = found.partition(|path| path.is_dir());
        (folders.into_iter().collect(), programs)
    };
    for root in &roots {
        folders.extend(PROGRAM_FOLDERS.map(|name| root.join(name)).into_iter().filter(|path| path.is_dir()));
    }
    let programs: Vec<PathBuf> = programs.into_iter().chain(folders).collect();
    review::review(engine, folder, &programs)
}

/// The programs of the project that these tools may run on, as they are now.
///
/// # Errors
/// When the record is damaged.
pub fn review_tools<'a>(
    engine: &Engine,
    tools: impl IntoIterator<Item = &'a ItemRef>,
) -> Result<ProgramReview> {
    let Some(project) = &engine.workspace.roots.project else { return Ok(ProgramReview::default()) };
    let mut programs = BTreeSet::new();
    for item in tools {
        // A chain that cannot be built runs on no program of the project.
        if let Ok((chain, _)) = chain_cache::build_valid_chain(engine, item, None) {
            // What cannot be staged is reported when the tool is pinned or run.
            programs.extend(project_programs(engine, &chain).unwrap_or_default());
        }
    }
    review::review(engine, project, &programs.into_iter().collect::<Vec<_>>())
}

/// What all tools of all spaces say of their interpreters.
fn declared_interpreters(engine: &Engine) -> Vec<Value> {
    let spaces = &engine.workspace.spaces;
    let mut found: Vec<Value> = Vec::new();
    for space in spaces.order() {
        for entry in spaces.scan(&space, &[ItemType::Tool]).entries {
            let candidates = spaces.candidate_paths(&entry.item).into_iter();
            let candidate =
                candidates.filter(|candidate| candidate.is_found).find(|candidate| candidate.space == space);
            let Some(located) = candidate.and_then(|candidate| spaces.read(&entry.item, &candidate).ok())
            else {
                continue;
            };
            let interpreter = located.fields().get("env_config").and_then(|config| config.get("interpreter"));
            if let Some(interpreter) = interpreter.filter(|known| !found.contains(known)) {
                found.push(interpreter.clone());
            }
        }
    }
    found
}

/// Folders of tools that have packages of their own.
fn collect_tool_roots(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs_err::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if PACKAGE_FOLDERS.iter().any(|name| entry.file_name() == *name) {
            if !found.iter().any(|known| known == folder) {
                found.push(folder.to_owned());
            }
        } else if is_folder && depth < MAX_DEPTH {
            collect_tool_roots(&entry.path(), depth + 1, found);
        }
    }
}
