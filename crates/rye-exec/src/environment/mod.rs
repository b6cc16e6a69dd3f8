//! The environment of a tool's process: what of the surroundings reaches it, and what the signed elements of its
//! chain set. Nothing is read from this process, and nothing is started: both come in as values.
//!
//! From weak to strong: the project's `.env` (approved projects only), the process's variables on the allow-list,
//! then primitive, runtime and tool, each with what it passes on, its interpreter and its own values.

mod dotenv;
mod interpreter;
mod policy;
mod program;
mod search_path;
mod template;
mod template_context;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rye_item::text::one_line;
use serde_json::{Map, Value};

pub use interpreter::{CommandOutput, MissingInterpreter, ProgramFinder, ResolvedCommand};
pub use policy::EnvironmentPolicy;
pub use program::{ProgramError, ProgramParts, changed_parts};
pub use search_path::{apply_search_paths, find_on_path};
pub use template_context::TemplateContext;

use interpreter::InterpreterSearch;
pub(crate) use template::{fill, is_variable_name};

/// The kernel takes no longer text as one variable.
const MAX_VALUE_BYTES: usize = 128 * 1024;

/// What lies around a run.
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentInputs<'a> {
    /// The environment of this process.
    pub host_variables: &'a BTreeMap<String, String>,
    /// The project, if there is one.
    pub project: Option<&'a Path>,
    /// The folder of the user space.
    pub user_space: &'a Path,
    /// Whether the user approved the project.
    pub is_project_approved: bool,
    /// What may reach a tool.
    pub policy: &'a EnvironmentPolicy,
    /// Whether interpreters of the project may serve where they otherwise could: not for a tool with packages of its own.
    pub allows_project_programs: bool,
}

/// What one element of the chain adds.
#[derive(Clone, Copy, Debug)]
pub struct Contribution<'a> {
    /// The element's id.
    pub item_id: &'a str,
    /// Whether the element is an item of the project.
    pub is_project: bool,
    /// Its `env_config`.
    pub env_config: Option<&'a Value>,
}

/// The environment of a tool's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// All variables the process gets.
    pub variables: BTreeMap<String, String>,
    /// Which variables each element set, `.env` first if it set any.
    pub contributions: Vec<(String, Vec<String>)>,
    /// What was left out or not found, for the user.
    pub notices: Vec<String>,
    /// The interpreters that were found, links and what they lead to, so that a sandbox can let them be read.
    pub interpreters: Vec<PathBuf>,
    /// The interpreters that were not found.
    pub missing_interpreters: Vec<MissingInterpreter>,
}

/// Why an environment could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The settings are not usable.
    #[error("the setting `environment.{key}` must be {expected}")]
    InvalidPolicy {
        /// The key below `environment`.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// An element sets or takes a variable that no item may touch.
    #[error(
        "`{item}` may not set or pass `{name}`: it decides what code is loaded, or belongs to RYE; remove it"
    )]
    Reserved {
        /// The element.
        item: String,
        /// The variable.
        name: String,
    },
    /// An element names a variable that cannot be.
    #[error(
        "`{item}` names the variable `{name}`: a name is letters, digits and `_`, and starts with no digit"
    )]
    InvalidName {
        /// The element.
        item: String,
        /// The name.
        name: String,
    },
    /// A part of an element's `env_config` or `anchor` has the wrong type.
    #[error("`{key}` of `{item}` must be {expected}")]
    InvalidValue {
        /// The element.
        item: String,
        /// The key, with dots.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An unknown interpreter type.
    #[error(
        "`{item}` asks for the interpreter type `{kind}`, which is unknown; use local_binary, system_binary or command"
    )]
    UnknownInterpreter {
        /// The element.
        item: String,
        /// The type.
        kind: String,
    },
    /// A value that a process cannot be given.
    #[error("the value of `{name}` in `{item}` cannot be given to a process: {reason}")]
    InvalidVariable {
        /// The element.
        item: String,
        /// The variable.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A folder that cannot stand on a search path.
    #[error("`{entry}` cannot be on `{variable}`: {reason}")]
    InvalidSearchPath {
        /// The variable.
        variable: String,
        /// The folder.
        entry: String,
        /// Why not.
        reason: &'static str,
    },
}

