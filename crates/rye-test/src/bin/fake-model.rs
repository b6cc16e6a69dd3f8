//! A model server on loopback for measuring, as fast as the machine.
//!
//! `fake-model [--port 8099] [--turns 3] [--tool noop] [--delay-ms 0] [--workers 1]`
//!
//! It remembers nothing: it counts the results of tools in the conversation. While there are fewer than turns - 1, it
//! calls the first tool whose name holds `--tool` (texts in its arguments are `hello N`, N the number of the call), else
//! the first that ends in `execute` (with `tool:bench/noop`), else the first. After that it says `done`, or calls a tool
//! that ends in `directive_return`. `GET /stats` counts requests, all and by the results they brought.
#![allow(clippy::expect_used, reason = "a server that cannot listen is of no use")]

use std::net::TcpListener;
use std::time::Duration;

use rye_test::fake_model::{FakeReply, FakeRequest, serve};
use serde_json::{Map, Value, json};

/// What is measured should wait for the network, not for this server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Arguments {
    port: u16,
    turns: usize,
    tool: String,
    delay: Duration,
    workers: usize,
}

fn parse_arguments() -> Option<Arguments> {
    let mut arguments =
        Arguments { port: 8099, turns: 3, tool: "noop".to_owned(), delay: Duration::ZERO, workers: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words.next()?;
        match name.as_str() {
            "--port" => arguments.port = value.parse().ok()?,
            "--turns" => arguments.turns = value.parse().ok()?,
            "--tool" => arguments.tool = value,
            "--delay-ms" => arguments.delay = Duration::from_millis(value.parse().ok()?),
            "--workers" => arguments.workers = value.parse().ok().filter(|workers| *workers > 0)?,
            _ => return None,
        }
    }
    Some(arguments)
}

/// Something for every property that a schema asks for.
fn fill_schema(schema: &Value, text: &str) -> Map<String, Value> {
    let properties = schema["properties"].as_object();
    let fill = |(index, (name, property)): (usize, (&String, &Value))| {
        let value = match property["type"].as_str() {
            Some("integer" | "number") => json!(index + 1),
            Some("boolean") => json!(true),
            Some("object") => json!({}),
            Some("array") => json!([]),
            _ => json!(text),
        };
        (name.clone(), value)
    };
    properties.into_iter().flatten().enumerate().map(fill).collect()
}

fn choose_reply(request: &FakeRequest<'_>, arguments: &Arguments) -> FakeReply {
    let tools = request.tools();
    let find = |predicate: &dyn Fn(&str) -> bool| tools.iter().find(|(name, _)| predicate(name)).copied();
    if request.tool_results + 1 < arguments.turns && !tools.is_empty() {
        if let Some((name, schema)) = find(&|name| name.contains(&arguments.tool)) {
            let text = format!("hello {}", request.tool_results + 1);
            let mut input = fill_schema(schema, &text);
            if input.is_empty() {
                input.insert("text".to_owned(), json!(text));
            }
            return FakeReply::calls([(name, Value::Object(input))]);
        }
        if let Some((name, _)) = find(&|name| name.ends_with("execute")) {
            let input =
                json!({"item_type": "tool", "item_id": "tool:bench/noop", "parameters": {"text": "hello"}});
            return FakeReply::calls([(name, input)]);
        }
        return FakeReply::calls([(tools[0].0, json!({}))]);
    }
    match find(&|name| name.ends_with("directive_return")) {
        Some((name, schema)) if request.tool_results < arguments.turns => {
            FakeReply::calls([(name, Value::Object(fill_schema(schema, "done")))])
        }
        _ => FakeReply::text("done"),
    }
}

#[allow(clippy::print_stderr, reason = "its own words")]
fn main() -> std::process::ExitCode {
    let Some(arguments) = parse_arguments() else {
        eprintln!("usage: fake-model [--port N] [--turns N] [--tool NAME] [--delay-ms N] [--workers N]");
        return std::process::ExitCode::from(2);
    };
    let listener = TcpListener::bind(("127.0.0.1", arguments.port)).expect("a port that is free");
    let address = listener.local_addr().expect("an address");
    eprintln!("http://{address}");
    let listeners = (1..arguments.workers).map(|_| listener.try_clone().expect("a second handle"));
    let listeners = listeners.collect::<Vec<_>>().into_iter().chain(Some(listener)).collect();
    serve(listeners, move |request| choose_reply(request, &arguments).with_delay(arguments.delay));
    std::process::ExitCode::SUCCESS
}
