//! The event stream: rows and questions from the watcher, and the transcripts that a client follows, each from where it
//! was. Every durable event comes at least once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript::{self, TranscriptEvent, TranscriptPosition};
use rye_agent::views::ROW_COLUMNS;
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast};

use super::UiState;
use super::answers::{Parameters, error_response, respond};
use super::sessions::SessionHandle;
use super::watcher::{FollowGuard, frame, row_frames};
use crate::worker_pool::Lane;

/// How often a stream says that it is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Transcripts that one stream follows.
const MAX_FOLLOWED: usize = 16;
/// Events in one frame.
const MAX_FRAME_EVENTS: usize = 200;
/// Threads that are sent again to a client that resumes; of more it reads the lists again.
const MAX_RESUMED_THREADS: usize = 2000;

/// A position as clients send it back.
pub(super) fn position_text(position: TranscriptPosition) -> String {
    format!("{}.{}.{}.{}", position.bytes, position.lines, position.last.0, position.last.1)
}

/// The position in a text.
pub(super) fn parse_position(text: &str) -> Result<TranscriptPosition> {
    let numbers: Vec<u64> = text.split('.').map_while(|part| part.parse().ok()).collect();
    match numbers[..] {
        [bytes, lines, start, sequence] if text.split('.').count() == 4 => {
            Ok(TranscriptPosition { bytes, lines, last: (start, sequence) })
        }
        _ => Err(Error::new(Code::InvalidArgument, "invalid position")
            .hint("send `position` back as it came, or leave it out")),
    }
}

/// An event as clients read it.
pub(super) fn event_value(event: &TranscriptEvent) -> Value {
    json!({
        "event_type": event.event_type,
        "timestamp": event.timestamp,
        "payload": event.payload,
        "sequence": event.sequence,
        "is_droppable": event.is_droppable,
        "line": event.line,
    })
}

/// A transcript that a stream follows.
struct Followed {
    position: TranscriptPosition,
    _guard: FollowGuard,
}

/// A client of the stream.
struct EventStream {
    state: UiState,
    session: SessionHandle,
    pending: VecDeque<Bytes>,
    frames: broadcast::Receiver<Bytes>,
    files: broadcast::Receiver<ThreadId>,
    followed: BTreeMap<ThreadId, Followed>,
    is_over: bool,
    _permit: OwnedSemaphorePermit,
}

/// `GET /api/v1/events`
pub(super) async fn events(
    State(state): State<UiState>,
    Extension(session): Extension<SessionHandle>,
    request: Request,
) -> Response {
    let Ok(permit) = Arc::clone(&state.streams).try_acquire_owned() else {
        let error = Error::new(Code::Serving, "too many event streams are open").hint("close a page");
        return error_response(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    respond(open(state, session, permit, request.uri().query(), request.headers()).await)
}

async fn open(
    state: UiState,
    session: SessionHandle,
    permit: OwnedSemaphorePermit,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response> {
    let parameters = Parameters::parse(query, &["position", "watch"])?;
    let position = match headers.get("last-event-id").and_then(|value| value.to_str().ok()) {
        Some(id) if !id.is_empty() => Some(id),
        Some(_) | None => parameters.text("position"),
    };
    // A position that is not one of ours is as good as none: everything is read again.
    let position = position.map(|text| text.parse::<u64>().unwrap_or(u64::MAX));
    // Subscribed before anything is read: nothing falls between.
    let (frames, files) = (state.watcher.frames(), state.watcher.files());
    let mut followed = BTreeMap::new();
    for word in parameters.text("watch").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
        let (id, start) = word.split_once('@').unwrap_or((word, ""));
        let id = super::threads::parse_id(id)?;
        if followed.len() >= MAX_FOLLOWED {
            let message = format!("at most {MAX_FOLLOWED} transcripts are followed");
            return Err(Error::new(Code::InvalidArgument, message).hint("watch fewer threads"));
        }
        let position = match start {
            "" => TranscriptPosition::default(),
            "end" => {
                let (watcher, thread) = (Arc::clone(&state.watcher), id.clone());
                let read = move || {
                    let path = watcher.transcript_path(&thread);
                    Ok(transcript::read(&path, TranscriptPosition::default(), usize::MAX)?.next)
                };
                state.shared.pool.run(Lane::Quick, read).await?
            }
            text => parse_position(text)?,
        };
        let guard = state.watcher.follow(&id);
        followed.insert(id, Followed { position, _guard: guard });
    }
    let inner = Arc::clone(&state);
    let is_read_only = session.is_read_only;
    let first = move || Ok(first_frames(&inner, position, is_read_only)?.into());
    let pending = state.shared.pool.run(Lane::Quick, first).await?;
    let mut stream =
        EventStream { state, session, pending, frames, files, followed, is_over: false, _permit: permit };
    let ids: Vec<ThreadId> = stream.followed.keys().cloned().collect();
    for id in ids {
        stream.read_transcript(&id).await?;
    }
    let body = Body::from_stream(futures_util::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), stream))
    }));
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// How it stands, and what changed behind the position that a client has.
fn first_frames(state: &UiState, position: Option<u64>, is_read_only: bool) -> Result<Vec<Bytes>> {
    let guard = state.watcher.live()?;
    let hello = |position: u64, counts: Value, open: usize| {
        let data = json!({
            "position": position.to_string(), "columns": ROW_COLUMNS, "counts": counts,
            "open_approvals": open, "read_only": is_read_only,
        });
        frame("hello", Some(position), &data.to_string())
    };
    let Some(live) = guard.as_ref() else {
        return Ok(vec![hello(0, json!({}), 0)]);
    };
    let mut frames = vec![hello(live.position(), json!(live.counts()), live.questions().len())];
    if let Some(position) = position {
        match live.changed_since(position, MAX_RESUMED_THREADS)? {
            Some(ids) => frames.extend(row_frames(live, &ids)),
            None => frames.push(frame("reset", Some(live.position()), "{}")),
        }
    }
    Ok(frames)
}

