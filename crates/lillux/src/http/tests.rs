//! The client against small servers on loopback.

mod secure;
pub(super) mod server;

use std::sync::mpsc;

use server::{Reply, Server, reply};

use super::*;

fn cancel() -> CancelToken {
    CancelToken::new().expect("an event")
}

fn client(allowed: &[&str]) -> HttpClient {
    let allowed: Vec<String> = allowed.iter().map(|text| (*text).to_owned()).collect();
    HttpClient::new(AddressPolicy::new(&allowed).expect("a policy"))
}

fn loopback() -> HttpClient {
    client(&["127.0.0.1"])
}

fn get(url: &str) -> HttpRequest {
    HttpRequest::new(HttpMethod::Get, url)
}

fn secret(name: &str, value: &str) -> HttpHeader {
    HttpHeader { name: name.into(), value: value.into(), is_secret: true }
}

#[test]
fn request_and_response_arrive_complete() {
    let server = Server::start(|_| reply("201 Created", "X-One: 1\r\nX-One: 2\r\n", "done"));
    let mut request = HttpRequest::new(HttpMethod::Post, server.url("/a?b=c"));
    request.headers = vec![secret("X-Key", "k"), secret("Accept", "text/plain")];
    request.body = Some(b"hello".to_vec());
    let response = loopback().send(&request, &cancel()).expect("an answer");
    assert_eq!(
        (response.status, response.reason.as_str(), response.body.as_slice(), response.is_truncated),
        (201, "Created", b"done".as_slice(), false)
    );
    let ones: Vec<&str> = response
        .headers
        .iter()
        .filter(|(name, _)| name == "x-one")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(ones, ["1", "2"]);
    assert_eq!((response.url, response.redirects), (server.url("/a?b=c"), 0));
    let expected = format!(
        "POST /a?b=c HTTP/1.1\r\nx-key: k\r\naccept: text/plain\r\nhost: {}\r\ncontent-length: 5\r\n\r\nhello",
        server.address
    );
    assert_eq!(server.requests(), [expected]);
}

#[test]
fn private_addresses_are_refused_however_they_are_written() {
    let server = Server::start(|_| reply("200 OK", "", "secret"));
    let port = server.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "[fd00:ec2::254]",
    ] {
        let refused = client(&[]).send(&get(&format!("http://{host}:{port}/")), &cancel());
        assert!(matches!(refused, Err(HttpError::AddressRefused { .. })), "{host}: {refused:?}");
    }
    assert_eq!(server.requests(), Vec::<String>::new());
}

#[test]
fn host_is_reached_only_where_allowed() {
    let server = Server::start(|_| reply("200 OK", "", "here"));
    let port = server.address.port();
    let url = format!("http://localhost:{port}/");
    let body = |client: &HttpClient| client.send(&get(&url), &cancel()).map(|response| response.body);
    for allowed in ["localhost", &format!("localhost:{port}")] {
        assert_eq!(body(&client(&[allowed])), Ok(b"here".to_vec()), "{allowed}");
    }
    // `localhost` may be `::1` as well: both are loopback.
    assert_eq!(body(&client(&["127.0.0.0/8", "::1/128"])), Ok(b"here".to_vec()));
    for allowed in ["otherhost", "localhost:1", "10.0.0.0/8"] {
        assert!(matches!(body(&client(&[allowed])), Err(HttpError::AddressRefused { .. })), "{allowed}");
    }
}

#[test]
fn a_redirect_to_a_private_address_is_refused() {
    let hidden = Server::start(|_| reply("200 OK", "", "secret"));
    let goal = format!("Location: http://127.0.0.1:{}/meta\r\n", hidden.address.port());
    let server = Server::start(move |_| reply("302 Found", &goal, ""));
    let only_first = client(&[&server.address.to_string()]);
    let refused = only_first.send(&get(&server.url("/")), &cancel());
    let expected = HttpError::AddressRefused {
        host: "127.0.0.1".to_owned(),
        address: server.address.ip(),
        kind: AddressKind::Loopback,
    };
    assert_eq!(refused, Err(expected));
    assert_eq!(hidden.requests(), Vec::<String>::new());
}

#[test]
fn a_redirect_to_another_port_loses_every_credential() {
    let goal = Server::start(|_| reply("200 OK", "", "ok"));
    let location = format!("Location: {}\r\n", goal.url("/end"));
    let server = Server::start(move |request| {
        let is_first = request.starts_with("GET /start");
        reply("302 Found", if is_first { "Location: /second\r\n" } else { &location }, "")
    });
    let mut request = get(&server.url("/start"));
    request.headers = vec![secret("x-key", "hush"), secret("authorization", "Bearer t")];
    request.headers.push(HttpHeader { name: "cookie".into(), value: "c=1".into(), is_secret: false });
    request.headers.push(HttpHeader { name: "x-plain".into(), value: "p".into(), is_secret: false });
    let response = loopback().send(&request, &cancel()).expect("an answer");
    assert_eq!((response.url, response.redirects), (goal.url("/end"), 2));
    for seen in server.requests() {
        assert!(seen.contains("x-key: hush") && seen.contains("authorization: Bearer t"), "{seen}");
    }
    let expected =
        format!("GET /end HTTP/1.1\r\nx-plain: p\r\naccept: */*\r\nhost: {}\r\n\r\n", goal.address);
    assert_eq!(goal.requests(), [expected]);
}

