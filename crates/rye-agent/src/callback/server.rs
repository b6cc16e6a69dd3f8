//! The thread's side of a callback channel: connections are accepted, tokens verified, requests done, for as long as the tool runs.
//!
//! An ordinary tool never connects: then all of this is two sockets and a signature. The first connection starts a thread that
//! answers, and each visitor gets one of its own.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lillux::CancelToken;
use lillux::process::callback::{self, CallbackChannel};
use rustix::event::{PollFd, PollFlags};
use rye_engine::{Code, Error};
use rye_item::text::one_line;
use rye_thread::call_hooks::unasked;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::arguments;
use super::call_hooks::RequestHooks;
use super::frame::{self, WaitLimit};
use super::token::{TokenClaims, TokenError, TokenRequest};
use super::{CALLBACK_FD_VAR, CallbackEvent, CallbackFactory, TOKEN_FD_VAR};
use crate::action::Action;
use crate::capability::{PermissionDenied, Principal, permit};
use crate::definitions::CallTarget;
use crate::envelope::ResultEnvelope;
use crate::machine::{ThreadEvent, ToolResult};
use crate::status::ThreadStatus;
use crate::thread_id::ThreadId;
use crate::tool_context::ThreadContext;

/// Visitors that are served at once; further ones wait.
const MAX_CONNECTIONS: usize = 16;
/// What one call of a thread may ask for, all its tools together: each request is written down.
const MAX_REQUESTS_PER_CALL: u64 = 1000;
/// How often it is looked whether the call has been cancelled, while nothing else would tell.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Characters of a request's parameters that are written down.
const MAX_RECORDED_CHARS: usize = 4096;

/// A callback server that runs until it is dropped. Then no request is served any more, and what it began is stopped.
#[derive(Debug)]
pub(super) struct CallbackServer {
    listener: OwnedFd,
    /// The tool's end: held, so that the listener stays silent until a client connects.
    client_fd: OwnedFd,
    token: OwnedFd,
    session: Arc<CallbackSession>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What the clients of one channel share.
#[derive(Debug)]
struct CallbackSession {
    factory: CallbackFactory,
    /// What the channel's own token says.
    claims: TokenClaims,
    /// Said when the tool's process has ended.
    ended: CancelToken,
    lifetime: Duration,
    started_at: Instant,
}

impl CallbackServer {
    pub(super) fn new(factory: CallbackFactory, lifetime: Duration) -> io::Result<Self> {
        let context = &factory.context;
        let request = TokenRequest {
            thread_id: &context.spec.instance.thread_id,
            call: &format!("{}.{}", context.call, factory.depth),
            capabilities: &factory.capabilities,
            now_ms: context.clock.now_ms(),
            lifetime_ms: u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX),
        };
        let (claims, token) = context.token_issuer.issue(&request)?;
        let token = callback::seal_bytes("token", &token)?;
        let (listener, client_fd) = callback::socket_pair()?;
        let session = CallbackSession {
            factory,
            claims,
            ended: CancelToken::new()?,
            lifetime,
            started_at: Instant::now(),
        };
        Ok(Self { listener, client_fd, token, session: Arc::new(session), worker: Mutex::default() })
    }
}

impl CallbackChannel for CallbackServer {
    fn inherited_fds(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![(TOKEN_FD_VAR, self.token.as_fd()), (CALLBACK_FD_VAR, self.client_fd.as_fd())]
    }

    fn listener_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn on_connect(&self) {
        // Without a descriptor or a thread there is no answer, and clients learn so when the tool has ended.
        let Ok(listener) = self.listener.try_clone() else { return };
        let session = Arc::clone(&self.session);
        let work = move || accept_connections(&listener, &session);
        let started = std::thread::Builder::new().name("callback".to_owned()).spawn(work);
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = started.ok();
    }
}

impl Drop for CallbackServer {
    fn drop(&mut self) {
        self.session.ended.cancel();
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            // One that panicked has nothing left to end.
            let _ = worker.join();
        }
    }
}

/// Accepts connections until the tool has ended.
fn accept_connections(listener: &OwnedFd, session: &CallbackSession) {
    let connections = ConnectionLimit::default();
    std::thread::scope(|scope| {
        loop {
            let mut polled =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(&session.ended, PollFlags::IN)];
            // An interrupted wait is a short one.
            let _ = rustix::event::poll(&mut polled, None);
            if session.ended.is_cancelled() {
                return;
            }
            let (token, socket) = match callback::accept(listener) {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::InvalidData) => {
                    continue;
                }
                Err(_) => return,
            };
            connections.acquire(&session.ended);
            let connections = &connections;
            let serve = move || {
                // A client that sends malformed requests or leaves is disconnected.
                let _ = session.serve_connection(&token, &socket);
                connections.release();
            };
            if std::thread::Builder::new().name("visitor".to_owned()).spawn_scoped(scope, serve).is_err() {
                connections.release();
            }
        }
    });
}

/// How many visitors are served.
#[derive(Default)]
struct ConnectionLimit(Mutex<usize>, Condvar);

