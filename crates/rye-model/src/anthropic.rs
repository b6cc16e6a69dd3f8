//! Anthropic's messages: typed events, blocks by index, usage that is cumulative.

use std::collections::BTreeMap;

use rye_thread::model::{ModelSettings, ReasoningEffort};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::files::{FileBlock, file_blocks};
use crate::json_ref::JsonRef;
use crate::protocol::{
    BodyOptions, MIN_REASONING_TOKENS, ReasoningStyle, SettingBounds, WireProtocol, reasoning_tokens,
    replay_entries,
};
use crate::response_builder::{
    ApiError, ResponseBuilder, ResponseParseError, ResponseParser, api_error, parse_json,
};
use crate::{ChatMessage, FilePart, FinishReason, ModelRequest, ToolCall, Usage};

const PROTOCOL: &str = "anthropic";

/// Anthropic's messages.
#[derive(Debug)]
pub(crate) struct AnthropicMessages;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<Content<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "Map::is_empty")]
    output_config: Map<String, Value>,
    #[serde(skip_serializing_if = "is_false")]
    stream: bool,
}

#[derive(Serialize)]
struct Turn<'a> {
    role: &'static str,
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Blocks(Vec<Block<'a>>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Raw(&'a Value),
    File(Value),
    Typed {
        #[serde(flatten)]
        block: TypedBlock<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Value>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TypedBlock<'a> {
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a Map<String, Value>,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        is_error: bool,
    },
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl<'a> From<TypedBlock<'a>> for Block<'a> {
    fn from(block: TypedBlock<'a>) -> Self {
        Self::Typed { block, cache_control: None }
    }
}

impl WireProtocol for AnthropicMessages {
    fn body(
        &self,
        request: &ModelRequest,
        options: &BodyOptions,
        is_stream: bool,
    ) -> serde_json::Result<Vec<u8>> {
        body(request, options, is_stream)
    }

    fn parser(&self) -> Box<dyn ResponseParser> {
        Box::new(AnthropicParser::default())
    }

    fn check_settings(&self, settings: &ModelSettings, bounds: &SettingBounds) -> Result<(), String> {
        if let Some(temperature) = settings.temperature.filter(|temperature| *temperature > 1.0) {
            return Err(format!("`temperature` is {temperature}, and it takes 1 at most"));
        }
        if settings.reasoning_effort.is_some() {
            if settings.temperature.is_some() {
                return Err("it does not take `temperature` together with `reasoning_effort`".to_owned());
            }
            if bounds.reasoning == ReasoningStyle::Budget && bounds.max_output_tokens <= MIN_REASONING_TOKENS
            {
                return Err(format!(
                    "`reasoning_effort` needs more than {MIN_REASONING_TOKENS} output tokens, and answers have {} at most",
                    bounds.max_output_tokens
                ));
            }
        }
        Ok(())
    }

    fn default_header(&self) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    /// Writing to the cache costs a quarter more.
    fn cache_write_price(&self, input: u64) -> u64 {
        input + input.div_ceil(4)
    }
}

/// How reasoning and the format of answers are asked for.
fn output_config(settings: &ModelSettings, options: &BodyOptions) -> Map<String, Value> {
    let mut config = Map::new();
    if let Some(schema) = &settings.response_format {
        config.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
    }
    if let (Some(effort), ReasoningStyle::Effort) = (settings.reasoning_effort, options.reasoning) {
        // It has no word for less than little.
        let word = match effort {
            ReasoningEffort::Minimal => ReasoningEffort::Low,
            other => other,
        };
        config.insert("effort".to_owned(), word.as_str().into());
    }
    config
}

/// How many tokens the model may reason for; nothing where what is left to spend leaves no room for any.
fn thinking(request: &ModelRequest, options: &BodyOptions) -> Option<Value> {
    let effort = request.settings.reasoning_effort?;
    match options.reasoning {
        ReasoningStyle::Effort => Some(json!({"type": "adaptive"})),
        ReasoningStyle::Budget => {
            let tokens = reasoning_tokens(effort, request.max_output_tokens)?;
            Some(json!({"type": "enabled", "budget_tokens": tokens}))
        }
    }
}

