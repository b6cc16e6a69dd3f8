//! Threads on several machines: what is submitted, who may take it, and how a worker runs it.
//!
//! ```text
//! rye run --on: prepare → freeze items → sign → create (no owner, with the submission) → store
//! worker: store → submitted threads → labels → verify by its own trust and limits → fresh folder → claim → drive
//! ```
//!
//! Workers look for what waits; where settings name a service that calls them ([`ThreadDispatch`]), it is handed over.

mod archive;
mod check;
mod checkout;
mod dispatch;
mod labels;
#[cfg(feature = "restate")]
mod restate;
mod submission;
mod submit;
mod tree;
mod worker;

pub(crate) use checkout::KeptPatch;
pub use checkout::{
    ApplyReport, Checkout, CheckoutPatch, CheckoutRequest, CheckoutRules, PatchSummary, parse_checkout,
    read_patch,
};
pub use dispatch::ThreadDispatch;
pub(crate) use dispatch::dispatch_of_settings;
pub use labels::{WORKER_HOST, WorkerOffer, WorkerProcess, placement_reason};
pub use submission::{SubmissionBody, SubmissionError};
pub use submit::{SubmitOptions, SubmitReport};
pub use worker::{DriveOutcome, Worker, WorkerSetup, WorkerStatus};
