//! Shows a thread while it runs in this process. Who runs it only hands events over; drawing happens on a thread of its
//! own, so that a slow terminal or a full pipe never holds a model up.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rye_agent::driver::Listener;
use rye_model::Delta;
use serde_json::Value;

use super::view::{Manner, View};
use crate::output::{Output, StatusLine};

/// How often the line at the bottom is drawn anew.
const TICK: Duration = Duration::from_millis(100);

/// Something to show.
enum Told {
    Event(Value),
    Words(String, String),
    Line(String),
    End,
}

/// A thread's view, drawn as it goes.
pub struct Screen {
    sender: Sender<Told>,
    drawing: JoinHandle<View>,
}

/// Hears of threads and passes it on.
struct Ear(Sender<Told>);

impl Listener for Ear {
    fn event(&self, envelope: &Value) {
        // Nobody looks any more: there is nobody to tell.
        let _ = self.0.send(Told::Event(envelope.clone()));
    }

    fn delta(&self, thread: &str, delta: &Delta) {
        if let Delta::Text(text) = delta {
            let _ = self.0.send(Told::Words(thread.to_owned(), text.clone()));
        }
    }
}

impl Screen {
    /// Begins to draw what `prepare` has made of a fresh view.
    pub fn open(output: Output, prepare: impl FnOnce(&mut View)) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let mut view = View::new(Manner {
            streams: output.is_live(),
            shows_inner_calls: output.is_verbose(),
            is_verbose: output.is_verbose(),
            leaves_reason: true,
            width: output.width().saturating_sub(1),
        });
        prepare(&mut view);
        let drawing = std::thread::Builder::new().name("screen".to_owned());
        let drawing = drawing.spawn(move || draw(output, view, &receiver))?;
        Ok(Self { sender, drawing })
    }

    /// Who is to hear of threads.
    pub fn listener(&self) -> Arc<dyn Listener> {
        Arc::new(Ear(self.sender.clone()))
    }

    /// Says a line between others.
    pub fn teller(&self) -> impl Fn(String) + Send + use<> {
        let sender = self.sender.clone();
        move |line| {
            let _ = sender.send(Told::Line(line));
        }
    }

    /// Draws what is left, and gives what was seen; `None` when drawing broke off.
    pub fn close(self) -> Option<View> {
        let _ = self.sender.send(Told::End);
        self.drawing.join().ok()
    }
}

fn draw(output: Output, mut view: View, receiver: &Receiver<Told>) -> View {
    let began = Instant::now();
    let status = output.is_live().then(|| output.status_line());
    let show = |status: Option<&StatusLine>, lines: Vec<String>| {
        for line in lines {
            match status {
                Some(status) => status.above(&line),
                None => output.note(line),
            }
        }
    };
    loop {
        let told = match &status {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => receiver.recv_timeout(TICK),
        };
        let lines = match told {
            Ok(Told::Event(envelope)) if output.is_json => {
                // Whoever reads has seen enough; the thread goes on all the same.
                let _ = output.json_line(&envelope);
                Vec::new()
            }
            Ok(Told::Event(envelope)) => view.event(&envelope),
            Ok(Told::Words(thread, text)) => view.words(&thread, &text),
            Ok(Told::Line(line)) => vec![line],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => break,
        };
        show(status.as_ref(), lines);
        if let Some(status) = &status {
            let elapsed = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            status.set(&view.partial(), &view.status(elapsed));
        }
    }
    drop(status);
    view
}
