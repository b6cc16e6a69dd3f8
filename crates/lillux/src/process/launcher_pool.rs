//! The binary that starts processes, and launchers started ahead of time: beginning a program takes longer than
//! anything a launcher does, so it is done while the caller is still busy with other things. A process that runs many
//! tools keeps a *source*: the binary, begun once, that forks launchers on demand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::fork::{ForkResult, exit_immediately, fork};
use super::prewarm::{PrewarmedSandbox, SandboxLayout};
use super::protocol::{self, LauncherRole, PrewarmSpec};
use super::run::reap_later;
use super::zygote;

/// How many launchers are kept waiting with the next run laid out: one for it, and one for the run after it while the
/// place of the first is filled.
const MAX_PREWARMED: usize = 2;

/// How many are kept waiting for anything else.
const MAX_SPARE: usize = 1;

/// How long after a run its launcher is replaced. It must not compete with the code that handles the run's result.
const REFILL_DELAY: Duration = Duration::from_millis(2);

/// After how long without a run nothing is kept laid out.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The binary that starts processes. Its `main` begins with
/// [`supervise_if_requested`](super::supervise_if_requested).
#[derive(Clone, Debug, Default)]
pub struct Launcher {
    program: PathBuf,
    is_pooled: bool,
    state: Arc<Mutex<PoolState>>,
}

#[derive(Debug, Default)]
struct PoolState {
    pending: Vec<PendingLauncher>,
    /// Those whose run is over, with what they had laid out.
    idle: Vec<IdleLauncher>,
    /// What the last run was held to: the next one is likely to be held to the same.
    predicted: Option<PrewarmSpec>,
    /// Forks launchers, once it is there.
    zygote: Option<OwnedFd>,
    /// Hears that launchers are wanted.
    refill_sender: Option<Sender<Duration>>,
}

impl PoolState {
    /// Asks the source for a launcher; without a source, or with one that was ended, there is none.
    fn fork_from_zygote(&mut self, role: LauncherRole) -> Option<PendingLauncher> {
        let (control, other) = socket_pair().ok()?;
        let sent = protocol::send_role(self.zygote.as_ref()?, role, other.as_fd());
        if sent.is_err() {
            self.zygote = None;
            return None;
        }
        Some(PendingLauncher { process: LauncherProcess::Forked, control, prewarmed: None })
    }

    /// Keeps launchers waiting: some that have laid out what is likely, the others for whatever comes.
    fn refill(&mut self) -> Option<()> {
        let predicted = self.predicted.clone();
        // A launcher that prepared another layout ends by itself.
        self.pending.retain(|started| match (&started.prewarmed, &predicted) {
            (Some(_), Some(predicted)) => started.is_current_for(predicted),
            (Some(_), None) => false,
            (None, _) => true,
        });
        for IdleLauncher { handle, layout } in std::mem::take(&mut self.idle) {
            let is_reusable = predicted.as_ref().is_some_and(|predicted| layout.is_current_for(predicted));
            if is_reusable
                && self.prewarmed_count() < MAX_PREWARMED
                && let Ok(started) = PendingLauncher::from_idle(handle, layout)
            {
                self.pending.push(started);
            }
        }
        if let Some(predicted) = predicted {
            while self.prewarmed_count() < MAX_PREWARMED {
                let mut started = self.fork_from_zygote(LauncherRole::Isolated)?;
                started.prewarmed = SandboxLayout::capture(&predicted)
                    .and_then(|layout| layout.prewarm(&started.control))
                    .ok();
                let is_prewarmed = started.prewarmed.is_some();
                self.pending.push(started);
                if !is_prewarmed {
                    break;
                }
            }
        }
        while self.pending.len() - self.prewarmed_count() < MAX_SPARE {
            let started = self.fork_from_zygote(LauncherRole::Isolated)?;
            self.pending.push(started);
        }
        Some(())
    }

    /// How many have laid something out.
    fn prewarmed_count(&self) -> usize {
        self.pending.iter().filter(|started| started.prewarmed.is_some()).count()
    }

    /// What is laid out holds on to whatever was mounted then: it is not kept for a run that does not come.
    fn drop_prewarmed(&mut self) {
        self.pending.retain(|started| started.prewarmed.is_none());
        self.idle.clear();
    }

