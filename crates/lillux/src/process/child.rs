//! The last steps before the tool: limits, confinement, and the change into the program itself.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use super::ProcessLimits;
use super::fork::exit_immediately;
use super::protocol::{self, LaunchRequest, PrewarmSpec};
use crate::sandbox::{self, Confinement, IsolationState, Mechanism, ReceiptRow, SandboxRule};

/// What the process says before it becomes the tool.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SetupStatus {
    /// Everything is in force.
    Ready { rows: Vec<ReceiptRow> },
    /// It is not begun, since something is not in force.
    Refused { reason: String, rows: Vec<ReceiptRow> },
    /// It could not be begun.
    Failed { reason: String },
}

/// What ties the process that becomes the tool to its supervisor.
pub(crate) struct SupervisorLink {
    /// Processes that must be out of the tool's reach where no namespace hides them.
    pub(crate) protected_pids: Vec<i32>,
    /// Where it says what came of preparing. Closes by itself when the program begins.
    pub(crate) status: OwnedFd,
    /// Where it hands over the descriptor at which connections are reported.
    pub(crate) connection_listener: OwnedFd,
}

/// Becomes the tool. Returns never: what fails is said to the supervisor.
pub(crate) fn exec_tool(
    request: &LaunchRequest,
    state: &IsolationState,
    descriptors: Vec<OwnedFd>,
    link: &SupervisorLink,
) -> ! {
    let status = prepare(&request.limits, request.confinement.as_ref(), state, link);
    report_and_exec(status, &link.status, || exec_program(request, descriptors))
}

/// Becomes a tool before its request has arrived: already confined, it waits at `request_socket` for the request, and at
/// `start_gate` until the paths of the request are protected.
pub(crate) fn exec_prewarmed(
    spec: &PrewarmSpec,
    state: &IsolationState,
    request_socket: &OwnedFd,
    start_gate: &OwnedFd,
    link: &SupervisorLink,
) -> ! {
    let status = &link.status;
    let apply = || prepare(&spec.limits, Some(&spec.confinement), state, link);
    let wait = || {
        let (order, descriptors) =
            protocol::receive_request(request_socket).map_err(|error| format!("no order came: {error}"))?;
        if order.confinement.as_ref() != Some(&spec.confinement) || order.limits != spec.limits {
            return Err("the sandbox layout does not match the request".to_owned());
        }
        if !spec.confinement.placeholders.is_empty()
            && !matches!(rustix::io::read(start_gate, &mut [0]), Ok(1))
        {
            return Err("the supervisor is gone".to_owned());
        }
        match state.find_uncovered() {
            Some(path) => Err(format!("`{}` changed while the run began; try again", path.display())),
            None => Ok((order, descriptors)),
        }
    };
    if state.is_fully_covered() {
        report_and_exec(apply(), status, || match wait() {
            Ok((order, descriptors)) => exec_program(&order, descriptors),
            Err(reason) => reason,
        })
    }
    // Rules that list what is around something must list what is there when the run begins.
    match wait() {
        Ok((order, descriptors)) => report_and_exec(apply(), status, || exec_program(&order, descriptors)),
        Err(reason) => report_and_exec(Err(reason), status, String::new),
    }
}

/// Reports the result of preparing and, if it succeeded, calls `exec`, which only returns on failure.
fn report_and_exec(
    prepared: Result<SetupStatus, String>,
    status: &OwnedFd,
    exec: impl FnOnce() -> String,
) -> ! {
    let outcome = match prepared {
        Ok(SetupStatus::Ready { rows }) => {
            // If the supervisor is gone, so is this process in a moment.
            let _ = protocol::send_line(status, &SetupStatus::Ready { rows });
            SetupStatus::Failed { reason: exec() }
        }
        Ok(outcome) => outcome,
        Err(reason) => SetupStatus::Failed { reason },
    };
    let _ = protocol::send_line(status, &outcome);
    exit_immediately(126)
}

