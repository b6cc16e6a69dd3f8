//! The caller's side: starts the launcher, hands over the order, drains the output, waits for the end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::pipe::PipeFlags;

use super::callback::CallbackChannel;
use super::capture::OutputCollector;
use super::launcher_pool::{IdleLauncher, LauncherHandle, PendingLauncher};
use super::prewarm::{self, PrewarmedSandbox, SandboxLayout};
use super::protocol::{self, LaunchMode, LaunchRequest, LauncherMessage, LauncherRole, SupervisorReply};
use super::{
    DetachedProcess, ExitReason, Launcher, ProcessCommand, ProcessResult, RESULT_FD_VARIABLE, RunError,
    TERMINATION_GRACE,
};
use crate::CancelToken;
use crate::sandbox::{Confinement, NamespaceMode, Receipt};

/// How much longer than the run's own time the caller waits for the supervisor's word.
/// It is only used up if the supervisor is stopped from outside or the machine stands still.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(30);

/// How long a supervisor that was told to end its run may take.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// How long a detached run may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers are short; a supervisor that says more is not accepted.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Runs `command` to its end. When this returns, no process of it is left.
///
/// # Errors
/// When it was not begun: the program is missing, the confinement is not to be had, the system refused.
pub fn run(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
    cancel: &CancelToken,
) -> Result<ProcessResult, RunError> {
    run_to_completion(launcher, command, confinement, cancel, None)
}

/// As [`run`], with a callback channel that the process inherits.
///
/// # Errors
/// As [`run`].
pub fn run_with_callback(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
    cancel: &CancelToken,
    callback: &dyn CallbackChannel,
) -> Result<ProcessResult, RunError> {
    run_to_completion(launcher, command, confinement, cancel, Some(callback))
}

fn run_to_completion(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
    cancel: &CancelToken,
    callback: Option<&dyn CallbackChannel>,
) -> Result<ProcessResult, RunError> {
    let start = Instant::now();
    let max_bytes = command.limits.output_bytes;
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (result, result_end) = match command.has_result_channel {
        true => pipe().map(|(read, write)| (Some(read), Some(write)))?,
        false => (None, None),
    };
    let mut streams = vec![stdin_fd(&command.stdin)?, stdout_end, stderr_end];
    let mut io = ProcessIo {
        mode: LaunchMode::Wait,
        streams: streams.iter().map(AsFd::as_fd).collect(),
        named_fds: Vec::new(),
    };
    io.named_fds.extend(result_end.iter().map(|end| (RESULT_FD_VARIABLE, end.as_fd())));
    io.named_fds.extend(callback.into_iter().flat_map(CallbackChannel::inherited_fds));
    let session = LaunchSession::start(launcher, command, confinement, io)?;
    streams.clear();
    drop(result_end);
    let streams = [
        OutputStream::new(Some(stdout), OutputCollector::new(max_bytes, max_bytes)),
        OutputStream::new(Some(stderr), OutputCollector::new(max_bytes, max_bytes)),
        OutputStream::new(result, OutputCollector::new(command.limits.result_bytes, 0)),
    ];
    let timeout = command.timeout.saturating_add(TERMINATION_GRACE + SUPERVISOR_GRACE);
    let outcome = session.watch(streams, cancel, callback, start.checked_add(timeout));
    let outcome = outcome.map(|(reply, streams, idle)| {
        idle.into_iter().for_each(|idle| launcher.recycle(idle));
        (reply, streams)
    });
    launcher.schedule_refill();
    let (reply, streams) = outcome?;
    let [stdout, stderr, result] = streams.map(|stream| stream.collector.finish());
    let (end, receipt) = match reply {
        Some(SupervisorReply::Ended { end, receipt }) => (end, receipt),
        Some(SupervisorReply::Refused { reason, receipt }) => {
            return Err(RunError::Refused { reason, receipt: Box::new(receipt) });
        }
        Some(SupervisorReply::Failed { reason }) => return Err(RunError::Failed { reason }),
        Some(SupervisorReply::Started | SupervisorReply::Gone) | None => {
            (ExitReason::SupervisorLost, Receipt::default())
        }
    };
    let result = command.has_result_channel.then_some(result);
    Ok(ProcessResult { exit: end, stdout, stderr, result, receipt, duration: start.elapsed() })
}

