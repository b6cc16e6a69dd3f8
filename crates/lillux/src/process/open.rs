//! A process that is talked to while it runs: live pipes to it, and a guard that ends it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;
use rustix::pipe::PipeFlags;

use super::launch::{Given, MARGIN, Session, wait_for};
use super::wire::Manner;
use super::{Command, Launcher, RunError};
use crate::confine::Confinement;

/// A process that has begun. Its pipes block, and nobody else holds their ends.
#[derive(Debug)]
pub struct Opened {
    /// Writes to its standard input.
    pub stdin: OwnedFd,
    /// Reads from its standard output.
    pub stdout: OwnedFd,
    /// Reads from its standard error.
    pub stderr: OwnedFd,
    /// Ends it, with every descendant, when dropped.
    pub guard: Guard,
}

/// Holds a process. When it is dropped, no process of the run is left.
pub struct Guard {
    /// `None` once it was let go.
    session: Option<Session>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.session.as_ref().map(|session| session.parts.pid);
        formatter.debug_struct("Guard").field("launcher", &pid).finish()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            end(session);
        }
    }
}

/// Starts `command` and gives live pipes to it. It ends with its guard, with the caller, and when its time is up.
///
/// # Errors
/// As [`run`](super::run); also when the command brings its own input or wants a result channel: there are pipes here.
pub fn open(
    launcher: &Launcher,
    command: &Command,
    confinement: Option<&Confinement>,
) -> Result<Opened, RunError> {
    if command.has_result_channel || !command.stdin.is_empty() || command.log.is_some() {
        let reason = "a process that is talked to has pipes only: no input, result or log of its own";
        return Err(RunError::Invalid { reason: reason.to_owned() });
    }
    let (stdin_end, stdin) = pipe()?;
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let descriptors = [stdin_end, stdout_end, stderr_end];
    let session =
        Session::start(launcher, command, confinement, Given::streams(Manner::Conversing, &descriptors))?;
    drop(descriptors);
    let session = session.begun();
    launcher.replace();
    let session = session?;
    Ok(Opened { stdin, stdout, stderr, guard: Guard { session: Some(session) } })
}

/// Tells the supervisor that nobody is interested any more, and waits until it has ended everything.
fn end(mut session: Session) {
    // Only this direction: that the run is over comes back on the other.
    let _ = rustix::net::shutdown(&session.parts.control, Shutdown::Write);
    let deadline = Instant::now() + MARGIN;
    let left = || deadline.saturating_duration_since(Instant::now());
    while !session.listen() && !session.is_gone() && !left().is_zero() {
        let mut descriptors = [PollFd::new(&session.parts.control, PollFlags::IN)];
        if wait_for(&mut descriptors, Some(left())).is_err() {
            break;
        }
    }
    session.end();
    let mut descriptors = [PollFd::new(&session.parts.exit, PollFlags::IN)];
    let _ = wait_for(&mut descriptors, Some(left()));
    session.parts.leave();
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}
