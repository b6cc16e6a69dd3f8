//! Threads on several machines: what is submitted, who may take it, and how a worker runs it.
//!
//! ```text
//! rye run --on: prepare → freeze items → sign → create (no owner, with the submission) → store
//! worker: store → submitted threads → labels → verify by its own trust and limits → fresh folder → claim → drive
//! ```

mod archive;
mod check;
mod checkout;
mod labels;
mod submission;
mod submit;
mod tree;
mod worker;

pub(crate) use checkout::KeptPatch;
pub use checkout::{
    ApplyReport, Checkout, CheckoutPatch, CheckoutRequest, CheckoutRules, PatchSummary, parse_checkout,
    read_patch,
};
pub use labels::{WORKER_HOST, WorkerOffer, WorkerProcess, placement_reason};
pub use submission::{SubmissionBody, SubmissionError};
pub use submit::{SubmitOptions, SubmitReport};
pub use worker::{Worker, WorkerSetup, WorkerStatus};
