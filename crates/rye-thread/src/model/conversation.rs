//! What a model is asked: a conversation, and the tools it may call. The same for every provider.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{FileContents, FilePart, ModelSettings};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum ChatMessage {
    /// What the user says.
    User {
        /// The words.
        text: String,
        /// Files that are shown before them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        files: Vec<FilePart>,
    },
    /// What the model said.
    Assistant {
        /// The words.
        text: String,
        /// The tools it called.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCall>,
        /// What the provider wants back unchanged, from [`super::ModelResponse::replay`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        replay: Vec<Value>,
    },
    /// What a tool answered.
    Tool {
        /// Which call it answers.
        call_id: String,
        /// The tool's name in the call.
        name: String,
        /// The answer.
        content: String,
        /// Whether the call failed.
        #[serde(default)]
        is_error: bool,
    },
}

impl ChatMessage {
    /// What the user says, without files.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into(), files: Vec::new() }
    }

    /// The files it shows.
    #[must_use]
    pub fn files(&self) -> &[FilePart] {
        match self {
            Self::User { files, .. } => files,
            Self::Assistant { .. } | Self::Tool { .. } => &[],
        }
    }
}

/// A tool the model calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call; unique within a conversation.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// What the model wrote instead of a JSON object, or as much of one as there was room for; `input` is then empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<String>,
}

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub schema: Value,
    /// The item behind it: `{"primary", "item_type", "item_id"}`. Never sent.
    #[serde(default)]
    pub target: Value,
}

/// One request to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The model, as its provider names it.
    pub model: String,
    /// The system prompt, if there is one.
    #[serde(default)]
    pub system: Option<String>,
    /// The conversation so far.
    pub messages: Vec<Arc<ChatMessage>>,
    /// The tools on offer.
    pub tools: Arc<[ToolDefinition]>,
    /// How long the answer may be.
    pub max_output_tokens: u64,
    /// How it is asked to answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: Arc<ModelSettings>,
    /// The bytes of the files that messages show, put here right before the request is sent.
    #[serde(skip)]
    pub files: Arc<FileContents>,
    /// Whether the answer should come piece by piece.
    #[serde(default)]
    pub wants_stream: bool,
}

fn is_default(settings: &Arc<ModelSettings>) -> bool {
    settings.is_default()
}
