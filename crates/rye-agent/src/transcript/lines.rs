//! From events to lines: pure, so that the same events give the same chain.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use lillux::Digest;
use serde_json::{Value, json};

use super::{CHECKPOINT, Criticality, MOST_LINE, NewEvent, Signer, Vouched, genesis, iso};
use crate::store::Head;
use crate::thread_id::ThreadId;

/// Where a transcript stands: what the next line must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Its length.
    pub bytes: u64,
    /// The last chained event; `None` when there is none yet.
    pub head: Option<Head>,
    /// The largest number of any event.
    pub sequence: u64,
    /// The hash of the last checkpoint's line, or what a chain begins with.
    checkpoint: Digest,
    chain: Digest,
}

impl Tail {
    /// Of a transcript that is empty.
    #[must_use]
    pub fn empty(thread: &ThreadId) -> Self {
        let start = genesis(thread);
        Self { bytes: 0, head: None, sequence: 0, checkpoint: start, chain: start }
    }

    /// Of the transcript at `path`, which is about to be written. A last line that is not whole, which a crash leaves
    /// behind, is taken away: what was in it is in the journal.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn recover(path: &Path, thread: &ThreadId) -> io::Result<Self> {
        let mut tail = Self::empty(thread);
        let file = match fs_err::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(tail),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.by_ref().take(MOST_LINE).read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                break;
            }
            tail.bytes += read as u64;
            let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                // Whoever verifies hears of it; the chain goes on behind it.
                continue;
            };
            let sequence = value.get("sequence").and_then(Value::as_u64).unwrap_or(0);
            tail.sequence = tail.sequence.max(sequence);
            if value.get("event_type").and_then(Value::as_str) == Some(CHECKPOINT) {
                tail.checkpoint = Digest::of(&line);
            } else if value.get("prev").is_some() {
                tail.link(sequence, &line);
            }
        }
        if tail.bytes < length {
            lillux::file::shorten(path, tail.bytes)?;
        }
        Ok(tail)
    }

    fn link(&mut self, sequence: u64, line: &[u8]) {
        self.chain = Digest::of(line);
        self.head = Some(Head { sequence, hash: self.chain });
    }
}

/// The name belongs to the transcript itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events of type `checkpoint` are made by the transcript alone")]
pub struct ReservedName;

/// Lines that are to be appended.
#[derive(Clone, Debug)]
pub struct Lines {
    thread: ThreadId,
    tail: Tail,
    bytes: Vec<u8>,
}

impl Lines {
    /// Behind `tail`.
    #[must_use]
    pub fn new(thread: ThreadId, tail: Tail) -> Self {
        Self { thread, tail, bytes: Vec::new() }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// When it calls itself a checkpoint.
    pub fn event(&mut self, event: &NewEvent) -> Result<(), ReservedName> {
        if event.event_type == CHECKPOINT {
            return Err(ReservedName);
        }
        let mut envelope = json!({
            "thread_id": self.thread.as_str(),
            "event_type": event.event_type,
            "timestamp": iso(event.at_ms),
            "payload": event.payload,
            "criticality": event.criticality.as_str(),
            "sequence": event.sequence,
        });
        if event.criticality == Criticality::Critical {
            envelope["prev"] = Value::from(self.tail.chain.to_hex());
        }
        let line = self.push(&envelope, event.sequence);
        if event.criticality == Criticality::Critical {
            self.tail.link(event.sequence, line.as_bytes());
        }
        Ok(())
    }

    /// Adds a checkpoint: the chain so far, signed.
    pub fn checkpoint(&mut self, turn: u64, at_ms: u64, sequence: u64, signer: &Signer) {
        let (moment, hash, previous) = (iso(at_ms), self.tail.chain.to_hex(), self.tail.checkpoint.to_hex());
        let vouched = Vouched {
            thread: self.thread.as_str(),
            turn,
            byte_offset: self.tail.bytes,
            sequence,
            hash: &hash,
            previous: &previous,
            moment: &moment,
        };
        let signature = signer.key.sign(&vouched.digest()).to_base64();
        let envelope = json!({
            "thread_id": self.thread.as_str(),
            "event_type": CHECKPOINT,
            "timestamp": moment,
            "payload": {
                "turn": turn,
                "byte_offset": self.tail.bytes,
                "hash": hash,
                "sig": signature,
                "fp": signer.fingerprint.as_str(),
                "ts": moment,
            },
            "criticality": Criticality::Critical.as_str(),
            "sequence": sequence,
            "prev": previous,
        });
        let line = self.push(&envelope, sequence);
        self.tail.checkpoint = Digest::of(line.as_bytes());
    }

    fn push(&mut self, envelope: &Value, sequence: u64) -> String {
        let line = envelope.to_string();
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
        self.tail.bytes += line.len() as u64 + 1;
        self.tail.sequence = self.tail.sequence.max(sequence);
        line
    }

    /// The lines since the last time.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Where the transcript stands behind these lines.
    #[must_use]
    pub fn tail(&self) -> &Tail {
        &self.tail
    }
}
