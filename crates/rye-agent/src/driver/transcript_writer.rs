//! The files of a thread: its transcript and `state.json`. Both follow from the journal.
//!
//! Events get their numbers here. A journal record says with which number its events begin, so that lines a crash kept
//! from being written can be written again, the same to the letter.

use std::io;
use std::path::{Path, PathBuf};

use lillux::file;
use serde::Serialize;
use serde_json::{Map, Value};

use super::DriverError;
use crate::capability::Capabilities;
use crate::core_event::{CoreEvent, core_event};
use crate::machine::{Effect, ThreadState};
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{JournalRecord, TranscriptHead, TranscriptPart};
use crate::thread_id::ThreadId;
use crate::transcript::{
    self, Criticality, NewEvent, TailCut, TranscriptLines, TranscriptSigner, TranscriptTail,
};

/// The transcript of a thread, as far as it was written.
#[derive(Debug)]
pub struct TranscriptWriter {
    folder: PathBuf,
    thread: ThreadId,
    lines: TranscriptLines,
    /// Lines whose events are durable, and which are not in the file yet.
    ready: Vec<u8>,
    sequence: u64,
    /// The turn of the last checkpoint.
    sealed_turn: u64,
    /// Words that wait to be written, with the number of their first piece.
    pending_text: Option<(String, u64)>,
    /// The number behind the last piece that was written, until one is marked as the last.
    next_chunk: Option<u64>,
    written_ms: u64,
    /// How long the file is, as far as this writer knows.
    file_bytes: u64,
    /// What the store does not have yet, where it keeps transcripts.
    unstored: Option<TranscriptPart>,
    /// Whether payloads are checked against the schemas of core events.
    pub(super) checks_payloads: bool,
}

impl TranscriptWriter {
    /// Of a new thread: its folder is made.
    ///
    /// # Errors
    /// When that fails.
    pub fn create(threads: &Path, thread: &ThreadId) -> io::Result<Self> {
        let folder = file::create_folders_beneath(threads, Path::new(thread.as_str()), true)?;
        Ok(Self::from_tail(folder, thread, TranscriptTail::empty(thread)))
    }

