//! A client of `rye mcp` over standard input and output, for tests: it writes lines and reads lines.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::User;
use crate::tool_support::RYE;

/// How long an answer may take before the test has failed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);

pub struct Client {
    pub process: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<Value>,
    responses: BTreeMap<u64, Value>,
    /// What came without being asked for, and answers to nothing.
    pub notifications: Vec<Value>,
    /// What to answer when the server asks.
    pub consent: Option<Value>,
    /// What the server asked.
    pub questions: Vec<Value>,
    last_id: u64,
}

impl Client {
    /// A server in the user's project, and a client that has said hello.
    pub fn connect(user: &User) -> Self {
        Self::connect_with(user, &[], json!({}))
    }

    /// The same, of a client that can ask its user, who answers with `consent`.
    pub fn connect_with_consent(user: &User, consent: Value) -> Self {
        let mut client = Self::connect_with(user, &[], json!({"elicitation": {}}));
        client.consent = Some(consent);
        client
    }

    pub fn connect_with(user: &User, environment: &[(&str, &str)], capabilities: Value) -> Self {
        Self::spawn(user, environment).initialize("test", capabilities)
    }

    /// A server, and a client that calls itself `name`.
    pub fn connect_as(user: &User, name: &str, capabilities: Value) -> Self {
        Self::spawn(user, &[]).initialize(name, capabilities)
    }

    fn initialize(self, name: &str, capabilities: Value) -> Self {
        let mut client = self;
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": {"name": name, "version": "1"},
        });
        let info = client.request("initialize", hello);
        assert_eq!(info["serverInfo"]["name"], "rye");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    /// A server, and a client that has sent nothing yet.
    pub fn spawn(user: &User, environment: &[(&str, &str)]) -> Self {
        let mut command = user.program(RYE);
        command.arg("mcp").envs(environment.iter().copied());
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        let (sender, lines) = mpsc::channel();
        let output = process.stdout.take().expect("an output");
        std::thread::spawn(move || read_messages(output, &sender));
        Self {
            input: process.stdin.take(),
            process,
            lines,
            responses: BTreeMap::new(),
            notifications: Vec::new(),
            consent: None,
            questions: Vec::new(),
            last_id: 0,
        }
    }

    pub fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    pub fn send_line(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("an open input");
        input.write_all(line).and_then(|()| input.write_all(b"\n")).expect("written");
    }

    /// Sends a request and does not wait.
    pub fn send_request(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params});
        self.send(&message);
        self.last_id
    }

    /// Sends a call and does not wait.
    pub fn send_call(&mut self, name: &str, arguments: Value) -> u64 {
        self.send_request("tools/call", json!({"name": name, "arguments": with_full_detail(arguments)}))
    }

    /// The next message; `None` once the server has ended.
    pub fn next_message(&mut self) -> Option<Value> {
        match self.lines.recv_timeout(RESPONSE_TIMEOUT) {
            Ok(message) => Some(message),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("no answer in time; told so far: {:?}", self.notifications)
            }
        }
    }

    /// Takes one message for what it is.
    pub fn handle_next(&mut self) -> bool {
        let Some(message) = self.next_message() else {
            return false;
        };
        let id = message["id"].as_u64();
        match (id, message.get("method").and_then(Value::as_str)) {
            (Some(_), Some("elicitation/create")) => {
                self.questions.push(message["params"].clone());
                let result = self.consent.clone().expect("a prepared consent");
                self.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
            }
            (Some(id), None) => {
                assert!(self.responses.insert(id, message).is_none(), "two answers to {id}");
            }
            _ => self.notifications.push(message),
        }
        true
    }

    /// Waits for the answer to a request, whatever it is.
    pub fn wait_for_response(&mut self, id: u64) -> Value {
        loop {
            if let Some(response) = self.responses.remove(&id) {
                return response;
            }
            assert!(self.handle_next(), "the server ended without answering {id}");
        }
    }

    /// Whether an answer has come.
    pub fn has_response(&self, id: u64) -> bool {
        self.responses.contains_key(&id)
    }

    /// A request that works.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        let response = self.wait_for_response(id);
        assert!(response.get("error").is_none(), "{method}: {response}");
        response["result"].clone()
    }

    /// A request that is refused by the protocol.
    #[track_caller]
    pub fn request_error(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        let response = self.wait_for_response(id);
        assert!(response.get("result").is_none(), "{method}: {response}");
        response["error"].clone()
    }

    /// A call, whatever comes of it: the object, which stands there twice if it is short, and whether it is a failure.
    pub fn call_outcome(&mut self, name: &str, arguments: Value) -> (Value, bool) {
        let id = self.send_call(name, arguments);
        let response = self.wait_for_response(id);
        parse_outcome(&response)
    }

    /// A call that works; gives the whole object.
    #[track_caller]
    pub fn call(&mut self, name: &str, arguments: Value) -> Value {
        let (object, is_error) = self.call_outcome(name, arguments);
        assert!(!is_error, "{name}: {object}");
        object
    }

    /// A call that fails with this code; gives the whole object.
    #[track_caller]
    pub fn call_error(&mut self, name: &str, arguments: Value, code: &str) -> Value {
        let (object, is_error) = self.call_outcome(name, arguments);
        assert!(is_error, "{name}: {object}");
        assert_eq!(
            (object["status"].as_str(), object["code"].as_str()),
            (Some("error"), Some(code)),
            "{object}"
        );
        assert!(object["hints"][0].is_string(), "no hint: {object}");
        object
    }

    /// Waits until the server has told this, and forgets everything told.
    pub fn wait_for_notification(&mut self, method: &str) -> Value {
        loop {
            if let Some(index) =
                self.notifications.iter().position(|notification| notification["method"] == method)
            {
                let found = self.notifications.swap_remove(index);
                self.notifications.clear();
                return found;
            }
            assert!(self.handle_next(), "the server ended without telling {method}");
        }
    }

    /// Stops talking, and waits for the server to end.
    pub fn close(&mut self) -> std::process::ExitStatus {
        self.input = None;
        while self.handle_next() {}
        self.process.wait().expect("an end")
    }

    /// Goes away without a word, leaving the process behind; gives it.
    pub fn disconnect(mut self) -> std::process::ExitStatus {
        self.input = None;
        // The reader's end closes when this process's copy does.
        drop(std::mem::replace(&mut self.lines, mpsc::channel().1));
        self.process.wait().expect("an end")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read_messages(output: ChildStdout, sender: &mpsc::Sender<Value>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else {
            return;
        };
        let message = serde_json::from_str(&line).unwrap_or_else(|_| json!({"garbage": line}));
        if sender.send(message).is_err() {
            return;
        }
    }
}

/// The object of an answer to a call, and whether it is a failure.
#[track_caller]
pub fn parse_outcome(response: &Value) -> (Value, bool) {
    let result = &response["result"];
    assert!(result.is_object(), "{response}");
    let text = result["content"][0]["text"].as_str().expect("a text");
    let object: Value = serde_json::from_str(text).expect("JSON in the text");
    match result.get("structuredContent") {
        Some(structured) => assert_eq!(&object, structured),
        None => assert!(text.len() > 8_000, "a short answer is an object too: {text}"),
    }
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
    (object, result["isError"].as_bool().expect("a verdict"))
}

/// Most tests look at what explains an answer, so they ask for all of it.
pub fn with_full_detail(mut arguments: Value) -> Value {
    if let Some(arguments) = arguments.as_object_mut() {
        arguments.entry("detail").or_insert_with(|| "full".into());
    }
    arguments
}
