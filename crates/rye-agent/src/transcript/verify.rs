//! Whether a transcript is what its thread wrote. It reads only.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use lillux::{Digest, Fingerprint, PublicKey, Signature};
use serde_json::Value;

use super::{CHECKPOINT, CheckpointClaim, MAX_LINE_BYTES, UnchainedDigest, genesis, open};
use crate::store::TranscriptHead;
use crate::thread_id::ThreadId;

/// Problems beyond these are not counted.
const MAX_PROBLEMS: usize = 100;

/// How a transcript stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptStatus {
    /// Whole, and signed to its last event.
    Valid,
    /// Changed.
    Tampered,
    /// Its end is missing.
    #[serde(rename = "cut")]
    Truncated,
    /// Whole, and not signed to its last event.
    UnsignedTail,
    /// Whole, and no checkpoint of a known key.
    Unsigned,
}

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TranscriptProblem {
    /// The line, counted from 1.
    pub line: u64,
    /// The event's number, if it has one.
    pub sequence: Option<u64>,
    /// What does not fit.
    pub what: String,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TranscriptReport {
    /// How it stands.
    pub status: TranscriptStatus,
    /// Events, checkpoints apart.
    pub events: u64,
    /// Of these, those outside the chain.
    pub droppable: u64,
    /// Checkpoints whose signature holds.
    pub checkpoints: u64,
    /// The number of the last event that a signature covers.
    pub signed_until: Option<u64>,
    /// Whether a checkpoint, of whichever key, stands behind the last event of the chain.
    #[serde(skip)]
    pub is_head_sealed: bool,
    /// The first line behind the last checkpoint, of whichever key.
    #[serde(skip)]
    pub unsealed_line: Option<u64>,
    /// The first thing that neither a crash nor an unknown key explains.
    #[serde(skip)]
    pub tampering: Option<TranscriptProblem>,
    /// The last event of the chain.
    #[serde(skip)]
    pub head: Option<TranscriptHead>,
    /// What does not fit.
    pub problems: Vec<TranscriptProblem>,
}

struct TranscriptVerifier<'a> {
    thread: &'a ThreadId,
    keys: &'a dyn Fn(&Fingerprint) -> Option<PublicKey>,
    report: TranscriptReport,
    line: u64,
    bytes: u64,
    chain: Digest,
    head: Option<u64>,
    checkpoint: Digest,
    sequence: Option<u64>,
    /// Lines outside the chain since the last checkpoint.
    unchained: UnchainedDigest,
}

/// Verifies the transcript of `thread` at `path`: its chain, its checkpoints under the keys that `keys` knows, and its end
/// against the head that the store has.
///
/// # Errors
/// When it cannot be read.
pub fn verify(
    path: &Path,
    thread: &ThreadId,
    expected: Option<TranscriptHead>,
    keys: &dyn Fn(&Fingerprint) -> Option<PublicKey>,
) -> io::Result<TranscriptReport> {
    let start = genesis(thread);
    let report = TranscriptReport {
        status: TranscriptStatus::Unsigned,
        events: 0,
        droppable: 0,
        checkpoints: 0,
        signed_until: None,
        is_head_sealed: false,
        unsealed_line: None,
        tampering: None,
        head: None,
        problems: Vec::new(),
    };
    let mut verifier = TranscriptVerifier {
        thread,
        keys,
        report,
        line: 0,
        bytes: 0,
        chain: start,
        head: None,
        checkpoint: start,
        sequence: None,
        unchained: UnchainedDigest::default(),
    };
    let is_torn = match open(path)? {
        Some(file) => verifier.read(&mut BufReader::new(file))?,
        None => false,
    };
    Ok(verifier.finish(expected, is_torn))
}

