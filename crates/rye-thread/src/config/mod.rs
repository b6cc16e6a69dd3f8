//! The configuration of threads: what `.ai/config/agent/*.yaml` says, as types.
//!
//! It is made from merged values (reading and merging files is the caller's work), and keeps them beside the types, so that
//! a thread can freeze them: the same values give the same behaviour.

mod agent;
mod coordination;
mod diagnostic;
mod events;
pub mod hooks;
mod ledger;
mod resilience;

use lillux_hash::Digest;
use serde_json::{Map, Value};

pub use agent::{AgentConfig, TierModel};
pub use coordination::{Continuation, Coordination, OrphanDetection, TranscriptIntegrity};
pub use diagnostic::{ConfigDiagnostic, InvalidConfig};
pub use events::{Criticality, EventType, Events};
pub use ledger::{ColumnType, LedgerColumn, LedgerIndex, LedgerSchema};
pub use resilience::{
    CheckpointTriggers, ChildAction, ChildPolicy, Concurrency, OnExceed, Resilience, RetryConfig,
    SaveTrigger, ToolPreload, WaitConfig,
};

use crate::classify::ErrorClassifier;
use crate::hooks::Hook;
use crate::risk::RiskRules;

/// The files of the configuration, without folder and extension.
pub const CONFIG_NAMES: [&str; 9] = [
    "agent",
    "budget_ledger_schema",
    "capability_risk",
    "coordination",
    "error_classification",
    "events",
    "hook_conditions",
    "hooks",
    "resilience",
];

/// The configuration of threads.
#[derive(Clone, Debug)]
pub struct ThreadConfig {
    /// Which model is asked when nothing else says it.
    pub agent: AgentConfig,
    /// Which failures pass by themselves.
    pub classification: ErrorClassifier,
    /// Waiting, continuing, finding lost threads.
    pub coordination: Coordination,
    /// What transcripts record.
    pub events: Events,
    /// The hooks of all files; a directive's come on top ([`crate::hooks::Hooks`]).
    pub hooks: Vec<Hook>,
    /// The ledger's table and rules.
    pub ledger: LedgerSchema,
    /// Retries, limits, checkpoints, children.
    pub resilience: Resilience,
    /// How dangerous capabilities are.
    pub risk: RiskRules,
    /// What the user should know: keys that were left out, files that should be signed or moved.
    pub notices: Vec<String>,
    values: Map<String, Value>,
}

impl ThreadConfig {
    /// The configuration that these merged values say: what [`ThreadConfig::to_value`] gave.
    ///
    /// # Errors
    /// When a file is missing or a value is none.
    pub fn from_values(values: &Map<String, Value>) -> Result<Self, InvalidConfig> {
        let missing = Value::Null;
        let of = |name: &str| values.get(name).unwrap_or(&missing);
        let mut wrong = Vec::new();
        macro_rules! read {
            ($name:literal, $result:expr) => {
                $result
                    .map_err(|message: String| wrong.push(ConfigDiagnostic::of_merged($name, message)))
                    .ok()
            };
        }
        let agent = read!("agent", AgentConfig::from_value(of("agent")));
        let resilience = read!("resilience", Resilience::from_value(of("resilience")));
        let classification = resilience.as_ref().and_then(|resilience| {
            let policies = &resilience.retry.policies;
            read!("error_classification", ErrorClassifier::from_value(of("error_classification"), policies))
        });
        let coordination = read!("coordination", Coordination::from_value(of("coordination")));
        let events = read!("events", Events::from_value(of("events")));
        let hooks = read!("hook_conditions", hooks::parse_hooks(of("hook_conditions"), of("hooks")));
        let ledger = read!("budget_ledger_schema", LedgerSchema::from_value(of("budget_ledger_schema")));
        let risk = read!("capability_risk", risk_rules(of("capability_risk")));
        match (agent, resilience, classification, coordination, events, hooks, ledger, risk) {
            (
                Some(agent),
                Some(resilience),
                Some(classification),
                Some(coordination),
                Some(events),
                Some(hooks),
                Some(ledger),
                Some(risk),
            ) if wrong.is_empty() => Ok(Self {
                agent,
                classification,
                coordination,
                events,
                hooks,
                ledger,
                resilience,
                risk,
                notices: Vec::new(),
                values: values.clone(),
            }),
            _ => Err(InvalidConfig(wrong)),
        }
    }

    /// The merged values, by file: what a thread freezes.
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::Object(self.values.clone())
    }

    /// The same, as a map.
    #[must_use]
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// What the values are, as a digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        lillux_hash::canonical::digest(&self.to_value())
    }

    /// How long `wait_threads` waits when it is not told, in milliseconds.
    #[must_use]
    pub fn wait_timeout_ms(&self) -> u64 {
        self.coordination.default_timeout_ms.unwrap_or(self.resilience.coordination.wait_timeout_ms)
    }
}

/// `capability_risk.yaml`: rules that can judge.
fn risk_rules(value: &Value) -> Result<RiskRules, String> {
    let rules: RiskRules = typed(value)?;
    rules.check().map_err(|refused| refused.to_string())?;
    Ok(rules)
}

/// Reads a value into a type, with the place of what does not fit.
fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| rye_item::text::one_line(&error.to_string()))
}

#[cfg(test)]
impl ThreadConfig {
    /// The configuration that rye ships.
    #[expect(clippy::disallowed_methods, reason = "a test reads the shipped files")]
    pub(crate) fn shipped() -> Self {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bundles/standard/.ai/config/agent");
        let mut values = Map::new();
        for name in CONFIG_NAMES {
            let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap_or_default();
            let mut value = rye_item::yaml::parse(&text).expect("YAML").value;
            for (list, _, _) in hooks::HOOK_LISTS {
                let written = value.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
                written.for_each(|hook| hook["origin"] = serde_json::json!("system"));
            }
            values.insert(name.to_owned(), value);
        }
        Self::from_values(&values).expect("a configuration")
    }
}