/// Starts `command` so that it outlives the caller; its timeout still holds, its output goes to its log.
///
/// # Errors
/// As [`run`].
pub fn spawn_detached(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
) -> Result<DetachedProcess, RunError> {
    if command.has_result_channel {
        return Err(RunError::Invalid {
            reason: "a detached process has no one waiting for its result".to_owned(),
        });
    }
    let log: OwnedFd = match &command.log {
        Some(path) => fs_err::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?
            .into_parts()
            .0
            .into(),
        None => File::options().write(true).open("/dev/null")?.into(),
    };
    let descriptors = [stdin_fd(&command.stdin)?, log.try_clone()?, log];
    let io = ProcessIo::streams(LaunchMode::Detached, &descriptors);
    let session =
        LaunchSession::start(launcher, command, confinement, io).and_then(LaunchSession::wait_started);
    launcher.schedule_refill();
    let session = session?;
    let pid = session.launcher.pid;
    session.launcher.detach();
    Ok(DetachedProcess { pid })
}

/// A launcher that was given its order.
pub(super) struct LaunchSession {
    pub(super) launcher: LauncherHandle,
    /// What was laid out for it, if something was.
    layout: Option<SandboxLayout>,
    reply_bytes: Vec<u8>,
}

/// What a run is given beside its order.
pub(super) struct ProcessIo<'a> {
    mode: LaunchMode,
    /// Standard input, output and error.
    streams: Vec<BorrowedFd<'a>>,
    /// What else it inherits, each with the variable that holds its number.
    named_fds: Vec<(&'static str, BorrowedFd<'a>)>,
}

impl<'a> ProcessIo<'a> {
    /// Streams alone.
    pub(super) fn streams(mode: LaunchMode, streams: &'a [OwnedFd]) -> Self {
        Self { mode, streams: streams.iter().map(AsFd::as_fd).collect(), named_fds: Vec::new() }
    }
}

/// One stream of the tool, until its end.
struct OutputStream {
    fd: Option<OwnedFd>,
    collector: OutputCollector,
}

impl OutputStream {
    fn new(end: Option<OwnedFd>, collector: OutputCollector) -> Self {
        Self { fd: end, collector }
    }

    /// Takes what is there. Says whether something was.
    fn read_available(&mut self, buffer: &mut [u8]) -> bool {
        let Some(end) = &self.fd else {
            return false;
        };
        match rustix::io::read(end, &mut *buffer) {
            Ok(count) if count > 0 => {
                self.collector.push(&buffer[..count]);
                return true;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.fd = None,
        }
        false
    }
}

impl LaunchSession {
    pub(super) fn start(
        launcher: &Launcher,
        command: &ProcessCommand,
        confinement: Option<&Confinement>,
        io: ProcessIo<'_>,
    ) -> Result<Self, RunError> {
        let ProcessIo { mode, streams, named_fds: named } = io;
        let request = LaunchRequest {
            program: find_program(command)?,
            arguments: command.arguments.clone(),
            environment: command.environment.clone(),
            current_dir: command.current_dir.clone(),
            timeout_milliseconds: u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX),
            limits: command.limits.clone(),
            mode,
            fd_variables: named.iter().map(|(variable, _)| (*variable).to_owned()).collect(),
            confinement: confinement.cloned(),
            caller: std::process::id(),
        };
        let request = LauncherMessage::Launch(Box::new(request))
            .to_bytes()
            .map_err(|error| RunError::Invalid { reason: format!("a path is not text: {error}") })?;
        let named = named.into_iter().map(|(_, descriptor)| descriptor);
        let borrowed: Vec<BorrowedFd<'_>> = streams.into_iter().chain(named).collect();
        let is_prepared =
            confinement.is_some_and(|confinement| confinement.namespaces == NamespaceMode::Auto);
        let role = if is_prepared { LauncherRole::Isolated } else { LauncherRole::Launcher };
        let spec = confinement.filter(|_| is_prepared && PrewarmedSandbox::accepts(&request));
        let spec = spec.and_then(|confinement| prewarm::prewarm_spec(confinement, &command.limits));
        // A waiting launcher may have been killed; then it took no request, and a new one does.
        let idle = launcher.take(role, spec.as_ref());
        let idle = idle.and_then(|idle| send_request(idle, &request, &borrowed).ok());
        let (handle, layout) = match idle {
            Some(io) => io,
            None => send_request(PendingLauncher::new(launcher.program(), role)?, &request, &borrowed)
                .map_err(|error| {
                    let reason = format!("`{}` does not take orders: {error}", launcher.program().display());
                    RunError::Failed { reason }
                })?,
        };
        launcher.predict(spec);
        Ok(Self { launcher: handle, layout, reply_bytes: Vec::new() })
    }