impl ConnectionLimit {
    /// Waits until there is room, or the server has stopped.
    fn acquire(&self, ended: &CancelToken) {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *count >= MAX_CONNECTIONS && !ended.is_cancelled() {
            count = self.1.wait_timeout(count, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        *count += 1;
    }

    fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.1.notify_one();
    }
}

impl CallbackSession {
    /// One visitor, until they leave.
    fn serve_connection(&self, token: &[u8], socket: &OwnedFd) -> io::Result<()> {
        let limit =
            WaitLimit { cancel: Some(&self.ended), deadline: self.started_at.checked_add(self.lifetime) };
        while let Some(request) = frame::receive(socket, limit)? {
            let mut response = match self.check_token(token) {
                Ok(()) => self.handle_request(&request, socket),
                Err(error) => self.reject_token(error),
            };
            self.factory.context.redactor.redact_value(&mut response);
            let sent = frame::send(socket, &response, limit);
            if sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
                let message = format!("the answer is longer than {} bytes", frame::MAX_MESSAGE_BYTES);
                frame::send(socket, &Error::new(Code::ToolFailed, message).to_value(None), limit)?;
                continue;
            }
            sent?;
        }
        Ok(())
    }

    fn check_token(&self, token: &[u8]) -> Result<(), TokenError> {
        if self.ended.is_cancelled() {
            return Err(TokenError::CallEnded);
        }
        let context = &self.factory.context;
        context.token_issuer.verify(token, &self.claims, context.clock.now_ms())
    }

    fn reject_token(&self, reason: TokenError) -> Value {
        let error = Error::new(Code::TokenRefused, format!("invalid callback token: {reason}"))
            .hint("a tool uses the token it was given, in the call it was given for");
        let denied = error.to_value(None);
        if let Ok(request) = self.next_request() {
            let (index, denied) = (self.factory.context.index, Some(denied.clone()));
            self.write_event(ThreadEvent::CallbackRequested {
                index,
                request,
                action: Value::Null,
                original: None,
                denied,
            });
        }
        denied
    }

    /// The number of the next request, if there may be one.
    fn next_request(&self) -> Result<u64, Error> {
        let before = self.factory.context.request_count.fetch_add(1, Ordering::SeqCst);
        if before >= MAX_REQUESTS_PER_CALL {
            let message = format!("the tools of one call ask at most {MAX_REQUESTS_PER_CALL} times");
            return Err(Error::new(Code::SpawnRefused, message).hint("let one tool do more at once"));
        }
        Ok(before + 1)
    }

