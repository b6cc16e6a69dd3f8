//! The web tools against small servers on loopback.

#[path = "../../../lillux/src/http/tests/server.rs"]
mod server;

use std::path::Path;

use lillux::CancelToken;
use rye_exec::native::ToolAccess;
use rye_item::Space;
use serde_json::Map;
use server::{Server, reply};

use super::*;

fn access() -> ToolAccess {
    ToolAccess { network: true, allowed_hosts: vec!["127.0.0.1".to_owned()], ..ToolAccess::default() }
}

fn call_tool(
    name: &str,
    parameters: &Value,
    config: &Value,
    resolved: Option<&Value>,
    access: &ToolAccess,
) -> Result<Value, NativeError> {
    let empty = Map::new();
    let tools = all();
    let tool = tools.iter().find(|tool| tool.name() == name).expect("a tool");
    tool.call(&NativeCall {
        parameters: parameters.as_object().unwrap_or(&empty),
        config: config.as_object().unwrap_or(&empty),
        resolved_config: resolved,
        space: &Space::Project,
        project: Path::new("/"),
        cache: Path::new("/"),
        access,
        cancel: &CancelToken::new().expect("an event"),
        now: 0,
        thread: None,
    })
}

fn fetch(parameters: &Value) -> Result<Value, NativeError> {
    call_tool("web.fetch", parameters, &Value::Null, None, &access())
}

fn page_server(kind: &'static str, body: &'static [u8]) -> Server {
    Server::start(move |request| match request.starts_with("GET /moved") {
        true => reply("302 Found", "Location: /page\r\n", ""),
        false => reply("200 OK", &format!("Content-Type: {kind}\r\n"), body),
    })
}

#[test]
fn a_page_is_fetched_as_markdown() {
    let server = page_server(
        "text/html; charset=iso-8859-1",
        b"<title>Caf\xe9</title><h1>Hello</h1><p>A <a href='b'>link</a></p>",
    );
    let expected = json!({
        "url": server.url("/page"),
        "status_code": 200,
        "content_type": "text/html; charset=iso-8859-1",
        "title": "Café",
        "format": "markdown",
        "content": format!("# Hello\n\nA [link]({})", server.url("/b")),
        "truncated": false,
    });
    assert_eq!(fetch(&json!({"url": server.url("/moved")})), Ok(expected));
}

#[test]
fn page_has_four_formats_and_a_limit() {
    let source = "<title>T</title><p>one</p><p>two</p>";
    let server = page_server("text/html", source.as_bytes());
    let content = |format: &str| {
        fetch(&json!({"url": server.url("/"), "format": format})).expect("a page")["content"].clone()
    };
    assert_eq!(content("markdown"), "one\n\ntwo");
    assert_eq!(content("text"), "one\ntwo");
    assert_eq!(content("html"), source);
    assert_eq!(content("raw"), source);
    let cut = fetch(&json!({"url": server.url("/"), "max_chars": 4})).expect("a page");
    assert_eq!((&cut["content"], &cut["truncated"]), (&json!("one\n"), &json!(true)));
    let wrong = fetch(&json!({"url": server.url("/"), "format": "pdf"}));
    assert_eq!(wrong, Err(NativeError::failed("`format` is `pdf`; use markdown, text, html or raw")));
}

#[test]
fn non_html_is_text_or_described() {
    let server = page_server("application/json", b"{\"a\": 1}");
    let answer = fetch(&json!({"url": server.url("/")})).expect("an answer");
    assert_eq!((&answer["content"], &answer["title"]), (&json!("{\"a\": 1}"), &Value::Null));
    let server = page_server("image/png", b"\x89PNG\xff\0");
    let answer = fetch(&json!({"url": server.url("/")})).expect("an answer");
    assert_eq!(
        (&answer["content"], &answer["description"]),
        (&Value::Null, &json!("not text: 6 bytes image/png"))
    );
}

#[test]
fn a_private_page_is_not_fetched() {
    let server = page_server("text/html", b"secret");
    let open = ToolAccess { network: true, ..ToolAccess::default() };
    for (parameters, access) in [
        (json!({"url": server.url("/")}), &open),
        (json!({"url": format!("http://localhost:{}/", server.address.port())}), &open),
        (json!({"url": server.url("/")}), &ToolAccess { network: false, ..access() }),
    ] {
        let refused = call_tool("web.fetch", &parameters, &Value::Null, None, access);
        assert!(refused.as_ref().is_err_and(|error| error.is_denied()), "{refused:?}");
    }
    assert_eq!(server.requests(), Vec::<String>::new());
}

#[test]
fn an_error_page_is_an_error() {
    let server = Server::start(|_| reply("404 Not Found", "", "nothing"));
    let facts = json!({"status_code": 404, "host": "127.0.0.1"});
    let expected = NativeError::failed("HTTP 404: Not Found").with_data(facts);
    assert_eq!(fetch(&json!({"url": server.url("/")})), Err(expected));
    assert_eq!(fetch(&json!({})), Err(NativeError::failed("`url` is missing")));
}

fn search_with(parameters: &Value, provider: &Value, variables: &Value) -> Result<Value, NativeError> {
    let resolved = json!({"provider": "own", "providers": {"own": provider}});
    call_tool("web.search", parameters, &json!({"environment": variables}), Some(&resolved), &access())
}

