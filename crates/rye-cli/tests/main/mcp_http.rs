//! `rye mcp --http` from outside: who gets in, and what many clients at once get.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::mcp_client::{parse_outcome, with_full_detail};
use crate::support::{User, run, text};
use crate::tool_support::{RYE, assert_no_processes, eventually, processes_with, write_function};

/// How long an answer may take before the test has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// A server that listens on a free port.
struct Server {
    process: Child,
    address: SocketAddr,
    token_file: PathBuf,
    token: String,
}

impl Server {
    fn start(user: &User) -> Self {
        let mut command = user.program(RYE);
        command.args(["--json", "mcp", "--http", "127.0.0.1:0"]);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("an output")).read_line(&mut line).expect("a line");
        let message: Value = serde_json::from_str(&line).expect("JSON");
        let url = text(&message["data"]["url"]);
        let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp")).expect("a URL");
        let token_file = PathBuf::from(text(&message["data"]["token_file"]));
        let token = std::fs::read_to_string(&token_file).expect("a token").trim().to_owned();
        assert!(!line.contains(&token));
        Self { process, address: address.parse().expect("an address"), token_file, token }
    }

    fn stop(&mut self) {
        let stopped = std::process::Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(stopped.expect("asked").success());
        assert!(self.process.wait().expect("an end").success());
    }

    /// The headers of a client that may enter.
    fn headers(&self) -> Vec<(String, String)> {
        [
            ("Host", self.address.to_string()),
            ("Authorization", format!("Bearer {}", self.token)),
            ("Accept", "application/json, text/event-stream".to_owned()),
            ("Content-Type", "application/json".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The same headers, one of them another, or gone.
    fn headers_with(&self, name: &str, value: Option<&str>) -> Vec<(String, String)> {
        let mut headers = self.headers();
        headers.retain(|(known, _)| known != name);
        headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        headers
    }

    fn request(&self, method: &str, headers: &[(String, String)], body: &[u8]) -> HttpResponse {
        send_http(self.address, method, headers, body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct HttpResponse {
    status: u16,
    headers: String,
    body: String,
}

impl HttpResponse {
    /// The last JSON message, of a body or of a stream of events.
    fn message(&self) -> Value {
        let mut data = self.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        let last = data.rfind(|data| !data.is_empty()).unwrap_or(&self.body);
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.body))
    }

    fn session(&self) -> String {
        let line = self.headers.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:"));
        line.and_then(|line| line.split_once(':')).expect("a session").1.trim().to_owned()
    }
}

fn send_http(address: SocketAddr, method: &str, headers: &[(String, String)], body: &[u8]) -> HttpResponse {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a bound");
    let mut head =
        format!("{method} /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all(format!("{head}\r\n").as_bytes()).expect("sent");
    // A server may refuse before it has read everything.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let whole = String::from_utf8_lossy(&bytes).into_owned();
    let (headers, body) = whole.split_once("\r\n\r\n").expect("a head");
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let is_chunked = headers.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { decode_chunked(body) } else { body.to_owned() };
    HttpResponse { status, headers: headers.to_owned(), body }
}

fn decode_chunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}

/// A client with a session.
struct Client<'a> {
    server: &'a Server,
    headers: Vec<(String, String)>,
}

impl<'a> Client<'a> {
    fn connect(server: &'a Server) -> Self {
        let answer = server.request("POST", &server.headers(), initialize_message().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.message()["result"]["serverInfo"]["name"], "rye");
        let mut headers = server.headers();
        headers.push(("Mcp-Session-Id".to_owned(), answer.session()));
        headers.push(("MCP-Protocol-Version".to_owned(), "2025-06-18".to_owned()));
        let client = Self { server, headers };
        let response = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(response.status, 202);
        client
    }

    fn post(&self, message: &Value) -> HttpResponse {
        self.server.request("POST", &self.headers, message.to_string().as_bytes())
    }

    fn request(&self, id: u64, method: &str, params: Value) -> Value {
        let answer = self.post(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let message = answer.message();
        assert_eq!(message["id"], id, "{message}");
        message
    }

    fn call(&self, id: u64, name: &str, arguments: Value) -> Value {
        let (object, is_error) = parse_outcome(&self.request(
            id,
            "tools/call",
            json!({"name": name, "arguments": with_full_detail(arguments)}),
        ));
        assert!(!is_error, "{object}");
        object
    }
}

fn initialize_message() -> String {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        },
    })
    .to_string()
}

