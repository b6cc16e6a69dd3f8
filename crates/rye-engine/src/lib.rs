//! The verbs, such as init, search, load, execute, sign, install: `verbs/mod.rs` lists their modules.
//!
//! Nothing here prints or reads the environment: `rye-cli` passes settings in and shows what comes out.

pub mod agent_actions;
pub mod chain_cache;
pub mod engine;
pub mod engine_pool;
pub mod error;
mod error_refused;
pub mod lockfiles;
mod missing;
mod missing_executor;
mod natives;
mod open_error;
mod policies;
pub mod programs;
pub mod resolve;
mod response;
mod store_error;
pub mod verbs;

pub use engine::{
    DevMode, Engine, EngineOptions, HostEnvironment, NativeTools, PASSPHRASE_FILE_VAR, PassphrasePrompt,
    WallClock,
};
pub use engine_pool::{EngineOrigin, EnginePool, PooledEngine};
pub use error::{Code, Error, ErrorKind, Result};
pub use response::success_response;
