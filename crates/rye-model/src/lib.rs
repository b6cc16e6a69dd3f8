//! Asking a model: one request in, one answer out, streamed.
//!
//! A [`Provider`] is one endpoint with its protocol. What is asked, what an answer means, what is retried and what is
//! written down is left to the thread that asks.

mod anthropic;
mod draft;
mod gemini;
pub mod offline;
mod ollama;
mod openai;
mod pool;
pub mod provider_file;
pub mod replay;
mod said;
mod sse;
mod transport;
mod wire;

use std::future::Future;
use std::pin::Pin;

pub use pool::{Pool, Script};
pub use provider_file::{ConnectError, Pricing, ProviderFile};
pub use rye_thread::model::{
    Answer, Delta, Failure, Finish, Message, Price, Request, ToolCall, ToolDefinition, Usage, estimate,
};
pub use transport::Endpoint;
pub use wire::Protocol;

/// An answer on its way. Dropping it ends the exchange at once.
pub type Completion<'a> = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

/// Somebody who answers requests.
pub trait Provider: Send + Sync {
    /// Answers one request; what arrives on the way is handed to `deltas`, in order.
    fn complete<'a>(
        &'a self,
        request: &'a Request,
        deltas: &'a (dyn Fn(Delta) + Send + Sync),
    ) -> Completion<'a>;
}
