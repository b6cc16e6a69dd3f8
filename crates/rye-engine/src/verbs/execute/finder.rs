//! Finds interpreters. A version manager that an item names (`resolve_cmd`) runs as the tool itself does: in the tool's
//! sandbox, with the tool's variables, and never in a dry run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::Cancel;
use lillux::confine::Receipt;
use lillux::process::{self, Command, End};
use rye_exec::environment::{self, CommandOutput, Context, Environment, Which};
use serde_json::{Value, json};

use super::run::{protect_error, replaced_warnings};
use super::surroundings::{Planned, plan};
use super::{Mode, SANDBOX_VARIABLE, folders};
use crate::engine::Engine;
use crate::policies::Policies;
use crate::programs::RecordedPrograms;

/// How long a `resolve_cmd` may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// A program that was run for a tool before the tool itself.
#[derive(Debug)]
pub(crate) struct HelperRun {
    /// Why: `resolve_cmd` or `packages`.
    pub(crate) kind: &'static str,
    /// What was run.
    pub(crate) command: Vec<String>,
    /// What confined it.
    pub(crate) receipt: Receipt,
}

impl HelperRun {
    /// What an answer says of it.
    pub(crate) fn to_value(&self) -> Value {
        json!({
            "kind": self.kind,
            "command": self.command,
            "sandbox": serde_json::to_value(&self.receipt).unwrap_or_default(),
        })
    }

    /// What of its sandbox could not be had.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let unmet = self.receipt.shortfall();
        let unmet =
            unmet.map(|rules| format!("the sandbox of its {} does not enforce here: {rules}", self.kind));
        unmet.into_iter().chain(replaced_warnings(&self.receipt)).collect()
    }
}

/// Finds programs the way a shell does, and asks version managers.
pub(crate) struct Finder<'a> {
    policies: &'a Policies,
    planned: Planned<'a>,
    context: &'a Context,
    mode: Mode,
    cancel: &'a Cancel,
    engine: &'a Engine,
    recorded: RecordedPrograms<'a>,
    /// Whether the caller may use the network, whatever the item declares.
    pub(crate) network: bool,
    /// What was run.
    pub(crate) runs: RefCell<Vec<HelperRun>>,
}

/// For what programs are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    pub(crate) policies: &'a Policies,
    /// The item whose sandbox applies.
    pub(crate) planned: Planned<'a>,
    pub(crate) context: &'a Context,
    pub(crate) mode: Mode,
    pub(crate) cancel: &'a Cancel,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(engine: &'a Engine, search: Search<'a>) -> Self {
        let Search { policies, planned, context, mode, cancel } = search;
        Self {
            policies,
            planned,
            context,
            mode,
            cancel,
            engine,
            recorded: RecordedPrograms::new(engine),
            network: true,
            runs: RefCell::default(),
        }
    }
}

impl Finder<'_> {
    fn run(&self, command: &[String], variables: &BTreeMap<String, String>) -> Result<String, String> {
        let (program, arguments) = command.split_first().ok_or("it is empty")?;
        let engine = self.engine;
        let temporary = folders::temporary(engine).map_err(|error| error.message)?;
        let target = lillux::real(Path::new(program));
        let needed = Environment { interpreters: vec![program.into(), target], ..Environment::default() };
        let mut plan = plan(engine, self.policies, &self.planned, self.context, &needed, Some(&temporary))
            .map_err(|error| error.message)?;
        plan.access.network &= self.network;
        folders::protect(engine.workspace.roots.project.as_deref());
        let mut environment = variables.clone();
        folders::name_temporary(engine, &plan, temporary.path(), &mut environment);
        let confined = plan.confine().map_err(|error| protect_error(&error).message)?;
        if confined.is_some() {
            environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
        }
        let launched = Command {
            program: program.into(),
            arguments: arguments.to_vec(),
            environment,
            // Not the project: which version it names is not the project's to say.
            folder: temporary.path().to_owned(),
            stdin: Vec::new(),
            timeout: COMMAND_TIMEOUT,
            has_result_channel: false,
            limits: plan.limits.clone(),
            log: None,
        };
        let launcher = &engine.host.launcher;
        let confinement = confined.as_ref().map(|confined| &confined.confinement);
        let mut finished =
            process::run(launcher, &launched, confinement, self.cancel).map_err(|error| error.to_string())?;
        if let Some(confined) = &confined {
            finished.receipt.add_replaced(confined.protected.replaced());
        }
        let helper =
            HelperRun { kind: "resolve_cmd", command: command.to_vec(), receipt: finished.receipt.clone() };
        self.runs.borrow_mut().push(helper);
        match finished.end {
            End::Exited(0) => Ok(finished.stdout.text()),
            End::Exited(code) => Err(format!("`{program}` ended with exit code {code}")),
            End::TimedOut => {
                Err(format!("`{program}` took longer than {} seconds", COMMAND_TIMEOUT.as_secs()))
            }
            End::Cancelled => Err("it was cancelled".to_owned()),
            End::Signalled(_) | End::TooManyProcesses { .. } | End::SupervisorLost => {
                Err(format!("`{program}` was stopped"))
            }
        }
    }
}

impl Which for Finder<'_> {
    fn find(&self, name: &str, path: &str) -> Option<PathBuf> {
        environment::find_on_path(name, path)
    }

    fn output(&self, command: &[String], variables: &BTreeMap<String, String>) -> CommandOutput {
        if self.mode == Mode::DryRun {
            return CommandOutput::DryRun;
        }
        match self.run(command, variables) {
            Ok(output) => CommandOutput::Printed(output),
            Err(reason) => CommandOutput::Failed(reason),
        }
    }

    fn check_recorded(&self, program: &Path) -> Result<(), String> {
        self.recorded.check(program)
    }
}
