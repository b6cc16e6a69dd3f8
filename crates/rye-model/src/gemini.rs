//! Google's generateContent: whole parts in every event, thoughts whose signatures are wanted back.

use rye_thread::model::ModelSettings;
use serde_json::{Map, Value, json};
use url::Url;

use crate::files::{FileBlock, file_blocks};
use crate::json_ref::JsonRef;
use crate::protocol::{BodyOptions, SettingBounds, WireProtocol, reasoning_tokens, replay_entries};
use crate::response_builder::{ResponseBuilder, ResponseParseError, ResponseParser, api_error};
use crate::{ChatMessage, FinishReason, ModelRequest, ToolCall, Usage};

const PROTOCOL: &str = "gemini";

/// How many texts may end an answer.
const MAX_STOP_TEXTS: usize = 5;

/// Google's generateContent.
#[derive(Debug)]
pub(crate) struct GeminiContent;

impl WireProtocol for GeminiContent {
    fn body(&self, request: &ModelRequest, _: &BodyOptions, _: bool) -> serde_json::Result<Vec<u8>> {
        body(request)
    }

    fn parser(&self) -> Box<dyn ResponseParser> {
        Box::new(GeminiParser::default())
    }

    fn check_settings(&self, settings: &ModelSettings, _: &SettingBounds) -> Result<(), String> {
        match settings.stop.len() {
            count if count > MAX_STOP_TEXTS => {
                Err(format!("`stop` has {count} texts, and it takes {MAX_STOP_TEXTS} at most"))
            }
            _ => Ok(()),
        }
    }

    fn stream_url(&self, mut url: Url) -> Url {
        let path = url.path().replace(":generateContent", ":streamGenerateContent");
        url.set_path(&path);
        url.query_pairs_mut().append_pair("alt", "sse");
        url
    }

    fn key_header(&self) -> &'static str {
        "x-goog-api-key"
    }
}

/// How the model is asked to answer.
fn generation_config(request: &ModelRequest) -> Map<String, Value> {
    let settings = &request.settings;
    let mut config = Map::new();
    config.insert("maxOutputTokens".to_owned(), request.max_output_tokens.into());
    if let Some(temperature) = settings.temperature {
        config.insert("temperature".to_owned(), temperature.into());
    }
    let reasoning =
        settings.reasoning_effort.and_then(|effort| reasoning_tokens(effort, request.max_output_tokens));
    if let Some(tokens) = reasoning {
        config.insert("thinkingConfig".to_owned(), json!({"thinkingBudget": tokens}));
    }
    if !settings.stop.is_empty() {
        config.insert("stopSequences".to_owned(), json!(settings.stop));
    }
    if let Some(schema) = &settings.response_format {
        config.insert("responseMimeType".to_owned(), "application/json".into());
        config.insert("responseJsonSchema".to_owned(), schema.clone());
    }
    config
}

/// The body of a request. The model stands in the URL.
fn body(request: &ModelRequest) -> serde_json::Result<Vec<u8>> {
    let mut body = Map::new();
    if let Some(system) = &request.system {
        body.insert("systemInstruction".to_owned(), json!({"parts": [{"text": system}]}));
    }
    body.insert("contents".to_owned(), build_contents(request)?.into());
    if !request.tools.is_empty() {
        let declarations: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    // `parameters` knows only part of JSON Schema.
                    "parametersJsonSchema": tool.schema,
                })
            })
            .collect();
        body.insert("tools".to_owned(), json!([{ "functionDeclarations": declarations }]));
    }
    body.insert("generationConfig".to_owned(), generation_config(request).into());
    serde_json::to_vec(&body)
}

