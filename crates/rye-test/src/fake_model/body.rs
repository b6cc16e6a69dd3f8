//! How each protocol says an answer: the pieces of a body.

use serde_json::{Value, json};

use super::reply::{ReplyContent, ReplyEnd};
use super::request::{FakeProtocol, FakeRequest};

/// The pieces of a body, and its type.
pub(super) struct Body {
    pub content_type: &'static str,
    pub pieces: Vec<String>,
}

pub(super) fn build_body(content: &ReplyContent, request: &FakeRequest<'_>) -> Body {
    let pieces = match request.protocol {
        FakeProtocol::Anthropic => anthropic(content, request),
        FakeProtocol::Openai => openai(content, request),
        FakeProtocol::Gemini => gemini(content, request),
        FakeProtocol::Ollama => ollama(content, request),
    };
    let content_type = match (request.is_stream, request.protocol) {
        (false, _) => "application/json",
        (true, FakeProtocol::Ollama) => "application/x-ndjson",
        (true, _) => "text/event-stream",
    };
    Body { content_type, pieces }
}

fn usage(content: &ReplyContent, request: &FakeRequest<'_>) -> (u64, u64, u64) {
    content.usage.unwrap_or(((request.bytes as u64 / 4).max(1), 0, 10))
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

fn parse_arguments(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))
}