impl EventStream {
    /// What is sent next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.pending.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            tokio::select! {
                biased;
                () = self.state.stop.cancelled() => self.end("shutdown"),
                () = self.session.ended.cancelled() => self.end("session"),
                received = self.frames.recv() => match received {
                    Ok(frame) => self.pending.push_back(frame),
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        self.pending.push_back(frame("reset", None, "{}"));
                    }
                    Err(broadcast::error::RecvError::Closed) => self.end("shutdown"),
                },
                received = self.files.recv() => match received {
                    Ok(id) if self.followed.contains_key(&id) => self.read_or_reset(&id).await,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        let ids: Vec<ThreadId> = self.followed.keys().cloned().collect();
                        for id in ids {
                            self.read_or_reset(&id).await;
                        }
                    }
                    Err(broadcast::error::RecvError::Closed) => self.end("shutdown"),
                },
                () = tokio::time::sleep(KEEPALIVE_INTERVAL) => {
                    // An open stream counts as use.
                    match self.state.sessions.touch(&self.session) {
                        true => self.pending.push_back(Bytes::from_static(b":\n\n")),
                        false => self.end("session"),
                    }
                }
            }
        }
    }

    fn end(&mut self, reason: &str) {
        self.is_over = true;
        self.pending.push_back(frame("end", None, &json!({"reason": reason}).to_string()));
    }

    async fn read_or_reset(&mut self, id: &ThreadId) {
        if self.read_transcript(id).await.is_err() {
            self.pending.push_back(frame("reset", None, "{}"));
        }
    }

    /// New events of a transcript, as frames.
    async fn read_transcript(&mut self, id: &ThreadId) -> Result<()> {
        let Some(followed) = self.followed.get_mut(id) else { return Ok(()) };
        loop {
            let (watcher, thread) = (Arc::clone(&self.state.watcher), id.clone());
            let from = followed.position;
            let read =
                move || Ok(transcript::read(&watcher.transcript_path(&thread), from, MAX_FRAME_EVENTS)?);
            let batch = self.state.shared.pool.run(Lane::Quick, read).await?;
            let is_end = batch.events.len() < MAX_FRAME_EVENTS;
            followed.position = batch.next;
            if !batch.events.is_empty() {
                let data = json!({
                    "thread_id": id,
                    "position": position_text(batch.next),
                    "events": batch.events.iter().map(event_value).collect::<Vec<_>>(),
                });
                self.pending.push_back(frame("transcript", None, &data.to_string()));
            }
            if is_end {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip() {
        let position = TranscriptPosition { bytes: 10, lines: 2, last: (5, 7) };
        assert_eq!(parse_position(&position_text(position)).ok(), Some(position));
        for wrong in ["", "1.2.3", "1.2.3.4.5", "a.b.c.d", "1.2.3.-4", "1.2.3.99999999999999999999"] {
            assert_eq!(parse_position(wrong).map_err(|error| error.code), Err(Code::InvalidArgument));
        }
    }
}
