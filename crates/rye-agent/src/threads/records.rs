//! What is recorded of threads: their rows, journals, templates and transcripts, as the store and the files have them.
//!
//! Everything here reads, except that the shared part of a spec is stored once. [`ThreadRecords`] never blocks its caller;
//! what does is in [`RecordReader`], which is reached where blocking does no harm.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux::Digest;
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use super::FinishedThread;
use super::changed_transcript::{changed_transcript_error, refuse_changed_transcript, refuse_unresumable};
use super::resume::EventHistory;
use crate::config::{ChildAction, ChildPolicy};
use crate::driver::{self, MillisClock, ResumePoint};
use crate::journal::{JournalError, JournalHeader};
use crate::machine::{ThreadOutcome, ThreadState};
use crate::prepare::ParentThread;
use crate::spec::{ThreadSpec, ThreadTemplate};
use crate::status::ThreadStatus;
use crate::store::{
    Attribution, JournalRecord, OpenedStore, Settlement, StoreHandle, ThreadRow, ThreadStore,
    ThreadStoreError, fetch_transcript,
};
use crate::thread_id::ThreadId;
use crate::transcript::TranscriptSigner;

/// The records of a space's threads, for asynchronous code.
pub(super) struct ThreadRecords {
    store: Arc<dyn ThreadStore>,
    reader: Arc<RecordReader>,
}

/// The same for code that may block.
pub(super) struct RecordReader {
    pub(super) store: StoreHandle,
    /// What the store is opened with.
    opened: Arc<OpenedStore>,
    /// Where files of the threads that run here are.
    pub(super) folder: PathBuf,
    pub(super) clock: Arc<dyn MillisClock>,
    pub(super) signer: Arc<TranscriptSigner>,
    templates: TemplateCache,
}

impl ThreadRecords {
    pub(super) fn new(
        opened: Arc<OpenedStore>,
        clock: Arc<dyn MillisClock>,
        signer: Arc<TranscriptSigner>,
    ) -> Self {
        let (store, folder) = (opened.store.clone(), opened.folder.clone());
        let shared = Arc::clone(store.shared());
        let templates = TemplateCache::default();
        let reader = RecordReader { store, opened, folder, clock, signer, templates };
        Self { store: shared, reader: Arc::new(reader) }
    }

    /// The records, for code that may block.
    pub(super) fn reader(&self) -> &Arc<RecordReader> {
        &self.reader
    }

    /// What signs transcripts.
    pub(super) fn signer(&self) -> Arc<TranscriptSigner> {
        Arc::clone(&self.reader.signer)
    }

    /// Does something with the records where blocking does no harm.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RecordReader) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let reader = Arc::clone(&self.reader);
        super::run_blocking(move || work(&reader)).await
    }

    /// Refuses a suspended thread whose journal or transcript would stop its resume.
    pub(super) async fn refuse_unresumable(&self, id: &ThreadId) -> Result<()> {
        let id = id.clone();
        self.run_blocking(move |records| {
            refuse_unresumable(&records.store, &records.folder, &id, &|signer| records.transcript_key(signer))
        })
        .await
    }

    /// Forgets a template whose blob is gone from the store; whether it was known.
    pub(super) fn forget_template(&self, digest: &Digest) -> bool {
        self.reader.templates.remove(digest)
    }

    pub(super) async fn row(&self, id: &ThreadId) -> Result<ThreadRow> {
        let row = self.store.verified_thread(id).await?;
        row.ok_or_else(|| Error::from(ThreadStoreError::NoThread(id.clone())))
    }

    /// The row of a thread, or of the one it was handed over to, and so on.
    pub(super) async fn final_row(&self, id: &ThreadId) -> Result<ThreadRow> {
        let mut row = self.row(id).await?;
        // A chain cannot be longer than there are threads; this many is far beyond any.
        for _ in 0..1000 {
            match &row.continuation_thread_id {
                Some(next) if row.status == ThreadStatus::Continued => row = self.row(next).await?,
                _ => break,
            }
        }
        Ok(row)
    }

    pub(super) async fn root_of(&self, id: &ThreadId) -> Result<ThreadId> {
        let ancestors = self.store.ancestors(id).await?;
        Ok(ancestors.into_iter().find(|row| row.parent.is_none()).map_or_else(|| id.clone(), |row| row.id))
    }

    /// How a thread, or the one it was handed over to, stands now.
    pub(super) async fn current_outcome(&self, id: &ThreadId) -> Result<FinishedThread> {
        let row = self.final_row(id).await?;
        let outcome = row.result.as_ref().and_then(|result| serde_json::from_value(result.clone()).ok());
        let outcome = outcome.filter(|outcome: &ThreadOutcome| outcome.status == row.status);
        let outcome = outcome.unwrap_or_else(|| ThreadOutcome {
            status: row.status,
            reason: row.reason,
            ..ThreadOutcome::failed(row.error.clone().unwrap_or_default())
        });
        Ok(FinishedThread {
            thread_id: row.id,
            directive: row.directive,
            outcome,
            cost: row.cost,
            provider: row.provider,
        })
    }

    /// What becomes of a thread's children, as its record says.
    pub(super) async fn child_policy(&self, id: &ThreadId) -> ChildPolicy {
        let id = id.clone();
        let known = self.run_blocking(move |records| {
            records.load_record(&id).map(|(spec, _)| spec.template.config.resilience.child_policy)
        });
        // Without a record that can be trusted nothing is left running.
        known.await.unwrap_or(ChildPolicy {
            on_parent_cancel: ChildAction::CascadeCancel,
            on_parent_complete: ChildAction::CascadeCancel,
            on_parent_error: ChildAction::CascadeCancel,
        })
    }

    /// The shared part of a spec, in the store once.
    pub(super) async fn store_template(&self, template: &Arc<ThreadTemplate>) -> Result<Digest> {
        let cached = self.reader.templates.digest_of(template);
        if let Some(digest) = cached {
            return Ok(digest);
        }
        let bytes =
            serde_json::to_vec(&**template).map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let digest = self.store.put_blob(bytes, self.reader.clock.now_ms()).await?;
        self.reader.templates.insert(digest, template);
        Ok(digest)
    }

    /// A thread and those above it to the top: who asks, for a person.
    pub(super) async fn ancestry_value(&self, id: &ThreadId) -> Value {
        let own = self.store.thread(id).await.ok().flatten();
        let above = self.store.ancestors(id).await.unwrap_or_default();
        let ancestry = own.into_iter().chain(above);
        ancestry.map(|row| json!({"thread_id": row.id, "directive": row.directive})).collect()
    }
}