    /// Of a thread that was there before.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn reopen(threads: &Path, thread: &ThreadId) -> io::Result<Self> {
        let (writer, cut) = Self::open(threads, thread)?;
        writer.apply_cut(cut.as_ref())?;
        Ok(writer)
    }

    /// Of a thread that was there before, and what has to be taken away from the end of its transcript before it writes.
    pub(super) fn open(threads: &Path, thread: &ThreadId) -> io::Result<(Self, Option<TailCut>)> {
        let folder = file::create_folders_beneath(threads, Path::new(thread.as_str()), true)?;
        let (tail, cut) = TranscriptTail::read(&folder.join(transcript::TRANSCRIPT_FILE), thread)?;
        Ok((Self::from_tail(folder, thread, tail), cut))
    }

    /// Takes away what [`TranscriptWriter::open`] named.
    pub(super) fn apply_cut(&self, cut: Option<&TailCut>) -> io::Result<()> {
        cut.map_or(Ok(()), |cut| cut.apply(&self.folder.join(transcript::TRANSCRIPT_FILE)))
    }

    /// Of a thread whose lines are only computed: nothing of it may be written.
    pub(super) fn without_file(thread: &ThreadId) -> Self {
        Self::from_tail(PathBuf::new(), thread, TranscriptTail::empty(thread))
    }

    fn from_tail(folder: PathBuf, thread: &ThreadId, tail: TranscriptTail) -> Self {
        Self {
            folder,
            thread: thread.clone(),
            sequence: tail.sequence + 1,
            file_bytes: tail.byte_count(),
            lines: TranscriptLines::new(thread.clone(), tail),
            ready: Vec::new(),
            sealed_turn: 0,
            pending_text: None,
            next_chunk: None,
            written_ms: 0,
            unstored: None,
            checks_payloads: true,
        }
    }

    /// Has commits carry what the store lacks: it has the transcript as far as it is `kept`, and the file may have more or
    /// something else behind that.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn keep_in_store(&mut self, kept: &[u8]) -> io::Result<()> {
        let path = self.folder.join(transcript::TRANSCRIPT_FILE);
        let written = transcript::read_bytes(&path)?;
        let same = kept.iter().zip(&written).take_while(|(kept, written)| kept == written).count();
        let bytes = written.get(same..).unwrap_or_default().to_vec();
        self.unstored = Some(TranscriptPart { from: same as u64, bytes });
        Ok(())
    }

    /// As [`TranscriptWriter::keep_in_store`], of a transcript that the store has nothing of and that has no line yet.
    pub(super) fn keep_new_in_store(&mut self) {
        self.unstored.get_or_insert_default();
    }

    /// What a commit carries: all that the store lacks, and what was pushed since.
    pub(super) fn unstored_part(&self) -> Option<TranscriptPart> {
        let mut part = self.unstored.clone()?;
        part.bytes.extend_from_slice(self.lines.pending());
        Some(part)
    }

    /// The store has what is released now.
    pub(super) fn mark_stored(&mut self) {
        if let Some(part) = &mut self.unstored {
            part.from += part.bytes.len() as u64;
            part.bytes.clear();
        }
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// The last event of the chain.
    pub(super) fn head(&self) -> Option<TranscriptHead> {
        self.lines.tail().head
    }

    /// Adds an event.
    ///
    /// # Errors
    /// When it is a core event and its payload does not fit its schema; nothing is added then.
    pub(super) fn push(
        &mut self,
        event_type: &str,
        payload: Value,
        at_ms: u64,
        criticality: Criticality,
    ) -> Result<(), DriverError> {
        if let Some(schema) = core_event(event_type).filter(|_| self.checks_payloads) {
            schema.check(&payload).map_err(DriverError::InvalidEvent)?;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.push_line(event_type, payload, at_ms, criticality, sequence);
        Ok(())
    }

    fn push_line(
        &mut self,
        event_type: &str,
        payload: Value,
        at_ms: u64,
        criticality: Criticality,
        sequence: u64,
    ) {
        let event = NewEvent { event_type, at_ms, payload, criticality, sequence };
        // Only the transcript's own name is refused, and the machine never says it.
        let _ = self.lines.event(&event);
    }

    /// The events of a record that the file does not have yet.
    pub(super) fn replay_record(
        &mut self,
        state: &ThreadState,
        record: &JournalRecord,
        effects: Vec<Effect>,
    ) {
        let events = &state.spec.template.config.events;
        let mut sequence = record.sequence;
        for effect in effects {
            let (event_type, payload, criticality) = match effect {
                Effect::Emit { event_type, payload } => {
                    let criticality = events.criticality(&event_type);
                    (event_type, payload, criticality)
                }
                Effect::EmitAs { event_type, payload, criticality } => (event_type, payload, criticality),
                _ => continue,
            };
            let is_written = self.head().is_some_and(|head| head.sequence >= sequence);
            if criticality == Criticality::Critical && !is_written {
                self.push_line(&event_type, payload, record.at_ms, Criticality::Critical, sequence);
            }
            sequence += 1;
        }
        self.sequence = self.sequence.max(sequence);
    }

    /// Signs the chain when a turn is over, and when the thread stops.
    pub(super) fn seal(&mut self, turn: u64, is_end: bool, now_ms: u64, signer: &TranscriptSigner) {
        if is_end || turn > self.sealed_turn {
            self.sealed_turn = turn;
            let sequence = self.sequence;
            self.sequence += 1;
            self.lines.checkpoint(turn, now_ms, sequence, signer);
        }
    }

    /// Words on their way: gathered, and written now and then. Whether there is a line to release now.
    pub(super) fn push_delta(&mut self, text: &str, chunk: u64, now_ms: u64, throttle_ms: u64) -> bool {
        match &mut self.pending_text {
            Some((pending, _)) => pending.push_str(text),
            None => self.pending_text = Some((text.to_owned(), chunk)),
        }
        let is_due = now_ms.abs_diff(self.written_ms) >= throttle_ms;
        if is_due {
            self.flush_deltas(now_ms, false);
        }
        is_due
    }

    pub(super) fn flush_deltas(&mut self, now_ms: u64, is_final: bool) {
        // The last piece may have been written before it was known to be the last.
        let unfinished = self.next_chunk.filter(|_| is_final).map(|chunk| (String::new(), chunk));
        if let Some((text, chunk)) = self.pending_text.take().or(unfinished) {
            self.written_ms = now_ms;
            self.next_chunk = (!is_final).then_some(chunk + 1);
            let event = CoreEvent::CognitionOutDelta { text, chunk_index: chunk, is_final };
            let (event_type, payload) = event.into_payload();
            let sequence = self.sequence;
            self.sequence += 1;
            self.push_line(event_type, payload, now_ms, Criticality::Droppable, sequence);
        }
    }

    /// What was pushed is durable now: it may be written. Gives the new lines.
    pub(super) fn release(&mut self) -> &[u8] {
        let from = self.ready.len();
        let mut lines = self.lines.drain();
        if let Some(part) = &mut self.unstored {
            part.bytes.extend_from_slice(&lines);
        }
        self.ready.append(&mut lines);
        self.ready.get(from..).unwrap_or_default()
    }

    /// Whether the file is behind.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Brings the file up to what was released, unless another process has written to it: that one took the thread over,
    /// and has these lines from the journal.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.ready.is_empty() {
            return Ok(());
        }
        if self.is_taken_over() {
            // The other process writes these lines from the journal.
            self.discard();
            return Ok(());
        }
        transcript::append(&self.folder.join(transcript::TRANSCRIPT_FILE), &self.ready)?;
        self.file_bytes += self.ready.len() as u64;
        self.ready.clear();
        Ok(())
    }

    /// Whether another process has written to the transcript since: it has taken the thread over.
    fn is_taken_over(&self) -> bool {
        let path = self.folder.join(transcript::TRANSCRIPT_FILE);
        fs_err::metadata(path).map_or(0, |metadata| metadata.len()) != self.file_bytes
    }

    /// Forgets what is not in the file yet: it did not happen, or another process writes it.
    pub(super) fn discard(&mut self) {
        self.ready.clear();
        let _ = self.lines.drain();
        self.pending_text = None;
        self.next_chunk = None;
    }

    /// Writes `state.json`, unless another process has taken the thread over: that one writes it.
    pub(super) fn write_state(&self, state: &ThreadState, now_ms: u64) -> io::Result<()> {
        if self.is_taken_over() {
            return Ok(());
        }
        let outcome = state.outcome();
        let file = StateFile {
            version: "1.0.0",
            thread_id: &self.thread,
            directive: &state.spec.template.directive,
            saved_at: &transcript::iso_timestamp(now_ms),
            parent_thread_id: state.spec.instance.parent.as_ref(),
            inputs: &state.spec.instance.inputs,
            turn_number: state.cost.turns,
            cost: state.cost.to_value(),
            limits: state.limits.to_value(),
            status: state.status(),
            waits_for: state.waits_for(),
            suspend_reason: outcome.and_then(|outcome| outcome.reason),
            suspend_metadata: outcome.map(|outcome| &outcome.detail),
            required_caps: &state.spec.instance.capabilities,
            messages: state.messages.len(),
            model: &state.spec.template.model,
        };
        let mut bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
        bytes.push(b'\n');
        file::replace_unsynced(&self.folder.join("state.json"), &bytes)
    }
}

