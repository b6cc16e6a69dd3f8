//! The primitive against small servers on loopback.

#[path = "../../../lillux/src/http/tests/server.rs"]
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};

use server::{Reply, Server, reply};

use super::*;

fn access() -> ToolAccess {
    ToolAccess { network: true, allowed_hosts: vec!["127.0.0.1".to_owned()], ..ToolAccess::default() }
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn call_config(config: &Value) -> HttpOutcome {
    call_with_variables(config, &[])
}

fn call_with_variables(config: &Value, variables: &[(&str, &str)]) -> HttpOutcome {
    let config = config.as_object().expect("a map");
    call(config, &environment(variables), &access(), &CancelToken::new().expect("an event"))
}

fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[test]
fn response_becomes_data() {
    let server = Server::start(|_| {
        reply(
            "200 OK",
            "Content-Type: application/json\r\nX-A: 1\r\nX-A: 2\r\nSet-Cookie: c=1\r\n",
            "{\"n\": [1, 2]}",
        )
    });
    let outcome = call_config(&json!({"url": server.url("/x")}));
    let expected = json!({
        "status_code": 200,
        "body": {"n": [1, 2]},
        "headers": {
            "content-type": "application/json", "x-a": "1, 2", "content-length": "13", "connection": "close",
        },
    });
    assert_eq!(outcome.data, expected);
    assert_eq!((outcome.is_success, outcome.error(), outcome.attempts), (true, None, 1));
    assert!(!outcome.truncated);
}

#[test]
fn bodies_are_json_text_or_bytes() {
    let body = |kind: &'static str, bytes: &'static [u8]| {
        let server = Server::start(move |_| reply("200 OK", &format!("Content-Type: {kind}\r\n"), bytes));
        let data = call_config(&json!({"url": server.url("/")})).data;
        (data["body"].clone(), data["body_base64"].clone())
    };
    assert_eq!(body("text/plain", b"[1]"), (json!([1]), Value::Null));
    assert_eq!(body("application/problem+json", b"{\"a\":1}"), (json!({"a": 1}), Value::Null));
    assert_eq!(body("application/json", b"{broken"), (json!("{broken"), Value::Null));
    assert_eq!(body("text/plain; charset=latin1", b"caf\xe9"), (json!("café"), Value::Null));
    assert_eq!(body("image/png", b"\x89\xff\0"), (Value::Null, json!("if8A")));
}

#[test]
fn failed_response_keeps_its_data() {
    let server = Server::start(|_| reply("404 Not Found", "", "{\"why\":\"gone\"}"));
    let outcome = call_config(&json!({"url": server.url("/")}));
    assert_eq!((outcome.is_success, outcome.error()), (false, Some("HTTP 404: Not Found")));
    assert_eq!((&outcome.data["status_code"], &outcome.data["body"]["why"]), (&json!(404), &json!("gone")));
    let server = Server::start(|_| reply("304 Not Modified", "", ""));
    assert!(call_config(&json!({"url": server.url("/")})).is_success);
}

#[test]
fn body_type_follows_the_config() {
    let sent = |config: Value| {
        let server = Server::start(|_| reply("200 OK", "", ""));
        let mut config = config;
        config["url"] = server.url("/p?a=1").into();
        let outcome = call_config(&config);
        assert_eq!(outcome.error(), None);
        let request = server.requests().remove(0);
        let line = request.lines().next().unwrap_or_default().to_owned();
        let kind = request.lines().find_map(|line| line.strip_prefix("content-type: ")).map(str::to_owned);
        (line, kind.unwrap_or_default(), body_of(&request).to_owned())
    };
    let is =
        |line: &str, kind: &str, body: &str| (format!("{line} HTTP/1.1"), kind.to_owned(), body.to_owned());
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(
            sent(json!({"method": method, "body": {"b": 1, "a": [true, null]}})),
            is(&format!("{method} /p?a=1"), "application/json", "{\"b\":1,\"a\":[true,null]}")
        );
    }
    assert_eq!(
        sent(json!({"method": "post", "body": "plain"})),
        is("POST /p?a=1", "text/plain; charset=utf-8", "plain")
    );
    let own = json!({"method": "POST", "body": {}, "headers": {"Content-Type": "application/x-own"}});
    assert_eq!(sent(own), is("POST /p?a=1", "application/x-own", "{}"));
    let form = json!({"method": "POST", "body_type": "form", "body": {"x": "a b&c", "y": [1, 2], "z": null}});
    assert_eq!(sent(form), is("POST /p?a=1", "application/x-www-form-urlencoded", "x=a+b%26c&y=1&y=2"));
    assert_eq!(sent(json!({"body_type": "query", "body": {"q": "é"}})), is("GET /p?a=1&q=%C3%A9", "", ""));
    assert_eq!(sent(json!({"query": {"q": "x&y=z", "n": 1}})), is("GET /p?a=1&q=x%26y%3Dz&n=1", "", ""));
    assert_eq!(sent(json!({"body": {"ignored": 1}})), is("GET /p?a=1", "", ""));
}

