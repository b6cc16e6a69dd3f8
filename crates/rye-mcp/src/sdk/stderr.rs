//! The end of a server's stderr, for the message when it fails. The pipe is drained all the time so that a talkative
//! server never blocks on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;

use crate::doors::Stderr;
use crate::error::shown;

const KEPT_BYTES: usize = 4096;
const SHOWN_CHARACTERS: usize = 1000;
/// How long the end of stderr is waited for once the server has failed.
const SETTLE: Duration = Duration::from_millis(300);

/// Keeps the end of what a server says.
pub(super) enum Tail {
    /// A task drains the pipe.
    Drained { kept: Arc<Mutex<VecDeque<u8>>>, task: JoinHandle<()> },
    /// Somebody else does.
    Told(Box<dyn Fn() -> Vec<u8> + Send>),
}

impl Tail {
    pub(super) fn new(stderr: Stderr) -> std::io::Result<Self> {
        let pipe = match stderr {
            Stderr::Pipe(pipe) => pipe,
            Stderr::Tail(tell) => return Ok(Self::Told(tell)),
        };
        let mut pipe = Receiver::from_owned_fd(pipe)?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let shared = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            let mut bytes = [0; KEPT_BYTES];
            while let Ok(count @ 1..) = pipe.read(&mut bytes).await {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&bytes[..count]);
                let excess = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..excess);
            }
        });
        Ok(Self::Drained { kept, task })
    }

    /// Waits a moment for the server to close its stderr.
    pub(super) async fn settle(&mut self) {
        match self {
            Self::Drained { task, .. } if !task.is_finished() => {
                // Somebody it started may hold the pipe open; what was said so far will do.
                let _ = tokio::time::timeout(SETTLE, task).await;
            }
            Self::Drained { .. } | Self::Told(_) => {}
        }
    }

    /// The end, on one line, without controls.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = match self {
            Self::Drained { kept, .. } => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
            }
            Self::Told(tell) => tell(),
        };
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(KEPT_BYTES)..]).into_owned();
        let line = shown(&text, KEPT_BYTES);
        let count = line.chars().count();
        match line.char_indices().nth(count.saturating_sub(SHOWN_CHARACTERS)) {
            Some((cut, _)) if cut > 0 => format!("…{}", &line[cut..]),
            _ => line,
        }
    }
}
