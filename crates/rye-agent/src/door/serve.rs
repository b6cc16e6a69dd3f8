//! A door that stands open: knocks are answered, tokens verified, requests done, for as long as the tool runs.
//!
//! An ordinary tool never knocks: then all of this is two sockets and a signature. The first knock starts a thread that
//! answers, and each visitor gets one of its own.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lillux::Cancel;
use lillux::process::door::{self, Door};
use rustix::event::{PollFd, PollFlags};
use rye_engine::{Code, Error};
use rye_item::text::one_line;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::frame::{self, Patience};
use super::token::{Claims, Disbelief, Wanted};
use super::{Asked, DOOR_VARIABLE, TOKEN_VARIABLE, Way};
use crate::action::Action;
use crate::capability::{Asker, permit};
use crate::definitions::Target;
use crate::facts::ThreadFacts;
use crate::machine::{Event, ToolResult};
use crate::thread_id::ThreadId;

/// Visitors that are served at once; further ones wait.
const MOST_VISITORS: usize = 16;
/// What one call of a thread may ask for, all its tools together: each request is written down.
const MOST_REQUESTS: u64 = 1000;
/// How often it is looked whether the call has been cancelled, while nothing else would tell.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Characters of a request's parameters that are written down.
const MOST_WRITTEN: usize = 4096;

/// A door that stands open until it is dropped. Then nobody is served any more, and nothing goes on that it began.
#[derive(Debug)]
pub(super) struct Standing {
    bell: OwnedFd,
    /// The tool's end: held, so that the bell is silent until somebody knocks.
    end: OwnedFd,
    token: OwnedFd,
    visit: Arc<Visit>,
    answering: Mutex<Option<JoinHandle<()>>>,
}

/// What visitors of one door share.
#[derive(Debug)]
struct Visit {
    way: Way,
    /// What the door's own token says.
    claims: Claims,
    /// Said when the tool's process has ended.
    over: Cancel,
    lifetime: Duration,
    began: Instant,
}

impl Standing {
    pub(super) fn new(way: Way, lifetime: Duration) -> io::Result<Self> {
        let ground = &way.ground;
        let wanted = Wanted {
            thread_id: &ground.spec.own.thread_id,
            call: &format!("{}.{}", ground.call, way.level),
            capabilities: &way.capabilities,
            now_ms: ground.clock.now_ms(),
            lifetime_ms: u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX),
        };
        let (claims, token) = ground.issuer.issue(&wanted)?;
        let token = door::sealed("token", &token)?;
        let (bell, end) = door::pair()?;
        let visit = Visit { way, claims, over: Cancel::new()?, lifetime, began: Instant::now() };
        Ok(Self { bell, end, token, visit: Arc::new(visit), answering: Mutex::default() })
    }
}

impl Door for Standing {
    fn handed(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![(TOKEN_VARIABLE, self.token.as_fd()), (DOOR_VARIABLE, self.end.as_fd())]
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn opened(&self) {
        // Without a descriptor or a thread nobody answers, and whoever knocks hears so when the tool has ended.
        let Ok(bell) = self.bell.try_clone() else { return };
        let visit = Arc::clone(&self.visit);
        let work = move || answer(&bell, &visit);
        let started = std::thread::Builder::new().name("door".to_owned()).spawn(work);
        *self.answering.lock().unwrap_or_else(PoisonError::into_inner) = started.ok();
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.visit.over.cancel();
        let answering = self.answering.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(answering) = answering {
            // One that panicked has nothing left to end.
            let _ = answering.join();
        }
    }
}

/// Answers knocks until the tool has ended.
fn answer(bell: &OwnedFd, visit: &Visit) {
    let served = Served::default();
    std::thread::scope(|scope| {
        loop {
            let mut polled = [PollFd::new(bell, PollFlags::IN), PollFd::new(&visit.over, PollFlags::IN)];
            // An interrupted wait is a short one.
            let _ = rustix::event::poll(&mut polled, None);
            if visit.over.is_cancelled() {
                return;
            }
            let (token, socket) = match door::answer(bell) {
                Ok(Some(knock)) => knock,
                Ok(None) => return,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::InvalidData) => {
                    continue;
                }
                Err(_) => return,
            };
            served.enter(&visit.over);
            let served = &served;
            let talk = move || {
                // Whoever talks nonsense or leaves is done with.
                let _ = visit.talk(&token, &socket);
                served.leave();
            };
            if std::thread::Builder::new().name("visitor".to_owned()).spawn_scoped(scope, talk).is_err() {
                served.leave();
            }
        }
    });
}