#[test]
fn credentials_go_into_headers_and_nowhere_else() {
    let cases = [
        (json!({"type": "bearer", "token": "hush-hush"}), "authorization: Bearer hush-hush"),
        (json!({"type": "api_key", "key": "hush-hush"}), "x-api-key: hush-hush"),
        (json!({"type": "api_key", "key": "hush-hush", "header": "X-Own"}), "x-own: hush-hush"),
        (
            json!({"type": "basic", "username": "u", "password": "hush-hush"}),
            "authorization: Basic dTpodXNoLWh1c2g=",
        ),
    ];
    for (auth, line) in cases {
        let server = Server::start(|_| reply("500 Internal Server Error", "", "no"));
        let outcome = call_config(&json!({"url": server.url("/hush-hush?token=abc&q=1"), "auth": auth}));
        assert!(server.requests()[0].contains(&format!("\r\n{line}\r\n")), "{:?}", server.requests());
        let trace = outcome.trace.to_string();
        assert!(
            !trace.contains("hush-hush") && !trace.contains("dTpod") && !trace.contains("abc"),
            "{trace}"
        );
        assert!(outcome.trace["request"]["url"].as_str().is_some_and(|url| url.ends_with("[redacted]&q=1")));
    }
}

#[test]
fn trace_and_error_contain_no_secrets() {
    let config = json!({
        "url": "http://127.0.0.1:1/v1/very%2Fsecret?x=very%2Fsecret",
        "method": "POST",
        "headers": {"X-Plain": "a very/secret b", "Accept": "text/plain"},
        "body": {"text": "say very/secret", "password": "short", "n": 1},
    });
    let outcome = call_with_variables(&config, &[("SERVICE_TOKEN", "very/secret"), ("PLAIN", "text/plain")]);
    let request = json!({
        "method": "POST",
        "url": "http://127.0.0.1:1/v1/[redacted]?x=[redacted]",
        "headers": {
            "x-plain": "[redacted]", "accept": "text/plain", "content-type": "application/json",
            "user-agent": concat!("rye/", env!("CARGO_PKG_VERSION")),
        },
        "body": {"text": "say [redacted]", "password": "[redacted]", "n": 1},
        "timeout": 30.0,
        "mode": "sync",
    });
    assert_eq!(outcome.trace["request"], request);
    let error = outcome.error().expect("a refused connection").to_owned();
    assert!(error.starts_with("Request failed after 1 attempt: no connection to"), "{error}");
    assert!(!error.contains("secret") && !outcome.trace.to_string().contains("very"));
}

#[test]
fn busy_server_is_retried_after_its_delay() {
    let count = AtomicUsize::new(0);
    let server = Server::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => reply("429 Too Many Requests", "Retry-After: 0\r\n", "wait"),
        1 => reply("503 Service Unavailable", "", "wait"),
        2 => Reply::Send(Vec::new()),
        _ => reply("200 OK", "", "\"done\""),
    });
    let retry = json!({"max_attempts": 5, "backoff": "constant", "base_ms": 1});
    let outcome = call_config(&json!({"url": server.url("/"), "retry": retry}));
    assert_eq!((outcome.attempts, &outcome.data["body"], outcome.error()), (4, &json!("done"), None));
    let attempts = outcome.trace["attempts"].as_array().expect("attempts").clone();
    assert_eq!(attempts[0], json!({"status_code": 429, "redirects": 0, "retried_after_ms": 0}));
    assert_eq!(attempts[3], json!({"status_code": 200, "redirects": 0}));
}

#[test]
fn retries_end_before_the_timeout() {
    let server = Server::start(|_| reply("503 Service Unavailable", "Retry-After: 3000\r\n", "busy"));
    let outcome = call_config(&json!({"url": server.url("/"), "retry": {"max_attempts": 5}}));
    assert_eq!((outcome.attempts, outcome.error()), (1, Some("HTTP 503: Service Unavailable")));
    let server = Server::start(|_| reply("502 Bad Gateway", "", "busy"));
    let retry = json!({"max_attempts": 3, "base_ms": 1});
    let mut config = json!({"url": server.url("/"), "retry": retry});
    assert_eq!(call_config(&config).attempts, 3);
    config["method"] = "POST".into();
    assert_eq!(call_config(&config).attempts, 1);
    config["retry"]["retry_unsafe"] = true.into();
    assert_eq!(call_config(&config).attempts, 3);
}

#[test]
fn cancel_ends_the_retry_delay() {
    let cancel = CancelToken::new().expect("an event");
    let other = cancel.clone();
    let server = Server::start(move |_| {
        other.cancel();
        reply("503 Service Unavailable", "", "busy")
    });
    let config =
        json!({"url": server.url("/"), "timeout": 3000, "retry": {"max_attempts": 5, "base_ms": 900_000}});
    let outcome = call(config.as_object().expect("a map"), &BTreeMap::new(), &access(), &cancel);
    assert_eq!((outcome.is_success, outcome.error()), (false, Some("cancelled")));
}

