//! One exchange with one server, on a thread and a runtime of its own, so that it can be called from anywhere and leaves
//! nothing behind.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode, PaginatedRequestParams,
    ProtocolVersion, ResourceContents, Tool,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RoleClient, RunningService, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::Transport as SdkTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::Instant;

use super::fault::{Fault, Reason};
use super::refusals::Refusals;
use super::stderr::Tail;
use super::stdio::Pipes;
use super::{FAREWELL, Judge, http};
use crate::doors::{Doors, Started};
use crate::error::{McpError, shown};
use crate::server::{Endpoint, Server, ServerCommand, Transport};
use crate::tools::{CallOutcome, Sent, ToolList};

const MAX_PAGES: usize = 100;
const MAX_LISTED: usize = 10_000;

/// The tool to call once the list was judged.
pub(super) struct Call<'a> {
    pub(super) tool_name: &'a str,
    pub(super) arguments: &'a Map<String, Value>,
    pub(super) judge: Judge<'a>,
}

type Answer = (ToolList, Option<CallOutcome>);

/// Why one attempt failed.
enum Failure {
    /// There is nothing more to try.
    Final(McpError),
    /// The server does not know the handshake; the newer protocol has none.
    NoHandshake(McpError),
}

/// Why the conversation stopped.
enum Stop {
    Cancelled,
    TimedOut,
    Closed,
    Reason(Reason),
    Error(McpError),
    NoHandshake(McpError),
}

/// Holds the exchange.
pub(super) fn run(server: &Server, doors: &Doors<'_>, call: Option<&Call<'_>>) -> Result<Answer, McpError> {
    let failed =
        |reason: String| McpError::Unreachable { server: server.id.clone(), reason, stderr: String::new() };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("mcp".to_owned())
            .spawn_scoped(scope, || on_own_thread(server, doors, call))
            .map_err(|error| failed(format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(failed("the client itself failed".to_owned())))
    })
}

fn on_own_thread(server: &Server, doors: &Doors<'_>, call: Option<&Call<'_>>) -> Result<Answer, McpError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        McpError::Unreachable { server: server.id.clone(), reason: error.to_string(), stderr: String::new() }
    })?;
    let deadline = Instant::now() + doors.timeout;
    let answer = runtime.block_on(async {
        match attempt(server, doors, call, ClientLifecycleMode::Initialize, deadline).await {
            Err(Failure::NoHandshake(_)) => {
                let newer =
                    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
                attempt(server, doors, call, newer, deadline).await
            }
            other => other,
        }
    });
    // A look-up of a host name may still be under way; nobody waits for it.
    runtime.shutdown_background();
    answer.map_err(|failure| match failure {
        Failure::Final(error) | Failure::NoHandshake(error) => error,
    })
}

async fn attempt(
    server: &Server,
    doors: &Doors<'_>,
    call: Option<&Call<'_>>,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
) -> Result<Answer, Failure> {
    let exchange = Exchange { server, doors, call, lifecycle, deadline, fault: Fault::default() };
    if doors.cancel.is_cancelled() {
        return Err(exchange.failure(Stop::Cancelled, String::new()));
    }
    match &server.transport {
        Transport::Stdio(command) => exchange.over_pipes(command).await,
        Transport::Http(endpoint) => exchange.over_http(endpoint).await,
    }
}

struct Exchange<'a> {
    server: &'a Server,
    doors: &'a Doors<'a>,
    call: Option<&'a Call<'a>>,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
    fault: Fault,
}

