//! Finding the interpreter a runtime asks for. A program of the project counts only for project tools of an approved
//! project; everywhere else the search goes on as if it were not there, and says so.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use rye_item::text::one_line;
use serde_json::{Map, Value};

use super::policy::Policy;
use super::search::is_executable;
use super::{Contribution, EnvironmentError, Surroundings, shape};

/// How programs are looked up and asked. The caller decides how: this module starts nothing.
pub trait Which {
    /// The program `name` on the search path `path`: an absolute path. [`super::find_on_path`] does it.
    fn find(&self, name: &str, path: &str) -> Option<PathBuf>;

    /// What the command of a `resolve_cmd` prints. It runs as the tool itself would: confined like it, with no more than
    /// its `variables`.
    fn output(&self, command: &[String], variables: &BTreeMap<String, String>) -> CommandOutput;

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
pub(super) struct Request {
    pub variable: String,
    kind: Kind,
    fallback: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Local { names: Vec<String>, folders: Vec<String>, roots: Vec<String> },
    System { binary: String },
    Command { command: Vec<String> },
}

/// The variable an element's interpreter sets.
pub(super) fn variable(config: Option<&Map<String, Value>>, policy: &Policy) -> Option<String> {
    let config = config?.get("interpreter")?.as_object()?;
    let alias = config.get("type").and_then(Value::as_str).and_then(|kind| policy.interpreter(kind));
    let variable = config.get("var").or_else(|| alias?.get("var"))?;
    variable.as_str().map(str::to_owned)
}

impl Request {
    /// Reads an `interpreter`; older type names become what the policy says they stand for. `None` without a `var`.
    pub(super) fn new(
        item: &str,
        config: &Value,
        policy: &Policy,
        fill: impl Fn(&str, &dyn Fn(&str) -> Option<String>) -> String,
    ) -> Result<Option<Self>, EnvironmentError> {
        let own = config.as_object().ok_or_else(|| shape(item, "env_config.interpreter", "a map"))?;
        let mut fields = own.clone();
        let named = own.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some(alias) = policy.interpreter(named) {
            fields = alias.clone();
            fields.extend(own.iter().filter(|(key, _)| *key != "type").map(|(k, v)| (k.clone(), v.clone())));
        }
        let field = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let filled = |text: &str| fill(text, &field);
        let text = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(filled(text))),
            Some(_) => Err(shape(item, format!("env_config.interpreter.{key}"), "a text")),
        };
        let list = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(value) => {
                let wrong = || shape(item, format!("env_config.interpreter.{key}"), "a list of texts");
                let texts = value.as_array().ok_or_else(wrong)?.iter();
                texts.map(|text| text.as_str().map(filled)).collect::<Option<Vec<_>>>().ok_or_else(wrong)
            }
        };
        let required = |key: &str| {
            text(key)?
                .filter(|text| !text.is_empty())
                .ok_or_else(|| shape(item, format!("env_config.interpreter.{key}"), "there, and not empty"))
        };
        let kind = match fields.get("type").and_then(Value::as_str).unwrap_or_default() {
            "local_binary" => {
                let mut names = vec![required("binary")?];
                names.extend(list("candidates")?);
                Kind::Local { names, folders: list("search_paths")?, roots: list("search_roots")? }
            }
            "system_binary" => Kind::System { binary: required("binary")? },
            "command" => Kind::Command { command: list("resolve_cmd")? },
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

const NOT_ALLOWED: &str = "programs of a project serve only the project's own tools, once it is approved";

/// Whether a program may serve.
enum Usability {
    Usable,
    /// It is no program.
    NotThere,
    /// It is the project's, and the project's programs do not serve here.
    NotAllowed,
    /// It is the project's, and not what the user has recorded.
    NotRecorded(String),
}

/// What came of a search.
#[derive(Debug, Default)]
pub(super) struct Finding {
    pub path: Option<PathBuf>,
    /// What would be asked for the path, where nothing is started now.
    pub pending: Option<String>,
    pub notices: Vec<String>,
}

/// What a `resolve_cmd` is run with.
struct CommandSearch<'a> {
    item: &'a Contribution<'a>,
    path: &'a str,
    variables: &'a BTreeMap<String, String>,
    which: &'a dyn Which,
}

/// A program that may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedCommand {
    /// The command, or the program that stands in for it.
    pub command: String,
    /// Which program is not used, and why.
    pub notice: Option<String>,
}

/// What a search has to know of the project.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    surroundings: &'a Surroundings<'a>,
    /// Whether programs of the project may serve.
    is_local_allowed: bool,
    real_project: Option<PathBuf>,
    /// Whether the user's home lies in the project: then what lies there is the user's own.
    is_home: bool,
}

impl<'a> Scene<'a> {
    pub(super) fn new(surroundings: &'a Surroundings<'a>, is_project_tool: bool) -> Self {
        let project = surroundings.project;
        let home = surroundings.process.get("HOME").map(Path::new).filter(|home| home.is_absolute());
        let real_project = project.and_then(|project| fs_err::canonicalize(project).ok());
        Self {
            surroundings,
            is_local_allowed: is_project_tool
                && surroundings.is_project_approved
                && surroundings.uses_project_programs,
            is_home: home.is_some_and(|home| {
                let folders = project.into_iter().chain(real_project.as_deref());
                folders.into_iter().any(|project| home.starts_with(project))
            }),
            real_project,
        }
    }

