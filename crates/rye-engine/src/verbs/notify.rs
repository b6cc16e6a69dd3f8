//! Notifications: the user's own commands and webhooks, told of what becomes of threads.
//!
//! They are named in `agent/notifications.yaml` of user space, in a signed file: a project never names one. A command
//! runs as the user, outside the sandbox, with a short environment; no model can call it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lillux::CancelToken;
use lillux::http::{AddressPolicy, HttpClient, HttpHeader, HttpMethod, HttpRequest, ProxyConfig};
use lillux::process::{self, ExitReason, ProcessCommand, ProcessLimits};
use rye_exec::environment;
use rye_item::ItemId;
use rye_item::text::one_line;
use rye_space::Workspace;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::{Result, programs};

/// The config that names them.
pub const NOTIFICATIONS_CONFIG: &str = "agent/notifications";

/// How long a notification may take unless it says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest it may take: the thread's command waits for it.
const MAX_TIMEOUT_SECONDS: u64 = 60;

/// The most notifications of one user.
const MAX_TARGETS: usize = 16;

/// The header that names a notification: one that is sent again has the same.
pub const NOTIFICATION_ID_HEADER: &str = "X-Rye-Notification-Id";

/// What a command gets of the user's environment, besides what it names.
const COMMAND_VARIABLES: [&str; 13] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// What a notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationEvent {
    /// A thread stopped to ask a person.
    Approval,
    /// A thread has completed.
    Completed,
    /// A thread has failed.
    Failed,
    /// A thread stopped for another reason.
    Suspended,
}

impl NotificationEvent {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Approval, Self::Completed, Self::Failed, Self::Suspended];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Suspended => "suspended",
        }
    }
}

/// How a notification is sent.
#[derive(Clone, PartialEq, Eq)]
enum NotificationMethod {
    /// A program and its arguments; it reads the notification from its standard input.
    Command { program: String, arguments: Vec<String>, variables: Vec<String> },
    /// An address that the notification is posted to.
    Webhook { url: url::Url, headers: BTreeMap<String, String> },
}

/// One notification that the user wants.
#[derive(Clone, PartialEq, Eq)]
pub struct NotificationTarget {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub events: Vec<NotificationEvent>,
    /// Whether threads that others started are told of as well. What a person is asked is reported in any case.
    pub includes_children: bool,
    timeout: Duration,
    method: NotificationMethod,
}

impl std::fmt::Debug for NotificationTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments, addresses and headers may hold secrets.
        write!(formatter, "NotificationTarget({})", self.id)
    }
}

/// The notifications that the user wants, and what is wrong with others.
#[derive(Clone, Debug, Default)]
pub struct NotificationTargets {
    /// Those that are sent.
    pub targets: Vec<NotificationTarget>,
    /// Settings that were left out, and why.
    pub notices: Vec<String>,
}

impl NotificationTargets {
    /// Reads the user's notifications. A mistake leaves out what it is in, and is a notice.
    ///
    /// # Errors
    /// Never in practice: the config's id is valid.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        let merged = workspace.config(&ItemId::new(NOTIFICATIONS_CONFIG)?);
        let ignored = merged.ignored.iter().chain(&merged.flat_files);
        let mut notices: Vec<String> = ignored
            .map(|ignored| format!("{}: {}: {}", ignored.path.display(), ignored.key, ignored.reason))
            .collect();
        let mut targets = Vec::new();
        let entries = merged.get("notifications").and_then(Value::as_array);
        for (index, entry) in entries.into_iter().flatten().enumerate() {
            match parse_target(entry) {
                Ok(_) if index >= MAX_TARGETS => {
                    notices.push(format!("notifications.yaml: only the first {MAX_TARGETS} are used"));
                    break;
                }
                Ok(target) => targets.push(target),
                Err(reason) => {
                    notices.push(format!("notifications.yaml: notification {}: {reason}", index + 1))
                }
            }
        }
        Ok(Self { targets, notices })
    }
}

