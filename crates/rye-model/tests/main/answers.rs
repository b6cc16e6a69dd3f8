//! What comes back, streamed and not.

use rye_model::{Finish, Usage};
use rye_test::fake_model::Reply;

use super::*;

/// What each protocol makes of a reply, streamed and not. `check` gets the protocol, whether it streamed, and the rest.
fn for_all(reply: &Reply, check: impl Fn(&str, bool, Answer, Vec<Delta>)) {
    let reply = reply.clone();
    let model = FakeModel::start(move |_| reply.clone());
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let (answer, deltas) = ask_now(&provider(protocol, &model), &request(wants_stream));
            check(protocol, wants_stream, answer.expect(protocol), deltas);
        }
    }
}

fn told(deltas: &[Delta]) -> (String, String, Vec<String>) {
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Text(words) => text.push_str(words),
            Delta::Reasoning(words) => reasoning.push_str(words),
            Delta::CallBegan { id, name } => calls.push(format!("{name} {id}")),
        }
    }
    (text, reasoning, calls)
}

#[test]
fn words_arrive_whole_and_piece_by_piece() {
    let reply = Reply::text("one two three é").usage(100, 40, 7);
    for_all(&reply, |protocol, is_stream, answer, deltas| {
        assert_eq!((answer.text.as_str(), answer.finish), ("one two three é", Finish::Stop), "{protocol}");
        assert_eq!(told(&deltas).0, "one two three é");
        assert!(!is_stream || deltas.len() == 4, "{protocol}: {deltas:?}");
        let cached = if protocol == "ollama" { 0 } else { 40 };
        let usage = Usage {
            input_tokens: 100,
            cached_input_tokens: cached,
            cache_write_tokens: 0,
            output_tokens: 7,
            reasoning_tokens: 0,
        };
        assert_eq!((answer.usage, answer.model.as_str()), (usage, "m"), "{protocol}");
        assert_eq!((answer.calls.len(), answer.replay.len(), answer.reasoning.as_str()), (0, 0, ""));
    });
}

#[test]
fn calls_arrive_with_their_arguments_and_ids_of_their_own() {
    let reply = Reply::calls_and_text(
        "so",
        [("n", json!({"k": 1})), ("n", json!({})), ("o", json!({"a": [true, null]}))],
    );
    for_all(&reply, |protocol, _, answer, deltas| {
        let calls: Vec<(&str, Value)> =
            answer.calls.iter().map(|call| (call.name.as_str(), Value::Object(call.input.clone()))).collect();
        let expected = [("n", json!({"k": 1})), ("n", json!({})), ("o", json!({"a": [true, null]}))];
        assert_eq!((calls.as_slice(), answer.text.as_str()), (expected.as_slice(), "so"), "{protocol}");
        assert_eq!(answer.finish, Finish::ToolCalls, "{protocol}");
        let mut ids: Vec<String> = answer.calls.iter().map(|call| call.id.clone()).collect();
        let announced: Vec<String> =
            answer.calls.iter().map(|call| format!("{} {}", call.name, call.id)).collect();
        assert_eq!(told(&deltas).2, announced, "{protocol}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{protocol}: {ids:?}");
        assert!(answer.calls.iter().all(|call| call.malformed.is_none() && !call.id.is_empty()));
    });
}

#[test]
fn an_empty_answer_is_an_answer() {
    for_all(&Reply::empty(), |protocol, _, answer, deltas| {
        assert_eq!(
            (answer.text.as_str(), answer.calls.len(), answer.finish),
            ("", 0, Finish::Stop),
            "{protocol}"
        );
        assert_eq!(deltas, vec![]);
    });
}

#[test]
fn an_answer_that_ran_out_of_room_says_so() {
    for_all(&Reply::length("so far"), |protocol, _, answer, _| {
        assert_eq!((answer.text.as_str(), answer.finish), ("so far", Finish::Length), "{protocol}");
    });
}

#[test]
fn a_call_that_ran_out_of_room_is_malformed_and_never_half_filled() {
    let model = FakeModel::start(|_| Reply::truncated_tool_json("n", "{\"k\": 1, \"path\": \"/et"));
    for protocol in ["anthropic", "openai"] {
        for wants_stream in [true, false] {
            let answer = ask_now(&provider(protocol, &model), &request(wants_stream)).0.expect("an answer");
            let call = &answer.calls[0];
            assert_eq!((answer.finish, call.input.len()), (Finish::Length, 0), "{protocol}");
            // Without a stream, Anthropic shows an object where the text broke off.
            let raw =
                if protocol == "anthropic" && !wants_stream { "" } else { "{\"k\": 1, \"path\": \"/et" };
            assert_eq!(call.malformed.as_deref(), Some(raw), "{protocol} {wants_stream}");
        }
    }
}

