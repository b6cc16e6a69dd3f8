//! The providers of a thread: that of its model, and those of the fallbacks behind it.

use std::sync::Arc;

use rye_engine::Error;
use rye_model::{Completion, ModelError, ModelProvider, ModelRequest, ResponseDelta};

/// Providers in the order in which a thread asks them.
#[derive(Clone)]
pub struct ProviderChain {
    first: Arc<dyn ModelProvider>,
    fallbacks: Vec<Arc<dyn ModelProvider>>,
}

impl ProviderChain {
    /// The first provider, and those behind it.
    #[must_use]
    pub fn new(first: Arc<dyn ModelProvider>, fallbacks: Vec<Arc<dyn ModelProvider>>) -> Self {
        Self { first, fallbacks }
    }

    /// The provider of this number: 0 is the first.
    #[must_use]
    pub fn at(&self, index: usize) -> Arc<dyn ModelProvider> {
        let fallback = index.checked_sub(1).and_then(|index| self.fallbacks.get(index));
        Arc::clone(fallback.unwrap_or(&self.first))
    }
}

impl<P: ModelProvider + 'static> From<Arc<P>> for ProviderChain {
    fn from(provider: Arc<P>) -> Self {
        Self::new(provider, Vec::new())
    }
}

/// A provider that cannot be used at the moment: its key is not set, or its file is not trusted.
#[derive(Debug)]
pub(crate) struct UnavailableProvider(pub(crate) Error);

impl ModelProvider for UnavailableProvider {
    fn complete<'a>(
        &'a self,
        _: &'a ModelRequest,
        _: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a> {
        let error = ModelError::before_send("ProviderUnavailable", self.0.message.clone());
        Box::pin(std::future::ready(Err(error)))
    }
}
