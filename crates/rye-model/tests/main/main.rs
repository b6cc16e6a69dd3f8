//! Providers against a model server on loopback.
#![allow(clippy::expect_used, reason = "in tests a failed expectation is a failed test")]

mod errors;
mod requests;
mod responses;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rye_model::{
    ChatMessage, ModelEndpoint, ModelError, ModelProvider as _, ModelRequest, ModelResponse, ProviderFile,
    ResponseDelta, ToolDefinition,
};
use rye_test::fake_model::FakeModel;
use serde_json::{Value, json};

#[test]
fn every_file_here_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}

const PROTOCOLS: [&str; 4] = ["anthropic", "openai", "gemini", "ollama"];

const API_KEY: &str = "sk-not-to-be-seen";

/// Where a protocol is spoken below `base`.
fn url(protocol: &str, base: &str) -> String {
    match protocol {
        "anthropic" => format!("{base}/v1/messages"),
        "openai" => format!("{base}/v1/chat/completions"),
        "gemini" => format!("{base}/v1beta/models/{{model}}:generateContent"),
        _ => format!("{base}/api/chat"),
    }
}

/// The endpoint of a provider file, with `further` keys.
fn endpoint(protocol: &str, base: &str, extra: &Value) -> ModelEndpoint {
    let auth = match protocol {
        "openai" => json!({"type": "bearer", "variable": "KEY"}),
        _ => json!({"type": "api_key", "variable": "KEY"}),
    };
    let file = json!({"protocol": protocol, "url": url(protocol, base), "auth": auth, "timeout": 30});
    let file = rye_item::merge::merge(&file, extra);
    let file = ProviderFile::from_fields(file.as_object().expect("a map")).expect("a provider");
    let environment = BTreeMap::from([("KEY".to_owned(), API_KEY.to_owned())]);
    file.connect("m", &environment, &lillux::http::HttpClient::default()).expect("an endpoint")
}

fn fake_endpoint(protocol: &str, model: &FakeModel) -> ModelEndpoint {
    endpoint(protocol, &model.url(), &json!({}))
}

fn user_message(text: &str) -> Arc<ChatMessage> {
    Arc::new(ChatMessage::user(text.to_owned()))
}

fn request(wants_stream: bool) -> ModelRequest {
    let tool = ToolDefinition {
        name: "n".to_owned(),
        description: "D".to_owned(),
        schema: json!({"type": "object", "properties": {"k": {"type": "integer"}}}),
        target: json!({"primary": "execute", "item_type": "tool", "item_id": "secret/place"}),
    };
    ModelRequest {
        model: "m".to_owned(),
        system: None,
        messages: vec![user_message("U")],
        tools: Arc::from([tool]),
        max_output_tokens: 100,
        settings: Arc::default(),
        files: Arc::default(),
        wants_stream,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The answer to a request, and what came on the way.
async fn send(
    endpoint: &ModelEndpoint,
    request: &ModelRequest,
) -> (Result<ModelResponse, ModelError>, Vec<ResponseDelta>) {
    let deltas = Mutex::new(Vec::new());
    let collect = |delta| deltas.lock().expect("the deltas").push(delta);
    let response = endpoint.complete(request, &collect).await;
    (response, deltas.into_inner().expect("the deltas"))
}

fn send_blocking(
    endpoint: &ModelEndpoint,
    request: &ModelRequest,
) -> (Result<ModelResponse, ModelError>, Vec<ResponseDelta>) {
    runtime().block_on(send(endpoint, request))
}

/// The failure of a request.
fn expect_error(endpoint: &ModelEndpoint, request: &ModelRequest) -> ModelError {
    let failure = send_blocking(endpoint, request).0.expect_err("no answer");
    let text = format!("{failure:?} {failure}");
    assert!(!text.contains(API_KEY), "{text}");
    failure
}
