//! A store of threads that was lost, listed again from the folders of its threads.
//!
//! What a folder says is used only as far as a known key has signed its transcript. Journals are gone with the store: rebuilt
//! threads can be looked at, verified and continued in a new thread, never resumed. The new database is made beside the old
//! place and moved there when it is whole, so a rebuild that is cut short has changed nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::{Digest, Fingerprint, PublicKey, file};
use rye_engine::{Code, Error, Result};
use serde::Serialize;
use serde_json::Value;

use crate::cost::{Attribution, Cost};
use crate::limits::ThreadLimits;
use crate::money::Nanos;
use crate::status::ThreadStatus;
use crate::store::{
    CreateOutcome, LedgerSpec, NewThread, Settlement, SpawnCaps, StatusChange, StoreCondition, StoreHandle,
    ThreadCommit, ThreadSecret, TranscriptHead, block_on, inspect_store, open_store, replace_database,
    thread_folders,
};
use crate::thread_id::ThreadId;
use crate::transcript::{self, TranscriptPosition, TranscriptStatus};

/// Where the new database is made, below the folder of threads.
const REBUILD_DIR: &str = ".rebuild";

/// Events of a transcript that are read at a time.
const MAX_BATCH_EVENTS: usize = 1000;

/// Why a thread that had not ended is listed as failed.
const LOST_JOURNAL: &str = "its journal was lost with the store of threads: it cannot be resumed";

/// What a rebuild needs to know.
pub struct RebuildSetup<'a> {
    /// The folder of threads.
    pub folder: &'a Path,
    /// The folder of the signing key.
    pub signing_keys: &'a Path,
    /// The layout of the ledger.
    pub spec: &'a LedgerSpec,
    /// The keys whose signatures on transcripts count.
    pub keys: &'a dyn Fn(&Fingerprint) -> Option<PublicKey>,
    /// Now.
    pub now_ms: u64,
}

/// What came of a rebuild.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RebuildReport {
    /// The threads that are listed again.
    pub threads: Vec<RebuiltThread>,
    /// Folders that say nothing a known key has signed, and why.
    pub skipped: BTreeMap<ThreadId, String>,
    /// Where the old database is kept, if there was one.
    pub kept: Option<PathBuf>,
    /// Whether there is a new secret.
    pub is_new_secret: bool,
}

/// A thread that is listed again.
#[derive(Clone, Debug, Serialize)]
pub struct RebuiltThread {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// How it ended.
    pub status: ThreadStatus,
    /// Whether it had not ended, and cannot be resumed any more.
    pub is_cut_short: bool,
}

/// Lists the threads of a lost store again; `None` when the store is not lost.
///
/// # Errors
/// When a newer rye wrote the store, or it cannot be read or written.
pub fn rebuild_store(setup: &RebuildSetup<'_>) -> Result<Option<RebuildReport>> {
    let condition = inspect_store(setup.folder, setup.signing_keys)?;
    match condition {
        StoreCondition::Absent | StoreCondition::Ready { .. } | StoreCondition::Older { .. } => {
            return Ok(None);
        }
        StoreCondition::Newer { found, known } => {
            let path = setup.folder.join(crate::store::DATABASE);
            return Err(crate::store::ThreadStoreError::Newer { path, found, known }.into());
        }
        StoreCondition::Damaged { .. }
        | StoreCondition::Lost { .. }
        | StoreCondition::SecretLost { .. }
        | StoreCondition::OtherSecret { .. } => {}
    }
    let mut report = RebuildReport {
        is_new_secret: matches!(condition, StoreCondition::SecretLost { .. }),
        ..RebuildReport::default()
    };
    let secret = ThreadSecret::replace_lost(setup.signing_keys)?;
    let own = secret.transcript_key().public_key();
    let keys = |fingerprint: &Fingerprint| match own.fingerprint() == *fingerprint {
        true => Some(own.clone()),
        false => (setup.keys)(fingerprint),
    };
    let mut found = Vec::new();
    for id in thread_folders(setup.folder) {
        match SignedThread::read(setup.folder, &id, &keys) {
            Ok(thread) => found.push(thread),
            Err(reason) => drop(report.skipped.insert(id, reason)),
        }
    }
    // The order of the rows is that in which threads began: lists and pruning go by it.
    found.sort_by(|one, other| (one.started_ms, &one.id).cmp(&(other.started_ms, &other.id)));
    let rebuilt = setup.folder.join(REBUILD_DIR);
    // Of a rebuild that was cut short.
    file::remove_tree(&rebuilt)?;
    let store = open_store(&rebuilt, &secret, setup.spec)?;
    report.threads = insert_all(&store, &found)?;
    // The last holder closes the database: what it wrote is then in one file.
    drop(store);
    report.kept = replace_database(setup.folder, &rebuilt, setup.now_ms)?;
    file::remove_tree(&rebuilt)?;
    // How far its threads have come is recorded where the store lies now.
    open_store(setup.folder, &secret, setup.spec)?.accept_older()?;
    Ok(Some(report))
}

