//! Providers against a model server on loopback.
#![allow(clippy::expect_used, reason = "in tests a failed expectation is a failed test")]

mod answers;
mod failures;
mod requests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rye_model::{
    Answer, Delta, Endpoint, Failure, Message, Provider as _, ProviderFile, Request, ToolDefinition,
};
use rye_test::fake_model::FakeModel;
use serde_json::{Value, json};

#[test]
fn every_file_here_is_declared() {
    rye_test::assert_all_declared(env!("CARGO_MANIFEST_DIR"), include_str!("main.rs"));
}

const PROTOCOLS: [&str; 4] = ["anthropic", "openai", "gemini", "ollama"];

const KEY: &str = "sk-not-to-be-seen";

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
fn endpoint(protocol: &str, base: &str, further: &Value) -> Endpoint {
    let auth = match protocol {
        "openai" => json!({"type": "bearer", "variable": "KEY"}),
        _ => json!({"type": "api_key", "variable": "KEY"}),
    };
    let file = json!({"protocol": protocol, "url": url(protocol, base), "auth": auth, "timeout": 30});
    let file = rye_item::merge::merge(&file, further);
    let file = ProviderFile::read(file.as_object().expect("a map")).expect("a provider");
    let environment = BTreeMap::from([("KEY".to_owned(), KEY.to_owned())]);
    file.connect("m", &environment, &lillux::http::Client::default()).expect("an endpoint")
}

fn provider(protocol: &str, model: &FakeModel) -> Endpoint {
    endpoint(protocol, &model.url(), &json!({}))
}

fn user(text: &str) -> Arc<Message> {
    Arc::new(Message::User { text: text.to_owned() })
}

fn request(wants_stream: bool) -> Request {
    let tool = ToolDefinition {
        name: "n".to_owned(),
        description: "D".to_owned(),
        schema: json!({"type": "object", "properties": {"k": {"type": "integer"}}}),
        target: json!({"primary": "execute", "item_type": "tool", "item_id": "secret/place"}),
    };
    Request {
        model: "m".to_owned(),
        system: None,
        messages: vec![user("U")],
        tools: Arc::from([tool]),
        max_output_tokens: 100,
        wants_stream,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The answer to a request, and what came on the way.
async fn ask(endpoint: &Endpoint, request: &Request) -> (Result<Answer, Failure>, Vec<Delta>) {
    let deltas = Mutex::new(Vec::new());
    let take = |delta| deltas.lock().expect("the deltas").push(delta);
    let answer = endpoint.complete(request, &take).await;
    (answer, deltas.into_inner().expect("the deltas"))
}

fn ask_now(endpoint: &Endpoint, request: &Request) -> (Result<Answer, Failure>, Vec<Delta>) {
    runtime().block_on(ask(endpoint, request))
}

/// The failure of a request.
fn fail(endpoint: &Endpoint, request: &Request) -> Failure {
    let failure = ask_now(endpoint, request).0.expect_err("no answer");
    let shown = format!("{failure:?} {failure}");
    assert!(!shown.contains(KEY), "{shown}");
    failure
}