    /// Drains everything until the launcher has ended.
    fn watch(
        mut self,
        mut streams: [OutputStream; 3],
        cancel: &CancelToken,
        mut callback: Option<&dyn CallbackChannel>,
        deadline: Option<Instant>,
    ) -> io::Result<(Option<SupervisorReply>, [OutputStream; 3], Option<IdleLauncher>)> {
        let mut buffer = vec![0; 64 << 10];
        let mut is_cancelled = false;
        loop {
            let wait = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|wait| wait.is_zero()) {
                break;
            }
            let mut descriptors = vec![
                PollFd::new(&self.launcher.exit, PollFlags::IN),
                PollFd::new(&self.launcher.control, PollFlags::IN),
            ];
            if !is_cancelled {
                descriptors.push(PollFd::new(cancel, PollFlags::IN));
            }
            descriptors.extend(
                streams
                    .iter()
                    .filter_map(|stream| stream.fd.as_ref())
                    .map(|end| PollFd::new(end, PollFlags::IN)),
            );
            let listener = callback.map(CallbackChannel::listener_fd);
            descriptors.extend(listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            poll_fds(&mut descriptors, wait)?;
            let has_connection = listener.is_some()
                && descriptors.last().is_some_and(|last| last.revents().contains(PollFlags::IN));
            let has_ended = !descriptors[0].revents().is_empty();
            let has_answer = descriptors[1].revents().contains(PollFlags::IN);
            drop(descriptors);
            if let Some(callback) = callback.take_if(|_| has_connection) {
                callback.on_connect();
            }
            if !is_cancelled && cancel.is_cancelled() {
                is_cancelled = true;
                // A supervisor that is gone needs no telling.
                let _ = rustix::net::send(&self.launcher.control, &[protocol::CANCEL], SendFlags::NOSIGNAL);
            }
            for stream in &mut streams {
                stream.read_available(&mut buffer);
            }
            if has_answer {
                self.read_replies();
            }
            if has_ended || self.is_gone() {
                break;
            }
        }
        self.shut_down();
        self.read_replies();
        for stream in &mut streams {
            // The pipe is complete now: every process that may write to it has ended.
            let mut budget: usize = 1 << 14;
            while budget > 0 && stream.read_available(&mut buffer) {
                budget -= 1;
            }
        }
        let reply = self.last_reply();
        let has_ended = matches!(
            reply,
            Some(SupervisorReply::Ended { end: ExitReason::Exited(_) | ExitReason::Signalled(_), .. })
        );
        let can_reuse = has_ended && self.is_gone() && !is_cancelled;
        let idle = match (self.layout.filter(|_| can_reuse), self.launcher) {
            (Some(layout), handle) if handle.child.is_none() => Some(IdleLauncher { handle, layout }),
            (_, handle) => {
                handle.detach();
                None
            }
        };
        Ok((reply, streams, idle))
    }

    /// Waits until the tool has begun; it may have ended since. If it has not, nothing of the run is left.
    pub(super) fn wait_started(mut self) -> Result<Self, RunError> {
        let reply = self.wait_first_reply();
        if matches!(reply, Ok(Some(SupervisorReply::Started | SupervisorReply::Ended { .. }))) {
            return Ok(self);
        }
        self.shut_down();
        self.launcher.detach();
        match reply? {
            Some(SupervisorReply::Refused { reason, receipt }) => {
                Err(RunError::Refused { reason, receipt: Box::new(receipt) })
            }
            Some(SupervisorReply::Failed { reason }) => Err(RunError::Failed { reason }),
            Some(SupervisorReply::Started | SupervisorReply::Ended { .. } | SupervisorReply::Gone) | None => {
                Err(RunError::Failed { reason: "its supervisor was lost".to_owned() })
            }
        }
    }

