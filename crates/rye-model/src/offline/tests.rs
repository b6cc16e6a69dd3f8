//! Scripts, and what they call.
#![allow(clippy::needless_pass_by_value, reason = "`json!` at the call reads best")]

use std::sync::Arc;

use super::*;

fn tool(name: &str, target: Value, properties: Value) -> ToolDefinition {
    let schema = json!({"type": "object", "properties": properties});
    ToolDefinition { name: name.to_owned(), description: String::new(), schema, target }
}

fn target(primary: &str, item_type: &str, item_id: &str) -> Value {
    json!({"primary": primary, "item_type": item_type, "item_id": item_id})
}

fn action(item_id: &str, params: Value) -> Value {
    json!({"primary": "execute", "item_type": "tool", "item_id": item_id, "params": params})
}

struct Conversation {
    offline: OfflineProvider,
    request: ModelRequest,
}

impl Conversation {
    fn new(script: &[Value], outputs: &[Value], inputs: Value, tools: Vec<ToolDefinition>) -> Self {
        let inputs = inputs.as_object().cloned().unwrap_or_default();
        let request = ModelRequest {
            model: "offline".to_owned(),
            system: None,
            messages: vec![Arc::new(ChatMessage::user("go".to_owned()))],
            tools: tools.into(),
            max_output_tokens: 1,
            settings: Arc::default(),
            files: Arc::default(),
            wants_stream: true,
        };
        Self { offline: OfflineProvider::new(script.to_vec(), outputs.to_vec(), inputs), request }
    }

    fn complete(&self) -> Result<ModelResponse, Box<ModelError>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(self.offline.complete(&self.request, &|_| {})).map_err(Box::new)
    }

    /// Why it does not continue.
    fn error(&self) -> String {
        let error = self.complete().expect_err("an error");
        assert_eq!((error.kind.as_str(), error.reached_server), (NO_MODEL, false));
        error.message
    }

    fn next_response(&self) -> ModelResponse {
        let response = self.complete().expect("an answer");
        assert_eq!((response.usage, response.model.as_str()), (Usage::default(), "offline"));
        response
    }

    /// The one call of the next answer; `result` is what comes of it.
    fn call(&mut self, result: &str, is_error: bool) -> (String, Value) {
        let response = self.next_response();
        assert_eq!(
            (response.calls.len(), response.finish_reason, response.text),
            (1, FinishReason::ToolCalls, String::new())
        );
        let call = response.calls[0].clone();
        let (id, name) = (call.id.clone(), call.name.clone());
        let known = self.request.messages.iter().any(|message| {
            matches!(message.as_ref(), ChatMessage::Assistant { calls, .. } if calls.iter().any(|call| call.id == id))
        });
        assert!(!known, "`{id}` names two calls");
        let assistant_message =
            ChatMessage::Assistant { text: String::new(), calls: response.calls, replay: vec![] };
        let tool_message =
            ChatMessage::Tool { call_id: id, name: name.clone(), content: result.to_owned(), is_error };
        self.request.messages.extend([Arc::new(assistant_message), Arc::new(tool_message)]);
        (name, Value::Object(call.input))
    }

    fn text(&self) -> String {
        let response = self.next_response();
        assert_eq!((response.calls.len(), response.finish_reason), (0, FinishReason::Stop));
        response.text
    }
}

#[test]
fn each_action_calls_its_own_tool() {
    let tools = vec![
        tool("rye_execute", json!(null), json!({})),
        tool("other", target("load", "tool", "a/b"), json!({})),
        tool("a_b", target("execute", "tool", "a/b"), json!({"n": {"type": "integer"}})),
    ];
    let script = [action("a/b", json!({"n": "7", "text": "8"})), action("c/d", json!({"n": "7"}))];
    let mut conversation = Conversation::new(&script, &[], json!({}), tools);
    assert_eq!(conversation.call("first", false), ("a_b".to_owned(), json!({"n": 7, "text": "8"})));
    let by_verb = json!({"parameters": {"n": "7"}, "item_type": "tool", "item_id": "c/d"});
    assert_eq!(conversation.call("it\nworked\u{1b}[31m", false), ("rye_execute".to_owned(), by_verb));
    assert_eq!(conversation.text(), "execute a/b: done: first\nexecute c/d: done: it worked");
}