fn build_contents(request: &ModelRequest) -> serde_json::Result<Vec<Value>> {
    let mut contents: Vec<Value> = Vec::with_capacity(request.messages.len());
    let mut is_after_result = false;
    for message in &request.messages {
        let was_after_result = std::mem::take(&mut is_after_result);
        match message.as_ref() {
            ChatMessage::User { text, files } => {
                let mut parts: Vec<Value> = file_blocks(request, files)?
                    .into_iter()
                    .map(|(file, block)| match block {
                        FileBlock::Image(data) | FileBlock::Pdf(data) => {
                            json!({"inlineData": {"mimeType": file.media_type.as_str(), "data": data}})
                        }
                        FileBlock::Text(text) => json!({"text": text}),
                    })
                    .collect();
                parts.push(json!({"text": text}));
                contents.push(json!({"role": "user", "parts": parts}));
            }
            ChatMessage::Assistant { text, calls, replay } => {
                let mut parts: Vec<Value> = replay_entries(replay, PROTOCOL).cloned().collect();
                if parts.is_empty() {
                    parts.extend((!text.is_empty()).then(|| json!({ "text": text })));
                    let call =
                        |call: &ToolCall| json!({"functionCall": {"name": call.name, "args": call.input}});
                    parts.extend(calls.iter().map(call));
                }
                if !parts.is_empty() {
                    contents.push(json!({"role": "model", "parts": parts}));
                }
            }
            ChatMessage::Tool { name, content, is_error, .. } => {
                let key = if *is_error { "error" } else { "content" };
                let part = json!({"functionResponse": {"name": name, "response": { key: content }}});
                is_after_result = true;
                let shared = contents.last_mut().filter(|_| was_after_result);
                match shared.and_then(|last| last.get_mut("parts")).and_then(Value::as_array_mut) {
                    Some(parts) => parts.push(part),
                    None => contents.push(json!({"role": "user", "parts": [part]})),
                }
            }
        }
    }
    Ok(contents)
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct GeminiParser {
    parts: Vec<Value>,
}

impl ResponseParser for GeminiParser {
    fn parse_response(
        &mut self,
        body: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if let Some(error) = api_error(body) {
            return Err(ResponseParseError::Api(error));
        }
        if let Some(model) = body.text_at("modelVersion") {
            model.clone_into(&mut response.model);
        }
        if let Some(usage) = body.get("usageMetadata") {
            update_usage(usage, &mut response.usage);
        }
        if let Some(reason) = body.text_at("promptFeedback/blockReason") {
            response.finish_reason = Some(FinishReason::Refused(reason.to_owned()));
        }
        let Some(candidate) = body.at_path("candidates/0") else {
            let is_known =
                ["usageMetadata", "promptFeedback", "candidates"].iter().any(|key| body.get(key).is_some());
            return if is_known {
                Ok(())
            } else {
                Err(ResponseParseError::protocol("the answer has no `candidates`"))
            };
        };
        for part in candidate.at_path("content/parts").and_then(JsonRef::as_list).into_iter().flatten() {
            if let Some(call) = part.get("functionCall") {
                let slot = response.next_slot();
                let id = call.text_at("id").map_or_else(|| response.generate_call_id(slot), str::to_owned);
                response.start_call(slot, Some(&id), call.text_at("name"))?;
                response.set_arguments(slot, call.get_or_null("args").to_value());
            } else if let Some(words) = part.text_at("text") {
                match part.is_true_at("thought") {
                    true => response.push_reasoning(words),
                    false => response.push_text(words),
                }
            }
            self.parts.push(part.to_value());
        }
        response.finish_reason =
            candidate.text_at("finishReason").map(parse_finish_reason).or(response.finish_reason.take());
        Ok(())
    }

    fn replay_blocks(&mut self, _: &[ToolCall]) -> Vec<Value> {
        let parts = std::mem::take(&mut self.parts);
        match parts.iter().any(|part| part.get("thoughtSignature").is_some()) {
            true => parts.into_iter().map(|part| json!({ PROTOCOL: part })).collect(),
            false => Vec::new(),
        }
    }
}

fn parse_finish_reason(reason: &str) -> FinishReason {
    match reason {
        "STOP" => FinishReason::Stop,
        "MAX_TOKENS" => FinishReason::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE"
        | "IMAGE_SAFETY" => FinishReason::Refused(reason.to_owned()),
        other => FinishReason::Other(other.to_owned()),
    }
}

/// Takes over what `usage` says. It is cumulative: the largest count is the newest. Thoughts are counted apart from
/// what is said, cached tokens among the others.
fn update_usage(usage: &JsonRef<'_>, total: &mut Usage) {
    let field = |name: &str| usage.number_at(name).unwrap_or(0);
    let input = field("promptTokenCount").saturating_add(field("toolUsePromptTokenCount"));
    let output = field("candidatesTokenCount").saturating_add(field("thoughtsTokenCount"));
    total.input_tokens = total.input_tokens.max(input);
    total.cached_input_tokens = total.cached_input_tokens.max(field("cachedContentTokenCount"));
    total.output_tokens = total.output_tokens.max(output);
    total.reasoning_tokens = total.reasoning_tokens.max(field("thoughtsTokenCount"));
}
