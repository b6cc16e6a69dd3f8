//! Reading transcripts to show them: bad lines are counted and passed over, older envelopes are understood.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value};

use super::{MAX_LINE_BYTES, iso_timestamp};

/// An event as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscriptEvent {
    /// The line, counted from 1.
    pub line: u64,
    /// `cognition_out`, `tool_call_start`, ….
    pub event_type: String,
    /// When, in UTC; empty when the line does not say.
    pub timestamp: String,
    /// What.
    pub payload: Value,
    /// Whether it was allowed to be lost.
    pub is_droppable: bool,
    /// Its number; older transcripts have none.
    pub sequence: Option<u64>,
    /// The line as it stands there.
    pub raw: Value,
}

/// A place in a transcript, behind a whole line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranscriptPosition {
    /// Bytes before it.
    pub bytes: u64,
    /// Lines before it.
    pub lines: u64,
    /// Where the last of them begins, and its number.
    pub last: (u64, u64),
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranscriptBatch {
    /// Events.
    pub events: Vec<TranscriptEvent>,
    /// Lines that are not events.
    pub bad_lines: Vec<u64>,
    /// Where to continue.
    pub next: TranscriptPosition,
}

/// The events from a place on, at most `most`. A last line that is not whole is left for the next time; a transcript that
/// is not there has none.
///
/// # Errors
/// When the system refuses.
pub fn read(path: &Path, from: TranscriptPosition, max_events: usize) -> io::Result<TranscriptBatch> {
    let mut batch = TranscriptBatch { next: from, ..TranscriptBatch::default() };
    let Some(mut file) = super::open(path)? else { return Ok(batch) };
    // A process that resumes a thread removes unsigned lines: reading then starts over, past what was read.
    let is_moved = from.lines > 0 && sequence_at(&mut file, from.last.0)? != Some(from.last.1);
    let last_sequence = if is_moved { from.last.1 } else { 0 };
    if is_moved {
        batch.next = TranscriptPosition::default();
    }
    file.seek(SeekFrom::Start(batch.next.bytes))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    while batch.events.len() < max_events {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            break;
        }
        let value = serde_json::from_slice::<Value>(&line).ok();
        batch.next.last = (batch.next.bytes, value.as_ref().map_or(0, sequence_of));
        batch.next.bytes += read as u64;
        batch.next.lines += 1;
        match value.and_then(|value| parse_event(value, batch.next.lines)) {
            Some(event) if event.sequence.is_some_and(|sequence| sequence <= last_sequence) => {}
            Some(event) => batch.events.push(event),
            None => batch.bad_lines.push(batch.next.lines),
        }
    }
    Ok(batch)
}

/// The text that had arrived of an answer when its process died: the pieces behind the last other event. Empty where
/// there is no transcript, or nothing had been written.
pub(crate) fn unfinished_answer(path: &Path) -> io::Result<String> {
    let bytes = super::read_bytes(path)?;
    let lines = bytes.split(|byte| *byte == b'\n').rev();
    let events = lines.filter_map(|line| parse_event(serde_json::from_slice(line).ok()?, 0));
    let pieces = events.take_while(|event| event.event_type == "cognition_out_delta");
    let texts: Vec<String> =
        pieces.filter_map(|event| Some(event.payload.get("text")?.as_str()?.to_owned())).collect();
    Ok(texts.into_iter().rev().collect())
}

fn sequence_of(line: &Value) -> u64 {
    line.get("sequence").and_then(Value::as_u64).unwrap_or(0)
}

/// The number of the line that begins here, if one does.
fn sequence_at(file: &mut std::fs::File, start: u64) -> io::Result<Option<u64>> {
    file.seek(SeekFrom::Start(start))?;
    let mut line = Vec::new();
    BufReader::new(file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice::<Value>(&line).ok().as_ref().map(sequence_of))
}

/// Understands an envelope, older ones too: numbers for times, `ts` and `type`, payload among the rest.
fn parse_event(raw: Value, line: u64) -> Option<TranscriptEvent> {
    let object = raw.as_object()?;
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    let event_type = match text("event_type").or_else(|| text("type"))? {
        "user_message" => "cognition_in",
        "assistant_text" => "cognition_out",
        "token_delta" => "cognition_out_delta",
        other => other,
    }
    .to_owned();
    let timestamp = match object.get("timestamp").or_else(|| object.get("ts")) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(seconds)) => seconds.as_f64().map(format_seconds).unwrap_or_default(),
        Some(_) | None => String::new(),
    };
    let payload = object.get("payload").cloned().unwrap_or_else(|| {
        let known = ["ts", "timestamp", "type", "event_type", "thread_id", "directive"];
        let rest = object.iter().filter(|(name, _)| !known.contains(&name.as_str()));
        Value::Object(rest.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
    });
    let is_droppable = text("criticality") == Some("droppable") || event_type == "cognition_out_delta";
    let sequence = object.get("sequence").and_then(Value::as_u64);
    Some(TranscriptEvent { line, event_type, timestamp, payload, is_droppable, sequence, raw })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time to be shown: what is not a time becomes one of the ends"
)]
fn format_seconds(seconds: f64) -> String {
    iso_timestamp((seconds * 1000.0).round() as u64)
}