#[test]
fn redirects_end_after_ten() {
    let server = Server::start(|_| reply("307 Temporary Redirect", "Location: /again\r\n", ""));
    assert_eq!(loopback().send(&get(&server.url("/")), &cancel()), Err(HttpError::TooManyRedirects));
    assert_eq!(server.requests().len(), 11);
    let mut once = get(&server.url("/"));
    once.max_redirects = 0;
    assert_eq!(loopback().send(&once, &cancel()).map(|response| response.status), Ok(307));
}

#[test]
fn body_is_truncated_at_its_limit() {
    for size in [0, 9, 10, 11, 100_000] {
        let server = Server::start(move |_| reply("200 OK", "", vec![b'x'; size]));
        let mut request = get(&server.url("/"));
        request.max_body_bytes = 10;
        let response = loopback().send(&request, &cancel()).expect("an answer");
        assert_eq!((response.body.len(), response.is_truncated), (size.min(10), size > 10), "{size}");
    }
}

#[test]
fn endless_body_is_truncated() {
    let head = "HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(5000);
    let server = Server::start(move |_| Reply::Hold(head.clone().into_bytes()));
    let mut request = get(&server.url("/"));
    request.max_body_bytes = 100;
    let response = loopback().send(&request, &cancel()).expect("an answer");
    assert_eq!((response.body.len(), response.is_truncated), (100, true));
}

#[test]
fn events_are_emitted_as_they_arrive() {
    let body = "event: a\ndata: 1\n\ndata: two\ndata: lines\n\n: nothing\n\ndata: end\n\n";
    let server = Server::start(move |_| reply("200 OK", "Content-Type: text/event-stream\r\n", body));
    let mut events = Vec::new();
    let mut on_event = |event: &SseEvent| events.push((event.name.clone(), event.data.clone()));
    let response =
        loopback().stream_events(&get(&server.url("/")), &cancel(), &mut on_event).expect("an answer");
    assert_eq!((response.events, response.body.len(), response.is_truncated), (3, 0, false));
    let expected = [(Some("a"), "1"), (None, "two\nlines"), (None, "end")];
    let expected: Vec<_> =
        expected.iter().map(|(name, data)| (name.map(str::to_owned), (*data).to_owned())).collect();
    assert_eq!(events, expected);
}

#[test]
fn stream_stops_at_max_events() {
    let server = Server::start(|request| {
        let is_good = request.starts_with("GET /good");
        reply(if is_good { "200 OK" } else { "400 Bad Request" }, "", "data: x\n\n".repeat(10_001))
    });
    let mut count = 0;
    let mut on_event = |_: &SseEvent| count += 1;
    let response =
        loopback().stream_events(&get(&server.url("/good")), &cancel(), &mut on_event).expect("an answer");
    assert_eq!((response.events, response.is_truncated), (MAX_EVENTS, true));
    let response =
        loopback().stream_events(&get(&server.url("/bad")), &cancel(), &mut on_event).expect("an answer");
    assert_eq!((response.events, response.body.len()), (0, 90_009));
    assert_eq!(count, MAX_EVENTS);
}

#[test]
fn cancel_ends_a_waiting_call() {
    let (sent, arrived) = mpsc::channel();
    let server = Server::start(move |_| {
        sent.send(()).expect("a listener");
        Reply::Hold(Vec::new())
    });
    let cancel = cancel();
    let other = cancel.clone();
    let stopper = std::thread::spawn(move || {
        arrived.recv().expect("a request");
        other.cancel();
    });
    let mut request = get(&server.url("/"));
    request.timeout = Duration::from_secs(600);
    assert_eq!(loopback().send(&request, &cancel), Err(HttpError::Cancelled));
    stopper.join().expect("the stopper");
    assert_eq!(loopback().send(&request, &cancel), Err(HttpError::Cancelled));
    assert!(!sleep_unless_cancelled(Duration::from_secs(600), &cancel));
}