/// A thread as its signed transcript tells it.
struct SignedThread {
    id: ThreadId,
    directive: String,
    model: String,
    provider: String,
    parent: Option<ThreadId>,
    limits: ThreadLimits,
    started_ms: u64,
    ended_ms: u64,
    status: ThreadStatus,
    detail: Value,
    cost: Cost,
    head: Option<TranscriptHead>,
}

impl SignedThread {
    /// Reads the transcript of a thread; or why it is not used.
    fn read(
        folder: &Path,
        id: &ThreadId,
        keys: &dyn Fn(&Fingerprint) -> Option<PublicKey>,
    ) -> std::result::Result<Self, String> {
        let path = transcript::path(folder, id);
        let report = transcript::verify(&path, id, None, keys).map_err(|error| error.to_string())?;
        let problem =
            || report.problems.first().map(|problem| format!(": {}", problem.what)).unwrap_or_default();
        match report.status {
            TranscriptStatus::Valid | TranscriptStatus::Truncated | TranscriptStatus::UnsignedTail => {}
            TranscriptStatus::Tampered => return Err(format!("its transcript was changed{}", problem())),
            TranscriptStatus::Unsigned => {
                return Err("its transcript is not signed by a known key".to_owned());
            }
        }
        let signed_until = report.signed_until.ok_or("its transcript is not signed by a known key")?;
        let mut thread = Self {
            id: id.clone(),
            directive: String::new(),
            model: String::new(),
            provider: String::new(),
            parent: None,
            limits: ThreadLimits::default(),
            started_ms: 0,
            ended_ms: 0,
            status: ThreadStatus::Created,
            detail: Value::Null,
            cost: Cost::default(),
            head: report.head,
        };
        let mut from = TranscriptPosition::default();
        loop {
            let batch = transcript::read(&path, from, MAX_BATCH_EVENTS).map_err(|error| error.to_string())?;
            if batch.events.is_empty() {
                break;
            }
            from = batch.next;
            for event in &batch.events {
                if !event.is_droppable && event.sequence.is_some_and(|sequence| sequence <= signed_until) {
                    thread.apply(&event.event_type, &event.payload, &event.timestamp);
                }
            }
        }
        match thread.directive.is_empty() {
            true => Err("its transcript does not say which directive it ran".to_owned()),
            false => Ok(thread),
        }
    }

    /// Takes an event of the transcript in.
    fn apply(&mut self, event_type: &str, payload: &Value, timestamp: &str) {
        if let Some(at_ms) = rye_item::timestamp::parse_iso_timestamp(timestamp) {
            self.started_ms = if self.started_ms == 0 { at_ms } else { self.started_ms };
            self.ended_ms = self.ended_ms.max(at_ms);
        }
        let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
        match event_type {
            "thread_started" => {
                (self.directive, self.model, self.provider) =
                    (text("directive"), text("model"), text("provider"));
                self.parent = ThreadId::parse(&text("parent_thread_id")).ok();
                if let Some(Value::Object(limits)) = payload.get("limits")
                    && let Ok(limits) = ThreadLimits::default().with_overrides(limits)
                {
                    self.limits = limits;
                }
            }
            "cognition_out" => {
                self.cost.turns += 1;
                self.cost.input_tokens += number(payload, "input_tokens");
                self.cost.output_tokens += number(payload, "output_tokens");
                let spend = payload.get("spend").and_then(Value::as_f64).unwrap_or(0.0);
                self.cost.spend =
                    self.cost.spend.plus(Nanos::from_dollars(&format!("{spend:.9}")).unwrap_or_default());
            }
            "thread_completed" => self.status = ThreadStatus::Completed,
            "thread_error" => self.status = ThreadStatus::Error,
            "thread_cancelled" => self.status = ThreadStatus::Cancelled,
            "thread_killed" => self.status = ThreadStatus::Killed,
            "thread_handoff" => self.status = ThreadStatus::Continued,
            _ => {}
        }
        if self.status.is_terminal() {
            self.detail = payload.clone();
            let cost = payload.get("cost").unwrap_or(&Value::Null);
            self.cost.turns = self.cost.turns.max(number(cost, "turns"));
            self.cost.elapsed_ms = number(cost, "elapsed_seconds").saturating_mul(1000);
        }
    }