/// Makes the environment. The contributions come in the order primitive, runtime, tool; the last one is the tool.
///
/// # Errors
/// When an element asks for what no item may have, or its `env_config` is malformed.
pub fn resolve(
    contributions: &[Contribution<'_>],
    context: &TemplateContext,
    inputs: &EnvironmentInputs<'_>,
    finder: &dyn ProgramFinder,
) -> Result<Environment, EnvironmentError> {
    Ok(build(contributions, context, inputs, finder)?.environment)
}

/// As [`resolve`], and fills the texts of `config`, which is part of the last element: as in the values of an `env`,
/// `${NAME}` is a variable of the environment or, because a signed element names it, of what lies around the run.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_with_config(
    contributions: &[Contribution<'_>],
    context: &TemplateContext,
    inputs: &EnvironmentInputs<'_>,
    finder: &dyn ProgramFinder,
    config: &Value,
) -> Result<ResolvedConfig, EnvironmentError> {
    let build = build(contributions, context, inputs, finder)?;
    let filled = build.fill_value(config);
    let mut unset = BTreeSet::new();
    build.collect_unset(config, &mut unset);
    Ok(ResolvedConfig { environment: build.environment, config: filled, unset })
}

/// An environment, and a config that was filled from it.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    /// The environment.
    pub environment: Environment,
    /// The config, its references filled in.
    pub config: Value,
    /// Variables that the config names without a default and that are not set; those of its `env` may be missing.
    pub unset: BTreeSet<String>,
}

/// The program to start for `command`, which works in `folder`: a program of the project is started only where it may
/// serve and is what the user has recorded.
///
/// # Errors
/// Why it is not started.
pub fn check_command(
    command: &str,
    folder: &Path,
    is_project_tool: bool,
    variables: &BTreeMap<String, String>,
    inputs: &EnvironmentInputs<'_>,
    finder: &dyn ProgramFinder,
) -> Result<ResolvedCommand, String> {
    let path = variables.get("PATH").map_or("", String::as_str);
    InterpreterSearch::new(inputs, is_project_tool).check_command(command, folder, path, finder)
}

fn build<'a>(
    contributions: &[Contribution<'_>],
    context: &'a TemplateContext,
    inputs: &'a EnvironmentInputs<'a>,
    finder: &dyn ProgramFinder,
) -> Result<EnvironmentBuilder<'a>, EnvironmentError> {
    let configs = contributions.iter().map(check_contribution).collect::<Result<Vec<_>, _>>()?;
    let variables = configs
        .iter()
        .filter_map(|(_, config)| interpreter::interpreter_variable(*config, inputs.policy))
        .collect::<BTreeSet<_>>();
    let is_project_tool = contributions.last().is_some_and(|tool| tool.is_project);
    let mut build = EnvironmentBuilder {
        context,
        inputs,
        search: InterpreterSearch::new(inputs, is_project_tool),
        dotenv: BTreeMap::new(),
        dotenv_names: BTreeSet::new(),
        environment: Environment::default(),
    };
    build.add_base_variables(&variables, finder);
    for (contribution, config) in configs {
        let keys = build.apply_contribution(contribution, config, finder)?;
        if !keys.is_empty() {
            let keys = keys.into_iter().collect();
            build.environment.contributions.push((contribution.item_id.to_owned(), keys));
        }
    }
    Ok(build)
}

/// Every name and value that the project's `.env` could be read as, for taking secrets out of what is shown.
#[must_use]
pub fn possible_dotenv_pairs(project: &Path) -> Vec<(String, String)> {
    dotenv::possible_pairs(project)
}

/// The names in the project's `.env` that only tools which ask for them get.
#[must_use]
pub fn unlisted_dotenv_names(project: &Path, policy: &EnvironmentPolicy) -> Vec<String> {
    dotenv::unlisted_names(project, policy)
}

/// The variable that the interpreter of an `env_config` is named by.
#[must_use]
pub fn interpreter_variable(env_config: Option<&Value>, policy: &EnvironmentPolicy) -> Option<String> {
    interpreter::interpreter_variable(env_config.and_then(Value::as_object), policy)
}

type CheckedContribution<'a> = (&'a Contribution<'a>, Option<&'a Map<String, Value>>);

fn check_contribution<'a>(
    contribution: &'a Contribution<'a>,
) -> Result<CheckedContribution<'a>, EnvironmentError> {
    match contribution.env_config {
        None | Some(Value::Null) => Ok((contribution, None)),
        Some(Value::Object(map)) => Ok((contribution, Some(map))),
        Some(_) => Err(invalid_value(contribution.item_id, "env_config", "a map")),
    }
}

fn invalid_value(item: &str, key: impl Into<String>, expected: &'static str) -> EnvironmentError {
    EnvironmentError::InvalidValue { item: item.to_owned(), key: key.into(), expected }
}