#[test]
fn http_matches_stdio() {
    let user = User::initialized();
    let mut server = Server::start(&user);
    let client = Client::connect(&server);
    let tools = client.request(1, "tools/list", json!({}));
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(5));
    let loaded = client.call(2, "rye_load", json!({"item_id": "tool:examples/hello"}));
    assert_eq!(loaded, run(user.command().args(["--json", "load", "tool:examples/hello"])).json());
    let outcome = client.call(
        3,
        "rye_execute",
        json!({"item_id": "tool:examples/hello", "parameters": {"name": "Ada"}}),
    );
    assert_eq!(outcome["data"]["greeting"], "Hello, Ada!");
    let prompt = client.request(4, "prompts/get", json!({"name": "examples/greet"}));
    assert!(prompt["result"]["messages"][0]["content"]["text"].is_string());
    let read = client.request(5, "resources/read", json!({"uri": "rye://knowledge/examples/style"}));
    assert!(read["result"]["contents"][0]["text"].is_string());
    let ended = server.request("DELETE", &client.headers, b"");
    assert!((200..300).contains(&ended.status), "{}", ended.status);
    let after = client.post(&json!({"jsonrpc": "2.0", "id": 6, "method": "ping"}));
    assert_eq!(after.status, 404);
    drop(client);
    server.stop();
}

