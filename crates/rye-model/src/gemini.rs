//! Google's generateContent: whole parts in every event, thoughts whose signatures are wanted back.

use serde_json::{Map, Value, json};

use crate::draft::{Draft, Fault, Reader, api_error, parse};
use crate::said::Said;
use crate::wire::replayed;
use crate::{Finish, Message, Request, ToolCall, Usage};

const PROTOCOL: &str = "gemini";

/// The body of a request. The model stands in the URL.
pub(crate) fn body(request: &Request) -> serde_json::Result<Vec<u8>> {
    let mut body = Map::new();
    if let Some(system) = &request.system {
        body.insert("systemInstruction".to_owned(), json!({"parts": [{"text": system}]}));
    }
    body.insert("contents".to_owned(), contents(request).into());
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
    body.insert("generationConfig".to_owned(), json!({"maxOutputTokens": request.max_output_tokens}));
    serde_json::to_vec(&body)
}

fn contents(request: &Request) -> Vec<Value> {
    let mut contents: Vec<Value> = Vec::with_capacity(request.messages.len());
    let mut is_after_result = false;
    for message in &request.messages {
        let was_after_result = std::mem::take(&mut is_after_result);
        match message.as_ref() {
            Message::User { text } => contents.push(json!({"role": "user", "parts": [{"text": text}]})),
            Message::Assistant { text, calls, replay } => {
                let mut parts: Vec<Value> = replayed(replay, PROTOCOL).cloned().collect();
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
            Message::Tool { name, content, is_error, .. } => {
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
    contents
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct Content {
    parts: Vec<Value>,
}

impl Reader for Content {
    fn take(&mut self, data: &str, draft: &mut Draft<'_>) -> Result<(), Fault> {
        self.take_whole(&parse(data)?, draft)
    }

    fn take_whole(&mut self, answer: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if let Some(error) = api_error(answer) {
            return Err(Fault::Api(error));
        }
        if let Some(model) = answer.text("modelVersion") {
            model.clone_into(&mut draft.model);
        }
        if let Some(usage) = answer.get("usageMetadata") {
            count(usage, &mut draft.usage);
        }
        if let Some(reason) = answer.text("promptFeedback/blockReason") {
            draft.finish = Some(Finish::Refused(reason.to_owned()));
        }
        let Some(candidate) = answer.at("candidates/0") else {
            let is_known =
                ["usageMetadata", "promptFeedback", "candidates"].iter().any(|key| answer.get(key).is_some());
            return if is_known { Ok(()) } else { Err(Fault::protocol("the answer has no `candidates`")) };
        };
        for part in candidate.at("content/parts").and_then(Said::as_list).into_iter().flatten() {
            if let Some(call) = part.get("functionCall") {
                let slot = draft.next_slot();
                let id = call.text("id").map_or_else(|| draft.own_id(slot), str::to_owned);
                draft.call(slot, Some(&id), call.text("name"))?;
                draft.argue_whole(slot, call.part("args").to_value());
            } else if let Some(words) = part.text("text") {
                match part.holds("thought") {
                    true => draft.reason(words),
                    false => draft.say(words),
                }
            }
            self.parts.push(part.to_value());
        }
        draft.finish = candidate.text("finishReason").map(finish).or(draft.finish.take());
        Ok(())
    }

    fn replay(&mut self, _: &[ToolCall]) -> Vec<Value> {
        let parts = std::mem::take(&mut self.parts);
        match parts.iter().any(|part| part.get("thoughtSignature").is_some()) {
            true => parts.into_iter().map(|part| json!({ PROTOCOL: part })).collect(),
            false => Vec::new(),
        }
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "STOP" => Finish::Stop,
        "MAX_TOKENS" => Finish::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE"
        | "IMAGE_SAFETY" => Finish::Refused(reason.to_owned()),
        other => Finish::Other(other.to_owned()),
    }
}

/// Takes over what `usage` says. It is cumulative: the largest count is the newest. Thoughts are counted apart from
/// what is said, cached tokens among the others.
fn count(usage: &Said<'_>, so_far: &mut Usage) {
    let at = |name: &str| usage.number(name).unwrap_or(0);
    let input = at("promptTokenCount").saturating_add(at("toolUsePromptTokenCount"));
    let output = at("candidatesTokenCount").saturating_add(at("thoughtsTokenCount"));
    so_far.input_tokens = so_far.input_tokens.max(input);
    so_far.cached_input_tokens = so_far.cached_input_tokens.max(at("cachedContentTokenCount"));
    so_far.output_tokens = so_far.output_tokens.max(output);
    so_far.reasoning_tokens = so_far.reasoning_tokens.max(at("thoughtsTokenCount"));
}