impl RecordReader {
    /// The folder with the transcript of a thread that may run anywhere, brought up to date.
    pub(super) fn readable_folder(&self, id: &ThreadId) -> Result<PathBuf> {
        fetch_transcript(&self.store, &self.opened.files, id)?;
        Ok(self.opened.files.clone())
    }

    /// The key that signed a transcript, if it counts.
    pub(super) fn transcript_key(&self, fingerprint: &lillux::Fingerprint) -> Option<lillux::PublicKey> {
        crate::store::find_signer(&self.opened.keys, &self.signer.public(), fingerprint)
    }

    /// What a thread is, and everything that happened to it.
    pub(super) fn load_history(&self, id: &ThreadId) -> Result<(Arc<ThreadSpec>, EventHistory)> {
        let (spec, records) = self.load_record(id)?;
        let read = |record: &JournalRecord| Ok((record.at_ms, serde_json::from_slice(&record.body)?));
        let events: std::result::Result<_, serde_json::Error> = records.iter().map(read).collect();
        Ok((
            spec,
            events.map_err(|error| damaged_error(id, &format!("its journal cannot be read: {error}")))?,
        ))
    }

    /// What a thread is, and what happened to it.
    pub(super) fn load_record(&self, id: &ThreadId) -> Result<(Arc<ThreadSpec>, Vec<JournalRecord>)> {
        let mut records = self.store.journal(id)?;
        if records.is_empty() {
            return Err(damaged_error(id, "its journal is empty"));
        }
        let first = records.remove(0);
        let header = JournalHeader::parse(&first.body).map_err(|error| unreadable(id, &error))?;
        Ok((
            Arc::new(ThreadSpec { instance: header.own, template: self.load_template(&header.template)? }),
            records,
        ))
    }

    /// The thread as its journal tells it. The process that runs it is not disturbed.
    pub(super) fn load_state(&self, id: &ThreadId) -> Result<ThreadState> {
        let (spec, records) = self.load_record(id)?;
        driver::replay(spec, &records)
            .map_err(|error| damaged_error(id, &format!("its journal cannot be read: {error}")))
    }

    /// The same for a thread that is claimed here, its transcript brought up to where the journal ends.
    pub(super) fn resume_point(&self, id: &ThreadId) -> Result<ResumePoint> {
        let (spec, records) = self.load_record(id)?;
        let kept = match self.store.keeps_transcripts() {
            true => Some(crate::transcript::read_bytes(&fetch_transcript(&self.store, &self.folder, id)?)?),
            false => None,
        };
        let keys = |fingerprint: &lillux::Fingerprint| self.transcript_key(fingerprint);
        let expected = refuse_changed_transcript(&self.store, &self.folder, id, &keys)?;
        let open = self.store.open_reservations(id)?;
        // Before the transcript is brought up to the journal: what may be lost is then gone.
        let arrived = match open.is_empty() {
            true => String::new(),
            false => crate::transcript::unfinished_answer(&crate::transcript::path(&self.folder, id))?,
        };
        let replayed = driver::replay_with_transcript(spec, &records, &self.folder, expected)
            .map_err(|error| damaged_error(id, &format!("its journal cannot be read: {error}")))?;
        let (state, mut transcript) = replayed.ok_or_else(|| {
            let what = "its last lines are not those of the journal";
            changed_transcript_error(&self.store, &self.folder, id, what)
        })?;
        if let Some(kept) = kept {
            transcript.keep_in_store(&kept)?;
        }
        let interrupted = driver::interrupted_calls(&state, &open, &arrived);
        Ok(ResumePoint { state, transcript, interrupted })
    }

