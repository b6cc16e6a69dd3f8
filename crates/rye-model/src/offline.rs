//! A model that is a script: it calls what a directive's actions say, one after the other, and costs nothing.
//!
//! It remembers nothing: the results of tools in the conversation say which action is next. Each action becomes one call
//! a turn: of the offered tool whose target is the action's item, with the action's parameters; else of `rye_<primary>`,
//! on offer or not: refusing is left to the thread. Parameters that are texts become what the tool's schema asks for.
//!
//! Parameters may refer to what came before: `${results.0.path}` is the result of the first action, `${last.path}` that of
//! the newest, `${inputs.name}` an input of the directive. A result that is JSON is read as such, and where it is an
//! answer with `data`, that is looked into: `${last.thread_id}` finds `{"status": …, "data": {"thread_id": …}}`.
//!
//! After the last action it calls `directive_return` with the declared outputs, if that is on offer: each from the newest
//! result that holds a key of that name. An output that no action produced is left out. Otherwise it says in one line for
//! each action what came of it.
//!
//! An action that was stopped because the thread's time was over is called again: a person gave the thread more time.
//!
//! It invents nothing. A script without actions, an action that failed or was denied, and a required output that no action
//! produced are errors of kind `NoModel`, which end the thread and say that no model was asked.

use rye_item::{interpolate, text};
use rye_thread::definitions::{HUMAN_APPROVAL, ORCHESTRATOR};
use rye_thread::machine::is_stopped_by_duration;
use serde_json::{Map, Value, json};

use crate::{
    ChatMessage, Completion, FinishReason, ModelError, ModelProvider, ModelRequest, ModelResponse,
    ResponseDelta, ToolCall, ToolDefinition, Usage,
};

/// The kind of every error of the offline provider: a model would be needed to continue.
pub const NO_MODEL: &str = "NoModel";

/// The tool that ends a directive.
const RETURN_TOOL: &str = "directive_return";

/// How much of a result the final text shows.
const MAX_SUMMARY_CHARS: usize = 200;

/// A script that answers.
#[derive(Clone, Debug, PartialEq)]
pub struct OfflineProvider {
    script: Vec<Value>,
    outputs: Vec<Value>,
    inputs: Map<String, Value>,
}

/// One result of a tool in the conversation.
struct ToolOutcome<'a> {
    content: &'a str,
    is_error: bool,
    /// The content as JSON, if it is JSON, without the frame of an answer.
    value: Value,
}

impl OfflineProvider {
    /// A script of a directive's actions (`{primary, item_type, item_id, params, …}`), its declared outputs
    /// (`{name, type, …}`) and its inputs.
    #[must_use]
    pub fn new(script: Vec<Value>, outputs: Vec<Value>, inputs: Map<String, Value>) -> Self {
        Self { script, outputs, inputs }
    }

    fn respond(&self, request: &ModelRequest) -> Result<ModelResponse, String> {
        let outcomes = tool_outcomes(request);
        if self.script.is_empty() {
            return Err("no model was asked, and the directive has no actions of its own".to_owned());
        }
        self.check_outcomes(&outcomes)?;
        let turns = request
            .messages
            .iter()
            .filter(|message| matches!(message.as_ref(), ChatMessage::Assistant { .. }));
        let turn = turns.count();
        let call = |name: String, input: Map<String, Value>| ToolCall {
            id: format!("offline-{turn}"),
            name,
            input,
            malformed: None,
        };
        if let Some(action) = self.script.get(outcomes.len()) {
            let (name, input) = self.action_call(action, request, &outcomes);
            return Ok(make_response(request, String::new(), vec![call(name, input)]));
        }
        let is_returned = outcomes.len() > self.script.len();
        if is_returned {
            return Ok(make_response(request, self.summary(&outcomes), Vec::new()));
        }
        self.check_required_outputs(&outcomes)?;
        Ok(match request.tools.iter().find(|tool| tool.name == RETURN_TOOL) {
            Some(tool) => {
                let input = self.outputs(tool, &outcomes);
                make_response(request, String::new(), vec![call(tool.name.clone(), input)])
            }
            None => make_response(request, self.summary(&outcomes), Vec::new()),
        })
    }