fn prepare(
    limits: &ProcessLimits,
    confinement: Option<&Confinement>,
    state: &IsolationState,
    link: &SupervisorLink,
) -> Result<SetupStatus, String> {
    rustix::process::setsid().map_err(|error| format!("no session: {error}"))?;
    let mut rows = vec![apply_limits(limits, state)?];
    let Some(confinement) = confinement else {
        return Ok(SetupStatus::Ready { rows });
    };
    let (sandbox_rows, listener) = sandbox::lock_down(confinement, state, &link.protected_pids)?;
    rows.extend(sandbox_rows);
    if let Some(listener) = listener {
        protocol::send_descriptor(&link.connection_listener, listener.as_fd())
            .map_err(|error| format!("connections cannot be supervised: {error}"))?;
    }
    let all = state.rows.iter().chain(&rows).cloned().collect();
    Ok(match sandbox::missing_rules(confinement, all) {
        Some(reason) => SetupStatus::Refused { reason, rows },
        None => SetupStatus::Ready { rows },
    })
}

fn apply_limits(limits: &ProcessLimits, state: &IsolationState) -> Result<ReceiptRow, String> {
    let mut resource_limits = vec![
        (Resource::Core, 0),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, limits.open_files),
    ];
    if state.has_user_namespace {
        // Only there does the kernel count this run alone. It counts threads, of which a process has many.
        resource_limits.push((Resource::Nproc, sandbox::task_limit(limits)));
    } else if !state.has_pid_namespace
        && let Some(others) = running_tasks()
    {
        // Elsewhere the kernel counts everything of this user, and does not bound root at all.
        resource_limits.push((Resource::Nproc, others + sandbox::task_limit(limits)));
    }
    resource_limits.into_iter().try_for_each(|(resource, value)| set_limit(resource, value))?;
    let memory = limits.memory_bytes.map_or_else(|| "unbounded".to_owned(), |bytes| format!("{bytes} bytes"));
    let detail = format!(
        "files of {} bytes, {} descriptors, address space {memory}, no core files",
        limits.file_bytes, limits.open_files
    );
    Ok(ReceiptRow::new(SandboxRule::Resources, Mechanism::ResourceLimit, true, detail))
}

fn set_limit(resource: Resource, value: u64) -> Result<(), String> {
    // Never above what the caller has itself.
    let value = rustix::process::getrlimit(resource).maximum.map_or(value, |maximum| value.min(maximum));
    let both = Rlimit { current: Some(value), maximum: Some(value) };
    rustix::process::setrlimit(resource, both)
        .map_err(|error| format!("limit {resource:?} of {value} was refused: {error}"))
}

/// How many tasks the system has: never fewer than this user has.
fn running_tasks() -> Option<u64> {
    let (text, _) = crate::file::read_bounded(std::path::Path::new("/proc/loadavg"), 4096).ok()?;
    let text = String::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()
}

fn exec_program(request: &LaunchRequest, descriptors: Vec<OwnedFd>) -> String {
    let mut descriptors = descriptors.into_iter();
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (descriptors.next(), descriptors.next(), descriptors.next())
    else {
        return "a descriptor is missing".to_owned();
    };
    #[expect(clippy::disallowed_methods, reason = "this is the single entry point for starting processes")]
    let mut command = std::process::Command::new(&request.program);
    command.args(&request.arguments).env_clear().envs(&request.environment).current_dir(&request.current_dir);
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let extra_fds: Vec<OwnedFd> = descriptors.collect();
    if extra_fds.len() != request.fd_variables.len() {
        return "a descriptor is missing".to_owned();
    }
    for (variable, descriptor) in request.fd_variables.iter().zip(&extra_fds) {
        command.env(variable, descriptor.as_raw_fd().to_string());
        if let Err(error) = rustix::io::fcntl_setfd(descriptor, FdFlags::empty()) {
            return format!("no descriptor for {variable}: {error}");
        }
    }
    // Last: this program itself may hold more than the tool may, and still needs some to get there.
    if let Some(Err(reason)) = request.limits.memory_bytes.map(|bytes| set_limit(Resource::As, bytes)) {
        return reason;
    }
    let error = command.exec();
    format!("`{}` in `{}`: {error}", request.program.display(), request.current_dir.display())
}
