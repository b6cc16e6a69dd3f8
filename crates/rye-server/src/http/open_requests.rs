//! The requests that are being answered, by session and id: an id is not taken again while it is.
//!
//! The protocol finds the stream of an answer by the request's id. Of two requests with one id, the first would never be
//! answered, and its stream would stay open.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use rye_item::json::find_duplicate_key;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::MAX_BODY_BYTES;

/// What JSON-RPC calls a message that is not a request.
const INVALID_REQUEST: i32 = -32600;
/// What JSON-RPC calls a message that cannot be read.
const PARSE_ERROR: i32 = -32700;
/// Longer ids are no ids.
const MAX_ID_BYTES: usize = 1024;

/// A session and the id of a request, as JSON.
type RequestKey = (String, String);

/// The requests that are being answered.
#[derive(Clone, Default)]
pub(super) struct OpenRequests(Arc<Mutex<HashSet<RequestKey>>>);

/// One of them, until it is dropped.
pub(super) struct OpenRequest {
    all: OpenRequests,
    key: RequestKey,
}

/// What of a message says whether it is a request.
#[derive(Deserialize)]
struct MessageHead {
    id: Option<Value>,
    method: Option<IgnoredAny>,
}

impl OpenRequests {
    /// Enters a request of a session; refuses one whose id another request of the session has.
    pub(super) async fn admit(
        &self,
        request: Request,
    ) -> Result<(Request, Option<OpenRequest>), Box<Response>> {
        let session = request.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        let Some(session) = session.filter(|_| request.method() == Method::POST).map(str::to_owned) else {
            return Ok((request, None));
        };
        let (parts, body) = request.into_parts();
        let Ok(bytes) = to_bytes(body, MAX_BODY_BYTES).await else {
            let refusal = (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large, or broke off\n");
            return Err(Box::new(refusal.into_response()));
        };
        if let Some(problem) = find_duplicate_key(&bytes) {
            return Err(Box::new(unreadable(&problem)));
        }
        let id = serde_json::from_slice(&bytes).ok().and_then(|head: MessageHead| head.id.zip(head.method));
        let request = Request::from_parts(parts, Body::from(bytes));
        let Some((id, _)) = id.filter(|(id, _)| id.is_string() || id.is_number()) else {
            // Not a request: what it is, the protocol says.
            return Ok((request, None));
        };
        match self.enter(session, &id) {
            Some(open) => Ok((request, Some(open))),
            None => Err(Box::new(refusal(&id))),
        }
    }

    fn enter(&self, session: String, id: &Value) -> Option<OpenRequest> {
        let key = (session, id.to_string());
        let is_new = key.1.len() <= MAX_ID_BYTES
            && self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        is_new.then(|| OpenRequest { all: self.clone(), key })
    }
}

impl OpenRequest {
    /// Keeps the request open as long as its answer is sent.
    pub(super) fn until_sent(self, response: Response) -> Response {
        response.map(|body| {
            let parts = body.into_data_stream().map(move |part| {
                let _ = &self;
                part
            });
            Body::from_stream(parts)
        })
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

fn refusal(id: &Value) -> Response {
    let message = "a request with this id is still being answered in this session, or the id is too long";
    error_response(id, INVALID_REQUEST, message)
}

/// The refusal of a message with a key that is there twice: it may be the answer to a question.
fn unreadable(problem: &str) -> Response {
    error_response(&Value::Null, PARSE_ERROR, &format!("this has a {problem}"))
}

fn error_response(id: &Value, code: i32, message: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}});
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::BAD_REQUEST, content_type, body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_with_duplicate_keys_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let admit = |body: &'static str| {
            let request = Request::post("/mcp").header("mcp-session-id", "a").body(Body::from(body));
            runtime.block_on(OpenRequests::default().admit(request.expect("a request"))).map(|_| ())
        };
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline","action":"accept"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#,
        ] {
            let refused = admit(body).expect_err("refused");
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{body}");
        }
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}"#;
        assert!(admit(answer).is_ok());
    }

    #[test]
    fn ids_are_taken_once_per_session() {
        let all = OpenRequests::default();
        let first = all.enter("a".to_owned(), &json!(7)).expect("new");
        assert!(all.enter("a".to_owned(), &json!(7)).is_none());
        // A text is another id than the number it shows.
        let others = [("a", json!("7")), ("a", json!(8)), ("b", json!(7))];
        let others = others.map(|(session, id)| all.enter(session.to_owned(), &id).expect("another"));
        drop(first);
        assert!(all.enter("a".to_owned(), &json!(7)).is_some());
        assert!(all.enter("a".to_owned(), &json!("x".repeat(MAX_ID_BYTES))).is_none());
        drop(others);
        assert!(all.0.lock().expect("the ids").is_empty());
    }
}
