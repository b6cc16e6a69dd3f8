//! Running what was worked out: a process, a request, or a function of the binary.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use lillux::CancelToken;
use lillux::process::{self, CapturedOutput, ExitReason, ProcessCommand, RunError, TERMINATION_GRACE};
use lillux::sandbox::Receipt;
use rye_exec::invocation::{HttpInvocation, NativeInvocation, ProcessInvocation, ResultMode};
use rye_exec::native::NativeErrorKind;
use rye_exec::outcome::{self, ProcessExit, ProcessOutput, RunFailure, RunLogs, RunOutcome};
use rye_exec::sandbox::{RepositoryGuard, SandboxLevel};
use rye_exec::{Invocation, NativeCall};
use serde_json::{Map, Value, json};

use super::refusal_hints::FailedRun;
use super::run_dirs;
use super::run_plan::RunPlan;
use super::{ExecuteRequest, PROGRAM_VARIABLE, SANDBOX_VARIABLE};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::natives;

/// A run that came to an end.
#[derive(Debug)]
pub(super) struct RunOutput {
    pub(super) outcome: RunOutcome,
    /// What confined it.
    pub(super) receipt: Option<Value>,
    /// What the trace says of it.
    pub(super) trace: Value,
    /// What of the sandbox could not be had.
    pub(super) warnings: Vec<String>,
    /// Which paths the sandbox kept from it, and how to allow them.
    pub(super) refusals: Vec<String>,
    /// The error that a native tool answered with, if it was one of rye's own.
    pub(super) reported: Option<ReportedError>,
}

/// An error of rye's own as an answer tells it.
#[derive(Debug)]
pub(super) struct ReportedError {
    pub(super) code: Code,
    pub(super) hints: Vec<String>,
}

impl ReportedError {
    /// The error in what a native tool answered.
    fn read(data: &Value) -> Option<Self> {
        let code = data.get("code")?.as_str()?;
        let code = *Code::ALL.iter().find(|known| known.as_str() == code)?;
        let hints = data.get("hints").and_then(Value::as_array).into_iter().flatten();
        Some(Self { code, hints: hints.filter_map(Value::as_str).map(str::to_owned).collect() })
    }
}

/// Where a failing tool's output is, for who reads the answer as an object.
pub const OUTPUT_HINT: &str = "its output is in `logs`";

/// The failure of a run, as a user sees it.
pub(super) fn failure_error(failure: &RunFailure, has_output: bool) -> Error {
    let code = match failure {
        RunFailure::Tool(_) => Code::ToolFailed,
        RunFailure::TimedOut(_) => Code::ToolTimedOut,
        RunFailure::Cancelled => Code::ToolCancelled,
        RunFailure::StoppedBySandbox(_) => Code::ToolStopped,
        RunFailure::Denied(_) => Code::ToolDenied,
    };
    let hint = match failure {
        RunFailure::Tool(_) if has_output => OUTPUT_HINT,
        RunFailure::Tool(_) => return Error::new(code, failure.message()),
        RunFailure::TimedOut(_) | RunFailure::Cancelled => "all its processes were ended",
        RunFailure::StoppedBySandbox(_) => {
            "all its processes were ended; limits are in the setting `sandbox.limits`"
        }
        RunFailure::Denied(_) => "what a tool may access is set in `sandbox` and declared in the signed tool",
    };
    Error::new(code, failure.message()).hint(hint)
}

pub(super) fn run(
    engine: &Engine,
    plan: &RunPlan,
    parameters: &Map<String, Value>,
    resolved_config: Option<&Value>,
    request: &ExecuteRequest,
) -> Result<RunOutput> {
    let cancel = &request.cancel;
    let may_block = match &plan.invocation {
        Invocation::Process(_) | Invocation::Http(_) => true,
        Invocation::Native(native) => natives::may_block(engine, &native.function),
    };
    if may_block {
        request.notify_blocking();
    }
    match &plan.invocation {
        Invocation::Process(process) => run_process(engine, plan, process, request),
        Invocation::Http(http) => Ok(run_http(plan, http, cancel)),
        Invocation::Native(native) => {
            let call = NativeCall {
                parameters,
                config: &native.config,
                resolved_config,
                space: &native.space,
                project: &plan.cwd,
                cache: &engine.workspace.roots.cache,
                access: &plan.sandbox.access,
                cancel,
                now: engine.unix_seconds(),
                thread: request.thread.as_deref(),
            };
            run_native(engine, native, &call, request)
        }
    }
}