#[test]
fn primary_is_called_even_if_not_offered() {
    let script = [
        json!({"primary": "search", "item_type": "tool", "params": {"query": "x", "limit": "3"}}),
        json!({"primary": "load", "item_type": "knowledge", "item_id": "k"}),
        json!({"primary": "sign", "item_type": "tool", "item_id": "t", "params": {}}),
        json!({"primary": "fetch", "query": "q"}),
        json!({"primary": "execute", "item_type": "directive", "item_id": "d", "params": {}, "async": "true"}),
    ];
    let verbs = vec![
        tool("rye_search", json!(null), json!({"limit": {"type": ["integer", "null"]}})),
        tool("rye_execute", json!(null), json!({"async": {"type": "boolean"}})),
    ];
    let mut conversation = Conversation::new(&script, &[], json!({}), verbs);
    let mut next = || conversation.call("ok", false);
    assert_eq!(next(), ("rye_search".to_owned(), json!({"query": "x", "limit": 3, "item_type": "tool"})));
    assert_eq!(next(), ("rye_load".to_owned(), json!({"item_type": "knowledge", "item_id": "k"})));
    assert_eq!(next(), ("rye_sign".to_owned(), json!({"item_type": "tool", "item_id": "t"})));
    assert_eq!(next(), ("rye_fetch".to_owned(), json!({"query": "q"})));
    let spawn = json!({"parameters": {}, "item_type": "directive", "item_id": "d", "async": true});
    assert_eq!(next(), ("rye_execute".to_owned(), spawn));
}

