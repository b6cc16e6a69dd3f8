//! Finding the interpreter a runtime asks for. A program of the project counts only for project tools of an approved
//! project; everywhere else the search continues as if it were not there, and says so.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use rye_item::text::one_line;
use rye_space::roots::{self, ProjectFinder};
use serde_json::{Map, Value};

use super::policy::EnvironmentPolicy;
use super::search_path::is_executable;
use super::{Contribution, EnvironmentError, EnvironmentInputs, invalid_value};

/// How programs are looked up and asked. The caller decides how: this module starts nothing.
pub trait ProgramFinder {
    /// The program `name` on the search path `path`: an absolute path. [`super::find_on_path`] does it.
    fn find(&self, name: &str, path: &str) -> Option<PathBuf>;

    /// What the command of a `resolve_cmd` prints. It runs as the tool itself would: confined like it, with no more than
    /// its `variables`.
    fn run_command(&self, command: &[String], variables: &BTreeMap<String, String>) -> CommandOutput;

    /// Whether a program of the project is what the user has recorded.
    ///
    /// # Errors
    /// Why it is not used, with the command that records it.
    fn check_recorded(&self, program: &Path) -> Result<(), String>;
}

/// What came of a `resolve_cmd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutput {
    /// It succeeded and printed this.
    Printed(String),
    /// It was started and failed, or could not be started; the reason.
    Failed(String),
    /// It was not started, because nothing is started now.
    DryRun,
}

/// An interpreter that is asked for, all templates filled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InterpreterRequest {
    pub variable: String,
    kind: InterpreterKind,
    fallback: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum InterpreterKind {
    Local { names: Vec<String>, folders: Vec<String>, roots: Vec<String> },
    System { binary: String },
    Command { command: Vec<String> },
}

/// The variable an element's interpreter sets.
pub(super) fn interpreter_variable(
    config: Option<&Map<String, Value>>,
    policy: &EnvironmentPolicy,
) -> Option<String> {
    let config = config?.get("interpreter")?.as_object()?;
    let alias = config.get("type").and_then(Value::as_str).and_then(|kind| policy.interpreter_alias(kind));
    let variable = config.get("var").or_else(|| alias?.get("var"))?;
    variable.as_str().map(str::to_owned)
}

impl InterpreterRequest {
    /// Reads an `interpreter`; older type names become what the policy says they stand for. `None` without a `var`.
    pub(super) fn new(
        item: &str,
        config: &Value,
        policy: &EnvironmentPolicy,
        fill: impl Fn(&str, &dyn Fn(&str) -> Option<String>) -> String,
    ) -> Result<Option<Self>, EnvironmentError> {
        let own = config.as_object().ok_or_else(|| invalid_value(item, "env_config.interpreter", "a map"))?;
        let mut fields = own.clone();
        let named = own.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some(alias) = policy.interpreter_alias(named) {
            fields = alias.clone();
            fields.extend(own.iter().filter(|(key, _)| *key != "type").map(|(k, v)| (k.clone(), v.clone())));
        }
        let field = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let filled = |text: &str| fill(text, &field);
        let text = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(filled(text))),
            Some(_) => Err(invalid_value(item, format!("env_config.interpreter.{key}"), "a text")),
        };
        let list = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(value) => {
                let wrong =
                    || invalid_value(item, format!("env_config.interpreter.{key}"), "a list of texts");
                let texts = value.as_array().ok_or_else(wrong)?.iter();
                texts.map(|text| text.as_str().map(filled)).collect::<Option<Vec<_>>>().ok_or_else(wrong)
            }
        };
        let required = |key: &str| {
            text(key)?.filter(|text| !text.is_empty()).ok_or_else(|| {
                invalid_value(item, format!("env_config.interpreter.{key}"), "there, and not empty")
            })
        };
        let kind = match fields.get("type").and_then(Value::as_str).unwrap_or_default() {
            "local_binary" => {
                let mut names = vec![required("binary")?];
                names.extend(list("candidates")?);
                InterpreterKind::Local { names, folders: list("search_paths")?, roots: list("search_roots")? }
            }
            "system_binary" => InterpreterKind::System { binary: required("binary")? },
            "command" => InterpreterKind::Command { command: list("resolve_cmd")? },
            other => {
                return Err(EnvironmentError::UnknownInterpreter {
                    item: item.to_owned(),
                    kind: one_line(other),
                });
            }
        };
        let fallback = text("fallback")?.filter(|text| !text.is_empty());
        Ok(text("var")?.map(|variable| Self { variable, kind, fallback }))
    }
}