#[test]
fn requests_need_the_token() {
    let user = User::initialized();
    let server = Server::start(&user);
    let flipped: String = server.token.chars().map(|digit| if digit == '0' { '1' } else { '0' }).collect();
    let right = format!("Bearer {}", server.token);
    for wrong in [
        None,
        Some(String::new()),
        Some("Bearer".to_owned()),
        Some("Bearer ".to_owned()),
        Some(format!("Bearer {flipped}")),
        Some(format!("Bearer {}x", server.token)),
        Some(format!("Bearer {}", &server.token[..63])),
        Some(format!("Basic {}", server.token)),
        Some(server.token.clone()),
    ] {
        let headers = server.headers_with("Authorization", wrong.as_deref());
        for method in ["POST", "GET", "DELETE", "OPTIONS", "PUT"] {
            let answer = server.request(method, &headers, initialize_message().as_bytes());
            assert_eq!(answer.status, 401, "{method} {wrong:?}");
            assert!(!answer.body.contains(&server.token) && !answer.headers.contains("mcp-session-id"));
        }
    }
    let mut twice = server.headers();
    twice.push(("Authorization".to_owned(), right));
    assert_eq!(server.request("POST", &twice, initialize_message().as_bytes()).status, 401);
    let mode = std::fs::metadata(&server.token_file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn foreign_origins_and_hosts_are_refused() {
    let user = User::initialized();
    let server = Server::start(&user);
    let port = server.address.port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        "169.254.169.254".to_owned(),
        "0.0.0.0".to_owned(),
    ] {
        let headers = server.headers_with("Host", Some(&host));
        let answer = server.request("POST", &headers, initialize_message().as_bytes());
        assert!(matches!(answer.status, 400 | 403), "{host}: {}", answer.status);
    }
    for origin in [
        "https://evil.example",
        "http://evil.example:80",
        "null",
        "http://localhost.evil.example",
        "https://127.0.0.1.evil.example",
        "file://",
        "garbage",
    ] {
        let headers = server.headers_with("Origin", Some(origin));
        let answer = server.request("POST", &headers, initialize_message().as_bytes());
        assert_eq!(answer.status, 403, "{origin}");
    }
    for (host, origin) in [
        (format!("localhost:{port}"), None),
        (format!("127.0.0.1:{port}"), Some("http://localhost:6274")),
        (format!("[::1]:{port}"), Some("http://127.0.0.1:3000")),
    ] {
        let mut headers = server.headers_with("Host", Some(&host));
        headers.extend(origin.map(|origin| ("Origin".to_owned(), origin.to_owned())));
        assert_eq!(
            server.request("POST", &headers, initialize_message().as_bytes()).status,
            200,
            "{host} {origin:?}"
        );
    }
}

#[test]
fn server_survives_malformed_requests() {
    let user = User::initialized();
    let server = Server::start(&user);
    let client = Client::connect(&server);
    for body in [&b"{"[..], b"", b"[]", b"\xff\xfe", b"7"] {
        let answer = server.request("POST", &client.headers, body);
        assert!((400..500).contains(&answer.status), "{}", answer.status);
    }
    let large = vec![b' '; 17 << 20];
    assert_eq!(server.request("POST", &client.headers, &large).status, 413);
    let unknown_session = server.headers_with("Mcp-Session-Id", Some("no-such-session"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    assert_eq!(server.request("POST", &unknown_session, ping.as_bytes()).status, 404);
    client.request(2, "ping", json!({}));
}

#[test]
fn concurrent_clients_get_their_own_responses() {
    let user = User::initialized();
    let server = Server::start(&user);
    std::thread::scope(|scope| {
        for number in 0..64 {
            let server = &server;
            scope.spawn(move || {
                let client = Client::connect(server);
                for round in 1..5 {
                    let name = format!("{number}-{round}");
                    let loaded =
                        client.call(round * 2, "rye_load", json!({"item_id": "knowledge:examples/style"}));
                    assert_eq!(loaded["item_id"], "examples/style");
                    let input = json!({"item_id": "directive:examples/greet", "parameters": {"name": name}});
                    let prompt = client.call(round * 2 + 1, "rye_execute", input);
                    assert_eq!(prompt["data"]["given_inputs"]["name"], name);
                }
            });
        }
    });
}

#[test]
fn sessions_are_bounded() {
    let user = User::initialized();
    let server = Server::start(&user);
    let begin = || server.request("POST", &server.headers(), initialize_message().as_bytes());
    let sessions: Vec<String> = (0..256).map(|_| begin().session()).collect();
    assert_eq!(begin().status, 503);
    let mut headers = server.headers();
    headers.push(("Mcp-Session-Id".to_owned(), sessions[0].clone()));
    assert!((200..300).contains(&server.request("DELETE", &headers, b"").status));
    assert!(eventually(|| begin().status == 200));
}

/// Of two requests with one id, the second is refused while the first is being answered, and the first is answered.
#[test]
fn ids_are_not_taken_twice() {
    let user = User::initialized();
    let waits = "import os, time\nopen(\"begun\", \"w\").close()\n\
        for _ in range(1200):\n    if os.path.exists(\"go\"): return\n    time.sleep(0.05)";
    write_function(&user, "waits", waits);
    let server = Server::start(&user);
    let client = Client::connect(&server);
    let call = json!({"name": "rye_execute", "arguments": {"item_id": "tool:team/waits"}});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}).to_string();
    let (address, headers) = (server.address, client.headers.clone());
    let first = std::thread::spawn(move || send_http(address, "POST", &headers, message.as_bytes()));
    assert!(eventually(|| user.project().join("begun").exists()));
    let ping = |id: Value| client.post(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
    let second = ping(json!(7));
    let message = second.message();
    assert_eq!((second.status, &message["id"], &message["error"]["code"]), (400, &json!(7), &json!(-32600)));
    // Another id, and the same one of another session.
    assert_eq!(ping(json!("7")).status, 200);
    Client::connect(&server).request(7, "ping", json!({}));
    user.context.write("project/go", "");
    let first = first.join().expect("an answer");
    assert_eq!((first.status, first.message()["id"].as_u64()), (200, Some(7)), "{}", first.body);
    assert!(first.message()["result"].is_object(), "{}", first.body);
    assert!(eventually(|| ping(json!(7)).status == 200), "the id is free again");
}

#[test]
fn ending_session_or_server_ends_runs() {
    let user = User::initialized();
    write_function(&user, "waits", "import time\nopen(\"begun\", \"w\").close()\ntime.sleep(600)");
    let mut server = Server::start(&user);
    let marker = user.home().display().to_string();
    let begin = |client: &Client| {
        let begun = user.project().join("begun");
        let _ = std::fs::remove_file(&begun);
        let call = json!({"name": "rye_execute", "arguments": {"item_id": "tool:team/waits"}});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).to_string();
        let (address, headers) = (server.address, client.headers.clone());
        let pending_call =
            std::thread::spawn(move || send_http(address, "POST", &headers, message.as_bytes()).status);
        assert!(eventually(|| begun.exists()));
        pending_call
    };
    let client = Client::connect(&server);
    let pending_call = begin(&client);
    server.request("DELETE", &client.headers, b"");
    let pid = server.process.id();
    assert!(eventually(|| processes_with(&marker) == [pid]));
    pending_call.join().expect("an end");
    let client = Client::connect(&server);
    let pending_call = begin(&client);
    drop(client);
    server.stop();
    assert_no_processes(&marker);
    pending_call.join().expect("an end");
}

#[test]
fn a_public_address_needs_an_acknowledgement() {
    let user = User::initialized();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        user.assert_refused(["mcp", "--http", address], 2, "RYE1003");
    }
    user.assert_refused(["mcp", "--http", "example.com:80"], 2, "RYE0104");
    // An address of no one: told, it tries.
    let tried = run(user.command().args(["--json", "mcp", "--http", "192.0.2.1:1", "--behind-tls"]));
    tried.error(1, "RYE1006");
}

