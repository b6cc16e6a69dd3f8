//! What a model is asked and what it answers: the types that a thread and a model provider share.

mod answer;
mod conversation;
pub mod estimate;
mod price;

pub use answer::{Answer, Delta, Failure, Finish, INCOMPLETE, Usage};
pub use conversation::{Message, Request, ToolCall, ToolDefinition};
pub use price::Price;
