//! What is sent, to the letter.

use rye_model::ToolCall;
use rye_test::fake_model::{Recorded, Reply};

use super::*;

/// Asks a server that says `ok`, and shows what it saw.
fn sent(protocol: &str, request: &Request, further: &Value) -> Recorded {
    let model = FakeModel::start(|_| Reply::text("ok"));
    let answer = ask_now(&endpoint(protocol, &model.url(), further), request).0.expect("an answer");
    assert_eq!(answer.text, "ok");
    model.requests().remove(0)
}

fn result(content: &str, is_error: bool) -> Arc<Message> {
    let (call_id, name) = ("c1".to_owned(), "n".to_owned());
    Arc::new(Message::Tool { call_id, name, content: content.to_owned(), is_error })
}

fn called(replay: Vec<Value>) -> Arc<Message> {
    let input = json!({"k": 1}).as_object().expect("a map").clone();
    let calls = vec![ToolCall { id: "c1".to_owned(), name: "n".to_owned(), input, malformed: None }];
    Arc::new(Message::Assistant { text: "T".to_owned(), calls, replay })
}

/// A question, an answer with a call, the call's result.
fn conversation(wants_stream: bool) -> Request {
    Request {
        system: Some("S".to_owned()),
        messages: vec![user("U"), called(vec![]), result("R", false)],
        ..request(wants_stream)
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"k": {"type": "integer"}}})
}

#[test]
fn anthropic() {
    let recorded = sent("anthropic", &conversation(true), &json!({}));
    let expected = json!({
        "model": "m", "max_tokens": 100, "system": "S",
        "messages": [
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "T"}, {"type": "tool_use", "id": "c1", "name": "n", "input": {"k": 1}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "R"}]},
        ],
        "tools": [{"name": "n", "description": "D", "input_schema": schema()}],
        "stream": true,
    });
    assert_eq!(recorded.body, expected);
    assert_eq!(recorded.path, "/v1/messages");
    assert_eq!(
        (recorded.header("x-api-key"), recorded.header("anthropic-version")),
        (Some(KEY), Some("2023-06-01"))
    );
    assert_eq!(recorded.header("content-type"), Some("application/json"));
}

#[test]
fn openai() {
    let recorded = sent("openai", &conversation(true), &json!({}));
    let expected = json!({
        "model": "m", "max_completion_tokens": 100,
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "T", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "n", "arguments": "{\"k\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"},
        ],
        "tools": [{"type": "function", "function": {"name": "n", "description": "D", "parameters": schema()}}],
        "stream": true, "stream_options": {"include_usage": true},
    });
    assert_eq!(recorded.body, expected);
    assert_eq!(recorded.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
}

#[test]
fn gemini() {
    let recorded = sent("gemini", &conversation(true), &json!({}));
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "S"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "U"}]},
            {"role": "model", "parts": [{"text": "T"}, {"functionCall": {"name": "n", "args": {"k": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "n", "response": {"content": "R"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "n", "description": "D", "parametersJsonSchema": schema()}]}],
        "generationConfig": {"maxOutputTokens": 100},
    });
    assert_eq!(recorded.body, expected);
    assert_eq!(recorded.path, "/v1beta/models/m:streamGenerateContent?alt=sse");
    assert_eq!(recorded.header("x-goog-api-key"), Some(KEY));
    assert_eq!(sent("gemini", &conversation(false), &json!({})).path, "/v1beta/models/m:generateContent");
}

#[test]
fn ollama() {
    let recorded = sent("ollama", &conversation(true), &json!({"context_window": 8192}));
    let expected = json!({
        "model": "m", "stream": true, "options": {"num_predict": 100, "num_ctx": 8192},
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "T", "tool_calls": [{"function": {"name": "n", "arguments": {"k": 1}}}]},
            {"role": "tool", "tool_name": "n", "content": "R"},
        ],
        "tools": [{"type": "function", "function": {"name": "n", "description": "D", "parameters": schema()}}],
    });
    assert_eq!(recorded.body, expected);
}

#[test]
fn what_stands_behind_a_tool_is_never_sent_and_nothing_empty_either() {
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let recorded = sent(protocol, &conversation(wants_stream), &json!({}));
            assert!(!recorded.body.to_string().contains("secret/place"), "{protocol}");
            let bare = Request { tools: Arc::from([]), ..request(wants_stream) };
            let body = sent(protocol, &bare, &json!({})).body;
            let keys: Vec<&String> = body.as_object().expect("a map").keys().collect();
            assert!(
                !keys.iter().any(|key| ["tools", "system", "systemInstruction"].contains(&key.as_str())),
                "{keys:?}"
            );
            assert!(!body["messages"].to_string().contains("system"), "{protocol}");
        }
    }
}

