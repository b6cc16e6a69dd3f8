//! The configuration of threads: what `.ai/config/agent/*.yaml` says, read into types.
//!
//! Files merge system → user → project, judged key by key like every config (`rye_space::config`). What counts is checked
//! whole before it is used: every mistake of every file at once, with its place. The merged values are kept beside the
//! types, so that a thread can freeze them: the same values give the same behaviour.

mod agent;
mod check;
mod coordination;
mod events;
mod hooks;
#[cfg(test)]
mod keys_test;
mod ledger;
mod resilience;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use lillux::Digest;
use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, Space};
use rye_space::Workspace;
use rye_space::config::{Ignored, Layer, Standing};
use rye_space::stamp::Watched;
use rye_trust::Subject;
use serde_json::{Map, Value};

pub use agent::Agent;
pub use check::{Mistake, check};
pub use coordination::{Continuation, Coordination, OrphanDetection, TranscriptIntegrity};
pub use events::{Criticality, EventType, Events};
pub use ledger::{Column, ColumnKind, Index, LedgerSchema};
pub use resilience::{
    ChildFate, ChildPolicy, Concurrency, OnExceed, Resilience, Retry, ToolPreload, Triggers, Waiting,
};

use crate::classify::Classification;
use crate::hooks::Hook;
use crate::risk::RiskRules;

