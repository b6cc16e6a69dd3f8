//! Running what was worked out: a process, a request, or a function of the binary.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use lillux::Cancel;
use lillux::confine::Receipt;
use lillux::process::{self, Captured, Command, End, GRACE, RunError};
use rye_exec::invocation::{Http, Native, Process};
use rye_exec::native::Cause;
use rye_exec::outcome::{self, Exit, Failure, Logs, Outcome, Printed};
use rye_exec::{Invocation, NativeCall};
use serde_json::{Map, Value, json};

use super::folders;
use super::surroundings::Surroundings;
use super::{PROGRAM_VARIABLE, Request, SANDBOX_VARIABLE};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::natives;

/// A run that came to an end.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// What confined it.
    pub(super) receipt: Option<Value>,
    /// What the trace says of it.
    pub(super) trace: Value,
    /// What of the sandbox could not be had.
    pub(super) warnings: Vec<String>,
    /// Which paths the sandbox kept from it, and how to allow them.
    pub(super) refusals: Vec<String>,
}

/// The failure of a run, as a user sees it.
pub(super) fn error_of(failure: &Failure) -> Error {
    let code = match failure {
        Failure::Tool(_) => Code::ToolFailed,
        Failure::TimedOut(_) => Code::ToolTimedOut,
        Failure::Cancelled => Code::ToolCancelled,
        Failure::Stopped(_) => Code::ToolStopped,
        Failure::Denied(_) => Code::ToolDenied,
    };
    let hint = match failure {
        Failure::Tool(_) => "what it printed is in `logs`",
        Failure::TimedOut(_) => {
            "everything it started was ended; its runtime's `timeout` says how long it may take"
        }
        Failure::Cancelled => "everything it started was ended",
        Failure::Stopped(_) => "everything it started was ended; limits are in the setting `sandbox.limits`",
        Failure::Denied(_) => {
            "what a tool may touch is in the setting `sandbox` and in what the signed tool declares"
        }
    };
    Error::new(code, failure.message()).hint(hint)
}

pub(super) fn run(
    engine: &Engine,
    around: &Surroundings,
    parameters: &Map<String, Value>,
    resolved_config: Option<&Value>,
    request: &Request,
) -> Result<Ran> {
    let cancel = &request.cancel;
    let may_take_long = match &around.invocation {
        Invocation::Process(_) | Invocation::Http(_) => true,
        Invocation::Native(native) => natives::may_take_long(engine, &native.function),
    };
    if may_take_long {
        request.begins_to_wait();
    }
    match &around.invocation {
        Invocation::Process(process) => run_process(engine, around, process, request),
        Invocation::Http(http) => Ok(run_http(around, http, cancel)),
        Invocation::Native(native) => {
            let call = NativeCall {
                parameters,
                config: &native.config,
                resolved_config,
                project: &around.folder,
                cache: &engine.workspace.roots.cache,
                access: &around.plan.access,
                cancel,
                now: engine.unix_seconds(),
                thread: request.thread.as_deref(),
            };
            run_native(engine, native, &call, request)
        }
    }
}

