//! What a thread is, frozen when it starts: its directive's words, limits, capabilities, hooks, tools, model and the
//! configuration it was started under. Policy holds after a resume because nothing of this is read again.

use std::sync::Arc;

use crate::model::{ChatMessage, FilePart, ModelSettings, TokenPrice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::capability::Capabilities;
use crate::config::ThreadConfig;
use crate::cost::Attribution;
use crate::definitions::ToolDefinitions;
use crate::hooks::Hooks;
use crate::limits::ThreadLimits;
use crate::thread_id::ThreadId;

/// One thread: what is its own, and what it shares with others of its kind.
#[derive(Clone, Debug)]
pub struct ThreadSpec {
    /// What is its own.
    pub instance: ThreadInstance,
    /// What it shares.
    pub template: Arc<ThreadTemplate>,
}

/// What is a thread's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadInstance {
    /// Its name.
    pub thread_id: ThreadId,
    /// Who started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ThreadId>,
    /// What the model is asked to do.
    pub prompt: String,
    /// The inputs the prompt was filled with.
    pub inputs: Map<String, Value>,
    /// The files among its inputs, as they were read when it was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilePart>,
    /// The directive's action tags, filled in: the offline provider's script.
    pub actions: Vec<Value>,
    /// How much it may use at first; a person may allow more later.
    pub limits: ThreadLimits,
    /// What it may do: what the directive asks for, narrowed by its parent.
    pub capabilities: Capabilities,
    /// The thread it continues from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "continues")]
    pub continuation_of: Option<ThreadId>,
    /// The turn of another thread that it begins from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkSource>,
    /// What was said there, as far as it goes along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Arc<ChatMessage>>,
    /// What the model is given after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What of its parent started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "cause")]
    pub spawn_reason: Option<SpawnReason>,
    /// How many threads are above it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// Whether it fails where another thread would be suspended: what waits for it has another way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cannot_suspend: bool,
    /// The secrets that were removed from its inputs, message and files before it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_secrets: Option<RemovedSecrets>,
}

/// Secrets that were removed from what a thread was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedSecrets {
    /// How many.
    pub count: u64,
    /// The variables or kinds of secrets.
    pub names: Vec<String>,
}

impl ThreadInstance {
    /// The thread whose conversation it has, if it has one.
    #[must_use]
    pub fn previous_thread(&self) -> Option<&ThreadId> {
        self.continuation_of.as_ref().or(self.forked_from.as_ref().map(|source| &source.thread_id))
    }
}

/// The turn of another thread that a thread begins from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkSource {
    /// The other thread.
    pub thread_id: ThreadId,
    /// How many times its model had answered.
    pub turn: u64,
    /// The digest of its journal up to there: the records, a line each.
    pub journal: String,
}

/// What of a thread starts another: what it costs is reported by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpawnReason {
    /// A tool: the one the model called, or one that called `rye`.
    Tool(String),
    /// A hook, by its id.
    Hook(String),
}

impl ThreadSpec {
    /// What its calls are booked under.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        let (tool, hook) = match &self.instance.spawn_reason {
            Some(SpawnReason::Tool(item)) => (Some(item.clone()), None),
            Some(SpawnReason::Hook(id)) => (None, Some(id.clone())),
            None => (None, None),
        };
        Attribution { item: self.template.directive.clone(), model: self.template.model.clone(), tool, hook }
    }
}

