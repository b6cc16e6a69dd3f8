//! What a model is offered: from a thread's grants to definitions. The types are `rye_thread::definitions`'s.

mod build;
mod names;
#[cfg(test)]
mod tests;

pub use build::{OutputField, PreloadOptions, build};
pub use names::stable_name;
pub use rye_thread::definitions::*;
