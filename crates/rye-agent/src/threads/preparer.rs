//! From requests to threads that can start: their specs, the providers that answer them, and what must not be written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use lillux::http::{AddressPolicy, HttpClient, ProxyConfig};
use rye_engine::{Code, Engine, Error, Result};
use rye_exec::parameters;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::{EndpointPool, ModelProvider, Script};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::SharedEngineProvider;
use crate::config::ThreadConfig;
use crate::machine::ThreadState;
use crate::models::{self, ModelChoice, OFFLINE_PROVIDER};
use crate::prepare::{PreparedCache, PreparedThread, ThreadRequest};
use crate::provider_chain::{ProviderChain, UnavailableProvider};
use crate::redact::{Redactor, RedactorCache};
use crate::spec::{ActiveModel, ThreadSpec};

/// How much that blocks is done at once, besides waiting for others: more would only be more that waits for a processor.
const BLOCKING_SLOTS: usize = 4;

/// Prepares the threads of a space.
pub(super) struct ThreadPreparer {
    engine: SharedEngineProvider,
    environment: BTreeMap<String, String>,
    cache: PreparedCache,
    endpoints: EndpointPool,
    redactors: RedactorCache,
    /// The one that was used last, for when no engine can be opened.
    last_redactor: Mutex<Arc<Redactor>>,
    /// Work that blocks, preparing and calling tools, is done by so many at once.
    pub(super) blocking_slots: Arc<Semaphore>,
}

impl ThreadPreparer {
    /// With the engine as it is now, and the configuration of threads.
    ///
    /// # Errors
    /// When the configuration is wrong.
    pub(super) fn open(
        engine_provider: SharedEngineProvider,
        environment: BTreeMap<String, String>,
        engine: &Engine,
    ) -> Result<(Self, Arc<ThreadConfig>)> {
        let cache = PreparedCache::default();
        // A damaged file must not keep a thread from ending. Starting one reads the files again and reports them.
        let config = match cache.config(engine) {
            Ok(config) => config,
            Err(_) => Arc::new(crate::config::load_lenient(&engine.workspace)?),
        };
        let redactors = RedactorCache::default();
        let last_redactor = Mutex::new(redactors.for_engine(engine)?);
        let preparer = Self {
            engine: engine_provider,
            environment,
            cache,
            endpoints: EndpointPool::default(),
            redactors,
            last_redactor,
            blocking_slots: Arc::new(Semaphore::new(BLOCKING_SLOTS)),
        };
        Ok((preparer, config))
    }

    /// What a thread would be, without one.
    ///
    /// # Errors
    /// When it may not start.
    pub(super) async fn prepare(self: &Arc<Self>, mut request: ThreadRequest) -> Result<PreparedThread> {
        let preparer = Arc::clone(self);
        let work = move || {
            let engine = (preparer.engine)()?;
            // What is asked of a model is written down, as is all that it says.
            let redactor = preparer.redactor();
            let mut redacted = std::mem::take(&mut request.redacted);
            redactor.redact_map_with(&mut request.inputs, &mut redacted);
            request.message = request.message.map(|message| redactor.redact_with(message, &mut redacted));
            request.redacted = redacted;
            preparer.cache.prepare(&engine, &preparer.environment, &request)
        };
        let _turn = tokio::time::timeout(crate::driver::SLOT_TIMEOUT, self.blocking_slots.acquire()).await;
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(Error::new(Code::Io, format!("preparing the thread broke off: {error}"))),
        }
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
        let variable = |name: &str| self.environment.get(name).map(String::as_str);
        let client = HttpClient::new(AddressPolicy::default())
            .with_proxies(ProxyConfig::from_variables(variable))
            .with_certificates_of(variable);
        let script = Script {
            actions: spec.instance.actions.clone(),
            outputs: spec.template.outputs.clone(),
            inputs: spec.instance.inputs.clone(),
        };
        let environment = &self.environment;
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

