//! From events to lines: pure, so that the same events give the same chain.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use lillux::Digest;
use serde::Serialize;
use serde_json::Value;

use super::{
    CHECKPOINT, CheckpointClaim, Criticality, MAX_LINE_BYTES, NewEvent, TranscriptSigner, UnchainedDigest,
    genesis, iso_timestamp, open,
};
use crate::core_event::CoreEvent;
use crate::store::TranscriptHead;
use crate::thread_id::ThreadId;

/// Where a transcript stands: what the next line must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptTail {
    /// Its length.
    pub bytes: u64,
    /// The last chained event; `None` when there is none yet.
    pub head: Option<TranscriptHead>,
    /// The largest number of any event.
    pub sequence: u64,
    /// The hash of the last checkpoint's line, or what a chain begins with.
    checkpoint: Digest,
    chain: Digest,
    /// What is outside the chain since the last checkpoint.
    unchained: UnchainedDigest,
}

impl TranscriptTail {
    /// Of a transcript that is empty.
    #[must_use]
    pub fn empty(thread: &ThreadId) -> Self {
        let start = genesis(thread);
        Self {
            bytes: 0,
            head: None,
            sequence: 0,
            checkpoint: start,
            chain: start,
            unchained: UnchainedDigest::default(),
        }
    }

    /// Of the transcript at `path`, whose end is brought into order before it is written, as [`TailCut`] says.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn recover(path: &Path, thread: &ThreadId) -> io::Result<Self> {
        let (tail, cut) = Self::read(path, thread)?;
        cut.map(|cut| cut.apply(path)).transpose()?;
        Ok(tail)
    }

    /// Of the transcript at `path` as it is about to be written, and what has to be taken away from its end before.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn read(path: &Path, thread: &ThreadId) -> io::Result<(Self, Option<TailCut>)> {
        let mut tail = Self::empty(thread);
        let Some(file) = open(path)? else { return Ok((tail, None)) };
        let length = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        // Behind the last checkpoint: where that is, and what of it stays.
        let (mut sealed, mut retained) = (0, Vec::new());
        loop {
            line.clear();
            let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                break;
            }
            tail.bytes += read as u64;
            retained.extend_from_slice(&line);
            retained.push(b'\n');
            let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                // Verification reports it; the chain continues behind it.
                continue;
            };
            let sequence = value.get("sequence").and_then(Value::as_u64).unwrap_or(0);
            if value.get("event_type").and_then(Value::as_str) == Some(CHECKPOINT) {
                tail.sequence = tail.sequence.max(sequence);
                tail.checkpoint = Digest::of(&line);
                tail.unchained = UnchainedDigest::default();
                sealed = tail.bytes;
                retained.clear();
            } else if value.get("prev").is_some() {
                tail.sequence = tail.sequence.max(sequence);
                tail.link(sequence, Digest::of(&line));
            } else {
                tail.unchained.add(Digest::of(&line));
                retained.truncate(retained.len() - read);
            }
        }
        if std::mem::take(&mut tail.unchained) != UnchainedDigest::default() {
            tail.bytes = sealed + retained.len() as u64;
            return Ok((tail, Some(TailCut { keep: sealed, retained })));
        }
        let cut = (tail.bytes < length).then_some(TailCut { keep: tail.bytes, retained: Vec::new() });
        Ok((tail, cut))
    }

    /// How long the transcript is.
    pub(crate) fn byte_count(&self) -> u64 {
        self.bytes
    }

    fn link(&mut self, sequence: u64, hash: Digest) {
        self.chain = hash;
        self.head = Some(TranscriptHead { sequence, hash });
    }

    /// Writes a line behind `bytes`; gives its hash.
    fn append<P: Serialize>(&mut self, bytes: &mut Vec<u8>, envelope: &Envelope<'_, P>) -> Digest {
        let from = bytes.len();
        if serde_json::to_writer(&mut *bytes, envelope).is_err() {
            // Never seen: text, numbers and JSON can be written as JSON. Half a line would be worse than none.
            bytes.truncate(from);
        }
        let hash = Digest::of(bytes.get(from..).unwrap_or_default());
        bytes.push(b'\n');
        self.bytes += (bytes.len() - from) as u64;
        self.sequence = self.sequence.max(envelope.sequence);
        hash
    }
}