#[test]
fn missing_response_is_a_timeout() {
    let server = Server::start(|_| Reply::Hold(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab".to_vec()));
    let mut request = get(&server.url("/"));
    request.timeout = Duration::from_millis(50);
    assert_eq!(loopback().send(&request, &cancel()), Err(HttpError::Timeout(request.timeout)));
}

#[test]
fn errors_show_no_path_and_no_query() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let error = loopback().send(&get(&format!("http://{address}/path?key=hush")), &cancel());
    let text = error.expect_err("a refused connection").to_string();
    assert!(text.starts_with(&format!("no connection to `http://{address}`: ")), "{text}");
    assert!(!text.contains("hush") && !text.contains("path"), "{text}");
    let server = Server::start(|_| Reply::Send(b"nonsense\r\n\r\n".to_vec()));
    let error = loopback().send(&get(&server.url("/path?key=hush")), &cancel());
    let text = error.expect_err("no HTTP").to_string();
    assert!(text.starts_with("the exchange with") && !text.contains("hush"), "{text}");
    let mut request = get("http://h.example/path?key=hush");
    request.headers.push(secret("x-key", "hush"));
    assert!(!format!("{request:?}").contains("hush"));
}

#[test]
fn invalid_requests_are_refused_before_sending() {
    let refused = |url: &str| client(&[]).send(&get(url), &cancel()).expect_err("refused");
    assert_eq!(refused("ftp://a.example/"), HttpError::Scheme("ftp".to_owned()));
    assert_eq!(refused("file:///etc/passwd"), HttpError::Scheme("file".to_owned()));
    assert_eq!(refused("http://u:p@a.example/"), HttpError::Credentials);
    assert!(matches!(refused("no url"), HttpError::Url(_)));
    for (name, value) in
        [("Host", "x"), ("Content-Length", "1"), ("a b", "x"), ("X", "a\r\nY: b"), ("te", "x")]
    {
        let mut request = get("http://a.example/");
        request.headers.push(secret(name, value));
        assert_eq!(client(&[]).send(&request, &cancel()), Err(HttpError::Header(name.to_owned())));
    }
    assert_eq!("BREW".parse::<HttpMethod>(), Err(HttpError::Method("BREW".to_owned())));
    assert_eq!("post".parse(), Ok(HttpMethod::Post));
}

#[test]
fn proxy_is_explicit_and_skips_local_names() {
    let proxy = Server::start(|_| reply("200 OK", "", "by proxy"));
    let proxies = ProxyConfig { http: Some(proxy.url("")), ..ProxyConfig::default() };
    let client = client(&[]).with_proxies(proxies);
    for local in ["http://localhost/", "http://10.0.0.1/", "http://metadata.google.internal/"] {
        let refused = client.send(&get(local), &cancel());
        let is_refused = matches!(refused, Err(HttpError::AddressRefused { .. } | HttpError::LocalName(_)));
        assert!(is_refused, "{local}: {refused:?}");
    }
    assert_eq!(proxy.requests(), Vec::<String>::new());
    let response = client.send(&get("http://1.1.1.1/x"), &cancel()).expect("an answer");
    assert_eq!(response.body, b"by proxy");
    assert!(proxy.requests()[0].starts_with("GET http://1.1.1.1/x HTTP/1.1\r\n"), "{:?}", proxy.requests());
}

#[test]
fn https_needs_certificates_that_exist() {
    let client = loopback().with_certificate_file(PathBuf::from("/nonexistent/certificates.pem"));
    let refused = client.send(&get("https://127.0.0.1:1/"), &cancel());
    assert!(matches!(refused, Err(HttpError::Certificates(_))), "{refused:?}");
}

#[test]
fn body_chunks_stop_when_receiver_refuses() {
    let server = Server::start(|request| match request.contains("/missing") {
        true => reply("404 Not Found", "", "x".repeat(100 << 10)),
        false => reply("200 OK", "", "y".repeat(300 << 10)),
    });
    let mut received = 0;
    let mut count = |piece: &[u8]| {
        received += piece.len();
        Ok(())
    };
    let whole = loopback().stream_body(&get(&server.url("/")), &cancel(), &mut count).expect("an answer");
    assert_eq!((whole.status, whole.body.len(), whole.is_truncated), (200, 0, false));
    let missing =
        loopback().stream_body(&get(&server.url("/missing")), &cancel(), &mut count).expect("an answer");
    assert_eq!((missing.status, missing.body.len(), missing.is_truncated), (404, 64 << 10, true));
    assert_eq!(received, 300 << 10);
    let mut refuse = |_: &[u8]| Err("enough".to_owned());
    let refused = loopback().stream_body(&get(&server.url("/")), &cancel(), &mut refuse);
    assert_eq!(refused, Err(HttpError::BodyRejected("enough".to_owned())));
}

#[test]
fn idle_server_times_out() {
    let server = Server::start(|_| Reply::Hold(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".to_vec()));
    let mut request = get(&server.url("/"));
    request.idle_timeout = Some(Duration::from_millis(50));
    let left = loopback().send(&request, &cancel());
    assert_eq!(left, Err(HttpError::Timeout(Duration::from_millis(50))));
}
