//! One client: what it may ask, and how its requests become verbs.
#![expect(deprecated, reason = "clients of the older protocol subscribe and hear warnings this way")]

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse, Implementation, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext};
use rmcp::{ErrorData, ServerHandler};
use rye_agent::redact::Redactor;
use rye_engine::{Code, Engine, Error, Result, agent_actions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::answer::{self, Detail};
use crate::answer_size;
use crate::changes::{self, ChangeNotifier};
use crate::consent::{self, CallError, ConsentRequest, ElicitationMode};
use crate::exposed::{self, ExposedTool, ExposedTools};
use crate::notifications::{self, ClientNotifier};
use crate::project_engines::ProjectEngines;
use crate::threads::ThreadService;
use crate::worker_pool::{Lane, WorkerPool};
use crate::{ServerSetup, catalog, redaction, tool_calls, tools};

/// Resources one client may subscribe to.
const MAX_SUBSCRIPTIONS: usize = 1024;
/// How often a call may ask its user something.
const MAX_CONSENT_REQUESTS: usize = 3;

/// What all clients of this process share.
pub(crate) struct ServerState {
    pub(crate) engines: Arc<ProjectEngines>,
    pub(crate) threads: Arc<ThreadService>,
    pub(crate) pool: WorkerPool,
    pub(crate) changes: ChangeNotifier,
    pub(crate) exposed: ExposedTools,
    tools: Vec<Tool>,
}

impl ServerState {
    pub(crate) fn new(setup: ServerSetup) -> Arc<Self> {
        Arc::new(Self {
            engines: Arc::new(ProjectEngines::new(setup)),
            threads: Arc::default(),
            pool: WorkerPool::new(),
            changes: ChangeNotifier::new(),
            exposed: ExposedTools::default(),
            tools: tools::all(),
        })
    }
}

/// One client. Clones are the same client.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) state: Arc<ClientState>,
}

/// What is remembered of a client.
pub(crate) struct ClientState {
    /// Resources it subscribed to.
    pub(crate) subscriptions: Mutex<BTreeSet<String>>,
    /// What it wants to hear.
    pub(crate) level: Mutex<LoggingLevel>,
    is_forwarding: AtomicBool,
    /// Cancelled when the client is gone.
    pub(crate) disconnected: CancellationToken,
    _disconnect_guard: DropGuard,
}

impl Session {
    pub(crate) fn new(shared: Arc<ServerState>, disconnected: CancellationToken) -> Self {
        let state = ClientState {
            subscriptions: Mutex::default(),
            level: Mutex::new(LoggingLevel::Warning),
            is_forwarding: AtomicBool::new(false),
            _disconnect_guard: disconnected.clone().drop_guard(),
            disconnected,
        };
        Self { shared, state: Arc::new(state) }
    }

