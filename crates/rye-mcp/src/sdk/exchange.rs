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

use super::client_handler::RefusingClient;
use super::fault::{Fault, FaultReason};
use super::stderr::StderrTail;
use super::stdio::StdioTransport;
use super::{CLOSE_TIMEOUT, ToolListValidator, http};
use crate::error::{McpError, truncate_line};
use crate::host::{McpHost, ServerProcess};
use crate::server::{McpEndpoint, McpServer, McpTransport, ServerCommand};
use crate::tools::{CallOutcome, RawTool, ToolList};

const MAX_PAGES: usize = 100;
const MAX_LISTED_TOOLS: usize = 10_000;

/// The tool to call once the list was judged.
pub(super) struct ToolCall<'a> {
    pub(super) tool_name: &'a str,
    pub(super) arguments: &'a Map<String, Value>,
    pub(super) validate: ToolListValidator<'a>,
}

type ExchangeResult = (ToolList, Option<CallOutcome>);

/// Why one attempt failed.
enum AttemptError {
    /// There is nothing more to try.
    Final(McpError),
    /// The server does not know the handshake; the newer protocol has none.
    NoHandshake(McpError),
}

/// Why the conversation stopped.
enum StopReason {
    Cancelled,
    TimedOut,
    Closed,
    Reason(FaultReason),
    Error(McpError),
    NoHandshake(McpError),
}

/// Holds the exchange.
pub(super) fn run_exchange(
    server: &McpServer,
    host: &McpHost<'_>,
    call: Option<&ToolCall<'_>>,
) -> Result<ExchangeResult, McpError> {
    let unreachable =
        |reason: String| McpError::Unreachable { server: server.id.clone(), reason, stderr: String::new() };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("mcp".to_owned())
            .spawn_scoped(scope, || run_on_thread(server, host, call))
            .map_err(|error| unreachable(format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(unreachable("the client itself failed".to_owned())))
    })
}

fn run_on_thread(
    server: &McpServer,
    host: &McpHost<'_>,
    call: Option<&ToolCall<'_>>,
) -> Result<ExchangeResult, McpError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        McpError::Unreachable { server: server.id.clone(), reason: error.to_string(), stderr: String::new() }
    })?;
    let deadline = Instant::now() + host.timeout;
    let result = runtime.block_on(async {
        match attempt(server, host, call, ClientLifecycleMode::Initialize, deadline).await {
            Err(AttemptError::NoHandshake(_)) => {
                let newer =
                    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
                attempt(server, host, call, newer, deadline).await
            }
            other => other,
        }
    });
    // A look-up of a host name may still be running; it is not waited for.
    runtime.shutdown_background();
    result.map_err(|failure| match failure {
        AttemptError::Final(error) | AttemptError::NoHandshake(error) => error,
    })
}

async fn attempt(
    server: &McpServer,
    host: &McpHost<'_>,
    call: Option<&ToolCall<'_>>,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
) -> Result<ExchangeResult, AttemptError> {
    let exchange = Exchange { server, host, call, lifecycle, deadline, fault: Fault::default() };
    if host.cancel.is_cancelled() {
        return Err(exchange.to_attempt_error(StopReason::Cancelled, String::new()));
    }
    match &server.transport {
        McpTransport::Stdio(command) => exchange.over_stdio(command).await,
        McpTransport::Http(endpoint) => exchange.over_http(endpoint).await,
    }
}

struct Exchange<'a> {
    server: &'a McpServer,
    host: &'a McpHost<'a>,
    call: Option<&'a ToolCall<'a>>,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
    fault: Fault,
}

