//! What a model is asked and what it answers: the types that a thread and a model provider share.

mod conversation;
pub mod estimate;
mod file;
mod price;
mod response;
mod settings;
pub mod text_tokens;

pub use conversation::{ChatMessage, ModelRequest, ToolCall, ToolDefinition};
pub use file::{FileContents, FileKind, FilePart, MediaType};
pub use price::TokenPrice;
pub use response::{FinishReason, INCOMPLETE, ModelError, ModelResponse, ResponseDelta, Usage, UsageSource};
pub use settings::{ModelSetting, ModelSettings, ReasoningEffort};