/// The body of a request.
fn body(request: &ModelRequest, options: &BodyOptions, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let mut system = request.system.as_deref().map(Content::Text);
    let mut messages = build_turns(request)?;
    if options.prompt_cache {
        system = system.map(with_cache_breakpoint);
        if let Some(last) = messages.pop() {
            messages.push(Turn { content: with_cache_breakpoint(last.content), ..last });
        }
    }
    serde_json::to_vec(&Body {
        model: &request.model,
        max_tokens: request.max_output_tokens,
        system,
        messages,
        tools: request
            .tools
            .iter()
            .map(|tool| Tool { name: &tool.name, description: &tool.description, input_schema: &tool.schema })
            .collect(),
        temperature: request.settings.temperature,
        thinking: thinking(request, options),
        stop_sequences: &request.settings.stop,
        output_config: output_config(&request.settings, options),
        stream: is_stream,
    })
}

/// Asks the provider to cache everything up to and with this content.
fn with_cache_breakpoint(content: Content<'_>) -> Content<'_> {
    let mut blocks = match content {
        Content::Text(text) => vec![TypedBlock::Text { text }.into()],
        Content::Blocks(blocks) => blocks,
    };
    if let Some(Block::Typed { cache_control, .. }) = blocks.last_mut() {
        *cache_control = Some(json!({"type": "ephemeral"}));
    }
    Content::Blocks(blocks)
}

fn user_content<'a>(
    request: &ModelRequest,
    text: &'a str,
    files: &[FilePart],
) -> serde_json::Result<Content<'a>> {
    if files.is_empty() {
        return Ok(Content::Text(text));
    }
    let source = |file: &FilePart, data: String| json!({"type": "base64", "media_type": file.media_type.as_str(), "data": data});
    let mut blocks: Vec<Block<'a>> = file_blocks(request, files)?
        .into_iter()
        .map(|(file, block)| {
            Block::File(match block {
                FileBlock::Image(data) => json!({"type": "image", "source": source(file, data)}),
                FileBlock::Pdf(data) => {
                    json!({"type": "document", "source": source(file, data), "title": file.name})
                }
                FileBlock::Text(text) => json!({"type": "text", "text": text}),
            })
        })
        .collect();
    blocks.push(TypedBlock::Text { text }.into());
    Ok(Content::Blocks(blocks))
}

fn build_turns(request: &ModelRequest) -> serde_json::Result<Vec<Turn<'_>>> {
    let mut turns: Vec<Turn<'_>> = Vec::with_capacity(request.messages.len());
    let mut is_after_result = false;
    for message in &request.messages {
        let was_after_result = std::mem::take(&mut is_after_result);
        match message.as_ref() {
            ChatMessage::User { text, files } => {
                turns.push(Turn { role: "user", content: user_content(request, text, files)? });
            }
            ChatMessage::Assistant { text, calls, replay } => {
                let mut blocks: Vec<Block<'_>> = replay_entries(replay, PROTOCOL).map(Block::Raw).collect();
                if blocks.is_empty() {
                    // Blank text is refused, and means nothing.
                    blocks.extend((!text.trim().is_empty()).then(|| TypedBlock::Text { text }.into()));
                    blocks.extend(calls.iter().map(|call| {
                        Block::from(TypedBlock::ToolUse {
                            id: &call.id,
                            name: &call.name,
                            input: &call.input,
                        })
                    }));
                }
                if !blocks.is_empty() {
                    turns.push(Turn { role: "assistant", content: Content::Blocks(blocks) });
                }
            }
            ChatMessage::Tool { call_id, content, is_error, .. } => {
                let block =
                    TypedBlock::ToolResult { tool_use_id: call_id, content, is_error: *is_error }.into();
                is_after_result = true;
                // Results in a row share one message: the API wants them all in the next one.
                match turns.last_mut() {
                    Some(Turn { content: Content::Blocks(blocks), .. }) if was_after_result => {
                        blocks.push(block);
                    }
                    _ => turns.push(Turn { role: "user", content: Content::Blocks(vec![block]) }),
                }
            }
        }
    }
    Ok(turns)
}