/// What a process takes away from the end of a transcript before it writes to it: a last line that is not whole, which a
/// crash leaves behind (what was in it is in the journal), and lines outside the chain that no checkpoint covers: who wrote
/// them is no longer known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailCut {
    /// How much of the file stays as it is.
    keep: u64,
    /// The lines of the chain behind that.
    retained: Vec<u8>,
}

impl TailCut {
    /// Cuts the transcript at `path`.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn apply(&self, path: &Path) -> io::Result<()> {
        lillux::file::truncate(path, self.keep)?;
        match self.retained.as_slice() {
            [] => Ok(()),
            retained => lillux::file::append(path, retained),
        }
    }
}

/// A line, in the order of its fields.
#[derive(Serialize)]
struct Envelope<'a, P> {
    thread_id: &'a str,
    event_type: &'a str,
    timestamp: &'a str,
    payload: &'a P,
    criticality: Criticality,
    sequence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev: Option<&'a str>,
}

/// The name belongs to the transcript itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events of type `checkpoint` are made by the transcript alone")]
pub struct ReservedEventName;

/// Lines that are to be appended.
#[derive(Clone, Debug)]
pub struct TranscriptLines {
    thread: ThreadId,
    tail: TranscriptTail,
    bytes: Vec<u8>,
}

impl TranscriptLines {
    /// Behind `tail`.
    #[must_use]
    pub fn new(thread: ThreadId, tail: TranscriptTail) -> Self {
        Self { thread, tail, bytes: Vec::new() }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// When it calls itself a checkpoint.
    pub fn event(&mut self, event: &NewEvent<'_>) -> Result<(), ReservedEventName> {
        if event.event_type == CHECKPOINT {
            return Err(ReservedEventName);
        }
        let is_chained = event.criticality == Criticality::Critical;
        let previous = is_chained.then(|| self.tail.chain.to_hex());
        let timestamp = iso_timestamp(event.at_ms);
        let hash = self.tail.append(
            &mut self.bytes,
            &Envelope {
                thread_id: self.thread.as_str(),
                event_type: event.event_type,
                timestamp: &timestamp,
                payload: &event.payload,
                criticality: event.criticality,
                sequence: event.sequence,
                prev: previous.as_deref(),
            },
        );
        match is_chained {
            true => self.tail.link(event.sequence, hash),
            false => self.tail.unchained.add(hash),
        }
        Ok(())
    }

    /// Adds a checkpoint: the chain so far, signed.
    pub fn checkpoint(&mut self, turn: u64, at_ms: u64, sequence: u64, signer: &TranscriptSigner) {
        let (timestamp, hash, previous) =
            (iso_timestamp(at_ms), self.tail.chain.to_hex(), self.tail.checkpoint.to_hex());
        let byte_offset = self.tail.bytes;
        let unchained = std::mem::take(&mut self.tail.unchained).to_hex();
        let claim = CheckpointClaim {
            thread: self.thread.as_str(),
            turn,
            byte_offset,
            sequence,
            hash: &hash,
            previous: &previous,
            timestamp: &timestamp,
            unchained: unchained.as_deref(),
        };
        let signature = signer.key.sign(&claim.digest()).to_base64();
        let (_, payload) = CoreEvent::Checkpoint {
            turn,
            byte_offset,
            hash,
            sig: signature,
            fp: signer.fingerprint.as_str().to_owned(),
            ts: timestamp.clone(),
            loose: unchained,
        }
        .into_payload();
        let envelope = Envelope {
            thread_id: self.thread.as_str(),
            event_type: CHECKPOINT,
            timestamp: &timestamp,
            payload: &payload,
            criticality: Criticality::Critical,
            sequence,
            prev: Some(&previous),
        };
        self.tail.checkpoint = self.tail.append(&mut self.bytes, &envelope);
    }

    /// The lines that were not drained yet.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes
    }

    /// The lines since the last time.
    #[must_use]
    pub fn drain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Where the transcript stands behind these lines.
    #[must_use]
    pub fn tail(&self) -> &TranscriptTail {
        &self.tail
    }
}
