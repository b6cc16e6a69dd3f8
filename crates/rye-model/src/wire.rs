//! The protocols: which module writes a request and which reads its answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::draft::Reader;
use crate::sse::Framing;
use crate::{Request, anthropic, gemini, ollama, openai};

/// How an endpoint is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
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

impl Protocol {
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
pub(crate) struct Options {
    /// OpenAI: the older name of the bound of an answer.
    pub uses_max_tokens: bool,
    /// Anthropic: ask for the prompt to be cached.
    pub prompt_cache: bool,
    /// Ollama: how large the context is, which it would choose too small.
    pub context_window: Option<u64>,
    /// Further fields of the body; what is sent anyway goes before them.
    pub body: Map<String, Value>,
}

/// A protocol that goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wire {
    Anthropic,
    Openai,
    Gemini,
    Ollama,
}

impl Wire {
    pub(crate) fn of(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Anthropic => Some(Self::Anthropic),
            Protocol::Openai => Some(Self::Openai),
            Protocol::Gemini => Some(Self::Gemini),
            Protocol::Ollama => Some(Self::Ollama),
            Protocol::Offline => None,
        }
    }

    /// The body of a request.
    pub(crate) fn body(
        self,
        request: &Request,
        options: &Options,
        is_stream: bool,
    ) -> serde_json::Result<Vec<u8>> {
        let body = match self {
            Self::Anthropic => anthropic::body(request, options, is_stream),
            Self::Openai => openai::body(request, options, is_stream),
            Self::Gemini => gemini::body(request),
            Self::Ollama => ollama::body(request, options, is_stream),
        }?;
        if options.body.is_empty() {
            return Ok(body);
        }
        let further = Value::Object(options.body.clone());
        serde_json::to_vec(&rye_item::merge::merge(&further, &serde_json::from_slice(&body)?))
    }

    pub(crate) fn reader(self) -> Box<dyn Reader> {
        match self {
            Self::Anthropic => Box::new(anthropic::Messages::default()),
            Self::Openai => Box::new(openai::Chat::default()),
            Self::Gemini => Box::new(gemini::Content::default()),
            Self::Ollama => Box::new(ollama::Chat),
        }
    }

    pub(crate) fn framing(self) -> Framing {
        match self {
            Self::Anthropic | Self::Openai | Self::Gemini => Framing::events(),
            Self::Ollama => Framing::lines(),
        }
    }

    /// Where a streamed answer comes from.
    pub(crate) fn stream_url(self, mut url: Url) -> Url {
        if self == Self::Gemini {
            let path = url.path().replace(":generateContent", ":streamGenerateContent");
            url.set_path(&path);
            url.query_pairs_mut().append_pair("alt", "sse");
        }
        url
    }
}

/// The blocks that this protocol gave, to be sent back. What another protocol gave means nothing to it.
pub(crate) fn replayed<'a>(replay: &'a [Value], protocol: &'a str) -> impl Iterator<Item = &'a Value> {
    replay.iter().filter_map(move |entry| entry.get(protocol))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::draft::Draft;

    /// Values made of the keys and words that readers look for, in any place and of any type.
    fn event() -> impl Strategy<Value = Value> {
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
        fn nothing_a_server_says_is_a_panic_or_a_call_without_an_id(events in prop::collection::vec(event(), 1..8)) {
            let request = Request {
                model: "m".to_owned(),
                system: None,
                messages: vec![],
                tools: Arc::from([]),
                max_output_tokens: 1,
                wants_stream: true,
            };
            for wire in [Wire::Anthropic, Wire::Openai, Wire::Gemini, Wire::Ollama] {
                let mut reader = wire.reader();
                let mut draft = Draft::new(&request, &|_| {});
                for event in &events {
                    // Whether it is refused or taken is not the question here.
                    let text = event.to_string();
                    let _ = reader.take(&text, &mut draft);
                    let _ = reader.take_whole(&serde_json::from_str(&text).unwrap(), &mut draft);
                }
                let answer = draft.answer(reader.as_mut());
                prop_assert!(answer.calls.iter().all(|call| !call.id.is_empty()));
                prop_assert!(answer.calls.iter().all(|call| call.malformed.is_none() || call.input.is_empty()));
            }
        }
    }
}
