//! Starting a thread: prepared, registered, driven.

use std::sync::Arc;

use lillux::Digest;
use rye_engine::{Code, Error, Result};

use super::fork::FORK_TITLE;
use super::{FinishedThread, StartedThread, ThreadRuntime, Threads};
use crate::config::Concurrency;
use crate::driver::{
    CancelSignal, InterruptedCalls, PlaceRequest, ResumePoint, ThreadDriver, TranscriptWriter, wait_for_place,
};
use crate::file_inputs::shown_digests;
use crate::journal::JournalHeader;
use crate::machine::{ThreadEvent, ThreadState};
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::provider_chain::ProviderChain;
use crate::spec::{ThreadInstance, ThreadSpec};
use crate::store::{
    Claim, CreateOutcome, JournalRecord, NewThread, Owner, SpawnCaps, ThreadStoreError, WaitKind,
};
use crate::thread_id::ThreadId;

impl Threads {
    /// Starts a thread and lets it run.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start(&self, request: ThreadRequest, signal: CancelSignal) -> Result<StartedThread> {
        let prepared = self.prepare(request).await?;
        self.start_prepared(prepared, signal).await
    }

    /// Starts a thread that was prepared, and lets it run.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start_prepared(
        &self,
        prepared: PreparedThread,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        self.runtime.start(prepared, signal).await
    }

    /// What a thread would be, without one.
    ///
    /// # Errors
    /// When it may not start.
    pub async fn prepare(&self, request: ThreadRequest) -> Result<PreparedThread> {
        self.runtime.prepare(request).await
    }
}

impl ThreadRuntime {
    /// Prepares a thread, and keeps the files that it shows to a model.
    pub(super) async fn prepare(&self, request: ThreadRequest) -> Result<PreparedThread> {
        let mut prepared = self.preparer.prepare(request).await?;
        for file in std::mem::take(&mut prepared.files) {
            self.store.put_blob(file.bytes, self.setup.clock.now_ms()).await?;
        }
        Ok(prepared)
    }

    pub(super) async fn start(
        self: &Arc<Self>,
        prepared: PreparedThread,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        let providers = self.preparer.providers(&prepared.model_choice, &prepared.spec)?;
        self.start_with(prepared, providers, signal).await
    }

    /// As [`ThreadRuntime::start`], with the given provider.
    pub(super) async fn start_with(
        self: &Arc<Self>,
        prepared: PreparedThread,
        providers: impl Into<ProviderChain>,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        let PreparedThread { spec, notices, .. } = prepared;
        let claim = self.register(&spec, Some(self.owner.clone())).await?;
        self.prune_old_threads(&spec.template.config.ledger);
        let transcript = TranscriptWriter::create(&self.setup.folder, &spec.instance.thread_id)?;
        let resume_point = ResumePoint {
            state: ThreadState::new(Arc::clone(&spec)),
            transcript,
            interrupted: InterruptedCalls::default(),
        };
        Ok(self.spawn_driver(resume_point, claim, providers.into(), signal, ThreadEvent::Started, notices))
    }

    /// The thread exists from here on; caps on children are counted in the same transaction.
    /// A thread without an owner continues by itself: another process takes it over.
    pub(super) async fn register(&self, spec: &Arc<ThreadSpec>, owner: Option<Owner>) -> Result<Claim> {
        self.register_with(spec, owner, &[]).await
    }

    /// As [`ThreadRuntime::register`]; with a submission, the first of these blobs, any worker takes the thread.
    pub(super) async fn register_with(
        &self,
        spec: &Arc<ThreadSpec>,
        owner: Option<Owner>,
        submitted: &[Digest],
    ) -> Result<Claim> {
        let digest = self.records.store_template(&spec.template).await?;
        let header = JournalHeader::new(spec.instance.clone(), digest.to_string());
        let body = header.to_bytes().map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let at_ms = self.setup.clock.now_ms();
        let concurrency = &spec.template.config.resilience.concurrency;
        let parent = match &spec.instance.parent {
            Some(parent) => Some(self.current_limits(parent).await?),
            None => None,
        };
        let new = NewThread {
            id: spec.instance.thread_id.clone(),
            directive: spec.template.directive.clone(),
            title: title(&spec.instance),
            parent: spec.instance.parent.clone(),
            continuation_of: spec.instance.continuation_of.clone(),
            limits: spec.instance.limits,
            max_spend: spec.instance.limits.spend,
            // Where money is counted, tokens are each thread's own.
            max_tokens: spec.instance.limits.tokens.filter(|_| spec.template.price.is_none()),
            capabilities: Digest::of(
                spec.instance.capabilities.iter().collect::<Vec<_>>().join("\n").as_bytes(),
            ),
            model: spec.template.model.clone(),
            provider: spec.template.provider.clone(),
            caps: SpawnCaps {
                spawns: parent.and_then(|limits| limits.spawns),
                depth: parent.and_then(|limits| limits.depth),
                ..spawn_caps(concurrency)
            },
            is_detached: owner.is_none(),
            owner: owner.clone(),
            blobs: std::iter::once(digest)
                .chain(shown_digests(&spec.instance))
                .chain(submitted.iter().copied())
                .collect(),
            records: vec![JournalRecord { at_ms, sequence: 1, body }],
            submission: submitted.first().copied(),
            at_ms,
        };
        let created = match self.store.create(new).await {
            // It was forgotten with the last thread that used it: it is stored again.
            Err(ThreadStoreError::NoBlob(_)) if self.records.forget_template(&digest) => {
                return Box::pin(self.register_with(spec, owner, submitted)).await;
            }
            created => created?,
        };
        match created {
            CreateOutcome::Created { claim, .. } => Ok(claim),
            CreateOutcome::Refused { cap, max, count } => {
                Err(Error::new(Code::SpawnRefused, format!("{} limit reached ({count} of {max})", cap.as_str()))
                    .detail("cap", cap.as_str())
                    .detail("most", max)
                    .detail("count", count)
                    .hint("wait for others to end, or allow more: limits of the directive, concurrency in resilience.yaml"))
            }
        }
    }