    fn wait_first_reply(&mut self) -> io::Result<Option<SupervisorReply>> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let mut descriptors = [PollFd::new(&self.launcher.control, PollFlags::IN)];
            poll_fds(&mut descriptors, Some(wait))?;
            let is_over = self.read_replies();
            let reply = self.first_reply();
            if reply.is_some() || is_over || wait.is_zero() {
                return Ok(reply);
            }
        }
    }

    /// Takes what the supervisor said. Says whether that was all.
    pub(super) fn read_replies(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.launcher.control, &mut buffer) {
                Ok(0) => return true,
                Ok(count) if self.reply_bytes.len() < MAX_REPLY_BYTES => {
                    self.reply_bytes.extend_from_slice(&buffer[..count])
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    fn replies(&self) -> impl DoubleEndedIterator<Item = SupervisorReply> {
        let lines =
            self.reply_bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        lines.filter_map(|line| serde_json::from_slice(line).ok())
    }

    /// Its first message: a tool may have started and ended before it was read.
    fn first_reply(&self) -> Option<SupervisorReply> {
        self.replies().find(|reply| !matches!(reply, SupervisorReply::Gone))
    }

    fn last_reply(&self) -> Option<SupervisorReply> {
        self.replies().rfind(|reply| !matches!(reply, SupervisorReply::Gone))
    }

    /// Whether the launcher has said that only itself is left, which is the last it says.
    pub(super) fn is_gone(&self) -> bool {
        self.reply_bytes.ends_with(protocol::GONE_LINE)
    }

    pub(super) fn shut_down(&mut self) {
        if self.is_gone() {
            return;
        }
        // Killing the launcher ends the run: its supervisor hears of it. It has usually ended by itself.
        self.launcher.kill();
        // The supervisor holds the other end for as long as it lives.
        let deadline = Instant::now() + SHUTDOWN_GRACE;
        while !self.read_replies() && Instant::now() < deadline {
            let mut descriptors = [PollFd::new(&self.launcher.control, PollFlags::IN)];
            let _ = poll_fds(&mut descriptors, Some(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// Gives a launcher its order.
fn send_request(
    mut started: PendingLauncher,
    request: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(LauncherHandle, Option<SandboxLayout>)> {
    let prewarmed = started.take_prewarmed();
    let launcher = started.into_handle()?;
    let result = match prewarmed {
        // The tool itself waits for it; its supervisor gets what it watches over. From here on the tool may have
        // begun, and must not begin twice: a supervisor that is gone now is found to be lost, and the tool with it.
        Some(prewarmed) => prewarmed.send_request(request, descriptors).map(|()| {
            let _ = protocol::send_message(&launcher.control, request, &[]);
            Some(prewarmed.layout)
        }),
        None => protocol::send_message(&launcher.control, request, descriptors).map(|()| None),
    };
    let result =
        result.and_then(|layout| Ok(rustix::io::ioctl_fionbio(&launcher.control, true).map(|()| layout)?));
    match result {
        Ok(layout) => Ok((launcher, layout)),
        Err(error) => {
            launcher.detach();
            Err(error)
        }
    }
}

/// Remembers a launcher that ends by itself, and collects those that have ended meanwhile.
pub(super) fn reap_later(child: Child) {
    static ENDING: Mutex<Vec<Child>> = Mutex::new(Vec::new());
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.push(child);
    ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

pub(super) fn poll_fds(descriptors: &mut [PollFd<'_>], wait: Option<Duration>) -> io::Result<()> {
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    match rustix::event::poll(descriptors, wait.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A pipe whose reading end does not block. Neither end is inherited.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// Standard input as sealed memory, so that it need not be written while the process runs.
fn stdin_fd(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() {
        return Ok(File::open("/dev/null")?.into());
    }
    super::callback::seal_bytes("stdin", bytes)
}

/// The program's file. A name is searched in the absolute folders of the tool's own `PATH`, never in the caller's.
fn find_program(command: &ProcessCommand) -> Result<PathBuf, RunError> {
    let program = Path::new(&command.program);
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let found = if program.is_absolute() {
        Some(program.to_owned())
    } else if program.components().count() > 1 {
        Some(command.current_dir.join(program))
    } else {
        let search_path = command.environment.get("PATH").map(String::as_str).unwrap_or_default();
        std::env::split_paths(search_path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(program))
            .find(|path| is_program(path))
    };
    found
        .filter(|path| is_program(path))
        .ok_or_else(|| RunError::NotFound { program: command.program.to_string_lossy().into_owned() })
}