    /// What must not be written.
    pub(super) fn redactor(&self) -> Arc<Redactor> {
        let current = (self.engine)().and_then(|engine| self.redactors.for_engine(&engine));
        let mut last = self.last_redactor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(current) = current {
            *last = current;
        }
        Arc::clone(&last)
    }

    /// The providers and models the thread was started with; prices and windows stay unchanged. Where there are
    /// fallbacks, one that cannot be used now fails when it is asked.
    pub(super) fn reopen_providers(&self, spec: &ThreadSpec) -> Result<ProviderChain> {
        let engine = (self.engine)()?;
        let providers = models::Providers::discover(&engine.workspace);
        let reopen = |model: ActiveModel<'_>| {
            let query = models::ModelQuery {
                model: Some(model.model),
                provider: Some(model.provider),
                ..models::ModelQuery::default()
            };
            let choice = providers.choose(&query, &spec.template.config.agent, &self.environment)?;
            self.provider(&choice, spec)
        };
        let template = &spec.template;
        if template.fallbacks.is_empty() {
            return Ok(ProviderChain::new(reopen(template.model_at(0))?, Vec::new()));
        }
        let reopen_or_fail = |index: usize| {
            let unavailable = |error| Arc::new(UnavailableProvider(error)) as Arc<dyn ModelProvider>;
            reopen(template.model_at(index)).unwrap_or_else(unavailable)
        };
        let fallbacks = (1..=template.fallbacks.len()).map(reopen_or_fail).collect();
        Ok(ProviderChain::new(reopen_or_fail(0), fallbacks))
    }

    /// Tool calls in flight whose tools say that doing them twice does no harm.
    pub(super) fn repeatable_calls(&self, state: &ThreadState) -> Result<Vec<usize>> {
        let engine = (self.engine)()?;
        let running = state.running_tools().into_iter();
        let is_idempotent = |item: &str| {
            let id = item.strip_prefix("execute tool:").and_then(|id| ItemId::new(id).ok());
            id.is_some_and(|id| engine.is_idempotent(&ItemRef::new(ItemType::Tool, id)))
        };
        Ok(running.filter(|(_, item)| is_idempotent(item)).map(|(index, _)| index).collect())
    }

    /// Parameters that fit what the tool declares; `null` is as good as nothing.
    pub(super) fn check_params(
        &self,
        caller: &ThreadSpec,
        tool: &str,
        mut params: Map<String, Value>,
    ) -> Result<Map<String, Value>> {
        params.retain(|_, value| !value.is_null());
        let offered = caller.template.definitions.tools.iter();
        let offered = offered.into_iter().find(|known| known.target["item_id"] == json!(tool));
        let schema = match offered {
            Some(definition) => definition.schema.clone(),
            None => {
                let engine = (self.engine)()?;
                let item = ItemRef::new(ItemType::Tool, ItemId::new(tool)?);
                let (chain, _) = rye_engine::chain_cache::build_valid_chain(&engine, &item, None)?;
                chain.tool().schema().cloned().unwrap_or_else(|| json!({}))
            }
        };
        parameters::check(params, Some(&schema))
            .map_err(|error| Error::new(Code::InvalidParameters, format!("{tool}: {error}")))
    }

    /// Prepares what helps another thread along: where no model of its own is at hand, that one's does it. A script cannot
    /// write a summary.
    pub(super) async fn prepare_with_model_of(
        self: &Arc<Self>,
        other: &ThreadSpec,
        request: ThreadRequest,
    ) -> Result<PreparedThread> {
        let prepared = self.prepare(request.clone()).await;
        let has_model = prepared.as_ref().is_ok_and(|prepared| {
            prepared.spec.template.provider != OFFLINE_PROVIDER || other.template.provider == OFFLINE_PROVIDER
        });
        if has_model {
            return prepared;
        }
        let (model, provider) = (other.template.model.clone(), other.template.provider.clone());
        self.prepare(ThreadRequest { model: Some(model), provider: Some(provider), ..request }).await
    }
}
