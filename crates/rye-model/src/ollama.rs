//! Ollama's own chat: one JSON object a line, calls in one piece and without ids.

use rye_thread::model::{ModelSettings, ReasoningEffort};
use serde::ser::Error as _;
use serde_json::{Map, Value, json};

use crate::files::{FileBlock, file_blocks};
use crate::json_ref::JsonRef;
use crate::protocol::{BodyOptions, SettingBounds, WireProtocol};
use crate::response_builder::{ResponseBuilder, ResponseParseError, ResponseParser, api_error};
use crate::sse::Framing;
use crate::{ChatMessage, FilePart, FinishReason, ModelRequest, ToolCall};

/// Ollama's own chat.
#[derive(Debug)]
pub(crate) struct OllamaChat;

impl WireProtocol for OllamaChat {
    fn body(
        &self,
        request: &ModelRequest,
        options: &BodyOptions,
        is_stream: bool,
    ) -> serde_json::Result<Vec<u8>> {
        body(request, options, is_stream)
    }

    fn parser(&self) -> Box<dyn ResponseParser> {
        Box::new(OllamaParser)
    }

    fn check_settings(&self, _: &ModelSettings, _: &SettingBounds) -> Result<(), String> {
        Ok(())
    }

    fn framing(&self) -> Framing {
        Framing::lines()
    }
}

/// The body of a request.
fn body(request: &ModelRequest, options: &BodyOptions, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let system = request.system.iter().map(|system| json!({"role": "system", "content": system}));
    let messages = request.messages.iter().map(|message| message_body(request, message));
    let messages: Vec<Value> = system.map(Ok).chain(messages).collect::<serde_json::Result<_>>()?;
    let mut bounds = Map::new();
    bounds.insert("num_predict".to_owned(), request.max_output_tokens.into());
    // Left to itself, it takes a small context and forgets the start of what it is given.
    if let Some(window) = options.context_window {
        bounds.insert("num_ctx".to_owned(), window.into());
    }
    let settings = &request.settings;
    if let Some(temperature) = settings.temperature {
        bounds.insert("temperature".to_owned(), temperature.into());
    }
    if !settings.stop.is_empty() {
        bounds.insert("stop".to_owned(), json!(settings.stop));
    }
    let mut body =
        json!({"model": request.model, "messages": messages, "stream": is_stream, "options": bounds});
    if let Some(effort) = settings.reasoning_effort {
        // It has no word for less than little.
        let word = match effort {
            ReasoningEffort::Minimal => ReasoningEffort::Low,
            other => other,
        };
        body["think"] = word.as_str().into();
    }
    if let Some(schema) = &settings.response_format {
        body["format"] = schema.clone();
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.schema,
            }})
        });
        body["tools"] = tools.collect();
    }
    serde_json::to_vec(&body)
}

fn user_body(request: &ModelRequest, text: &str, files: &[FilePart]) -> serde_json::Result<Value> {
    let (mut images, mut texts) = (Vec::new(), Vec::new());
    for (file, block) in file_blocks(request, files)? {
        match block {
            FileBlock::Image(data) => images.push(data),
            FileBlock::Text(text) => texts.push(text),
            FileBlock::Pdf(_) => {
                return Err(serde_json::Error::custom(format!("`{}`: documents are not taken", file.name)));
            }
        }
    }
    texts.push(text.to_owned());
    let mut body = json!({"role": "user", "content": texts.join("\n\n")});
    if !images.is_empty() {
        body["images"] = json!(images);
    }
    Ok(body)
}

fn message_body(request: &ModelRequest, message: &ChatMessage) -> serde_json::Result<Value> {
    Ok(match message {
        ChatMessage::User { text, files } => user_body(request, text, files)?,
        ChatMessage::Assistant { text, calls, .. } => {
            let mut turn = json!({"role": "assistant", "content": text});
            if !calls.is_empty() {
                let call =
                    |call: &ToolCall| json!({"function": {"name": call.name, "arguments": call.input}});
                turn["tool_calls"] = calls.iter().map(call).collect();
            }
            turn
        }
        ChatMessage::Tool { name, content, .. } => {
            json!({"role": "tool", "tool_name": name, "content": content})
        }
    })
}

/// Reads answers.
pub(crate) struct OllamaParser;

impl ResponseParser for OllamaParser {
    /// A prompt that is cached is not counted.
    fn counts_both_sides(&self) -> bool {
        false
    }

    fn parse_response(
        &mut self,
        body: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if let Some(error) = api_error(body) {
            return Err(ResponseParseError::Api(error));
        }
        let message = body.get("message").filter(|message| message.is_object());
        let message = message.ok_or_else(|| ResponseParseError::protocol("the answer has no `message`"))?;
        if let Some(model) = body.text_at("model") {
            model.clone_into(&mut response.model);
        }
        response.push_reasoning(message.text_at("thinking").unwrap_or_default());
        response.push_text(message.text_at("content").unwrap_or_default());
        for call in message.get("tool_calls").and_then(JsonRef::as_list).into_iter().flatten() {
            let slot = response.next_slot();
            let id = call.text_at("id").map_or_else(|| response.generate_call_id(slot), str::to_owned);
            response.start_call(slot, Some(&id), call.text_at("function/name"))?;
            response.set_arguments(
                slot,
                call.at_path("function/arguments").map(JsonRef::to_value).unwrap_or_default(),
            );
        }
        if body.is_true_at("done") {
            response.finish_reason = Some(match body.text_at("done_reason") {
                None | Some("stop") => FinishReason::Stop,
                Some("length") => FinishReason::Length,
                Some(other) => FinishReason::Other(other.to_owned()),
            });
            response.is_done = true;
        }
        for (name, count) in [
            ("prompt_eval_count", &mut response.usage.input_tokens),
            ("eval_count", &mut response.usage.output_tokens),
        ] {
            *count = (*count).max(body.number_at(name).unwrap_or(0));
        }
        Ok(())
    }

    fn replay_blocks(&mut self, _: &[ToolCall]) -> Vec<Value> {
        Vec::new()
    }
}
