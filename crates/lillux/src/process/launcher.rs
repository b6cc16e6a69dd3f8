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

use super::ahead::{Ahead, Laid};
use super::fork::{Side, end_at_once, fork};
use super::launch::leave;
use super::source;
use super::wire::{self, Expected, Role};

/// How many launchers are kept waiting with the next run laid out: one for it, and one for the run after it while the
/// place of the first is filled.
const LAID_OUT: usize = 2;

/// How many are kept waiting for anything else.
const OPEN: usize = 1;

/// How long after a run its launcher is replaced. It must not compete with whoever hears of the run.
const PAUSE: Duration = Duration::from_millis(2);

/// After how long without a run nothing is kept laid out.
const IDLE: Duration = Duration::from_secs(30);

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
    /// Those whose run is over, with what they had laid out.
    returned: Vec<Returned>,
    /// What the last run was held to: the next one is likely to be held to the same.
    likely: Option<Expected>,
    /// Forks launchers, once it is there.
    source: Option<OwnedFd>,
    /// Hears that launchers are wanted.
    keeper: Option<Sender<Duration>>,
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
        Some(Started { process: Process::Forked, control, ahead: None })
    }

    /// Keeps launchers waiting: some that have laid out what is likely, the others for whatever comes.
    fn fill(&mut self) -> Option<()> {
        let likely = self.likely.clone();
        // Whoever laid out something else ends by itself.
        self.waiting.retain(|started| match (&started.ahead, &likely) {
            (Some(_), Some(likely)) => started.fits(likely),
            (Some(_), None) => false,
            (None, _) => true,
        });
        for Returned { parts, laid } in std::mem::take(&mut self.returned) {
            let is_wanted = likely.as_ref().is_some_and(|likely| laid.fits(likely));
            if is_wanted
                && self.laid_out() < LAID_OUT
                && let Ok(started) = Started::again(parts, laid)
            {
                self.waiting.push(started);
            }
        }
        if let Some(likely) = likely {
            while self.laid_out() < LAID_OUT {
                let mut started = self.ask(Role::Prepared)?;
                started.ahead = Laid::now(&likely).and_then(|laid| laid.ask(&started.control)).ok();
                let is_laid_out = started.ahead.is_some();
                self.waiting.push(started);
                if !is_laid_out {
                    break;
                }
            }
        }
        while self.waiting.len() - self.laid_out() < OPEN {
            let started = self.ask(Role::Prepared)?;
            self.waiting.push(started);
        }
        Some(())
    }

    /// How many have laid something out.
    fn laid_out(&self) -> usize {
        self.waiting.iter().filter(|started| started.ahead.is_some()).count()
    }

    /// What is laid out holds on to whatever was mounted then: it is not kept for a run that does not come.
    fn rest(&mut self) {
        self.waiting.retain(|started| started.ahead.is_none());
        self.returned.clear();
    }

    /// One that fits the run, or else one that has laid out nothing.
    fn take(&mut self, expected: Option<&Expected>) -> Option<Started> {
        let is_for = |started: &Started| {
            started.ahead.as_ref().zip(expected).is_some_and(|(ahead, expected)| ahead.laid.is_for(expected))
        };
        let found = loop {
            let found = self.waiting.iter().position(is_for);
            match found.zip(expected) {
                // What was laid out for this but does not fit any more never will.
                Some((index, expected)) if !self.waiting[index].fits(expected) => {
                    drop(self.waiting.remove(index))
                }
                Some(_) | None => break found,
            }
        };
        let index = found.or_else(|| self.waiting.iter().position(|started| started.ahead.is_none()))?;
        Some(self.waiting.remove(index))
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
        if self.keeps_some {
            return self.keep(Duration::ZERO);
        }
        if let Some(started) = forked_early().take() {
            return self.state().waiting.push(started);
        }
        let this = self.clone();
        // Where no thread is to be had, the run starts its own.
        let _ = std::thread::Builder::new().name("launcher".to_owned()).spawn(move || {
            let Ok(started) = Started::new(&this.program, Role::Prepared) else { return };
            this.state().waiting.push(started);
        });
    }

    /// Has launchers kept waiting, from this long on.
    fn keep(&self, pause: Duration) {
        let mut state = self.state();
        if state.keeper.is_none() {
            let (keeper, wishes) = mpsc::channel();
            let (kept, program) = (Arc::downgrade(&self.state), self.program.clone());
            let thread = std::thread::Builder::new().name("launchers".to_owned());
            // Where no thread is to be had, each run starts its own launcher.
            state.keeper = thread.spawn(move || keep_some(&wishes, &kept, &program)).ok().map(|_| keeper);
        }
        if state.keeper.as_ref().is_some_and(|keeper| keeper.send(pause).is_err()) {
            state.keeper = None;
        }
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
    pub(super) fn take(&self, role: Role, expected: Option<&Expected>) -> Option<Started> {
        let mut state = self.state();
        let waiting = if role == Role::Prepared { state.take(expected) } else { None };
        waiting.or_else(|| state.ask(role))
    }

    /// A run is held to this: the next one may well be, too.
    pub(super) fn expect(&self, expected: Option<Expected>) {
        if self.keeps_some && expected.is_some() {
            self.state().likely = expected;
        }
    }

    /// Takes one back whose run is over and that can serve another.
    pub(super) fn take_back(&self, returned: Returned) {
        let mut state = self.state();
        if self.keeps_some && state.returned.len() < LAID_OUT {
            state.returned.push(returned);
        }
    }

    /// Sees to it that the next run finds one. To be called when a run is over: it must not compete with it.
    pub(super) fn replace(&self) {
        if self.keeps_some {
            self.keep(PAUSE);
        }
    }
}