#[test]
fn parameters_refer_to_results_and_inputs() {
    let params = json!({
        "ids": ["${results.0.thread_id}", "${results.1.thread_id}"],
        "note": "after ${last.status}",
        "who": "${inputs.who}",
        "gone": "${results.9.x}",
    });
    let script = [action("s", json!({})), action("s", json!({})), action("w", params)];
    let mut conversation = Conversation::new(&script, &[], json!({"who": {"name": "A"}}), vec![]);
    conversation.call(r#"{"status": "success", "data": {"thread_id": "thread-1"}}"#, false);
    conversation.call(r#"{"thread_id": "thread-2", "status": "running"}"#, false);
    let (_, input) = conversation.call("[]", false);
    let expected = json!({
        "ids": ["thread-1", "thread-2"], "note": "after running", "who": {"name": "A"}, "gone": "",
    });
    assert_eq!(input["parameters"], expected);
}

#[test]
fn text_is_coerced_to_schema_type() {
    let properties = json!({
        "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "o": {"type": "object"},
        "a": {"type": "array"}, "s": {"type": "string"}, "e": {"type": ["string", "integer"]}, "x": {},
        "bad": {"type": "integer"}, "half": {"type": "integer"},
    });
    let tools = vec![tool("t", target("execute", "tool", "t"), properties)];
    let params = json!({
        "i": "1", "n": "1.5", "b": "true", "o": "{\"k\": 1}", "a": "[1]", "s": "1", "e": "1", "x": "1", "bad": "one",
        "half": "1.5",
    });
    let mut conversation = Conversation::new(&[action("t", params)], &[], json!({}), tools);
    let expected = json!({
        "i": 1, "n": 1.5, "b": true, "o": {"k": 1}, "a": [1], "s": "1", "e": "1", "x": "1", "bad": "one",
        "half": "1.5",
    });
    assert_eq!(conversation.call("", false).1, expected);
}

#[test]
fn outputs_come_from_results_only() {
    let output =
        |name: &str, is_required: bool| json!({"name": name, "type": "integer", "required": is_required});
    let outputs = [output("sum", true), output("who", false), output("zero", true)];
    let tools = vec![tool(RETURN_TOOL, json!(null), json!({"sum": {"type": "integer"}}))];
    let script = [action("a", json!({})), action("b", json!({})), action("c", json!({}))];
    let mut conversation = Conversation::new(&script, &outputs, json!({"who": "me", "sum": 9}), tools);
    conversation.call(r#"{"data": {"sum": 1, "zero": 0}}"#, false);
    conversation.call(r#"{"sum": "2"}"#, false);
    conversation.call("plain text", false);
    let expected = json!({"sum": 2, "zero": 0});
    assert_eq!(conversation.call("ok", false), (RETURN_TOOL.to_owned(), expected));
    assert!(conversation.text().starts_with("execute a: done: "));
}

#[test]
fn missing_required_output_is_an_error() {
    let output = |name: &str| json!({"name": name, "type": "string", "required": true});
    let outputs = [output("words"), output("title"), output("gone")];
    let tools = vec![tool(RETURN_TOOL, json!(null), json!({}))];
    let script = [action("a", json!({}))];
    let mut conversation = Conversation::new(&script, &outputs, json!({"words": "7"}), tools);
    conversation.call(r#"{"title": "x", "gone": null}"#, false);
    assert_eq!(
        conversation.error(),
        "no model was asked, and no action produced the required outputs `words`, `gone`"
    );
}

#[test]
fn failed_action_is_an_error() {
    for result in [r#"{"status": "error", "error": "no such\nfile"}"#, "no such file"] {
        let script = [action("a/b", json!({})), action("c", json!({}))];
        let mut conversation = Conversation::new(&script, &[], json!({}), vec![]);
        conversation.call(result, true);
        assert_eq!(
            conversation.error(),
            "action 1 (`execute a/b`) failed: no such file; no model was asked what to do instead"
        );
    }
}

#[test]
fn denied_action_is_an_error_unless_tolerated() {
    let script = |on_deny: Value| {
        let question = action(HUMAN_APPROVAL, json!({"prompt": "May I?", "on_deny": on_deny}));
        [question, action("a", json!({}))]
    };
    let denied = r#"{"status": "success", "approved": false, "message": "not today"}"#;
    let mut conversation = Conversation::new(&script(json!(null)), &[], json!({}), vec![]);
    conversation.call(denied, false);
    assert!(conversation.error().contains("was denied: not today"), "{}", conversation.error());
    let mut conversation = Conversation::new(&script(json!("tell")), &[], json!({}), vec![]);
    conversation.call(denied, false);
    assert_eq!(conversation.call("ok", false).0, "rye_execute");
}

#[test]
fn wait_may_report_failed_children() {
    let wait = |fail_fast: Value| {
        let params = json!({"operation": "wait_threads", "thread_ids": [], "fail_fast": fail_fast});
        [action(ORCHESTRATOR, params), action("a", json!({}))]
    };
    let results = |status: &str| {
        format!(r#"{{"success": false, "results": {{"thread-1": {{"status": "{status}"}}}}}}"#)
    };
    for (fail_fast, status, is_tolerated) in [
        (json!(false), "error", true),
        (json!("false"), "error", true),
        (json!("false"), "timeout", false),
        (json!(true), "error", false),
        (json!(null), "error", false),
    ] {
        let mut conversation = Conversation::new(&wait(fail_fast.clone()), &[], json!({}), vec![]);
        conversation.call(&results(status), true);
        assert_eq!(conversation.complete().is_ok(), is_tolerated, "{fail_fast} {status}");
    }
    let mut conversation = Conversation::new(&wait(json!(false)), &[], json!({}), vec![]);
    conversation.call(r#"{"status": "error", "error": "no such thread"}"#, true);
    assert!(conversation.error().contains("no such thread"));
}

#[test]
fn refused_outputs_are_an_error() {
    let tools = vec![tool(RETURN_TOOL, json!(null), json!({}))];
    let mut conversation = Conversation::new(&[action("a", json!({}))], &[], json!({}), tools);
    conversation.call("ok", false);
    conversation.call("undeclared outputs", true);
    assert_eq!(conversation.error(), "the outputs were refused: undeclared outputs");
}

#[test]
fn empty_script_is_an_error() {
    let conversation = Conversation::new(&[], &[], json!({}), vec![]);
    assert_eq!(conversation.error(), "no model was asked, and the directive has no actions of its own");
}

#[test]
fn action_stopped_by_duration_is_repeated() {
    let script = [action("a/b", json!({})), action("c/d", json!({}))];
    let mut conversation = Conversation::new(&script, &[], json!({}), vec![]);
    let stopped = json!({"status": "error", "error": "stopped: the thread's time is over"}).to_string();
    let items = ["first", &stopped, &format!("{stopped}\n\na note"), "second"].map(|result| {
        let (_, input) = conversation.call(result, result.starts_with('{'));
        input["item_id"].clone()
    });
    assert_eq!(items, ["a/b", "c/d", "c/d", "c/d"]);
    assert_eq!(conversation.text(), "execute a/b: done: first\nexecute c/d: done: second");
}
