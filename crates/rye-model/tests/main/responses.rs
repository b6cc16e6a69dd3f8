//! What comes back, streamed and not.

use rye_model::{FinishReason, Usage};
use rye_test::fake_model::FakeReply;

use super::*;

/// What each protocol makes of a reply, streamed and not. `check` gets the protocol, whether it streamed, and the rest.
fn for_each_protocol(reply: &FakeReply, check: impl Fn(&str, bool, ModelResponse, Vec<ResponseDelta>)) {
    let reply = reply.clone();
    let model = FakeModel::start(move |_| reply.clone());
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let (response, deltas) = send_blocking(&fake_endpoint(protocol, &model), &request(wants_stream));
            check(protocol, wants_stream, response.expect(protocol), deltas);
        }
    }
}

fn collect_deltas(deltas: &[ResponseDelta]) -> (String, String, Vec<String>) {
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for delta in deltas {
        match delta {
            ResponseDelta::Text(words) => text.push_str(words),
            ResponseDelta::Reasoning(words) => reasoning.push_str(words),
            ResponseDelta::CallStarted { id, name } => calls.push(format!("{name} {id}")),
        }
    }
    (text, reasoning, calls)
}

#[test]
fn text_arrives_whole_and_streamed() {
    let reply = FakeReply::text("one two three é").with_usage(100, 40, 7);
    for_each_protocol(&reply, |protocol, is_stream, response, deltas| {
        assert_eq!(
            (response.text.as_str(), response.finish_reason),
            ("one two three é", FinishReason::Stop),
            "{protocol}"
        );
        assert_eq!(collect_deltas(&deltas).0, "one two three é");
        assert!(!is_stream || deltas.len() == 4, "{protocol}: {deltas:?}");
        let cached = if protocol == "ollama" { 0 } else { 40 };
        let usage = Usage {
            input_tokens: 100,
            cached_input_tokens: cached,
            cache_write_tokens: 0,
            output_tokens: 7,
            reasoning_tokens: 0,
            ..Usage::default()
        };
        assert_eq!((response.usage, response.model.as_str()), (usage, "m"), "{protocol}");
        assert_eq!((response.calls.len(), response.replay.len(), response.reasoning.as_str()), (0, 0, ""));
    });
}

#[test]
fn calls_have_arguments_and_unique_ids() {
    let reply = FakeReply::calls_and_text(
        "so",
        [("n", json!({"k": 1})), ("n", json!({})), ("o", json!({"a": [true, null]}))],
    );
    for_each_protocol(&reply, |protocol, _, response, deltas| {
        let calls: Vec<(&str, Value)> = response
            .calls
            .iter()
            .map(|call| (call.name.as_str(), Value::Object(call.input.clone())))
            .collect();
        let expected = [("n", json!({"k": 1})), ("n", json!({})), ("o", json!({"a": [true, null]}))];
        assert_eq!((calls.as_slice(), response.text.as_str()), (expected.as_slice(), "so"), "{protocol}");
        assert_eq!(response.finish_reason, FinishReason::ToolCalls, "{protocol}");
        let mut ids: Vec<String> = response.calls.iter().map(|call| call.id.clone()).collect();
        let announced: Vec<String> =
            response.calls.iter().map(|call| format!("{} {}", call.name, call.id)).collect();
        assert_eq!(collect_deltas(&deltas).2, announced, "{protocol}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{protocol}: {ids:?}");
        assert!(response.calls.iter().all(|call| call.malformed.is_none() && !call.id.is_empty()));
    });
}

#[test]
fn empty_response_is_accepted() {
    for_each_protocol(&FakeReply::empty(), |protocol, _, response, deltas| {
        assert_eq!(
            (response.text.as_str(), response.calls.len(), response.finish_reason),
            ("", 0, FinishReason::Stop),
            "{protocol}"
        );
        assert_eq!(deltas, vec![]);
    });
}

#[test]
fn truncated_response_has_length_finish() {
    for_each_protocol(&FakeReply::length("so far"), |protocol, _, response, _| {
        assert_eq!(
            (response.text.as_str(), response.finish_reason),
            ("so far", FinishReason::Length),
            "{protocol}"
        );
    });
}

/// An answer far longer than was asked for is cut off where it comes in, in every protocol.
#[test]
fn overlong_responses_are_cut_off() {
    let words = format!("{} ", "x".repeat(999)).repeat(400);
    let replies = [
        FakeReply::text(&words),
        FakeReply::calls([("n", json!({"k": words}))]),
        FakeReply::text("so").with_thinking(&words),
    ];
    for reply in replies {
        let model = FakeModel::start(move |_| reply.clone());
        for protocol in PROTOCOLS {
            for wants_stream in [true, false] {
                let error = expect_error(&fake_endpoint(protocol, &model), &request(wants_stream));
                assert_eq!(error.kind, "AnswerTooLong", "{protocol} {wants_stream}: {error:?}");
                let partial = error.partial.as_ref().expect("what came before");
                let arguments =
                    partial.calls.iter().map(|call| call.malformed.as_ref().map_or(0, String::len));
                let arrived = partial.text.len() + partial.reasoning.len() + arguments.sum::<usize>();
                assert!((262_144..270_000).contains(&arrived), "{protocol} {wants_stream}: {arrived}");
            }
        }
    }
}