const PROJECT_PROGRAM_REASON: &str =
    "programs of a project serve only the project's own tools, once it is approved";

/// Whether a program may serve.
enum ProgramStatus {
    Usable,
    /// It is not a program.
    NotFound,
    /// It is the project's, and the project's programs do not serve here.
    NotAllowed,
    /// It is the project's, and not what the user has recorded.
    NotRecorded(String),
}

/// What came of a search.
#[derive(Debug, Default)]
pub(super) struct InterpreterLookup {
    pub path: Option<PathBuf>,
    /// What would be asked for the path, where nothing is started now.
    pub pending: Option<String>,
    pub notices: Vec<String>,
    /// The interpreter, if it was not found.
    pub missing: Option<MissingInterpreter>,
}

/// An interpreter that is not there, for an error or a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingInterpreter {
    /// The element that asks for it.
    pub element: String,
    /// The variable that would hold its path.
    pub variable: String,
    /// What it is called, in backticks.
    pub program: String,
    /// Where it was looked for.
    pub places: String,
    /// Which programs were found and not used, and why.
    pub unused: Vec<String>,
}

/// What a `resolve_cmd` is run with.
struct CommandContext<'a> {
    contribution: &'a Contribution<'a>,
    path: &'a str,
    variables: &'a BTreeMap<String, String>,
    finder: &'a dyn ProgramFinder,
}

/// A program that may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedCommand {
    /// The command, or the program that stands in for it.
    pub command: String,
    /// Which program is not used, and why.
    pub notice: Option<String>,
}

/// What a search has to know of the project.
#[derive(Debug)]
pub(super) struct InterpreterSearch<'a> {
    inputs: &'a EnvironmentInputs<'a>,
    /// Whether programs of the project may serve.
    allows_project_programs: bool,
    canonical_project: Option<PathBuf>,
    /// Whether the user's home lies in the project: then what lies there is the user's own.
    contains_home: bool,
}

impl<'a> InterpreterSearch<'a> {
    pub(super) fn new(inputs: &'a EnvironmentInputs<'a>, is_project_tool: bool) -> Self {
        let project = inputs.project;
        let home = inputs.host_variables.get("HOME").map(Path::new).filter(|home| home.is_absolute());
        let real_project = project.and_then(|project| fs_err::canonicalize(project).ok());
        Self {
            inputs,
            allows_project_programs: is_project_tool
                && inputs.is_project_approved
                && inputs.allows_project_programs,
            contains_home: home.is_some_and(|home| {
                let folders = project.into_iter().chain(real_project.as_deref());
                folders.into_iter().any(|project| home.starts_with(project))
            }),
            canonical_project: real_project,
        }
    }

    /// Whether a folder belongs to the project, by its name or by where it really is.
    fn is_in_project(&self, folder: &Path) -> bool {
        self.is_below_project(folder) || folder.canonicalize().is_ok_and(|real| self.is_below_project(&real))
    }

    fn is_below_project(&self, path: &Path) -> bool {
        self.inputs.project.is_some_and(|project| path.starts_with(project))
            || self.canonical_project.as_ref().is_some_and(|real| path.starts_with(real))
    }