fn parse_target(entry: &Value) -> std::result::Result<NotificationTarget, String> {
    const KEYS: [&str; 8] =
        ["id", "on", "command", "env", "webhook", "headers", "timeout_seconds", "children"];
    let fields = entry.as_object().ok_or("expected an object")?;
    if let Some(unknown) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("unknown key `{}`", one_line(unknown)));
    }
    let id =
        fields.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()).ok_or("it needs an `id`")?;
    let events = match fields.get("on") {
        None => NotificationEvent::ALL.to_vec(),
        Some(_) => texts(fields, "on")?
            .iter()
            .map(|word| parse_event(word))
            .collect::<std::result::Result<_, _>>()?,
    };
    let timeout = match fields.get("timeout_seconds") {
        None => DEFAULT_TIMEOUT,
        Some(value) => {
            let seconds = value.as_u64().filter(|seconds| (1..=MAX_TIMEOUT_SECONDS).contains(seconds));
            Duration::from_secs(
                seconds.ok_or(format!("timeout_seconds: expected 1 to {MAX_TIMEOUT_SECONDS}"))?,
            )
        }
    };
    let includes_children = match fields.get("children") {
        None => false,
        Some(value) => value.as_bool().ok_or("children: expected true or false")?,
    };
    let method = match (fields.get("command"), fields.get("webhook")) {
        (Some(_), None) if !fields.contains_key("headers") => {
            let mut words = texts(fields, "command")?.into_iter();
            let program = words.next().ok_or("command: expected a program and its arguments")?;
            let variables = if fields.contains_key("env") { texts(fields, "env")? } else { Vec::new() };
            NotificationMethod::Command { program, arguments: words.collect(), variables }
        }
        (None, Some(Value::String(url))) if !fields.contains_key("env") => {
            NotificationMethod::Webhook { url: parse_url(url)?, headers: parse_headers(fields)? }
        }
        _ => return Err("it needs either `command` (and `env`) or `webhook` (and `headers`)".to_owned()),
    };
    Ok(NotificationTarget { id: id.to_owned(), events, includes_children, timeout, method })
}

fn parse_event(word: &str) -> std::result::Result<NotificationEvent, String> {
    let found = NotificationEvent::ALL.into_iter().find(|event| event.as_str() == word);
    found.ok_or_else(|| {
        let words = NotificationEvent::ALL.map(NotificationEvent::as_str).join(", ");
        format!("on: unknown event `{}`; there are {words}", one_line(word))
    })
}

/// A list of texts.
fn texts(fields: &Map<String, Value>, key: &str) -> std::result::Result<Vec<String>, String> {
    let list = fields.get(key).and_then(Value::as_array);
    let texts = list.map(|list| list.iter().map(|word| word.as_str().map(str::to_owned)).collect());
    texts.flatten().ok_or_else(|| format!("{key}: expected a list of texts"))
}

/// What leaves the machine is encrypted.
fn parse_url(text: &str) -> std::result::Result<url::Url, String> {
    let url = url::Url::parse(text).map_err(|error| format!("webhook: {error}"))?;
    let is_local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return Err("webhook: the address has no host".to_owned()),
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_local => Ok(url),
        _ => Err("webhook: expected https, or http on this machine".to_owned()),
    }
}

fn parse_headers(fields: &Map<String, Value>) -> std::result::Result<BTreeMap<String, String>, String> {
    let Some(headers) = fields.get("headers") else { return Ok(BTreeMap::new()) };
    let headers = headers.as_object().ok_or("headers: expected an object")?;
    let texts = headers.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    texts.collect::<Option<_>>().ok_or_else(|| "headers: expected texts".to_owned())
}

impl NotificationTarget {
    /// Sends a notification and waits for its end. `id` is the same if it is sent again.
    ///
    /// # Errors
    /// Why it was not delivered, without anything secret.
    pub fn send(&self, engine: &Engine, id: &str, body: &Value) -> std::result::Result<(), String> {
        match &self.method {
            NotificationMethod::Command { program, arguments, variables } => {
                let mut stdin = body.to_string().into_bytes();
                stdin.push(b'\n');
                self.run_command(engine, program, arguments, variables, stdin)
            }
            NotificationMethod::Webhook { url, headers } => {
                self.post(engine, url, headers, id, body.to_string().into_bytes())
            }
        }
    }

    fn run_command(
        &self,
        engine: &Engine,
        program: &str,
        arguments: &[String],
        variables: &[String],
        stdin: Vec<u8>,
    ) -> std::result::Result<(), String> {
        let host = &engine.host;
        // It runs unconfined: what tools can write to is not searched.
        let path_variable = host.variables.get("PATH").map_or("", String::as_str);
        let path = programs::search_path(engine, path_variable);
        let found = environment::find_on_path(program, &path).filter(|found| !is_in_project(engine, found));
        let found = found.ok_or_else(|| {
            format!("`{}` was not found on your PATH outside the project", one_line(program))
        })?;
        let is_passed =
            |name: &str| COMMAND_VARIABLES.contains(&name) || variables.iter().any(|own| own == name);
        let environment = host.variables.iter().filter(|(name, _)| is_passed(name));
        let command = ProcessCommand {
            program: found.into(),
            arguments: arguments.to_vec(),
            environment: environment.map(|(name, value)| (name.clone(), value.clone())).collect(),
            current_dir: host.home.clone(),
            stdin,
            timeout: self.timeout,
            has_result_channel: false,
            limits: ProcessLimits { output_bytes: 16 << 10, ..ProcessLimits::default() },
            log: None,
        };
        let cancel = CancelToken::new().map_err(|error| error.to_string())?;
        let finished = process::run(&host.launcher, &command, None, &cancel);
        match finished.map_err(|error| one_line(&error.to_string()))?.exit {
            ExitReason::Exited(0) => Ok(()),
            ExitReason::Exited(code) => Err(format!("it ended with exit code {code}")),
            ExitReason::TimedOut => Err(format!("it took longer than {} seconds", self.timeout.as_secs())),
            ExitReason::Signalled(_)
            | ExitReason::Cancelled
            | ExitReason::TooManyProcesses { .. }
            | ExitReason::SupervisorLost => Err("it was stopped".to_owned()),
        }
    }

