//! Finds interpreters. A version manager that an item names (`resolve_cmd`) runs as the tool itself does: in the tool's
//! sandbox, with the tool's variables, and never in a dry run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::CancelToken;
use lillux::process::{self, ExitReason, ProcessCommand};
use lillux::sandbox::Receipt;
use rye_exec::environment::{self, CommandOutput, Environment, ProgramFinder, TemplateContext};
use serde_json::{Value, json};

use super::run::{placeholder_error, refuse_planted, replaced_warnings};
use super::run_plan::{SandboxSubject, plan_sandbox};
use super::{ExecuteMode, SANDBOX_VARIABLE, run_dirs};
use crate::engine::Engine;
use crate::policies::RunPolicies;
use crate::programs::ProgramChecker;

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
        let unmet = self.receipt.describe_unenforced();
        let unmet =
            unmet.map(|rules| format!("not enforced by the sandbox of its {} here: {rules}", self.kind));
        unmet.into_iter().chain(replaced_warnings(&self.receipt)).collect()
    }
}

/// Finds programs the way a shell does, and asks version managers.
pub(crate) struct SandboxedFinder<'a> {
    policies: &'a RunPolicies,
    subject: SandboxSubject<'a>,
    context: &'a TemplateContext,
    mode: ExecuteMode,
    cancel: &'a CancelToken,
    engine: &'a Engine,
    checker: ProgramChecker<'a>,
    /// Whether the caller may use the network, whatever the item declares.
    pub(crate) network: bool,
    /// What was run.
    pub(crate) helper_runs: RefCell<Vec<HelperRun>>,
}

/// For what programs are looked up.
#[derive(Clone, Copy)]
pub(crate) struct FinderInputs<'a> {
    pub(crate) policies: &'a RunPolicies,
    /// The item whose sandbox applies.
    pub(crate) subject: SandboxSubject<'a>,
    pub(crate) context: &'a TemplateContext,
    pub(crate) mode: ExecuteMode,
    pub(crate) cancel: &'a CancelToken,
}

impl<'a> SandboxedFinder<'a> {
    pub(crate) fn new(engine: &'a Engine, inputs: FinderInputs<'a>) -> Self {
        let FinderInputs { policies, subject: planned, context, mode, cancel } = inputs;
        Self {
            policies,
            subject: planned,
            context,
            mode,
            cancel,
            engine,
            checker: ProgramChecker::new(engine),
            network: true,
            helper_runs: RefCell::default(),
        }
    }
}

impl SandboxedFinder<'_> {
    fn run_in_sandbox(
        &self,
        command: &[String],
        variables: &BTreeMap<String, String>,
    ) -> Result<String, String> {
        let (program, arguments) = command.split_first().ok_or("it is empty")?;
        let engine = self.engine;
        let temporary = run_dirs::temporary_folder(engine).map_err(|error| error.message)?;
        let target = lillux::canonicalize_existing(Path::new(program));
        let required = Environment { interpreters: vec![program.into(), target], ..Environment::default() };
        let mut plan =
            plan_sandbox(engine, self.policies, &self.subject, self.context, &required, Some(&temporary))
                .map_err(|error| error.message)?;
        plan.access.network &= self.network;
        run_dirs::create_protected_folders(engine.workspace.roots.project.as_deref());
        let mut environment = variables.clone();
        run_dirs::set_temporary_variables(engine, &plan, temporary.path(), &mut environment);
        let mut confined = plan.confine().map_err(|error| placeholder_error(&error).message)?;
        if confined.is_some() {
            environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
        }
        let process_command = ProcessCommand {
            program: program.into(),
            arguments: arguments.to_vec(),
            environment,
            // Not the project: which version it names is not the project's to say.
            current_dir: temporary.path().to_owned(),
            stdin: Vec::new(),
            timeout: COMMAND_TIMEOUT,
            has_result_channel: false,
            limits: plan.limits.clone(),
            log: None,
        };
        let launcher = &engine.host.launcher;
        let cancel = match &mut confined {
            Some(confined) => &confined.repositories.watch(self.cancel).map_err(|error| error.to_string())?,
            None => self.cancel,
        };
        let confinement = confined.as_ref().map(|confined| &confined.confinement);
        let mut finished = process::run(launcher, &process_command, confinement, cancel)
            .map_err(|error| error.to_string())?;
        let mut planted = None;
        if let Some(confined) = &mut confined {
            finished.receipt.add_replaced(confined.protected.replaced());
            planted = refuse_planted(&mut confined.repositories, &mut finished.receipt);
        }
        let helper =
            HelperRun { kind: "resolve_cmd", command: command.to_vec(), receipt: finished.receipt.clone() };
        self.helper_runs.borrow_mut().push(helper);
        if let Some(planted) = planted {
            return Err(planted);
        }
        match finished.exit {
            ExitReason::Exited(0) => Ok(finished.stdout.to_text()),
            ExitReason::Exited(code) => Err(format!("`{program}` ended with exit code {code}")),
            ExitReason::TimedOut => {
                Err(format!("`{program}` took longer than {} seconds", COMMAND_TIMEOUT.as_secs()))
            }
            ExitReason::Cancelled => Err("it was cancelled".to_owned()),
            ExitReason::Signalled(_) | ExitReason::TooManyProcesses { .. } | ExitReason::SupervisorLost => {
                Err(format!("`{program}` was stopped"))
            }
        }
    }
}

impl ProgramFinder for SandboxedFinder<'_> {
    fn find(&self, name: &str, path: &str) -> Option<PathBuf> {
        environment::find_on_path(name, path)
    }

    fn run_command(&self, command: &[String], variables: &BTreeMap<String, String>) -> CommandOutput {
        if self.mode == ExecuteMode::DryRun {
            return CommandOutput::DryRun;
        }
        match self.run_in_sandbox(command, variables) {
            Ok(output) => CommandOutput::Printed(output),
            Err(reason) => CommandOutput::Failed(reason),
        }
    }

    fn check_recorded(&self, program: &Path) -> Result<(), String> {
        self.checker.check(program)
    }
}
