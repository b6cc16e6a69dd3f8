//! What is sent, to the letter.

use rye_model::{ModelSettings, ReasoningEffort, ToolCall};
use rye_test::fake_model::{FakeReply, LoggedRequest};

use super::*;

/// Asks a server that says `ok`, and shows what it saw.
fn record_request(protocol: &str, request: &ModelRequest, extra: &Value) -> LoggedRequest {
    let model = FakeModel::start(|_| FakeReply::text("ok"));
    let response = send_blocking(&endpoint(protocol, &model.url(), extra), request).0.expect("an answer");
    assert_eq!(response.text, "ok");
    model.requests().remove(0)
}

fn tool_result(content: &str, is_error: bool) -> Arc<ChatMessage> {
    let (call_id, name) = ("c1".to_owned(), "n".to_owned());
    Arc::new(ChatMessage::Tool { call_id, name, content: content.to_owned(), is_error })
}

fn assistant_call(replay: Vec<Value>) -> Arc<ChatMessage> {
    let input = json!({"k": 1}).as_object().expect("a map").clone();
    let calls = vec![ToolCall { id: "c1".to_owned(), name: "n".to_owned(), input, malformed: None }];
    Arc::new(ChatMessage::Assistant { text: "T".to_owned(), calls, replay })
}

/// A question, an answer with a call, the call's result.
fn conversation(wants_stream: bool) -> ModelRequest {
    ModelRequest {
        system: Some("S".to_owned()),
        messages: vec![user_message("U"), assistant_call(vec![]), tool_result("R", false)],
        ..request(wants_stream)
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"k": {"type": "integer"}}})
}

#[test]
fn anthropic() {
    let recorded = record_request("anthropic", &conversation(true), &json!({}));
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
        (Some(API_KEY), Some("2023-06-01"))
    );
    assert_eq!(recorded.header("content-type"), Some("application/json"));
}

#[test]
fn openai() {
    let recorded = record_request("openai", &conversation(true), &json!({}));
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
    assert_eq!(recorded.header("authorization"), Some(format!("Bearer {API_KEY}").as_str()));
}

#[test]
fn gemini() {
    let recorded = record_request("gemini", &conversation(true), &json!({}));
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
    assert_eq!(recorded.header("x-goog-api-key"), Some(API_KEY));
    assert_eq!(
        record_request("gemini", &conversation(false), &json!({})).path,
        "/v1beta/models/m:generateContent"
    );
}

#[test]
fn ollama() {
    let recorded = record_request("ollama", &conversation(true), &json!({"context_window": 8192}));
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

fn with_settings() -> ModelRequest {
    let settings = ModelSettings {
        temperature: Some(0.5),
        reasoning_effort: Some(ReasoningEffort::High),
        max_output_tokens: Some(4000),
        stop: vec!["END".to_owned()],
        response_format: Some(schema()),
    };
    ModelRequest {
        tools: Arc::from([]),
        max_output_tokens: 4000,
        settings: Arc::new(settings),
        ..request(false)
    }
}

/// What a request has besides the conversation and its bound.
fn setting_fields(protocol: &str, extra: &Value) -> Value {
    let mut body = record_request(protocol, &with_settings(), extra).body;
    let fields = body.as_object_mut().expect("a map");
    for key in ["model", "messages", "contents", "max_tokens", "max_completion_tokens", "stream"] {
        fields.remove(key);
    }
    body
}

#[test]
fn settings_are_sent_in_each_protocols_words() {
    let anthropic = json!({
        "temperature": 0.5, "stop_sequences": ["END"], "thinking": {"type": "enabled", "budget_tokens": 3200},
        "output_config": {"format": {"type": "json_schema", "schema": schema()}},
    });
    assert_eq!(setting_fields("anthropic", &json!({})), anthropic);
    let by_effort = setting_fields("anthropic", &json!({"reasoning": "effort"}));
    assert_eq!(
        (&by_effort["thinking"], &by_effort["output_config"]["effort"]),
        (&json!({"type": "adaptive"}), &json!("high"))
    );
    let openai = json!({
        "temperature": 0.5, "stop": ["END"], "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "answer", "schema": schema(), "strict": false,
        }},
    });
    assert_eq!(setting_fields("openai", &json!({"body": {"temperature": 1}})), openai);
    let gemini = json!({"generationConfig": {
        "maxOutputTokens": 4000, "temperature": 0.5, "stopSequences": ["END"],
        "thinkingConfig": {"thinkingBudget": 3200},
        "responseMimeType": "application/json", "responseJsonSchema": schema(),
    }});
    assert_eq!(setting_fields("gemini", &json!({})), gemini);
    let ollama = json!({
        "think": "high", "format": schema(), "options": {"num_predict": 4000, "temperature": 0.5, "stop": ["END"]},
    });
    assert_eq!(setting_fields("ollama", &json!({})), ollama);
}

#[test]
fn reasoning_leaves_room_for_an_answer() {
    let short = ModelRequest { max_output_tokens: 1000, ..with_settings() };
    let body = record_request("anthropic", &short, &json!({})).body;
    assert_eq!((body.get("thinking"), &body["max_tokens"]), (None, &json!(1000)));
}

