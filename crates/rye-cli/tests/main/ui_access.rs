//! `rye ui` from outside: who gets in, and what is refused.

use serde_json::json;

use crate::support::{User, text};
use crate::thread_approvals::write_gate;
use crate::thread_run::newest_thread;
use crate::ui_support::{UiServer, exchange, send};

#[test]
fn code_works_once() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    exchange(server.address, &server.code).assert_refused(401, "RYE1008");
    exchange(server.address, "0".repeat(48).as_str()).assert_refused(401, "RYE1008");
    exchange(server.address, "").assert_refused(401, "RYE1008");
    let session = client.data("/session");
    assert_eq!((&session["read_only"], session["token"].is_null()), (&json!(false), true));
    // A second browser gets a code of its own.
    let code = text(&client.post("/session/code", &json!({})).data()["code"]);
    assert_eq!(exchange(server.address, &code).status, 200);
    exchange(server.address, &code).assert_refused(401, "RYE1008");
    let mut last = 0;
    for _ in 0..40 {
        last = exchange(server.address, "wrong").status;
    }
    assert_eq!(last, 429);
}

#[test]
fn requests_without_session_are_refused() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let paths = ["/api/v1/session", "/api/v1/threads", "/api/v1/events", "/api/v1/config", "/api/v1/nothing"];
    for path in paths {
        for token in [None, Some(String::new()), Some("x".repeat(48)), Some(client.token.to_uppercase())] {
            let mut headers = vec![("Host", server.address.to_string())];
            headers.extend(token.map(|token| ("Authorization", format!("Bearer {token}"))));
            send(server.address, "GET", path, &headers, b"").assert_refused(401, "RYE1008");
        }
        // Cookies and addresses carry no session.
        let cookie = [("Host", server.address.to_string()), ("Cookie", format!("token={}", client.token))];
        send(server.address, "GET", path, &cookie, b"").assert_refused(401, "RYE1008");
    }
    let in_address = format!("/api/v1/threads?token={}", client.token);
    let host = [("Host", server.address.to_string())];
    send(server.address, "GET", &in_address, &host, b"").assert_refused(401, "RYE1008");
    let ended = send(server.address, "DELETE", "/api/v1/session", &client.headers(), b"");
    assert_eq!(ended.status, 200, "{ended:?}");
    client.get("/threads").assert_refused(401, "RYE1008");
}

#[test]
fn foreign_pages_and_names_are_refused() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let port = server.address.port();
    let with = |name: &'static str, value: String| {
        let mut headers = client.headers();
        headers.retain(|(known, _)| *known != name);
        headers.push((name, value));
        headers
    };
    for headers in [
        with("Host", format!("evil.example:{port}")),
        with("Host", "127.0.0.1:1".to_owned()),
        with("Host", "127.0.0.1".to_owned()),
        with("Origin", "https://evil.example".to_owned()),
        with("Origin", "http://127.0.0.1:1".to_owned()),
        with("Origin", format!("http://localhost:{port}")),
        with("Origin", "null".to_owned()),
        with("Sec-Fetch-Site", "cross-site".to_owned()),
        with("Sec-Fetch-Site", "same-site".to_owned()),
    ] {
        for (method, path) in [("GET", "/api/v1/threads"), ("GET", "/api/v1/events"), ("POST", "/api/v1/run")]
        {
            send(server.address, method, path, &headers, b"{}").assert_refused(403, "RYE1008");
        }
        let page = send(server.address, "GET", "/", &headers, b"");
        assert_eq!(page.status, 403, "{headers:?}");
    }
    // The code is not exchanged for another page either.
    let code = text(&client.post("/session/code", &json!({})).data()["code"]);
    let foreign = [
        ("Host", server.address.to_string()),
        ("Origin", "https://evil.example".to_owned()),
        ("Content-Type", "application/json".to_owned()),
    ];
    let body = json!({ "code": code }).to_string();
    send(server.address, "POST", "/api/v1/session", &foreign, body.as_bytes()).assert_refused(403, "RYE1008");
    // A form can send text, and no JSON.
    let form = [("Host", server.address.to_string()), ("Content-Type", "text/plain".to_owned())];
    send(server.address, "POST", "/api/v1/session", &form, body.as_bytes()).assert_refused(400, "RYE0104");
    assert_eq!(exchange(server.address, &code).status, 200);
}