impl Exchange<'_> {
    async fn over_stdio(self, command: &ServerCommand) -> Result<ExchangeResult, AttemptError> {
        let unreachable = |reason: String| {
            self.to_attempt_error(
                StopReason::Reason(FaultReason::Unreachable(truncate_line(&reason, 500))),
                String::new(),
            )
        };
        let ServerProcess { stdin, stdout, stderr, guard } =
            self.host.spawner.spawn(self.server, command).map_err(unreachable)?;
        let opened = (|| {
            Ok((Sender::from_owned_fd(stdin)?, Receiver::from_owned_fd(stdout)?, StderrTail::new(stderr)?))
        })();
        let (stdin, stdout, mut tail) = opened
            .map_err(|error: std::io::Error| unreachable(format!("its pipes cannot be used: {error}")))?;
        let result = self.run_until_stop(StdioTransport::new(stdin, stdout, self.fault.clone())).await;
        match result {
            Ok(answer) => {
                drop(guard);
                Ok(answer)
            }
            Err(stop) => {
                if matches!(stop, StopReason::Closed) {
                    tail.wait_closed().await;
                }
                drop(guard);
                tail.wait_closed().await;
                Err(self.to_attempt_error(stop, tail.text()))
            }
        }
    }

    async fn over_http(self, endpoint: &McpEndpoint) -> Result<ExchangeResult, AttemptError> {
        let denied = |reason: String| {
            AttemptError::Final(McpError::Denied {
                server: self.server.id.clone(),
                reason: truncate_line(&reason, 500),
            })
        };
        let McpHost { http: web, .. } = self.host;
        web.allow(self.server, &endpoint.url).map_err(denied)?;
        let client = web.build_client(self.server, &endpoint.url, http::client_builder()).map_err(denied)?;
        let http_transport = http::HttpTransport::new(client, endpoint, self.fault.clone());
        let mut config = StreamableHttpClientTransportConfig::with_uri(endpoint.url.as_str());
        config.reinit_on_expired_session = false;
        config.allow_stateless = true;
        let transport = StreamableHttpClientTransport::with_client(http_transport, config);
        self.run_until_stop(transport).await.map_err(|stop| self.to_attempt_error(stop, String::new()))
    }

    /// Talks until there is an answer, a fault, the deadline, or a request to stop.
    async fn run_until_stop<T: SdkTransport<RoleClient> + 'static>(
        &self,
        transport: T,
    ) -> Result<ExchangeResult, StopReason> {
        tokio::select! {
            biased;
            result = self.run_session(transport) => result.map_err(|stop| match (self.fault.reason(), stop) {
                (_, stop @ (StopReason::NoHandshake(_) | StopReason::Cancelled)) | (None, stop) => stop,
                (Some(reason), _) => StopReason::Reason(reason),
            }),
            () = self.fault.wait_raised() => {
                Err(self.fault.reason().map_or(StopReason::Closed, StopReason::Reason))
            }
            () = wait_for_cancel(self.host) => Err(StopReason::Cancelled),
            () = tokio::time::sleep_until(self.deadline) => Err(StopReason::TimedOut),
        }
    }

    async fn run_session<T: SdkTransport<RoleClient> + 'static>(
        &self,
        transport: T,
    ) -> Result<ExchangeResult, StopReason> {
        let refusals = RefusingClient::new(self.host.progress.clone());
        let mut running = serve_client_with_lifecycle(refusals.clone(), transport, self.lifecycle.clone())
            .await
            .map_err(|error| self.handshake_stop_reason(error))?;
        let answer = self.list_and_call(&running, &refusals).await?;
        // A process that does not end in time is ended by the guard.
        let _ = running.close_with_timeout(CLOSE_TIMEOUT * 2).await;
        Ok(answer)
    }

    async fn list_and_call(
        &self,
        running: &RunningService<RoleClient, RefusingClient>,
        refusals: &RefusingClient,
    ) -> Result<ExchangeResult, StopReason> {
        if let Some(info) = running.peer_info()
            && !ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version)
        {
            let version = truncate_line(info.protocol_version.as_str(), 40);
            return Err(StopReason::Reason(FaultReason::Protocol(format!(
                "it speaks the unknown version `{version}`"
            ))));
        }
        let list = ToolList::new(self.list_tools(running).await?)
            .map_err(|reason| StopReason::Reason(FaultReason::Protocol(reason)))?;
        let Some(call) = self.call else { return Ok((list, None)) };
        (call.validate)(&list).map_err(StopReason::Error)?;
        let Some(tool) = list.get(call.tool_name) else {
            return Err(StopReason::Error(McpError::ToolNotFound {
                server: self.server.id.clone(),
                tool: truncate_line(call.tool_name, 128),
                known: list.tools.iter().take(20).map(|tool| format!("`{}`", tool.name)).collect(),
            }));
        };
        let params =
            CallToolRequestParams::new(call.tool_name.to_owned()).with_arguments(call.arguments.clone());
        let result =
            match running.call_tool_once(params).await.map_err(|error| self.service_stop_reason(error))? {
                CallToolResponse::Complete(result) => result,
                CallToolResponse::InputRequired(_) => return Err(self.input_required("more input")),
                CallToolResponse::Task(_) => return Err(self.input_required("a task to be followed")),
                _ => return Err(self.input_required("something unknown")),
            };
        let (content, structured) = extract_content(&result);
        let outcome = CallOutcome {
            is_error: result.is_error == Some(true),
            content,
            structured,
            tool_digest: tool.digest,
            refused: refusals.refused(),
        };
        Ok((list, Some(outcome)))
    }

    async fn list_tools(
        &self,
        running: &RunningService<RoleClient, RefusingClient>,
    ) -> Result<Vec<RawTool>, StopReason> {
        let mut tools = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let page =
                running.list_tools(Some(page)).await.map_err(|error| self.service_stop_reason(error))?;
            tools.extend(page.tools.into_iter().map(raw_tool));
            cursor = page.next_cursor;
            if cursor.is_none() || tools.len() > MAX_LISTED_TOOLS {
                return Ok(tools);
            }
        }
        Err(StopReason::Reason(FaultReason::Protocol(format!(
            "its list of tools has more than {MAX_PAGES} pages"
        ))))
    }

    fn input_required(&self, input: &str) -> StopReason {
        StopReason::Error(McpError::InputRequired { server: self.server.id.clone(), what: input.to_owned() })
    }

    fn error_response(&self, error: &rmcp::ErrorData) -> McpError {
        McpError::Refused {
            server: self.server.id.clone(),
            code: error.code.0,
            message: truncate_line(&error.message, 500),
        }
    }

    fn handshake_stop_reason(&self, error: ClientInitializeError) -> StopReason {
        match error {
            ClientInitializeError::JsonRpcError(error) => {
                let is_unknown = matches!(
                    error.code,
                    ErrorCode::METHOD_NOT_FOUND | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
                );
                let error_response = self.error_response(&error);
                if is_unknown {
                    StopReason::NoHandshake(error_response)
                } else {
                    StopReason::Error(error_response)
                }
            }
            ClientInitializeError::ConnectionClosed(_) => StopReason::Closed,
            ClientInitializeError::TransportError { .. } => StopReason::Closed,
            other => StopReason::Reason(FaultReason::Protocol(truncate_line(&other.to_string(), 300))),
        }
    }

    fn service_stop_reason(&self, error: ServiceError) -> StopReason {
        match error {
            ServiceError::McpError(error) => StopReason::Error(self.error_response(&error)),
            ServiceError::TransportClosed
            | ServiceError::TransportSend(_)
            | ServiceError::Cancelled { .. } => StopReason::Closed,
            ServiceError::UnexpectedResponse => StopReason::Reason(FaultReason::Protocol(
                "its response does not match the request".to_owned(),
            )),
            other => StopReason::Reason(FaultReason::Protocol(truncate_line(&other.to_string(), 300))),
        }
    }

    fn to_attempt_error(&self, stop: StopReason, stderr: String) -> AttemptError {
        let server = self.server.id.clone();
        AttemptError::Final(match stop {
            StopReason::Cancelled => McpError::Cancelled { server },
            StopReason::TimedOut => {
                McpError::TimedOut { server, seconds: self.host.timeout.as_secs(), stderr }
            }
            StopReason::Closed => McpError::Closed { server, stderr },
            StopReason::Reason(FaultReason::Protocol(reason)) => {
                McpError::Protocol { server, reason, stderr }
            }
            StopReason::Reason(FaultReason::Unreachable(reason)) => {
                McpError::Unreachable { server, reason, stderr }
            }
            StopReason::Error(error) => error,
            StopReason::NoHandshake(error) => return AttemptError::NoHandshake(error),
        })
    }
}

