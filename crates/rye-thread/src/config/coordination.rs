//! `coordination.yaml`: waiting for threads, continuing them, finding lost ones.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::duration::milliseconds;

/// How threads are waited for, continued and found again.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordination {
    /// How long `wait_threads` waits when it is not told; `None`: what `resilience.yaml` says.
    pub default_timeout_ms: Option<u64>,
    /// The longest it may be asked to wait.
    pub max_timeout_ms: u64,
    /// When another thread takes over.
    pub continuation: Continuation,
    /// What happens to a transcript whose end is not signed.
    pub transcript_integrity: TranscriptIntegrity,
    /// Finding threads whose process is gone.
    pub orphan_detection: OrphanDetection,
}

/// When and how another thread takes over a long conversation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Continuation {
    /// The share of the context window at which it happens.
    pub trigger_threshold: f64,
    /// The directive that writes the summary.
    pub summary_directive: String,
    /// Its model or tier.
    pub summary_model: String,
    /// Its limits.
    pub summary_limit_overrides: Map<String, Value>,
    /// How much of the conversation goes along.
    pub resume_ceiling_tokens: u64,
    /// How long the summary may be.
    pub summary_max_tokens: u64,
}

/// What happens to a transcript whose end is not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptIntegrity {
    /// It is refused.
    Strict,
    /// It is shown with a warning.
    Lenient,
}

/// Finding threads whose process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct OrphanDetection {
    /// Whether they are looked for.
    pub enabled: bool,
    /// Whether that happens at the start.
    pub scan_on_startup: bool,
    /// How long a thread may be silent.
    pub stale_threshold_minutes: u64,
}

#[derive(Deserialize)]
struct CoordinationFile {
    coordination: CoordinationSection,
}

#[derive(Deserialize)]
struct CoordinationSection {
    wait_threads: WaitThreads,
    continuation: Continuation,
    transcript_integrity: TranscriptIntegrity,
    orphan_detection: OrphanDetection,
}

#[derive(Deserialize)]
struct WaitThreads {
    default_timeout: Option<f64>,
    max_timeout: f64,
}

impl Coordination {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let inner = super::typed::<CoordinationFile>(value)?.coordination;
        crate::limits::ThreadLimits::default()
            .with_overrides(&inner.continuation.summary_limit_overrides)
            .map_err(|error| format!("coordination.continuation.summary_limit_overrides: {error}"))?;
        Ok(Self {
            default_timeout_ms: inner.wait_threads.default_timeout.map(milliseconds),
            max_timeout_ms: milliseconds(inner.wait_threads.max_timeout),
            continuation: inner.continuation,
            transcript_integrity: inner.transcript_integrity,
            orphan_detection: inner.orphan_detection,
        })
    }
}
