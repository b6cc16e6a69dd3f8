//! The access of the tests: plain processes, the loopback network.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use lillux::CancelToken;
use rye_mcp::{
    CallOutcome, HttpAccess, McpError, McpHost, McpServer, ProcessSpawner, ServerCommand, ServerProcess,
    StderrSource, ToolList,
};
use serde_json::{Value, json};
use url::Url;

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/server.py");

pub struct TestHost;

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ProcessSpawner for TestHost {
    fn spawn(&self, _server: &McpServer, command: &ServerCommand) -> Result<ServerProcess, String> {
        let mut child = Command::new(&command.command)
            .args(&command.args)
            .envs(&command.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        Ok(ServerProcess {
            stdin: OwnedFd::from(child.stdin.take().expect("stdin")),
            stdout: OwnedFd::from(child.stdout.take().expect("stdout")),
            stderr: StderrSource::Pipe(OwnedFd::from(child.stderr.take().expect("stderr"))),
            guard: Box::new(KillOnDrop(child)),
        })
    }
}

impl HttpAccess for TestHost {
    fn allow(&self, _server: &McpServer, url: &Url) -> Result<(), String> {
        match url.host_str() {
            Some("127.0.0.1") => Ok(()),
            other => Err(format!("host {other:?} is not allowed")),
        }
    }

    fn build_client(
        &self,
        _server: &McpServer,
        _url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> Result<reqwest::Client, String> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder.tls_backend_preconfigured(tls).build().map_err(|error| error.to_string())
    }
}

/// A fake HTTP server, ended when dropped.
pub struct HttpServer {
    pub port: u16,
    _stdin: ChildStdin,
    _child: KillOnDrop,
}

impl HttpServer {
    pub fn start(mode: &str) -> Self {
        let mut child = Command::new("python3")
            .args([SCRIPT, mode, "--http"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a port");
        let stdin = child.stdin.take().expect("stdin");
        Self { port: line.trim().parse().expect("a port"), _stdin: stdin, _child: KillOnDrop(child) }
    }

    pub fn server(&self, more: &Value) -> McpServer {
        let mut config = json!({"transport": "http", "url": format!("http://127.0.0.1:{}/mcp", self.port)});
        config.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
        McpServer::from_config("mcp/servers/fake", &config).expect("a server")
    }
}

pub fn stdio_server(mode: &str) -> McpServer {
    let config = json!({"transport": "stdio", "command": "python3", "args": [SCRIPT, mode]});
    McpServer::from_config("mcp/servers/fake", &config).expect("a server")
}

/// A time no test should need.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(300);

pub fn list_with_timeout(server: &McpServer, timeout: Duration) -> Result<ToolList, McpError> {
    let cancel = CancelToken::new().expect("cancel");
    rye_mcp::list_tools(
        server,
        &McpHost { spawner: &TestHost, http: &TestHost, cancel: &cancel, timeout, progress: None },
    )
}

pub fn list(server: &McpServer) -> Result<ToolList, McpError> {
    list_with_timeout(server, TEST_TIMEOUT)
}

pub fn call_with_timeout(
    server: &McpServer,
    tool: &str,
    arguments: &Value,
    timeout: Duration,
) -> Result<CallOutcome, McpError> {
    let cancel = CancelToken::new().expect("cancel");
    let host = McpHost { spawner: &TestHost, http: &TestHost, cancel: &cancel, timeout, progress: None };
    rye_mcp::call_tool(server, &host, tool, arguments.as_object().expect("map"), &|_| Ok(()))
}

pub fn call(server: &McpServer, tool: &str, arguments: &Value) -> Result<CallOutcome, McpError> {
    call_with_timeout(server, tool, arguments, TEST_TIMEOUT)
}

pub fn names(list: &ToolList) -> Vec<&str> {
    list.tools.iter().map(|tool| tool.name.as_str()).collect()
}

pub const TOOL_NAMES: [&str; 8] = ["add", "fails", "image", "json", "refuses", "sample", "slow", "text"];

/// Cancels while `work` runs, once the server has been asked.
pub fn cancel_during<T>(work: impl FnOnce(&CancelToken, &(dyn Fn() + Sync)) -> T + Send) -> T
where
    T: Send,
{
    let cancel = CancelToken::new().expect("cancel");
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let canceller = cancel.clone();
        scope.spawn(move || {
            let _ = receiver.recv();
            canceller.cancel();
        });
        let sender = std::sync::Mutex::new(Some(sender));
        work(&cancel, &|| drop(sender.lock().expect("sender").take()))
    })
}