fn run_process(
    engine: &Engine,
    plan: &RunPlan,
    process: &ProcessInvocation,
    request: &ExecuteRequest,
) -> Result<RunOutput> {
    run_dirs::create_protected_folders(engine.workspace.roots.project.as_deref());
    let mut environment = plan.environment.variables.clone();
    environment.extend(process.parameter_variables.clone());
    if let Some(temporary) = &plan.temporary {
        run_dirs::set_temporary_variables(engine, &plan.sandbox, temporary.path(), &mut environment);
    }
    let mut confined = plan.sandbox.confine().map_err(|error| placeholder_error(&error))?;
    let confinement = confined.as_ref().map(|confined| &confined.confinement);
    if confinement.is_some() {
        environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
    }
    if request.callbacks.is_some() {
        add_rye_to_path(engine, &mut environment);
    }
    let folder = process.cwd.as_ref().map_or(plan.cwd.as_path(), Path::new);
    let command = ProcessCommand {
        program: process.command.clone().into(),
        arguments: process.arguments.clone(),
        environment,
        current_dir: folder.to_owned(),
        stdin: process.stdin.clone().into_bytes(),
        timeout: process.timeout,
        has_result_channel: process.result == ResultMode::Channel,
        limits: plan.sandbox.limits.clone(),
        log: None,
    };
    let launcher = &engine.host.launcher;
    if process.is_detached {
        let detached = process::spawn_detached(launcher, &command, confinement).map_err(start_error)?;
        if let Some(confined) = confined {
            confined.repositories.transfer_to(detached.pid);
            confined.placeholders.transfer_to(detached.pid).map_err(|error| placeholder_error(&error))?;
        }
        return Ok(RunOutput {
            outcome: RunOutcome {
                data: json!({"pid": detached.pid, "detached": true}),
                failure: None,
                logs: RunLogs::default(),
                is_truncated: false,
            },
            receipt: None,
            trace: json!({"pid": detached.pid, "detached": true}),
            warnings: Vec::new(),
            refusals: Vec::new(),
            reported: None,
        });
    }
    let cancel = match &mut confined {
        Some(confined) => &confined.repositories.watch(&request.cancel).map_err(|error| Error::io(&error))?,
        None => &request.cancel,
    };
    let confinement = confined.as_ref().map(|confined| &confined.confinement);
    let provider = request.callbacks.as_ref();
    let callback = provider.map(|provider| {
        provider.open_channel(
            &request.item,
            plan.sandbox.grants.as_deref(),
            process.timeout.saturating_add(TERMINATION_GRACE),
        )
    });
    // The callback channel is open for as long as the process runs, and not a moment longer.
    let callback = callback.transpose().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            Error::new(Code::InvalidInvocation, error.to_string()).for_item(&request.item)
        }
        _ => Error::io(&error),
    })?;
    let finished = match callback {
        Some(callback) => process::run_with_callback(launcher, &command, confinement, cancel, &*callback),
        None => process::run(launcher, &command, confinement, cancel),
    };
    let mut finished = finished.map_err(start_error)?;
    let mut planted = None;
    if let Some(confined) = &mut confined {
        finished.receipt.add_replaced(confined.protected.replaced());
        planted = refuse_planted(&mut confined.repositories, &mut finished.receipt);
    }
    let receipt = serde_json::to_value(&finished.receipt).ok();
    let trace = json!({
        "command": process.command,
        "end": serde_json::to_value(finished.exit).unwrap_or_default(),
        "duration_ms": finished.duration.as_secs_f64() * 1e3,
        "stdout_bytes": finished.stdout.total,
        "stderr_bytes": finished.stderr.total,
    });
    let output = ProcessOutput {
        stdout: finished.stdout.to_text(),
        stderr: finished.stderr.to_text(),
        is_stdout_cut: finished.stdout.is_truncated(),
        is_stderr_cut: finished.stderr.is_truncated(),
        channel: finished.result.as_ref().map(|channel| (channel_bytes(channel), channel.is_truncated())),
    };
    let result = match process.result {
        ResultMode::LastJsonLine if request.needs_whole_answer => ResultMode::WholeJsonObject,
        ResultMode::Channel if request.needs_whole_answer => ResultMode::UniqueChannel,
        result => result,
    };
    let mut outcome = match finished.exit {
        ExitReason::Exited(code) => outcome::from_process_output(result, ProcessExit::Code(code), output),
        ExitReason::Signalled(signal) => {
            outcome::from_process_output(result, ProcessExit::Signal(signal), output)
        }
        ExitReason::TimedOut => {
            let seconds = process.timeout.as_secs_f64();
            stopped_outcome(
                RunFailure::TimedOut(format!("Command timed out after {seconds} seconds")),
                output,
            )
        }
        ExitReason::Cancelled => stopped_outcome(RunFailure::Cancelled, output),
        ExitReason::TooManyProcesses { limit } => stopped_outcome(
            RunFailure::StoppedBySandbox(format!("it started more than {limit} processes")),
            output,
        ),
        ExitReason::SupervisorLost => stopped_outcome(
            RunFailure::StoppedBySandbox("its supervisor was killed or did not answer".to_owned()),
            output,
        ),
    };
    if planted.is_some() {
        outcome.failure = planted.map(RunFailure::Denied);
    }
    let refusals = match &outcome.failure {
        Some(failure) => {
            let output = outcome.data.get("stderr").and_then(Value::as_str).unwrap_or_default();
            let text = [failure.message(), output, &outcome.logs.stderr].join("\n");
            let run = FailedRun {
                engine,
                item: &request.item,
                access: &plan.sandbox.access,
                is_confined: plan.sandbox.level != SandboxLevel::Off,
            };
            let mut refusals: Vec<String> =
                plan.sandbox.explain(&text).iter().map(|line| run.in_language(line)).collect();
            refusals.extend(run.explain(&text));
            refusals
        }
        None => Vec::new(),
    };
    Ok(RunOutput { outcome, receipt, trace, warnings: warnings(&finished.receipt), refusals, reported: None })
}

