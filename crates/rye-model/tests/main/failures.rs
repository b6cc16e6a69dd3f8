//! What goes wrong, and what is said of it.

use std::time::Duration;

use rye_model::Finish;
use rye_test::fake_model::Reply;

use super::*;

fn failure_of(protocol: &str, wants_stream: bool, reply: Reply) -> Failure {
    let model = FakeModel::start(move |_| reply.clone());
    fail(&provider(protocol, &model), &request(wants_stream))
}

#[test]
fn each_provider_says_what_went_wrong_in_its_own_shape() {
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
            let failure = failure_of(protocol, wants_stream, Reply::status(status, &body, &[]));
            assert_eq!((failure.kind.as_str(), failure.code.as_deref()), (kind, code), "{protocol}");
            let (words, shown) = failure.message.split_once(" (HTTP ").expect("words and a status");
            assert!(shown.starts_with(&status.to_string()), "{shown}");
            assert_eq!((words, failure.status_code), ("Overloaded", Some(status)), "{protocol}");
            assert_eq!((failure.partial, failure.reached_server), (None, true));
        }
    }
}

#[test]
fn headers_that_help_are_kept_and_no_others() {
    let headers =
        [("Retry-After", "7"), ("retry-after-ms", "6900"), ("request-id", "req_1"), ("Set-Cookie", "secret")];
    let body = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
    let failure = failure_of("anthropic", true, Reply::status(429, &body, &headers));
    let kept: Vec<(&str, &str)> =
        failure.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(kept, [("request-id", "req_1"), ("retry-after", "7"), ("retry-after-ms", "6900")]);
    let body = json!({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"},
    ]}});
    let failure = failure_of("gemini", true, Reply::status(429, &body, &[]));
    assert_eq!(failure.headers["retry-after"], "37");
}

#[test]
fn a_key_that_is_echoed_is_not_shown() {
    let body = json!({"error": {"type": format!("auth {KEY}"), "message": format!("bad key {KEY}\u{1b}[2J"), "code": KEY}});
    let failure = failure_of("openai", false, Reply::status(401, &body, &[("x-request-id", KEY)]));
    assert_eq!(failure.message, "bad key [redacted] (HTTP 401 Unauthorized)");
    assert_eq!(failure.headers["x-request-id"], "[redacted]");
    let page = failure_of("openai", false, Reply::status_text(502, &format!("<h1>{KEY}</h1>"), &[]));
    assert_eq!((page.kind.as_str(), page.status_code), ("ProtocolError", Some(502)));
    assert_eq!(page.message, "the server answers 502 Bad Gateway: <h1>[redacted]</h1>");
}

#[test]
fn a_complaint_is_bounded() {
    let failure = failure_of("openai", false, Reply::status_text(500, &"x".repeat(100_000), &[]));
    assert!(failure.message.chars().count() < 2100, "{}", failure.message.len());
}

