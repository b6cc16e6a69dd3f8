//! A process that is talked to while it runs: live pipes to it, and a guard that ends it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;
use rustix::pipe::PipeFlags;

use super::protocol::LaunchMode;
use super::run::{LaunchSession, ProcessIo, SHUTDOWN_GRACE, poll_fds};
use super::{Launcher, ProcessCommand, RunError};
use crate::sandbox::Confinement;

/// A running process. Its pipes block, and only this type holds their ends.
#[derive(Debug)]
pub struct InteractiveProcess {
    /// Writes to its standard input.
    pub stdin: OwnedFd,
    /// Reads from its standard output.
    pub stdout: OwnedFd,
    /// Reads from its standard error.
    pub stderr: OwnedFd,
    /// Ends it, with every descendant, when dropped.
    pub guard: ProcessGuard,
}

/// Holds a process. When it is dropped, no process of the run is left.
pub struct ProcessGuard {
    /// `None` once it was let go.
    session: Option<LaunchSession>,
}

impl fmt::Debug for ProcessGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.session.as_ref().map(|session| session.launcher.pid);
        formatter.debug_struct("Guard").field("launcher", &pid).finish()
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            shut_down(session);
        }
    }
}

/// Starts `command` and gives live pipes to it. It ends with its guard, with the caller, and when its time is up.
///
/// # Errors
/// As [`run`](super::run()); also when the command brings its own input or wants a result channel: there are pipes here.
pub fn spawn_interactive(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
) -> Result<InteractiveProcess, RunError> {
    if command.has_result_channel || !command.stdin.is_empty() || command.log.is_some() {
        let reason = "an interactive process has pipes only: no input, result or log file";
        return Err(RunError::Invalid { reason: reason.to_owned() });
    }
    let (stdin_end, stdin) = pipe()?;
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let descriptors = [stdin_end, stdout_end, stderr_end];
    let session = LaunchSession::start(
        launcher,
        command,
        confinement,
        ProcessIo::streams(LaunchMode::Interactive, &descriptors),
    )?;
    drop(descriptors);
    let session = session.wait_started();
    launcher.schedule_refill();
    let session = session?;
    Ok(InteractiveProcess { stdin, stdout, stderr, guard: ProcessGuard { session: Some(session) } })
}

/// Tells the supervisor that the caller is done, and waits until it has ended everything.
fn shut_down(mut session: LaunchSession) {
    // Only this direction: that the run is over comes back on the other.
    let _ = rustix::net::shutdown(&session.launcher.control, Shutdown::Write);
    let deadline = Instant::now() + SHUTDOWN_GRACE;
    let left = || deadline.saturating_duration_since(Instant::now());
    while !session.read_replies() && !session.is_gone() && !left().is_zero() {
        let mut descriptors = [PollFd::new(&session.launcher.control, PollFlags::IN)];
        if poll_fds(&mut descriptors, Some(left())).is_err() {
            break;
        }
    }
    session.shut_down();
    let mut descriptors = [PollFd::new(&session.launcher.exit, PollFlags::IN)];
    let _ = poll_fds(&mut descriptors, Some(left()));
    session.launcher.detach();
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}
