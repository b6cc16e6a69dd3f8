//! How many tokens a prompt can have at most, before it is sent.
//!
//! The tokenizers in use work on bytes, or fall back to bytes where they know no character: none makes more tokens than
//! there are bytes. Text is usually a quarter of that, but base64, rare scripts and control characters come near, and a
//! bound that is only usually one would let a hostile tool result overdraw a budget. So: one token for each byte of what
//! is sent, written as JSON where it is JSON, and an allowance for what providers put around it.

use serde_json::Value;

use super::{ChatMessage, ModelRequest, ToolDefinition};

/// Around the whole: a tokenizer's first token, the frame of a system prompt.
const REQUEST_OVERHEAD: u64 = 64;
/// What a provider tells the model about tools, once there are any.
const TOOLS_OVERHEAD: u64 = 1024;
/// Around each message, each call and each tool: roles, names of fields, line breaks.
const ENTRY_OVERHEAD: u64 = 32;

/// An upper bound of the tokens of a request's prompt.
#[must_use]
pub fn max_input_tokens(request: &ModelRequest) -> u64 {
    let system = request.system.as_ref().map_or(0, |system| byte_len(system));
    let tools = if request.tools.is_empty() { 0 } else { TOOLS_OVERHEAD };
    let messages = request.messages.iter().map(|message| max_message_tokens(message));
    let definitions = request.tools.iter().map(max_tool_tokens);
    messages.chain(definitions).chain([REQUEST_OVERHEAD, system, tools]).fold(0, u64::saturating_add)
}

/// An upper bound of the tokens that a message adds to a prompt.
#[must_use]
pub fn max_message_tokens(message: &ChatMessage) -> u64 {
    let content = match message {
        ChatMessage::User { text } => byte_len(text),
        ChatMessage::Assistant { text, calls, replay } => {
            let calls: u64 = calls
                .iter()
                .map(|call| {
                    let input: u64 =
                        call.input.iter().map(|(key, value)| byte_len(key) + 4 + json_len(value)).sum();
                    ENTRY_OVERHEAD + byte_len(&call.id) + byte_len(&call.name) + input
                })
                .sum();
            // What is sent back as it was stands for the text and the calls, or beside them.
            byte_len(text) + calls + replay.iter().map(json_len).sum::<u64>()
        }
        ChatMessage::Tool { call_id, name, content, .. } => {
            byte_len(call_id) + byte_len(name) + byte_len(content)
        }
    };
    ENTRY_OVERHEAD.saturating_add(content)
}

fn max_tool_tokens(tool: &ToolDefinition) -> u64 {
    ENTRY_OVERHEAD + byte_len(&tool.name) + byte_len(&tool.description) + json_len(&tool.schema)
}

fn byte_len(text: &str) -> u64 {
    text.len() as u64
}

/// The length of a value written as JSON, or a little more.
fn json_len(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(number) => byte_len(&number.to_string()),
        Value::String(text) => {
            let escaped = |byte: u8| match byte {
                b'"' | b'\\' => 2,
                0..=0x1f => 6,
                _ => 1,
            };
            2 + text.bytes().map(escaped).sum::<u64>()
        }
        Value::Array(list) => 2 + list.iter().map(|element| 1 + json_len(element)).sum::<u64>(),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                // The key's own escapes are counted twice over: keys are short.
                4 + 6 * byte_len(key) + json_len(value)
            };
            2 + map.iter().map(entry).sum::<u64>()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::model::ToolCall;

    fn request(texts: &[String]) -> ModelRequest {
        let messages = texts.iter().map(|text| Arc::new(ChatMessage::User { text: text.clone() })).collect();
        ModelRequest {
            model: "m".to_owned(),
            system: None,
            messages,
            tools: Arc::from([]),
            max_output_tokens: 1,
            wants_stream: false,
        }
    }

    fn arb_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn token_bound_covers_all_bytes(texts in prop::collection::vec(any::<String>(), 0..6)) {
            let sent: usize = texts.iter().map(String::len).sum();
            prop_assert!(max_input_tokens(&request(&texts)) >= sent as u64);
        }

        #[test]
        fn json_is_counted_at_its_full_length(value in arb_value()) {
            prop_assert!(json_len(&value) >= value.to_string().len() as u64);
        }

        #[test]
        fn longer_request_has_larger_bound(
            texts in prop::collection::vec(any::<String>(), 0..6), more in any::<String>(), input in arb_value(),
        ) {
            let before = request(&texts);
            let bound = max_input_tokens(&before);
            let mut longer = before.clone();
            longer.messages.push(Arc::new(ChatMessage::User { text: more.clone() }));
            prop_assert!(max_input_tokens(&longer) > bound);
            let mut called = before.clone();
            let input = [("k".to_owned(), input)].into_iter().collect();
            let calls = vec![ToolCall { id: "c".to_owned(), name: "n".to_owned(), input, malformed: None }];
            called.messages.push(Arc::new(ChatMessage::Assistant { text: more.clone(), calls, replay: vec![] }));
            prop_assert!(max_input_tokens(&called) > bound);
            let with_system = ModelRequest { system: Some(more.clone()), ..before.clone() };
            prop_assert!(max_input_tokens(&with_system) >= bound);
            let tool = ToolDefinition { name: "t".to_owned(), description: more, schema: json!({}), target: json!({}) };
            let with_tool = ModelRequest { tools: Arc::from([tool]), ..before };
            prop_assert!(max_input_tokens(&with_tool) > bound);
        }
    }
}
