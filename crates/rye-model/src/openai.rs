//! OpenAI's chat completions, and everybody who speaks them: pieces that are merged, usage at the end.

use rye_thread::model::ModelSettings;
use serde::Serialize;
use serde_json::{Value, json};

use crate::files::{FileBlock, file_blocks};
use crate::json_ref::JsonRef;
use crate::protocol::{BodyOptions, SettingBounds, WireProtocol, replay_entries};
use crate::response_builder::{ResponseBuilder, ResponseParseError, ResponseParser, api_error, parse_json};
use crate::{ChatMessage, FilePart, FinishReason, ModelRequest, ToolCall, Usage};

const PROTOCOL: &str = "openai";

/// How many texts may end an answer.
const MAX_STOP_TEXTS: usize = 4;

/// The name of a response format, which the API wants and nothing else uses.
const FORMAT_NAME: &str = "answer";

/// OpenAI's chat completions.
#[derive(Debug)]
pub(crate) struct OpenAiChat;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Turn<'a> {
    System {
        content: &'a str,
    },
    User {
        content: UserContent<'a>,
    },
    Assistant {
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<&'a Value>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Text(&'a str),
    Parts(Vec<Value>),
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: String,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Definition<'a>,
}

#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

impl WireProtocol for OpenAiChat {
    fn body(
        &self,
        request: &ModelRequest,
        options: &BodyOptions,
        is_stream: bool,
    ) -> serde_json::Result<Vec<u8>> {
        body(request, options, is_stream)
    }

    fn parser(&self) -> Box<dyn ResponseParser> {
        Box::new(OpenAiParser::default())
    }

    fn check_settings(&self, settings: &ModelSettings, _: &SettingBounds) -> Result<(), String> {
        match settings.stop.len() {
            count if count > MAX_STOP_TEXTS => {
                Err(format!("`stop` has {count} texts, and it takes {MAX_STOP_TEXTS} at most"))
            }
            _ => Ok(()),
        }
    }
}

/// The body of a request.
fn body(request: &ModelRequest, options: &BodyOptions, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let settings = &request.settings;
    let max_tokens = Some(request.max_output_tokens);
    let system = request.system.as_deref().map(|content| Turn::System { content });
    let system = system.into_iter().map(Ok);
    let messages = request.messages.iter().map(|message| build_turn(request, message));
    serde_json::to_vec(&Body {
        model: &request.model,
        max_completion_tokens: max_tokens.filter(|_| !options.uses_max_tokens),
        max_tokens: max_tokens.filter(|_| options.uses_max_tokens),
        messages: system.chain(messages).collect::<serde_json::Result<_>>()?,
        tools: request
            .tools
            .iter()
            .map(|tool| Tool {
                r#type: "function",
                function: Definition {
                    name: &tool.name,
                    description: &tool.description,
                    parameters: &tool.schema,
                },
            })
            .collect(),
        temperature: settings.temperature,
        reasoning_effort: settings.reasoning_effort.map(|effort| effort.as_str()),
        stop: &settings.stop,
        response_format: settings.response_format.as_ref().map(format_body),
        stream: is_stream.then_some(true),
        stream_options: is_stream.then_some(StreamOptions { include_usage: true }),
    })
}

fn format_body(schema: &Value) -> Value {
    let format = json!({"name": FORMAT_NAME, "schema": schema, "strict": is_strict(schema)});
    json!({"type": "json_schema", "json_schema": format})
}

/// Whether the API can hold an answer to the schema: every object lists all its keys, requires them and allows no others.
fn is_strict(schema: &Value) -> bool {
    let Value::Object(fields) = schema else {
        return schema.as_array().is_none_or(|list| list.iter().all(is_strict));
    };
    let properties = fields.get("properties").and_then(Value::as_object);
    let is_object = properties.is_some() || fields.get("type").and_then(Value::as_str) == Some("object");
    let required = fields.get("required").and_then(Value::as_array);
    let is_required = |name: &String| {
        required.is_some_and(|required| required.iter().any(|own| own.as_str() == Some(name)))
    };
    let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false))
        && properties.is_some_and(|properties| properties.keys().all(is_required));
    let is_plain = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        // Names, not keywords.
        ("properties" | "$defs" | "definitions", Value::Object(inner)) => inner.values().all(is_strict),
        ("items" | "anyOf", value) => is_strict(value),
        ("oneOf" | "allOf" | "not" | "if" | "patternProperties", _) => false,
        _ => true,
    };
    (!is_object || is_closed) && fields.iter().all(is_plain)
}

fn user_content<'a>(
    request: &ModelRequest,
    text: &'a str,
    files: &[FilePart],
) -> serde_json::Result<UserContent<'a>> {
    if files.is_empty() {
        return Ok(UserContent::Text(text));
    }
    let mut parts: Vec<Value> = file_blocks(request, files)?
        .into_iter()
        .map(|(file, block)| match block {
            FileBlock::Image(data) => {
                let url = format!("data:{};base64,{data}", file.media_type);
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            FileBlock::Pdf(data) => {
                let data = format!("data:{};base64,{data}", file.media_type);
                json!({"type": "file", "file": {"filename": file.name, "file_data": data}})
            }
            FileBlock::Text(text) => json!({"type": "text", "text": text}),
        })
        .collect();
    parts.push(json!({"type": "text", "text": text}));
    Ok(UserContent::Parts(parts))
}

