//! Ollama's own chat: one JSON object a line, calls in one piece and without ids.

use serde_json::{Map, Value, json};

use crate::draft::{Draft, Fault, Reader, api_error, parse};
use crate::said::Said;
use crate::wire::Options;
use crate::{Finish, Message, Request, ToolCall};

/// The body of a request.
pub(crate) fn body(request: &Request, options: &Options, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let system = request.system.iter().map(|system| json!({"role": "system", "content": system}));
    let messages: Vec<Value> = system.chain(request.messages.iter().map(|message| turn(message))).collect();
    let mut bounds = Map::new();
    bounds.insert("num_predict".to_owned(), request.max_output_tokens.into());
    // Left to itself, it takes a small context and forgets the start of what it is told.
    if let Some(window) = options.context_window {
        bounds.insert("num_ctx".to_owned(), window.into());
    }
    let mut body =
        json!({"model": request.model, "messages": messages, "stream": is_stream, "options": bounds});
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

fn turn(message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, .. } => {
            let mut turn = json!({"role": "assistant", "content": text});
            if !calls.is_empty() {
                let call =
                    |call: &ToolCall| json!({"function": {"name": call.name, "arguments": call.input}});
                turn["tool_calls"] = calls.iter().map(call).collect();
            }
            turn
        }
        Message::Tool { name, content, .. } => json!({"role": "tool", "tool_name": name, "content": content}),
    }
}

/// Reads answers.
pub(crate) struct Chat;

impl Reader for Chat {
    fn take(&mut self, data: &str, draft: &mut Draft<'_>) -> Result<(), Fault> {
        self.take_whole(&parse(data)?, draft)
    }

    fn take_whole(&mut self, answer: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if let Some(error) = api_error(answer) {
            return Err(Fault::Api(error));
        }
        let message = answer.get("message").filter(|message| message.is_object());
        let message = message.ok_or_else(|| Fault::protocol("the answer has no `message`"))?;
        if let Some(model) = answer.text("model") {
            model.clone_into(&mut draft.model);
        }
        draft.reason(message.text("thinking").unwrap_or_default());
        draft.say(message.text("content").unwrap_or_default());
        for call in message.get("tool_calls").and_then(Said::as_list).into_iter().flatten() {
            let slot = draft.next_slot();
            let id = call.text("id").map_or_else(|| draft.own_id(slot), str::to_owned);
            draft.call(slot, Some(&id), call.text("function/name"))?;
            draft.argue_whole(slot, call.at("function/arguments").map(Said::to_value).unwrap_or_default());
        }
        if answer.holds("done") {
            draft.finish = Some(match answer.text("done_reason") {
                None | Some("stop") => Finish::Stop,
                Some("length") => Finish::Length,
                Some(other) => Finish::Other(other.to_owned()),
            });
            draft.is_done = true;
        }
        for (name, count) in [
            ("prompt_eval_count", &mut draft.usage.input_tokens),
            ("eval_count", &mut draft.usage.output_tokens),
        ] {
            *count = (*count).max(answer.number(name).unwrap_or(0));
        }
        Ok(())
    }

    fn replay(&mut self, _: &[ToolCall]) -> Vec<Value> {
        Vec::new()
    }
}