    /// Whether a folder belongs to the project, by its name or by where it really is.
    fn is_in_project(&self, folder: &Path) -> bool {
        let Some(project) = self.surroundings.project else {
            return false;
        };
        let is_below = |path: &Path| {
            path.starts_with(project) || self.real_project.as_ref().is_some_and(|real| path.starts_with(real))
        };
        is_below(folder) || folder.canonicalize().is_ok_and(|real| is_below(&real))
    }

    /// A search path without relative entries, and without the project's where it is not approved; and what it lost.
    pub(super) fn clean_path(&self, path: &str) -> (String, Vec<String>) {
        let is_guarded = !self.surroundings.is_project_approved && !self.is_home;
        self.filter_path(path, |entry| !(is_guarded && self.is_in_project(entry)))
    }

    fn filter_path(&self, path: &str, is_kept: impl Fn(&Path) -> bool) -> (String, Vec<String>) {
        let (kept, dropped): (Vec<&str>, Vec<&str>) = path
            .split(':')
            .filter(|entry| !entry.is_empty())
            .partition(|entry| Path::new(entry).is_absolute() && is_kept(Path::new(entry)));
        (kept.join(":"), dropped.into_iter().map(str::to_owned).collect())
    }

    pub(super) fn find(
        &self,
        contribution: &Contribution<'_>,
        request: &Request,
        variables: &BTreeMap<String, String>,
        which: &dyn Which,
    ) -> Finding {
        let mut finding = Finding::default();
        let path = variables.get("PATH").map_or("", String::as_str);
        let path = if self.is_local_allowed || self.is_home {
            path.to_owned()
        } else {
            self.filter_path(path, |entry| !self.is_in_project(entry)).0
        };
        finding.path = self.given(request, which, &mut finding.notices).or_else(|| {
            let found = match &request.kind {
                Kind::Local { names, folders, roots } => {
                    self.local((names, folders, roots), which, &mut finding.notices)
                }
                Kind::System { binary } => self.system(binary, &path, which, &mut finding.notices),
                Kind::Command { command } => {
                    let search = CommandSearch { item: contribution, path: &path, variables, which };
                    self.ask_command(command, &search, &mut finding)
                }
            };
            found.or_else(|| self.system(request.fallback.as_deref()?, &path, which, &mut finding.notices))
        });
        if finding.path.is_none() && finding.pending.is_none() {
            finding.notices.push(format!(
                "no interpreter for `{}` of `{}` was found: install {}",
                one_line(&request.variable),
                one_line(contribution.item_id),
                one_line(&request.wanted()),
            ));
        }
        finding
    }

    /// What the user's own environment says, where the policy lets it.
    fn given(&self, request: &Request, which: &dyn Which, notices: &mut Vec<String>) -> Option<PathBuf> {
        let Surroundings { process, policy, .. } = *self.surroundings;
        let given = process.get(&request.variable).filter(|given| !given.is_empty())?;
        if !policy.is_inherited(&request.variable) {
            return None;
        }
        let path = Path::new(given);
        match self.usability(path, which) {
            Usability::Usable => return Some(path.to_owned()),
            Usability::NotRecorded(reason) => notices.push(reason),
            Usability::NotThere | Usability::NotAllowed => notices.push(format!(
                "`{}` is ignored: it must be the full path of a program outside the project",
                one_line(&request.variable)
            )),
        }
        None
    }

    fn local(
        &self,
        (names, folders, roots): (&[String], &[String], &[String]),
        which: &dyn Which,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        let project = self.surroundings.project;
        let own = roots.iter().filter(|root| !root.is_empty()).filter_map(|root| {
            let root = Path::new(root);
            if root.is_absolute() { Some(root.to_owned()) } else { project.map(|project| project.join(root)) }
        });
        let mut is_said = false;
        for root in own.chain(project.map(Path::to_owned)) {
            for folder in folders.iter().map(Path::new).filter(|folder| stays_inside(folder)) {
                for name in names.iter().filter(|name| is_plain(name)) {
                    let candidate = root.join(folder).join(name);
                    let reason = match self.usability(&candidate, which) {
                        Usability::NotThere => continue,
                        Usability::Usable => return Some(candidate),
                        Usability::NotRecorded(reason) => reason,
                        Usability::NotAllowed => {
                            let shown = one_line(&candidate.display().to_string());
                            format!("`{shown}` is not used: {NOT_ALLOWED}")
                        }
                    };
                    if !is_said && self.surroundings.uses_project_programs {
                        is_said = true;
                        notices.push(reason);
                    }
                }
            }
        }
        None
    }

