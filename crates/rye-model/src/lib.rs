//! Model providers: one request in, one response out, streamed.
//!
//! A [`ModelProvider`] is one endpoint with its protocol. Building requests, interpreting responses, retrying and recording
//! are left to the thread that sends the request.

mod anthropic;
mod endpoint;
mod endpoint_pool;
mod files;
mod gemini;
mod json_ref;
pub mod offline;
mod ollama;
mod openai;
mod protocol;
pub mod provider_file;
pub mod replay;
mod response_builder;
mod sse;

use std::future::Future;
use std::pin::Pin;

pub use endpoint::ModelEndpoint;
pub use endpoint_pool::{EndpointPool, Script};
pub use protocol::ProviderProtocol;
pub use provider_file::{ConnectError, Pricing, ProviderFile};
pub use rye_thread::model::{
    ChatMessage, FileContents, FileKind, FilePart, FinishReason, MediaType, ModelError, ModelRequest,
    ModelResponse, ModelSettings, ReasoningEffort, ResponseDelta, TokenPrice, ToolCall, ToolDefinition,
    Usage, estimate,
};

/// An answer on its way. Dropping it ends the exchange at once.
pub type Completion<'a> = Pin<Box<dyn Future<Output = Result<ModelResponse, ModelError>> + Send + 'a>>;

/// Responds to model requests.
pub trait ModelProvider: Send + Sync {
    /// Answers one request; what arrives on the way is handed to `deltas`, in order.
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a>;
}
