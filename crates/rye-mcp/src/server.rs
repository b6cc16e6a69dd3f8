//! A foreign server as its signed item describes it. The caller has verified the item; here its config is
//! only read, and every problem is named at once.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use url::Url;

use crate::error::{McpError, truncate_line};

/// How long one exchange may take by default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT_SECONDS: u64 = 3600;

/// Headers the transport itself sets.
const RESERVED_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// A foreign server.
#[derive(Clone, Debug, PartialEq)]
pub struct McpServer {
    /// The id of its item: `mcp/servers/github`.
    pub id: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// How long one exchange may take, if the item says so.
    pub timeout: Option<Duration>,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum McpTransport {
    /// A process that speaks over its stdin and stdout.
    Stdio(ServerCommand),
    /// A web address.
    Http(McpEndpoint),
}

impl McpTransport {
    /// The word used in items.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::Http(_) => "http",
        }
    }
}

/// The process of a stdio server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCommand {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables it gets.
    pub env: BTreeMap<String, String>,
    /// The folder it starts in.
    pub cwd: Option<String>,
}

/// The address of an HTTP server.
#[derive(Clone, PartialEq)]
pub struct McpEndpoint {
    /// Where it listens.
    pub url: Url,
    /// Headers sent with every request, credentials included.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for McpEndpoint {
    /// Shows no header's value: it may be a secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        formatter.debug_struct("Endpoint").field("url", &self.url.as_str()).field("headers", &names).finish()
    }
}

impl McpServer {
    /// Reads the `config` of the verified server item `id`.
    ///
    /// # Errors
    /// [`McpError::Config`] with every problem.
    pub fn from_config(id: &str, config: &Value) -> Result<Self, McpError> {
        let mut reader = ConfigReader { problems: Vec::new() };
        let server = reader.read_server(id, config);
        match server {
            Some(server) if reader.problems.is_empty() => Ok(server),
            _ => Err(McpError::Config { server: truncate_line(id, 200), problems: reader.problems }),
        }
    }
}

struct ConfigReader {
    problems: Vec<String>,
}

impl ConfigReader {
    fn add_problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn read_server(&mut self, id: &str, config: &Value) -> Option<McpServer> {
        let Some(config) = config.as_object() else {
            self.add_problem("`config` must be a map");
            return None;
        };
        let timeout = self.read_timeout(config);
        let transport = match config.get("transport").and_then(Value::as_str) {
            Some("stdio") => {
                self.check_keys(config, &["command", "args", "env", "cwd"]);
                McpTransport::Stdio(self.read_command(config))
            }
            Some("http" | "streamable-http" | "streamable_http") => {
                self.check_keys(config, &["url", "headers", "auth"]);
                McpTransport::Http(self.read_endpoint(config)?)
            }
            Some("sse") => {
                self.add_problem("`transport: sse` is the old HTTP transport; use `http`");
                return None;
            }
            _ => {
                self.add_problem("`transport` must be `stdio` or `http`");
                return None;
            }
        };
        Some(McpServer { id: id.to_owned(), transport, timeout })
    }

    fn check_keys(&mut self, config: &Map<String, Value>, known: &[&str]) {
        for key in config.keys() {
            if !(known.contains(&key.as_str()) || matches!(key.as_str(), "transport" | "timeout")) {
                self.add_problem(format!(
                    "`{}` is not a setting of this transport; known are transport, timeout, {}",
                    truncate_line(key, 60),
                    known.join(", ")
                ));
            }
        }
    }

    fn read_timeout(&mut self, config: &Map<String, Value>) -> Option<Duration> {
        let value = config.get("timeout").filter(|value| !value.is_null())?;
        let timeout = parse_timeout(value);
        if timeout.is_none() {
            self.add_problem(format!(
                "`timeout` must be a whole number of seconds from 1 to {MAX_TIMEOUT_SECONDS}"
            ));
        }
        timeout
    }