struct EnvironmentBuilder<'a> {
    context: &'a TemplateContext,
    inputs: &'a EnvironmentInputs<'a>,
    search: InterpreterSearch<'a>,
    /// What `.env` may set. Secrets and names that are not listed wait for an element that asks for them.
    dotenv: BTreeMap<String, String>,
    /// Variables whose value is `.env`'s still.
    dotenv_names: BTreeSet<String>,
    environment: Environment,
}

impl EnvironmentBuilder<'_> {
    /// `.env`, then the allowed part of the process's variables.
    fn add_base_variables(&mut self, interpreters: &BTreeSet<String>, finder: &dyn ProgramFinder) {
        let EnvironmentInputs { host_variables: process, project, is_project_approved, policy, .. } =
            *self.inputs;
        if let Some(project) = project {
            if is_project_approved {
                let dotenv = dotenv::load(project, policy, interpreters);
                self.dotenv = dotenv.values;
                self.environment.notices.extend(dotenv.notices);
            } else if dotenv::exists(project) {
                let notice = "the project's `.env` is not read: the project is not approved (rye join)";
                self.environment.notices.push(notice.to_owned());
            }
        }
        for (name, value) in process {
            if is_variable_name(name) && policy.is_inherited(name) {
                self.environment.variables.insert(name.clone(), value.clone());
            }
        }
        for (name, value) in self.dotenv.iter().filter(|(name, _)| policy.is_open_in_dotenv(name)) {
            if !self.environment.variables.contains_key(name) {
                self.environment.variables.insert(name.clone(), value.clone());
                self.dotenv_names.insert(name.clone());
            }
        }
        if !self.dotenv_names.is_empty() {
            self.environment
                .contributions
                .push((".env".to_owned(), self.dotenv_names.iter().cloned().collect()));
        }
        if let Some(path) = self.environment.variables.get_mut("PATH") {
            let (allowed, dropped, moved) = self.search.clean_path(path, finder);
            *path = allowed;
            self.environment.notices.extend(moved);
            if !dropped.is_empty() {
                let dropped = dropped.iter().map(|entry| format!("`{}`", one_line(entry)));
                let dropped = dropped.collect::<Vec<_>>().join(", ");
                self.environment.notices.push(format!(
                    "left out of PATH: {dropped} (relative, in another project, or in a project that is not approved)"
                ));
            }
        }
    }

    fn apply_contribution(
        &mut self,
        contribution: &Contribution<'_>,
        config: Option<&Map<String, Value>>,
        finder: &dyn ProgramFinder,
    ) -> Result<BTreeSet<String>, EnvironmentError> {
        let mut keys = BTreeSet::new();
        let Some(config) = config else {
            return Ok(keys);
        };
        let item = contribution.item_id;
        for list in ["pass", "secrets"] {
            self.pass_variables(item, list, config.get(list), &mut keys)?;
        }
        if let Some(interpreter) = config.get("interpreter").filter(|value| !value.is_null()) {
            self.find_interpreter(contribution, interpreter, finder, &mut keys)?;
        }
        match config.get("env") {
            None | Some(Value::Null) => {}
            Some(Value::Object(env)) => {
                for (name, value) in env {
                    self.set_variable(item, name, value)?;
                    keys.insert(name.clone());
                }
            }
            Some(_) => return Err(invalid_value(item, "env_config.env", "a map of names to values")),
        }
        Ok(keys)
    }

    fn pass_variables(
        &mut self,
        item: &str,
        list: &str,
        names: Option<&Value>,
        keys: &mut BTreeSet<String>,
    ) -> Result<(), EnvironmentError> {
        let wrong = || invalid_value(item, format!("env_config.{list}"), "a list of variable names");
        let names = match names {
            None | Some(Value::Null) => return Ok(()),
            Some(names) => names.as_array().ok_or_else(wrong)?,
        };
        for name in names {
            let name = name.as_str().ok_or_else(wrong)?;
            self.check_name(item, name)?;
            let value = self.host_value(name).map(str::to_owned);
            // A PATH that was asked for by name is still the one without the project's own folders.
            if let Some(value) = value.filter(|_| name != "PATH") {
                self.insert(name, value);
                keys.insert(name.to_owned());
            }
        }
        Ok(())
    }

    fn find_interpreter(
        &mut self,
        contribution: &Contribution<'_>,
        config: &Value,
        finder: &dyn ProgramFinder,
        keys: &mut BTreeSet<String>,
    ) -> Result<(), EnvironmentError> {
        let item = contribution.item_id;
        let variables = &self.environment.variables;
        let request =
            interpreter::InterpreterRequest::new(item, config, self.inputs.policy, |text, fields| {
                fill(text, &|name| variables.get(name).cloned(), &|name| {
                    fields(name).or_else(|| self.context.get(name).map(str::to_owned))
                })
            })?;
        let Some(request) = request else {
            let notice = format!("the interpreter of `{}` has no `var`: not looked for", one_line(item));
            self.environment.notices.push(notice);
            return Ok(());
        };
        let variable = request.variable.clone();
        if !is_variable_name(&variable) {
            return Err(EnvironmentError::InvalidName { item: item.to_owned(), name: variable });
        }
        let is_own = variable.to_ascii_uppercase().starts_with("RYE_");
        if self.inputs.policy.is_reserved(&variable) && !is_own || variable == "PATH" {
            return Err(EnvironmentError::Reserved { item: item.to_owned(), name: variable });
        }
        let lookup = self.search.find(contribution, &request, &self.environment.variables, finder);
        self.environment.notices.extend(lookup.notices);
        self.environment.missing_interpreters.extend(lookup.missing);
        match (lookup.path.as_deref().and_then(Path::to_str), lookup.pending) {
            (Some(path), _) => {
                self.insert(&variable, path.to_owned());
                self.environment.interpreters.extend(interpreter::path_and_target(Path::new(path)));
                keys.insert(variable);
            }
            // A dry run shows the command that a run would ask.
            (None, Some(pending)) => {
                self.insert(&variable, format!("(what `{pending}` prints)"));
                keys.insert(variable);
            }
            (None, None) => {
                self.environment.variables.remove(&variable);
            }
        }
        Ok(())
    }

    fn set_variable(&mut self, item: &str, name: &str, value: &Value) -> Result<(), EnvironmentError> {
        self.check_name(item, name)?;
        let text = match value {
            Value::Null => {
                self.environment.variables.remove(name);
                return Ok(());
            }
            Value::String(text) => self.fill_text(text),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Array(_) | Value::Object(_) => {
                return Err(invalid_value(
                    item,
                    format!("env_config.env.{name}"),
                    "a text, a number or a boolean",
                ));
            }
        };
        let reason = if text.contains('\0') {
            Some("it holds a zero byte")
        } else if text.len() >= MAX_VALUE_BYTES {
            Some("it is longer than 128 KiB")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(EnvironmentError::InvalidVariable {
                item: item.to_owned(),
                name: name.to_owned(),
                reason,
            });
        }
        self.insert(name, text);
        Ok(())
    }

    fn fill_text(&self, text: &str) -> String {
        let placeholder = |name: &str| self.context.get(name).map(str::to_owned);
        fill(text, &|name| self.lookup(name).map(str::to_owned), &placeholder)
    }

    fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill_text(text)),
            Value::Array(list) => list.iter().map(|entry| self.fill_value(entry)).collect(),
            Value::Object(map) => {
                map.iter().map(|(name, entry)| (name.clone(), self.fill_value(entry))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn collect_unset(&self, value: &Value, unset: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => {
                let missing = template::required_names(text).filter(|name| self.lookup(name).is_none());
                unset.extend(missing.map(str::to_owned));
            }
            Value::Array(list) => list.iter().for_each(|entry| self.collect_unset(entry, unset)),
            Value::Object(map) => {
                let needed = map.iter().filter(|(name, _)| *name != "env");
                needed.for_each(|(_, entry)| self.collect_unset(entry, unset));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn insert(&mut self, name: &str, value: String) {
        self.dotenv_names.remove(name);
        self.environment.variables.insert(name.to_owned(), value);
    }

    fn check_name(&self, item: &str, name: &str) -> Result<(), EnvironmentError> {
        if !is_variable_name(name) {
            return Err(EnvironmentError::InvalidName { item: item.to_owned(), name: one_line(name) });
        }
        if self.inputs.policy.is_reserved(name) {
            return Err(EnvironmentError::Reserved { item: item.to_owned(), name: name.to_owned() });
        }
        Ok(())
    }

    /// What `${name}` in a signed element means: the environment so far, or what lies outside under that name.
    fn lookup(&self, name: &str) -> Option<&str> {
        let known = self.environment.variables.get(name).filter(|_| !self.dotenv_names.contains(name));
        known
            .map(String::as_str)
            .or_else(|| if self.inputs.policy.is_reserved(name) { None } else { self.host_value(name) })
    }

    fn host_value(&self, name: &str) -> Option<&str> {
        self.inputs.host_variables.get(name).or_else(|| self.dotenv.get(name)).map(String::as_str)
    }
}
