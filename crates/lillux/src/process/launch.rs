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

use super::ahead::{self, Ahead, Laid};
use super::capture::Collector;
use super::door::Door;
use super::launcher::{Parts, Returned, Started};
use super::wire::{self, Answer, Manner, Message, Order, Role};
use super::{Command, Detached, End, Finished, GRACE, Launcher, RESULT_VARIABLE, RunError};
use crate::Cancel;
use crate::confine::{Confinement, Namespaces, Receipt};

/// How much longer than the run's own time the caller waits for the supervisor's word.
pub(super) const MARGIN: Duration = Duration::from_secs(2);

/// How long a detached run may take to begin.
const START: Duration = Duration::from_secs(10);

/// Answers are short; a supervisor that says more is not believed.
const MAX_ANSWER: usize = 1 << 20;

/// Runs `command` to its end. When this returns, no process of it is left.
///
/// # Errors
/// When it was not begun: the program is missing, the confinement is not to be had, the system refused.
pub fn run(
    launcher: &Launcher,
    command: &Command,
    confinement: Option<&Confinement>,
    cancel: &Cancel,
) -> Result<Finished, RunError> {
    run_to_end(launcher, command, confinement, cancel, None)
}

/// As [`run`], with a door that the process finds.
///
/// # Errors
/// As [`run`].
pub fn run_with_door(
    launcher: &Launcher,
    command: &Command,
    confinement: Option<&Confinement>,
    cancel: &Cancel,
    door: &dyn Door,
) -> Result<Finished, RunError> {
    run_to_end(launcher, command, confinement, cancel, Some(door))
}

fn run_to_end(
    launcher: &Launcher,
    command: &Command,
    confinement: Option<&Confinement>,
    cancel: &Cancel,
    door: Option<&dyn Door>,
) -> Result<Finished, RunError> {
    let start = Instant::now();
    let kept = command.limits.kept_bytes;
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (result, result_end) = match command.has_result_channel {
        true => pipe().map(|(read, write)| (Some(read), Some(write)))?,
        false => (None, None),
    };
    let mut streams = vec![stdin(&command.stdin)?, stdout_end, stderr_end];
    let mut given = Given {
        manner: Manner::Awaited,
        streams: streams.iter().map(AsFd::as_fd).collect(),
        named: Vec::new(),
    };
    given.named.extend(result_end.iter().map(|end| (RESULT_VARIABLE, end.as_fd())));
    given.named.extend(door.into_iter().flat_map(Door::handed));
    let session = Session::start(launcher, command, confinement, given)?;
    streams.clear();
    drop(result_end);
    let streams = [
        Stream::new(Some(stdout), Collector::new(kept, kept)),
        Stream::new(Some(stderr), Collector::new(kept, kept)),
        Stream::new(result, Collector::new(command.limits.result_bytes, 0)),
    ];
    let patience = command.timeout.saturating_add(GRACE + MARGIN);
    let watched = session.watch(streams, cancel, door, start.checked_add(patience));
    let watched = watched.map(|(answer, streams, returned)| {
        returned.into_iter().for_each(|returned| launcher.take_back(returned));
        (answer, streams)
    });
    launcher.replace();
    let (answer, streams) = watched?;
    let [stdout, stderr, result] = streams.map(|stream| stream.collector.finish());
    let (end, receipt) = match answer {
        Some(Answer::Ended { end, receipt }) => (end, receipt),
        Some(Answer::Refused { reason, receipt }) => {
            return Err(RunError::Refused { reason, receipt: Box::new(receipt) });
        }
        Some(Answer::Failed { reason }) => return Err(RunError::Failed { reason }),
        Some(Answer::Started | Answer::Gone) | None => (End::SupervisorLost, Receipt::default()),
    };
    let result = command.has_result_channel.then_some(result);
    Ok(Finished { end, stdout, stderr, result, receipt, duration: start.elapsed() })
}

