//! What a thread tells its own tools: a snapshot, made for each call.

use std::fmt;
use std::sync::Arc;

use rye_engine::verbs::execute::{BlockingHook, CallbackProvider};
use rye_thread::call_hooks::{CallEvent, HookContext, NeededFields};
use serde_json::{Map, Value};

use crate::action::Action;
use crate::config::Criticality;
use crate::cost::Cost;
use crate::money::Nanos;
use crate::spec::ThreadSpec;
use crate::thread_id::ThreadId;

/// Answers questions of internal tools from the thread's frozen configuration.
pub trait FrozenConfig: Send + Sync {
    /// Classifies `{"error", "status_code", "headers"}` as `error_classification.yaml` says.
    fn classify(&self, failure: &Value) -> Value;

    /// The criticality an event has by `events.yaml`.
    fn criticality(&self, event_type: &str) -> Criticality;

    /// Whether a payload is what `events.yaml` declares for an event.
    ///
    /// # Errors
    /// What does not fit.
    fn check_payload(&self, event_type: &str, payload: &Map<String, Value>) -> Result<(), String>;

    /// What happens when a limit is exceeded: `limits.enforcement.on_exceed`.
    fn on_exceed(&self) -> &str;

    /// Why a person must approve what needs these grants, by `capability_risk.yaml`; nothing if no one must.
    fn approval_reason(&self, required: &[String]) -> Option<String>;

    /// The hook around calls that would run for this action, if one would.
    fn watching_hook(&self, action: &Action, cost: &Cost) -> Option<String>;
}

/// What is known of a thread while one of its actions runs.
#[derive(Clone)]
pub struct ThreadContext {
    /// Its name.
    pub thread_id: ThreadId,
    /// What it has used.
    pub cost: Cost,
    /// Whether it was asked to end.
    pub is_cancelled: bool,
    /// What its frozen configuration says.
    pub config: Arc<dyn FrozenConfig>,
    /// The ledger, if the thread has a budget.
    pub budget: Option<Arc<dyn BudgetAccess>>,
    /// Makes the callback channels of tools that are processes: through them they ask something of the thread.
    pub callback: Option<Arc<dyn CallbackProvider>>,
    /// Hears that the action begins to wait for others.
    pub blocking_hook: Option<BlockingHook>,
}

impl fmt::Debug for ThreadContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ThreadContext").field("thread_id", &self.thread_id).finish_non_exhaustive()
    }
}

/// What internal tools may do with the ledger.
pub trait BudgetAccess: Send + Sync {
    /// Whether `thread` is `root` or one of its descendants.
    fn is_within(&self, root: &ThreadId, thread: &ThreadId) -> bool;

    /// What `thread` can still spend; `None` is as much as it likes.
    ///
    /// # Errors
    /// When the ledger cannot be used.
    fn remaining(&self, thread: &ThreadId) -> Result<Option<Nanos>, String>;
}

impl FrozenConfig for ThreadSpec {
    fn classify(&self, failure: &Value) -> Value {
        self.template.config.classification.classify(failure).to_value()
    }

    fn criticality(&self, event_type: &str) -> Criticality {
        self.template.config.events.criticality(event_type)
    }

    fn check_payload(&self, event_type: &str, payload: &Map<String, Value>) -> Result<(), String> {
        self.template.config.events.check_payload(event_type, payload)
    }

    fn on_exceed(&self) -> &str {
        self.template.config.resilience.on_exceed.as_str()
    }

    fn approval_reason(&self, required: &[String]) -> Option<String> {
        self.template.config.risk.approval_reason(required)
    }

    fn watching_hook(&self, action: &Action, cost: &Cost) -> Option<String> {
        let hooks = &self.template.hooks;
        let is_watched = |event: &CallEvent| hooks.has_around(*event);
        [CallEvent::BeforeTool, CallEvent::AfterTool].into_iter().filter(is_watched).find_map(|event| {
            let of = (action, &action.params);
            let context = |needed: &NeededFields| {
                Some(HookContext::of_tool(self, cost, "tool", of, needed).into_fields())
            };
            let (_, at, _) = hooks.next_around(event, 0, self.template.revision, context)?;
            Some(hooks.get(at)?.id.clone())
        })
    }
}
