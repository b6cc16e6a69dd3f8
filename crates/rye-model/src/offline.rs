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
//! result that holds a key of that name, else from the inputs, else an empty value of its type. Otherwise it says in one
//! line for each action what came of it.

use rye_item::{interpolate, text};
use serde_json::{Map, Value, json};

use crate::{Answer, Completion, Delta, Finish, Message, Provider, Request, ToolCall, ToolDefinition, Usage};

/// The tool that ends a directive.
const RETURN: &str = "directive_return";

/// How much of a result the final text shows.
const MAX_SHOWN_CHARACTERS: usize = 200;

/// A script that answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offline {
    script: Vec<Value>,
    outputs: Vec<Value>,
    inputs: Map<String, Value>,
}

/// One result of a tool in the conversation.
struct Outcome<'a> {
    content: &'a str,
    is_error: bool,
    /// The content as JSON, if it is JSON, without the frame of an answer.
    value: Value,
}

impl Offline {
    /// A script of a directive's actions (`{primary, item_type, item_id, params, …}`), its declared outputs
    /// (`{name, type, …}`) and its inputs.
    #[must_use]
    pub fn new(script: Vec<Value>, outputs: Vec<Value>, inputs: Map<String, Value>) -> Self {
        Self { script, outputs, inputs }
    }

    fn answer(&self, request: &Request) -> Answer {
        let outcomes = outcomes(request);
        let turns =
            request.messages.iter().filter(|message| matches!(message.as_ref(), Message::Assistant { .. }));
        let turn = turns.count();
        let call = |name: String, input: Map<String, Value>| ToolCall {
            id: format!("offline-{turn}"),
            name,
            input,
            malformed: None,
        };
        if let Some(action) = self.script.get(outcomes.len()) {
            let (name, input) = self.call(action, request, &outcomes);
            return answer(request, String::new(), vec![call(name, input)]);
        }
        let is_returned = outcomes.len() > self.script.len();
        match request.tools.iter().find(|tool| tool.name == RETURN) {
            Some(tool) if !is_returned => {
                let input = self.outputs(tool, &outcomes);
                answer(request, String::new(), vec![call(tool.name.clone(), input)])
            }
            _ => answer(request, self.summary(&outcomes), Vec::new()),
        }
    }

    /// The call of an action: the tool's name and its arguments.
    fn call(
        &self,
        action: &Value,
        request: &Request,
        outcomes: &[Outcome<'_>],
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
        let is_meant = |tool: &&ToolDefinition| {
            let is = |key: &str, value: &Value| !value.is_null() && tool.target.get(key) == Some(value);
            is("item_id", &item_id) && is("item_type", &item_type) && is("primary", &primary)
        };
        if let Some(tool) = request.tools.iter().find(is_meant) {
            let input = params.into_iter().map(|(key, value)| coerced(tool, key, value)).collect();
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
        let further = action
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !matches!(key.as_str(), "primary" | "item_type" | "item_id" | "params"));
        for (key, value) in further {
            input.entry(key.clone()).or_insert_with(|| interpolate::interpolate(value, &context));
        }
        if let Some(tool) = request.tools.iter().find(|tool| tool.name == name) {
            input = input.into_iter().map(|(key, value)| coerced(tool, key, value)).collect();
        }
        (name, input)
    }

    fn outputs(&self, tool: &ToolDefinition, outcomes: &[Outcome<'_>]) -> Map<String, Value> {
        let declared = self.outputs.iter().filter_map(|output| {
            let name = output.get("name").and_then(Value::as_str)?;
            let kind = output.get("type").and_then(Value::as_str).unwrap_or("string");
            let held = outcomes.iter().rev().find_map(|outcome| outcome.value.get(name));
            let found = held.or_else(|| self.inputs.get(name)).cloned();
            Some(coerced(tool, name.to_owned(), found.unwrap_or_else(|| empty(kind))))
        });
        declared.collect()
    }

    fn summary(&self, outcomes: &[Outcome<'_>]) -> String {
        let lines = self.script.iter().zip(outcomes).map(|(action, outcome)| {
            let what = |key: &str| action.get(key).and_then(Value::as_str).unwrap_or_default();
            let came = if outcome.is_error { "failed" } else { "done" };
            let mut shown = text::one_line(outcome.content);
            if let Some((end, _)) = shown.char_indices().nth(MAX_SHOWN_CHARACTERS) {
                shown.truncate(end);
                shown.push('…');
            }
            let subject = text::one_line(&format!("{} {}", what("primary"), what("item_id")));
            format!("{subject}: {came}: {shown}")
        });
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() { "There was nothing to do.".to_owned() } else { lines.join("\n") }
    }
}

impl Provider for Offline {
    fn complete<'a>(
        &'a self,
        request: &'a Request,
        deltas: &'a (dyn Fn(Delta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(async move {
            let answer = self.answer(request);
            answer.tell(deltas);
            Ok(answer)
        })
    }
}

fn answer(request: &Request, text: String, calls: Vec<ToolCall>) -> Answer {
    Answer {
        text,
        reasoning: String::new(),
        finish: if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls },
        calls,
        replay: Vec::new(),
        usage: Usage::default(),
        model: request.model.clone(),
    }
}

fn outcomes(request: &Request) -> Vec<Outcome<'_>> {
    let results = request.messages.iter().filter_map(|message| match message.as_ref() {
        Message::Tool { content, is_error, .. } => {
            let value: Value =
                serde_json::from_str(content).unwrap_or_else(|_| Value::from(content.as_str()));
            Some(Outcome { content, is_error: *is_error, value: unframed(value) })
        }
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    results.collect()
}

/// What an answer `{"status": …, "data": …}` holds, and anything else as it is.
fn unframed(value: Value) -> Value {
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
fn coerced(tool: &ToolDefinition, key: String, value: Value) -> (String, Value) {
    let wanted = tool.schema.get("properties").and_then(|properties| properties.get(&key));
    let wanted = wanted.and_then(|property| property.get("type"));
    let is_wanted = |name: &str| match wanted {
        Some(Value::String(own)) => own == name,
        Some(Value::Array(list)) => list.iter().any(|own| own == name),
        _ => false,
    };
    let coerced = match &value {
        Value::String(text) if !is_wanted("string") => serde_json::from_str::<Value>(text.trim()).ok(),
        _ => None,
    };
    let fits = |value: &Value| match value {
        Value::Bool(_) => is_wanted("boolean"),
        Value::Number(number) => is_wanted("number") || (is_wanted("integer") && !number.is_f64()),
        Value::Object(_) => is_wanted("object"),
        Value::Array(_) => is_wanted("array"),
        Value::Null => is_wanted("null"),
        Value::String(_) => false,
    };
    (key, coerced.filter(fits).unwrap_or(value))
}

fn empty(kind: &str) -> Value {
    match kind {
        "integer" | "number" => json!(0),
        "boolean" => json!(false),
        "object" => json!({}),
        "array" => json!([]),
        _ => json!(""),
    }
}

#[cfg(test)]
mod tests;
