//! Asking the background process, which is started if there is none.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lillux::file::Lock;
use lillux::process::{DaemonChild, spawn_daemon};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{BackgroundConnection, BackgroundHost, ResumeOptions, TakeoverReport};
use rye_engine::{Code, Error, Result};

use crate::location::ThreadsLocation;
use crate::protocol::{self, DaemonResponse, ResumeCommand, TakeoverRequest};
use crate::runtime_dir::RuntimeDir;

/// How long a process may take until it can be reached.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long it may take to answer: it opens an engine, and reads what is recorded of the threads. A daemon that is frozen
/// accepts connections and never answers.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often it is started.
const MAX_STARTS: u32 = 20;
/// How often a process may end just before it is asked.
const MAX_ATTEMPTS: usize = 5;

/// Variables that differ from command to command.
const SHELL_VARIABLES: [&str; 4] = ["_", "OLDPWD", "PWD", "SHLVL"];

/// Asks the background process to run threads of one place, in one environment.
#[derive(Clone, Debug)]
pub struct DaemonClient {
    runtime_dir: RuntimeDir,
    location: ThreadsLocation,
    environment: BTreeMap<String, String>,
    program: PathBuf,
    arguments: Vec<String>,
    response_timeout: Duration,
}

impl DaemonClient {
    /// A client for threads of `location`. If the daemon must be started, it is `program` with `arguments`.
    #[must_use]
    pub fn new(
        location: ThreadsLocation,
        mut environment: BTreeMap<String, String>,
        program: PathBuf,
        arguments: Vec<String>,
    ) -> Self {
        // What a shell notes down of itself says nothing about where threads run.
        environment.retain(|name, _| !SHELL_VARIABLES.contains(&name.as_str()));
        let runtime_dir = RuntimeDir::for_keys(&location.signing_keys);
        Self { runtime_dir, location, environment, program, arguments, response_timeout: RESPONSE_TIMEOUT }
    }

    /// The same, waiting no longer than this for a response.
    #[must_use]
    pub fn with_timeout(self, response_timeout: Duration) -> Self {
        Self { response_timeout, ..self }
    }

    /// Connects; the process is started when there is none.
    fn connect(&self) -> io::Result<UnixStream> {
        self.runtime_dir.create()?;
        let mut deadline = Instant::now() + START_TIMEOUT;
        let (mut started, mut starts): (Option<DaemonChild>, u32) = (None, 0);
        let stream = loop {
            let error = match self.runtime_dir.connect() {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            // The started daemon has ended because another one runs or is just ending. If that repeats, it cannot run.
            if started.as_mut().is_none_or(DaemonChild::has_ended) {
                if starts == MAX_STARTS {
                    return Err(io::Error::other(format!("it ends as soon as it is started ({error})")));
                }
                starts += 1;
                let no_environment = BTreeMap::new();
                started =
                    Some(spawn_daemon(&self.program, &self.arguments, &no_environment, Path::new("/"), b"")?);
                deadline = Instant::now() + START_TIMEOUT;
            } else if Instant::now() > deadline {
                return Err(error);
            }
            std::thread::sleep(POLL_INTERVAL * starts);
        };
        if let Some(started) = started {
            started.detach();
        }
        stream.set_read_timeout(Some(self.response_timeout))?;
        stream.set_write_timeout(Some(self.response_timeout))?;
        Ok(stream)
    }
}

fn unreachable_error(error: &io::Error) -> Error {
    let reason = rye_item::text::one_line(&error.to_string());
    Error::new(Code::NoBackground, format!("the background process cannot be reached: {reason}"))
        .hint("run it in the foreground")
}

impl BackgroundHost for DaemonClient {
    fn connect(&self) -> Result<Box<dyn BackgroundConnection>> {
        let connect = || -> io::Result<DaemonConnection> {
            let stream = self.connect()?;
            let location_lock = self.runtime_dir.add_location(&self.location)?;
            Ok(DaemonConnection { client: self.clone(), stream, location_lock })
        };
        Ok(Box::new(connect().map_err(|error| unreachable_error(&error))?))
    }

    fn has_threads(&self) -> bool {
        self.runtime_dir.has_location(&self.location)
    }
}

struct DaemonConnection {
    client: DaemonClient,
    stream: UnixStream,
    location_lock: Lock,
}

impl BackgroundConnection for DaemonConnection {
    fn take_over(self: Box<Self>, threads: &[ThreadId]) -> Result<TakeoverReport> {
        match self.ask(threads.to_vec(), None)? {
            DaemonResponse::TakenOver(report) => Ok(report),
            DaemonResponse::Refused(reason) => {
                let reason = rye_item::text::one_line(&reason);
                Err(Error::new(Code::NoBackground, format!("the background process: {reason}"))
                    .hint("run it in the foreground"))
            }
            DaemonResponse::Resumed(_) | DaemonResponse::NotResumed(_) => Err(unexpected_response()),
        }
    }

    fn resume(self: Box<Self>, id: &ThreadId, options: &ResumeOptions) -> Result<Option<u32>> {
        let command = ResumeCommand { thread: id.clone(), options: options.clone() };
        match self.ask(vec![id.clone()], Some(command))? {
            DaemonResponse::Resumed(pid) => Ok(Some(pid)),
            DaemonResponse::NotResumed(failure) => Err(failure.into_error()),
            // A process of an older release; nothing was done.
            DaemonResponse::Refused(_) => Ok(None),
            DaemonResponse::TakenOver(_) => Err(unexpected_response()),
        }
    }
}

fn unexpected_response() -> Error {
    unreachable_error(&io::Error::other("it answers something else"))
}

impl DaemonConnection {
    /// Asks, and asks again where the process ends before it answers: it takes nothing with it.
    fn ask(self, threads: Vec<ThreadId>, resume: Option<ResumeCommand>) -> Result<DaemonResponse> {
        let Self { client, mut stream, location_lock } = self;
        drop(location_lock);
        let line = protocol::encode_line(&TakeoverRequest {
            location: client.location.clone(),
            environment: client.environment.clone(),
            threads,
            resume,
        })?;
        for _ in 0..MAX_ATTEMPTS {
            match exchange(&mut stream, &line) {
                Ok(Some(response)) => return Ok(response),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let seconds = client.response_timeout.as_secs();
                    let reason = format!("it has not answered within {seconds} s");
                    return Err(unreachable_error(&io::Error::other(reason)));
                }
                Ok(None) | Err(_) => stream = client.connect().map_err(|error| unreachable_error(&error))?,
            }
        }
        Err(unreachable_error(&io::Error::other("it ends again and again")))
    }
}

fn exchange(stream: &mut UnixStream, line: &[u8]) -> io::Result<Option<DaemonResponse>> {
    stream.write_all(line)?;
    let Some(line) = protocol::read_line(stream)? else { return Ok(None) };
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}
