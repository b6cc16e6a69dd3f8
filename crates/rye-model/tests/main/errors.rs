//! What goes wrong, and what is said of it.

use std::time::Duration;

use rye_model::FinishReason;
use rye_test::fake_model::FakeReply;

use super::*;

fn error_for(protocol: &str, wants_stream: bool, reply: FakeReply) -> ModelError {
    let model = FakeModel::start(move |_| reply.clone());
    expect_error(&fake_endpoint(protocol, &model), &request(wants_stream))
}

#[test]
fn provider_errors_are_parsed() {
    let cases = [
        (
            "anthropic",
            529,
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
            "overloaded_error",
            None,
        ),
        (
            "openai",
            429,
            json!({"error": {"message": "Overloaded", "type": "insufficient_quota", "code": "insufficient_quota"}}),
            "insufficient_quota",
            Some("insufficient_quota"),
        ),
        (
            "openai",
            400,
            json!({"error": {"message": "Overloaded", "type": null, "code": null}}),
            "unknown_error",
            None,
        ),
        (
            "gemini",
            503,
            json!({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}),
            "UNAVAILABLE",
            None,
        ),
        (
            "gemini",
            503,
            json!([{"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}]),
            "UNAVAILABLE",
            None,
        ),
        ("ollama", 404, json!({"error": "Overloaded"}), "unknown_error", None),
    ];
    for (protocol, status, body, kind, code) in cases {
        for wants_stream in [true, false] {
            let failure = error_for(protocol, wants_stream, FakeReply::status(status, &body, &[]));
            assert_eq!((failure.kind.as_str(), failure.code.as_deref()), (kind, code), "{protocol}");
            let (words, status_text) = failure.message.split_once(" (HTTP ").expect("words and a status");
            assert!(status_text.starts_with(&status.to_string()), "{status_text}");
            assert_eq!((words, failure.status_code), ("Overloaded", Some(status)), "{protocol}");
            assert_eq!((failure.partial, failure.reached_server), (None, true));
        }
    }
}

#[test]
fn only_useful_headers_are_reported() {
    let headers =
        [("Retry-After", "7"), ("retry-after-ms", "6900"), ("request-id", "req_1"), ("Set-Cookie", "secret")];
    let body = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
    let failure = error_for("anthropic", true, FakeReply::status(429, &body, &headers));
    let headers_seen: Vec<(&str, &str)> =
        failure.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers_seen, [("request-id", "req_1"), ("retry-after", "7"), ("retry-after-ms", "6900")]);
    let body = json!({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"},
    ]}});
    let failure = error_for("gemini", true, FakeReply::status(429, &body, &[]));
    assert_eq!(failure.headers["retry-after"], "37");
}

#[test]
fn echoed_api_key_is_redacted() {
    let body = json!({"error": {"type": format!("auth {API_KEY}"), "message": format!("bad key {API_KEY}\u{1b}[2J"), "code": API_KEY}});
    let failure = error_for("openai", false, FakeReply::status(401, &body, &[("x-request-id", API_KEY)]));
    assert_eq!(failure.message, "bad key [redacted] (HTTP 401 Unauthorized)");
    assert_eq!(failure.headers["x-request-id"], "[redacted]");
    let page = error_for("openai", false, FakeReply::status_text(502, &format!("<h1>{API_KEY}</h1>"), &[]));
    assert_eq!((page.kind.as_str(), page.status_code), ("ProtocolError", Some(502)));
    assert_eq!(page.message, "the server answers 502 Bad Gateway: <h1>[redacted]</h1>");
}

#[test]
fn error_message_is_bounded() {
    let failure = error_for("openai", false, FakeReply::status_text(500, &"x".repeat(100_000), &[]));
    assert!(failure.message.chars().count() < 2100, "{}", failure.message.len());
}