/// Starts `command` so that it outlives the caller; its timeout still holds, its output goes to its log.
///
/// # Errors
/// As [`run`].
pub fn spawn_detached(
    launcher: &Launcher,
    command: &Command,
    confinement: Option<&Confinement>,
) -> Result<Detached, RunError> {
    if command.has_result_channel {
        return Err(RunError::Invalid {
            reason: "a detached process has nobody to hear its result".to_owned(),
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
    let descriptors = [stdin(&command.stdin)?, log.try_clone()?, log];
    let given = Given::streams(Manner::Detached, &descriptors);
    let session = Session::start(launcher, command, confinement, given).and_then(Session::begun);
    launcher.replace();
    let session = session?;
    let pid = session.parts.pid;
    session.parts.leave();
    Ok(Detached { pid })
}

/// A launcher that was given its order.
pub(super) struct Session {
    pub(super) parts: Parts,
    /// What was laid out for it, if something was.
    laid: Option<Laid>,
    said: Vec<u8>,
}

/// What a run is given beside its order.
pub(super) struct Given<'a> {
    manner: Manner,
    /// Standard input, output and error.
    streams: Vec<BorrowedFd<'a>>,
    /// What else it inherits, each with the variable that holds its number.
    named: Vec<(&'static str, BorrowedFd<'a>)>,
}

impl<'a> Given<'a> {
    /// Streams alone.
    pub(super) fn streams(manner: Manner, streams: &'a [OwnedFd]) -> Self {
        Self { manner, streams: streams.iter().map(AsFd::as_fd).collect(), named: Vec::new() }
    }
}

/// One stream of the tool, until its end.
struct Stream {
    end: Option<OwnedFd>,
    collector: Collector,
}

impl Stream {
    fn new(end: Option<OwnedFd>, collector: Collector) -> Self {
        Self { end, collector }
    }

    /// Takes what is there. Says whether something was.
    fn take(&mut self, buffer: &mut [u8]) -> bool {
        let Some(end) = &self.end else {
            return false;
        };
        match rustix::io::read(end, &mut *buffer) {
            Ok(count) if count > 0 => {
                self.collector.push(&buffer[..count]);
                return true;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.end = None,
        }
        false
    }
}

impl Session {
    pub(super) fn start(
        launcher: &Launcher,
        command: &Command,
        confinement: Option<&Confinement>,
        given: Given<'_>,
    ) -> Result<Self, RunError> {
        let Given { manner, streams, named } = given;
        let order = Order {
            program: find_program(command)?,
            arguments: command.arguments.clone(),
            environment: command.environment.clone(),
            folder: command.folder.clone(),
            timeout_milliseconds: u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX),
            limits: command.limits.clone(),
            manner,
            named: named.iter().map(|(variable, _)| (*variable).to_owned()).collect(),
            confinement: confinement.cloned(),
            caller: std::process::id(),
        };
        let order = Message::Order(Box::new(order))
            .to_bytes()
            .map_err(|error| RunError::Invalid { reason: format!("a path is not text: {error}") })?;
        let named = named.into_iter().map(|(_, descriptor)| descriptor);
        let borrowed: Vec<BorrowedFd<'_>> = streams.into_iter().chain(named).collect();
        let is_prepared = confinement.is_some_and(|confinement| confinement.namespaces == Namespaces::Auto);
        let role = if is_prepared { Role::Prepared } else { Role::Launcher };
        let expected = confinement.filter(|_| is_prepared && Ahead::takes(&order));
        let expected = expected.and_then(|confinement| ahead::expectation(confinement, &command.limits));
        // One that waited may have been ended by somebody; then it took no order, and a new one does.
        let waiting = launcher.take(role, expected.as_ref());
        let waiting = waiting.and_then(|waiting| give(waiting, &order, &borrowed).ok());
        let (parts, laid) = match waiting {
            Some(given) => given,
            None => give(Started::new(launcher.program(), role)?, &order, &borrowed).map_err(|error| {
                let reason = format!("`{}` does not take orders: {error}", launcher.program().display());
                RunError::Failed { reason }
            })?,
        };
        launcher.expect(expected);
        Ok(Self { parts, laid, said: Vec::new() })
    }

    /// Drains everything until the launcher has ended.
    fn watch(
        mut self,
        mut streams: [Stream; 3],
        cancel: &Cancel,
        mut door: Option<&dyn Door>,
        deadline: Option<Instant>,
    ) -> io::Result<(Option<Answer>, [Stream; 3], Option<Returned>)> {
        let mut buffer = vec![0; 64 << 10];
        let mut is_cancelled = false;
        loop {
            let wait = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|wait| wait.is_zero()) {
                break;
            }
            let mut descriptors = vec![
                PollFd::new(&self.parts.exit, PollFlags::IN),
                PollFd::new(&self.parts.control, PollFlags::IN),
            ];
            if !is_cancelled {
                descriptors.push(PollFd::new(cancel, PollFlags::IN));
            }
            descriptors.extend(
                streams
                    .iter()
                    .filter_map(|stream| stream.end.as_ref())
                    .map(|end| PollFd::new(end, PollFlags::IN)),
            );
            let bell = door.map(Door::bell);
            descriptors.extend(bell.iter().map(|bell| PollFd::new(bell, PollFlags::IN)));
            wait_for(&mut descriptors, wait)?;
            let has_knocked = bell.is_some()
                && descriptors.last().is_some_and(|last| last.revents().contains(PollFlags::IN));
            let has_ended = !descriptors[0].revents().is_empty();
            let has_answer = descriptors[1].revents().contains(PollFlags::IN);
            drop(descriptors);
            if let Some(door) = door.take_if(|_| has_knocked) {
                door.opened();
            }
            if !is_cancelled && cancel.is_cancelled() {
                is_cancelled = true;
                // A supervisor that is gone needs no telling.
                let _ = rustix::net::send(&self.parts.control, &[wire::CANCEL], SendFlags::NOSIGNAL);
            }
            for stream in &mut streams {
                stream.take(&mut buffer);
            }
            if has_answer {
                self.listen();
            }
            if has_ended || self.is_gone() {
                break;
            }
        }
        self.end();
        self.listen();
        for stream in &mut streams {
            // What is in the pipe now is all: whoever could add to it has ended, or has no business to.
            let mut budget: usize = 1 << 14;
            while budget > 0 && stream.take(&mut buffer) {
                budget -= 1;
            }
        }
        let answer = self.last_answer();
        let has_ended = matches!(answer, Some(Answer::Ended { end: End::Exited(_) | End::Signalled(_), .. }));
        let may_go_on = has_ended && self.is_gone() && !is_cancelled;
        let returned = match (self.laid.filter(|_| may_go_on), self.parts) {
            (Some(laid), parts) if parts.child.is_none() => Some(Returned { parts, laid }),
            (_, parts) => {
                parts.leave();
                None
            }
        };
        Ok((answer, streams, returned))
    }

    /// Waits until the tool has begun; it may have ended since. If it has not, nothing of the run is left.
    pub(super) fn begun(mut self) -> Result<Self, RunError> {
        let answer = self.first_answer();
        if matches!(answer, Ok(Some(Answer::Started | Answer::Ended { .. }))) {
            return Ok(self);
        }
        self.end();
        self.parts.leave();
        match answer? {
            Some(Answer::Refused { reason, receipt }) => {
                Err(RunError::Refused { reason, receipt: Box::new(receipt) })
            }
            Some(Answer::Failed { reason }) => Err(RunError::Failed { reason }),
            Some(Answer::Started | Answer::Ended { .. } | Answer::Gone) | None => {
                Err(RunError::Failed { reason: "its supervisor was lost".to_owned() })
            }
        }
    }

    fn first_answer(&mut self) -> io::Result<Option<Answer>> {
        let deadline = Instant::now() + START;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let mut descriptors = [PollFd::new(&self.parts.control, PollFlags::IN)];
            wait_for(&mut descriptors, Some(wait))?;
            let is_over = self.listen();
            let answer = self.first();
            if answer.is_some() || is_over || wait.is_zero() {
                return Ok(answer);
            }
        }
    }

    /// Takes what the supervisor said. Says whether that was all.
    pub(super) fn listen(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.parts.control, &mut buffer) {
                Ok(0) => return true,
                Ok(count) if self.said.len() < MAX_ANSWER => self.said.extend_from_slice(&buffer[..count]),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    fn answers(&self) -> impl DoubleEndedIterator<Item = Answer> {
        let lines = self.said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        lines.filter_map(|line| serde_json::from_slice(line).ok())
    }

    /// What it said first: a tool may have begun and ended before anybody listened.
    fn first(&self) -> Option<Answer> {
        self.answers().find(|answer| !matches!(answer, Answer::Gone))
    }

    fn last_answer(&self) -> Option<Answer> {
        self.answers().rfind(|answer| !matches!(answer, Answer::Gone))
    }

    /// Whether the launcher has said that only itself is left, which is the last it says.
    pub(super) fn is_gone(&self) -> bool {
        self.said.ends_with(wire::GONE)
    }

    pub(super) fn end(&mut self) {
        if self.is_gone() {
            return;
        }
        // Killing the launcher ends the run: its supervisor hears of it. It has usually ended by itself.
        self.parts.kill();
        // The supervisor holds the other end for as long as it lives.
        let deadline = Instant::now() + MARGIN;
        while !self.listen() && Instant::now() < deadline {
            let mut descriptors = [PollFd::new(&self.parts.control, PollFlags::IN)];
            let _ = wait_for(&mut descriptors, Some(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// Gives a launcher its order.
fn give(
    mut started: Started,
    order: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Parts, Option<Laid>)> {
    let ahead = started.take_ahead();
    let parts = started.into_parts()?;
    let given = match ahead {
        // The tool itself waits for it; its supervisor is told what it watches over. From here on the tool may have
        // begun, and must not begin twice: a supervisor that is gone by now is found to be lost, and the tool with it.
        Some(ahead) => ahead.give(order, descriptors).map(|()| {
            let _ = wire::send_message(&parts.control, order, &[]);
            Some(ahead.laid)
        }),
        None => wire::send_message(&parts.control, order, descriptors).map(|()| None),
    };
    let given = given.and_then(|laid| Ok(rustix::io::ioctl_fionbio(&parts.control, true).map(|()| laid)?));
    match given {
        Ok(laid) => Ok((parts, laid)),
        Err(error) => {
            parts.leave();
            Err(error)
        }
    }
}

/// Remembers a launcher that ends by itself, and collects those that have ended meanwhile.
pub(super) fn leave(child: Child) {
    static ENDING: Mutex<Vec<Child>> = Mutex::new(Vec::new());
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.push(child);
    ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

pub(super) fn wait_for(descriptors: &mut [PollFd<'_>], wait: Option<Duration>) -> io::Result<()> {
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    match rustix::event::poll(descriptors, wait.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A pipe whose reading end does not block. Neither end is inherited by anybody.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// Standard input as memory that nobody can change any more, so that it need not be fed.
fn stdin(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() {
        return Ok(File::open("/dev/null")?.into());
    }
    super::door::sealed("stdin", bytes)
}

/// The program's file. A name is searched in the absolute folders of the tool's own `PATH`, never in the caller's.
fn find_program(command: &Command) -> Result<PathBuf, RunError> {
    let program = Path::new(&command.program);
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    let found = if program.is_absolute() {
        Some(program.to_owned())
    } else if program.components().count() > 1 {
        Some(command.folder.join(program))
    } else {
        let folders = command.environment.get("PATH").map(String::as_str).unwrap_or_default();
        std::env::split_paths(folders)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(program))
            .find(|path| is_program(path))
    };
    found
        .filter(|path| is_program(path))
        .ok_or_else(|| RunError::NotFound { program: command.program.to_string_lossy().into_owned() })
}