#[test]
fn truncated_call_is_malformed() {
    let model = FakeModel::start(|_| FakeReply::truncated_tool_json("n", "{\"k\": 1, \"path\": \"/et"));
    for protocol in ["anthropic", "openai"] {
        for wants_stream in [true, false] {
            let response =
                send_blocking(&fake_endpoint(protocol, &model), &request(wants_stream)).0.expect("an answer");
            let call = &response.calls[0];
            assert_eq!((response.finish_reason, call.input.len()), (FinishReason::Length, 0), "{protocol}");
            // Without a stream, Anthropic shows an object where the text broke off.
            let raw =
                if protocol == "anthropic" && !wants_stream { "" } else { "{\"k\": 1, \"path\": \"/et" };
            assert_eq!(call.malformed.as_deref(), Some(raw), "{protocol} {wants_stream}");
        }
    }
}

#[test]
fn non_object_arguments_are_malformed() {
    for raw in ["{\"k\": ", "[1]", "7", "not json", "\"text\""] {
        let model = FakeModel::start(move |_| FakeReply::call_with_arguments("n", raw));
        for (protocol, wants_stream) in [("openai", true), ("openai", false), ("anthropic", true)] {
            let response =
                send_blocking(&fake_endpoint(protocol, &model), &request(wants_stream)).0.expect("an answer");
            let call = &response.calls[0];
            assert_eq!((call.malformed.as_deref(), call.input.len()), (Some(raw), 0), "{protocol} {raw}");
            assert_eq!(response.finish_reason, FinishReason::ToolCalls);
        }
    }
}

#[test]
fn reasoning_is_separate_and_replayed() {
    let reply = FakeReply::calls_and_text("so", [("n", json!({"k": 1}))]).with_thinking("let me see");
    for_each_protocol(&reply, |protocol, is_stream, response, deltas| {
        let mode = format!("{protocol} {is_stream}");
        assert_eq!((response.reasoning.as_str(), response.text.as_str()), ("let me see", "so"), "{mode}");
        assert_eq!(collect_deltas(&deltas).1, "let me see", "{mode}");
        let id = &response.calls[0].id;
        let expected = match protocol {
            "anthropic" => vec![
                json!({"anthropic": {"type": "thinking", "thinking": "let me see", "signature": "signed"}}),
                json!({"anthropic": {"type": "text", "text": "so"}}),
                json!({"anthropic": {"type": "tool_use", "id": id, "name": "n", "input": {"k": 1}}}),
            ],
            "openai" => vec![json!({"openai": {"reasoning_content": "let me see"}})],
            "gemini" => vec![
                json!({"gemini": {"text": "let me see", "thought": true}}),
                json!({"gemini": {"text": "so"}}),
                json!({"gemini": {"functionCall": {"name": "n", "args": {"k": 1}}, "thoughtSignature": "signed"}}),
            ],
            _ => vec![],
        };
        assert_eq!(response.replay, expected, "{mode}");
    });
}

fn event_stream(body: &str) -> FakeReply {
    typed_reply("text/event-stream", body)
}

fn typed_reply(content_type: &str, body: &str) -> FakeReply {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
    FakeReply::raw(head + body)
}

fn response_to(protocol: &str, reply: FakeReply) -> ModelResponse {
    let model = FakeModel::start(move |_| reply.clone());
    send_blocking(&fake_endpoint(protocol, &model), &request(true)).0.expect("an answer")
}

#[test]
fn unstreamed_response_is_accepted() {
    let whole = r#"{"model": "x", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}"#;
    let response = response_to("openai", typed_reply("application/json; charset=utf-8", whole));
    assert_eq!(
        (response.text.as_str(), response.usage.is_reported(), response.model.as_str()),
        ("hi", false, "x")
    );
}