#[test]
fn a_redirect_is_not_followed() {
    let hidden = FakeModel::start(|_| FakeReply::text("secret"));
    let goal = format!("{}/v1/chat/completions", hidden.url());
    let failure = error_for("openai", false, FakeReply::status_text(307, "", &[("Location", &goal)]));
    assert_eq!((failure.kind.as_str(), failure.status_code), ("ProtocolError", Some(307)));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn silence_is_a_timeout() {
    for wants_stream in [true, false] {
        let model = FakeModel::start(|_| FakeReply::hang());
        let error_after = |seconds: u32| {
            let endpoint = endpoint("openai", &model.url(), &json!({"timeout": seconds}));
            (seconds, expect_error(&endpoint, &request(wants_stream)))
        };
        // Sending the request is part of the time: a slow machine gets more.
        let (seconds, failure) = match error_after(5) {
            (_, failure) if !failure.reached_server => error_after(60),
            reached => reached,
        };
        assert_eq!((failure.kind.as_str(), failure.reached_server), ("TimeoutError", true));
        assert_eq!(failure.message, format!("timed out: no response from the server for {seconds}s"));
        model.wait_for_abandoned(1);
    }
}

#[test]
fn dropped_future_closes_connection() {
    for protocol in PROTOCOLS {
        let model = FakeModel::start(|_| FakeReply::hang());
        let endpoint = fake_endpoint(protocol, &model);
        let runtime = runtime();
        runtime.block_on(async {
            let model_request = request(true);
            let mut pending = endpoint.complete(&model_request, &|_| {});
            let arrival = async {
                while model.count() == 0 {
                    let turn = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(pending.as_mut().poll(context).is_pending())
                    });
                    assert!(turn.await);
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(300), arrival).await.expect("the request arrives");
            drop(pending);
            tokio::task::yield_now().await;
        });
        // The runtime still lives: it was the drop that ended it.
        let other = std::thread::spawn(move || model.wait_for_abandoned(1));
        runtime.block_on(async {
            while !other.is_finished() {
                tokio::task::yield_now().await;
            }
        });
        other.join().expect("the server saw it");
    }
}

#[test]
fn refused_connection_sends_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let failure =
        expect_error(&endpoint("anthropic", &format!("http://{address}"), &json!({})), &request(true));
    assert_eq!((failure.kind.as_str(), failure.reached_server), ("ConnectionError", false), "{failure}");
    assert!(failure.message.starts_with("no connection: "), "{failure}");
}

#[test]
fn a_server_without_tls_gets_no_key() {
    let model = FakeModel::start(|_| FakeReply::text("never"));
    let base = model.url().replace("http://", "https://");
    let failure = expect_error(&endpoint("anthropic", &base, &json!({})), &request(true));
    assert_eq!(
        (failure.kind.as_str(), failure.reached_server, model.count()),
        ("ConnectionError", false, 0),
        "{failure}"
    );
}

