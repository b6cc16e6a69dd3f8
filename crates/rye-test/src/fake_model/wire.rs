//! How each protocol says an answer: the pieces of a body.

use serde_json::{Value, json};

use super::reply::{Content, End};
use super::seen::{Protocol, Seen};

/// The pieces of a body, and its type.
pub(super) struct Body {
    pub content_type: &'static str,
    pub pieces: Vec<String>,
}

pub(super) fn body(content: &Content, seen: &Seen<'_>) -> Body {
    let pieces = match seen.protocol {
        Protocol::Anthropic => anthropic(content, seen),
        Protocol::Openai => openai(content, seen),
        Protocol::Gemini => gemini(content, seen),
        Protocol::Ollama => ollama(content, seen),
    };
    let content_type = match (seen.is_stream, seen.protocol) {
        (false, _) => "application/json",
        (true, Protocol::Ollama) => "application/x-ndjson",
        (true, _) => "text/event-stream",
    };
    Body { content_type, pieces }
}

fn usage(content: &Content, seen: &Seen<'_>) -> (u64, u64, u64) {
    content.usage.unwrap_or(((seen.bytes as u64 / 4).max(1), 0, 10))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))
}

fn anthropic(content: &Content, seen: &Seen<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, seen);
    let stop = match content.end {
        End::Stop => "end_turn",
        End::Calls => "tool_use",
        End::Length => "max_tokens",
    };
    let n = seen.n;
    let fresh = all - cached;
    let id = |place: usize| format!("toolu_{n}_{place}");
    let model = seen.model();
    if !seen.is_stream {
        let mut blocks = Vec::new();
        if let Some(thinking) = &content.thinking {
            blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": "signed"}));
        }
        if !content.text.is_empty() {
            blocks.push(json!({"type": "text", "text": content.text}));
        }
        for (place, (name, arguments)) in content.calls.iter().enumerate() {
            blocks
                .push(json!({"type": "tool_use", "id": id(place), "name": name, "input": input(arguments)}));
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
    let mut say = |event: Value| {
        let name = event["type"].as_str().unwrap_or_default();
        pieces.push(format!("event: {name}\ndata: {event}\n\n"));
    };
    let usage = json!({"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": 1});
    say(json!({"type": "message_start", "message": {
        "id": format!("msg_{n}"), "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage,
    }}));
    let mut index = 0;
    let mut block = |given: Value, deltas: Vec<Value>| {
        say(json!({"type": "content_block_start", "index": index, "content_block": given}));
        for delta in deltas {
            say(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        say(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if let Some(thinking) = &content.thinking {
        let mut deltas: Vec<Value> =
            words(thinking).map(|word| json!({"type": "thinking_delta", "thinking": word})).collect();
        deltas.push(json!({"type": "signature_delta", "signature": "signed"}));
        block(json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
    }
    if !content.text.is_empty() {
        let deltas = words(&content.text).map(|word| json!({"type": "text_delta", "text": word})).collect();
        block(json!({"type": "text", "text": ""}), deltas);
    }
    for (place, (name, arguments)) in content.calls.iter().enumerate() {
        let given = json!({"type": "tool_use", "id": id(place), "name": name, "input": {}});
        block(given, vec![json!({"type": "input_json_delta", "partial_json": arguments})]);
    }
    say(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": {"output_tokens": output}}));
    say(json!({"type": "message_stop"}));
    pieces
}

fn openai(content: &Content, seen: &Seen<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, seen);
    let finish = match content.end {
        End::Stop => "stop",
        End::Calls => "tool_calls",
        End::Length => "length",
    };
    let n = seen.n;
    let model = seen.model();
    let call = |place: usize, name: &str, arguments: &str| {
        json!({"id": format!("call_{n}_{place}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    let usage = json!({"prompt_tokens": all, "completion_tokens": output, "total_tokens": all + output,
        "prompt_tokens_details": {"cached_tokens": cached}});
    let calls: Vec<Value> = content
        .calls
        .iter()
        .enumerate()
        .map(|(place, (name, arguments))| call(place, name, arguments))
        .collect();
    if !seen.is_stream {
        let text =
            if content.text.is_empty() && !calls.is_empty() { Value::Null } else { json!(content.text) };
        let mut message = json!({"role": "assistant", "content": text});
        if let Some(thinking) = &content.thinking {
            message["reasoning_content"] = json!(thinking);
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let answer = json!({"id": format!("c{n}"), "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage});
        return vec![answer.to_string()];
    }
    let mut pieces = Vec::new();
    let wants_usage = seen.body["stream_options"]["include_usage"] == true;
    // Written by hand: most of what this server does for one that measures.
    let model = json!(model);
    let mut say = |choices: &str, usage: &Value| {
        let usage = if wants_usage { format!(",\"usage\":{usage}") } else { String::new() };
        pieces.push(format!(
            "data: {{\"id\":\"c{n}\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":{model},\"choices\":[{choices}]{usage}}}\n\n"
        ));
    };
    let mut delta = |delta: Value, finish: Option<&str>| {
        let finish = json!(finish);
        say(&format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}"), &Value::Null);
    };
    delta(json!({"role": "assistant", "content": null}), None);
    for word in content.thinking.iter().flat_map(|thinking| words(thinking)) {
        delta(json!({"reasoning_content": word}), None);
    }
    for word in words(&content.text) {
        delta(json!({"content": word}), None);
    }
    for (place, whole) in calls.into_iter().enumerate() {
        let mut first = whole.clone();
        first["index"] = json!(place);
        first["function"]["arguments"] = json!("");
        delta(json!({"tool_calls": [first]}), None);
        let rest = json!({"index": place, "function": {"arguments": whole["function"]["arguments"]}});
        delta(json!({"tool_calls": [rest]}), None);
    }
    delta(json!({}), Some(finish));
    if wants_usage {
        say("", &usage);
    }
    pieces.push("data: [DONE]\n\n".to_owned());
    pieces
}

fn gemini(content: &Content, seen: &Seen<'_>) -> Vec<String> {
    let (all, cached, output) = usage(content, seen);
    let finish = if content.end == End::Length { "MAX_TOKENS" } else { "STOP" };
    let model = seen.model();
    let mut parts = Vec::new();
    if let Some(thinking) = &content.thinking {
        parts.push(json!({"text": thinking, "thought": true}));
    }
    parts.extend(words(&content.text).map(|word| json!({ "text": word })));
    for (place, (name, arguments)) in content.calls.iter().enumerate() {
        let mut part = json!({"functionCall": {"name": name, "args": input(arguments)}});
        if content.thinking.is_some() && place == 0 {
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
    if !seen.is_stream {
        return vec![chunk(parts, Some(finish)).to_string()];
    }
    let mut chunks: Vec<Value> = parts.into_iter().map(|part| chunk(vec![part], None)).collect();
    chunks.push(chunk(Vec::new(), Some(finish)));
    chunks.into_iter().map(|chunk| format!("data: {chunk}\r\n\r\n")).collect()
}

fn ollama(content: &Content, seen: &Seen<'_>) -> Vec<String> {
    let (all, _, output) = usage(content, seen);
    let finish = if content.end == End::Length { "length" } else { "stop" };
    let calls: Vec<Value> = content
        .calls
        .iter()
        .map(|(name, arguments)| json!({"function": {"name": name, "arguments": input(arguments)}}))
        .collect();
    let line = |message: Value| json!({"model": seen.model(), "message": message, "done": false});
    let end = |mut last: Value| {
        last["done"] = json!(true);
        last["done_reason"] = json!(finish);
        last["prompt_eval_count"] = json!(all);
        last["eval_count"] = json!(output);
        last
    };
    if !seen.is_stream {
        let mut message = json!({"role": "assistant", "content": content.text, "tool_calls": calls});
        if let Some(thinking) = &content.thinking {
            message["thinking"] = json!(thinking);
        }
        return vec![end(line(message)).to_string()];
    }
    let mut lines = Vec::new();
    for word in content.thinking.iter().flat_map(|thinking| words(thinking)) {
        lines.push(line(json!({"role": "assistant", "content": "", "thinking": word})));
    }
    for word in words(&content.text) {
        lines.push(line(json!({"role": "assistant", "content": word})));
    }
    if !calls.is_empty() {
        lines.push(line(json!({"role": "assistant", "content": "", "tool_calls": calls})));
    }
    lines.push(end(line(json!({"role": "assistant", "content": ""}))));
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}
