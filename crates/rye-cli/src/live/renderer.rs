//! Shows a thread while it runs in this process. Who runs it only hands events over; drawing happens on a thread of its
//! own, so that a slow terminal or a full pipe never holds a model up.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rye_agent::driver::Listener;
use rye_model::ResponseDelta;
use serde_json::{Value, json};

use super::view::{ThreadView, ViewOptions};
use crate::output::{Output, StatusLine};

/// How often the line at the bottom is drawn again.
const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Something to show.
enum RenderEvent {
    Event(Value),
    Delta(String, ResponseDelta),
    Line(String),
    /// Something that needs the terminal for itself.
    Prompt(Box<dyn FnOnce() + Send>),
    End,
}

/// A thread's view, drawn as it goes.
pub struct Renderer {
    sender: Sender<RenderEvent>,
    thread: JoinHandle<ThreadView>,
}

/// Hears of threads and passes it on.
struct ChannelListener(Sender<RenderEvent>);

impl Listener for ChannelListener {
    fn event(&self, envelope: &Value) {
        // Stderr is closed: there is no one to report to.
        let _ = self.0.send(RenderEvent::Event(envelope.clone()));
    }

    fn delta(&self, thread: &str, delta: &ResponseDelta) {
        let _ = self.0.send(RenderEvent::Delta(thread.to_owned(), delta.clone()));
    }
}

impl Renderer {
    /// Begins to draw what `prepare` has made of a fresh view.
    pub fn start(output: Output, prepare: impl FnOnce(&mut ThreadView)) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let mut view = ThreadView::new(ViewOptions {
            stream: output.is_live(),
            show_inner_calls: output.is_verbose(),
            is_verbose: output.is_verbose(),
            omit_reason: true,
            width: output.width().saturating_sub(1),
        });
        prepare(&mut view);
        let thread = std::thread::Builder::new().name("screen".to_owned());
        let thread = thread.spawn(move || render_loop(output, view, &receiver))?;
        Ok(Self { sender, thread })
    }

    /// Who is to hear of threads.
    pub fn listener(&self) -> Arc<dyn Listener> {
        Arc::new(ChannelListener(self.sender.clone()))
    }

    /// Says a line between others.
    pub fn line_sender(&self) -> impl Fn(String) + Send + use<> {
        let sender = self.sender.clone();
        move |line| {
            let _ = sender.send(RenderEvent::Line(line));
        }
    }

    /// Asks the person at the terminal while nothing else is drawn; events are shown afterwards.
    pub async fn prompt<T: Send + 'static>(&self, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let run = Box::new(move || {
            // An answer that is not waited for any more is recorded all the same.
            let _ = sender.send(ask());
        });
        let _ = self.sender.send(RenderEvent::Prompt(run));
        receiver.await.ok()
    }

    /// Draws what is left, and gives what was seen; `None` when drawing broke off.
    pub fn finish(self) -> Option<ThreadView> {
        let _ = self.sender.send(RenderEvent::End);
        self.thread.join().ok()
    }
}

/// A piece of an answer as a line of JSON. It is in no transcript, so it has no number.
fn delta_line(thread: &str, delta: &ResponseDelta) -> Value {
    let payload = match delta {
        ResponseDelta::Text(text) => json!({"kind": "text", "text": text}),
        ResponseDelta::Reasoning(text) => json!({"kind": "reasoning", "text": text}),
        ResponseDelta::CallStarted { name, .. } => json!({"kind": "tool_call", "tool": name}),
    };
    json!({"thread_id": thread, "event_type": "model_delta", "payload": payload, "criticality": "droppable"})
}

fn render_loop(output: Output, mut view: ThreadView, receiver: &Receiver<RenderEvent>) -> ThreadView {
    let started = Instant::now();
    let status = output.is_live().then(|| output.status_line());
    let print = |status: Option<&StatusLine>, lines: Vec<String>| {
        for line in lines {
            match status {
                Some(status) => status.print_above(&line),
                None => output.note(line),
            }
        }
    };
    loop {
        let event = match &status {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => receiver.recv_timeout(TICK_INTERVAL),
        };
        let lines = match event {
            Ok(RenderEvent::Event(envelope)) if output.is_json => {
                // The reader has closed the pipe; the thread continues.
                let _ = output.print_json_line(&envelope);
                Vec::new()
            }
            Ok(RenderEvent::Event(envelope)) => view.handle_event(&envelope),
            Ok(RenderEvent::Delta(thread, delta)) if output.is_json => {
                let _ = output.print_json_line(&delta_line(&thread, &delta));
                Vec::new()
            }
            Ok(RenderEvent::Delta(thread, ResponseDelta::Text(text))) => view.push_text(&thread, &text),
            Ok(RenderEvent::Delta(..)) => Vec::new(),
            Ok(RenderEvent::Line(line)) => vec![line],
            Ok(RenderEvent::Prompt(ask)) => {
                match &status {
                    Some(status) => status.hide_while(ask),
                    None => ask(),
                }
                Vec::new()
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Ok(RenderEvent::End) | Err(RecvTimeoutError::Disconnected) => break,
        };
        print(status.as_ref(), lines);
        if let Some(status) = &status {
            let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            status.set_with_spinner(&view.partial_line(), &view.status_line(elapsed));
        }
    }
    drop(status);
    view
}
