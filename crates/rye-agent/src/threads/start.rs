//! Starting a thread: prepared, registered, driven.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux::Digest;
use lillux::http::{Client, Policy, Proxies};
use rye_engine::{Code, Error, Result};
use rye_model::{Provider, Script};

use super::{Finished, Inner, Started, Threads, broken};
use crate::driver::{Projection, Signal, Standing, Thread};
use crate::journal::JournalHeader;
use crate::machine::{Event, State};
use crate::models::Chosen;
use crate::prepare::{Order, Prepared};
use crate::spec::{Shared, Spec};
use crate::store::{Caps, Claim, Created, NewThread, Owner, Record, StoreError};

/// The shared parts of specs that this process has written or read, by digest. They are few: one for each way in which a
/// directive was started.
#[derive(Default)]
pub(super) struct Kinds(Mutex<HashMap<String, Arc<Shared>>>);

impl Kinds {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest of this very one, if it was written.
    fn digest_of(&self, shared: &Arc<Shared>) -> Option<Digest> {
        let all = self.all();
        let found = all.iter().find(|(_, known)| Arc::ptr_eq(known, shared));
        found.and_then(|(digest, _)| digest.parse().ok())
    }

    /// Forgets one; whether it was known.
    fn forget(&self, digest: &Digest) -> bool {
        self.all().remove(&digest.to_string()).is_some()
    }

    fn keep(&self, digest: Digest, shared: &Arc<Shared>) {
        let mut all = self.all();
        // What no thread uses any more is read again if one does.
        if all.len() > MOST_KINDS {
            all.retain(|_, known| Arc::strong_count(known) > 1);
        }
        all.insert(digest.to_string(), Arc::clone(shared));
    }
}

/// How many are kept before those nobody uses go.
const MOST_KINDS: usize = 256;

impl Threads {
    /// Starts a thread and lets it run.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start(&self, order: Order, signal: Signal) -> Result<Started> {
        let prepared = self.prepare(order).await?;
        self.start_prepared(prepared, signal).await
    }

    /// Starts a thread that was prepared, and lets it run.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start_prepared(&self, prepared: Prepared, signal: Signal) -> Result<Started> {
        self.inner.begin(prepared, signal).await
    }

    /// What a thread would be, without one.
    ///
    /// # Errors
    /// When it may not start.
    pub async fn prepare(&self, order: Order) -> Result<Prepared> {
        self.inner.prepared(order).await
    }
}

