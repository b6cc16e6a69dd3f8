//! Starting a thread: prepared, registered, driven.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux::Digest;
use lillux::http::{AddressPolicy, HttpClient, ProxyConfig};
use rye_engine::{Code, Error, Result};
use rye_model::{ModelProvider, Script};

use super::fork::FORK_TITLE;
use super::{FinishedThread, StartedThread, ThreadRuntime, Threads, failed_thread};
use crate::config::Concurrency;
use crate::driver::{
    CancelSignal, PlaceRequest, ResumePoint, ThreadDriver, TranscriptWriter, wait_for_place,
};
use crate::journal::JournalHeader;
use crate::machine::{ThreadEvent, ThreadState};
use crate::models::ModelChoice;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::provider_chain::ProviderChain;
use crate::redact::RedactionTally;
use crate::spec::{ThreadInstance, ThreadSpec, ThreadTemplate};
use crate::store::{
    Claim, CreateOutcome, JournalRecord, NewThread, Owner, SpawnCaps, ThreadStoreError, WaitKind,
};

/// The shared parts of specs that this process has written or read, by digest. They are few: one for each way in which a
/// directive was started.
#[derive(Default)]
pub(super) struct TemplateCache(Mutex<HashMap<String, Arc<ThreadTemplate>>>);

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

/// How many are kept before those nobody uses go.
const MAX_TEMPLATES: usize = 256;

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
    pub(super) async fn prepare(self: &Arc<Self>, mut request: ThreadRequest) -> Result<PreparedThread> {
        let inner = Arc::clone(self);
        // What is asked of a model is written down, as is all that it says.
        let redactor = inner.redactor();
        redactor.redact_map_with(&mut request.inputs, &mut RedactionTally::default());
        request.message = request.message.map(|message| redactor.redact(message));
        let work = move || {
            let engine = (inner.setup.engine)()?;
            inner.prepared_cache.prepare(&engine, &inner.setup.environment, &request)
        };
        let _turn = tokio::time::timeout(crate::driver::SLOT_TIMEOUT, self.blocking_slots.acquire()).await;
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(Error::new(Code::Io, format!("preparing the thread broke off: {error}"))),
        }
    }

    pub(super) async fn start(
        self: &Arc<Self>,
        prepared: PreparedThread,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        let providers = self.providers(&prepared.model_choice, &prepared.spec)?;
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
        let resume_point =
            ResumePoint { state: ThreadState::new(Arc::clone(&spec)), transcript, unsettled: Vec::new() };
        Ok(self.spawn_driver(resume_point, claim, providers.into(), signal, ThreadEvent::Started, notices))
    }

    /// The thread exists from here on; caps on children are counted in the same transaction.
    /// A thread without an owner goes on by itself: somebody takes it up.
    pub(super) async fn register(&self, spec: &Arc<ThreadSpec>, owner: Option<Owner>) -> Result<Claim> {
        let digest = self.store_template(&spec.template).await?;
        let header = JournalHeader::new(spec.instance.clone(), digest.to_string());
        let body = header.to_bytes().map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let at_ms = self.setup.clock.now_ms();
        let concurrency = &spec.template.config.resilience.concurrency;
        let parent = spec.instance.parent.as_ref().map(|parent| self.current_limits(parent)).transpose()?;
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
            blobs: vec![digest],
            records: vec![JournalRecord { at_ms, sequence: 1, body }],
            at_ms,
        };
        let created = match self.store.create(new).await {
            // It was forgotten with the last thread that used it: it is kept anew.
            Err(ThreadStoreError::NoBlob(_)) if self.templates.remove(&digest) => {
                return Box::pin(self.register(spec, owner)).await;
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

    /// The shared part of a spec, in the store once.
    async fn store_template(&self, template: &Arc<ThreadTemplate>) -> Result<Digest> {
        let cached = self.templates.digest_of(template);
        if let Some(digest) = cached {
            return Ok(digest);
        }
        let bytes =
            serde_json::to_vec(&**template).map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let digest = self.store.put_blob(bytes, self.setup.clock.now_ms()).await?;
        self.templates.insert(digest, template);
        Ok(digest)
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

    /// Who answers this thread, in order.
    pub(super) fn providers(&self, model_choice: &ModelChoice, spec: &ThreadSpec) -> Result<ProviderChain> {
        let fallbacks = model_choice.fallbacks.iter().map(|fallback| self.provider(fallback, spec));
        Ok(ProviderChain::new(self.provider(model_choice, spec)?, fallbacks.collect::<Result<_>>()?))
    }

    /// Who answers for one model.
    pub(super) fn provider(
        &self,
        model_choice: &ModelChoice,
        spec: &ThreadSpec,
    ) -> Result<Arc<dyn ModelProvider>> {
        let proxies =
            ProxyConfig::from_variables(|name| self.setup.environment.get(name).map(String::as_str));
        let mut client = HttpClient::new(AddressPolicy::default()).with_proxies(proxies);
        if let Some(path) = self.setup.environment.get("SSL_CERT_FILE") {
            client = client.with_certificate_file(path.into());
        }
        let script = Script {
            actions: spec.instance.actions.clone(),
            outputs: spec.template.outputs.clone(),
            inputs: spec.instance.inputs.clone(),
        };
        let environment = &self.setup.environment;
        self.endpoints
            .provider(
                &model_choice.provider_id,
                &model_choice.file,
                &model_choice.model,
                environment,
                &client,
                script,
            )
            .map_err(|error| {
                Error::new(Code::ProviderInvalid, format!("{}: {error}", model_choice.provider_id))
            })
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
        let store = self.store.shared();
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
        let sender = self.add_running(&spec.instance.thread_id, limits, &signal, claim);
        let finished = sender.subscribe();
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
            let finished = match outcome {
                Ok((outcome, state)) => FinishedThread {
                    thread_id: driven.instance.thread_id.clone(),
                    directive: driven.template.directive.clone(),
                    outcome,
                    cost: state.cost,
                    provider: driven.template.provider.clone(),
                },
                Err(error) => {
                    // Whoever comes next may take it up from where its record ends.
                    let id = &driven.instance.thread_id;
                    let _ = inner.store.shared().release_claim(id, claim).await;
                    failed_thread(&driven, &error)
                }
            };
            inner.on_stopped(&driven, &finished).await;
            inner.notify_stopped(&driven.instance.thread_id).await;
            sender.send_replace(Some(Arc::new(finished)));
        });
        if let Some(running) = self.running().get_mut(&spec.instance.thread_id) {
            running.task = Some(task.abort_handle());
        }
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
