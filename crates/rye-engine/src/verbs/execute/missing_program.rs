//! A program that a tool needs and that is not there: which one, what needs it, and where it was looked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rye_exec::environment::{
    self, CommandOutput, Environment, EnvironmentInputs, MissingInterpreter, ProgramFinder,
};
use rye_exec::invocation::{self, InvocationError, InvocationInputs};
use rye_exec::{Chain, Element, Invocation, Primitive};
use rye_item::text::one_line;
use serde_json::{Map, Value};

use super::run_plan::{RunPlan, contributions, template_context};
use crate::engine::Engine;
use crate::error::{Code, Error};
use crate::programs::ProgramChecker;

/// Finds programs and starts none.
struct PathFinder<'a>(ProgramChecker<'a>);

impl ProgramFinder for PathFinder<'_> {
    fn find(&self, name: &str, path: &str) -> Option<PathBuf> {
        environment::find_on_path(name, path)
    }

    fn run_command(&self, _: &[String], _: &BTreeMap<String, String>) -> CommandOutput {
        CommandOutput::DryRun
    }

    fn check_recorded(&self, program: &Path) -> Result<(), String> {
        self.0.check(program)
    }
}

/// The program that a run of this chain would not find; `None` if it is there, or cannot be known without a call.
pub(crate) fn missing_program(engine: &Engine, chain: &Chain) -> Option<MissingInterpreter> {
    if chain.primitive() != Primitive::Subprocess {
        return None;
    }
    let policies = engine.policies().ok()?;
    let workspace = &engine.workspace;
    let inputs = EnvironmentInputs {
        host_variables: &engine.host.variables,
        project: workspace.roots.project.as_deref(),
        user_space: &workspace.roots.user,
        is_project_approved: workspace.is_project_approved,
        policy: &policies.environment,
        allows_project_programs: chain.first_field(rye_exec::packages::DEPENDENCIES_FIELD).is_none(),
    };
    let context = template_context(engine, &chain.tool().item().path);
    let finder = PathFinder(ProgramChecker::new(engine));
    let environment = environment::resolve(&contributions(chain), &context, &inputs, &finder).ok()?;
    let invocation_inputs = InvocationInputs {
        environment: &environment.variables,
        context: &context,
        parameters: &Map::new(),
        resolved_config: None,
        max_timeout: Duration::from_secs(1),
    };
    match invocation::build_invocation(chain, &invocation_inputs) {
        Ok(Invocation::Process(process)) => missing_command(chain, &process.command, &environment.variables),
        Ok(Invocation::Http(_) | Invocation::Native(_)) => None,
        Err(InvocationError::NoCommand) => missing_interpreter(chain, &environment).cloned(),
        Err(
            InvocationError::CommandIsToolFile
            | InvocationError::InvalidConfig { .. }
            | InvocationError::InvalidUrl(_),
        ) => None,
    }
}

/// A command that is not an interpreter's variable, and not there. What is relative to a folder, or filled in by a call, is
/// not known yet.
fn missing_command(
    chain: &Chain,
    command: &str,
    variables: &BTreeMap<String, String>,
) -> Option<MissingInterpreter> {
    let path = variables.get("PATH").map_or("", String::as_str);
    let is_known = Path::new(command).is_absolute() || !command.contains('/');
    let is_present = match Path::new(command).is_absolute() {
        true => Path::new(command).exists(),
        false => environment::find_on_path(command, path).is_some(),
    };
    if !is_known || is_present || command.contains(['{', '(']) {
        return None;
    }
    Some(MissingInterpreter {
        element: command_element(chain).map_or_else(String::new, |element| element.id().to_string()),
        variable: String::new(),
        program: format!("`{}`", one_line(command)),
        places: command_places(command, path),
        unused: Vec::new(),
    })
}

fn command_places(command: &str, path: &str) -> String {
    match (Path::new(command).is_absolute(), path.is_empty()) {
        (true, _) => "its own path".to_owned(),
        (false, true) => "an empty PATH".to_owned(),
        (false, false) => format!("the PATH {}", one_line(path)),
    }
}

/// The element whose command is started.
fn command_element(chain: &Chain) -> Option<&Element> {
    let has_command = |element: &&Element| {
        element.object("config").is_some_and(|config| config.get("command").is_some_and(Value::is_string))
    };
    chain.elements().iter().find(has_command)
}

/// The interpreter whose variable the command of the chain is, if it was not found.
fn missing_interpreter<'a>(chain: &Chain, environment: &'a Environment) -> Option<&'a MissingInterpreter> {
    let config = invocation::merge_config(chain);
    let command = config.get("command").and_then(Value::as_str)?;
    let is_named = |variable: &str| {
        [format!("${{{variable}}}"), format!("${{{variable}:")].iter().any(|name| command.contains(name))
    };
    environment.missing_interpreters.iter().find(|missing| is_named(&missing.variable))
}

/// The failure of a chain without a command, if that is because an interpreter is missing.
pub(super) fn interpreter_error(
    chain: &Chain,
    environment: &Environment,
    error: &InvocationError,
) -> Option<Error> {
    let is_empty = *error == InvocationError::NoCommand;
    let missing = missing_interpreter(chain, environment).filter(|_| is_empty)?;
    Some(self::error(chain, missing))
}

/// The failure to find an interpreter.
pub(super) fn error(chain: &Chain, missing: &MissingInterpreter) -> Error {
    let tool = chain.tool();
    let MissingInterpreter { element, program, places, .. } = missing;
    let message = format!("tool {}: `{element}` needs {program}, which was not found", tool.id());
    let error = Error::new(Code::NoInterpreter, message)
        .for_item(tool.item().item_ref())
        .hint(format!("install {program}, or add its folder to the PATH; looked for in {places}"))
        .hint("to use another program: rye explain RYE0807");
    missing.unused.iter().fold(error, Error::hint)
}

/// The failure to start a program that is not there, with the element that names it and the PATH.
pub(super) fn name_element(chain: &Chain, plan: &RunPlan, error: Error) -> Error {
    let (Code::NoInterpreter, Invocation::Process(process)) = (error.code, &plan.invocation) else {
        return error;
    };
    let Some(missing) = missing_command(chain, &process.command, &plan.environment.variables) else {
        return error;
    };
    error
        .for_item(chain.tool().item().item_ref())
        .hint(format!("`{}` names it; looked for in {}", missing.element, missing.places))
        .hint("to use another program: rye explain RYE0807")
}