#[test]
fn a_json_service_is_described_by_config() {
    let answer = json!({"web": {"results": [
        {"name": "One\n", "link": "https://one.example/", "about": {"text": "<b>first</b> &amp; best"}},
        {"name": "Bad", "link": "javascript:alert(1)", "about": {"text": "x"}},
        {"name": "Two", "link": "http://two.example/x"},
        {"name": "Three", "link": "https://three.example/"},
    ]}})
    .to_string();
    let server = Server::start(move |_| reply("200 OK", "", &answer));
    let provider = json!({
        "url": server.url("/search?q={query}&n={limit}"),
        "headers": {"X-Subscription": "${OWN_API_KEY}"},
        "results_path": "web.results", "title_key": "name", "url_key": "link", "snippet_key": "about.text",
    });
    let parameters = json!({"query": "a&b=c #d", "limit": 2});
    let found = search_with(&parameters, &provider, &json!({"OWN_API_KEY": "hush-hush"}));
    let expected = json!({
        "query": "a&b=c #d", "provider": "own", "count": 2,
        "results": [
            {"title": "One", "url": "https://one.example/", "snippet": "first & best"},
            {"title": "Two", "url": "http://two.example/x", "snippet": ""},
        ],
    });
    assert_eq!(found, Ok(expected));
    let request = server.requests().remove(0);
    assert!(request.starts_with("GET /search?q=a%26b%3Dc%20%23d&n=2 HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains("x-subscription: hush-hush\r\n") && request.contains("accept: application/json")
    );
}

#[test]
fn html_service_is_described_by_config() {
    let body = "<div class='result'><a class='big result__a' href='//ddg.example/l/?uddg=https%3A%2F%2Fone.example%2Fa%3Fb'>\
                One <b>hit</b></a><a class=result__snippet>About <b>one</b></a></div>\
                <div class='result'><a class='result__a' href='https://two.example/'>Two</a></div>";
    let server = Server::start(move |_| reply("200 OK", "Content-Type: text/html\r\n", body));
    let provider = json!({
        "kind": "html", "url": server.url("/html/?q={query}"),
        "link_class": "result__a", "snippet_class": "result__snippet", "link_parameter": "uddg",
    });
    let found = search_with(&json!({"query": "x"}), &provider, &Value::Null).expect("hits");
    let expected = json!([
        {"title": "One hit", "url": "https://one.example/a?b", "snippet": "About one"},
        {"title": "Two", "url": "https://two.example/", "snippet": ""},
    ]);
    assert_eq!(found["results"], expected);
}

#[test]
fn missing_provider_error_explains_setup() {
    let ask = |parameters: Value, resolved: Option<Value>| {
        let error = call_tool("web.search", &parameters, &Value::Null, resolved.as_ref(), &access());
        error.expect_err("no provider").message
    };
    let none = ask(json!({"query": "x"}), None);
    assert!(none.starts_with("no search provider is configured; choose a provider in"), "{none}");
    assert_eq!(ask(json!({"query": "x"}), Some(json!({"provider": "", "providers": {}}))), none);
    let unknown = ask(json!({"query": "x", "provider": "b"}), Some(json!({"providers": {"a": {}, "c": {}}})));
    assert!(unknown.starts_with("unknown search provider `b` (known: a, c); "), "{unknown}");
}

#[test]
fn provider_is_limited_to_its_variables() {
    let parameters = json!({"query": "x"});
    let provider = json!({"url": "https://api.example/?q={query}", "headers": {"X": "${HOME}"}});
    let message =
        search_with(&parameters, &provider, &json!({"EMPTY": ""})).expect_err("no variable").message;
    assert!(message.contains("the variable `HOME` is not set, or the signed tool"), "{message}");
    let resolved = json!({"provider": "own", "providers": {"own": {"url": "http://127.0.0.1:9/?q={query}"}}});
    let open = ToolAccess { network: true, ..ToolAccess::default() };
    let refused =
        call_tool("web.search", &parameters, &Value::Null, Some(&resolved), &open).expect_err("refused");
    assert!(refused.is_denied() && refused.message.contains("loopback"), "{refused:?}");
    let host =
        search_with(&parameters, &json!({"url": "https://{query}/"}), &Value::Null).expect_err("refused");
    assert!(host.message.contains("cannot be used"), "{host:?}");
}

#[test]
fn bundle_matches_functions_and_providers() {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bundles/web/.ai");
    let read = |relative: &str| {
        let (bytes, _) = lillux::file::read_bounded(&bundle.join(relative), 1 << 20).expect("a file");
        let text = String::from_utf8(bytes).expect("text");
        (rye_item::yaml::parse(&text).expect("YAML").value, text)
    };
    let names: Vec<&str> = all().iter().map(|tool| tool.name()).collect();
    for relative in ["tools/rye/web/fetch/fetch.yaml", "tools/rye/web/search/search.yaml"] {
        let function = read(relative).0["config"]["function"].clone();
        assert!(names.contains(&function.as_str().expect("a name")), "{relative}");
    }
    let (search, _) = read("tools/rye/web/search/search.yaml");
    let (config, text) = read("config/web/websearch.yaml");
    for used in text.split("${").skip(1).filter_map(|rest| rest.split('}').next()) {
        assert!(search["config"]["environment"].get(used).is_some(), "{used}");
        let secrets = search["env_config"]["secrets"].as_array().expect("a list");
        assert!(secrets.contains(&json!(used)), "{used}");
    }
    let error = call_tool("web.search", &json!({"query": "x"}), &Value::Null, Some(&config), &access());
    assert!(error.is_err_and(|error| error.message.starts_with("no search provider is configured")));
    let closed = ToolAccess::default();
    for provider in ["brave", "duckduckgo"] {
        let parameters = json!({"query": "x", "provider": provider});
        let keys = json!({"environment": {"BRAVE_API_KEY": "k"}});
        let error =
            call_tool("web.search", &parameters, &keys, Some(&config), &closed).expect_err("no network");
        assert_eq!(error, NativeError::denied("the tool may not use the network"), "{provider}");
    }
}