impl Exchange<'_> {
    async fn over_pipes(self, command: &ServerCommand) -> Result<Answer, Failure> {
        let unreachable = |reason: String| {
            self.failure(Stop::Reason(Reason::Unreachable(shown(&reason, 500))), String::new())
        };
        let Started { stdin, stdout, stderr, guard } =
            self.doors.start.start(self.server, command).map_err(unreachable)?;
        let opened =
            (|| Ok((Sender::from_owned_fd(stdin)?, Receiver::from_owned_fd(stdout)?, Tail::new(stderr)?)))();
        let (stdin, stdout, mut tail) = opened
            .map_err(|error: std::io::Error| unreachable(format!("its pipes cannot be used: {error}")))?;
        let result = self.bounded(Pipes::new(stdin, stdout, self.fault.clone())).await;
        match result {
            Ok(answer) => {
                drop(guard);
                Ok(answer)
            }
            Err(stop) => {
                if matches!(stop, Stop::Closed) {
                    tail.settle().await;
                }
                drop(guard);
                tail.settle().await;
                Err(self.failure(stop, tail.text()))
            }
        }
    }

    async fn over_http(self, endpoint: &Endpoint) -> Result<Answer, Failure> {
        let denied = |reason: String| {
            Failure::Final(McpError::Denied { server: self.server.id.clone(), reason: shown(&reason, 500) })
        };
        let Doors { web, .. } = self.doors;
        web.allow(self.server, &endpoint.url).map_err(denied)?;
        let client = web.client(self.server, &endpoint.url, http::builder()).map_err(denied)?;
        let asker = http::Asker::new(client, endpoint, self.fault.clone());
        let mut config = StreamableHttpClientTransportConfig::with_uri(endpoint.url.as_str());
        config.reinit_on_expired_session = false;
        config.allow_stateless = true;
        let transport = StreamableHttpClientTransport::with_client(asker, config);
        self.bounded(transport).await.map_err(|stop| self.failure(stop, String::new()))
    }

    /// Talks until there is an answer, a fault, the deadline, or a request to stop.
    async fn bounded<T: SdkTransport<RoleClient> + 'static>(&self, transport: T) -> Result<Answer, Stop> {
        tokio::select! {
            biased;
            result = self.talk(transport) => result.map_err(|stop| match (self.fault.reason(), stop) {
                (_, stop @ (Stop::NoHandshake(_) | Stop::Cancelled)) | (None, stop) => stop,
                (Some(reason), _) => Stop::Reason(reason),
            }),
            () = self.fault.raised() => {
                Err(self.fault.reason().map_or(Stop::Closed, Stop::Reason))
            }
            () = cancelled(self.doors) => Err(Stop::Cancelled),
            () = tokio::time::sleep_until(self.deadline) => Err(Stop::TimedOut),
        }
    }

    async fn talk<T: SdkTransport<RoleClient> + 'static>(&self, transport: T) -> Result<Answer, Stop> {
        let refusals = Refusals::new(self.doors.progress.clone());
        let mut running = serve_client_with_lifecycle(refusals.clone(), transport, self.lifecycle.clone())
            .await
            .map_err(|error| self.handshake_stop(error))?;
        let answer = self.ask(&running, &refusals).await?;
        // Whoever does not end in time is ended by the guard.
        let _ = running.close_with_timeout(FAREWELL * 2).await;
        Ok(answer)
    }

    async fn ask(
        &self,
        running: &RunningService<RoleClient, Refusals>,
        refusals: &Refusals,
    ) -> Result<Answer, Stop> {
        if let Some(info) = running.peer_info()
            && !ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version)
        {
            let version = shown(info.protocol_version.as_str(), 40);
            return Err(Stop::Reason(Reason::Protocol(format!("it speaks the unknown version `{version}`"))));
        }
        let list = ToolList::new(self.list(running).await?)
            .map_err(|reason| Stop::Reason(Reason::Protocol(reason)))?;
        let Some(call) = self.call else { return Ok((list, None)) };
        (call.judge)(&list).map_err(Stop::Error)?;
        let Some(tool) = list.get(call.tool_name) else {
            return Err(Stop::Error(McpError::NoSuchTool {
                server: self.server.id.clone(),
                tool: shown(call.tool_name, 128),
                known: list.tools.iter().take(20).map(|tool| format!("`{}`", tool.name)).collect(),
            }));
        };
        let question =
            CallToolRequestParams::new(call.tool_name.to_owned()).with_arguments(call.arguments.clone());
        let result = match running.call_tool_once(question).await.map_err(|error| self.service_stop(error))? {
            CallToolResponse::Complete(result) => result,
            CallToolResponse::InputRequired(_) => return Err(self.asks_for("more input")),
            CallToolResponse::Task(_) => return Err(self.asks_for("a task to be followed")),
            _ => return Err(self.asks_for("something unknown")),
        };
        let (content, structured) = content_of(&result);
        let outcome = CallOutcome {
            is_error: result.is_error == Some(true),
            content,
            structured,
            tool_digest: tool.digest,
            refused: refusals.asked(),
        };
        Ok((list, Some(outcome)))
    }

    async fn list(&self, running: &RunningService<RoleClient, Refusals>) -> Result<Vec<Sent>, Stop> {
        let mut tools = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let page = running.list_tools(Some(page)).await.map_err(|error| self.service_stop(error))?;
            tools.extend(page.tools.into_iter().map(sent));
            cursor = page.next_cursor;
            if cursor.is_none() || tools.len() > MAX_LISTED {
                return Ok(tools);
            }
        }
        Err(Stop::Reason(Reason::Protocol(format!("its list of tools has more than {MAX_PAGES} pages"))))
    }

    fn asks_for(&self, what: &str) -> Stop {
        Stop::Error(McpError::AsksForInput { server: self.server.id.clone(), what: what.to_owned() })
    }

    fn refused(&self, error: &rmcp::ErrorData) -> McpError {
        McpError::Refused {
            server: self.server.id.clone(),
            code: error.code.0,
            message: shown(&error.message, 500),
        }
    }

    fn handshake_stop(&self, error: ClientInitializeError) -> Stop {
        match error {
            ClientInitializeError::JsonRpcError(error) => {
                let is_unknown = matches!(
                    error.code,
                    ErrorCode::METHOD_NOT_FOUND | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
                );
                let refused = self.refused(&error);
                if is_unknown { Stop::NoHandshake(refused) } else { Stop::Error(refused) }
            }
            ClientInitializeError::ConnectionClosed(_) => Stop::Closed,
            ClientInitializeError::TransportError { .. } => Stop::Closed,
            other => Stop::Reason(Reason::Protocol(shown(&other.to_string(), 300))),
        }
    }

    fn service_stop(&self, error: ServiceError) -> Stop {
        match error {
            ServiceError::McpError(error) => Stop::Error(self.refused(&error)),
            ServiceError::TransportClosed
            | ServiceError::TransportSend(_)
            | ServiceError::Cancelled { .. } => Stop::Closed,
            ServiceError::UnexpectedResponse => {
                Stop::Reason(Reason::Protocol("its answer does not fit the question".to_owned()))
            }
            other => Stop::Reason(Reason::Protocol(shown(&other.to_string(), 300))),
        }
    }

    fn failure(&self, stop: Stop, stderr: String) -> Failure {
        let server = self.server.id.clone();
        Failure::Final(match stop {
            Stop::Cancelled => McpError::Cancelled { server },
            Stop::TimedOut => McpError::TimedOut { server, seconds: self.doors.timeout.as_secs(), stderr },
            Stop::Closed => McpError::Closed { server, stderr },
            Stop::Reason(Reason::Protocol(reason)) => McpError::Protocol { server, reason, stderr },
            Stop::Reason(Reason::Unreachable(reason)) => McpError::Unreachable { server, reason, stderr },
            Stop::Error(error) => error,
            Stop::NoHandshake(error) => return Failure::NoHandshake(error),
        })
    }
}

