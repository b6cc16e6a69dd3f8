//! How a verified chain runs: tool → runtime → primitive, built, validated, locked, given its environment, confined and
//! run. It accepts nothing that was not admitted by `rye-trust`, and knows nothing of verbs, printing or the process
//! environment: what it needs of those comes in as values.

pub mod anchor;
pub mod chain;
pub mod environment;
pub mod http;
pub mod invocation;
pub mod lock;
pub mod native;
pub mod outcome;
pub mod packages;
pub mod sandbox;
pub mod staging;
pub mod template;
pub mod validate;

pub use chain::{Aliases, Chain, ChainError, Element, Primitive};
pub use invocation::Invocation;
pub use native::{NativeCall, NativeError, NativeTool, ThreadFunctions};
pub use rye_item::parameters;
