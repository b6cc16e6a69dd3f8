//! How many tokens a prompt has, before it is sent: a bound that costs nothing, and an estimate that costs a look at
//! each character.
//!
//! The tokenizers in use work on bytes, or fall back to bytes where they know no character: none makes more tokens than
//! there are bytes. So the bound is one token for each byte of what is sent, written as JSON where it is JSON, and an
//! allowance for what providers put around it. Text is usually a quarter of that: where the bound would stop a call,
//! [`input_tokens`] decides.

use serde_json::Value;

use super::text_tokens::TokenProfile;
use super::{ChatMessage, FilePart, ModelRequest, ToolDefinition};

/// How texts are counted, and what is added around them.
#[derive(Clone, Copy, Debug)]
enum TokenCount<'a> {
    /// The most tokens there can be.
    Bound,
    /// What a family of tokenizers makes of it, in thousandths.
    Estimate(&'a TokenProfile),
}

/// An upper bound of the tokens of a request's prompt.
#[must_use]
pub fn max_input_tokens(request: &ModelRequest) -> u64 {
    TokenCount::Bound.request(request)
}

/// An upper bound of the tokens that a message adds to a prompt.
#[must_use]
pub fn max_message_tokens(message: &ChatMessage) -> u64 {
    TokenCount::Bound.message(message)
}

/// The tokens of a request's prompt as `profile` estimates them, without its allowance.
#[must_use]
pub fn input_tokens(profile: &TokenProfile, request: &ModelRequest) -> u64 {
    TokenCount::Estimate(profile).request(request).div_ceil(1000)
}

/// The tokens that a message adds to a prompt as `profile` estimates them, without its allowance.
#[must_use]
pub fn message_tokens(profile: &TokenProfile, message: &ChatMessage) -> u64 {
    TokenCount::Estimate(profile).message(message).div_ceil(1000)
}

impl TokenCount<'_> {
    /// Around the whole: a tokenizer's first token, the frame of a system prompt.
    fn request_overhead(self) -> u64 {
        match self {
            Self::Bound => 64,
            Self::Estimate(_) => 16_000,
        }
    }

    /// What a provider tells the model about tools, once there are any.
    fn tools_overhead(self) -> u64 {
        match self {
            Self::Bound => 1024,
            Self::Estimate(_) => 360_000,
        }
    }

    /// Around each message, each call and each tool: roles, names of fields, line breaks.
    fn entry_overhead(self) -> u64 {
        match self {
            Self::Bound => 32,
            Self::Estimate(_) => 8_000,
        }
    }

    fn text(self, text: &str) -> u64 {
        match self {
            Self::Bound => text.len() as u64,
            Self::Estimate(profile) => profile.milli_tokens(text),
        }
    }

    fn json(self, value: &Value) -> u64 {
        match (self, value) {
            (Self::Bound, _) => json_len(value),
            // Providers show the model a string's own characters.
            (Self::Estimate(profile), Value::String(text)) => profile.milli_tokens(text),
            (Self::Estimate(profile), _) => profile.milli_tokens(&value.to_string()),
        }
    }

    fn file(self, file: &FilePart) -> u64 {
        let tokens = match self {
            Self::Bound => file.max_tokens(),
            Self::Estimate(_) => file.tokens.saturating_mul(1000),
        };
        tokens.saturating_add(self.entry_overhead()).saturating_add(self.text(&file.name))
    }

    fn request(self, request: &ModelRequest) -> u64 {
        let system = request.system.as_ref().map_or(0, |system| self.text(system));
        let tools = if request.tools.is_empty() { 0 } else { self.tools_overhead() };
        let messages = request.messages.iter().map(|message| self.message(message));
        let definitions = request.tools.iter().map(|tool| self.tool(tool));
        let format = request.settings.response_format.as_ref().map_or(0, |schema| self.json(schema));
        messages
            .chain(definitions)
            .chain([self.request_overhead(), system, tools, format])
            .fold(0, u64::saturating_add)
    }

    fn message(self, message: &ChatMessage) -> u64 {
        let content = match message {
            ChatMessage::User { text, files } => {
                files.iter().fold(self.text(text), |sum, file| sum.saturating_add(self.file(file)))
            }
            ChatMessage::Assistant { text, calls, replay } => {
                let calls: u64 = calls
                    .iter()
                    .map(|call| {
                        let input: u64 =
                            call.input.iter().map(|(key, value)| self.text(key) + 4 + self.json(value)).sum();
                        self.entry_overhead() + self.text(&call.id) + self.text(&call.name) + input
                    })
                    .sum();
                // What is sent back as it was stands for the text and the calls, or beside them.
                self.text(text) + calls + replay.iter().map(|block| self.json(block)).sum::<u64>()
            }
            ChatMessage::Tool { call_id, name, content, .. } => {
                self.text(call_id) + self.text(name) + self.text(content)
            }
        };
        self.entry_overhead().saturating_add(content)
    }

    fn tool(self, tool: &ToolDefinition) -> u64 {
        self.entry_overhead() + self.text(&tool.name) + self.text(&tool.description) + self.json(&tool.schema)
    }
}

/// The length of a value written as JSON, or a little more.
fn json_len(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len() as u64,
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
                4 + 6 * key.len() as u64 + json_len(value)
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
        let messages = texts.iter().map(|text| Arc::new(ChatMessage::user(text.clone()))).collect();
        ModelRequest {
            model: "m".to_owned(),
            system: None,
            messages,
            tools: Arc::from([]),
            max_output_tokens: 1,
            settings: Arc::default(),
            files: Arc::default(),
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
            longer.messages.push(Arc::new(ChatMessage::user(more.clone())));
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