/// The launcher that this process forked when it began.
fn forked_early() -> MutexGuard<'static, Option<Started>> {
    static EARLY: Mutex<Option<Started>> = Mutex::new(None);
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forks a launcher for the first [`Launcher::prepare`] to come: much sooner there than one that begins anew. To be
/// called by a program that is its own launcher, at the beginning of `main`, while it has one thread and holds nothing.
pub fn fork_launcher() {
    let Ok((control, other)) = pair() else { return };
    match fork() {
        Ok(Side::Child) => {
            drop(control);
            end_at_once(source::forked_by_caller(&other));
        }
        Ok(Side::Parent(_)) => {
            *forked_early() = Some(Started { process: Process::Forked, control, ahead: None });
        }
        // One is begun when it is needed.
        Err(_) => {}
    }
}

/// Keeps launchers waiting for as long as somebody could want them.
fn keep_some(wishes: &Receiver<Duration>, kept: &Weak<Mutex<State>>, program: &Path) {
    loop {
        let pause = match wishes.recv_timeout(IDLE) {
            Ok(pause) => pause,
            Err(RecvTimeoutError::Timeout) => {
                let Some(state) = kept.upgrade() else { return };
                state.lock().unwrap_or_else(PoisonError::into_inner).rest();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        std::thread::sleep(pause);
        // What was wished meanwhile is done along with it.
        while wishes.try_recv().is_ok() {}
        let Some(state) = kept.upgrade() else { return };
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        // A source that was ended is noticed when it is asked.
        let is_filled = lock().fill().is_some();
        if !is_filled && let Some(source) = new_source(program) {
            let mut state = lock();
            state.source = Some(source);
            state.fill();
        }
    }
}

fn new_source(program: &Path) -> Option<OwnedFd> {
    let Started { process, control, .. } = Started::new(program, Role::Source).ok()?;
    if let Process::Child(child) = process {
        leave(child);
    }
    Some(control)
}

pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A launcher that has not been given its order. Without one it ends by itself.
#[derive(Debug)]
pub(super) struct Started {
    process: Process,
    control: OwnedFd,
    /// What it has laid out, or is laying out.
    ahead: Option<Ahead>,
}

/// A launcher whose run is over, and what it has laid out. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) parts: Parts,
    pub(super) laid: Laid,
}

#[derive(Debug)]
enum Process {
    /// A child of this process.
    Child(Child),
    /// A child of the source: it says itself who it is.
    Forked,
    /// One that has said so.
    Known { pid: u32, exit: OwnedFd },
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
        Ok(Self { process: Process::Child(child), control, ahead: None })
    }

    /// One that waits for another order of the same kind.
    fn again(parts: Parts, laid: Laid) -> io::Result<Self> {
        let Parts { pid, exit, control, .. } = parts;
        rustix::io::ioctl_fionbio(&control, false)?;
        let ahead = laid.ask(&control)?;
        Ok(Self { process: Process::Known { pid, exit }, control, ahead: Some(ahead) })
    }

    /// Whether it has laid out just this.
    fn fits(&self, expected: &Expected) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.laid.fits(expected))
    }

    /// What it has laid out.
    pub(super) fn take_ahead(&mut self) -> Option<Ahead> {
        self.ahead.take()
    }

    pub(super) fn into_parts(self) -> io::Result<Parts> {
        let Self { process, control, .. } = self;
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
            Process::Known { pid, exit } => Ok(Parts { pid, child: None, exit, control }),
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
