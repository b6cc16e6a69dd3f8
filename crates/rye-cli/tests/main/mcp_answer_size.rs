//! What an answer over MCP costs: long results are cut, and sent once.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, text};

fn call(client: &mut Client, arguments: Value) -> (Value, usize) {
    let answer = client.request("tools/call", json!({"name": "rye_execute", "arguments": arguments}));
    let object = serde_json::from_str(&text(&answer["content"][0]["text"])).expect("an object");
    (object, answer.to_string().len())
}

#[test]
fn long_output_is_cut_and_sent_once() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let arguments = json!({"item_id": "rye/bash", "parameters": {"command": "seq 100000"}});
    let (brief, length) = call(&mut client, arguments.clone());
    assert!(length < 60_000, "{length} bytes");
    assert_eq!((&brief["status"], &brief["truncated"]), (&json!("success"), &json!(true)));
    let brief = brief.to_string();
    assert!(brief.contains("1\\n2\\n3\\n") && brief.contains("99999\\n100000"), "{brief}");
    assert!(brief.contains("detail `full`"), "{brief}");

    let mut arguments = arguments;
    arguments["detail"] = json!("full");
    let (full, _) = call(&mut client, arguments);
    assert!(full.to_string().contains("\\n50000\\n50001\\n"));
}
