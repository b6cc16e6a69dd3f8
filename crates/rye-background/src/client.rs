//! Asking the background process, which is started if there is none.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lillux::file::Lock;
use lillux::process::{Apart, start_apart};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Background, Reached, Taken};
use rye_engine::{Code, Error, Result};

use crate::den::Den;
use crate::place::Place;
use crate::wire::{self, Answer, Request};

/// How long a process may take until it can be reached.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long it may take to answer: it opens an engine, and reads what is recorded of the threads.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// How often it is started.
const MOST_STARTS: u32 = 20;
/// How often a process may end just before it is asked.
const MOST_ATTEMPTS: usize = 5;

/// Variables that differ from command to command.
const OF_SHELLS: [&str; 4] = ["_", "OLDPWD", "PWD", "SHLVL"];

/// Asks the background process to run threads of one place, in one environment.
#[derive(Clone, Debug)]
pub struct Client {
    den: Den,
    place: Place,
    environment: BTreeMap<String, String>,
    program: PathBuf,
    words: Vec<String>,
    answers_within: Duration,
}

impl Client {
    /// For threads of this place. The process is `program`, run with `words`, if it must be started.
    #[must_use]
    pub fn new(
        place: Place,
        mut environment: BTreeMap<String, String>,
        program: PathBuf,
        words: Vec<String>,
    ) -> Self {
        // What a shell notes down of itself says nothing about where threads run.
        environment.retain(|name, _| !OF_SHELLS.contains(&name.as_str()));
        let den = Den::beside(&place.signing_keys);
        Self { den, place, environment, program, words, answers_within: ANSWERS_WITHIN }
    }

    /// The same, for somebody who does not wait longer than this for an answer.
    #[must_use]
    pub fn within(self, answers_within: Duration) -> Self {
        Self { answers_within, ..self }
    }

    /// Connects; the process is started when there is none.
    fn connected(&self) -> io::Result<UnixStream> {
        self.den.make()?;
        let end = Instant::now() + PATIENCE;
        let (mut started, mut starts): (Option<Apart>, u32) = (None, 0);
        let stream = loop {
            let error = match self.den.connect() {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(error);
            }
            // One that was not needed has ended: somebody else was faster, or is about to end. If that goes on, it cannot run.
            if started.as_mut().is_none_or(Apart::has_ended) {
                if starts == MOST_STARTS {
                    return Err(io::Error::other(format!("it ends as soon as it is started ({error})")));
                }
                starts += 1;
                let nothing = BTreeMap::new();
                started = Some(start_apart(&self.program, &self.words, &nothing, Path::new("/"), b"")?);
            }
            std::thread::sleep(LOOK_EVERY * starts);
        };
        if let Some(started) = started {
            started.leave();
        }
        stream.set_read_timeout(Some(self.answers_within))?;
        stream.set_write_timeout(Some(self.answers_within))?;
        Ok(stream)
    }
}

fn unreached(error: &io::Error) -> Error {
    let why = rye_item::text::one_line(&error.to_string());
    Error::new(Code::NoBackground, format!("the background process cannot be reached: {why}"))
        .hint("run it in the foreground")
}

impl Background for Client {
    fn reach(&self) -> Result<Box<dyn Reached>> {
        let reach = || -> io::Result<Connection> {
            let stream = self.connected()?;
            let kept = self.den.remember(&self.place)?;
            Ok(Connection { client: self.clone(), stream, kept })
        };
        Ok(Box::new(reach().map_err(|error| unreached(&error))?))
    }

    fn has_some(&self) -> bool {
        self.den.remembers(&self.place)
    }
}

struct Connection {
    client: Client,
    stream: UnixStream,
    kept: Lock,
}

impl Reached for Connection {
    fn take(self: Box<Self>, threads: &[ThreadId]) -> Result<Taken> {
        let Self { client, mut stream, kept } = *self;
        drop(kept);
        let line = wire::line(&Request {
            place: client.place.clone(),
            environment: client.environment.clone(),
            threads: threads.to_vec(),
        })?;
        for _ in 0..MOST_ATTEMPTS {
            // A process that ends takes nothing with it: the next is asked the same.
            match asked(&mut stream, &line) {
                Ok(Some(Answer::Taken(taken))) => return Ok(taken),
                Ok(Some(Answer::Refused(why))) => {
                    let why = rye_item::text::one_line(&why);
                    return Err(Error::new(Code::NoBackground, format!("the background process: {why}"))
                        .hint("run it in the foreground"));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(unreached(&io::Error::other("it does not answer")));
                }
                Ok(None) | Err(_) => stream = client.connected().map_err(|error| unreached(&error))?,
            }
        }
        Err(unreached(&io::Error::other("it ends again and again")))
    }
}

fn asked(stream: &mut UnixStream, line: &[u8]) -> io::Result<Option<Answer>> {
    stream.write_all(line)?;
    let Some(line) = wire::read_line(stream)? else { return Ok(None) };
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}