/// How many visitors are served.
#[derive(Default)]
struct Served(Mutex<usize>, Condvar);

impl Served {
    /// Waits until there is room, or nobody is served any more.
    fn enter(&self, over: &Cancel) {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *count >= MOST_VISITORS && !over.is_cancelled() {
            count = self.1.wait_timeout(count, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        *count += 1;
    }

    fn leave(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.1.notify_one();
    }
}

impl Visit {
    /// One visitor, until they leave.
    fn talk(&self, token: &[u8], socket: &OwnedFd) -> io::Result<()> {
        let patience = Patience { cancel: Some(&self.over), until: self.began.checked_add(self.lifetime) };
        while let Some(request) = frame::receive(socket, patience)? {
            let mut answer = match self.believe(token) {
                Ok(()) => self.serve(&request, socket),
                Err(disbelief) => self.turn_away(disbelief),
            };
            self.way.ground.redactor.clean_value(&mut answer);
            let sent = frame::send(socket, &answer, patience);
            if sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
                let message = format!("the answer is longer than {} bytes", frame::LONGEST);
                frame::send(socket, &Error::new(Code::ToolFailed, message).to_value(None), patience)?;
                continue;
            }
            sent?;
        }
        Ok(())
    }

    fn believe(&self, token: &[u8]) -> Result<(), Disbelief> {
        if self.over.is_cancelled() {
            return Err(Disbelief::Ended);
        }
        let ground = &self.way.ground;
        ground.issuer.verify(token, &self.claims, ground.clock.now_ms())
    }

    fn turn_away(&self, disbelief: Disbelief) -> Value {
        let error = Error::new(Code::TokenRefused, format!("the token is not believed: {disbelief}"))
            .hint("a tool uses the token it was given, in the call it was given for");
        let denied = error.to_value(None);
        if let Ok(request) = self.count() {
            let (index, denied) = (self.way.ground.index, Some(denied.clone()));
            self.write_event(Event::ToolAsked { index, request, action: Value::Null, denied });
        }
        denied
    }

    /// The number of the next request, if there may be one.
    fn count(&self) -> Result<u64, Error> {
        let before = self.way.ground.requests.fetch_add(1, Ordering::SeqCst);
        if before >= MOST_REQUESTS {
            let message = format!("the tools of one call ask at most {MOST_REQUESTS} times");
            return Err(Error::new(Code::SpawnRefused, message).hint("let one tool do more at once"));
        }
        Ok(before + 1)
    }

    /// Lets the thread write something down; whether it has.
    fn write_event(&self, event: Event) -> bool {
        let (written, told) = channel();
        if self.way.ground.asked.send(Asked { event, written }).is_err() {
            return false;
        }
        loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if self.over.is_cancelled() => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// One request of a visitor whose token is believed.
    fn serve(&self, request: &Value, socket: &OwnedFd) -> Value {
        let number = match self.count() {
            Ok(number) => number,
            Err(error) => return error.to_value(None),
        };
        let ground = &self.way.ground;
        let index = ground.index;
        let action = match Action::from_value(&request["action"]) {
            Ok(action) => action,
            Err(error) => {
                return Error::new(Code::InvalidCall, one_line(&error.to_string())).to_value(None);
            }
        };
        let shown = written(&action);
        let permitted = match permit(&self.way.capabilities, &action, Asker::Tool) {
            Ok(permitted) => permitted,
            Err(denied) => {
                let mut denied = denied.to_value();
                denied["hints"] = json!([
                    "a tool may do what the thread that runs it may do: grant it in the directive's <permissions>"
                ]);
                let event =
                    Event::ToolAsked { index, request: number, action: shown, denied: Some(denied.clone()) };
                self.write_event(event);
                return denied;
            }
        };
        if self.way.level >= ground.deepest {
            let message = format!("tools call tools at most {} deep", ground.deepest);
            return Error::new(Code::SpawnRefused, message)
                .hint("the directive's limit `depth` says how deep")
                .to_value(None);
        }
        if !self.write_event(Event::ToolAsked { index, request: number, action: shown, denied: None }) {
            return ended();
        }
        let began = Instant::now();
        let (answer, child) = self.until_nobody_listens(socket, |cancel| match Target::of(action.clone()) {
            Target::Action(_) => {
                let door = Arc::new(self.way.further());
                let facts = ThreadFacts { door: Some(door), ..ground.facts.clone() };
                (ground.dispatch.dispatch(&permitted, &Arc::new(facts), cancel), None)
            }
            Target::Spawn(action) => match crate::random_thread_id() {
                Ok(child) => self.later(cancel, |ending| {
                    let began = ground.began.by(&self.way.tool, child);
                    Arc::clone(&ground.children).spawn(self.way.spec(), action, ending, began)
                }),
                Err(_) => refused("no randomness is to be had"),
            },
            Target::Orchestrate(action) => self.later(cancel, |ending| {
                Arc::clone(&ground.children).orchestrate(self.way.spec(), action, ending)
            }),
            Target::DirectiveReturn(_) | Target::ReadArtifact(_) | Target::Ask(_) => {
                let message = "only the model can ask for this";
                (Error::new(Code::InvalidCall, message).to_value(None), None)
            }
        });
        let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_error = is_failure(&answer);
        self.write_event(Event::ToolAnswered { index, request: number, is_error, duration_ms, child });
        answer
    }

    /// Does something for as long as the visitor is there and the tool runs; then it is cancelled, and waited for.
    fn until_nobody_listens(&self, socket: &OwnedFd, work: impl FnOnce(&Cancel) -> Done) -> Done {
        let (Ok(cancel), Ok(done)) = (Cancel::new(), Cancel::new()) else {
            return refused("no descriptor is left");
        };
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = || {
                let mut is_cancelled = false;
                while !is_done.load(Ordering::SeqCst) {
                    let mut polled = vec![PollFd::new(&done, PollFlags::IN)];
                    if !is_cancelled {
                        polled.push(PollFd::new(&self.over, PollFlags::IN));
                        polled.push(PollFd::new(socket, PollFlags::RDHUP));
                    }
                    let _ = rustix::event::poll(&mut polled, None);
                    let is_over = polled.iter().skip(1).any(|one| !one.revents().is_empty());
                    if is_over && !is_cancelled {
                        is_cancelled = true;
                        cancel.cancel();
                    }
                }
            };
            let watching = std::thread::Builder::new().name("door-watch".to_owned());
            if watching.spawn_scoped(scope, watch).is_err() {
                return refused("no thread is left");
            }
            let result = work(&cancel);
            is_done.store(true, Ordering::SeqCst);
            done.cancel();
            result
        })
    }

