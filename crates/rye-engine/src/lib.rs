//! The verbs: init, trust, keys, search, load, fetch, sign, verify, why, config, bundles, doctor. One function each.
//!
//! Nothing here prints or reads the environment: `rye-cli` passes settings in and shows what comes out.

mod answer;
pub mod chains;
pub mod engine;
pub mod error;
mod error_open;
mod error_refused;
pub mod lockfiles;
mod natives;
mod policies;
pub mod primaries;
pub mod programs;
pub mod resolved;
pub mod verbs;

pub use answer::success;
pub use engine::{Clock, DevMode, Engine, Host, Natives, Options};
pub use error::{Code, Error, Kind, Result};