    fn to_new_thread(&self, is_parent_known: bool) -> NewThread {
        NewThread {
            id: self.id.clone(),
            directive: self.directive.clone(),
            title: self.directive.clone(),
            parent: self.parent.clone().filter(|_| is_parent_known),
            continuation_of: None,
            limits: self.limits,
            max_spend: self.limits.spend,
            max_tokens: None,
            capabilities: Digest::of(b"[]"),
            model: self.model.clone(),
            provider: self.provider.clone(),
            caps: SpawnCaps::default(),
            owner: None,
            is_detached: false,
            submission: None,
            blobs: Vec::new(),
            records: Vec::new(),
            at_ms: self.started_ms,
        }
    }

    fn status_change(&self) -> StatusChange {
        let error = ["error", "reason"].into_iter().find_map(|key| self.detail.get(key)?.as_str());
        match self.status.is_terminal() {
            true => StatusChange {
                to: self.status,
                reason: None,
                result: Some(serde_json::json!({
                    "status": self.status, "outputs": self.detail.get("outputs"), "error": error,
                })),
                error: error.map(str::to_owned),
            },
            false => StatusChange {
                to: ThreadStatus::Error,
                reason: None,
                result: None,
                error: Some(LOST_JOURNAL.to_owned()),
            },
        }
    }
}

/// Lists threads in a new store: parents before their children, and ended only when all are there.
fn insert_all(store: &StoreHandle, found: &[SignedThread]) -> Result<Vec<RebuiltThread>> {
    let mut known: BTreeMap<&ThreadId, crate::store::Claim> = BTreeMap::new();
    let is_listed = |id: &ThreadId| found.iter().any(|thread| thread.id == *id);
    let mut waiting: Vec<&SignedThread> = found.iter().collect();
    while !waiting.is_empty() {
        let is_ready = |thread: &SignedThread, known: &BTreeMap<&ThreadId, crate::store::Claim>| {
            thread.parent.as_ref().is_none_or(|parent| known.contains_key(parent) || !is_listed(parent))
        };
        let (mut ready, later): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|thread| is_ready(thread, &known));
        waiting = later;
        if ready.is_empty() {
            // Transcripts that name each other as parents: none of them is above the others.
            ready = std::mem::take(&mut waiting);
        }
        for thread in ready {
            let is_parent_known = thread.parent.as_ref().is_some_and(|parent| known.contains_key(parent));
            match block_on(store.create(thread.to_new_thread(is_parent_known)))? {
                CreateOutcome::Created { claim, .. } => drop(known.insert(&thread.id, claim)),
                refused @ CreateOutcome::Refused { .. } => {
                    return Err(Error::new(Code::StoreFailed, format!("{}: {refused:?}", thread.id)));
                }
            }
        }
    }
    let mut rebuilt = Vec::new();
    for thread in found {
        let Some(claim) = known.get(&thread.id) else { continue };
        let change = thread.status_change();
        let attribution = Attribution {
            item: thread.directive.clone(),
            model: thread.model.clone(),
            tool: None,
            hook: None,
        };
        let settlement = Settlement {
            call: 1,
            spend: thread.cost.spend,
            input_tokens: thread.cost.input_tokens,
            output_tokens: thread.cost.output_tokens,
            is_unknown: false,
            attribution,
        };
        let status = change.to;
        block_on(store.commit(ThreadCommit {
            settlements: vec![settlement],
            cost: Some(thread.cost),
            status: Some(change),
            transcript_head: thread.head,
            is_last: true,
            ..ThreadCommit::new(thread.id.clone(), *claim, thread.ended_ms)
        }))?;
        rebuilt.push(RebuiltThread {
            thread_id: thread.id.clone(),
            directive: thread.directive.clone(),
            status,
            is_cut_short: !thread.status.is_terminal(),
        });
    }
    Ok(rebuilt)
}