    fn read_command(&mut self, config: &Map<String, Value>) -> ServerCommand {
        let command = self.read_text(config, "command").unwrap_or_default();
        if command.is_empty() {
            self.add_problem("`command` must name the program");
        }
        let args = match config.get("args") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            Some(_) => {
                self.add_problem("`args` must be a list of texts");
                Vec::new()
            }
        };
        let env = self.read_texts(config, "env");
        for name in env.keys() {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.add_problem(format!("`env` has the impossible name `{}`", truncate_line(name, 60)));
            }
        }
        let cwd = self.read_text(config, "cwd");
        let strings = std::iter::once(&command).chain(&args).chain(env.values()).chain(&cwd);
        if strings.into_iter().any(|text| text.contains('\0')) {
            self.add_problem("`command`, `args`, `env` and `cwd` may not hold NUL characters");
        }
        ServerCommand { command, args, env, cwd }
    }

    fn read_endpoint(&mut self, config: &Map<String, Value>) -> Option<McpEndpoint> {
        let mut headers = Vec::new();
        for (name, value) in self.read_texts(config, "headers") {
            if RESERVED_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                self.add_problem(format!("header `{}` is set by the transport", truncate_line(&name, 60)));
            } else {
                headers.extend(self.read_header(&name, &value));
            }
        }
        let authorization = match config.get("auth") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Object(map)) if map.len() == 1 => {
                map.get("bearer").and_then(Value::as_str).map(|token| format!("Bearer {token}"))
            }
            Some(_) => None,
        };
        match authorization {
            Some(_) if headers.iter().any(|(name, _)| name == AUTHORIZATION) => {
                self.add_problem("`auth` and the header `Authorization` cannot both be set");
            }
            Some(value) => headers.extend(self.read_header("Authorization", &value)),
            None if config.get("auth").is_some_and(|auth| !auth.is_null()) => {
                self.add_problem(
                    "`auth` must be the value of the header `Authorization`, or `{bearer: TOKEN}`",
                );
            }
            None => {}
        }
        let url = self.read_url(config)?;
        if url.scheme() == "http" && !headers.is_empty() && !is_loopback(&url) {
            self.add_problem("headers are sent over `https` only, unless the server is on this machine");
        }
        Some(McpEndpoint { url, headers })
    }

    fn read_url(&mut self, config: &Map<String, Value>) -> Option<Url> {
        let text = self.read_text(config, "url").unwrap_or_default();
        match Url::parse(&text) {
            Ok(url) if !matches!(url.scheme(), "http" | "https") || url.host().is_none() => {
                self.add_problem("`url` must begin with `https://` or `http://`");
                None
            }
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                self.add_problem("`url` may not hold a name or a password; use `auth`");
                None
            }
            Ok(mut url) => {
                url.set_fragment(None);
                Some(url)
            }
            Err(error) => {
                self.add_problem(format!("`url` cannot be read: {error}"));
                None
            }
        }
    }

    fn read_header(&mut self, name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            self.add_problem(format!("invalid header name `{}`", truncate_line(name, 60)));
            return None;
        };
        // The value is not shown: it may be a secret.
        let Ok(mut value) = HeaderValue::from_str(value) else {
            self.add_problem(format!("the value of header `{name}` has characters that cannot be sent"));
            return None;
        };
        value.set_sensitive(true);
        Some((name, value))
    }

    fn read_text(&mut self, config: &Map<String, Value>, key: &str) -> Option<String> {
        match config.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.add_problem(format!("`{key}` must be a text"));
                None
            }
        }
    }

    fn read_texts(&mut self, config: &Map<String, Value>, key: &str) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        match config.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) => {
                for (name, value) in map {
                    match value.as_str() {
                        Some(text) => {
                            found.insert(name.clone(), text.to_owned());
                        }
                        None => {
                            self.add_problem(format!("`{key}.{}` must be a text", truncate_line(name, 60)))
                        }
                    }
                }
            }
            Some(_) => self.add_problem(format!("`{key}` must be a map of texts")),
        }
        found
    }
}

/// A timeout in whole seconds, within bounds.
#[must_use]
pub(crate) fn parse_timeout(value: &Value) -> Option<Duration> {
    value.as_u64().filter(|seconds| (1..=MAX_TIMEOUT_SECONDS).contains(seconds)).map(Duration::from_secs)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(config: &Value) -> Vec<String> {
        match McpServer::from_config("mcp/servers/x", config) {
            Err(McpError::Config { problems, .. }) => problems,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stdio_server_is_parsed() {
        let config = json!({"transport": "stdio", "command": "npx", "args": ["-y", "a"], "env": {"K": "v"}, "timeout": 5});
        let expected = McpServer {
            id: "mcp/servers/x".into(),
            transport: McpTransport::Stdio(ServerCommand {
                command: "npx".into(),
                args: vec!["-y".into(), "a".into()],
                env: BTreeMap::from([("K".into(), "v".into())]),
                cwd: None,
            }),
            timeout: Some(Duration::from_secs(5)),
        };
        assert_eq!(McpServer::from_config("mcp/servers/x", &config), Ok(expected));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let config =
            json!({"transport": "stdio", "args": "x", "env": {"A=B": "1", "C": 1}, "url": "u", "timeout": 0});
        assert_eq!(
            problems(&config),
            [
                "`timeout` must be a whole number of seconds from 1 to 3600",
                "`url` is not a setting of this transport; known are transport, timeout, command, args, env, cwd",
                "`command` must name the program",
                "`args` must be a list of texts",
                "`env.C` must be a text",
                "`env` has the impossible name `A=B`",
            ]
        );
    }

    #[test]
    fn credentials_need_https() {
        let config = |url: &str| json!({"transport": "http", "url": url, "auth": {"bearer": "secret"}});
        assert_eq!(
            problems(&config("http://example.com/mcp")),
            ["headers are sent over `https` only, unless the server is on this machine"]
        );
        assert!(McpServer::from_config("x", &config("https://example.com/mcp")).is_ok());
        let server = McpServer::from_config("x", &config("http://127.0.0.1:1/mcp")).expect("loopback");
        assert!(!format!("{server:?}").contains("secret"));
    }

    #[test]
    fn invalid_headers_are_refused() {
        let config = json!({"transport": "http", "url": "ftp://x", "headers": {"Host": "a", "X": "a\r\nY: b", "é": "1"}});
        assert_eq!(
            problems(&config),
            [
                "header `Host` is set by the transport",
                "the value of header `x` has characters that cannot be sent",
                "invalid header name `é`",
                "`url` must begin with `https://` or `http://`",
            ]
        );
    }
}