impl Inner {
    pub(super) async fn prepared(self: &Arc<Self>, mut order: Order) -> Result<Prepared> {
        let inner = Arc::clone(self);
        // What is asked of a model is written down, as is all that it says.
        let redactor = inner.redactor();
        redactor.clean_map(&mut order.inputs);
        order.message = order.message.map(|message| redactor.cleaned(message));
        let work = move || {
            let engine = (inner.setup.engine)()?;
            inner.orders.prepare(&engine, &inner.setup.environment, &order)
        };
        let _turn = tokio::time::timeout(crate::driver::PATIENCE, self.turns.acquire()).await;
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(Error::new(Code::Io, format!("preparing the thread broke off: {error}"))),
        }
    }

    pub(super) async fn begin(self: &Arc<Self>, prepared: Prepared, signal: Signal) -> Result<Started> {
        let provider = self.provider(&prepared.chosen, &prepared.spec)?;
        self.begin_with(prepared, provider, signal).await
    }

    /// As [`Inner::begin`], with somebody in particular who answers.
    pub(super) async fn begin_with(
        self: &Arc<Self>,
        prepared: Prepared,
        provider: Arc<dyn Provider>,
        signal: Signal,
    ) -> Result<Started> {
        let Prepared { spec, notices, .. } = prepared;
        let claim = self.register(&spec, Some(self.owner.clone())).await?;
        self.forget_old(&spec.shared.config.ledger);
        let projection = Projection::begin(&self.setup.folder, &spec.own.thread_id)?;
        let standing = Standing { state: State::new(Arc::clone(&spec)), projection, unsettled: Vec::new() };
        Ok(self.run(standing, claim, provider, signal, Event::Started, notices))
    }

    /// The thread exists from here on; caps on children are counted in the same transaction.
    /// A thread without an owner goes on by itself: somebody takes it up.
    pub(super) async fn register(&self, spec: &Arc<Spec>, owner: Option<Owner>) -> Result<Claim> {
        let shared = self.keep(&spec.shared).await?;
        let header = JournalHeader::new(spec.own.clone(), shared.to_string());
        let body = header.to_bytes().map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let at_ms = self.setup.clock.now_ms();
        let concurrency = &spec.shared.config.resilience.concurrency;
        let parent = spec.own.parent.as_ref().map(|parent| self.limits_of(parent)).transpose()?;
        let new = NewThread {
            id: spec.own.thread_id.clone(),
            directive: spec.shared.directive.clone(),
            title: title(&spec.own.prompt),
            parent: spec.own.parent.clone(),
            continuation_of: spec.own.continues.clone(),
            limits: spec.own.limits,
            max_spend: spec.own.limits.spend,
            // Where money is counted, tokens are each thread's own.
            max_tokens: spec.own.limits.tokens.filter(|_| spec.shared.price.is_none()),
            capabilities: Digest::of(spec.own.capabilities.iter().collect::<Vec<_>>().join("\n").as_bytes()),
            model: spec.shared.model.clone(),
            provider: spec.shared.provider.clone(),
            caps: Caps {
                spawns: parent.and_then(|limits| limits.spawns),
                depth: parent.and_then(|limits| limits.depth),
                concurrent_children: Some(concurrency.max_concurrent_children),
                total_threads: Some(concurrency.max_total_threads),
            },
            is_detached: owner.is_none(),
            owner: owner.clone(),
            blobs: vec![shared],
            records: vec![Record { at_ms, sequence: 1, body }],
            at_ms,
        };
        let created = match self.store.create(new).await {
            // It was forgotten with the last thread that used it: it is kept anew.
            Err(StoreError::NoBlob(_)) if self.kinds.forget(&shared) => {
                return Box::pin(self.register(spec, owner)).await;
            }
            created => created?,
        };
        match created {
            Created::Done { claim, .. } => Ok(claim),
            Created::Refused { cap, most, count } => {
                Err(Error::new(Code::SpawnRefused, format!("no further thread: {} is {most}, and there are {count}", cap.as_str()))
                    .detail("cap", cap.as_str())
                    .detail("most", most)
                    .detail("count", count)
                    .hint("wait for others to end, or allow more: limits of the directive, concurrency in resilience.yaml"))
            }
        }
    }

    /// The shared part of a spec, in the store once.
    async fn keep(&self, shared: &Arc<Shared>) -> Result<Digest> {
        let known = self.kinds.digest_of(shared);
        if let Some(digest) = known {
            return Ok(digest);
        }
        let bytes = serde_json::to_vec(&**shared).map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let digest = self.store.put_blob(bytes, self.setup.clock.now_ms()).await?;
        self.kinds.keep(digest, shared);
        Ok(digest)
    }

    /// The shared part of a spec that was stored.
    pub(super) fn shared(&self, digest: &str) -> Result<Arc<Shared>> {
        if let Some(shared) = self.kinds.all().get(digest) {
            return Ok(Arc::clone(shared));
        }
        let wrong = |message: String| Error::new(Code::StoreDamaged, message);
        let parsed: Digest =
            digest.parse().map_err(|_| wrong(format!("`{digest}` names no part of the store")))?;
        let bytes = self.store.blob(&parsed)?;
        let shared: Shared = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("a thread's frozen configuration cannot be read: {error}")))?;
        let shared = Arc::new(shared);
        self.kinds.keep(parsed, &shared);
        Ok(shared)
    }

    /// Who answers this thread.
    pub(super) fn provider(&self, chosen: &Chosen, spec: &Spec) -> Result<Arc<dyn Provider>> {
        let proxies = Proxies::from_variables(|name| self.setup.environment.get(name).map(String::as_str));
        let mut door = Client::new(Policy::default()).with_proxies(proxies);
        if let Some(path) = self.setup.environment.get("SSL_CERT_FILE") {
            door = door.with_certificate_file(path.into());
        }
        let script = Script {
            actions: spec.own.actions.clone(),
            outputs: spec.shared.outputs.clone(),
            inputs: spec.own.inputs.clone(),
        };
        let environment = &self.setup.environment;
        self.providers
            .provider(&chosen.provider_id, &chosen.file, &chosen.model, environment, &door, script)
            .map_err(|error| Error::new(Code::ProviderInvalid, format!("{}: {error}", chosen.provider_id)))
    }

    /// Drives a thread in the background until it ends or stops.
    pub(super) fn run(
        self: &Arc<Self>,
        standing: Standing,
        claim: Claim,
        provider: Arc<dyn Provider>,
        signal: Signal,
        first: Event,
        notices: Vec<String>,
    ) -> Started {
        let spec = Arc::clone(&standing.state.spec);
        let limits = match &first {
            Event::Resumed { limits, .. } => *limits,
            _ => standing.state.limits,
        };
        let sender = self.enter(&spec.own.thread_id, limits, &signal, claim);
        let finished = sender.subscribe();
        let thread = Thread::new(self.doors(&spec.own.thread_id), standing, claim, provider, signal);
        let inner = Arc::clone(self);
        let own = Arc::clone(&spec);
        let task = tokio::spawn(async move {
            let finished = match thread.run(first).await {
                Ok((outcome, state)) => Finished {
                    thread_id: own.own.thread_id.clone(),
                    directive: own.shared.directive.clone(),
                    outcome,
                    cost: state.cost,
                },
                Err(error) => {
                    let (store, id) = (inner.store.clone(), own.own.thread_id.clone());
                    // Whoever comes next may take it up from where its record ends.
                    let _ = tokio::task::spawn_blocking(move || store.release_claim(&id, claim)).await;
                    broken(&own, &error)
                }
            };
            inner.left(&own, &finished).await;
            sender.send_replace(Some(Arc::new(finished)));
        });
        if let Some(live) = self.live().get_mut(&spec.own.thread_id) {
            live.task = Some(task.abort_handle());
        }
        Started {
            thread_id: spec.own.thread_id.clone(),
            directive: spec.shared.directive.clone(),
            notices,
            finished,
        }
    }
}

/// A line that tells threads of one directive apart.
fn title(prompt: &str) -> String {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    rye_item::text::one_line(&line.chars().take(80).collect::<String>())
}