#[test]
fn usage_that_is_repeated_is_counted_once() {
    let body = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"model\":\"x\",\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":5,\"cache_read_input_tokens\":3,\"output_tokens\":4}}}\n\n",
        "data: {\"type\":\"ping\"}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":6}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":3,\"output_tokens\":9}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    let usage = Usage {
        input_tokens: 18,
        cached_input_tokens: 3,
        cache_write_tokens: 5,
        output_tokens: 9,
        reasoning_tokens: 0,
        ..Usage::default()
    };
    assert_eq!(response_to("anthropic", event_stream(body)).usage, usage);
    let body = concat!(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"completion_tokens_details\":{\"reasoning_tokens\":1}}}\n\n",
        "data: [DONE]\n\n",
    );
    let usage = response_to("openai", event_stream(body)).usage;
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (7, 2, 1));
    let body = concat!(
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}],\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":1,\"thoughtsTokenCount\":5}}\n\n",
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":2,\"thoughtsTokenCount\":5}}\n\n",
    );
    let usage = response_to("gemini", event_stream(body)).usage;
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (7, 7, 5));
}

#[test]
fn half_a_count_is_no_count() {
    for counted in [
        r#"{"completion_tokens":5}"#,
        r#"{"prompt_tokens":50000.5,"completion_tokens":5}"#,
        r#"{"prompt_tokens":-7,"completion_tokens":5}"#,
        r#"{"prompt_tokens":5}"#,
    ] {
        let body = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}],\"usage\":{counted}}}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(response_to("openai", event_stream(&body)).usage, Usage::default(), "{counted}");
    }
}

#[test]
fn pieces_of_arguments_find_their_call_by_index() {
    let start = |index: u8| {
        format!(
            "data: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"tool_use\",\"id\":\"t{index}\",\"name\":\"n\",\"input\":{{}}}}}}\n\n"
        )
    };
    let piece = |index: u8, text: &str| {
        let text = json!(text);
        format!(
            "data: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":{text}}}}}\n\n"
        )
    };
    let end = "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let body = [
        start(0),
        start(1),
        piece(0, "{\"a\""),
        piece(1, "{\"b\""),
        piece(0, ":1}"),
        piece(1, ":2}"),
        end.to_owned(),
    ];
    let response = response_to("anthropic", event_stream(&body.concat()));
    let inputs: Vec<Value> = response.calls.into_iter().map(|call| Value::Object(call.input)).collect();
    assert_eq!(inputs, [json!({"a": 1}), json!({"b": 2})]);
}

#[test]
fn badly_numbered_calls_are_accepted() {
    let chunk =
        |calls: Value| format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": calls}}]}));
    let call = |index: Option<u8>, id: &str, arguments: &str| {
        let mut call = json!({"id": id, "function": {"name": "n", "arguments": arguments}});
        if let Some(index) = index {
            call["index"] = json!(index);
        }
        call
    };
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let unnumbered =
        chunk(json!([call(None, "a", "{\"a\":"), {"function": {"arguments": "1}"}}, call(None, "b", "{}")]));
    let all_zero =
        chunk(json!([call(Some(0), "a", "{\"a\":1}")])) + &chunk(json!([call(Some(0), "b", "{}")]));
    let same_id = chunk(json!([call(Some(0), "a", "{\"a\":1}"), call(Some(1), "a", "{}")]));
    for body in [unnumbered, all_zero, same_id] {
        let response = response_to("openai", event_stream(&(body.clone() + end)));
        let inputs: Vec<Value> =
            response.calls.iter().map(|call| Value::Object(call.input.clone())).collect();
        assert_eq!(inputs, [json!({"a": 1}), json!({})], "{body}");
        assert_ne!(response.calls[0].id, response.calls[1].id, "{body}");
        assert_eq!(response.finish_reason, FinishReason::ToolCalls);
    }
}

#[test]
fn reused_call_id_is_replaced() {
    let body = "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"n\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}";
    let model = FakeModel::start(move |_| typed_reply("application/json", body));
    let call = rye_model::ToolCall {
        id: "c1".into(),
        name: "n".into(),
        input: serde_json::Map::new(),
        malformed: None,
    };
    let mut conversation = request(false);
    let used = rye_model::ToolCall { id: "call-3-0".into(), ..call.clone() };
    conversation.messages.push(Arc::new(ChatMessage::Assistant {
        text: String::new(),
        calls: vec![used],
        replay: vec![],
    }));
    conversation.messages.push(Arc::new(ChatMessage::Assistant {
        text: String::new(),
        calls: vec![call],
        replay: vec![],
    }));
    let response = send_blocking(&fake_endpoint("openai", &model), &conversation).0.expect("an answer");
    assert_eq!(response.calls[0].id, "call-3-0-");
}

#[test]
fn other_finish_reasons_are_kept() {
    let body = "{\"content\":[{\"type\":\"text\",\"text\":\"no\"}],\"stop_reason\":\"refusal\",\"usage\":{\"input_tokens\":1}}";
    assert_eq!(
        response_to("anthropic", typed_reply("application/json", body)).finish_reason,
        FinishReason::Refused("refusal".into())
    );
    let body = "data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}\n\n";
    assert_eq!(
        response_to("gemini", event_stream(body)).finish_reason,
        FinishReason::Refused("SAFETY".into())
    );
}