async fn wait_for_cancel(host: &McpHost<'_>) {
    use std::os::fd::AsFd;
    let watched = host
        .cancel
        .as_fd()
        .try_clone_to_owned()
        // An event descriptor is not a pipe, but is waited for like one.
        .and_then(Receiver::from_owned_fd_unchecked);
    match watched {
        Ok(watched) => {
            while !host.cancel.is_cancelled() {
                if watched.readable().await.is_err() {
                    break;
                }
            }
        }
        // Without a descriptor to watch, look now and then.
        Err(_) => {
            while !host.cancel.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn raw_tool(tool: Tool) -> RawTool {
    RawTool {
        name: tool.name.into_owned(),
        title: tool.title,
        description: tool.description.map(std::borrow::Cow::into_owned),
        input_schema: (*tool.input_schema).clone(),
        annotations: tool.annotations.and_then(|hints| serde_json::to_value(hints).ok()),
    }
}

/// The text of an answer, and its structure where it has one.
fn extract_content(result: &CallToolResult) -> (String, Option<Value>) {
    let texts: Vec<String> = result.content.iter().map(block_text).collect();
    let structured = result.structured_content.clone().or_else(|| match result.content.as_slice() {
        // It may be the answer of a policy: with a key that is there twice it stays text.
        [ContentBlock::Text(only)] => rye_item::json::parse_unique(only.text.as_bytes())
            .ok()
            .filter(|value| value.is_object() || value.is_array()),
        _ => None,
    });
    (texts.join("\n"), structured)
}

fn block_text(block: &ContentBlock) -> String {
    let describe = |what: &str, mime: &str, length: usize| {
        format!("[{what} of type {}, {length} characters of base64]", truncate_line(mime, 60))
    };
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => describe("image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => describe("sound", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, blob, .. } => {
                format!("[resource {}, {} characters of base64]", truncate_line(uri, 200), blob.len())
            }
            _ => "[resource]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[link to {}]", truncate_line(&link.uri, 200)),
        _ => "[content of an unknown kind]".to_owned(),
    }
}