fn run_process(engine: &Engine, around: &Surroundings, process: &Process, request: &Request) -> Result<Ran> {
    folders::protect(engine.workspace.roots.project.as_deref());
    let mut environment = around.environment.variables.clone();
    environment.extend(process.parameter_variables.clone());
    if let Some(temporary) = &around.temporary {
        folders::name_temporary(engine, &around.plan, temporary.path(), &mut environment);
    }
    let confined = around.plan.confine().map_err(|error| protect_error(&error))?;
    let confinement = confined.as_ref().map(|confined| &confined.confinement);
    if confinement.is_some() {
        environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
    }
    if request.door.is_some() {
        offer_program(engine, &mut environment);
    }
    let folder = process.folder.as_ref().map_or(around.folder.as_path(), Path::new);
    let command = Command {
        program: process.command.clone().into(),
        arguments: process.arguments.clone(),
        environment,
        folder: folder.to_owned(),
        stdin: process.stdin.clone().into_bytes(),
        timeout: process.timeout,
        has_result_channel: process.result == rye_exec::invocation::ResultMode::Channel,
        limits: around.plan.limits.clone(),
        log: None,
    };
    let launcher = &engine.host.launcher;
    if process.is_detached {
        let detached = process::spawn_detached(launcher, &command, confinement).map_err(start_error)?;
        if let Some(confined) = confined {
            confined.placeholders.hand_over(detached.pid).map_err(|error| protect_error(&error))?;
        }
        return Ok(Ran {
            outcome: Outcome {
                data: json!({"pid": detached.pid, "detached": true}),
                failure: None,
                logs: Logs::default(),
                is_truncated: false,
            },
            receipt: None,
            trace: json!({"pid": detached.pid, "detached": true}),
            warnings: Vec::new(),
            refusals: Vec::new(),
        });
    }
    let cancel = &request.cancel;
    let doorway = request.door.as_ref();
    let door = doorway.map(|doorway| {
        doorway.door(&request.item, around.plan.grants.as_deref(), process.timeout.saturating_add(GRACE))
    });
    // The door is open for as long as the process runs, and not a moment longer.
    let door = door.transpose().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            Error::new(Code::InvalidInvocation, error.to_string()).of(&request.item)
        }
        _ => Error::io(&error),
    })?;
    let finished = match door {
        Some(door) => process::run_with_door(launcher, &command, confinement, cancel, &*door),
        None => process::run(launcher, &command, confinement, cancel),
    };
    let mut finished = finished.map_err(start_error)?;
    if let Some(confined) = &confined {
        finished.receipt.add_replaced(confined.protected.replaced());
    }
    let receipt = serde_json::to_value(&finished.receipt).ok();
    let trace = json!({
        "command": process.command,
        "end": serde_json::to_value(finished.end).unwrap_or_default(),
        "duration_ms": finished.duration.as_secs_f64() * 1e3,
        "stdout_bytes": finished.stdout.total,
        "stderr_bytes": finished.stderr.total,
    });
    let printed = Printed {
        stdout: finished.stdout.text(),
        stderr: finished.stderr.text(),
        is_stdout_cut: finished.stdout.is_cut(),
        is_stderr_cut: finished.stderr.is_cut(),
        channel: finished.result.as_ref().map(|channel| (whole(channel), channel.is_cut())),
    };
    let outcome = match finished.end {
        End::Exited(code) => outcome::of_process(process.result, Exit::Code(code), printed),
        End::Signalled(signal) => outcome::of_process(process.result, Exit::Signal(signal), printed),
        End::TimedOut => {
            let seconds = process.timeout.as_secs_f64();
            stopped(Failure::TimedOut(format!("Command timed out after {seconds} seconds")), printed)
        }
        End::Cancelled => stopped(Failure::Cancelled, printed),
        End::TooManyProcesses { limit } => {
            stopped(Failure::Stopped(format!("it started more than {limit} processes")), printed)
        }
        End::SupervisorLost => {
            stopped(Failure::Stopped("its supervisor was killed or did not answer".to_owned()), printed)
        }
    };
    let refusals = match &outcome.failure {
        Some(failure) => {
            let printed = outcome.data.get("stderr").and_then(Value::as_str).unwrap_or_default();
            around.plan.explain(&[failure.message(), printed, &outcome.logs.stderr].join("\n"))
        }
        None => Vec::new(),
    };
    Ok(Ran { outcome, receipt, trace, warnings: warnings(&finished.receipt), refusals })
}