#[test]
fn tool_target_is_never_sent() {
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let recorded = record_request(protocol, &conversation(wants_stream), &json!({}));
            assert!(!recorded.body.to_string().contains("secret/place"), "{protocol}");
            let bare = ModelRequest { tools: Arc::from([]), ..request(wants_stream) };
            let body = record_request(protocol, &bare, &json!({})).body;
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
fn consecutive_results_share_a_message() {
    let mut request = request(false);
    request.messages = vec![
        user_message("U"),
        assistant_call(vec![]),
        tool_result("R", false),
        tool_result("E", true),
        user_message("V"),
    ];
    let anthropic = record_request("anthropic", &request, &json!({})).body;
    let results = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "R"},
        {"type": "tool_result", "tool_use_id": "c1", "content": "E", "is_error": true},
    ]});
    assert_eq!(anthropic["messages"][2], results);
    assert_eq!(anthropic["messages"][3], json!({"role": "user", "content": "V"}));
    let gemini = record_request("gemini", &request, &json!({})).body;
    let results = json!({"role": "user", "parts": [
        {"functionResponse": {"name": "n", "response": {"content": "R"}}},
        {"functionResponse": {"name": "n", "response": {"error": "E"}}},
    ]});
    assert_eq!(gemini["contents"][2], results);
    assert_eq!(gemini["contents"].as_array().map(Vec::len), Some(4));
}

#[test]
fn replay_blocks_stay_with_their_protocol() {
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
    request.messages = vec![user_message("U"), assistant_call(replay), tool_result("R", false)];
    let body = |protocol: &str| record_request(protocol, &request, &json!({})).body;
    assert_eq!(body("anthropic")["messages"][1], json!({"role": "assistant", "content": [thinking, call]}));
    assert_eq!(body("gemini")["contents"][1], json!({"role": "model", "parts": [part]}));
    assert_eq!(body("openai")["messages"][1]["reasoning_content"], "r");
    let ollama = body("ollama")["messages"][1].to_string();
    assert!(!ollama.contains("signature") && !ollama.contains("reasoning"), "{ollama}");
}

#[test]
fn provider_file_extends_the_body() {
    let older = record_request("openai", &request(false), &json!({"max_tokens_field": "max_tokens"})).body;
    assert_eq!((&older["max_tokens"], older.get("max_completion_tokens")), (&json!(100), None));
    let warm = record_request("openai", &request(false), &json!({"body": {"temperature": 0.5}})).body;
    assert_eq!((&warm["temperature"], &warm["model"]), (&json!(0.5), &json!("m")));
    let extra = json!({"body": {"generationConfig": {"maxOutputTokens": 9, "topK": 3}}});
    let gemini = record_request("gemini", &request(false), &extra).body;
    assert_eq!(gemini["generationConfig"], json!({"maxOutputTokens": 100, "topK": 3}));
    let unstreamed = record_request("anthropic", &request(true), &json!({"stream": false})).body;
    assert_eq!(unstreamed.get("stream"), None);
}

#[test]
fn a_cached_prompt_is_marked_at_its_ends() {
    let body = record_request("anthropic", &conversation(false), &json!({"prompt_cache": true})).body;
    let mark = json!({"type": "ephemeral"});
    assert_eq!(body["system"], json!([{"type": "text", "text": "S", "cache_control": mark}]));
    assert_eq!(body["messages"][2]["content"][0]["cache_control"], mark);
    assert_eq!(body["messages"][0]["content"], "U");
}

#[test]
fn model_name_is_only_a_path_segment() {
    let model = FakeModel::start(|_| FakeReply::text("ok"));
    let gemini = fake_endpoint("gemini", &model);
    for name in ["../../x", "a/b?c#d", "@evil.example/", "%2e%2e"] {
        let model_request = ModelRequest { model: name.to_owned(), ..request(false) };
        assert!(send_blocking(&gemini, &model_request).0.is_ok(), "{name}");
    }
    for recorded in model.requests() {
        let rest = recorded.path.strip_prefix("/v1beta/models/").expect("below the path of models");
        assert!(!rest.contains(['/', '?', '#']) && rest.ends_with(":generateContent"), "{}", recorded.path);
    }
    for name in ["", ".", ".."] {
        let failure = expect_error(&gemini, &ModelRequest { model: name.to_owned(), ..request(false) });
        assert_eq!((failure.kind.as_str(), failure.reached_server), ("ProtocolError", false), "{name}");
    }
    assert_eq!(model.count(), 4);
    let hostile = json!({"protocol": "openai", "url": "http://{model}:1/"});
    let file = ProviderFile::from_fields(hostile.as_object().expect("a map")).expect("a provider");
    let endpoint =
        file.connect("m", &BTreeMap::new(), &lillux::http::HttpClient::default()).expect("an endpoint");
    let failure =
        expect_error(&endpoint, &ModelRequest { model: "evil.example".to_owned(), ..request(false) });
    assert_eq!((failure.kind.as_str(), failure.reached_server), ("ProtocolError", false));
    assert!(failure.message.contains("the model is in place of the host"), "{failure}");
}

#[test]
fn one_connection_serves_request_after_request() {
    let model = FakeModel::start(|_| FakeReply::text("a b c"));
    for protocol in PROTOCOLS {
        let endpoint = fake_endpoint(protocol, &model);
        runtime().block_on(async {
            for wants_stream in [true, false, true, true] {
                send(&endpoint, &request(wants_stream)).await.0.expect("an answer");
            }
        });
    }
    let requests = model.requests();
    let connections: Vec<usize> = requests.iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
}