#[test]
fn arguments_that_are_no_object_are_malformed() {
    for raw in ["{\"k\": ", "[1]", "7", "not json", "\"text\""] {
        let model = FakeModel::start(move |_| Reply::call_with_arguments("n", raw));
        for (protocol, wants_stream) in [("openai", true), ("openai", false), ("anthropic", true)] {
            let answer = ask_now(&provider(protocol, &model), &request(wants_stream)).0.expect("an answer");
            let call = &answer.calls[0];
            assert_eq!((call.malformed.as_deref(), call.input.len()), (Some(raw), 0), "{protocol} {raw}");
            assert_eq!(answer.finish, Finish::ToolCalls);
        }
    }
}

#[test]
fn reasoning_is_told_apart_and_what_is_signed_goes_back() {
    let reply = Reply::calls_and_text("so", [("n", json!({"k": 1}))]).thinking("let me see");
    for_all(&reply, |protocol, is_stream, answer, deltas| {
        let mode = format!("{protocol} {is_stream}");
        assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("let me see", "so"), "{mode}");
        assert_eq!(told(&deltas).1, "let me see", "{mode}");
        let id = &answer.calls[0].id;
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
        assert_eq!(answer.replay, expected, "{mode}");
    });
}

fn event_stream(body: &str) -> Reply {
    typed("text/event-stream", body)
}

fn typed(content_type: &str, body: &str) -> Reply {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
    Reply::raw(head + body)
}

fn answer_to(protocol: &str, reply: Reply) -> Answer {
    let model = FakeModel::start(move |_| reply.clone());
    ask_now(&provider(protocol, &model), &request(true)).0.expect("an answer")
}

#[test]
fn a_server_that_cannot_stream_is_understood_all_the_same() {
    let whole = r#"{"model": "x", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}"#;
    let answer = answer_to("openai", typed("application/json; charset=utf-8", whole));
    assert_eq!((answer.text.as_str(), answer.usage.is_reported(), answer.model.as_str()), ("hi", false, "x"));
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
    };
    assert_eq!(answer_to("anthropic", event_stream(body)).usage, usage);
    let body = concat!(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"completion_tokens_details\":{\"reasoning_tokens\":1}}}\n\n",
        "data: [DONE]\n\n",
    );
    let usage = answer_to("openai", event_stream(body)).usage;
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (7, 2, 1));
    let body = concat!(
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}],\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":1,\"thoughtsTokenCount\":5}}\n\n",
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":2,\"thoughtsTokenCount\":5}}\n\n",
    );
    let usage = answer_to("gemini", event_stream(body)).usage;
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (7, 7, 5));
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
    let answer = answer_to("anthropic", event_stream(&body.concat()));
    let inputs: Vec<Value> = answer.calls.into_iter().map(|call| Value::Object(call.input)).collect();
    assert_eq!(inputs, [json!({"a": 1}), json!({"b": 2})]);
}

#[test]
fn servers_that_number_calls_badly_are_understood() {
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
        let answer = answer_to("openai", event_stream(&(body.clone() + end)));
        let inputs: Vec<Value> = answer.calls.iter().map(|call| Value::Object(call.input.clone())).collect();
        assert_eq!(inputs, [json!({"a": 1}), json!({})], "{body}");
        assert_ne!(answer.calls[0].id, answer.calls[1].id, "{body}");
        assert_eq!(answer.finish, Finish::ToolCalls);
    }
}

#[test]
fn an_id_the_conversation_knows_already_is_not_used_again() {
    let body = "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"n\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}";
    let model = FakeModel::start(move |_| typed("application/json", body));
    let call = rye_model::ToolCall {
        id: "c1".into(),
        name: "n".into(),
        input: serde_json::Map::new(),
        malformed: None,
    };
    let mut asked = request(false);
    let taken = rye_model::ToolCall { id: "call-3-0".into(), ..call.clone() };
    asked.messages.push(Arc::new(Message::Assistant {
        text: String::new(),
        calls: vec![taken],
        replay: vec![],
    }));
    asked.messages.push(Arc::new(Message::Assistant {
        text: String::new(),
        calls: vec![call],
        replay: vec![],
    }));
    let answer = ask_now(&provider("openai", &model), &asked).0.expect("an answer");
    assert_eq!(answer.calls[0].id, "call-3-0-");
}

#[test]
fn other_ends_keep_their_name() {
    let body = "{\"content\":[{\"type\":\"text\",\"text\":\"no\"}],\"stop_reason\":\"refusal\",\"usage\":{\"input_tokens\":1}}";
    assert_eq!(
        answer_to("anthropic", typed("application/json", body)).finish,
        Finish::Refused("refusal".into())
    );
    let body = "data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}\n\n";
    assert_eq!(answer_to("gemini", event_stream(body)).finish, Finish::Refused("SAFETY".into()));
}