/// A block of the answer, as it was given and as it grew.
struct BlockBuilder {
    initial: Value,
    text: String,
    signature: String,
    /// Which call of the answer it is.
    call: Option<usize>,
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct AnthropicParser {
    blocks: BTreeMap<u64, BlockBuilder>,
    calls: usize,
}

impl AnthropicParser {
    fn start_block(
        &mut self,
        index: u64,
        block: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        let mut builder = BlockBuilder {
            initial: block.to_value(),
            text: String::new(),
            signature: String::new(),
            call: None,
        };
        match block.text_at("type") {
            Some("text") => {
                block.text_at("text").unwrap_or_default().clone_into(&mut builder.text);
                response.push_text(&builder.text);
            }
            Some("thinking") => {
                block.text_at("thinking").unwrap_or_default().clone_into(&mut builder.text);
                block.text_at("signature").unwrap_or_default().clone_into(&mut builder.signature);
                response.push_reasoning(&builder.text);
            }
            Some("tool_use") => {
                response.start_call(index, block.text_at("id"), block.text_at("name"))?;
                match block.get_or_null("input") {
                    JsonRef::Null => {}
                    JsonRef::Object(fields) if fields.is_empty() => {}
                    input => response.set_arguments(index, input.to_value()),
                }
                builder.call = Some(self.calls);
                self.calls += 1;
            }
            // What is not known is sent back as it came.
            Some(_) => {}
            None => return Err(ResponseParseError::protocol("a block has no `type`")),
        }
        match self.blocks.insert(index, builder) {
            None => Ok(()),
            Some(_) => Err(ResponseParseError::protocol("two blocks have the same `index`")),
        }
    }

    fn extend_block(
        &mut self,
        index: u64,
        delta: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        let unknown_block =
            || ResponseParseError::protocol("the answer continues a content block that was not started");
        let block = self.blocks.get_mut(&index).ok_or_else(unknown_block)?;
        match delta.text_at("type") {
            Some("text_delta") => {
                let words = delta.text_at("text").unwrap_or_default();
                block.text.push_str(words);
                response.push_text(words);
            }
            Some("thinking_delta") => {
                let words = delta.text_at("thinking").unwrap_or_default();
                block.text.push_str(words);
                response.push_reasoning(words);
            }
            Some("signature_delta") => {
                block.signature.push_str(delta.text_at("signature").unwrap_or_default());
            }
            Some("input_json_delta") if block.call.is_some() => {
                response.push_arguments(index, delta.text_at("partial_json").unwrap_or_default())?;
            }
            Some(_) => {}
            None => return Err(ResponseParseError::protocol("a piece of a block has no `type`")),
        }
        Ok(())
    }
}

impl ResponseParser for AnthropicParser {
    fn parse_event(
        &mut self,
        data: &str,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        let event = parse_json(data)?;
        let index = || {
            event.number_at("index").ok_or_else(|| ResponseParseError::protocol("an event has no `index`"))
        };
        match event.text_at("type") {
            Some("message_start") => {
                event.text_at("message/model").unwrap_or_default().clone_into(&mut response.model);
                update_usage(event.get_or_null("message").get_or_null("usage"), &mut response.usage);
            }
            Some("content_block_start") => {
                self.start_block(index()?, event.get_or_null("content_block"), response)?
            }
            Some("content_block_delta") => {
                self.extend_block(index()?, event.get_or_null("delta"), response)?
            }
            Some("message_delta") => {
                response.finish_reason = event
                    .text_at("delta/stop_reason")
                    .map(parse_finish_reason)
                    .or(response.finish_reason.take());
                update_usage(event.get_or_null("usage"), &mut response.usage);
            }
            Some("message_stop") => response.is_done = true,
            Some("error") => {
                let unknown = || ApiError { kind: "api_error".to_owned(), ..ApiError::default() };
                return Err(ResponseParseError::Api(api_error(&event).unwrap_or_else(unknown)));
            }
            Some(_) => {}
            None => return Err(ResponseParseError::protocol("an event has no `type`")),
        }
        Ok(())
    }

