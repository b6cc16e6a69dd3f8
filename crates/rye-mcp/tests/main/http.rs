//! Servers on the web.

use std::time::Duration;

use rye_mcp::{McpError, McpServer};
use serde_json::json;

use crate::support::{HttpServer, TOOL_NAMES, call, call_with_timeout, list, names};

fn error_text(error: Result<impl std::fmt::Debug, McpError>) -> String {
    error.expect_err("an error").to_string()
}

#[test]
fn json_and_event_streams_work() {
    for mode in ["plain", "events", "modern"] {
        let web = HttpServer::start(mode);
        let server = web.server(&json!({}));
        assert_eq!(names(&list(&server).expect(mode)), TOOL_NAMES, "{mode}");
        let outcome = call(&server, "add", &json!({"a": 2, "b": 3})).expect(mode);
        assert_eq!(outcome.value(), json!({"sum": 5}), "{mode}");
        let failed = call(&server, "fails", &json!({})).expect(mode);
        assert_eq!((failed.is_error, failed.content.as_str()), (true, "no such row"));
        assert_eq!(
            error_text(call(&server, "refuses", &json!({}))),
            "MCP server `mcp/servers/fake` answered with error -32000: not today"
        );
    }
}

#[test]
fn missing_credentials_are_explained() {
    let web = HttpServer::start("locked");
    assert_eq!(
        names(&list(&web.server(&json!({"auth": {"bearer": "secret"}}))).expect("a list")),
        TOOL_NAMES
    );
    assert_eq!(
        error_text(list(&web.server(&json!({})))),
        "failed to reach MCP server `mcp/servers/fake`: it answered HTTP 401: `who are you?`; set `auth` in the server item"
    );
}

#[test]
fn redirects_are_followed_within_the_origin_only() {
    let web = HttpServer::start("moved");
    assert_eq!(names(&list(&web.server(&json!({}))).expect("a list")), TOOL_NAMES);
    let web = HttpServer::start("redirect");
    assert_eq!(
        error_text(list(&web.server(&json!({})))),
        "failed to reach MCP server `mcp/servers/fake`: it redirects elsewhere (HTTP 307), which is not followed; \
         use its final address"
    );
}

#[test]
fn forbidden_address_is_not_contacted() {
    let config = json!({"transport": "http", "url": "http://169.254.169.254/mcp"});
    let server = McpServer::from_config("mcp/servers/fake", &config).expect("a server");
    assert_eq!(
        error_text(list(&server)),
        "MCP server `mcp/servers/fake` may not be used: host Some(\"169.254.169.254\") is not allowed"
    );
}

#[test]
fn missing_server_is_a_clear_error() {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address").port();
    let config = json!({"transport": "http", "url": format!("http://127.0.0.1:{port}/mcp")});
    let server = McpServer::from_config("mcp/servers/fake", &config).expect("a server");
    let error = error_text(list(&server));
    assert!(
        error.starts_with("failed to reach MCP server `mcp/servers/fake`: error sending request"),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn invalid_responses_are_reported() {
    let broke = "MCP server `mcp/servers/fake` broke the protocol";
    let unasked = "it sent an unexpected or duplicate response: id `4711`";
    for (mode, reason) in [
        ("garbage", "it sent something that is not a message: `<oops>`"),
        ("html", "it answered with content of type `text/html`"),
        ("wrongid", unasked),
        ("wrongevent", unasked),
        ("cut", "its stream of events ended before the answer"),
    ] {
        let web = HttpServer::start(mode);
        assert_eq!(error_text(list(&web.server(&json!({})))), format!("{broke}: {reason}"), "{mode}");
    }
    let web = HttpServer::start("oversized");
    assert_eq!(
        error_text(call(&web.server(&json!({})), "text", &json!({}))),
        format!("{broke}: it sent a message larger than 16777216 bytes")
    );
}

#[test]
fn a_slow_answer_times_out() {
    let web = HttpServer::start("slow");
    assert_eq!(
        error_text(call_with_timeout(&web.server(&json!({})), "text", &json!({}), Duration::from_secs(2))),
        "MCP server `mcp/servers/fake` did not answer within 2 s"
    );
}