fn anthropic(content: &ReplyContent, request: &FakeRequest<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, request);
    let stop = match content.end {
        ReplyEnd::Stop => "end_turn",
        ReplyEnd::ToolCalls => "tool_use",
        ReplyEnd::Length => "max_tokens",
    };
    let n = request.number;
    let fresh = all - cached;
    let id = |position: usize| format!("toolu_{n}_{position}");
    let model = request.model();
    if !request.is_stream {
        let mut blocks = Vec::new();
        if let Some(thinking) = &content.thinking {
            blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": "signed"}));
        }
        if !content.text.is_empty() {
            blocks.push(json!({"type": "text", "text": content.text}));
        }
        for (position, (name, arguments)) in content.calls.iter().enumerate() {
            blocks
                .push(json!({"type": "tool_use", "id": id(position), "name": name, "input": parse_arguments(arguments)}));
        }
        let usage =
            json!({"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": output});
        let message = json!({
            "id": format!("msg_{n}"), "type": "message", "role": "assistant", "model": model, "content": blocks,
            "stop_reason": stop, "stop_sequence": null, "usage": usage,
        });
        return vec![message.to_string()];
    }
    let mut pieces = Vec::new();
    let mut push_event = |event: Value| {
        let name = event["type"].as_str().unwrap_or_default();
        pieces.push(format!("event: {name}\ndata: {event}\n\n"));
    };
    let usage = json!({"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": 1});
    push_event(json!({"type": "message_start", "message": {
        "id": format!("msg_{n}"), "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage,
    }}));
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        push_event(json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            push_event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        push_event(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if let Some(thinking) = &content.thinking {
        let mut deltas: Vec<Value> =
            split_words(thinking).map(|word| json!({"type": "thinking_delta", "thinking": word})).collect();
        deltas.push(json!({"type": "signature_delta", "signature": "signed"}));
        block(json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
    }
    if !content.text.is_empty() {
        let deltas =
            split_words(&content.text).map(|word| json!({"type": "text_delta", "text": word})).collect();
        block(json!({"type": "text", "text": ""}), deltas);
    }
    for (position, (name, arguments)) in content.calls.iter().enumerate() {
        let start = json!({"type": "tool_use", "id": id(position), "name": name, "input": {}});
        block(start, vec![json!({"type": "input_json_delta", "partial_json": arguments})]);
    }
    push_event(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": {"output_tokens": output}}));
    push_event(json!({"type": "message_stop"}));
    pieces
}

fn openai(content: &ReplyContent, request: &FakeRequest<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, request);
    let finish = match content.end {
        ReplyEnd::Stop => "stop",
        ReplyEnd::ToolCalls => "tool_calls",
        ReplyEnd::Length => "length",
    };
    let n = request.number;
    let model = request.model();
    let call = |position: usize, name: &str, arguments: &str| {
        json!({"id": format!("call_{n}_{position}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    let usage = json!({"prompt_tokens": all, "completion_tokens": output, "total_tokens": all + output,
        "prompt_tokens_details": {"cached_tokens": cached}});
    let calls: Vec<Value> = content
        .calls
        .iter()
        .enumerate()
        .map(|(position, (name, arguments))| call(position, name, arguments))
        .collect();
    if !request.is_stream {
        let text =
            if content.text.is_empty() && !calls.is_empty() { Value::Null } else { json!(content.text) };
        let mut message = json!({"role": "assistant", "content": text});
        if let Some(thinking) = &content.thinking {
            message["reasoning_content"] = json!(thinking);
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let completion = json!({"id": format!("c{n}"), "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage});
        return vec![completion.to_string()];
    }
    let mut pieces = Vec::new();
    let wants_usage = request.body["stream_options"]["include_usage"] == true;
    // Written by hand: most of what this server does for one that measures.
    let model = json!(model);
    let mut push_chunk = |choices: &str, usage: &Value| {
        let usage = if wants_usage { format!(",\"usage\":{usage}") } else { String::new() };
        pieces.push(format!(
            "data: {{\"id\":\"c{n}\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":{model},\"choices\":[{choices}]{usage}}}\n\n"
        ));
    };
    let mut delta = |delta: Value, finish: Option<&str>| {
        let finish = json!(finish);
        push_chunk(&format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}"), &Value::Null);
    };
    delta(json!({"role": "assistant", "content": null}), None);
    for word in content.thinking.iter().flat_map(|thinking| split_words(thinking)) {
        delta(json!({"reasoning_content": word}), None);
    }
    for word in split_words(&content.text) {
        delta(json!({"content": word}), None);
    }
    for (position, whole) in calls.into_iter().enumerate() {
        let mut first = whole.clone();
        first["index"] = json!(position);
        first["function"]["arguments"] = json!("");
        delta(json!({"tool_calls": [first]}), None);
        let rest = json!({"index": position, "function": {"arguments": whole["function"]["arguments"]}});
        delta(json!({"tool_calls": [rest]}), None);
    }
    delta(json!({}), Some(finish));
    if wants_usage {
        push_chunk("", &usage);
    }
    pieces.push("data: [DONE]\n\n".to_owned());
    pieces
}

fn gemini(content: &ReplyContent, request: &FakeRequest<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, request);
    let finish = if content.end == ReplyEnd::Length { "MAX_TOKENS" } else { "STOP" };
    let model = request.model();
    let mut parts = Vec::new();
    if let Some(thinking) = &content.thinking {
        parts.push(json!({"text": thinking, "thought": true}));
    }
    parts.extend(split_words(&content.text).map(|word| json!({ "text": word })));
    for (position, (name, arguments)) in content.calls.iter().enumerate() {
        let mut part = json!({"functionCall": {"name": name, "args": parse_arguments(arguments)}});
        if content.thinking.is_some() && position == 0 {
            part["thoughtSignature"] = json!("signed");
        }
        parts.push(part);
    }
    let usage = json!({"promptTokenCount": all, "cachedContentTokenCount": cached, "candidatesTokenCount": output,
        "totalTokenCount": all + output});
    let chunk = |parts: Vec<Value>, finish: Option<&str>| {
        let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
        }
        json!({"candidates": [candidate], "usageMetadata": usage, "modelVersion": model})
    };
    if !request.is_stream {
        return vec![chunk(parts, Some(finish)).to_string()];
    }
    let mut chunks: Vec<Value> = parts.into_iter().map(|part| chunk(vec![part], None)).collect();
    chunks.push(chunk(Vec::new(), Some(finish)));
    chunks.into_iter().map(|chunk| format!("data: {chunk}\r\n\r\n")).collect()
}

fn ollama(content: &ReplyContent, request: &FakeRequest<'_>) -> Vec<String> {
    let (all, _, output) = usage(content, request);
    let finish = if content.end == ReplyEnd::Length { "length" } else { "stop" };
    let calls: Vec<Value> = content
        .calls
        .iter()
        .map(|(name, arguments)| json!({"function": {"name": name, "arguments": parse_arguments(arguments)}}))
        .collect();
    let line = |message: Value| json!({"model": request.model(), "message": message, "done": false});
    let end = |mut last: Value| {
        last["done"] = json!(true);
        last["done_reason"] = json!(finish);
        last["prompt_eval_count"] = json!(all);
        last["eval_count"] = json!(output);
        last
    };
    if !request.is_stream {
        let mut message = json!({"role": "assistant", "content": content.text, "tool_calls": calls});
        if let Some(thinking) = &content.thinking {
            message["thinking"] = json!(thinking);
        }
        return vec![end(line(message)).to_string()];
    }
    let mut lines = Vec::new();
    for word in content.thinking.iter().flat_map(|thinking| split_words(thinking)) {
        lines.push(line(json!({"role": "assistant", "content": "", "thinking": word})));
    }
    for word in split_words(&content.text) {
        lines.push(line(json!({"role": "assistant", "content": word})));
    }
    if !calls.is_empty() {
        lines.push(line(json!({"role": "assistant", "content": "", "tool_calls": calls})));
    }
    lines.push(end(line(json!({"role": "assistant", "content": ""}))));
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}
