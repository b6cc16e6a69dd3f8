//! What a thread is, frozen when it starts: its directive's words, limits, capabilities, hooks, tools, model and the
//! configuration it was started under. Policy holds after a resume because nothing of this is read again.

use std::sync::Arc;

use crate::model::{Message, Price};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::capability::Capabilities;
use crate::config::Config;
use crate::cost::Attribution;
use crate::definitions::Definitions;
use crate::hooks::Hooks;
use crate::limits::Limits;
use crate::thread_id::ThreadId;

/// One thread: what is its own, and what it shares with others of its kind.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What is its own.
    pub own: Own,
    /// What it shares.
    pub shared: Arc<Shared>,
}

/// What is a thread's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Its name.
    pub thread_id: ThreadId,
    /// Who started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ThreadId>,
    /// What the model is asked to do.
    pub prompt: String,
    /// The inputs the prompt was filled with.
    pub inputs: Map<String, Value>,
    /// The directive's action tags, filled in: the offline provider's script.
    pub actions: Vec<Value>,
    /// How much it may use at first; a person may allow more later.
    pub limits: Limits,
    /// What it may do: what the directive asks for, narrowed by its parent.
    pub capabilities: Capabilities,
    /// The thread it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<ThreadId>,
    /// What was said there, as far as it goes along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Arc<Message>>,
    /// What the model is told after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What of its parent started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// What of a thread starts another: what it costs is told by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A tool: the one the model called, or one that called `rye`.
    Tool(String),
    /// A hook, by its id.
    Hook(String),
}

impl Spec {
    /// What its calls are booked under.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        let (tool, hook) = match &self.own.cause {
            Some(Cause::Tool(item)) => (Some(item.clone()), None),
            Some(Cause::Hook(id)) => (None, Some(id.clone())),
            None => (None, None),
        };
        Attribution { item: self.shared.directive.clone(), model: self.shared.model.clone(), tool, hook }
    }
}

/// What threads of one directive under one configuration share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shared {
    /// The directive's id.
    pub directive: String,
    /// The hash of the directive's file.
    pub directive_hash: String,
    /// What it must return.
    pub outputs: Vec<Value>,
    /// A system prompt, if the directive or a hook asked for one.
    pub system: Option<String>,
    /// Knowledge that stands before the prompt.
    pub before: Vec<String>,
    /// Knowledge that stands after the prompt.
    pub after: Vec<String>,
    /// All hooks, in order.
    pub hooks: Hooks,
    /// The tools offered to the model, and what each name stands for.
    pub definitions: Definitions,
    /// The provider's item.
    pub provider: String,
    /// The model.
    pub model: String,
    /// What a token costs; nothing is known of a provider that is not priced.
    pub price: Option<Price>,
    /// How many tokens the model can look at.
    pub context_window: u64,
    /// How many tokens one answer may have.
    pub max_output_tokens: u64,
    /// Whether answers are streamed.
    pub wants_stream: bool,
    /// The configuration of threads.
    #[serde(with = "frozen")]
    pub config: Config,
}

impl Shared {
    /// Whether answers cost nothing and use nothing: a script, not a model.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.price == Some(Price::default())
    }
}

/// The configuration as the values it was read from: the same values, the same behaviour.
mod frozen {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Map, Value};

    use crate::config::Config;

    pub(super) fn serialize<S: Serializer>(config: &Config, serializer: S) -> Result<S::Ok, S::Error> {
        config.values().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let values = Map::<String, Value>::deserialize(deserializer)?;
        Config::from_values(&values).map_err(serde::de::Error::custom)
    }
}
