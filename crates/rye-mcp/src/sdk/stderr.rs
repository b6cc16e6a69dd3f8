//! The end of a server's stderr, for the message when it fails. The pipe is drained all the time so that a talkative
//! server never blocks on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;

use crate::error::truncate_line;
use crate::host::StderrSource;

const MAX_TAIL_BYTES: usize = 4096;
const MAX_TEXT_CHARS: usize = 1000;
/// How long the end of stderr is waited for once the server has failed.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Keeps the end of what a server says.
pub(super) enum StderrTail {
    /// A task drains the pipe.
    Drained { buffer: Arc<Mutex<VecDeque<u8>>>, task: JoinHandle<()> },
    /// Another owner reads it.
    External(Box<dyn Fn() -> Vec<u8> + Send>),
}

impl StderrTail {
    pub(super) fn new(stderr: StderrSource) -> std::io::Result<Self> {
        let pipe = match stderr {
            StderrSource::Pipe(pipe) => pipe,
            StderrSource::Tail(read) => return Ok(Self::External(read)),
        };
        let mut pipe = Receiver::from_owned_fd(pipe)?;
        let buffer = Arc::new(Mutex::new(VecDeque::new()));
        let shared = Arc::clone(&buffer);
        let task = tokio::spawn(async move {
            let mut bytes = [0; MAX_TAIL_BYTES];
            while let Ok(count @ 1..) = pipe.read(&mut bytes).await {
                let mut buffer = shared.lock().unwrap_or_else(PoisonError::into_inner);
                buffer.extend(&bytes[..count]);
                let excess = buffer.len().saturating_sub(MAX_TAIL_BYTES);
                buffer.drain(..excess);
            }
        });
        Ok(Self::Drained { buffer, task })
    }

    /// Waits a moment for the server to close its stderr.
    pub(super) async fn wait_closed(&mut self) {
        match self {
            Self::Drained { task, .. } if !task.is_finished() => {
                // A process it started may hold the pipe open; the output so far is enough.
                let _ = tokio::time::timeout(SETTLE_TIMEOUT, task).await;
            }
            Self::Drained { .. } | Self::External(_) => {}
        }
    }

    /// The end, on one line, without controls.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = match self {
            Self::Drained { buffer, .. } => {
                buffer.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
            }
            Self::External(read) => read(),
        };
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_TAIL_BYTES)..]).into_owned();
        let line = truncate_line(&text, MAX_TAIL_BYTES);
        let count = line.chars().count();
        match line.char_indices().nth(count.saturating_sub(MAX_TEXT_CHARS)) {
            Some((cut, _)) if cut > 0 => format!("…{}", &line[cut..]),
            _ => line,
        }
    }
}
