//! What a server may ask of this client: nothing but a ping. Models, people and folders are not lent to foreign servers.

// Sampling and roots are deprecated in the protocol; servers of older versions still ask.
#![expect(deprecated)]

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ErrorData;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, CustomRequest,
    CustomResult, ElicitRequestParams, ElicitResult, ErrorCode, Implementation, ListRootsResult,
    ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

use crate::error::truncate_line;
use crate::host::ProgressHandler;

const MAX_RECORDED: usize = 20;

/// Answers a server's requests, all with no, and remembers them.
#[derive(Clone, Default)]
pub(super) struct RefusingClient {
    pub(super) progress: Option<ProgressHandler>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl RefusingClient {
    pub(super) fn new(progress: Option<ProgressHandler>) -> Self {
        Self { progress, refused: Arc::default() }
    }

    /// What was refused so far.
    pub(super) fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse<T>(&self, method: &str) -> Result<T, ErrorData> {
        let mut asked = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let method = truncate_line(method, 80);
        if asked.len() < MAX_RECORDED && !asked.contains(&method) {
            asked.push(method.clone());
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("`{method}` is refused by this client"),
            None,
        ))
    }
}

impl ClientHandler for RefusingClient {
    async fn create_message(
        &self,
        _params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.refuse("sampling/createMessage")
    }

    async fn list_roots(&self, _context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.refuse("roots/list")
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.refuse("elicitation/create")
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        self.refuse(&request.method)
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        if let Some(progress) = &self.progress {
            let share = match params.total {
                Some(total) => format!("{} of {total}", params.progress),
                None => params.progress.to_string(),
            };
            let message =
                params.message.map_or_else(String::new, |text| format!(": {}", truncate_line(&text, 200)));
            progress(&format!("{share}{message}"));
        }
    }

    fn get_info(&self) -> ClientConfig {
        let client = Implementation::new("rye", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), client)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
