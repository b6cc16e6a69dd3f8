//! OpenAI's chat completions, and everybody who speaks them: pieces that are merged, usage at the end.

use serde::Serialize;
use serde_json::{Value, json};

use crate::draft::{Draft, Fault, Reader, api_error, parse};
use crate::said::Said;
use crate::wire::{Options, replayed};
use crate::{Finish, Message, Request, ToolCall, Usage};

const PROTOCOL: &str = "openai";

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
        content: &'a str,
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

/// The body of a request.
pub(crate) fn body(request: &Request, options: &Options, is_stream: bool) -> serde_json::Result<Vec<u8>> {
    let most = Some(request.max_output_tokens);
    let system = request.system.as_deref().map(|content| Turn::System { content });
    let messages = request.messages.iter().map(|message| turn(message));
    serde_json::to_vec(&Body {
        model: &request.model,
        max_completion_tokens: most.filter(|_| !options.uses_max_tokens),
        max_tokens: most.filter(|_| options.uses_max_tokens),
        messages: system.into_iter().chain(messages).collect(),
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
        stream: is_stream.then_some(true),
        stream_options: is_stream.then_some(StreamOptions { include_usage: true }),
    })
}

fn turn(message: &Message) -> Turn<'_> {
    match message {
        Message::User { text } => Turn::User { content: text },
        Message::Assistant { text, calls, replay } => Turn::Assistant {
            content: (!text.is_empty() || calls.is_empty()).then_some(text),
            tool_calls: calls.iter().map(call).collect(),
            reasoning_content: replayed(replay, PROTOCOL).find_map(|block| block.get("reasoning_content")),
        },
        Message::Tool { call_id, content, .. } => Turn::Tool { tool_call_id: call_id, content },
    }
}

fn call(call: &ToolCall) -> Call<'_> {
    // A map of JSON is always JSON.
    let arguments = serde_json::to_string(&call.input).unwrap_or_default();
    Call { id: &call.id, r#type: "function", function: Function { name: &call.name, arguments } }
}

/// Reads answers.
#[derive(Default)]
pub(crate) struct Chat {
    /// What a server of thinking models wants back when it called tools.
    reasoning_content: String,
}

impl Chat {
    fn take_message(&mut self, message: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if let Some(words) = message.text("reasoning_content") {
            self.reasoning_content.push_str(words);
            draft.reason(words);
        } else if let Some(words) = message.text("reasoning") {
            draft.reason(words);
        }
        match message.get("content") {
            Some(Said::Text(words)) => draft.say(words),
            Some(Said::List(parts)) => {
                for part in parts {
                    draft.say(part.text("text").unwrap_or_default());
                }
            }
            _ => {}
        }
        if let Some(refusal) = message.text("refusal").filter(|refusal| !refusal.is_empty()) {
            draft.say(refusal);
            draft.is_refused = true;
        }
        let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) else {
            return Ok(());
        };
        let calls = calls.as_list().ok_or_else(|| Fault::protocol("`tool_calls` is no list"))?;
        for call in calls {
            let id = call.text("id").filter(|id| !id.is_empty());
            let name = call.text("function/name").filter(|name| !name.is_empty());
            // Some servers number nothing: then a name or an id begins a call, and what follows belongs to it.
            let slot = call.number("index").unwrap_or_else(|| match id.is_some() || name.is_some() {
                true => draft.next_slot(),
                false => draft.next_slot().saturating_sub(1),
            });
            draft.call(slot, id, name)?;
            match call.at("function/arguments") {
                Some(Said::Text(piece)) => draft.argue(slot, piece)?,
                None | Some(Said::Null) => {}
                Some(whole) => draft.argue_whole(slot, whole.to_value()),
            }
        }
        Ok(())
    }

    fn take_answer(&mut self, answer: &Said<'_>, message: &str, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if let Some(error) = api_error(answer) {
            return Err(Fault::Api(error));
        }
        if let Some(model) = answer.text("model") {
            model.clone_into(&mut draft.model);
        }
        if let Some(choice) = answer.at("choices/0") {
            self.take_message(choice.part(message), draft)?;
            draft.finish = choice.text("finish_reason").map(finish).or(draft.finish.take());
        }
        if let Some(usage) = answer.get("usage").filter(|usage| usage.is_object()) {
            draft.usage = count(usage);
        }
        Ok(())
    }
}

impl Reader for Chat {
    fn take(&mut self, data: &str, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if data.trim() == "[DONE]" {
            draft.is_done = true;
            return Ok(());
        }
        self.take_answer(&parse(data)?, "delta", draft)
    }

    fn take_whole(&mut self, answer: &Said<'_>, draft: &mut Draft<'_>) -> Result<(), Fault> {
        if answer.at("choices/0/message").is_none() && api_error(answer).is_none() {
            return Err(Fault::protocol("the answer has no `choices[0].message`"));
        }
        self.take_answer(answer, "message", draft)?;
        draft.finish.get_or_insert(Finish::Stop);
        Ok(())
    }

    fn replay(&mut self, calls: &[ToolCall]) -> Vec<Value> {
        let reasoning = std::mem::take(&mut self.reasoning_content);
        let is_wanted = !calls.is_empty() && !reasoning.is_empty();
        is_wanted.then(|| json!({ PROTOCOL: { "reasoning_content": reasoning } })).into_iter().collect()
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        "length" | "model_length" => Finish::Length,
        "content_filter" | "refusal" => Finish::Refused(reason.to_owned()),
        other => Finish::Other(other.to_owned()),
    }
}

/// What `usage` says. Cached tokens and reasoning are counted among the others.
fn count(usage: &Said<'_>) -> Usage {
    let first = |paths: &[&str]| paths.iter().find_map(|path| usage.number(path)).unwrap_or(0);
    Usage {
        input_tokens: first(&["prompt_tokens"]),
        cached_input_tokens: first(&["prompt_tokens_details/cached_tokens", "prompt_cache_hit_tokens"]),
        cache_write_tokens: 0,
        output_tokens: first(&["completion_tokens"]),
        reasoning_tokens: first(&["completion_tokens_details/reasoning_tokens"]),
    }
}