#[test]
fn every_answer_has_the_security_headers() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let host = [("Host", server.address.to_string())];
    let page = send(server.address, "GET", "/", &host, b"");
    assert!(page.headers.contains("content-type: text/html"), "{page:?}");
    let script = send(server.address, "GET", "/app.js", &host, b"");
    assert!(script.headers.contains("content-type: text/javascript"), "{}", script.headers);
    let missing = send(server.address, "GET", "/../Cargo.toml", &host, b"");
    assert_eq!(missing.status, 404);
    let refused = send(server.address, "GET", "/api/v1/threads", &host, b"");
    for answer in [page, script, missing, refused, client.get("/threads"), client.get("/nothing")] {
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;",
            "require-trusted-types-for 'script'; trusted-types 'none'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-embedder-policy: require-corp",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(answer.headers.contains(header), "{header}: {}", answer.headers);
        }
        assert!(!answer.headers.contains("set-cookie"), "{}", answer.headers);
        assert!(!answer.headers.contains("access-control"), "{}", answer.headers);
    }
}

#[test]
fn read_only_refuses_every_change() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let mut server = UiServer::start(&user, &["--read-only"]);
    let client = server.log_in();
    let question = client.data("/approvals")["approvals"][0].clone();
    let answer = json!({"digest": question["digest"], "approved": true});
    let changes = [
        (format!("/approvals/{}", text(&question["id"])), answer),
        (format!("/threads/{thread}/resume"), json!({})),
        (format!("/threads/{thread}/cancel"), json!({})),
        (format!("/threads/{thread}/fork"), json!({})),
        ("/run".to_owned(), json!({"type": "tool", "item_id": "rye/file-system/read"})),
    ];
    for (path, body) in &changes {
        client.post(path, body).assert_refused(403, "RYE1009");
    }
    assert_eq!(client.data("/approvals")["approvals"].as_array().map(Vec::len), Some(1));
    // A session that could only look stays so when the server is started again.
    let port = server.address.port();
    server.stop();
    let _writable = UiServer::start_on(&user, port, &[]);
    for (path, body) in &changes {
        client.post(path, body).assert_refused(403, "RYE1009");
    }
    assert_eq!(client.data("/session")["read_only"], true);
}

#[test]
fn unused_sessions_end() {
    let user = User::initialized();
    // A machine that stands still for the first of them gets another try.
    for timeout in [3, 30] {
        let server = UiServer::start(&user, &["--idle-timeout", &timeout.to_string()]);
        let client = server.log_in();
        let first = client.get("/session");
        if first.status != 200 && timeout == 3 {
            continue;
        }
        assert_eq!((first.status, &first.json()["data"]["idle_timeout_seconds"]), (200, &timeout.into()));
        // Longer than the time-out: nothing else tells the server that time has passed.
        std::thread::sleep(std::time::Duration::from_millis(timeout * 1000 + 500));
        client.get("/session").assert_refused(401, "RYE1008");
        return;
    }
}

#[test]
fn hostile_requests_change_nothing() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    for path in [
        "/threads?limit=0",
        "/threads?limit=99999999",
        "/threads?unknown=1",
        "/threads?limit=1&limit=2",
        "/threads?q=%zz",
        "/threads?q=%ff",
        "/events?position=1&watch=../../etc/passwd",
        "/items?type=nothing",
        "/cost?since=yesterday",
    ] {
        let answer = client.get(path);
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        assert_eq!(answer.json()["status"], "error");
    }
    for path in
        ["/threads/..%2f..%2fetc", "/threads/thread-zzzzzzzzzzzz", "/bundles/..%2f..", "/items/tool/..%2f.."]
    {
        let answer = client.get(path);
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
    }
    for body in [json!({"code": 1}), json!({"code": "a", "more": 1}), json!([])] {
        let answer = client.post("/session", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    let big = json!({"type": "tool", "item_id": "x".repeat(2 << 20)});
    client.post("/run", &big).assert_refused(413, "RYE0204");
    for (method, path) in [("PUT", "/threads"), ("DELETE", "/approvals/x"), ("PATCH", "/session")] {
        let answer = send(server.address, method, &format!("/api/v1{path}"), &client.headers(), b"");
        assert_eq!(answer.status, 405, "{answer:?}");
    }
}

#[test]
fn public_addresses_need_a_proxy() {
    let user = User::initialized();
    user.run(["--json", "ui", "--behind-tls", "0.0.0.0:0"]).error(2, "RYE0104");
}