    /// Calls in flight of a thread whose journal cannot be read, as charges of what was reserved for them.
    pub(super) fn unknown_settlements(
        &self,
        id: &ThreadId,
        directive: &str,
        model: &str,
    ) -> Result<Vec<Settlement>> {
        let open = self.store.open_reservations(id)?;
        let settled = open.iter().map(|reservation| Settlement {
            call: reservation.call,
            spend: reservation.spend,
            input_tokens: reservation.tokens,
            output_tokens: 0,
            is_unknown: true,
            attribution: Attribution {
                item: directive.to_owned(),
                model: model.to_owned(),
                tool: None,
                hook: None,
            },
        });
        Ok(settled.collect())
    }

    /// The state of a thread that is not at work.
    pub(super) fn ended_state(&self, row: &ThreadRow) -> Result<ThreadState> {
        if matches!(row.status, ThreadStatus::Created | ThreadStatus::Running) {
            return Err(Error::new(Code::ThreadHeld, format!("{} is at work", row.id))
                .detail("thread_id", row.id.as_str())
                .hint(format!("wait for it: rye thread wait {}", row.id)));
        }
        self.load_state(&row.id)
    }

    pub(super) fn parent_of(&self, spec: &ThreadSpec) -> Result<Option<ParentThread>> {
        let Some(parent) = &spec.instance.parent else { return Ok(None) };
        let state = self.load_state(parent)?;
        Ok(Some(ParentThread { limits: state.limits, spec: state.spec }))
    }

    /// The shared part of a spec that was stored.
    pub(super) fn load_template(&self, digest: &str) -> Result<Arc<ThreadTemplate>> {
        if let Some(template) = self.templates.lock().get(digest) {
            return Ok(Arc::clone(template));
        }
        let damaged = |message: String| Error::new(Code::StoreDamaged, message);
        let parsed: Digest =
            digest.parse().map_err(|_| damaged(format!("`{digest}` names no part of the store")))?;
        let bytes = self.store.blob(&parsed)?;
        let template: ThreadTemplate = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(format!("a thread's frozen configuration cannot be read: {error}")))?;
        let template = Arc::new(template);
        self.templates.insert(parsed, &template);
        Ok(template)
    }
}

fn damaged_error(id: &ThreadId, message: &str) -> Error {
    Error::new(Code::StoreDamaged, format!("{id}: {message}"))
}

/// A journal in a format of another release, or without a header.
fn unreadable(id: &ThreadId, error: &JournalError) -> Error {
    match error {
        JournalError::UnknownFormat { .. } => Error::new(Code::StoreNewer, format!("{id}: {error}"))
            .detail("thread_id", id.as_str())
            .hint("resume it with the rye that wrote it, or a newer one"),
        JournalError::Invalid(_) => damaged_error(id, &error.to_string()),
    }
}

/// The shared parts of specs that this process has written or read, by digest. They are few: one for each way in which a
/// directive was started.
#[derive(Default)]
struct TemplateCache(Mutex<HashMap<String, Arc<ThreadTemplate>>>);

impl TemplateCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ThreadTemplate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest of this very one, if it was written.
    fn digest_of(&self, template: &Arc<ThreadTemplate>) -> Option<Digest> {
        let all = self.lock();
        let found = all.iter().find(|(_, known)| Arc::ptr_eq(known, template));
        found.and_then(|(digest, _)| digest.parse().ok())
    }

    /// Forgets one; whether it was known.
    fn remove(&self, digest: &Digest) -> bool {
        self.lock().remove(&digest.to_string()).is_some()
    }

    fn insert(&self, digest: Digest, template: &Arc<ThreadTemplate>) {
        let mut all = self.lock();
        // What no thread uses any more is read again if one does.
        if all.len() > MAX_TEMPLATES {
            all.retain(|_, cached| Arc::strong_count(cached) > 1);
        }
        all.insert(digest.to_string(), Arc::clone(template));
    }
}

/// How many are kept before unused ones are dropped.
const MAX_TEMPLATES: usize = 256;