    /// Waits for what other threads do; when it is cancelled they hear of it, and are waited for.
    fn later(
        &self,
        cancel: &Cancel,
        begin: impl FnOnce(CancellationToken) -> crate::driver::Later<'static, ToolResult>,
    ) -> Done {
        let ending = CancellationToken::new();
        let mut work = begin(ending.clone());
        let result = self.way.ground.workers.block_on(async {
            loop {
                tokio::select! {
                    result = &mut work => return result,
                    () = tokio::time::sleep(LOOK_EVERY), if !ending.is_cancelled() => {
                        if cancel.is_cancelled() {
                            ending.cancel();
                        }
                    }
                }
            }
        });
        let answer = serde_json::from_str(&result.content).unwrap_or_else(|_| json!(result.content));
        (answer, result.child)
    }
}

/// What came of a request: the answer, and the thread it started and waited for.
type Done = (Value, Option<ThreadId>);

/// Something that was not even begun.
fn refused(reason: &str) -> Done {
    (Error::new(Code::Io, reason).to_value(None), None)
}

fn ended() -> Value {
    Error::new(Code::TokenRefused, format!("the token is not believed: {}", Disbelief::Ended)).to_value(None)
}

/// What the thread writes down of a request: the action, its parameters cut where they are long.
fn written(action: &Action) -> Value {
    let mut shown = action.to_value();
    for value in shown.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        let text = match value {
            Value::String(text) => std::mem::take(text),
            Value::Object(_) | Value::Array(_) => {
                let text = value.to_string();
                if text.len() <= MOST_WRITTEN {
                    continue;
                }
                text
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => continue,
        };
        let cut: String = text.chars().take(MOST_WRITTEN).collect();
        *value = json!(if cut.len() < text.len() { format!("{cut}…") } else { cut });
    }
    shown
}

fn is_failure(answer: &Value) -> bool {
    answer["status"] == json!("error") || answer["success"] == json!(false)
}
