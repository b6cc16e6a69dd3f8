//! The binary that starts processes, and launchers started ahead of time: beginning a program takes longer than
//! anything a launcher does, so it is done while the caller is still busy with other things. A process that runs many
//! tools keeps a *source*: the binary, begun once, that forks launchers on demand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::launch::leave;
use super::wire::{self, Role};

/// How many launchers are kept waiting: one for the next run, one for the run after it while its place is filled.
const KEPT: usize = 2;

/// The binary that starts processes. Its `main` begins with [`supervise_if_asked`](super::supervise_if_asked).
#[derive(Clone, Debug, Default)]
pub struct Launcher {
    program: PathBuf,
    keeps_some: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Started>,
    /// Forks launchers, once it is there.
    source: Option<OwnedFd>,
}

impl State {
    /// Asks the source for a launcher; without a source, or with one that was ended, there is none.
    fn ask(&mut self, role: Role) -> Option<Started> {
        let (control, other) = pair().ok()?;
        let asked = wire::send_role(self.source.as_ref()?, role, other.as_fd());
        if asked.is_err() {
            self.source = None;
            return None;
        }
        Some(Started { process: Process::Forked, control })
    }

    fn fill(&mut self) {
        while self.waiting.len() < KEPT {
            let Some(started) = self.ask(Role::Prepared) else { return };
            self.waiting.push(started);
        }
    }
}

impl Launcher {
    /// The launcher at `program`: `/proc/self/exe` for a program that is its own launcher.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), keeps_some: false, state: Arc::default() }
    }

    /// The same, for a process that runs one tool after the other: from the first run on, launchers are kept waiting
    /// for the next. They end with this process.
    #[must_use]
    pub fn keeping_some(self) -> Self {
        Self { keeps_some: true, ..self }
    }

    /// Starts one now, beside whatever the caller does, for the run to come.
    pub fn prepare(&self) {
        let this = self.clone();
        // Where no thread is to be had, the run starts its own.
        let _ = std::thread::Builder::new().name("launcher".to_owned()).spawn(move || {
            if !this.keeps_some {
                let Ok(started) = Started::new(&this.program, Role::Prepared) else { return };
                this.state().waiting.push(started);
                return;
            }
            let has_source = this.state().source.is_some();
            if !has_source {
                let Ok(Started { process: Process::Child(child), control }) =
                    Started::new(&this.program, Role::Source)
                else {
                    return;
                };
                leave(child);
                this.state().source = Some(control);
            }
            this.state().fill();
        });
    }

    /// The binary.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is there already, or is had quickly. What waits has left its namespaces: it serves only `Prepared`.
    pub(super) fn take(&self, role: Role) -> Option<Started> {
        let mut state = self.state();
        let waiting = if role == Role::Prepared { state.waiting.pop() } else { None };
        waiting.or_else(|| state.ask(role))
    }

    /// Sees to it that the next run finds one. To be called when a run is over: it must not compete with it.
    pub(super) fn replace(&self) {
        if !self.keeps_some {
            return;
        }
        let mut state = self.state();
        if state.source.is_some() {
            state.fill();
        }
        let has_source = state.source.is_some();
        drop(state);
        if !has_source {
            self.prepare();
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A launcher that has not been given its order. Without one it ends by itself.
#[derive(Debug)]
pub(super) struct Started {
    process: Process,
    control: OwnedFd,
}

#[derive(Debug)]
enum Process {
    /// A child of this process.
    Child(Child),
    /// A child of the source: it says itself who it is.
    Forked,
}

/// A launcher that is there.
#[derive(Debug)]
pub(super) struct Parts {
    /// Its number.
    pub(super) pid: u32,
    /// To be collected, if it is a child of this process.
    pub(super) child: Option<Child>,
    /// Tells of its end.
    pub(super) exit: OwnedFd,
    pub(super) control: OwnedFd,
}

impl Started {
    pub(super) fn new(program: &Path, role: Role) -> io::Result<Self> {
        let (control, other) = pair()?;
        #[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
        let mut start = std::process::Command::new(program);
        start.arg0(wire::MARK).arg(role.as_str()).env_clear().current_dir("/");
        start.stdin(Stdio::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = start.spawn()?;
        Ok(Self { process: Process::Child(child), control })
    }

    pub(super) fn into_parts(self) -> io::Result<Parts> {
        let Self { process, control } = self;
        match process {
            Process::Child(child) => {
                match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                    Ok(exit) => Ok(Parts { pid: child.id(), child: Some(child), exit, control }),
                    Err(error) => {
                        drop(control);
                        leave(child);
                        Err(error.into())
                    }
                }
            }
            Process::Forked => {
                let (pid, exit) = wire::receive_hello(&control)?;
                Ok(Parts { pid, child: None, exit, control })
            }
        }
    }
}

impl Parts {
    /// Ends it. It may have ended by itself.
    pub(super) fn kill(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.exit, Signal::KILL);
    }

    /// Collects it when it has ended; without waiting for that.
    pub(super) fn leave(self) {
        if let Some(child) = self.child {
            leave(child);
        }
    }
}