    fn project_finder(&self) -> ProjectFinder<'a> {
        let home = self.inputs.host_variables.get("HOME").map_or("", String::as_str);
        ProjectFinder::new(self.inputs.user_space, Path::new(home))
    }

    /// Whether a folder belongs to another project, whose tools can write there.
    fn is_in_other_project(&self, folder: &Path) -> bool {
        !self.is_in_project(folder) && self.project_finder().project_above(folder).is_some()
    }

    /// A search path for tools; what it lost, and why entries of it come last. It has no relative entries, none of other
    /// projects, and none of a project that is not approved. A folder of this project comes last unless it is unchanged
    /// recorded: tools can write there, and what they write must not stand in for a program of the system.
    pub(super) fn clean_path(
        &self,
        path: &str,
        finder: &dyn ProgramFinder,
    ) -> (String, Vec<String>, Vec<String>) {
        let is_guarded = !self.inputs.is_project_approved && !self.contains_home;
        let (mut kept, mut last, mut dropped, mut notices) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut projects = self.project_finder();
        for entry in path.split(':').filter(|entry| !entry.is_empty()) {
            let folder = Path::new(entry);
            if roots::is_system_program_folder(folder) {
                kept.push(entry);
                continue;
            }
            let is_in_project = folder.is_absolute()
                && (self.is_below_project(folder) || self.is_below_project(&projects.real_path(folder)));
            if !folder.is_absolute() || !is_in_project && projects.project_above(folder).is_some() {
                dropped.push(entry.to_owned());
            } else if !is_in_project || self.contains_home && !is_in_package_folder(folder) {
                kept.push(entry);
            } else if is_guarded {
                dropped.push(entry.to_owned());
            } else {
                match if folder.is_dir() { finder.check_recorded(folder) } else { Ok(()) } {
                    Ok(()) => kept.push(entry),
                    Err(reason) => {
                        last.push(entry);
                        notices.extend(Some(reason).filter(|reason| !reason.is_empty()));
                    }
                }
            }
        }
        kept.append(&mut last);
        (kept.join(":"), dropped, notices)
    }

    fn filter_path(&self, path: &str, is_allowed: impl Fn(&Path) -> bool) -> (String, Vec<String>) {
        let (allowed, dropped): (Vec<&str>, Vec<&str>) = path
            .split(':')
            .filter(|entry| !entry.is_empty())
            .partition(|entry| Path::new(entry).is_absolute() && is_allowed(Path::new(entry)));
        (allowed.join(":"), dropped.into_iter().map(str::to_owned).collect())
    }

    pub(super) fn find(
        &self,
        contribution: &Contribution<'_>,
        request: &InterpreterRequest,
        variables: &BTreeMap<String, String>,
        finder: &dyn ProgramFinder,
    ) -> InterpreterLookup {
        let mut lookup = InterpreterLookup::default();
        let path = variables.get("PATH").map_or("", String::as_str);
        let path = if self.allows_project_programs || self.contains_home {
            path.to_owned()
        } else {
            self.filter_path(path, |entry| !self.is_in_project(entry)).0
        };
        lookup.path = self.find_in_environment(request, finder, &mut lookup.notices).or_else(|| {
            let found = match &request.kind {
                InterpreterKind::Local { names, folders, roots } => {
                    self.find_local((names, folders, roots), finder, &mut lookup.notices)
                }
                InterpreterKind::System { binary } => {
                    self.find_on_system(binary, &path, finder, &mut lookup.notices)
                }
                InterpreterKind::Command { command } => {
                    let search = CommandContext { contribution, path: &path, variables, finder };
                    self.run_resolve_command(command, &search, &mut lookup)
                }
            };
            found.or_else(|| {
                self.find_on_system(request.fallback.as_deref()?, &path, finder, &mut lookup.notices)
            })
        });
        if lookup.path.is_none() && lookup.pending.is_none() {
            let missing = MissingInterpreter {
                element: one_line(contribution.item_id),
                variable: one_line(&request.variable),
                program: one_line(&request.install_hint()),
                places: one_line(&request.searched_places(&path)),
                unused: lookup.notices.clone(),
            };
            lookup.notices.push(format!(
                "no interpreter for `{}` of `{}` was found: install {}",
                missing.variable, missing.element, missing.program,
            ));
            lookup.missing = Some(missing);
        }
        lookup
    }

    /// What the user's own environment says, where the policy lets it.
    fn find_in_environment(
        &self,
        request: &InterpreterRequest,
        finder: &dyn ProgramFinder,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        let EnvironmentInputs { host_variables: process, policy, .. } = *self.inputs;
        let value = process.get(&request.variable).filter(|value| !value.is_empty())?;
        if !policy.is_inherited(&request.variable) {
            return None;
        }
        let path = Path::new(value);
        match self.program_status(path, finder) {
            ProgramStatus::Usable => return Some(path.to_owned()),
            ProgramStatus::NotRecorded(reason) => notices.push(reason),
            ProgramStatus::NotFound | ProgramStatus::NotAllowed => notices.push(format!(
                "`{}` is ignored: it must be the full path of a program outside the project",
                one_line(&request.variable)
            )),
        }
        None
    }

    fn find_local(
        &self,
        (names, folders, roots): (&[String], &[String], &[String]),
        finder: &dyn ProgramFinder,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        let project = self.inputs.project;
        let own = roots.iter().filter(|root| !root.is_empty()).filter_map(|root| {
            let root = Path::new(root);
            if root.is_absolute() { Some(root.to_owned()) } else { project.map(|project| project.join(root)) }
        });
        let mut is_reported = false;
        for root in own.chain(project.map(Path::to_owned)) {
            for folder in folders.iter().map(Path::new).filter(|folder| has_no_parent_segments(folder)) {
                for name in names.iter().filter(|name| is_file_name(name)) {
                    let candidate = root.join(folder).join(name);
                    let reason = match self.program_status(&candidate, finder) {
                        ProgramStatus::NotFound => continue,
                        ProgramStatus::Usable => return Some(candidate),
                        ProgramStatus::NotRecorded(reason) => reason,
                        ProgramStatus::NotAllowed => {
                            let path_text = one_line(&candidate.display().to_string());
                            format!("`{path_text}` is not used: {PROJECT_PROGRAM_REASON}")
                        }
                    };
                    if !is_reported && self.inputs.allows_project_programs {
                        is_reported = true;
                        notices.push(reason);
                    }
                }
            }
        }
        None
    }

    fn find_on_system(
        &self,
        binary: &str,
        path: &str,
        finder: &dyn ProgramFinder,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        if Path::new(binary).is_absolute() {
            return self.usable_program(PathBuf::from(binary), finder, notices);
        }
        if !is_file_name(binary) {
            return None;
        }
        let found = finder.find(binary, path)?;
        self.usable_program(found, finder, notices).or_else(|| {
            let (outside, _) = self.filter_path(path, |entry| !self.is_in_project(entry));
            self.usable_program(finder.find(binary, &outside)?, finder, notices)
        })
    }

    fn usable_program(
        &self,
        program: PathBuf,
        finder: &dyn ProgramFinder,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        match self.program_status(&program, finder) {
            ProgramStatus::Usable => return Some(program),
            ProgramStatus::NotRecorded(reason) => notices.push(reason),
            ProgramStatus::NotFound | ProgramStatus::NotAllowed => {}
        }
        None
    }

    /// The program that `command` starts: itself, or, where its name on the PATH leads to a program of the project that
    /// may not serve, the next one outside the project.
    ///
    /// # Errors
    /// When it is a program of the project that may not serve here.
    pub(super) fn check_command(
        &self,
        command: &str,
        folder: &Path,
        path: &str,
        finder: &dyn ProgramFinder,
    ) -> Result<ResolvedCommand, String> {
        let unchanged = || ResolvedCommand { command: command.to_owned(), notice: None };
        let refusal = |program: &Path| match self.program_status(program, finder) {
            // What is not there is not started either, and said to be missing then.
            ProgramStatus::Usable | ProgramStatus::NotFound => None,
            ProgramStatus::NotRecorded(reason) => Some(reason),
            ProgramStatus::NotAllowed => {
                let path_text = one_line(&program.display().to_string());
                Some(format!("`{path_text}` is not used: {PROJECT_PROGRAM_REASON}"))
            }
        };
        if command.contains('/') {
            return refusal(&folder.join(command)).map_or_else(|| Ok(unchanged()), Err);
        }
        let Some(reason) = finder.find(command, path).and_then(|found| refusal(&found)) else {
            return Ok(unchanged());
        };
        let (outside, _) = self.filter_path(path, |entry| !self.is_in_project(entry));
        let next = finder.find(command, &outside).filter(|found| refusal(found).is_none());
        match next.and_then(|found| found.to_str().map(str::to_owned)) {
            Some(command) => Ok(ResolvedCommand { command, notice: Some(reason) }),
            None => Err(reason),
        }
    }

    fn run_resolve_command(
        &self,
        command: &[String],
        search: &CommandContext<'_>,
        lookup: &mut InterpreterLookup,
    ) -> Option<PathBuf> {
        let item = one_line(search.contribution.item_id);
        if search.contribution.is_project {
            lookup.notices.push(format!(
                "the `resolve_cmd` of `{item}` is not run: items of a project may not start programs to find others"
            ));
            return None;
        }
        let (program, arguments) = command.split_first()?;
        let program = self
            .find_on_system(program, search.path, search.finder, &mut lookup.notices)?
            .to_str()?
            .to_owned();
        let command: Vec<String> = std::iter::once(program).chain(arguments.iter().cloned()).collect();
        match search.finder.run_command(&command, search.variables) {
            CommandOutput::Printed(output) => {
                let found = PathBuf::from(output.lines().next()?.trim());
                self.usable_program(found, search.finder, &mut lookup.notices)
            }
            CommandOutput::Failed(reason) => {
                let reason = one_line(&reason);
                lookup.notices.push(format!("the `resolve_cmd` of `{item}` found nothing: {reason}"));
                None
            }
            CommandOutput::DryRun => {
                lookup.pending = Some(one_line(&command.join(" ")));
                lookup.notices.push(format!(
                    "the `resolve_cmd` of `{item}` is not run in a dry run: its interpreter is found when the tool runs"
                ));
                None
            }
        }
    }

    /// Whether it is a program, and one that may serve here.
    fn program_status(&self, path: &Path, finder: &dyn ProgramFinder) -> ProgramStatus {
        if !path.is_absolute() || path.to_str().is_none() || !is_executable(path) {
            return ProgramStatus::NotFound;
        }
        if !path.parent().is_some_and(|folder| self.is_project_program(path, folder)) {
            let is_foreign = path.parent().is_some_and(|folder| self.is_in_other_project(folder))
                || self.is_in_other_project(path);
            return if is_foreign { ProgramStatus::NotAllowed } else { ProgramStatus::Usable };
        }
        if !self.allows_project_programs {
            return ProgramStatus::NotAllowed;
        }
        match finder.check_recorded(path) {
            Ok(()) => ProgramStatus::Usable,
            Err(reason) => ProgramStatus::NotRecorded(reason),
        }
    }

    /// Whether the program, its folder or what it leads to belongs to the project.
    fn is_project_program(&self, path: &Path, folder: &Path) -> bool {
        let is_in = self.is_in_project(path) || self.is_in_project(folder);
        // In a project that holds the home, only what package managers put into it is the project's.
        is_in && (!self.contains_home || is_in_package_folder(path))
    }
}