/// The files of the configuration, without folder and extension.
pub const NAMES: [&str; 9] = [
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
pub struct Config {
    /// Which model is asked when nothing else says it.
    pub agent: Agent,
    /// Which failures pass by themselves.
    pub classification: Classification,
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

impl Config {
    /// Reads the configuration of a workspace.
    ///
    /// # Errors
    /// Every mistake in every file that counts, with its place.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        Self::read(workspace, true)
    }

    /// The same for those who only end, wait for or look at threads: files that cannot be read are left out.
    ///
    /// # Errors
    /// The other mistakes.
    pub fn load_readable(workspace: &Workspace) -> Result<Self> {
        Self::read(workspace, false)
    }

    fn read(workspace: &Workspace, is_strict: bool) -> Result<Self> {
        let mut values = Map::new();
        let mut notices = Vec::new();
        let mut mistakes = Vec::new();
        for name in NAMES {
            let id = ItemId::new(format!("agent/{name}"))?;
            let (merged, layers) = workspace.config_with_layers(&id);
            // A file that cannot be read may have said less, or guarded something: nothing is run as if it were not there.
            // A bundle that nobody approved says nothing either way.
            let is_unread =
                |told: &&Ignored| is_strict && told.key == "*" && !matches!(told.space, Space::System(_));
            let (unread, ignored): (Vec<_>, Vec<_>) = merged.ignored.iter().partition(is_unread);
            mistakes.extend(unread.into_iter().map(|told| Mistake {
                file: told.path.display().to_string(),
                position: told.position,
                key: String::new(),
                message: told.reason.clone(),
            }));
            for told in ignored.into_iter().chain(&merged.unsigned).chain(&merged.flat) {
                let place = told.position.map(|position| format!(":{position}")).unwrap_or_default();
                notices.push(format!("{}{place}: {}: {}", told.path.display(), told.key, told.reason));
            }
            let counting: Vec<&Layer> = layers.iter().filter(|layer| counts(layer)).collect();
            if let Some(schema) = workspace.schema_for(&id) {
                // The binary's own files are held by tests.
                let own = |layer: &&&Layer| !matches!(layer.located.space(), Space::System(_));
                for layer in counting.iter().filter(own) {
                    let text = String::from_utf8_lossy(layer.located.bytes()).into_owned();
                    let fields = &layer.located.parsed().fields;
                    mistakes.extend(check::check_file(name, fields, schema, &layer.located.path, &text));
                }
            }
            let value = match name {
                "hooks" => hooks::concatenated(&counting, &mut notices),
                "hook_conditions" => hooks::with_origins(merged.value, &counting, &mut notices),
                _ => merged.value,
            };
            values.insert(name.to_owned(), value);
        }
        if !mistakes.is_empty() {
            return Err(check::refusal(&mistakes));
        }
        Ok(Self { notices, ..Self::from_values(&values)? })
    }

    /// The configuration that these merged values say: what [`Config::to_value`] gave.
    ///
    /// # Errors
    /// When a file is missing or a value is none.
    pub fn from_values(values: &Map<String, Value>) -> Result<Self> {
        let missing = Value::Null;
        let of = |name: &str| values.get(name).unwrap_or(&missing);
        let mut wrong = Vec::new();
        macro_rules! read {
            ($name:literal, $result:expr) => {
                $result.map_err(|message: String| wrong.push(Mistake::of_merged($name, message))).ok()
            };
        }
        let agent = read!("agent", Agent::from_value(of("agent")));
        let resilience = read!("resilience", Resilience::from_value(of("resilience")));
        let classification = resilience.as_ref().and_then(|resilience| {
            let policies = &resilience.retry.policies;
            read!("error_classification", Classification::from_value(of("error_classification"), policies))
        });
        let coordination = read!("coordination", Coordination::from_value(of("coordination")));
        let events = read!("events", Events::from_value(of("events")));
        let hooks = read!("hook_conditions", hooks::read(of("hook_conditions"), of("hooks")));
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
            _ => Err(check::refusal(&wrong)),
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
        lillux::canonical::digest(&self.to_value())
    }

    /// How long `wait_threads` waits when it is not told, in milliseconds.
    #[must_use]
    pub fn wait_timeout_ms(&self) -> u64 {
        self.coordination.default_timeout_ms.unwrap_or(self.resilience.coordination.wait_timeout_ms)
    }
}

/// `capability_risk.yaml`: rules that can judge.
fn risk_rules(value: &Value) -> std::result::Result<RiskRules, String> {
    let rules: RiskRules = typed(value)?;
    rules.check().map_err(|refused| refused.to_string())?;
    Ok(rules)
}

/// Whether a file counts as a whole. (Of others only keys marked safe do, and those are checked when they are merged.)
fn counts(layer: &Layer) -> bool {
    match (layer.standing, layer.located.space()) {
        (Standing::Vouched, _) | (Standing::Unsigned, Space::User) => true,
        // Nothing that decides about threads is taken from a bundle that is installed among other items.
        (
            Standing::Unsigned
            | Standing::Doubtful(_)
            | Standing::NotApproved
            | Standing::Installed
            | Standing::OutOfScope(_),
            _,
        ) => false,
    }
}

/// The configuration of a warm process: read again when a file that could say something has changed, come or gone, or
/// the workspace was opened anew.
#[derive(Debug, Default)]
pub struct Cache {
    last: Mutex<Option<Kept>>,
}

#[derive(Debug)]
struct Kept {
    files: Watched,
    opened_from: Watched,
    config: Arc<Config>,
}

impl Cache {
    /// The configuration of this workspace.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(&self, workspace: &Workspace) -> Result<Arc<Config>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = last.as_ref()
            && kept.opened_from == *workspace.opened_from()
            && kept.files.is_unchanged()
        {
            return Ok(Arc::clone(&kept.config));
        }
        // Watched before it is read: a change in between is noticed next time.
        let ids = NAMES.map(|name| format!("agent/{name}"));
        let files = workspace.watched_configs(&ids.each_ref().map(String::as_str));
        let config = Arc::new(Config::load(workspace)?);
        let opened_from = workspace.opened_from().clone();
        *last = Some(Kept { files, opened_from, config: Arc::clone(&config) });
        Ok(config)
    }
}

/// Reads a value into a type, with the place of what does not fit.
fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> std::result::Result<T, String> {
    T::deserialize(value).map_err(|error| rye_item::text::one_line(&error.to_string()))
}

/// Seconds as files write them, in milliseconds.
pub(crate) fn milliseconds(seconds: f64) -> u64 {
    /// A day: beyond any delay or timeout that makes sense.
    const MOST: f64 = 86_400_000.0;
    let milliseconds = (seconds * 1000.0).round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded right here")]
    if milliseconds.is_finite() { milliseconds.clamp(0.0, MOST) as u64 } else { 0 }
}

fn refused(message: String) -> Error {
    Error::new(Code::ThreadConfig, message).hint("rye config show")
}
