//! The protocols: [`WireProtocol`] is all that an endpoint knows of one, and [`ProviderProtocol::wire`] the only place that
//! chooses one.

use std::fmt::Debug;

use rye_thread::model::{ModelSettings, ReasoningEffort};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::response_builder::ResponseParser;
use crate::sse::Framing;
use crate::{ModelRequest, anthropic, gemini, ollama, openai};

/// How an endpoint is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderProtocol {
    /// Anthropic's messages.
    Anthropic,
    /// OpenAI's chat completions, and everybody who speaks them.
    Openai,
    /// Google's generateContent.
    Gemini,
    /// Ollama's own chat.
    Ollama,
    /// No endpoint: a script answers, see [`crate::offline`].
    Offline,
}

impl ProviderProtocol {
    pub(crate) const ALL: [Self; 5] =
        [Self::Anthropic, Self::Openai, Self::Gemini, Self::Ollama, Self::Offline];

    /// The protocol as provider files name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Openai => "openai",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
            Self::Offline => "offline",
        }
    }
}

/// What a provider file says about the bodies of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BodyOptions {
    /// OpenAI: the older name of the bound of an answer.
    pub uses_max_tokens: bool,
    /// Anthropic: ask for the prompt to be cached.
    pub prompt_cache: bool,
    /// Anthropic: how reasoning is asked for.
    pub reasoning: ReasoningStyle,
    /// Ollama: how large the context is, which it would choose too small.
    pub context_window: Option<u64>,
    /// Further fields of the body; what is sent anyway goes before them.
    pub body: Map<String, Value>,
}

/// A protocol that goes over the wire: how requests are written and answers are read. One implementation for each; all
/// that differs between providers stands there.
pub(crate) trait WireProtocol: Debug + Send + Sync {
    /// The body of a request, in the protocol's own names.
    fn body(
        &self,
        request: &ModelRequest,
        options: &BodyOptions,
        is_stream: bool,
    ) -> serde_json::Result<Vec<u8>>;

    /// Reads one answer, whole or event by event, and counts what it used.
    fn parser(&self) -> Box<dyn ResponseParser>;

    /// What is wrong with settings that the protocol cannot express.
    fn check_settings(&self, settings: &ModelSettings, bounds: &SettingBounds) -> Result<(), String>;

    /// How a streamed answer is cut into events.
    fn framing(&self) -> Framing {
        Framing::events()
    }

    /// Where a streamed answer comes from.
    fn stream_url(&self, url: Url) -> Url {
        url
    }

    /// A header that every request needs, unless the provider file has its own.
    fn default_header(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// The header of a key that is not a bearer token.
    fn key_header(&self) -> &'static str {
        "x-api-key"
    }

    /// What writing a token to the provider's cache costs where the file does not say, by the price of a token.
    fn cache_write_price(&self, input: u64) -> u64 {
        input
    }
}

/// What settings are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettingBounds {
    /// The longest answer that is asked for.
    pub max_output_tokens: u64,
    /// How reasoning is asked for.
    pub reasoning: ReasoningStyle,
}

/// How a provider is asked to reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReasoningStyle {
    /// By a number of tokens.
    #[default]
    Budget,
    /// By a word.
    Effort,
}

/// The fewest tokens of reasoning that providers take.
pub(crate) const MIN_REASONING_TOKENS: u64 = 1024;

/// The most tokens of reasoning that are asked for.
const MAX_REASONING_TOKENS: u64 = 24_576;

/// Tokens of reasoning within an answer of at most so many; none if the answer is too short for any.
pub(crate) fn reasoning_tokens(effort: ReasoningEffort, max_output_tokens: u64) -> Option<u64> {
    let tenths = match effort {
        ReasoningEffort::Minimal => 1,
        ReasoningEffort::Low => 2,
        ReasoningEffort::Medium => 5,
        ReasoningEffort::High => 8,
    };
    let share = max_output_tokens.saturating_mul(tenths) / 10;
    let tokens = share.clamp(MIN_REASONING_TOKENS, MAX_REASONING_TOKENS);
    (tokens < max_output_tokens).then_some(tokens)
}

