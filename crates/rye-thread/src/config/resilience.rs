//! `resilience.yaml`: retries, limits, what is kept when, how threads live together.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::duration::milliseconds;
use crate::limits::ThreadLimits;

/// What keeps threads within bounds and brings them through failures.
#[derive(Clone, Debug, PartialEq)]
pub struct Resilience {
    /// Trying again.
    pub retry: RetryConfig,
    /// The limits of a directive that says nothing else.
    pub default_limits: ThreadLimits,
    /// Whether limits are looked at before a turn.
    pub check_before_turn: bool,
    /// Whether limits are looked at after a turn.
    pub check_after_turn: bool,
    /// What happens at a limit where no hook decides.
    pub on_exceed: OnExceed,
    /// When `state.json` is written.
    pub triggers: CheckpointTriggers,
    /// Waiting for threads.
    pub coordination: WaitConfig,
    /// What becomes of children.
    pub child_policy: ChildPolicy,
    /// How many threads are at work at one time.
    pub concurrency: Concurrency,
    /// Granted tools that are offered to the model directly.
    pub tool_preload: ToolPreload,
    /// How long a hook around a call may take.
    pub call_hook_timeout_ms: u64,
}

/// Seconds that a hook around a call may take, for configurations recorded before there was a key for it.
const DEFAULT_CALL_HOOK_SECONDS: f64 = 30.0;

/// Trying again.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RetryConfig {
    /// Failures in a row after which a thread fails.
    pub max_retries: u32,
    /// Policies that patterns name, as written.
    #[serde(default)]
    pub policies: BTreeMap<String, Value>,
}

/// What happens at a limit where no hook decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExceed {
    /// The thread suspends and asks for more.
    Escalate,
    /// The thread suspends.
    Suspend,
    /// The thread fails.
    Fail,
}

impl OnExceed {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Escalate => "escalate",
            Self::Suspend => "suspend",
            Self::Fail => "fail",
        }
    }
}

/// When `state.json` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "four switches of a file")]
pub struct CheckpointTriggers {
    /// Before a turn.
    pub pre_turn: bool,
    /// After an answer.
    pub post_llm: bool,
    /// After the tools of a turn.
    pub post_tools: bool,
    /// After a failure.
    pub on_error: bool,
}

impl CheckpointTriggers {
    /// Whether it is written at this moment.
    #[must_use]
    pub fn is_enabled(&self, trigger: SaveTrigger) -> bool {
        match trigger {
            SaveTrigger::PreTurn => self.pre_turn,
            SaveTrigger::PostLlm => self.post_llm,
            SaveTrigger::PostTools => self.post_tools,
            SaveTrigger::OnError => self.on_error,
            SaveTrigger::Always => true,
        }
    }
}

/// Waiting for threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitConfig {
    /// The default timeout of `wait_threads`.
    pub wait_timeout_ms: u64,
    /// Whether waiting ends at the first failure.
    pub fail_fast: bool,
    /// Whether one failure cancels the others that are waited for.
    pub cancel_siblings_on_failure: bool,
    /// Threads that one call waits for.
    pub max_wait_thread_ids: u64,
    /// How long an ended thread's result is kept at hand.
    pub completion_event_ttl_ms: u64,
}

/// What becomes of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildAction {
    /// It is cancelled, and its children too.
    CascadeCancel,
    /// It continues.
    Allow,
}

/// What becomes of children when their parent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ChildPolicy {
    /// When it is cancelled.
    pub on_parent_cancel: ChildAction,
    /// When it is done.
    pub on_parent_complete: ChildAction,
    /// When it fails.
    pub on_parent_error: ChildAction,
}

/// How many threads are at work at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Concurrency {
    /// Children of one thread.
    pub max_concurrent_children: u64,
    /// Threads of one tree.
    pub max_total_threads: u64,
    /// How long a child waits for its place, and a call for money that is reserved for others.
    #[serde(default = "default_queue_timeout")]
    pub queue_timeout_seconds: u64,
}

/// What configurations of releases without the key mean.
fn default_queue_timeout() -> u64 {
    300
}

impl Concurrency {
    /// How long waiting in a queue may take.
    #[must_use]
    pub fn queue_timeout_ms(&self) -> u64 {
        self.queue_timeout_seconds.saturating_mul(1000)
    }
}

/// Granted tools that are offered to the model directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ToolPreload {
    /// Whether they are.
    pub enabled: bool,
    /// What their definitions may take.
    pub max_tokens: u64,
}

#[derive(Deserialize)]
struct ResilienceFile {
    retry: RetryConfig,
    limits: LimitsSection,
    checkpoint: CheckpointSection,
    coordination: WaitSection,
    child_policy: ChildPolicy,
    concurrency: Concurrency,
    tool_preload: ToolPreload,
    #[serde(default)]
    hooks: HooksSection,
}

#[derive(Deserialize)]
struct HooksSection {
    call_timeout_seconds: f64,
}

impl Default for HooksSection {
    fn default() -> Self {
        Self { call_timeout_seconds: DEFAULT_CALL_HOOK_SECONDS }
    }
}

#[derive(Deserialize)]
struct LimitsSection {
    defaults: Map<String, Value>,
    enforcement: EnforcementSection,
}

#[derive(Deserialize)]
struct EnforcementSection {
    check_before_turn: bool,
    check_after_turn: bool,
    on_exceed: OnExceed,
}

#[derive(Deserialize)]
struct CheckpointSection {
    triggers: CheckpointTriggers,
}

#[derive(Deserialize)]
struct WaitSection {
    wait_timeout_seconds: f64,
    fail_fast: bool,
    cancel_siblings_on_failure: bool,
    max_wait_thread_ids: u64,
    completion_event_ttl_seconds: f64,
}

impl Resilience {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let file: ResilienceFile = super::typed(value)?;
        let default_limits = ThreadLimits::default()
            .with_overrides(&file.limits.defaults)
            .map_err(|error| format!("limits.defaults: {error}"))?;
        let waiting = file.coordination;
        Ok(Self {
            retry: file.retry,
            default_limits,
            check_before_turn: file.limits.enforcement.check_before_turn,
            check_after_turn: file.limits.enforcement.check_after_turn,
            on_exceed: file.limits.enforcement.on_exceed,
            triggers: file.checkpoint.triggers,
            coordination: WaitConfig {
                wait_timeout_ms: milliseconds(waiting.wait_timeout_seconds),
                fail_fast: waiting.fail_fast,
                cancel_siblings_on_failure: waiting.cancel_siblings_on_failure,
                max_wait_thread_ids: waiting.max_wait_thread_ids,
                completion_event_ttl_ms: milliseconds(waiting.completion_event_ttl_seconds),
            },
            child_policy: file.child_policy,
            concurrency: file.concurrency,
            tool_preload: file.tool_preload,
            call_hook_timeout_ms: milliseconds(file.hooks.call_timeout_seconds),
        })
    }
}

/// Moments at which `state.json` may be written; `resilience.yaml` chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveTrigger {
    /// Before the model is asked.
    PreTurn,
    /// After it answered.
    PostLlm,
    /// After its tool calls.
    PostTools,
    /// After a failure.
    OnError,
    /// Always: it stopped or ended.
    Always,
}