fn build_turn<'a>(request: &ModelRequest, message: &'a ChatMessage) -> serde_json::Result<Turn<'a>> {
    Ok(match message {
        ChatMessage::User { text, files } => Turn::User { content: user_content(request, text, files)? },
        ChatMessage::Assistant { text, calls, replay } => Turn::Assistant {
            content: (!text.is_empty() || calls.is_empty()).then_some(text),
            tool_calls: calls.iter().map(build_call).collect(),
            reasoning_content: replay_entries(replay, PROTOCOL)
                .find_map(|block| block.get("reasoning_content")),
        },
        ChatMessage::Tool { call_id, content, .. } => Turn::Tool { tool_call_id: call_id, content },
    })
}

fn build_call(call: &ToolCall) -> Call<'_> {
    // A map of JSON is always JSON.
    let arguments = serde_json::to_string(&call.input).unwrap_or_default();
    Call { id: &call.id, r#type: "function", function: Function { name: &call.name, arguments } }
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct OpenAiParser {
    /// What a server of thinking models wants back when it called tools.
    reasoning_content: String,
}

impl OpenAiParser {
    fn parse_message(
        &mut self,
        message: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if let Some(words) = message.text_at("reasoning_content") {
            self.reasoning_content.push_str(words);
            response.push_reasoning(words);
        } else if let Some(words) = message.text_at("reasoning") {
            response.push_reasoning(words);
        }
        match message.get("content") {
            Some(JsonRef::Text(words)) => response.push_text(words),
            Some(JsonRef::List(parts)) => {
                for part in parts {
                    response.push_text(part.text_at("text").unwrap_or_default());
                }
            }
            _ => {}
        }
        if let Some(refusal) = message.text_at("refusal").filter(|refusal| !refusal.is_empty()) {
            response.push_text(refusal);
            response.is_refused = true;
        }
        let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) else {
            return Ok(());
        };
        let calls =
            calls.as_list().ok_or_else(|| ResponseParseError::protocol("`tool_calls` is not a list"))?;
        for call in calls {
            let id = call.text_at("id").filter(|id| !id.is_empty());
            let name = call.text_at("function/name").filter(|name| !name.is_empty());
            // Some servers number nothing: then a name or an id begins a call, and what follows belongs to it.
            let slot = call.number_at("index").unwrap_or_else(|| match id.is_some() || name.is_some() {
                true => response.next_slot(),
                false => response.next_slot().saturating_sub(1),
            });
            response.start_call(slot, id, name)?;
            match call.at_path("function/arguments") {
                Some(JsonRef::Text(piece)) => response.push_arguments(slot, piece)?,
                None | Some(JsonRef::Null) => {}
                Some(whole) => response.set_arguments(slot, whole.to_value()),
            }
        }
        Ok(())
    }

    fn parse_chunk(
        &mut self,
        body: &JsonRef<'_>,
        message_key: &str,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if let Some(error) = api_error(body) {
            return Err(ResponseParseError::Api(error));
        }
        if let Some(model) = body.text_at("model") {
            model.clone_into(&mut response.model);
        }
        if let Some(choice) = body.at_path("choices/0") {
            self.parse_message(choice.get_or_null(message_key), response)?;
            response.finish_reason =
                choice.text_at("finish_reason").map(parse_finish_reason).or(response.finish_reason.take());
        }
        if let Some(usage) = body.get("usage").filter(|usage| usage.is_object()) {
            response.usage = parse_usage(usage);
        }
        Ok(())
    }
}

impl ResponseParser for OpenAiParser {
    fn parse_event(
        &mut self,
        data: &str,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if data.trim() == "[DONE]" {
            response.is_done = true;
            return Ok(());
        }
        self.parse_chunk(&parse_json(data)?, "delta", response)
    }

    fn parse_response(
        &mut self,
        body: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if body.at_path("choices/0/message").is_none() && api_error(body).is_none() {
            return Err(ResponseParseError::protocol("the answer has no `choices[0].message`"));
        }
        self.parse_chunk(body, "message", response)?;
        response.finish_reason.get_or_insert(FinishReason::Stop);
        Ok(())
    }

    fn replay_blocks(&mut self, calls: &[ToolCall]) -> Vec<Value> {
        let reasoning = std::mem::take(&mut self.reasoning_content);
        let is_needed = !calls.is_empty() && !reasoning.is_empty();
        is_needed.then(|| json!({ PROTOCOL: { "reasoning_content": reasoning } })).into_iter().collect()
    }
}

fn parse_finish_reason(reason: &str) -> FinishReason {
    match reason {
        "stop" => FinishReason::Stop,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "length" | "model_length" => FinishReason::Length,
        "content_filter" | "refusal" => FinishReason::Refused(reason.to_owned()),
        other => FinishReason::Other(other.to_owned()),
    }
}

/// What `usage` says. Cached tokens and reasoning are counted among the others.
fn parse_usage(usage: &JsonRef<'_>) -> Usage {
    let first = |paths: &[&str]| paths.iter().find_map(|path| usage.number_at(path)).unwrap_or(0);
    Usage {
        input_tokens: first(&["prompt_tokens"]),
        cached_input_tokens: first(&["prompt_tokens_details/cached_tokens", "prompt_cache_hit_tokens"]),
        cache_write_tokens: 0,
        output_tokens: first(&["completion_tokens"]),
        reasoning_tokens: first(&["completion_tokens_details/reasoning_tokens"]),
        ..Usage::default()
    }
}