    /// One that fits the run, or else one that has laid out nothing.
    fn take(&mut self, spec: Option<&PrewarmSpec>) -> Option<PendingLauncher> {
        let matches = |started: &PendingLauncher| {
            started
                .prewarmed
                .as_ref()
                .zip(spec)
                .is_some_and(|(prewarmed, spec)| prewarmed.layout.is_for_spec(spec))
        };
        let index_found = loop {
            let index_found = self.pending.iter().position(matches);
            match index_found.zip(spec) {
                // What was laid out for this but does not fit any more never will.
                Some((index, spec)) if !self.pending[index].is_current_for(spec) => {
                    drop(self.pending.remove(index))
                }
                Some(_) | None => break index_found,
            }
        };
        let index =
            index_found.or_else(|| self.pending.iter().position(|started| started.prewarmed.is_none()))?;
        Some(self.pending.remove(index))
    }
}

impl Launcher {
    /// The launcher at `program`: `/proc/self/exe` for a program that is its own launcher.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), is_pooled: false, state: Arc::default() }
    }

    /// The same, for a process that runs one tool after the other: from the first run on, launchers are kept waiting
    /// for the next. They end with this process.
    #[must_use]
    pub fn with_pool(self) -> Self {
        Self { is_pooled: true, ..self }
    }

    /// Starts one now, beside whatever the caller does, for the run to come.
    pub fn prestart(&self) {
        if self.is_pooled {
            return self.request_refill(Duration::ZERO);
        }
        if let Some(started) = early_launcher().take() {
            return self.state().pending.push(started);
        }
        let this = self.clone();
        // Where no thread is to be had, the run starts its own.
        let _ = std::thread::Builder::new().name("launcher".to_owned()).spawn(move || {
            let Ok(started) = PendingLauncher::new(&this.program, LauncherRole::Isolated) else { return };
            this.state().pending.push(started);
        });
    }

    /// Has launchers kept waiting, from this long on.
    fn request_refill(&self, delay: Duration) {
        let mut state = self.state();
        if state.refill_sender.is_none() {
            let (sender, requests) = mpsc::channel();
            let (weak_state, program) = (Arc::downgrade(&self.state), self.program.clone());
            let thread = std::thread::Builder::new().name("launchers".to_owned());
            // Where no thread is to be had, each run starts its own launcher.
            state.refill_sender =
                thread.spawn(move || refill_loop(&requests, &weak_state, &program)).ok().map(|_| sender);
        }
        if state.refill_sender.as_ref().is_some_and(|sender| sender.send(delay).is_err()) {
            state.refill_sender = None;
        }
    }

    /// The binary.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is there already, or is had quickly. What waits has left its namespaces: it serves only `Prepared`.
    pub(super) fn take(&self, role: LauncherRole, spec: Option<&PrewarmSpec>) -> Option<PendingLauncher> {
        let mut state = self.state();
        let pending = if role == LauncherRole::Isolated { state.take(spec) } else { None };
        pending.or_else(|| state.fork_from_zygote(role))
    }

    /// A run is held to this: the next one may well be, too.
    pub(super) fn predict(&self, spec: Option<PrewarmSpec>) {
        if self.is_pooled && spec.is_some() {
            self.state().predicted = spec;
        }
    }

    /// Takes one back whose run is over and that can serve another.
    pub(super) fn recycle(&self, idle: IdleLauncher) {
        let mut state = self.state();
        if self.is_pooled && state.idle.len() < MAX_PREWARMED {
            state.idle.push(idle);
        }
    }

    /// Sees to it that the next run finds one. To be called when a run is over: it must not compete with it.
    pub(super) fn schedule_refill(&self) {
        if self.is_pooled {
            self.request_refill(REFILL_DELAY);
        }
    }
}

/// The launcher that this process forked when it began.
fn early_launcher() -> MutexGuard<'static, Option<PendingLauncher>> {
    static EARLY: Mutex<Option<PendingLauncher>> = Mutex::new(None);
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forks a launcher for the first [`Launcher::prestart`] to come: much sooner there than one that begins again. To be
/// called by a program that is its own launcher, at the beginning of `main`, while it has one thread and holds nothing.
pub fn fork_launcher() {
    let Ok((control, other)) = socket_pair() else { return };
    match fork() {
        Ok(ForkResult::Child) => {
            drop(control);
            exit_immediately(zygote::run_forked_by_caller(&other));
        }
        Ok(ForkResult::Parent(_)) => {
            *early_launcher() =
                Some(PendingLauncher { process: LauncherProcess::Forked, control, prewarmed: None });
        }
        // One is begun when it is needed.
        Err(_) => {}
    }
}