    /// Runs something quick on the engine of the server's own project. What comes of it, a failure too, is redacted.
    async fn run_quick<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Engine>) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, ErrorData> {
        if self.shared.engines.setup().callback.is_some() {
            let error = Error::new(Code::NoToken, "only tools are available inside a tool sandbox");
            return Err(catalog::protocol_error(&error));
        }
        let shared = Arc::clone(&self.shared);
        let done = self.shared.pool.run(Lane::Quick, move || {
            let redactor = shared.engines.redactor_for(None);
            let worked = shared.engines.engine(None).and_then(|opened| work(&opened.engine));
            let answer = worked.and_then(|value| redaction::redact_any(&redactor, value));
            Ok(answer.map_err(|error| redaction::redact_error(&redactor, catalog::protocol_error(&error))))
        });
        done.await.map_err(|error| catalog::protocol_error(&error))?
    }

    /// Calls a tool; asks the user where only they can say yes, and then calls it again.
    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse> {
        let mut consents = consent::consents_from_responses(
            request.input_responses.as_ref(),
            request.request_state.as_deref(),
        )?;
        let mut arguments = request.arguments.clone().unwrap_or_default();
        let detail = answer::take_detail(&mut arguments)?;
        let failed =
            async |error: &Error| self.error_response(&request.name, detail, &arguments, error).await;
        let mut last = Error::new(Code::ConsentNeeded, "this would need to be asked again and again");
        for _ in 0..=MAX_CONSENT_REQUESTS {
            let notifier = ClientNotifier::new(context, &self.state);
            let outcome =
                tool_calls::call(self, &request.name, arguments.clone(), &consents, context, &notifier).await;
            let request_for_consent = match outcome {
                Ok(value) => {
                    let value = self.redact(&arguments, value).await?;
                    let value = answer::shorten(&request.name, detail, value);
                    let value = answer_size::cut(&request.name, detail, value);
                    return Ok(answer_size::call_result(value, false).into());
                }
                Err(CallError::Failed(error)) => return Ok(failed(&error).await),
                Err(CallError::Forwarded(response)) => {
                    return Ok(answer_size::call_result(response, true).into());
                }
                Err(CallError::NeedsConsent(request_for_consent)) => {
                    self.shown(&arguments, *request_for_consent).await?
                }
            };
            // After too many prompts, returns the fallback error.
            last.clone_from(&request_for_consent.fallback);
            if !consents.contains(&request_for_consent.subject) {
                let subject = match self.elicitation_mode(context).await? {
                    ElicitationMode::None => {
                        return Ok(failed(&request_for_consent.fallback).await);
                    }
                    ElicitationMode::Retry => {
                        return Ok(consent::input_required(&request_for_consent)?.into());
                    }
                    ElicitationMode::Request => consent::elicit(context, &request_for_consent).await?,
                };
                consents = consents.with(subject);
            }
            if let Some(document) = request_for_consent.trust_document.clone() {
                let project = arguments.get("project_path").and_then(Value::as_str).map(str::to_owned);
                let shared = Arc::clone(&self.shared);
                let trusting = self.shared.pool.run(Lane::Quick, move || {
                    consent::trust_document_key(&shared.engines.engine(project.as_deref())?.engine, &document)
                });
                trusting.await?;
            }
        }
        Ok(failed(&last).await)
    }

    /// A question without secrets. One that shows a text to be agreed to must show all of it.
    async fn shown(
        &self,
        arguments: &Map<String, Value>,
        question: ConsentRequest,
    ) -> Result<ConsentRequest> {
        let redactor = self.redactor(arguments).await?;
        let message = redactor.redact_text(&question.message).into_owned();
        if question.shows_text && message != question.message {
            let why = "its text holds what looks like a secret, and is not shown over MCP";
            return Err(question.refused(why));
        }
        Ok(ConsentRequest { message, ..question })
    }

    /// The redactor for what is said of the project that a call names.
    async fn redactor(&self, arguments: &Map<String, Value>) -> Result<Arc<Redactor>> {
        let project = arguments.get("project_path").and_then(Value::as_str).map(str::to_owned);
        let shared = Arc::clone(&self.shared);
        let work = move || Ok(shared.engines.redactor_for(project.as_deref()));
        self.shared.pool.run(Lane::Quick, work).await
    }

    /// A failure of `tool` as an agent reads it, without secrets.
    async fn error_response(
        &self,
        tool: &str,
        detail: Detail,
        arguments: &Map<String, Value>,
        error: &Error,
    ) -> CallToolResponse {
        let value = agent_actions::with_agent_hints(error.clone()).to_value(None);
        let value = match self.redact(arguments, value).await {
            Ok(value) => value,
            // The server is ending, or broke: that is said, and nothing else.
            Err(error) => error.to_value(None),
        };
        let value = answer_size::cut(tool, detail, answer::shorten(tool, detail, value));
        answer_size::call_result(value, true).into()
    }

    /// The exposed tools as they are now, without secrets. None where the project cannot be opened: the first call says why.
    async fn list_exposed(&self) -> Arc<[ExposedTool]> {
        if self.shared.engines.setup().callback.is_some() {
            return Arc::default();
        }
        let shared = Arc::clone(&self.shared);
        let list = self.shared.pool.run(Lane::Quick, move || {
            let patterns = shared.engines.exposed_patterns()?;
            let opened = shared.engines.engine(None)?;
            let redactor = shared.engines.redactor(&opened.engine)?;
            let mut exposed = exposed::find_exposed(&opened.engine, &patterns)?;
            for one in &mut exposed {
                one.tool = redaction::redact_any(&redactor, one.tool.clone())?;
            }
            Ok(shared.exposed.replace(exposed))
        });
        let exposed = list.await.unwrap_or_default();
        if !exposed.is_empty() {
            changes::start_watching(&self.shared);
        }
        exposed
    }

    /// The exposed tool of this name: as it was listed, or else as it is now.
    async fn find_exposed(&self, name: &str) -> Option<ExposedTool> {
        if let Some(exposed) = self.shared.exposed.find(name) {
            return Some(exposed);
        }
        self.list_exposed().await;
        self.shared.exposed.find(name)
    }

    /// How the user of this request's client can be asked.
    pub(crate) async fn elicitation_mode(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<ElicitationMode> {
        let shared = Arc::clone(&self.shared);
        let clients = self.shared.pool.run(Lane::Quick, move || shared.engines.accepting_clients()).await?;
        Ok(consent::elicitation_mode(context, &clients))
    }

    /// An answer without secrets. Inside a tool the thread has removed them.
    async fn redact(&self, arguments: &Map<String, Value>, response: Value) -> Result<Value> {
        if self.shared.engines.setup().callback.is_some() {
            return Ok(response);
        }
        Ok(redaction::redact_response(&*self.redactor(arguments).await?, response))
    }

    fn forward_changes(&self, peer: rmcp::Peer<RoleServer>) {
        if !self.state.is_forwarding.swap(true, Ordering::SeqCst) {
            tokio::spawn(notifications::forward(
                self.shared.changes.subscribe(),
                peer,
                Arc::downgrade(&self.state),
            ));
        }
    }
}