/// `state.json`, in the order of its fields.
#[derive(Serialize)]
struct StateFile<'a> {
    version: &'static str,
    thread_id: &'a ThreadId,
    directive: &'a str,
    saved_at: &'a str,
    parent_thread_id: Option<&'a ThreadId>,
    inputs: &'a Map<String, Value>,
    turn_number: u64,
    cost: Value,
    limits: Value,
    status: ThreadStatus,
    waits_for: &'static str,
    suspend_reason: Option<SuspendReason>,
    suspend_metadata: Option<&'a Value>,
    required_caps: &'a Capabilities,
    messages: usize,
    model: &'a str,
}

impl Drop for TranscriptWriter {
    /// A thread that is dropped in the middle leaves a file that is not behind its journal.
    fn drop(&mut self) {
        let _ = self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_writer_leaves_transcript_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id");
        let mut late = TranscriptWriter::create(folder.path(), &id).expect("a writer");
        let push = |writer: &mut TranscriptWriter| {
            let payload = serde_json::json!({"note": 1});
            writer.push("a_note", payload, 1, Criticality::Critical).expect("pushed");
            writer.release();
        };
        push(&mut late);
        // Another process takes the thread over, and has the line from the journal.
        let mut next = TranscriptWriter::reopen(folder.path(), &id).expect("a writer");
        push(&mut next);
        next.write().expect("written");
        late.write().expect("skipped");
        drop(late);
        push(&mut next);
        next.write().expect("written");
        let path = transcript::path(folder.path(), &id);
        let report = transcript::verify(&path, &id, next.head(), &|_| None).expect("verified");
        assert_eq!((report.events, report.problems), (2, Vec::new()));
    }

    #[test]
    fn last_piece_of_an_answer_is_final() {
        let folder = tempfile::tempdir().expect("a folder");
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id");
        let finals = |pieces: &[(&str, u64)], throttle_ms: u64| {
            let mut writer = TranscriptWriter::create(folder.path(), &id).expect("a writer");
            for (number, (text, at_ms)) in pieces.iter().enumerate() {
                writer.push_delta(text, number as u64, *at_ms, throttle_ms);
            }
            writer.flush_deltas(9000, true);
            writer.release();
            let lines = String::from_utf8(std::mem::take(&mut writer.ready)).expect("text");
            let payload = |line: &str| -> Value {
                serde_json::from_str::<Value>(line).expect("JSON")["payload"].clone()
            };
            lines.lines().map(payload).collect::<Vec<_>>()
        };
        let chunk = |text: &str, index: u64, is_final: bool| serde_json::json!({"text": text, "chunk_index": index, "is_final": is_final});
        // The one piece is written as it comes, and the end is marked behind it.
        assert_eq!(finals(&[("Hello", 1000)], 100), [chunk("Hello", 0, false), chunk("", 1, true)]);
        assert_eq!(finals(&[("Hel", 1), ("lo", 2)], 5000), [chunk("Hello", 0, true)]);
        assert_eq!(finals(&[], 100), Vec::<Value>::new());
    }

    #[test]
    fn payload_that_misses_its_schema_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id");
        let mut writer = TranscriptWriter::create(folder.path(), &id).expect("a writer");
        let payload = serde_json::json!({"call_id": "a", "duration_ms": "long"});
        let refused = writer.push("tool_call_result", payload.clone(), 1, Criticality::Critical);
        let message = refused.expect_err("refused").to_string();
        assert!(message.contains("`duration_ms` is not integer"), "{message}");
        assert!(writer.release().is_empty());
        // What threads of older releases wrote had no schema.
        writer.checks_payloads = false;
        writer.push("tool_call_result", payload, 1, Criticality::Critical).expect("pushed");
        assert!(!writer.release().is_empty());
    }
}