/// A tool that has a door can call `rye`: this binary is named, and found last on the path.
fn offer_program(engine: &Engine, environment: &mut BTreeMap<String, String>) {
    let (Some(program), Some(folder)) = (folders::own_program(engine), folders::program_folder(engine))
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
    let unmet = receipt.shortfall().map(|rules| format!("the sandbox does not enforce here: {rules}"));
    unmet.into_iter().chain(replaced_warnings(receipt)).collect()
}

/// What was not protected to the end.
pub(super) fn replaced_warnings(receipt: &Receipt) -> impl Iterator<Item = String> + '_ {
    receipt.replaced.iter().map(|path| {
        let path = rye_item::text::one_line(&path.display().to_string());
        format!(
            "`{path}` was replaced or removed while the tool ran, by a program outside its sandbox: from then on it was \
             not protected; look at it"
        )
    })
}

fn whole(captured: &Captured) -> Vec<u8> {
    [captured.head.as_slice(), captured.tail.as_slice()].concat()
}

/// A run that did not end by itself: what it printed is kept.
fn stopped(failure: Failure, printed: Printed) -> Outcome {
    Outcome {
        data: json!({"stdout": printed.stdout, "stderr": printed.stderr, "return_code": -1}),
        failure: Some(failure),
        logs: Logs { stdout: printed.stdout, stderr: printed.stderr },
        is_truncated: printed.is_stdout_cut || printed.is_stderr_cut,
    }
}

/// A name that must be protected cannot be.
pub(crate) fn protect_error(error: &io::Error) -> Error {
    Error::new(Code::NoSandbox, format!("protected names of the project cannot be kept: {error}"))
        .hint("the cache folder must be writable: rye doctor")
}

pub(super) fn start_error(error: RunError) -> Error {
    let message = error.to_string();
    match error {
        RunError::NotFound { .. } => Error::new(Code::NoInterpreter, message),
        RunError::Invalid { .. } => Error::new(Code::InvalidInvocation, message),
        RunError::Refused { receipt, .. } => Error::new(Code::NoSandbox, message)
            .detail("sandbox", serde_json::to_value(receipt).unwrap_or_default())
            .hint("rye doctor tells what this machine offers; `sandbox.on_missing: warn` runs with less"),
        RunError::Failed { .. } => Error::new(Code::ToolFailed, message),
        RunError::Io(error) => Error::io(&error),
    }
}

fn run_http(around: &Surroundings, http: &Http, cancel: &Cancel) -> Ran {
    let answer =
        rye_exec::http::call(&http.config, &around.environment.variables, &around.plan.access, cancel);
    let failure =
        answer.failure.map(|failure| if cancel.is_cancelled() { Failure::Cancelled } else { failure });
    let outcome =
        Outcome { data: answer.data, failure, logs: Logs::default(), is_truncated: answer.truncated };
    Ran { outcome, receipt: None, trace: answer.trace, warnings: Vec::new(), refusals: Vec::new() }
}

fn run_native(engine: &Engine, native: &Native, call: &NativeCall<'_>, request: &Request) -> Result<Ran> {
    let function = &native.function;
    let Some(result) = natives::call(engine, function, call, request)? else {
        let function = rye_item::text::one_line(function);
        return Err(Error::new(Code::InvalidInvocation, format!("this binary has no function `{function}`"))
            .hint("a native tool's `config.function` names one of the functions compiled in"));
    };
    let (data, failure) = match result {
        Ok(data) => (data, None),
        Err(error) => {
            let failure = match error.cause {
                _ if call.cancel.is_cancelled() => Failure::Cancelled,
                Cause::Denied => Failure::Denied(error.message),
                Cause::TimedOut => Failure::TimedOut(error.message),
                Cause::Failed => Failure::Tool(error.message),
            };
            (error.data.unwrap_or(Value::Null), Some(failure))
        }
    };
    let outcome = Outcome { data, failure, logs: Logs::default(), is_truncated: false };
    let trace = json!({"function": function});
    Ok(Ran { outcome, receipt: None, trace, warnings: Vec::new(), refusals: Vec::new() })
}