    fn post(
        &self,
        engine: &Engine,
        url: &url::Url,
        headers: &BTreeMap<String, String>,
        id: &str,
        body: Vec<u8>,
    ) -> std::result::Result<(), String> {
        let variables = &engine.host.variables;
        // The user named this one address, wherever it is; a redirect is not followed.
        let port = url.port_or_known_default().unwrap_or(443);
        let allowed = [format!("{}:{port}", url.host_str().unwrap_or_default())];
        let policy = AddressPolicy::new(&allowed).map_err(|error| error.to_string())?;
        let variable = |name: &str| variables.get(name).map(String::as_str);
        let client = HttpClient::new(policy)
            .with_proxies(ProxyConfig::from_variables(variable))
            .with_certificates_of(variable);
        let header =
            |name: &str, value: String, is_secret| HttpHeader { name: name.to_owned(), value, is_secret };
        let mut request = HttpRequest::new(HttpMethod::Post, url.as_str());
        request.headers.push(header("Content-Type", "application/json".to_owned(), false));
        request.headers.push(header(NOTIFICATION_ID_HEADER, id.to_owned(), false));
        for (name, value) in headers {
            request.headers.push(header(name, expand(value, variables)?, true));
        }
        request.body = Some(body);
        request.timeout = self.timeout;
        request.connect_timeout = self.timeout;
        request.max_body_bytes = 64 << 10;
        request.max_redirects = 0;
        let cancel = CancelToken::new().map_err(|error| error.to_string())?;
        let response = client.send(&request, &cancel).map_err(|error| one_line(&error.to_string()))?;
        match response.status {
            200..=299 => Ok(()),
            300..=399 => Err(format!("it answered {}: redirects are not followed", response.status)),
            status => Err(format!("it answered {status}")),
        }
    }
}

/// Whether tools could have written a program that is named by its path.
fn is_in_project(engine: &Engine, program: &Path) -> bool {
    let project = engine.workspace.roots.project.as_deref().map(lillux::canonicalize_existing);
    project.is_some_and(|project| lillux::canonicalize_existing(program).starts_with(project))
}

/// Replaces `${NAME}` by variables of the user's environment, once.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> std::result::Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("headers: `${` without `}`")?;
        let value = variables.get(name);
        let value = value.ok_or_else(|| format!("headers: the variable `{}` is not set", one_line(name)))?;
        expanded.push_str(before);
        expanded.push_str(value);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_targets_are_described() {
        for (entry, expected) in [
            (json!("x"), "expected an object"),
            (json!({"command": ["a"]}), "needs an `id`"),
            (json!({"id": "a"}), "either `command`"),
            (json!({"id": "a", "command": ["a"], "webhook": "https://a.example"}), "either `command`"),
            (json!({"id": "a", "command": "notify-send hello"}), "list of texts"),
            (json!({"id": "a", "command": []}), "expected a program"),
            (json!({"id": "a", "webhook": "http://chat.example/x"}), "expected https"),
            (json!({"id": "a", "webhook": "file:///etc/passwd"}), "no host"),
            (json!({"id": "a", "webhook": "https://a.example", "on": ["done"]}), "unknown event `done`"),
            (json!({"id": "a", "command": ["a"], "timeout_seconds": 0}), "expected 1 to 60"),
            (json!({"id": "a", "command": ["a"], "shell": true}), "unknown key `shell`"),
        ] {
            let error = parse_target(&entry).expect_err("refused");
            assert!(error.contains(expected), "{entry}: {error}");
        }
        let target =
            parse_target(&json!({"id": "a", "webhook": "http://127.0.0.1:8080/x"})).expect("a target");
        assert_eq!((target.events.len(), target.includes_children), (4, false));
        assert_eq!(format!("{target:?}"), "NotificationTarget(a)");
    }

    #[test]
    fn headers_take_variables_once() {
        let variables =
            BTreeMap::from([("A".to_owned(), "${B}".to_owned()), ("B".to_owned(), "b".to_owned())]);
        assert_eq!(expand("x ${A} ${B}!", &variables).as_deref(), Ok("x ${B} b!"));
        assert!(expand("${C}", &variables).is_err());
        assert!(expand("${A", &variables).is_err());
    }
}
