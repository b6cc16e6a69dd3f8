//! Anthropic's messages: typed events, blocks by index, usage that is cumulative.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::draft::{ApiError, Draft, Fault, Reader, api_error, parse};
use crate::said::Said;
use crate::wire::{Options, replayed};
use crate::{Finish, Message, Request, ToolCall, Usage};

const PROTOCOL: &str = "anthropic";

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<Content<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
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
    Own {
        #[serde(flatten)]
        block: Own<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Value>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Own<'a> {
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

impl<'a> From<Own<'a>> for Block<'a> {
    fn from(block: Own<'a>) -> Self {
        Self::Own { block, cache_control: None }
    }
}

/// The body of a request.
pub(crate) fn body(request: &Request, options: &Options, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let mut system = request.system.as_deref().map(Content::Text);
    let mut messages = turns(request);
    if options.prompt_cache {
        system = system.map(with_breakpoint);
        if let Some(last) = messages.pop() {
            messages.push(Turn { content: with_breakpoint(last.content), ..last });
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
        stream: is_stream,
    })
}

/// Asks the provider to cache everything up to and with this content.
fn with_breakpoint(content: Content<'_>) -> Content<'_> {
    let mut blocks = match content {
        Content::Text(text) => vec![Own::Text { text }.into()],
        Content::Blocks(blocks) => blocks,
    };
    if let Some(Block::Own { cache_control, .. }) = blocks.last_mut() {
        *cache_control = Some(json!({"type": "ephemeral"}));
    }
    Content::Blocks(blocks)
}

fn turns(request: &Request) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::with_capacity(request.messages.len());
    let mut is_after_result = false;
    for message in &request.messages {
        let was_after_result = std::mem::take(&mut is_after_result);
        match message.as_ref() {
            Message::User { text } => turns.push(Turn { role: "user", content: Content::Text(text) }),
            Message::Assistant { text, calls, replay } => {
                let mut blocks: Vec<Block<'_>> = replayed(replay, PROTOCOL).map(Block::Raw).collect();
                if blocks.is_empty() {
                    // Blank text is refused, and means nothing.
                    blocks.extend((!text.trim().is_empty()).then(|| Own::Text { text }.into()));
                    blocks.extend(calls.iter().map(|call| {
                        Block::from(Own::ToolUse { id: &call.id, name: &call.name, input: &call.input })
                    }));
                }
                if !blocks.is_empty() {
                    turns.push(Turn { role: "assistant", content: Content::Blocks(blocks) });
                }
            }
            Message::Tool { call_id, content, is_error, .. } => {
                let block = Own::ToolResult { tool_use_id: call_id, content, is_error: *is_error }.into();
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
    turns
}

/// A block of the answer, as it was given and as it grew.
struct Grown {
    given: Value,
    text: String,
    signature: String,
    /// Which call of the answer it is.
    call: Option<usize>,
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct Messages {
    blocks: BTreeMap<u64, Grown>,
    calls: usize,
}

impl Messages {
    fn begin(&mut self, index: u64, block: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        let mut grown =
            Grown { given: block.to_value(), text: String::new(), signature: String::new(), call: None };
        match block.text("type") {
            Some("text") => {
                block.text("text").unwrap_or_default().clone_into(&mut grown.text);
                draft.say(&grown.text);
            }
            Some("thinking") => {
                block.text("thinking").unwrap_or_default().clone_into(&mut grown.text);
                block.text("signature").unwrap_or_default().clone_into(&mut grown.signature);
                draft.reason(&grown.text);
            }
            Some("tool_use") => {
                draft.call(index, block.text("id"), block.text("name"))?;
                match block.part("input") {
                    Said::Null => {}
                    Said::Fields(fields) if fields.is_empty() => {}
                    input => draft.argue_whole(index, input.to_value()),
                }
                grown.call = Some(self.calls);
                self.calls += 1;
            }
            // What is not known is sent back as it came.
            Some(_) => {}
            None => return Err(Fault::protocol("a block has no `type`")),
        }
        match self.blocks.insert(index, grown) {
            None => Ok(()),
            Some(_) => Err(Fault::protocol("two blocks have the same `index`")),
        }
    }

    fn grow(&mut self, index: u64, delta: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        let stray = || Fault::protocol("a piece came for a block that never began");
        let block = self.blocks.get_mut(&index).ok_or_else(stray)?;
        match delta.text("type") {
            Some("text_delta") => {
                let words = delta.text("text").unwrap_or_default();
                block.text.push_str(words);
                draft.say(words);
            }
            Some("thinking_delta") => {
                let words = delta.text("thinking").unwrap_or_default();
                block.text.push_str(words);
                draft.reason(words);
            }
            Some("signature_delta") => {
                block.signature.push_str(delta.text("signature").unwrap_or_default());
            }
            Some("input_json_delta") if block.call.is_some() => {
                draft.argue(index, delta.text("partial_json").unwrap_or_default())?;
            }
            Some(_) => {}
            None => return Err(Fault::protocol("a piece of a block has no `type`")),
        }
        Ok(())
    }
}

impl Reader for Messages {
    fn take(&mut self, data: &str, draft: &mut Draft<'_>) -> Result<(), Fault> {
        let event = parse(data)?;
        let index = || event.number("index").ok_or_else(|| Fault::protocol("an event has no `index`"));
        match event.text("type") {
            Some("message_start") => {
                event.text("message/model").unwrap_or_default().clone_into(&mut draft.model);
                count(event.part("message").part("usage"), &mut draft.usage);
            }
            Some("content_block_start") => self.begin(index()?, event.part("content_block"), draft)?,
            Some("content_block_delta") => self.grow(index()?, event.part("delta"), draft)?,
            Some("message_delta") => {
                draft.finish = event.text("delta/stop_reason").map(finish).or(draft.finish.take());
                count(event.part("usage"), &mut draft.usage);
            }
            Some("message_stop") => draft.is_done = true,
            Some("error") => {
                let unknown = || ApiError { kind: "api_error".to_owned(), ..ApiError::default() };
                return Err(Fault::Api(api_error(&event).unwrap_or_else(unknown)));
            }
            Some(_) => {}
            None => return Err(Fault::protocol("an event has no `type`")),
        }
        Ok(())
    }

    fn take_whole(&mut self, answer: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if let Some(error) = api_error(answer) {
            return Err(Fault::Api(error));
        }
        let Some(blocks) = answer.get("content").and_then(Said::as_list) else {
            return Err(Fault::protocol("the answer has no list `content`"));
        };
        for (index, block) in (0..).zip(blocks) {
            self.begin(index, block, draft)?;
        }
        answer.text("model").unwrap_or_default().clone_into(&mut draft.model);
        let finish = answer.text("stop_reason").map_or(Finish::Stop, finish);
        if finish == Finish::Length && blocks.last().is_some_and(|last| last.text("type") == Some("tool_use"))
        {
            draft.cut_last_call();
        }
        draft.finish = Some(finish);
        count(answer.part("usage"), &mut draft.usage);
        Ok(())
    }

    fn replay(&mut self, calls: &[ToolCall]) -> Vec<Value> {
        let kind =
            |block: &Grown| block.given.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if self.blocks.values().all(|block| matches!(kind(block).as_str(), "text" | "tool_use")) {
            return Vec::new();
        }
        let blocks = std::mem::take(&mut self.blocks);
        let whole = blocks.into_values().filter_map(|block| {
            let kind = kind(&block);
            let mut whole = block.given;
            match kind.as_str() {
                "text" if block.text.trim().is_empty() => return None,
                "text" => whole["text"] = block.text.into(),
                "thinking" => {
                    whole["thinking"] = block.text.into();
                    whole["signature"] = block.signature.into();
                }
                "tool_use" => {
                    let call = block.call.and_then(|place| calls.get(place))?;
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

fn finish(reason: &str) -> Finish {
    match reason {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "tool_use" => Finish::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "pause_turn" => Finish::Paused,
        "refusal" => Finish::Refused(reason.to_owned()),
        other => Finish::Other(other.to_owned()),
    }
}

/// Takes over what `usage` says. It is cumulative wherever it stands, and not everything stands everywhere: the
/// largest count is the newest. What was read from or written to the cache is counted apart from the rest.
fn count(usage: &Said<'_>, so_far: &mut Usage) {
    let read = usage.number("cache_read_input_tokens").unwrap_or(0).max(so_far.cached_input_tokens);
    let written = usage.number("cache_creation_input_tokens").unwrap_or(0).max(so_far.cache_write_tokens);
    let plain_so_far = so_far.input_tokens - so_far.cached_input_tokens - so_far.cache_write_tokens;
    let plain = usage.number("input_tokens").unwrap_or(0).max(plain_so_far);
    let most = u64::MAX / 4;
    so_far.cached_input_tokens = read.min(most);
    so_far.cache_write_tokens = written.min(most);
    so_far.input_tokens = plain.min(most) + so_far.cached_input_tokens + so_far.cache_write_tokens;
    so_far.output_tokens = usage.number("output_tokens").unwrap_or(0).max(so_far.output_tokens);
}