/// The rules of the state machine that new threads follow. A thread keeps those it was started under, so that replaying
/// its journal leads to the same states and events.
///
/// | revision | what it adds |
/// |---|---|
/// | 0 | threads of releases that did not record one |
/// | 1 | hooks cannot emit core events; control results count after every event; `thread_resumed` after a crash; `required` in `permission_denied` |
/// | 2 | hooks around calls; prompts are estimated where their bound does not fit; calls wait for money that is only reserved; `content_redacted`; exhausted retries suspend with the reason `provider`; a tier falls back to its next model |
/// | 3 | hooks of directives and projects do nothing that a person is asked about; a hook fails whose answer isn't an object; conditions and rules of risk that name one id of a tool mean its other id too |
/// | 4 | a hook before a call fails that answers with a failure |
/// | 5 | what is reserved for an estimated prompt is the most that the estimate allows for; `thread_resumed` says what a call was charged that a crash interrupted; tokens of calls that were broken off count |
/// | 6 | an answer after a reminder replaces the one before it; a reached duration names the calls that it stopped; hooks of directives and projects add nothing to the ledger, and no hook adds more than `MAX_REPORTED`; a printed answer with a duplicate key cannot be read |
/// | 7 | after a crash, a hook's tool is run again only if it lies in the folder of hook tools, not if its path merely contains that folder's |
pub const MACHINE_REVISION: u32 = 7;

/// What threads of one directive under one configuration share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadTemplate {
    /// The rules of the state machine it follows: [`MACHINE_REVISION`] when it was made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u32,
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
    pub definitions: ToolDefinitions,
    /// The provider's item.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The providers that could serve the tier when there were several, in order: the first one is asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// The models that are asked, in order, when this one fails for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<FallbackModel>,
    /// What a token costs; nothing is known of a provider that is not priced.
    pub price: Option<TokenPrice>,
    /// How many tokens the model can look at.
    pub context_window: u64,
    /// How many tokens one answer may have.
    pub max_output_tokens: u64,
    /// How the model is asked to answer.
    #[serde(default, skip_serializing_if = "is_default_settings")]
    pub settings: Arc<ModelSettings>,
    /// Whether answers are streamed.
    pub wants_stream: bool,
    /// The configuration of threads.
    #[serde(with = "config_values")]
    pub config: ThreadConfig,
}

/// A model that is asked when those before it failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FallbackModel {
    /// The provider's item.
    pub provider: String,
    /// The model.
    pub model: String,
    /// What a token costs.
    pub price: Option<TokenPrice>,
    /// How many tokens the model can look at.
    pub context_window: u64,
    /// How many tokens one answer may have.
    pub max_output_tokens: u64,
}

/// The model that a thread asks at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveModel<'a> {
    /// The provider's item.
    pub provider: &'a str,
    /// The model.
    pub model: &'a str,
    /// What a token costs.
    pub price: Option<TokenPrice>,
    /// How many tokens the model can look at.
    pub context_window: u64,
    /// How many tokens one answer may have.
    pub max_output_tokens: u64,
}

impl ActiveModel<'_> {
    /// Whether answers cost nothing and use nothing: a script, not a model.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.price == Some(TokenPrice::default())
    }
}

impl ThreadTemplate {
    /// The first model, or the fallback of this number, counted from 1.
    #[must_use]
    pub fn model_at(&self, index: usize) -> ActiveModel<'_> {
        match index.checked_sub(1).and_then(|index| self.fallbacks.get(index)) {
            Some(fallback) => ActiveModel {
                provider: &fallback.provider,
                model: &fallback.model,
                price: fallback.price,
                context_window: fallback.context_window,
                max_output_tokens: fallback.max_output_tokens,
            },
            None => ActiveModel {
                provider: &self.provider,
                model: &self.model,
                price: self.price,
                context_window: self.context_window,
                max_output_tokens: self.max_output_tokens,
            },
        }
    }

    /// Whether answers cost nothing and use nothing: a script, not a model.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.price == Some(TokenPrice::default())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

fn is_default_settings(settings: &Arc<ModelSettings>) -> bool {
    settings.is_default()
}

/// The configuration as the values it was read from: the same values, the same behaviour.
mod config_values {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Map, Value};

    use crate::config::ThreadConfig;

    pub(super) fn serialize<S: Serializer>(config: &ThreadConfig, serializer: S) -> Result<S::Ok, S::Error> {
        config.values().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ThreadConfig, D::Error> {
        let values = Map::<String, Value>::deserialize(deserializer)?;
        ThreadConfig::from_values(&values).map_err(serde::de::Error::custom)
    }
}
