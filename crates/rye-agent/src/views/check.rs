//! Whether a thread's journal and transcript are what it wrote, and who signed them.

use lillux::{Fingerprint, PublicKey};
use rye_engine::Engine;
use rye_item::Space;
use rye_item::text::one_line;
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::status::ThreadStatus;
use crate::store::{ThreadRow, ThreadStoreError};
use crate::transcript::{self, TranscriptPosition, TranscriptReport, TranscriptStatus};

/// How often a thread is looked at while it runs, and how long to wait in between.
const MAX_ATTEMPTS: u32 = 20;
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(25);
/// Signers of one transcript that are named.
const MAX_SIGNERS: usize = 16;

/// What was found of one thread.
#[derive(Clone, Debug)]
pub struct ThreadCheck {
    /// The thread.
    pub id: String,
    /// Its directive; empty where the registry does not know the thread.
    pub directive: String,
    /// `valid`, `rebuilt` from the journal, `tampered`, …; `forged` when the store's own record is not what was written, `older` when the thread had come
    /// further, `unreadable` when there is no file.
    pub state: &'static str,
    /// Whether it is worse than its status explains.
    pub is_bad: bool,
    /// What was found in the transcript, if it can be read.
    pub report: Option<TranscriptReport>,
    /// What is wrong with the store's record.
    pub problem: Option<String>,
}

impl ThreadCheck {
    /// As JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "thread_id": self.id,
            "directive": self.directive,
            "state": self.state,
            "is_bad": self.is_bad,
            "problem": self.problem,
        });
        if let (Value::Object(map), Some(report)) = (&mut value, &self.report) {
            map.insert("transcript".to_owned(), json!(report));
        }
        value
    }

    /// The same, with the keys that the checkpoints name.
    #[must_use]
    pub fn to_value_with_signers(&self, engine: &Engine, index: &ThreadIndex, row: &ThreadRow) -> Value {
        let own = index.own_fingerprint();
        let ring = &engine.workspace.keys;
        let path = index.transcript_path(&row.id);
        let batch = transcript::read(&path, TranscriptPosition::default(), usize::MAX).unwrap_or_default();
        let mut named: Vec<String> = Vec::new();
        for event in batch.events.iter().filter(|event| event.event_type == "checkpoint") {
            let fingerprint = event.payload.get("fp").and_then(Value::as_str).map(one_line);
            if let Some(fingerprint) =
                fingerprint.filter(|one| !named.contains(one) && named.len() < MAX_SIGNERS)
            {
                named.push(fingerprint);
            }
        }
        let signers = named.into_iter().map(|name| {
            let parsed = name.parse::<Fingerprint>().ok();
            let known = parsed.as_ref().and_then(|fingerprint| ring.find(fingerprint, &Space::User));
            let is_own = parsed.is_some_and(|fingerprint| fingerprint == own)
                || engine.workspace.own_key.as_ref().is_some_and(|key| key.fingerprint().to_string() == name);
            json!({"fingerprint": name, "owner": known.map(|key| one_line(&key.owner)), "is_own": is_own})
        });
        let signers: Vec<Value> = signers.collect();
        let mut value = self.to_value();
        value["signers"] = json!(signers);
        value
    }
}

/// Checks a thread's journal and transcript. What a crash kept from the transcript of an ended thread is written again
/// from the journal first. It may block for a moment while the thread runs.
#[must_use]
pub fn check_thread(engine: &Engine, index: &ThreadIndex, row: &ThreadRow, now_ms: u64) -> ThreadCheck {
    let ring = &engine.workspace.keys;
    let keys = |fingerprint: &Fingerprint| -> Option<PublicKey> {
        let of_ring = || ring.find(fingerprint, &Space::User).map(|known| known.key.clone());
        index.transcript_key(fingerprint).or_else(of_ring)
    };
    let is_rebuilt = index.rebuild_files(&row.id, now_ms);
    let path = index.transcript_path(&row.id);
    let (id, directive) = (row.id.to_string(), row.directive.clone());
    let mut row = row.clone();
    let mut attempts = 0;
    let (report, failure) = loop {
        // The lines of a thread at work follow its record by a moment: how far it has come says nothing about the file.
        let is_active = index.is_active(&row);
        let expected = row.transcript_head.filter(|_| !is_active);
        let report = match transcript::verify(&path, &row.id, expected, &keys) {
            Ok(report) => report,
            Err(error) => {
                let problem = Some(error.to_string());
                return ThreadCheck {
                    id,
                    directive,
                    state: "unreadable",
                    is_bad: true,
                    report: None,
                    problem,
                };
            }
        };
        let failure = match index.store.journal(&row.id) {
            Err(error) => Some(error),
            Ok(_) => index.store.verified_thread(&row.id).err(),
        };
        let is_suspicious = failure.is_some()
            || matches!(report.status, TranscriptStatus::Tampered | TranscriptStatus::Truncated);
        attempts += 1;
        let newer = index.store.thread(&row.id).ok().flatten();
        match newer {
            // It may have gone on between two looks: what is wrong is wrong the next time as well.
            Some(newer)
                if attempts < MAX_ATTEMPTS && is_suspicious && (is_active || has_changed(&row, &newer)) =>
            {
                row = newer;
                std::thread::sleep(RETRY_INTERVAL);
            }
            _ => break (report, failure),
        }
    };
    let is_older = matches!(failure, Some(ThreadStoreError::Older { .. }));
    let problem = failure.map(|error| error.to_string());
    // One that is at work, or was ended by force, has not signed its last lines.
    let is_whole = match report.status {
        TranscriptStatus::Valid => true,
        TranscriptStatus::Tampered => false,
        TranscriptStatus::Truncated => index.is_active(&row),
        TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned => {
            !matches!(row.status, ThreadStatus::Completed | ThreadStatus::Error | ThreadStatus::Suspended)
        }
    };
    let state = match (&problem, report.status) {
        (Some(_), _) if is_older => "older",
        (Some(_), _) => "forged",
        (None, TranscriptStatus::Valid) if is_rebuilt => "rebuilt",
        (None, TranscriptStatus::Valid) => "valid",
        (None, TranscriptStatus::Tampered) => "tampered",
        (None, TranscriptStatus::Truncated) => "cut",
        (None, TranscriptStatus::UnsignedTail) => "unsigned_tail",
        (None, TranscriptStatus::Unsigned) => "unsigned",
    };
    let is_bad = !is_whole || problem.is_some();
    ThreadCheck { id, directive, state, is_bad, report: Some(report), problem }
}

/// Whether a thread has gone on between two looks.
fn has_changed(before: &ThreadRow, now: &ThreadRow) -> bool {
    before.transcript_head != now.transcript_head || before.status != now.status
}
