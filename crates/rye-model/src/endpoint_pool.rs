//! Providers at hand: endpoints keep their connections and are shared; a script belongs to one thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use lillux::http::HttpClient;
use serde_json::{Map, Value};

use crate::offline::OfflineProvider;
use crate::{ConnectError, ModelEndpoint, ModelProvider, ProviderFile, ProviderProtocol};

/// What a directive says for itself: a provider without a model answers from it.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Its action tags, filled in.
    pub actions: Vec<Value>,
    /// The outputs it declares.
    pub outputs: Vec<Value>,
    /// Its inputs.
    pub inputs: Map<String, Value>,
}

/// Endpoints that are open.
#[derive(Default)]
pub struct EndpointPool {
    endpoints: Mutex<HashMap<String, Arc<ModelEndpoint>>>,
}

impl std::fmt::Debug for EndpointPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Pool")
    }
}

impl EndpointPool {
    /// Who answers for `model` of the provider called `id`.
    ///
    /// # Errors
    /// When a variable is not set, or the endpoint cannot be used.
    pub fn provider(
        &self,
        id: &str,
        file: &ProviderFile,
        model: &str,
        environment: &BTreeMap<String, String>,
        client: &HttpClient,
        script: Script,
    ) -> Result<Arc<dyn ModelProvider>, ConnectError> {
        if file.protocol(model) == ProviderProtocol::Offline {
            return Ok(Arc::new(OfflineProvider::new(script.actions, script.outputs, script.inputs)));
        }
        let key = format!("{id}\0{}", file.profile(model).unwrap_or_default());
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(&key) {
            return Ok(Arc::clone(endpoint) as Arc<dyn ModelProvider>);
        }
        let endpoint = Arc::new(file.connect(model, environment, client)?);
        endpoints.insert(key, Arc::clone(&endpoint));
        Ok(endpoint)
    }
}