    fn system(
        &self,
        binary: &str,
        path: &str,
        which: &dyn Which,
        notices: &mut Vec<String>,
    ) -> Option<PathBuf> {
        if Path::new(binary).is_absolute() {
            return self.usable(PathBuf::from(binary), which, notices);
        }
        if !is_plain(binary) {
            return None;
        }
        let found = which.find(binary, path)?;
        self.usable(found, which, notices).or_else(|| {
            let (outside, _) = self.filter_path(path, |entry| !self.is_in_project(entry));
            self.usable(which.find(binary, &outside)?, which, notices)
        })
    }

    fn usable(&self, program: PathBuf, which: &dyn Which, notices: &mut Vec<String>) -> Option<PathBuf> {
        match self.usability(&program, which) {
            Usability::Usable => return Some(program),
            Usability::NotRecorded(reason) => notices.push(reason),
            Usability::NotThere | Usability::NotAllowed => {}
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
        which: &dyn Which,
    ) -> Result<CheckedCommand, String> {
        let unchanged = || CheckedCommand { command: command.to_owned(), notice: None };
        let refusal = |program: &Path| match self.usability(program, which) {
            // What is not there is not started either, and said to be missing then.
            Usability::Usable | Usability::NotThere => None,
            Usability::NotRecorded(reason) => Some(reason),
            Usability::NotAllowed => {
                let shown = one_line(&program.display().to_string());
                Some(format!("`{shown}` is not used: {NOT_ALLOWED}"))
            }
        };
        if command.contains('/') {
            return refusal(&folder.join(command)).map_or_else(|| Ok(unchanged()), Err);
        }
        let Some(reason) = which.find(command, path).and_then(|found| refusal(&found)) else {
            return Ok(unchanged());
        };
        let (outside, _) = self.filter_path(path, |entry| !self.is_in_project(entry));
        let next = which.find(command, &outside).filter(|found| refusal(found).is_none());
        match next.and_then(|found| found.to_str().map(str::to_owned)) {
            Some(command) => Ok(CheckedCommand { command, notice: Some(reason) }),
            None => Err(reason),
        }
    }

    fn ask_command(
        &self,
        command: &[String],
        search: &CommandSearch<'_>,
        finding: &mut Finding,
    ) -> Option<PathBuf> {
        let item = one_line(search.item.item_id);
        if search.item.is_project {
            finding.notices.push(format!(
                "the `resolve_cmd` of `{item}` is not run: items of a project may not start programs to find others"
            ));
            return None;
        }
        let (program, arguments) = command.split_first()?;
        let program =
            self.system(program, search.path, search.which, &mut finding.notices)?.to_str()?.to_owned();
        let command: Vec<String> = std::iter::once(program).chain(arguments.iter().cloned()).collect();
        match search.which.output(&command, search.variables) {
            CommandOutput::Printed(output) => {
                let found = PathBuf::from(output.lines().next()?.trim());
                self.usable(found, search.which, &mut finding.notices)
            }
            CommandOutput::Failed(reason) => {
                let reason = one_line(&reason);
                finding.notices.push(format!("the `resolve_cmd` of `{item}` found nothing: {reason}"));
                None
            }
            CommandOutput::DryRun => {
                finding.pending = Some(one_line(&command.join(" ")));
                finding.notices.push(format!(
                    "the `resolve_cmd` of `{item}` is not run in a dry run: its interpreter is found when the tool runs"
                ));
                None
            }
        }
    }

    /// Whether it is a program, and one that may serve here.
    fn usability(&self, path: &Path, which: &dyn Which) -> Usability {
        if !path.is_absolute() || path.to_str().is_none() || !is_executable(path) {
            return Usability::NotThere;
        }
        if !path.parent().is_some_and(|folder| self.is_guarded(path, folder)) {
            return Usability::Usable;
        }
        if !self.is_local_allowed {
            return Usability::NotAllowed;
        }
        match which.check_recorded(path) {
            Ok(()) => Usability::Usable,
            Err(reason) => Usability::NotRecorded(reason),
        }
    }

    /// Whether the program, its folder or what it leads to belongs to the project.
    fn is_guarded(&self, path: &Path, folder: &Path) -> bool {
        let is_in = self.is_in_project(path) || self.is_in_project(folder);
        // In a project that holds the home, only what package managers put into it is the project's.
        is_in && (!self.is_home || is_package_folder(path))
    }
}

fn is_package_folder(path: &Path) -> bool {
    let known = [".venv", "venv", "node_modules"];
    path.components().any(|component| known.iter().any(|name| component.as_os_str() == *name))
}

impl Request {
    fn wanted(&self) -> String {
        match (&self.fallback, &self.kind) {
            (Some(fallback), _) => format!("`{fallback}`"),
            (None, Kind::Local { names, .. }) => format!("`{}`", names.join("` or `")),
            (None, Kind::System { binary }) => format!("`{binary}`"),
            (None, Kind::Command { command }) => format!("what `{}` looks for", command.join(" ")),
        }
    }
}

/// A path and, where it is a link, what it leads to.
pub(super) fn with_target(path: &Path) -> Vec<PathBuf> {
    let target = fs_err::canonicalize(path).ok().filter(|target| target != path);
    std::iter::once(path.to_owned()).chain(target).collect()
}

fn stays_inside(folder: &Path) -> bool {
    folder.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
