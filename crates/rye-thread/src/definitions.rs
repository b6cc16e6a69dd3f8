//! The tools a model is offered, and what each of its calls means.
//!
//! Made once from the grants and frozen with the thread: the primary tools that are granted, every granted tool by name as
//! far as there is room, `directive_return` if outputs are declared. [`ToolDefinitions::target`] turns a call into the
//! action that will be dispatched, which is also what is checked: no other field of the call names an item.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{ToolCall, ToolDefinition};
use rye_item::ItemType;
use rye_item::parameters;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::action::{Action, ActionError, PrimaryAction};
use crate::envelope::outputs_report_failure;

/// Starts a thread.
pub const THREAD_DIRECTIVE: &str = "rye/agent/threads/thread_directive";
/// Waits for, asks about and ends threads.
pub const ORCHESTRATOR: &str = "rye/agent/threads/orchestrator";
/// Asks a person.
pub const HUMAN_APPROVAL: &str = "rye/agent/threads/human_approval";
/// Ends the thread with its outputs.
pub const DIRECTIVE_RETURN: &str = "rye/agent/threads/directive_return";
/// Reads a result of the thread that was too long.
pub const READ_ARTIFACT: &str = "rye/agent/threads/read_artifact";
/// The error code of a call that means nothing.
pub const INVALID_CALL: &str = "RYE1125";
/// How many names a refusal lists.
const MAX_LISTED_NAMES: usize = 40;

/// What a model is offered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinitions {
    /// The tools, as a provider sends them.
    pub tools: Arc<[ToolDefinition]>,
    /// What each name stands for.
    pub names: BTreeMap<String, ToolBinding>,
    /// What is granted and not offered by name, and why. It can still be called through `rye_execute`.
    pub skipped: Vec<SkippedTool>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolBinding {
    /// A primary action on the item that the call names.
    Primary(PrimaryAction),
    /// This tool.
    Tool(String),
    /// The end of the thread.
    DirectiveReturn,
    /// A result that was too long.
    ReadArtifact,
}

/// A granted tool that is not offered by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedTool {
    /// The tool.
    pub item_id: String,
    /// Why.
    pub reason: String,
}

/// What a call means.
#[derive(Clone, Debug, PartialEq)]
pub enum CallTarget {
    /// An action for the dispatcher.
    Action(Action),
    /// The thread ends with these outputs.
    DirectiveReturn(Map<String, Value>),
    /// A child thread.
    Spawn(Action),
    /// Something about other threads.
    Orchestrate(Action),
    /// A question to a person.
    RequestApproval(Action),
    /// A slice of an earlier result: the parameters of `rye_artifact_read`.
    ReadArtifact(Map<String, Value>),
}

impl CallTarget {
    /// What an action means: threads are started and led by the thread that asks, everything else is dispatched.
    #[must_use]
    pub fn from_action(action: Action) -> Self {
        let is_execute = action.primary == PrimaryAction::Execute;
        let is_fork =
            action.item_type == Some(ItemType::Directive) && action.text_option("thread") == Some("fork");
        if is_execute && (is_fork || action.is_for_item(ItemType::Tool, THREAD_DIRECTIVE)) {
            Self::Spawn(action)
        } else if is_execute && action.is_for_item(ItemType::Tool, ORCHESTRATOR) {
            Self::Orchestrate(action)
        } else if is_execute && action.is_for_item(ItemType::Tool, HUMAN_APPROVAL) {
            Self::RequestApproval(action)
        } else if is_execute && action.is_for_item(ItemType::Tool, READ_ARTIFACT) {
            Self::ReadArtifact(action.params)
        } else {
            Self::Action(action)
        }
    }
}

/// Why a call means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct InvalidCall {
    /// What to tell the model.
    pub message: String,
}

impl InvalidCall {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// The result the model gets instead.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "status": "error",
            "error": self.message,
            "code": INVALID_CALL,
        })
    }
}

impl From<ActionError> for InvalidCall {
    fn from(error: ActionError) -> Self {
        Self::new(error.to_string())
    }
}