/// A tool that has a callback channel can call `rye`: this binary is named, and found last on the path.
fn add_rye_to_path(engine: &Engine, environment: &mut BTreeMap<String, String>) {
    let (Some(program), Some(folder)) = (run_dirs::rye_program(engine), run_dirs::rye_program_folder(engine))
    else {
        return;
    };
    environment.insert(PROGRAM_VARIABLE.to_owned(), program.display().to_string());
    if let Some(path) = environment.get_mut("PATH") {
        path.push(':');
        path.push_str(&folder.display().to_string());
    }
}

/// A sandbox that is less than policy asks for is never silent.
fn warnings(receipt: &Receipt) -> Vec<String> {
    let unmet =
        receipt.describe_unenforced().map(|rules| format!("not enforced by the sandbox here: {rules}"));
    unmet.into_iter().chain(replaced_warnings(receipt)).collect()
}

/// Moves repositories aside that the run made and that would run a program. Says so, for the run's failure.
pub(super) fn refuse_planted(guard: &mut RepositoryGuard, receipt: &mut Receipt) -> Option<String> {
    let planted = guard.refuse_planted();
    for repository in guard.recovered.drain(..).chain(planted.iter().cloned()) {
        let list = if repository.is_moved { &mut receipt.moved_aside } else { &mut receipt.left_in_place };
        list.push(repository.path);
    }
    let names = |is_moved: bool| {
        let names = planted.iter().filter(|repository| repository.is_moved == is_moved);
        names.map(|repository| shown_path(&repository.path)).collect::<Vec<_>>().join(", ")
    };
    let (moved, left) = (names(true), names(false));
    let made = |names: &str| {
        format!("it made {names}, for which your next git command could run programs or write other files")
    };
    match (moved.is_empty(), left.is_empty()) {
        (true, true) => None,
        (_, false) => {
            Some(format!("{}; it could NOT be moved aside: remove it before you use git there", made(&left)))
        }
        (false, true) => Some(format!("{}; it now ends with `.refused-by-rye`", made(&moved))),
    }
}

fn shown_path(path: &Path) -> String {
    format!("`{}`", rye_item::text::one_line(&path.display().to_string()))
}