    fn parse_response(
        &mut self,
        body: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        if let Some(error) = api_error(body) {
            return Err(ResponseParseError::Api(error));
        }
        let Some(blocks) = body.get("content").and_then(JsonRef::as_list) else {
            return Err(ResponseParseError::protocol("the answer has no list `content`"));
        };
        for (index, block) in (0..).zip(blocks) {
            self.start_block(index, block, response)?;
        }
        body.text_at("model").unwrap_or_default().clone_into(&mut response.model);
        let finish = body.text_at("stop_reason").map_or(FinishReason::Stop, parse_finish_reason);
        if finish == FinishReason::Length
            && blocks.last().is_some_and(|last| last.text_at("type") == Some("tool_use"))
        {
            response.truncate_last_call();
        }
        response.finish_reason = Some(finish);
        update_usage(body.get_or_null("usage"), &mut response.usage);
        Ok(())
    }

    fn replay_blocks(&mut self, calls: &[ToolCall]) -> Vec<Value> {
        let kind = |block: &BlockBuilder| {
            block.initial.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        if self.blocks.values().all(|block| matches!(kind(block).as_str(), "text" | "tool_use")) {
            return Vec::new();
        }
        let blocks = std::mem::take(&mut self.blocks);
        let whole = blocks.into_values().filter_map(|block| {
            let kind = kind(&block);
            let mut whole = block.initial;
            match kind.as_str() {
                "text" if block.text.trim().is_empty() => return None,
                "text" => whole["text"] = block.text.into(),
                "thinking" => {
                    whole["thinking"] = block.text.into();
                    whole["signature"] = block.signature.into();
                }
                "tool_use" => {
                    let call = block.call.and_then(|index| calls.get(index))?;
                    whole["id"] = call.id.clone().into();
                    whole["input"] = Value::Object(call.input.clone());
                }
                _ => {}
            }
            Some(json!({ PROTOCOL: whole }))
        });
        whole.collect()
    }
}

fn parse_finish_reason(reason: &str) -> FinishReason {
    match reason {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "pause_turn" => FinishReason::Paused,
        "refusal" => FinishReason::Refused(reason.to_owned()),
        other => FinishReason::Other(other.to_owned()),
    }
}

/// Takes over what `usage` says. It is cumulative wherever it stands, and not everything stands everywhere: the
/// largest count is the newest. What was read from or written to the cache is counted apart from the rest.
fn update_usage(usage: &JsonRef<'_>, total: &mut Usage) {
    let read = usage.number_at("cache_read_input_tokens").unwrap_or(0).max(total.cached_input_tokens);
    let written = usage.number_at("cache_creation_input_tokens").unwrap_or(0).max(total.cache_write_tokens);
    let plain_so_far = total.input_tokens - total.cached_input_tokens - total.cache_write_tokens;
    let plain = usage.number_at("input_tokens").unwrap_or(0).max(plain_so_far);
    let max = u64::MAX / 4;
    total.cached_input_tokens = read.min(max);
    total.cache_write_tokens = written.min(max);
    total.input_tokens = plain.min(max) + total.cached_input_tokens + total.cache_write_tokens;
    total.output_tokens = usage.number_at("output_tokens").unwrap_or(0).max(total.output_tokens);
}