    /// Refuses to continue after an action that failed or was denied: what to do then is for a model to decide.
    fn check_outcomes(&self, outcomes: &[ToolOutcome<'_>]) -> Result<(), String> {
        for (index, outcome) in outcomes.iter().enumerate() {
            let Some(action) = self.script.get(index) else {
                if outcome.is_error {
                    let excerpt = excerpt(outcome.content);
                    return Err(format!("the outputs were refused: {excerpt}"));
                }
                continue;
            };
            let verdict = if is_denied(action, outcome) {
                "was denied"
            } else if outcome.is_error && !reports_children(action, outcome) {
                "failed"
            } else {
                continue;
            };
            let (subject, reason) = (action_name(action), failure_text(outcome));
            let place = index + 1;
            return Err(format!(
                "action {place} (`{subject}`) {verdict}: {reason}; no model was asked what to do instead"
            ));
        }
        Ok(())
    }

    /// Refuses to end without a required output.
    fn check_required_outputs(&self, outcomes: &[ToolOutcome<'_>]) -> Result<(), String> {
        let is_required = |output: &&Value| output.get("required").and_then(Value::as_bool) == Some(true);
        let names = self.outputs.iter().filter(is_required).filter_map(output_name);
        let missing: Vec<String> = names
            .filter(|name| produced(outcomes, name).is_none_or(Value::is_null))
            .map(|name| format!("`{name}`"))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let word = if missing.len() == 1 { "output" } else { "outputs" };
        let names = missing.join(", ");
        Err(format!("no model was asked, and no action produced the required {word} {names}"))
    }

    /// The call of an action: the tool's name and its arguments.
    fn action_call(
        &self,
        action: &Value,
        request: &ModelRequest,
        outcomes: &[ToolOutcome<'_>],
    ) -> (String, Map<String, Value>) {
        let results: Vec<&Value> = outcomes.iter().map(|outcome| &outcome.value).collect();
        let context = json!({
            "results": results,
            "last": outcomes.last().map(|outcome| &outcome.value),
            "inputs": self.inputs,
        });
        let part = |key: &str| {
            let value = action.get(key).cloned().unwrap_or_default();
            interpolate::interpolate(&value, &context)
        };
        let (primary, item_type, item_id) = (part("primary"), part("item_type"), part("item_id"));
        let params = match part("params") {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let is_target = |tool: &&ToolDefinition| {
            let is_equal = |key: &str, value: &Value| !value.is_null() && tool.target.get(key) == Some(value);
            is_equal("item_id", &item_id)
                && is_equal("item_type", &item_type)
                && is_equal("primary", &primary)
        };
        if let Some(tool) = request.tools.iter().find(is_target) {
            let input = params.into_iter().map(|(key, value)| coerce(tool, key, value)).collect();
            return (tool.name.clone(), input);
        }
        let name = format!("rye_{}", primary.as_str().unwrap_or("execute"));
        let mut input = match name.as_str() {
            "rye_execute" => Map::from_iter([("parameters".to_owned(), Value::Object(params))]),
            _ => params,
        };
        for (key, value) in [("item_type", item_type), ("item_id", item_id)] {
            if value.as_str().is_some_and(|text| !text.is_empty()) {
                input.insert(key.to_owned(), value);
            }
        }
        // Further attributes of an action are arguments of the verb: `query`, `scope`, `async`.
        let extra = action
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !matches!(key.as_str(), "primary" | "item_type" | "item_id" | "params"));
        for (key, value) in extra {
            input.entry(key.clone()).or_insert_with(|| interpolate::interpolate(value, &context));
        }
        if let Some(tool) = request.tools.iter().find(|tool| tool.name == name) {
            input = input.into_iter().map(|(key, value)| coerce(tool, key, value)).collect();
        }
        (name, input)
    }

    /// The declared outputs that actions produced.
    fn outputs(&self, tool: &ToolDefinition, outcomes: &[ToolOutcome<'_>]) -> Map<String, Value> {
        let names = self.outputs.iter().filter_map(output_name);
        let found = names.filter_map(|name| Some((name, produced(outcomes, name)?)));
        found.map(|(name, value)| coerce(tool, name.to_owned(), value.clone())).collect()
    }

    fn summary(&self, outcomes: &[ToolOutcome<'_>]) -> String {
        let lines = self.script.iter().zip(outcomes).map(|(action, outcome)| {
            let result = if outcome.is_error { "failed" } else { "done" };
            format!("{}: {result}: {}", action_name(action), excerpt(outcome.content))
        });
        lines.collect::<Vec<String>>().join("\n")
    }
}

/// An action in a few words: `execute team/tool`.
fn action_name(action: &Value) -> String {
    let field = |key: &str| action.get(key).and_then(Value::as_str).unwrap_or_default();
    text::one_line(format!("{} {}", field("primary"), field("item_id")).trim())
}

/// The beginning of a text, on one line.
fn excerpt(content: &str) -> String {
    let mut content = text::one_line(content);
    if let Some((end, _)) = content.char_indices().nth(MAX_SUMMARY_CHARS) {
        content.truncate(end);
        content.push('…');
    }
    content
}

/// Why an action failed: the `error` of its envelope, else all of it.
fn failure_text(outcome: &ToolOutcome<'_>) -> String {
    let field = |key: &str| outcome.value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    excerpt(field("error").or_else(|| field("message")).unwrap_or(outcome.content))
}

/// Whether a person said no to an action that asks one, and the action does not say that this is fine (`on_deny: tell`).
fn is_denied(action: &Value, outcome: &ToolOutcome<'_>) -> bool {
    let is_question = action.get("item_id").and_then(Value::as_str) == Some(HUMAN_APPROVAL);
    let is_refused = outcome.value.get("approved").and_then(Value::as_bool) == Some(false);
    is_question && is_refused && param(action, "on_deny") != Some("tell")
}

/// Whether an action waited for threads with `fail_fast: false`, and all it reports is how each of them ended.
fn reports_children(action: &Value, outcome: &ToolOutcome<'_>) -> bool {
    let is_wait = action.get("item_id").and_then(Value::as_str) == Some(ORCHESTRATOR)
        && param(action, "operation").or_else(|| param(action, "action")) == Some("wait_threads");
    let fail_fast = action.get("params").and_then(|params| params.get("fail_fast"));
    let is_tolerant = fail_fast.is_some_and(|value| *value == json!(false) || *value == json!("false"));
    let has_ended = |result: &Value| {
        let status = result.get("status").and_then(Value::as_str).unwrap_or("running");
        !["running", "timeout"].contains(&status)
    };
    let results = outcome.value.get("results").and_then(Value::as_object);
    is_wait && is_tolerant && results.is_some_and(|results| results.values().all(has_ended))
}

/// A parameter of an action that is a text.
fn param<'a>(action: &'a Value, name: &str) -> Option<&'a str> {
    action.get("params")?.get(name)?.as_str()
}

fn output_name(output: &Value) -> Option<&str> {
    output.get("name").and_then(Value::as_str)
}

/// What the newest result that has this key holds.
fn produced<'a>(outcomes: &'a [ToolOutcome<'_>], name: &str) -> Option<&'a Value> {
    outcomes.iter().rev().find_map(|outcome| outcome.value.get(name))
}

impl ModelProvider for OfflineProvider {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(async move {
            let response =
                self.respond(request).map_err(|message| ModelError::before_send(NO_MODEL, message))?;
            response.emit_deltas(deltas);
            Ok(response)
        })
    }
}

fn make_response(request: &ModelRequest, text: String, calls: Vec<ToolCall>) -> ModelResponse {
    ModelResponse {
        text,
        reasoning: String::new(),
        finish_reason: if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        calls,
        replay: Vec::new(),
        usage: Usage::default(),
        model: request.model.clone(),
    }
}

fn tool_outcomes(request: &ModelRequest) -> Vec<ToolOutcome<'_>> {
    let results = request.messages.iter().filter_map(|message| match message.as_ref() {
        ChatMessage::Tool { content, is_error: true, .. } if is_stopped_by_duration(content) => None,
        ChatMessage::Tool { content, is_error, .. } => {
            let value: Value =
                serde_json::from_str(content).unwrap_or_else(|_| Value::from(content.as_str()));
            Some(ToolOutcome { content, is_error: *is_error, value: unwrap_data(value) })
        }
        ChatMessage::User { .. } | ChatMessage::Assistant { .. } => None,
    });
    results.collect()
}

/// What an answer `{"status": …, "data": …}` holds, and anything else as it is.
fn unwrap_data(value: Value) -> Value {
    match value {
        Value::Object(mut map) if map.contains_key("data") => {
            let data = map.remove("data").unwrap_or_default();
            match data {
                // Keys beside the data stay in reach; the data's own go before them.
                Value::Object(data) => {
                    map.extend(data);
                    Value::Object(map)
                }
                data => {
                    map.insert("data".to_owned(), data);
                    Value::Object(map)
                }
            }
        }
        other => other,
    }
}

/// A value as the tool's schema wants it, where it is a text that says so.
fn coerce(tool: &ToolDefinition, key: String, value: Value) -> (String, Value) {
    let expected = tool.schema.get("properties").and_then(|properties| properties.get(&key));
    let expected = expected.and_then(|property| property.get("type"));
    let is_expected = |name: &str| match expected {
        Some(Value::String(own)) => own == name,
        Some(Value::Array(list)) => list.iter().any(|own| own == name),
        _ => false,
    };
    let coerced = match &value {
        Value::String(text) if !is_expected("string") => serde_json::from_str::<Value>(text.trim()).ok(),
        _ => None,
    };
    let is_expected_type = |value: &Value| match value {
        Value::Bool(_) => is_expected("boolean"),
        Value::Number(number) => is_expected("number") || (is_expected("integer") && !number.is_f64()),
        Value::Object(_) => is_expected("object"),
        Value::Array(_) => is_expected("array"),
        Value::Null => is_expected("null"),
        Value::String(_) => false,
    };
    (key, coerced.filter(is_expected_type).unwrap_or(value))
}

#[cfg(test)]
mod tests;
