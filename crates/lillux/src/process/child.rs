//! The last steps before the tool: limits, confinement, and the change into the program itself.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use super::Limits;
use super::fork::end_at_once;
use super::wire::{self, Expected, Order};
use crate::confine::{self, Confinement, Mechanism, Row, Rule, Stage};

/// What the process says before it becomes the tool.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Everything is in force.
    Ready { rows: Vec<Row> },
    /// It is not begun, since something is not in force.
    Refused { reason: String, rows: Vec<Row> },
    /// It could not be begun.
    Failed { reason: String },
}

/// What ties the process that becomes the tool to its supervisor.
pub(crate) struct SupervisorLink {
    /// Processes that must be out of the tool's reach where no namespace hides them.
    pub(crate) guarded: Vec<i32>,
    /// Where it says what came of preparing. Closes by itself when the program begins.
    pub(crate) status: OwnedFd,
    /// Where it hands over the descriptor at which connections are reported.
    pub(crate) connections: OwnedFd,
}

/// Becomes the tool. Returns never: what fails is said to the supervisor.
pub(crate) fn become_tool(
    order: &Order,
    stage: &Stage,
    descriptors: Vec<OwnedFd>,
    link: &SupervisorLink,
) -> ! {
    let verdict = prepare(&order.limits, order.confinement.as_ref(), stage, link);
    end_with(verdict, &link.status, || execute(order, descriptors))
}

/// Becomes a tool whose order has not arrived: confined already, it waits at `desk` for its order, and at `gate` until
/// what the order brings is protected.
pub(crate) fn become_expected(
    expected: &Expected,
    stage: &Stage,
    desk: &OwnedFd,
    gate: &OwnedFd,
    link: &SupervisorLink,
) -> ! {
    let status = &link.status;
    let hold = || prepare(&expected.limits, Some(&expected.confinement), stage, link);
    let wait = || {
        let (order, descriptors) =
            wire::receive_order(desk).map_err(|error| format!("no order came: {error}"))?;
        if order.confinement.as_ref() != Some(&expected.confinement) || order.limits != expected.limits {
            return Err("the sandbox layout does not match the request".to_owned());
        }
        if !expected.confinement.placeholders.is_empty() && !matches!(rustix::io::read(gate, &mut [0]), Ok(1))
        {
            return Err("the supervisor is gone".to_owned());
        }
        match stage.uncovered() {
            Some(path) => Err(format!("`{}` changed while the run began; try again", path.display())),
            None => Ok((order, descriptors)),
        }
    };
    if stage.covers_everything() {
        end_with(hold(), status, || match wait() {
            Ok((order, descriptors)) => execute(&order, descriptors),
            Err(reason) => reason,
        })
    }
    // Rules that list what is around something must list what is there when the run begins.
    match wait() {
        Ok((order, descriptors)) => end_with(hold(), status, || execute(&order, descriptors)),
        Err(reason) => end_with(Err(reason), status, String::new),
    }
}

/// Says what came of preparing and, if all is well, goes on. `execute` returns only why it could not.
fn end_with(prepared: Result<Verdict, String>, status: &OwnedFd, execute: impl FnOnce() -> String) -> ! {
    let verdict = match prepared {
        Ok(Verdict::Ready { rows }) => {
            // If the supervisor is gone, so is this process in a moment.
            let _ = wire::send_line(status, &Verdict::Ready { rows });
            Verdict::Failed { reason: execute() }
        }
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Failed { reason },
    };
    let _ = wire::send_line(status, &verdict);
    end_at_once(126)
}

fn prepare(
    limits: &Limits,
    confinement: Option<&Confinement>,
    stage: &Stage,
    link: &SupervisorLink,
) -> Result<Verdict, String> {
    rustix::process::setsid().map_err(|error| format!("no session: {error}"))?;
    let mut rows = vec![limit(limits, stage)?];
    let Some(confinement) = confinement else {
        return Ok(Verdict::Ready { rows });
    };
    let (more, listener) = confine::restrict(confinement, stage, &link.guarded)?;
    rows.extend(more);
    if let Some(listener) = listener {
        wire::send_descriptor(&link.connections, listener.as_fd())
            .map_err(|error| format!("connections cannot be supervised: {error}"))?;
    }
    let all = stage.rows.iter().chain(&rows).cloned().collect();
    Ok(match confine::missing(confinement, all) {
        Some(reason) => Verdict::Refused { reason, rows },
        None => Verdict::Ready { rows },
    })
}

fn limit(limits: &Limits, stage: &Stage) -> Result<Row, String> {
    let mut wanted = vec![
        (Resource::Core, 0),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, limits.open_files),
    ];
    if stage.has_user_namespace {
        // Only there does the kernel count this run alone. It counts threads, of which a process has many.
        wanted.push((Resource::Nproc, confine::tasks(limits)));
    } else if !stage.has_pid_namespace
        && let Some(others) = tasks_now()
    {
        // Elsewhere the kernel counts everything of this user, and does not bound root at all.
        wanted.push((Resource::Nproc, others + confine::tasks(limits)));
    }
    wanted.into_iter().try_for_each(|(resource, value)| bound(resource, value))?;
    let memory = limits.memory_bytes.map_or_else(|| "unbounded".to_owned(), |bytes| format!("{bytes} bytes"));
    let detail = format!(
        "files of {} bytes, {} descriptors, address space {memory}, no core files",
        limits.file_bytes, limits.open_files
    );
    Ok(Row::new(Rule::Resources, Mechanism::ResourceLimit, true, detail))
}

fn bound(resource: Resource, value: u64) -> Result<(), String> {
    // Never above what the caller has itself.
    let value = rustix::process::getrlimit(resource).maximum.map_or(value, |maximum| value.min(maximum));
    let both = Rlimit { current: Some(value), maximum: Some(value) };
    rustix::process::setrlimit(resource, both)
        .map_err(|error| format!("limit {resource:?} of {value} was refused: {error}"))
}

/// How many tasks the system has: never fewer than this user has.
fn tasks_now() -> Option<u64> {
    let (text, _) = crate::file::read_bounded(std::path::Path::new("/proc/loadavg"), 4096).ok()?;
    let text = String::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()
}

fn execute(order: &Order, descriptors: Vec<OwnedFd>) -> String {
    let mut descriptors = descriptors.into_iter();
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (descriptors.next(), descriptors.next(), descriptors.next())
    else {
        return "a descriptor is missing".to_owned();
    };
    #[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
    let mut command = std::process::Command::new(&order.program);
    command.args(&order.arguments).env_clear().envs(&order.environment).current_dir(&order.folder);
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let named: Vec<OwnedFd> = descriptors.collect();
    if named.len() != order.named.len() {
        return "a descriptor is missing".to_owned();
    }
    for (variable, descriptor) in order.named.iter().zip(&named) {
        command.env(variable, descriptor.as_raw_fd().to_string());
        if let Err(error) = rustix::io::fcntl_setfd(descriptor, FdFlags::empty()) {
            return format!("no descriptor for {variable}: {error}");
        }
    }
    // Last: this program itself may hold more than the tool may, and still needs some to get there.
    if let Some(Err(reason)) = order.limits.memory_bytes.map(|bytes| bound(Resource::As, bytes)) {
        return reason;
    }
    let error = command.exec();
    format!("`{}` in `{}`: {error}", order.program.display(), order.folder.display())
}