/// What was not protected to the end.
pub(super) fn replaced_warnings(receipt: &Receipt) -> impl Iterator<Item = String> + '_ {
    let replaced = receipt.replaced.iter().map(|path| {
        format!(
            "{} was replaced or removed while the tool ran, by a program outside its sandbox: from then on it was not \
             protected; look at it",
            shown_path(path)
        )
    });
    let moved_aside = receipt.moved_aside.iter().map(|path| {
        format!(
            "{} was made by a tool, and git or a program like it could run commands for it; its name now ends with `.refused-by-rye`: read \
             it before you move it back",
            shown_path(path)
        )
    });
    let left = receipt.left_in_place.iter().map(|path| {
        format!(
            "{} was made by a tool, git or a program like it could run commands for it, and it could not be moved aside: \
             remove it before you use git there",
            shown_path(path)
        )
    });
    replaced.chain(moved_aside).chain(left)
}

fn channel_bytes(captured: &CapturedOutput) -> Vec<u8> {
    [captured.head.as_slice(), captured.tail.as_slice()].concat()
}

/// A run that did not end by itself: what it printed is kept.
fn stopped_outcome(failure: RunFailure, output: ProcessOutput) -> RunOutcome {
    RunOutcome {
        data: json!({"stdout": output.stdout, "stderr": output.stderr, "return_code": -1}),
        failure: Some(failure),
        logs: RunLogs { stdout: output.stdout, stderr: output.stderr },
        is_truncated: output.is_stdout_cut || output.is_stderr_cut,
    }
}

/// A name that must be protected cannot be.
pub(crate) fn placeholder_error(error: &io::Error) -> Error {
    Error::new(Code::NoSandbox, format!("cannot protect names of the project: {error}"))
        .hint("the cache folder must be writable, and the project's folders open to you: rye doctor")
}

pub(super) fn start_error(error: RunError) -> Error {
    let message = error.to_string();
    match error {
        RunError::NotFound { .. } => Error::new(Code::NoInterpreter, message),
        RunError::Invalid { .. } => Error::new(Code::InvalidInvocation, message),
        RunError::Refused { receipt, .. } => Error::new(Code::NoSandbox, message)
            .detail("sandbox", serde_json::to_value(receipt).unwrap_or_default())
            .hint("rye doctor shows what this machine supports; `sandbox.on_missing: warn` runs with less"),
        RunError::Failed { .. } => Error::new(Code::ToolFailed, message),
        RunError::Io(error) => Error::io(&error),
    }
}

fn run_http(plan: &RunPlan, http: &HttpInvocation, cancel: &CancelToken) -> RunOutput {
    let response =
        rye_exec::http::call(&http.config, &plan.environment.variables, &plan.sandbox.access, cancel);
    let failure =
        response.failure.map(|failure| if cancel.is_cancelled() { RunFailure::Cancelled } else { failure });
    let outcome = RunOutcome {
        data: response.data,
        failure,
        logs: RunLogs::default(),
        is_truncated: response.truncated,
    };
    let (warnings, refusals) = Default::default();
    RunOutput { outcome, receipt: None, trace: response.trace, warnings, refusals, reported: None }
}

fn run_native(
    engine: &Engine,
    native: &NativeInvocation,
    call: &NativeCall<'_>,
    request: &ExecuteRequest,
) -> Result<RunOutput> {
    let function = &native.function;
    let Some(result) = natives::call(engine, function, call, request)? else {
        let function = rye_item::text::one_line(function);
        return Err(Error::new(Code::InvalidInvocation, format!("this binary has no function `{function}`"))
            .hint("a native tool's `config.function` names one of the functions compiled in"));
    };
    let mut reported = None;
    let (data, failure) = match result {
        Ok(data) => (data, None),
        Err(error) => {
            reported = error.data.as_ref().and_then(ReportedError::read);
            let failure = match error.kind {
                _ if call.cancel.is_cancelled() => RunFailure::Cancelled,
                NativeErrorKind::Denied => RunFailure::Denied(error.message),
                NativeErrorKind::TimedOut => RunFailure::TimedOut(error.message),
                NativeErrorKind::Failed => RunFailure::Tool(error.message),
            };
            (error.data.unwrap_or(Value::Null), Some(failure))
        }
    };
    let outcome = RunOutcome { data, failure, logs: RunLogs::default(), is_truncated: false };
    let trace = json!({"function": function});
    let (warnings, refusals) = Default::default();
    Ok(RunOutput { outcome, receipt: None, trace, warnings, refusals, reported })
}