impl TranscriptVerifier<'_> {
    /// Reads all lines; whether the last one is not whole.
    fn read(&mut self, source: &mut impl BufRead) -> io::Result<bool> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = source.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(false);
            }
            self.line += 1;
            if line.pop() != Some(b'\n') {
                return Ok(true);
            }
            self.check_line(&line);
            self.bytes += read as u64;
        }
    }

    fn add_tampering(&mut self, sequence: Option<u64>, what: impl Into<String>) {
        let what = what.into();
        let problem = || TranscriptProblem { line: self.line, sequence, what: what.clone() };
        self.report.tampering.get_or_insert_with(problem);
        self.add_problem(sequence, what);
    }

    fn add_problem(&mut self, sequence: Option<u64>, what: impl Into<String>) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(TranscriptProblem { line: self.line, sequence, what: what.into() });
        }
    }

    fn check_line(&mut self, line: &[u8]) {
        self.report.unsealed_line.get_or_insert(self.line);
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return self.add_tampering(None, "it is not JSON");
        };
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let sequence = value.get("sequence").and_then(Value::as_u64);
        if text("thread_id") != Some(self.thread.as_str()) {
            self.add_tampering(sequence, "it is another thread's");
        }
        match sequence {
            None => self.add_tampering(None, "it has no number"),
            Some(number) if self.sequence.is_some_and(|last| number <= last) => {
                self.add_tampering(sequence, "its number does not follow the one before");
            }
            Some(_) => {}
        }
        self.sequence = self.sequence.max(sequence);
        let previous = text("prev");
        match (text("event_type"), text("criticality")) {
            (Some(CHECKPOINT), _) => self.check_checkpoint(&value, line, sequence.unwrap_or_default()),
            (_, Some("critical")) => {
                if previous != Some(self.chain.to_hex().as_str()) {
                    self.add_tampering(
                        sequence,
                        "it does not follow the event before: something was changed, added or removed",
                    );
                }
                self.report.events += 1;
                self.chain = Digest::of(line);
                self.head = sequence;
                self.report.is_head_sealed = false;
            }
            (_, Some("droppable")) => {
                self.report.events += 1;
                self.report.droppable += 1;
                self.unchained.add(Digest::of(line));
            }
            (_, _) => self.add_tampering(sequence, "it is neither critical nor droppable"),
        }
    }

    fn check_checkpoint(&mut self, value: &Value, line: &[u8], sequence: u64) {
        let payload = &value["payload"];
        let text = |name: &str| payload.get(name).and_then(Value::as_str).unwrap_or_default();
        let number = |name: &str| payload.get(name).and_then(Value::as_u64).unwrap_or(u64::MAX);
        let (chain, checkpoint) = (self.chain.to_hex(), self.checkpoint.to_hex());
        let previous = value.get("prev").and_then(Value::as_str).unwrap_or_default();
        let mut is_valid = true;
        if previous != checkpoint {
            self.add_tampering(Some(sequence), "a checkpoint before it was removed, added or changed");
            is_valid = false;
        }
        if text("hash") != chain {
            self.add_tampering(Some(sequence), "it signs other events than those before it");
            is_valid = false;
        }
        if number("byte_offset") != self.bytes {
            self.add_tampering(Some(sequence), "lines before it were added or removed");
            is_valid = false;
        }
        let unchained = std::mem::take(&mut self.unchained).to_hex();
        // Older ones say nothing of such lines, and vouch for their length alone.
        let recorded = payload.get("loose").and_then(Value::as_str);
        if recorded.is_some() && recorded != unchained.as_deref() {
            self.add_tampering(
                Some(sequence),
                "lines outside the chain before it were added, changed or removed",
            );
            is_valid = false;
        }
        let claim = CheckpointClaim {
            thread: self.thread.as_str(),
            turn: number("turn"),
            byte_offset: number("byte_offset"),
            sequence,
            hash: text("hash"),
            previous,
            timestamp: text("ts"),
            unchained: recorded,
        };
        self.checkpoint = Digest::of(line);
        let has_new_events = !std::mem::replace(&mut self.report.is_head_sealed, true);
        let key = text("fp").parse::<Fingerprint>().ok().and_then(|fingerprint| (self.keys)(&fingerprint));
        // One of a key that is not known here vouches for nothing that was added behind another one, nor for itself.
        if key.is_some() || has_new_events {
            self.report.unsealed_line = None;
        } else {
            self.report.unsealed_line.get_or_insert(self.line);
        }
        let Some(key) = key else {
            return self.add_problem(Some(sequence), "it is signed with a key that is not known here");
        };
        let signature = Signature::from_base64(text("sig"));
        if !signature.is_some_and(|signature| key.verify(&claim.digest(), &signature)) {
            return self.add_tampering(Some(sequence), "its signature is invalid");
        }
        if is_valid {
            self.report.checkpoints += 1;
            self.report.signed_until = self.head;
        }
    }

    fn finish(mut self, expected: Option<TranscriptHead>, is_torn: bool) -> TranscriptReport {
        self.report.head = self.head.map(|sequence| TranscriptHead { sequence, hash: self.chain });
        let mut is_cut = is_torn;
        if is_torn {
            self.add_problem(None, "the last line is not whole");
        }
        if let Some(expected) = expected {
            let (found, sequence) = (self.head.unwrap_or(0), expected.sequence);
            if found < sequence {
                is_cut = true;
                self.add_problem(Some(sequence), "the store knows of later events than the last one here");
            } else if found > sequence {
                self.add_tampering(Some(found), "the store does not know of the last events here");
            } else if self.chain != expected.hash {
                self.add_tampering(Some(found), "the last event is not the one the store knows");
            }
        }
        self.report.status = if self.report.tampering.is_some() {
            TranscriptStatus::Tampered
        } else if is_cut {
            TranscriptStatus::Truncated
        } else if self.report.checkpoints == 0 {
            TranscriptStatus::Unsigned
        } else if self.report.signed_until != self.head || self.unchained != UnchainedDigest::default() {
            TranscriptStatus::UnsignedTail
        } else {
            TranscriptStatus::Valid
        };
        self.report
    }
}