fn is_in_package_folder(path: &Path) -> bool {
    let known = [".venv", "venv", "node_modules"];
    path.components().any(|component| known.iter().any(|name| component.as_os_str() == *name))
}

impl InterpreterRequest {
    fn install_hint(&self) -> String {
        match (&self.fallback, &self.kind) {
            (Some(fallback), _) => format!("`{fallback}`"),
            (None, InterpreterKind::Local { names, .. }) => format!("`{}`", names.join("` or `")),
            (None, InterpreterKind::System { binary }) => format!("`{binary}`"),
            (None, InterpreterKind::Command { command }) => format!("what `{}` looks for", command.join(" ")),
        }
    }
}

impl InterpreterRequest {
    /// Where it is looked for, in words.
    fn searched_places(&self, path: &str) -> String {
        let mut places = Vec::new();
        match &self.kind {
            InterpreterKind::Local { folders, .. } if !folders.is_empty() => {
                places.push(format!("`{}` of the project", folders.join("`, `")));
            }
            InterpreterKind::Command { command } => {
                places.push(format!("what `{}` prints", command.join(" ")))
            }
            InterpreterKind::Local { .. } | InterpreterKind::System { .. } => {}
        }
        if self.fallback.is_some() || matches!(self.kind, InterpreterKind::System { .. }) {
            places.push(if path.is_empty() {
                "an empty PATH".to_owned()
            } else {
                format!("the PATH {path}")
            });
        }
        places.join(", then ")
    }
}

/// A path and, where it is a link, what it leads to.
pub(super) fn path_and_target(path: &Path) -> Vec<PathBuf> {
    let target = fs_err::canonicalize(path).ok().filter(|target| target != path);
    std::iter::once(path.to_owned()).chain(target).collect()
}

fn has_no_parent_segments(folder: &Path) -> bool {
    folder.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