    /// Waits until a thread has its place among its parent's children, if it was queued; gives the event it begins with.
    async fn first_event(
        &self,
        spec: &ThreadSpec,
        claim: Claim,
        signal: &CancelSignal,
        first: ThreadEvent,
    ) -> std::result::Result<ThreadEvent, ThreadStoreError> {
        let own = &spec.instance;
        let store = &self.store;
        let row = if own.parent.is_some() { store.thread(&own.thread_id).await? } else { None };
        if row.is_none_or(|row| row.waiting != Some(WaitKind::Concurrency)) {
            return Ok(first);
        }
        let concurrency = &spec.template.config.resilience.concurrency;
        let request = PlaceRequest {
            thread: &own.thread_id,
            claim,
            caps: spawn_caps(concurrency),
            timeout_ms: concurrency.queue_timeout_ms(),
        };
        wait_for_place(store, &*self.setup.clock, &request, signal, first).await
    }

    /// A thread stopped running here, its claim given back with its last record: its children hear of it.
    async fn on_stopped(self: &Arc<Self>, spec: &Arc<ThreadSpec>, finished: &FinishedThread) {
        let id = &spec.instance.thread_id;
        let status = finished.outcome.status;
        if status.is_terminal() {
            self.control.apply_child_policy(id, status, spec.template.config.resilience.child_policy).await;
        } else if finished.outcome.has_questions() {
            self.running.awaiting_approval().insert(id.clone());
        }
    }

    /// Removes the files of a thread that stopped here, where the store has what was in them.
    fn remove_work_files(&self, id: &ThreadId) {
        if self.is_shared {
            // They go with the process at the latest.
            let _ = lillux::file::remove_tree(&self.setup.folder.join(id.as_str()));
        }
    }

    /// Drives a thread in the background until it ends or stops.
    pub(super) fn spawn_driver(
        self: &Arc<Self>,
        resume_point: ResumePoint,
        claim: Claim,
        providers: ProviderChain,
        signal: CancelSignal,
        first: ThreadEvent,
        notices: Vec<String>,
    ) -> StartedThread {
        let spec = Arc::clone(&resume_point.state.spec);
        let limits = match &first {
            ThreadEvent::Resumed { limits, .. } => *limits,
            _ => resume_point.state.limits,
        };
        self.running.add(&spec.instance.thread_id, limits, &signal, claim);
        let (sender, finished) = tokio::sync::watch::channel(None);
        let thread = ThreadDriver::new(
            self.driver_deps(&spec.instance.thread_id),
            resume_point,
            claim,
            providers,
            signal.clone(),
        );
        self.owe_notifications(&spec.instance.thread_id);
        let inner = Arc::clone(self);
        let driven = Arc::clone(&spec);
        let task = tokio::spawn(async move {
            let outcome = match inner.first_event(&driven, claim, &signal, first).await {
                Ok(first) => thread.run(first).await,
                Err(error) => Err(error.into()),
            };
            let id = &driven.instance.thread_id;
            let finished = match outcome {
                Ok((outcome, state)) => {
                    let finished = FinishedThread {
                        thread_id: id.clone(),
                        directive: driven.template.directive.clone(),
                        outcome,
                        cost: state.cost,
                        provider: driven.template.provider.clone(),
                    };
                    inner.on_stopped(&driven, &finished).await;
                    finished
                }
                // Any process may take it up from where its record ends, so its children continue.
                Err(error) => {
                    let _ = inner.store.release_claim(id, claim).await;
                    inner.stopped_thread(&driven, &signal, &error).await
                }
            };
            inner.control.settle_cancel_request(id, &signal).await;
            inner.running.remove(id);
            inner.notify_stopped(id).await;
            inner.remove_work_files(id);
            sender.send_replace(Some(Arc::new(finished)));
        });
        self.running.set_task(&spec.instance.thread_id, task.abort_handle());
        StartedThread {
            thread_id: spec.instance.thread_id.clone(),
            directive: spec.template.directive.clone(),
            notices,
            finished,
        }
    }
}

/// How many threads may be at work at one time.
fn spawn_caps(concurrency: &Concurrency) -> SpawnCaps {
    SpawnCaps {
        concurrent_children: Some(concurrency.max_concurrent_children),
        total_threads: Some(concurrency.max_total_threads),
        queues_children: concurrency.queue_timeout_seconds > 0,
        ..SpawnCaps::default()
    }
}

/// A line that tells threads of one directive apart.
fn title(own: &ThreadInstance) -> String {
    let line = own.prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line = rye_item::text::one_line(&line.chars().take(80).collect::<String>());
    match &own.forked_from {
        Some(source) => format!("{FORK_TITLE}{} at turn {}: {line}", source.thread_id, source.turn),
        None => line,
    }
}