/// Keeps launchers waiting for as long as they could be needed.
fn refill_loop(requests: &Receiver<Duration>, weak_state: &Weak<Mutex<PoolState>>, program: &Path) {
    loop {
        let delay = match requests.recv_timeout(IDLE_TIMEOUT) {
            Ok(delay) => delay,
            Err(RecvTimeoutError::Timeout) => {
                let Some(state) = weak_state.upgrade() else { return };
                state.lock().unwrap_or_else(PoisonError::into_inner).drop_prewarmed();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        std::thread::sleep(delay);
        // What was wished meanwhile is done along with it.
        while requests.try_recv().is_ok() {}
        let Some(state) = weak_state.upgrade() else { return };
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        // A source that was ended is noticed when it is asked.
        let is_full = lock().refill().is_some();
        if !is_full && let Some(zygote) = start_zygote(program) {
            let mut state = lock();
            state.zygote = Some(zygote);
            state.refill();
        }
    }
}

fn start_zygote(program: &Path) -> Option<OwnedFd> {
    let PendingLauncher { process, control, .. } =
        PendingLauncher::new(program, LauncherRole::Zygote).ok()?;
    if let LauncherProcess::Child(child) = process {
        reap_later(child);
    }
    Some(control)
}

pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A launcher that has not been given its order. Without one it ends by itself.
#[derive(Debug)]
pub(super) struct PendingLauncher {
    process: LauncherProcess,
    control: OwnedFd,
    /// What it has laid out, or is laying out.
    prewarmed: Option<PrewarmedSandbox>,
}

/// A launcher whose run is over, and what it has laid out. Dropped, it ends.
#[derive(Debug)]
pub(super) struct IdleLauncher {
    pub(super) handle: LauncherHandle,
    pub(super) layout: SandboxLayout,
}

#[derive(Debug)]
enum LauncherProcess {
    /// A child of this process.
    Child(Child),
    /// A child of the source: it says itself who it is.
    Forked,
    /// One that has said so.
    Identified { pid: u32, exit: OwnedFd },
}

/// A launcher that is there.
#[derive(Debug)]
pub(super) struct LauncherHandle {
    /// Its number.
    pub(super) pid: u32,
    /// To be collected, if it is a child of this process.
    pub(super) child: Option<Child>,
    /// Tells of its end.
    pub(super) exit: OwnedFd,
    pub(super) control: OwnedFd,
}

impl PendingLauncher {
    pub(super) fn new(program: &Path, role: LauncherRole) -> io::Result<Self> {
        let (control, other) = socket_pair()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the single entry point for starting processes"
        )]
        let mut command = std::process::Command::new(program);
        command.arg0(protocol::LAUNCHER_ARGV0).arg(role.as_str()).env_clear().current_dir("/");
        command.stdin(Stdio::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        Ok(Self { process: LauncherProcess::Child(child), control, prewarmed: None })
    }

    /// One that waits for another order of the same kind.
    fn from_idle(handle: LauncherHandle, layout: SandboxLayout) -> io::Result<Self> {
        let LauncherHandle { pid, exit, control, .. } = handle;
        rustix::io::ioctl_fionbio(&control, false)?;
        let prewarmed = layout.prewarm(&control)?;
        Ok(Self { process: LauncherProcess::Identified { pid, exit }, control, prewarmed: Some(prewarmed) })
    }

    /// Whether it has laid out just this.
    fn is_current_for(&self, spec: &PrewarmSpec) -> bool {
        self.prewarmed.as_ref().is_some_and(|prewarmed| prewarmed.layout.is_current_for(spec))
    }

    /// What it has laid out.
    pub(super) fn take_prewarmed(&mut self) -> Option<PrewarmedSandbox> {
        self.prewarmed.take()
    }

    pub(super) fn into_handle(self) -> io::Result<LauncherHandle> {
        let Self { process, control, .. } = self;
        match process {
            LauncherProcess::Child(child) => {
                match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                    Ok(exit) => Ok(LauncherHandle { pid: child.id(), child: Some(child), exit, control }),
                    Err(error) => {
                        drop(control);
                        reap_later(child);
                        Err(error.into())
                    }
                }
            }
            LauncherProcess::Identified { pid, exit } => {
                Ok(LauncherHandle { pid, child: None, exit, control })
            }
            LauncherProcess::Forked => {
                let (pid, exit) = protocol::receive_hello(&control)?;
                Ok(LauncherHandle { pid, child: None, exit, control })
            }
        }
    }
}

impl LauncherHandle {
    /// Ends it. It may have ended by itself.
    pub(super) fn kill(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.exit, Signal::KILL);
    }

    /// Collects it when it has ended; without waiting for that.
    pub(super) fn detach(self) {
        if let Some(child) = self.child {
            reap_later(child);
        }
    }
}