#[test]
fn results_in_a_row_share_a_message_where_the_protocol_wants_it() {
    let mut request = request(false);
    request.messages = vec![user("U"), called(vec![]), result("R", false), result("E", true), user("V")];
    let anthropic = sent("anthropic", &request, &json!({})).body;
    let results = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "R"},
        {"type": "tool_result", "tool_use_id": "c1", "content": "E", "is_error": true},
    ]});
    assert_eq!(anthropic["messages"][2], results);
    assert_eq!(anthropic["messages"][3], json!({"role": "user", "content": "V"}));
    let gemini = sent("gemini", &request, &json!({})).body;
    let results = json!({"role": "user", "parts": [
        {"functionResponse": {"name": "n", "response": {"content": "R"}}},
        {"functionResponse": {"name": "n", "response": {"error": "E"}}},
    ]});
    assert_eq!(gemini["contents"][2], results);
    assert_eq!(gemini["contents"].as_array().map(Vec::len), Some(4));
}

#[test]
fn what_a_provider_wants_back_goes_to_no_other() {
    let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    let call = json!({"type": "tool_use", "id": "c1", "name": "n", "input": {"k": 1}});
    let part = json!({"functionCall": {"name": "n", "args": {"k": 1}}, "thoughtSignature": "s"});
    let replay = vec![
        json!({"anthropic": thinking}),
        json!({"anthropic": call}),
        json!({"gemini": part}),
        json!({"openai": {"reasoning_content": "r"}}),
    ];
    let mut request = request(false);
    request.messages = vec![user("U"), called(replay), result("R", false)];
    let body = |protocol: &str| sent(protocol, &request, &json!({})).body;
    assert_eq!(body("anthropic")["messages"][1], json!({"role": "assistant", "content": [thinking, call]}));
    assert_eq!(body("gemini")["contents"][1], json!({"role": "model", "parts": [part]}));
    assert_eq!(body("openai")["messages"][1]["reasoning_content"], "r");
    let ollama = body("ollama")["messages"][1].to_string();
    assert!(!ollama.contains("signature") && !ollama.contains("reasoning"), "{ollama}");
}

#[test]
fn a_file_adds_to_the_body() {
    let older = sent("openai", &request(false), &json!({"max_tokens_field": "max_tokens"})).body;
    assert_eq!((&older["max_tokens"], older.get("max_completion_tokens")), (&json!(100), None));
    let warm = sent("openai", &request(false), &json!({"body": {"temperature": 0.5}})).body;
    assert_eq!((&warm["temperature"], &warm["model"]), (&json!(0.5), &json!("m")));
    let further = json!({"body": {"generationConfig": {"maxOutputTokens": 9, "topK": 3}}});
    let gemini = sent("gemini", &request(false), &further).body;
    assert_eq!(gemini["generationConfig"], json!({"maxOutputTokens": 100, "topK": 3}));
    let unstreamed = sent("anthropic", &request(true), &json!({"stream": false})).body;
    assert_eq!(unstreamed.get("stream"), None);
}

#[test]
fn a_cached_prompt_is_marked_at_its_ends() {
    let body = sent("anthropic", &conversation(false), &json!({"prompt_cache": true})).body;
    let mark = json!({"type": "ephemeral"});
    assert_eq!(body["system"], json!([{"type": "text", "text": "S", "cache_control": mark}]));
    assert_eq!(body["messages"][2]["content"][0]["cache_control"], mark);
    assert_eq!(body["messages"][0]["content"], "U");
}

#[test]
fn a_model_can_be_nothing_but_a_part_of_the_path() {
    let model = FakeModel::start(|_| Reply::text("ok"));
    let gemini = provider("gemini", &model);
    for name in ["../../x", "a/b?c#d", "@evil.example/", "%2e%2e"] {
        let asked = Request { model: name.to_owned(), ..request(false) };
        assert!(ask_now(&gemini, &asked).0.is_ok(), "{name}");
    }
    for recorded in model.requests() {
        let rest = recorded.path.strip_prefix("/v1beta/models/").expect("below the path of models");
        assert!(!rest.contains(['/', '?', '#']) && rest.ends_with(":generateContent"), "{}", recorded.path);
    }
    for name in ["", ".", ".."] {
        let failure = fail(&gemini, &Request { model: name.to_owned(), ..request(false) });
        assert_eq!((failure.kind.as_str(), failure.reached_server), ("ProtocolError", false), "{name}");
    }
    assert_eq!(model.count(), 4);
    let hostile = json!({"protocol": "openai", "url": "http://{model}:1/"});
    let file = ProviderFile::read(hostile.as_object().expect("a map")).expect("a provider");
    let endpoint =
        file.connect("m", &BTreeMap::new(), &lillux::http::Client::default()).expect("an endpoint");
    let failure = fail(&endpoint, &Request { model: "evil.example".to_owned(), ..request(false) });
    assert_eq!((failure.kind.as_str(), failure.reached_server), ("ProtocolError", false));
    assert!(failure.message.contains("the model stands in place of the host"), "{failure}");
}

#[test]
fn one_connection_serves_request_after_request() {
    let model = FakeModel::start(|_| Reply::text("a b c"));
    for protocol in PROTOCOLS {
        let endpoint = provider(protocol, &model);
        runtime().block_on(async {
            for wants_stream in [true, false, true, true] {
                ask(&endpoint, &request(wants_stream)).await.0.expect("an answer");
            }
        });
    }
    let requests = model.requests();
    let connections: Vec<usize> = requests.iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
}