#[test]
fn a_redirect_is_not_followed() {
    let hidden = FakeModel::start(|_| Reply::text("secret"));
    let goal = format!("{}/v1/chat/completions", hidden.url());
    let failure = failure_of("openai", false, Reply::status_text(307, "", &[("Location", &goal)]));
    assert_eq!((failure.kind.as_str(), failure.status_code), ("ProtocolError", Some(307)));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn silence_is_a_timeout() {
    for wants_stream in [true, false] {
        let model = FakeModel::start(|_| Reply::hang());
        let failure =
            fail(&endpoint("openai", &model.url(), &json!({"timeout": 0.3})), &request(wants_stream));
        assert_eq!((failure.kind.as_str(), failure.reached_server), ("TimeoutError", true));
        assert_eq!(failure.message, "timed out: the server said nothing for 300ms");
        model.wait_for_abandoned(1);
    }
}

#[test]
fn a_future_that_is_dropped_ends_the_exchange() {
    for protocol in PROTOCOLS {
        let model = FakeModel::start(|_| Reply::hang());
        let endpoint = provider(protocol, &model);
        let runtime = runtime();
        runtime.block_on(async {
            let asked = request(true);
            let mut pending = endpoint.complete(&asked, &|_| {});
            let arrival = async {
                while model.count() == 0 {
                    let turn = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(pending.as_mut().poll(context).is_pending())
                    });
                    assert!(turn.await);
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), arrival).await.expect("the request arrives");
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
fn nobody_there_is_a_connection_error_and_nothing_was_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let failure = fail(&endpoint("anthropic", &format!("http://{address}"), &json!({})), &request(true));
    assert_eq!((failure.kind.as_str(), failure.reached_server), ("ConnectionError", false), "{failure}");
    assert!(failure.message.starts_with("no connection: "), "{failure}");
}

#[test]
fn a_server_without_tls_gets_no_key() {
    let model = FakeModel::start(|_| Reply::text("never"));
    let base = model.url().replace("http://", "https://");
    let failure = fail(&endpoint("anthropic", &base, &json!({})), &request(true));
    assert_eq!(
        (failure.kind.as_str(), failure.reached_server, model.count()),
        ("ConnectionError", false, 0),
        "{failure}"
    );
}

#[test]
fn a_connection_that_breaks_is_told_from_one_that_speaks_nonsense() {
    let broken = failure_of("openai", false, Reply::raw(""));
    assert_eq!((broken.kind.as_str(), broken.partial), ("ConnectionResetError", None));
    let broken = failure_of("openai", false, Reply::text("cut").cut_after(1));
    assert_eq!(broken.kind, "ConnectionResetError");
    let nonsense = failure_of("openai", false, Reply::raw("hello\r\n\r\n"));
    assert_eq!(nonsense.kind, "ProtocolError");
    let no_json = failure_of("openai", false, Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"));
    assert_eq!(no_json.kind, "ProtocolError");
    assert!(no_json.message.starts_with("the answer is no JSON"), "{no_json}");
    for (protocol, body) in [("anthropic", "{}"), ("openai", "{}"), ("gemini", "{}"), ("ollama", "[]")] {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
        let wrong = failure_of(protocol, true, Reply::raw(format!("{head}{body}")));
        assert_eq!((wrong.kind.as_str(), wrong.partial), ("ProtocolError", None), "{protocol}");
    }
}

#[test]
fn a_stream_that_breaks_keeps_what_came() {
    for (protocol, pieces) in [("anthropic", 4), ("openai", 3), ("gemini", 2), ("ollama", 2)] {
        let failure = failure_of(protocol, true, Reply::reset_mid_stream(pieces));
        assert_eq!(
            (failure.kind.as_str(), failure.reached_server),
            ("ConnectionResetError", true),
            "{protocol}"
        );
        let partial = failure.partial.expect("what came");
        assert_eq!(partial.text, "one two ", "{protocol}");
        assert_eq!(partial.finish, Finish::Other("incomplete".into()));
        assert_eq!(partial.usage.input_tokens > 0, ["anthropic", "gemini"].contains(&protocol), "{protocol}");
    }
}

fn event_stream(body: &str) -> Reply {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    Reply::raw(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
}

const SOME: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"so far\"}}]}\n\n";

#[test]
fn a_stream_that_ends_early_is_no_answer() {
    let failure = failure_of("openai", true, event_stream(SOME));
    assert_eq!(failure.kind, "StreamError");
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let nothing = failure_of("openai", true, event_stream(": hello\n\n"));
    assert_eq!((nothing.kind.as_str(), nothing.partial), ("StreamError", None));
}

#[test]
fn a_stream_that_broke_within_a_call_never_shows_half_of_it() {
    let body = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"n\",\"arguments\":\"\"}}]}}]}\n\n";
    for piece in ["", "{\\\"k\\\":"] {
        let more = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":\"{piece}\"}}}}]}}}}]}}\n\n"
        );
        let failure = failure_of("openai", true, event_stream(&format!("{body}{more}")));
        let partial = failure.partial.expect("what came");
        assert_eq!(partial.calls[0].malformed, Some(piece.replace('\\', "")));
        assert_eq!(partial.finish, Finish::Other("incomplete".into()));
    }
}

#[test]
fn a_stream_that_holds_no_json_keeps_what_came() {
    let failure = failure_of("openai", true, event_stream(&format!("{SOME}data: {{oops\n\n")));
    assert_eq!(failure.kind, "ProtocolError");
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let stray = "data: {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n";
    let failure = failure_of("anthropic", true, event_stream(stray));
    assert_eq!(
        (failure.kind.as_str(), failure.message.as_str()),
        ("ProtocolError", "a piece came for a block that never began")
    );
}

#[test]
fn an_error_within_a_stream_is_the_servers_own() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let failure = failure_of("anthropic", true, event_stream(error));
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("overloaded_error", "Overloaded"));
    let error = "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":\"x\"}}\n\n";
    let failure = failure_of("openai", true, event_stream(&format!("{SOME}{error}")));
    assert_eq!((failure.kind.as_str(), failure.code.as_deref()), ("server_error", Some("x")));
    assert_eq!(failure.partial.expect("what came").text, "so far");
    let failure = failure_of("ollama", true, event_stream("{\"error\":\"no memory\"}\n"));
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("unknown_error", "no memory"));
}

#[test]
fn an_answer_without_end_is_left() {
    let filler = format!(": {}\n", "x".repeat(1 << 20)).repeat(40);
    let failure = failure_of("openai", true, event_stream(&filler));
    assert_eq!(failure.kind, "ProtocolError");
    assert_eq!(failure.message, "the answer is larger than an answer may be");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ";
    let failure = failure_of("openai", true, Reply::raw(head.to_owned() + &"x".repeat(9 << 20)));
    assert_eq!(failure.message, "the answer is larger than an answer may be");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\"";
    let failure = failure_of("openai", false, Reply::raw(head.to_owned() + &"x".repeat(33 << 20)));
    assert_eq!(failure.message, "the answer is larger than an answer may be");
}

#[test]
fn an_answer_has_only_so_many_calls() {
    for protocol in PROTOCOLS {
        for wants_stream in [true, false] {
            let calls = (0..1001).map(|_| ("n", json!({})));
            let failure = failure_of(protocol, wants_stream, Reply::calls(calls));
            assert_eq!(
                (failure.kind.as_str(), failure.message.as_str()),
                ("ProtocolError", "the answer has more than 1000 calls"),
                "{protocol}"
            );
        }
    }
}