async fn cancelled(doors: &Doors<'_>) {
    use std::os::fd::AsFd;
    let watched = doors
        .cancel
        .as_fd()
        .try_clone_to_owned()
        // An event descriptor is no pipe, but is waited for like one.
        .and_then(Receiver::from_owned_fd_unchecked);
    match watched {
        Ok(watched) => {
            while !doors.cancel.is_cancelled() {
                if watched.readable().await.is_err() {
                    break;
                }
            }
        }
        // Without a descriptor to watch, look now and then.
        Err(_) => {
            while !doors.cancel.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn sent(tool: Tool) -> Sent {
    Sent {
        name: tool.name.into_owned(),
        title: tool.title,
        description: tool.description.map(std::borrow::Cow::into_owned),
        input_schema: (*tool.input_schema).clone(),
        annotations: tool.annotations.and_then(|hints| serde_json::to_value(hints).ok()),
    }
}

/// The text of an answer, and its structure where it has one.
fn content_of(result: &CallToolResult) -> (String, Option<Value>) {
    let texts: Vec<String> = result.content.iter().map(block_text).collect();
    let structured = result.structured_content.clone().or_else(|| match result.content.as_slice() {
        [ContentBlock::Text(only)] => serde_json::from_str::<Value>(&only.text)
            .ok()
            .filter(|value| value.is_object() || value.is_array()),
        _ => None,
    });
    (texts.join("\n"), structured)
}

fn block_text(block: &ContentBlock) -> String {
    let described = |what: &str, mime: &str, length: usize| {
        format!("[{what} of type {}, {length} characters of base64]", shown(mime, 60))
    };
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => described("image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => described("sound", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, blob, .. } => {
                format!("[resource {}, {} characters of base64]", shown(uri, 200), blob.len())
            }
            _ => "[resource]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[link to {}]", shown(&link.uri, 200)),
        _ => "[content of an unknown kind]".to_owned(),
    }
}