impl ProviderProtocol {
    /// The protocol, if it goes over the wire.
    pub(crate) fn wire(self) -> Option<&'static dyn WireProtocol> {
        match self {
            Self::Anthropic => Some(&anthropic::AnthropicMessages),
            Self::Openai => Some(&openai::OpenAiChat),
            Self::Gemini => Some(&gemini::GeminiContent),
            Self::Ollama => Some(&ollama::OllamaChat),
            Self::Offline => None,
        }
    }
}

/// The body of a request, with the further fields of the provider file.
pub(crate) fn write_body(
    wire: &dyn WireProtocol,
    request: &ModelRequest,
    options: &BodyOptions,
    is_stream: bool,
) -> serde_json::Result<Vec<u8>> {
    let body = wire.body(request, options, is_stream)?;
    if options.body.is_empty() {
        return Ok(body);
    }
    let extra = Value::Object(options.body.clone());
    serde_json::to_vec(&rye_item::merge::merge(&extra, &serde_json::from_slice(&body)?))
}

/// The blocks that this protocol gave, to be sent back. What another protocol gave means nothing to it.
pub(crate) fn replay_entries<'a>(replay: &'a [Value], protocol: &'a str) -> impl Iterator<Item = &'a Value> {
    replay.iter().filter_map(move |entry| entry.get(protocol))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::response_builder::ResponseBuilder;

    /// Values made of the keys and words that readers look for, in any place and of any type.
    fn arb_event() -> impl Strategy<Value = Value> {
        const KEYS: &str = "type|index|content_block|delta|message|usage|stop_reason|text|thinking|partial_json|input|\
            content|choices|tool_calls|function|name|arguments|id|finish_reason|candidates|parts|functionCall|args|\
            error|status|code|details|retryDelay|done|model|input_tokens|output_tokens|signature|refusal";
        const WORDS: &str = "message_start|content_block_start|content_block_delta|message_delta|message_stop|error|\
            text|tool_use|thinking|redacted_thinking|text_delta|input_json_delta|thinking_delta|signature_delta|stop|\
            length|tool_calls|max_tokens|7s|{}";
        let word = |words: &'static str| prop::sample::select(words.split('|').collect::<Vec<_>>());
        let leaf = prop_oneof![
            4 => word(WORDS).prop_map(Value::from),
            2 => (0_u64..4).prop_map(Value::from),
            1 => prop::sample::select(vec![json!(null), json!(true), json!(u64::MAX), json!(-1.5), json!({})]),
        ];
        let any = leaf.prop_recursive(5, 40, 6, move |inner| {
            prop_oneof![
                1 => prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                4 => prop::collection::hash_map(word(KEYS), inner, 0..7).prop_map(|map| {
                    Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
                }),
            ]
        });
        // Most events have the right type, so that what lies deeper is reached.
        (any, word(WORDS), 0_u64..3).prop_map(|(mut event, kind, index)| {
            if let Value::Object(map) = &mut event {
                map.insert("type".to_owned(), kind.into());
                map.insert("index".to_owned(), index.into());
            }
            event
        })
    }

    proptest! {
        #[test]
        fn arbitrary_events_never_panic(events in prop::collection::vec(arb_event(), 1..8)) {
            let request = ModelRequest {
                model: "m".to_owned(),
                system: None,
                messages: vec![],
                tools: Arc::from([]),
                max_output_tokens: 1,
                settings: Arc::default(),
                files: Arc::default(),
                wants_stream: true,
            };
            for wire in ProviderProtocol::ALL.into_iter().filter_map(ProviderProtocol::wire) {
                let mut reader = wire.parser();
                let mut draft = ResponseBuilder::new(&request, &|_| {});
                for event in &events {
                    // Whether it is refused or taken is not the question here.
                    let text = event.to_string();
                    let _ = reader.parse_event(&text, &mut draft);
                    let _ = reader.parse_response(&serde_json::from_str(&text).unwrap(), &mut draft);
                }
                let answer = draft.build(reader.as_mut());
                prop_assert!(answer.calls.iter().all(|call| !call.id.is_empty()));
                prop_assert!(answer.calls.iter().all(|call| call.malformed.is_none() || call.input.is_empty()));
            }
        }
    }
}