#[test]
fn stream_returns_its_events() {
    let body = "event: a\ndata: {\"n\":1}\n\ndata: [DONE]\n\n";
    let server = Server::start(move |_| reply("200 OK", "Content-Type: text/event-stream\r\n", body));
    let config = json!({"url": server.url("/"), "mode": "stream"});
    let mut names = Vec::new();
    let outcome = call_streaming(
        config.as_object().expect("a map"),
        &BTreeMap::new(),
        &access(),
        &CancelToken::new().expect("an event"),
        &mut |event| names.push(event.name.clone()),
    );
    assert_eq!(outcome.data["body"], json!(["{\"n\":1}", "[DONE]"]));
    assert_eq!(
        (&outcome.data["stream_events_count"], &outcome.data["stream_destinations"]),
        (&json!(2), &json!(["return"]))
    );
    assert_eq!(names, [Some("a".to_owned()), None]);
    assert!(server.requests()[0].contains("accept: text/event-stream"));
}

#[test]
fn error_response_to_stream_is_read_fully() {
    let server = Server::start(|_| reply("400 Bad Request", "", "{\"error\":\"x\"}"));
    let outcome = call_config(&json!({"url": server.url("/"), "mode": "stream"}));
    assert_eq!(
        (outcome.error(), &outcome.data["body"]),
        (Some("HTTP 400: Bad Request"), &json!({"error": "x"}))
    );
}

#[test]
fn a_long_body_is_cut_and_marked() {
    let server = Server::start(|_| reply("200 OK", "Content-Type: application/json\r\n", "1234567890"));
    let outcome = call_config(&json!({"url": server.url("/"), "max_body_bytes": 4}));
    assert_eq!(
        (outcome.truncated, &outcome.data["body"], &outcome.data["truncated"]),
        (true, &json!("1234"), &json!(true))
    );
}

#[test]
fn redirect_url_is_reported_without_token() {
    let server = Server::start(|request| match request.starts_with("GET /a") {
        true => reply("302 Found", "Location: /b?token=abc&x=1\r\n", ""),
        false => reply("200 OK", "", "end"),
    });
    let outcome = call_config(&json!({"url": server.url("/a")}));
    assert_eq!(outcome.data["url"], server.url("/b?token=[redacted]&x=1"));
}

#[test]
fn the_network_is_reached_only_with_permission() {
    let server = Server::start(|_| reply("200 OK", "", "secret"));
    let config = json!({"url": server.url("/")});
    let ask = |access: &ToolAccess| {
        let cancel = CancelToken::new().expect("an event");
        call(config.as_object().expect("a map"), &BTreeMap::new(), access, &cancel)
            .error()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(ask(&ToolAccess { network: false, ..access() }), "the tool may not use the network");
    let refused = ask(&ToolAccess { network: true, ..ToolAccess::default() });
    assert!(refused.starts_with("`127.0.0.1` is at `127.0.0.1`, a loopback address"), "{refused}");
    let wrong = ask(&ToolAccess { network: true, allowed_hosts: vec!["*".into()], ..ToolAccess::default() });
    assert_eq!(wrong, "`*` in `allowed_hosts` is not a host, host:port, address or network");
    assert_eq!(server.requests(), Vec::<String>::new());
}

#[test]
fn parameter_that_changes_host_is_refused() {
    let config = |url: &str| json!({"url": url, "url_template": "https://api.example/v1/{id}"});
    let error = call_config(&config("https://api.example@127.0.0.1/v1/x")).error().map(str::to_owned);
    assert_eq!(error.as_deref(), Some("a parameter changes the host of the URL"));
}

#[test]
fn mistakes_in_the_config_are_named() {
    let with = |name: &str, value: Value| {
        let mut config = json!({"url": "http://127.0.0.1:1/"});
        config[name] = value;
        call_config(&config).error().unwrap_or_default().to_owned()
    };
    assert_eq!(call_config(&json!({})).error(), Some("url is required in config"));
    assert_eq!(with("url", json!(1)), "`url` must be text");
    assert_eq!(with("mode", json!("later")), "Unknown mode: later");
    assert_eq!(with("timeout", json!(-1)), "`timeout` must be a number of seconds above 0");
    assert_eq!(
        with("auth", json!({"type": "magic"})),
        "`auth.type` is `magic`; use bearer, api_key or basic"
    );
    let empty = "`auth.token` is missing or empty; is the variable it comes from set?";
    assert_eq!(with("auth", json!({"type": "bearer", "token": ""})), empty);
    assert_eq!(with("query", json!({"a": {}})), "`query.a` must be text, a number or a boolean");
    assert_eq!(with("headers", json!(["a"])), "`headers` must be a map");
    assert_eq!(with("headers", json!({"X": "a\r\nY: b"})), "the header `X` cannot be sent");
    let get = json!({"url": "http://127.0.0.1:1/", "body": "x", "body_type": "text"});
    assert_eq!(call_config(&get).error(), Some("a GET request has no body; use `query`"));
    let brew = "`BREW` is not a method that is sent; use GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS";
    assert_eq!(with("method", json!("BREW")), brew);
}