    /// Lets the thread write something down; whether it has.
    fn write_event(&self, event: ThreadEvent) -> bool {
        let (ack, acked) = channel();
        if self.factory.context.events.send(CallbackEvent { event, ack }).is_err() {
            return false;
        }
        loop {
            match acked.recv_timeout(POLL_INTERVAL) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if self.ended.is_cancelled() => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// One request of a client whose token was accepted.
    fn handle_request(&self, request: &Value, socket: &OwnedFd) -> Value {
        let number = match self.next_request() {
            Ok(number) => number,
            Err(error) => return error.to_value(None),
        };
        let context = &self.factory.context;
        let index = context.index;
        let action = Action::from_value(&request["action"]).map_err(|error| error.to_string());
        let action = match action.and_then(|action| arguments::collect(&*context.dispatcher, action)) {
            Ok(action) => action,
            Err(error) => return Error::new(Code::InvalidCall, one_line(&error)).to_value(None),
        };
        let asked = record_of(&action);
        let mut hooks = RequestHooks { context, ended: &self.ended, notes: Vec::new() };
        let action = match hooks.before(action) {
            Ok(action) => action,
            Err(reason) => {
                let denied = Error::new(Code::PermissionDenied, reason).to_value(None);
                self.write_event(ThreadEvent::CallbackRequested {
                    index,
                    request: number,
                    action: asked,
                    original: None,
                    denied: Some(denied.clone()),
                });
                return denied;
            }
        };
        let recorded = record_of(&action);
        let original = (asked != recorded).then_some(asked);
        let permitted = match permit(&self.factory.capabilities, &action, Principal::Tool) {
            Ok(permitted) => permitted,
            Err(denied) => {
                let mut denied = denied.to_value();
                denied["hints"] = json!([
                    "a tool may do what the thread that runs it may do: grant it in the directive's <permissions>"
                ]);
                let event = ThreadEvent::CallbackRequested {
                    index,
                    request: number,
                    action: recorded,
                    original,
                    denied: Some(denied.clone()),
                };
                self.write_event(event);
                return denied;
            }
        };
        if let Err(reason) = unasked(&context.spec, &action) {
            let denied = PermissionDenied::unasked(&action, &reason).to_value();
            self.write_event(ThreadEvent::CallbackRequested {
                index,
                request: number,
                action: recorded,
                original,
                denied: Some(denied.clone()),
            });
            return denied;
        }
        if self.factory.depth >= context.max_depth {
            let message = format!("tools call tools at most {} deep", context.max_depth);
            return Error::new(Code::SpawnRefused, message)
                .hint("the directive's limit `depth` says how deep")
                .to_value(None);
        }
        if !self.write_event(ThreadEvent::CallbackRequested {
            index,
            request: number,
            action: recorded,
            original,
            denied: None,
        }) {
            return ended_error();
        }
        let started_at = Instant::now();
        let (response, child) =
            self.run_while_connected(socket, |cancel| match CallTarget::from_action(action.clone()) {
                CallTarget::Action(_) => {
                    let callback = Arc::new(self.factory.nested());
                    let thread_context = ThreadContext { callback: Some(callback), ..context.thread.clone() };
                    (context.dispatcher.dispatch(&permitted, &Arc::new(thread_context), cancel), None)
                }
                CallTarget::Spawn(action) => match crate::random_thread_id() {
                    Ok(child) => self.block_on_child(cancel, |cancel_token| {
                        let started_at = context.child_handle.spawned_by(&self.factory.tool, child);
                        Arc::clone(&context.children).spawn(
                            self.factory.spec(),
                            action,
                            cancel_token,
                            started_at,
                        )
                    }),
                    Err(_) => io_failure("no randomness is to be had"),
                },
                CallTarget::Orchestrate(action) => self.block_on_child(cancel, |cancel_token| {
                    Arc::clone(&context.children).orchestrate(self.factory.spec(), action, cancel_token)
                }),
                CallTarget::DirectiveReturn(_)
                | CallTarget::ReadArtifact(_)
                | CallTarget::RequestApproval(_) => {
                    let message = "only the model can ask for this";
                    (Error::new(Code::InvalidCall, message).to_value(None), None)
                }
            });
        let response = hooks.after(&action, response);
        let duration_ms = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_error = ResultEnvelope::is_failed_response(&response);
        self.write_event(ThreadEvent::CallbackCompleted {
            index,
            request: number,
            is_error,
            duration_ms,
            child_status: child.as_ref().and_then(|_| ThreadStatus::of_result(&response)),
            child,
        });
        response
    }

    /// Does something for as long as the visitor is there and the tool runs; then it is cancelled, and waited for.
    fn run_while_connected(
        &self,
        socket: &OwnedFd,
        work: impl FnOnce(&CancelToken) -> RequestOutcome,
    ) -> RequestOutcome {
        let (Ok(cancel), Ok(done)) = (CancelToken::new(), CancelToken::new()) else {
            return io_failure("no descriptor is left");
        };
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = || {
                let mut is_cancelled = false;
                while !is_done.load(Ordering::SeqCst) {
                    let mut polled = vec![PollFd::new(&done, PollFlags::IN)];
                    if !is_cancelled {
                        polled.push(PollFd::new(&self.ended, PollFlags::IN));
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
            let watching = std::thread::Builder::new().name("callback-watch".to_owned());
            if watching.spawn_scoped(scope, watch).is_err() {
                return io_failure("no thread is left");
            }
            let result = work(&cancel);
            is_done.store(true, Ordering::SeqCst);
            done.cancel();
            result
        })
    }

    /// Waits for what other threads do; when it is cancelled they hear of it, and are waited for.
    fn block_on_child(
        &self,
        cancel: &CancelToken,
        begin: impl FnOnce(CancellationToken) -> crate::driver::BoxFuture<'static, ToolResult>,
    ) -> RequestOutcome {
        let cancel_token = CancellationToken::new();
        let mut work = begin(cancel_token.clone());
        let result = self.factory.context.runtime.block_on(async {
            loop {
                tokio::select! {
                    result = &mut work => return result,
                    () = tokio::time::sleep(POLL_INTERVAL), if !cancel_token.is_cancelled() => {
                        if cancel.is_cancelled() {
                            cancel_token.cancel();
                        }
                    }
                }
            }
        });
        let response = serde_json::from_str(&result.content).unwrap_or_else(|_| json!(result.content));
        (response, result.child)
    }
}

/// What came of a request: the answer, and the thread it started and waited for.
type RequestOutcome = (Value, Option<ThreadId>);

/// Something that was not even begun.
fn io_failure(reason: &str) -> RequestOutcome {
    (Error::new(Code::Io, reason).to_value(None), None)
}

fn ended_error() -> Value {
    Error::new(Code::TokenRefused, format!("invalid callback token: {}", TokenError::CallEnded))
        .to_value(None)
}

/// What the thread writes down of a request: the action, its parameters cut where they are long.
fn record_of(action: &Action) -> Value {
    let mut record = action.to_value();
    for value in record.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        let text = match value {
            Value::String(text) => std::mem::take(text),
            Value::Object(_) | Value::Array(_) => {
                let text = value.to_string();
                if text.len() <= MAX_RECORDED_CHARS {
                    continue;
                }
                text
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => continue,
        };
        let cut: String = text.chars().take(MAX_RECORDED_CHARS).collect();
        *value = json!(if cut.len() < text.len() { format!("{cut}…") } else { cut });
    }
    record
}
