//! Cutting a streamed body into events: server-sent events, or one JSON text a line. No event is larger than its bound.

use std::mem;

use lillux::http::{SseEvent, SseParser};

/// How large one event may be.
pub(crate) const MAX_EVENT_BYTES: usize = 8 << 20;

/// How a body is cut.
pub(crate) enum Framing {
    /// Server-sent events.
    Events(SseParser),
    /// One text a line.
    Lines(Vec<u8>),
}

/// An event is larger than its bound.
#[derive(Debug, PartialEq)]
pub(crate) struct EventTooLarge;

impl Framing {
    pub(crate) fn events() -> Self {
        Self::Events(SseParser::default())
    }

    pub(crate) fn lines() -> Self {
        Self::Lines(Vec::new())
    }

    /// Takes bytes as they come and hands out the data of each event that is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<String>) -> Result<(), EventTooLarge> {
        let pending = match self {
            Self::Events(parser) => {
                let mut events = Vec::new();
                parser.feed(bytes, &mut events);
                out.extend(events.into_iter().map(|event: SseEvent| event.data));
                parser.pending_bytes()
            }
            Self::Lines(pending_line) => {
                let mut rest = bytes;
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    pending_line.extend_from_slice(&rest[..end]);
                    flush_line(pending_line, out);
                    rest = &rest[end + 1..];
                }
                pending_line.extend_from_slice(rest);
                pending_line.len()
            }
        };
        let is_too_large = pending > MAX_EVENT_BYTES || out.iter().any(|data| data.len() > MAX_EVENT_BYTES);
        if is_too_large { Err(EventTooLarge) } else { Ok(()) }
    }

    /// Ends the stream: servers often leave out the last line break.
    pub(crate) fn finish(&mut self, out: &mut Vec<String>) {
        match self {
            Self::Events(parser) => {
                let mut events = Vec::new();
                parser.finish(&mut events);
                out.extend(events.into_iter().map(|event| event.data));
            }
            Self::Lines(pending_line) => flush_line(pending_line, out),
        }
    }
}

fn flush_line(pending_line: &mut Vec<u8>, out: &mut Vec<String>) {
    let line = mem::take(pending_line);
    let line = String::from_utf8_lossy(&line);
    if !line.trim().is_empty() {
        out.push(line.trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{ProviderProtocol, WireProtocol};
    use crate::response_builder::ResponseBuilder;
    use crate::{FinishReason, ModelRequest, ModelResponse};

    /// A stream of each protocol: words, reasoning, two calls, comments, line ends of every kind.
    const ANTHROPIC: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n",
        ": a comment\r\n\r\nevent: ping\ndata: {\"type\":\"ping\"}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\r\n\r\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm é\"}}\r\r",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"s\"}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\ndata: \"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"ß → 𝄞\"}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"n\",\"input\":{}}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"k\\\":\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"1}\"}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":5}}\n\n",
        "data: {\"type\":\"message_stop\"}",
    );
    const OPENAI: &str = concat!(
        "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"reasoning_content\":\"hm é\"}}]}\n\n",
        "data:{\"choices\":[{\"delta\":{\"content\":\"ß → 𝄞\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"n\",\"arguments\":\"{\\\"k\\\":\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n",
    );
    const GEMINI: &str = concat!(
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"hm é\",\"thought\":true}]}}],\"modelVersion\":\"m\"}\r\n\r\n",
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"ß → 𝄞\"},{\"functionCall\":{\"id\":\"a\",\"name\":\"n\",\"args\":{\"k\":1}}}]}}]}\r\n\r\n",
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":9,\"candidatesTokenCount\":5}}",
    );
    const OLLAMA: &str = concat!(
        "{\"model\":\"m\",\"message\":{\"content\":\"\",\"thinking\":\"hm é\"},\"done\":false}\n",
        "{\"message\":{\"content\":\"ß → 𝄞\"},\"done\":false}\r\n\n",
        "{\"message\":{\"content\":\"\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"n\",\"arguments\":{\"k\":1}}}]},\"done\":false}\n",
        "{\"message\":{\"content\":\"\"},\"done\":true,\"prompt_eval_count\":9,\"eval_count\":5}",
    );

    fn parse_stream(wire: &dyn WireProtocol, chunks: &[&[u8]]) -> ModelResponse {
        let request = ModelRequest {
            model: "asked".to_owned(),
            system: None,
            messages: vec![],
            tools: Arc::from([]),
            max_output_tokens: 1,
            settings: Arc::default(),
            files: Arc::default(),
            wants_stream: true,
        };
        let (mut framing, mut parser) = (wire.framing(), wire.parser());
        let mut builder = ResponseBuilder::new(&request, &|_| {});
        let mut ready = Vec::new();
        for chunk in chunks {
            framing.feed(chunk, &mut ready).expect("small events");
        }
        framing.finish(&mut ready);
        for data in ready {
            parser.parse_event(&data, &mut builder).expect("a valid event");
        }
        assert!(builder.finish_reason.is_some());
        builder.build(parser.as_mut())
    }

    fn example_stream(protocol: ProviderProtocol) -> &'static str {
        match protocol {
            ProviderProtocol::Anthropic => ANTHROPIC,
            ProviderProtocol::Openai => OPENAI,
            ProviderProtocol::Gemini => GEMINI,
            ProviderProtocol::Ollama => OLLAMA,
            ProviderProtocol::Offline => "",
        }
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_matter(cuts in prop::collection::vec(0.0..1.0_f64, 0..40)) {
            for protocol in ProviderProtocol::ALL {
                let Some(wire) = protocol.wire() else { continue };
                let stream = example_stream(protocol);
                let bytes = stream.as_bytes();
                let mut places: Vec<usize> = cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
                places.extend([0, bytes.len()]);
                places.sort_unstable();
                let chunks: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
                let answer = parse_stream(wire, &chunks);
                prop_assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("ß → 𝄞", "hm é"));
                prop_assert_eq!((answer.calls.len(), &answer.calls[0].input["k"]), (1, &serde_json::json!(1)));
                prop_assert_eq!((answer.calls[0].id.as_str(), answer.model.as_str()), ("a", "m"));
                prop_assert_eq!((answer.finish_reason, answer.usage.input_tokens, answer.usage.output_tokens), (FinishReason::ToolCalls, 9, 5));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0..400_usize) {
            for protocol in [ProviderProtocol::Anthropic, ProviderProtocol::Ollama] {
                let wire = protocol.wire().expect("a wire protocol");
                let (mut framing, mut ready) = (wire.framing(), Vec::new());
                let (first, rest) = bytes.split_at(cut.min(bytes.len()));
                for chunk in [first, rest] {
                    framing.feed(chunk, &mut ready).expect("small events");
                }
                framing.finish(&mut ready);
            }
        }
    }

    #[test]
    fn event_size_is_bounded() {
        let piece = vec![b'x'; 1 << 20];
        for mut framing in [Framing::events(), Framing::lines()] {
            let mut ready = Vec::new();
            let fed = (0..9).try_for_each(|_| framing.feed(&piece, &mut ready));
            assert_eq!((fed, ready.len()), (Err(EventTooLarge), 0));
        }
    }
}