#[test]
fn resets_differ_from_protocol_errors() {
    let broken = error_for("openai", false, FakeReply::raw(""));
    assert_eq!((broken.kind.as_str(), broken.partial), ("ConnectionResetError", None));
    let broken = error_for("openai", false, FakeReply::text("cut").disconnect_after(1));
    assert_eq!(broken.kind, "ConnectionResetError");
    let malformed = error_for("openai", false, FakeReply::raw("hello\r\n\r\n"));
    assert_eq!(malformed.kind, "ProtocolError");
    let no_json =
        error_for("openai", false, FakeReply::raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"));
    assert_eq!(no_json.kind, "ProtocolError");
    assert!(no_json.message.starts_with("the response is not valid JSON"), "{no_json}");
    for (protocol, body) in [("anthropic", "{}"), ("openai", "{}"), ("gemini", "{}"), ("ollama", "[]")] {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
        let invalid = error_for(protocol, true, FakeReply::raw(format!("{head}{body}")));
        assert_eq!((invalid.kind.as_str(), invalid.partial), ("ProtocolError", None), "{protocol}");
    }
}

#[test]
fn broken_stream_keeps_partial_response() {
    for (protocol, pieces) in [("anthropic", 4), ("openai", 3), ("gemini", 2), ("ollama", 2)] {
        let failure = error_for(protocol, true, FakeReply::reset_mid_stream(pieces));
        assert_eq!(
            (failure.kind.as_str(), failure.reached_server),
            ("ConnectionResetError", true),
            "{protocol}"
        );
        let partial = failure.partial.expect("what came");
        assert_eq!(partial.text, "one two ", "{protocol}");
        assert_eq!(partial.finish_reason, FinishReason::Other("incomplete".into()));
        assert_eq!(partial.usage.input_tokens > 0, ["anthropic", "gemini"].contains(&protocol), "{protocol}");
    }
}

fn event_stream(body: &str) -> FakeReply {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    FakeReply::raw(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
}

const FIRST_CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"so far\"}}]}\n\n";

#[test]
fn truncated_stream_is_an_error() {
    let failure = error_for("openai", true, event_stream(FIRST_CHUNK));
    assert_eq!(failure.kind, "StreamError");
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let nothing = error_for("openai", true, event_stream(": hello\n\n"));
    assert_eq!((nothing.kind.as_str(), nothing.partial), ("StreamError", None));
}

#[test]
fn broken_stream_call_is_malformed() {
    let body = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"n\",\"arguments\":\"\"}}]}}]}\n\n";
    for piece in ["", "{\\\"k\\\":"] {
        let more = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":\"{piece}\"}}}}]}}}}]}}\n\n"
        );
        let failure = error_for("openai", true, event_stream(&format!("{body}{more}")));
        let partial = failure.partial.expect("what came");
        assert_eq!(partial.calls[0].malformed, Some(piece.replace('\\', "")));
        assert_eq!(partial.finish_reason, FinishReason::Other("incomplete".into()));
    }
}

#[test]
fn invalid_stream_json_keeps_partial_response() {
    let failure = error_for("openai", true, event_stream(&format!("{FIRST_CHUNK}data: {{oops\n\n")));
    assert_eq!(failure.kind, "ProtocolError");
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let orphan_delta = "data: {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n";
    let failure = error_for("anthropic", true, event_stream(orphan_delta));
    assert_eq!(
        (failure.kind.as_str(), failure.message.as_str()),
        ("ProtocolError", "the answer continues a content block that was not started")
    );
}

#[test]
fn stream_error_event_is_reported() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let failure = error_for("anthropic", true, event_stream(error));
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("overloaded_error", "Overloaded"));
    let error = "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":\"x\"}}\n\n";
    let failure = error_for("openai", true, event_stream(&format!("{FIRST_CHUNK}{error}")));
    assert_eq!((failure.kind.as_str(), failure.code.as_deref()), ("server_error", Some("x")));
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let failure = error_for("ollama", true, event_stream("{\"error\":\"no memory\"}\n"));
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("unknown_error", "no memory"));
}

#[test]
fn endless_response_is_aborted() {
    let filler = format!(": {}\n", "x".repeat(1 << 20)).repeat(40);
    let failure = error_for("openai", true, event_stream(&filler));
    assert_eq!(failure.kind, "ProtocolError");
    assert_eq!(failure.message, "the answer is larger than an answer may be");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ";
    let failure = error_for("openai", true, FakeReply::raw(head.to_owned() + &"x".repeat(9 << 20)));
    assert_eq!(failure.message, "the answer is larger than an answer may be");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\"";
    let failure = error_for("openai", false, FakeReply::raw(head.to_owned() + &"x".repeat(33 << 20)));
    assert_eq!(failure.message, "the answer is larger than an answer may be");
}

#[test]
fn call_count_is_bounded() {
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let calls = (0..1001).map(|_| ("n", json!({})));
            let failure = error_for(protocol, wants_stream, FakeReply::calls(calls));
            assert_eq!(
                (failure.kind.as_str(), failure.message.as_str()),
                ("ProtocolError", "the answer has more than 1000 calls"),
                "{protocol}"
            );
        }
    }
}