/// A page's cursor.
fn cursor(request: Option<PaginatedRequestParams>) -> Option<String> {
    request.and_then(|request| request.cursor)
}

impl ServerHandler for Session {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_completions()
            .enable_logging()
            .build();
        let setup = self.shared.engines.setup();
        let capabilities = match setup.callback {
            Some(_) => ServerCapabilities::builder().enable_tools().build(),
            None => capabilities,
        };
        let version = setup.version;
        let server = Implementation::new("rye", version).with_title("RYE");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(tools::INSTRUCTIONS)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.forward_changes(context.peer);
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let exposed = self.list_exposed().await;
        let own = self.shared.tools.iter().cloned();
        let all = own.chain(exposed.iter().map(|exposed| exposed.tool.clone())).collect();
        Ok(ListToolsResult::with_all_items(all))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let own = self.shared.tools.iter().find(|tool| tool.name == name).cloned();
        own.or_else(|| self.shared.exposed.find(name).map(|exposed| exposed.tool))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let request = if self.shared.tools.iter().any(|tool| tool.name == request.name) {
            request
        } else if let Some(exposed) = self.find_exposed(&request.name).await {
            exposed.as_execution(request)
        } else {
            let name = rye_item::text::one_line(&request.name);
            let known =
                self.shared.tools.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>().join(", ");
            let message = format!("unknown tool `{name}`; tools are: {known}");
            return Err(ErrorData::new(ErrorCode::INVALID_PARAMS, message, None));
        };
        let (name, arguments) = (request.name.clone(), request.arguments.clone().unwrap_or_default());
        match self.call(request, &context).await {
            Ok(answer) => Ok(answer),
            Err(error) => Ok(self.error_response(&name, Detail::Brief, &arguments, &error).await),
        }
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListPromptsResult, ErrorData> {
        changes::start_watching(&self.shared);
        let cursor = cursor(request);
        let page = self.run_quick(move |engine| Ok(catalog::prompts(engine, cursor.as_deref()))).await?;
        Ok(ListPromptsResult { next_cursor: page.next, ..ListPromptsResult::with_all_items(page.items) })
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<GetPromptResponse, ErrorData> {
        let inputs = request.arguments.unwrap_or_default();
        let prompt = move |engine: &Arc<Engine>| catalog::render_prompt(engine, &request.name, inputs);
        Ok(self.run_quick(prompt).await?.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        changes::start_watching(&self.shared);
        let cursor = cursor(request);
        let page = self.run_quick(move |engine| Ok(catalog::resources(engine, cursor.as_deref()))).await?;
        Ok(ListResourcesResult { next_cursor: page.next, ..ListResourcesResult::with_all_items(page.items) })
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(catalog::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        let resource = move |engine: &Arc<Engine>| catalog::read_resource(engine, &request.uri);
        Ok(self.run_quick(resource).await?.into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<(), ErrorData> {
        catalog::parse_resource_uri(&request.uri).map_err(|error| catalog::protocol_error(&error))?;
        let mut subscriptions = self.state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        if subscriptions.len() >= MAX_SUBSCRIPTIONS && !subscriptions.contains(&request.uri) {
            return Err(ErrorData::invalid_request("too many subscriptions", None));
        }
        subscriptions.insert(request.uri);
        drop(subscriptions);
        changes::start_watching(&self.shared);
        self.forward_changes(context.peer);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<(), ErrorData> {
        self.state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let mut accepted = requested.clone();
        if let Some(uris) = &mut accepted.resource_subscriptions {
            uris.retain(|uri| catalog::parse_resource_uri(uri).is_ok());
            uris.truncate(MAX_SUBSCRIPTIONS);
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> std::result::Result<(), ErrorData> {
        changes::start_watching(&self.shared);
        notifications::stream(self.shared.changes.subscribe(), &context).await;
        Ok(())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<CompleteResult, ErrorData> {
        let completion = self.run_quick(move |engine| Ok(catalog::completions(engine, &request))).await?;
        Ok(CompleteResult::new(completion))
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<(), ErrorData> {
        *self.state.level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }

    fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> impl Future<Output = std::result::Result<CustomResult, ErrorData>> + Send + '_ {
        // A known method comes here when its parameters make no sense.
        let known =
            ["tools/call", "prompts/get", "resources/read", "completion/complete", "logging/setLevel"];
        let known = known.contains(&request.method.as_str())
            || ["resources/subscribe", "resources/unsubscribe"].contains(&request.method.as_str());
        let method = rye_item::text::one_line(&request.method);
        std::future::ready(Err(if known {
            ErrorData::invalid_params(format!("the parameters of {method} are not valid"), None)
        } else {
            ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method {method}"), None)
        }))
    }
}