impl ToolDefinitions {
    /// What a call means.
    ///
    /// # Errors
    /// When the name was not offered, or the arguments do not fit.
    pub fn target(&self, call: &ToolCall) -> Result<CallTarget, InvalidCall> {
        let Some(binding) = self.names.get(&call.name) else {
            return Err(self.unknown_tool(&call.name));
        };
        if call.malformed.is_some() {
            return Err(InvalidCall::new(format!(
                "the arguments of {} are no JSON object; call it again with a whole one",
                call.name
            )));
        }
        match binding {
            ToolBinding::Tool(id) => {
                let (item_type, item_id) = (Some(ItemType::Tool), Some(id.clone()));
                let action = Action {
                    primary: PrimaryAction::Execute,
                    item_type,
                    item_id,
                    params: call.input.clone(),
                    options: Map::new(),
                };
                Ok(CallTarget::from_action(action.validate()?))
            }
            ToolBinding::Primary(primary) => self.primary_target(*primary, call),
            ToolBinding::DirectiveReturn => self.return_target(call.input.clone()),
            ToolBinding::ReadArtifact => Ok(CallTarget::ReadArtifact(call.input.clone())),
        }
    }

    fn unknown_tool(&self, name: &str) -> InvalidCall {
        let name: String = one_line(name).chars().take(80).collect();
        let known: Vec<&str> = self.names.keys().take(MAX_LISTED_NAMES).map(String::as_str).collect();
        if known.is_empty() {
            return InvalidCall::new(format!("there is no tool `{name}`: this thread has none"));
        }
        let more = self.names.len().saturating_sub(MAX_LISTED_NAMES);
        let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
        InvalidCall::new(format!("there is no tool `{name}`; there are: {}{rest}", known.join(", ")))
    }

    /// The definition of a name.
    #[must_use]
    pub fn definition(&self, name: &str) -> Option<&ToolDefinition> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn primary_target(&self, primary: PrimaryAction, call: &ToolCall) -> Result<CallTarget, InvalidCall> {
        let known = self.definition(&call.name).and_then(|tool| tool.schema["properties"].as_object());
        let mut input = call.input.clone();
        input.retain(|_, value| !value.is_null());
        if let Some(unknown) = input.keys().find(|key| known.is_none_or(|known| !known.contains_key(*key))) {
            let known: Vec<&str> = known.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            let unknown: String = one_line(unknown).chars().take(80).collect();
            let message =
                format!("{} has no argument `{unknown}`; it takes: {}", call.name, known.join(", "));
            return Err(InvalidCall::new(message));
        }
        let mut fields = input;
        fields.insert("primary".to_owned(), json!(primary));
        // What a tool calls `params` itself stays inside `parameters`: the schema has no other key for them.
        let action = Action::from_value(&Value::Object(fields))?;
        if primary == PrimaryAction::Execute && action.is_for_item(ItemType::Tool, DIRECTIVE_RETURN) {
            if self.names.values().any(|bound| *bound == ToolBinding::DirectiveReturn) {
                return self.return_target(action.params);
            }
            return Err(InvalidCall::new(
                "this directive declares no outputs: answer with text when you are done",
            ));
        }
        Ok(CallTarget::from_action(action))
    }

    /// The outputs, if they are what the directive declares. Who is blocked says `status: error` and may leave them out.
    fn return_target(&self, mut input: Map<String, Value>) -> Result<CallTarget, InvalidCall> {
        input.retain(|_, value| !value.is_null());
        let binding = self.names.iter().find(|(_, binding)| **binding == ToolBinding::DirectiveReturn);
        let Some(definition) = binding.and_then(|(name, _)| self.definition(name)) else {
            return Err(InvalidCall::new("this directive declares no outputs"));
        };
        let mut schema = definition.schema.clone();
        if outputs_report_failure(&input) {
            schema["required"] = json!([]);
        }
        match parameters::check(input, Some(&schema)) {
            Ok(outputs) => Ok(CallTarget::DirectiveReturn(outputs)),
            Err(error) => Err(InvalidCall::new(format!(
                "the outputs do not fit: {error}; call {} again",
                definition.name
            ))),
        }
    }
}