#[test]
fn world_readable_token_is_refused() {
    let user = User::initialized();
    let mut server = Server::start(&user);
    server.stop();
    std::fs::set_permissions(&server.token_file, std::fs::Permissions::from_mode(0o644)).expect("loosened");
    user.assert_refused(["mcp", "--http", "127.0.0.1:0"], 4, "RYE1004");
}

#[test]
fn no_tool_can_read_the_token() {
    let user = User::initialized();
    let server = Server::start(&user);
    let path = server.token_file.display().to_string();
    write_function(
        &user,
        "thief",
        &format!(
            "try:\n    return open({path:?}).read()\nexcept OSError as error:\n    return type(error).__name__"
        ),
    );
    let client = Client::connect(&server);
    let stolen = client.call(1, "rye_execute", json!({"item_id": "tool:team/thief"}));
    assert_ne!(stolen["data"].as_str().map(str::trim), Some(server.token.as_str()));
}

#[test]
fn a_server_keeps_its_token() {
    let user = User::initialized();
    let mut first = Server::start(&user);
    first.stop();
    assert_eq!(Server::start(&user).token, first.token);
}

#[test]
fn half_open_connections_block_no_client() {
    let user = User::initialized();
    let server = Server::start(&user);
    let client = Client::connect(&server);
    let mut half_open: Vec<TcpStream> = (0..600)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).expect("a connection");
            stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: ").expect("sent");
            stream
        })
        .collect();
    // Each call is a connection of its own.
    for id in 1..=5 {
        let answer = client.call(id, "rye_search", json!({"query": "hello"}));
        assert_eq!(answer["status"], "success", "{answer}");
    }
    // The oldest made room: it was closed by the server.
    let oldest = &mut half_open[0];
    oldest.set_read_timeout(Some(READ_TIMEOUT)).expect("a bound");
    let mut byte = [0];
    assert!(matches!(oldest.read(&mut byte), Ok(0) | Err(_)));
    // The newest one is still heard.
    let newest = half_open.last_mut().expect("connections");
    newest.set_read_timeout(Some(READ_TIMEOUT)).expect("a bound");
    let rest = format!("{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", server.address);
    newest.write_all(rest.as_bytes()).expect("sent");
    let mut output = String::new();
    newest.read_to_string(&mut output).expect("an answer");
    assert!(output.starts_with("HTTP/1.1 401"), "{output}");
}
