//! The binary that starts processes, and launchers started ahead of time: beginning a program takes longer than
//! anything a launcher does, so it is done while the caller is still busy with other things.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

use super::launch::leave;
use super::wire;

/// The binary that starts processes. Its `main` begins with [`supervise_if_asked`](super::supervise_if_asked).
#[derive(Clone, Debug, Default)]
pub struct Launcher {
    program: PathBuf,
    keeps_one: bool,
    waiting: Arc<Mutex<Option<Started>>>,
}

impl Launcher {
    /// The launcher at `program`: `/proc/self/exe` for a program that is its own launcher.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), keeps_one: false, waiting: Arc::default() }
    }

    /// The same, for a process that runs one tool after the other: from the first run on, one launcher is kept waiting
    /// for the next. It ends with this process.
    #[must_use]
    pub fn keeping_one(self) -> Self {
        Self { keeps_one: true, ..self }
    }

    /// Starts one now, beside whatever the caller does, for the run to come.
    pub fn prepare(&self) {
        let (program, waiting) = (self.program.clone(), Arc::clone(&self.waiting));
        // Where no thread is to be had, the run starts its own.
        let _ = std::thread::Builder::new().name("launcher".to_owned()).spawn(move || {
            let Ok(started) = Started::new(&program) else {
                return;
            };
            let mut place = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            place.get_or_insert(started);
        });
    }

    /// The binary.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The one that waits, if one does.
    pub(super) fn take_waiting(&self) -> Option<Started> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sees to it that the next run finds one.
    pub(super) fn replace(&self) {
        if self.keeps_one {
            self.prepare();
        }
    }
}

/// A launcher that has not been given its order. Dropped, it ends by itself.
#[derive(Debug)]
pub(super) struct Started(Option<Parts>);

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) child: Child,
    pub(super) exit: OwnedFd,
    pub(super) control: OwnedFd,
}

impl Started {
    pub(super) fn new(program: &Path) -> io::Result<Self> {
        let (control, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        #[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
        let mut start = std::process::Command::new(program);
        start.arg0(wire::MARK).env_clear().current_dir("/");
        start.stdin(Stdio::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = start.spawn()?;
        // The builder still holds the launcher's end of the socket.
        drop(start);
        match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(exit) => Ok(Self(Some(Parts { child, exit, control }))),
            Err(error) => {
                drop(control);
                leave(child);
                Err(error.into())
            }
        }
    }

    pub(super) fn parts(&mut self) -> Option<&mut Parts> {
        self.0.as_mut()
    }

    pub(super) fn into_parts(mut self) -> Option<Parts> {
        self.0.take()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(Parts { child, control, .. }) = self.0.take() {
            // Without its order it ends by itself.
            drop(control);
            leave(child);
        }
    }
}
