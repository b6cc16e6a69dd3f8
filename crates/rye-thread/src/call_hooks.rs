//! Hooks around calls: what they see of a call of a tool or of the model, and what their answers change.
//!
//! A hook around a call answers like any other action. Its result counts if it holds an object `call`:
//! `{"call": {"block": reason}}`, `{"call": {"arguments": {…}}}`, `{"call": {"result": …}}`, `{"call": {"note": text}}`.
//! The hooks with the least standing go first: the project's, then the built-in ones, then the directive's and its
//! ancestors', then the user's. So no hook changes what the user's have seen.

use std::collections::BTreeSet;

use rye_item::ItemType;
use serde_json::{Map, Value, json};

use crate::action::{Action, PrimaryAction};
use crate::capability::{
    CONTROL_TOOL, Capabilities, HookOrigin, PermittedAction, Principal, hook_tool_path, permit_as_of,
    required_capabilities,
};
use crate::cost::Cost;
use crate::envelope::ResultEnvelope;
use crate::hooks::{Hook, HookKind};
use crate::item_names;
use crate::machine::HookControl;
use crate::spec::ThreadSpec;

/// Which side of which call a hook is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// A tool is about to be called.
    BeforeTool,
    /// A tool has answered.
    AfterTool,
    /// The model is about to be asked.
    BeforeModel,
    /// The model has answered.
    AfterModel,
}

impl CallEvent {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::BeforeTool, Self::AfterTool, Self::BeforeModel, Self::AfterModel];

    /// The name hooks use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BeforeTool => "before_tool",
            Self::AfterTool => "after_tool",
            Self::BeforeModel => "before_model",
            Self::AfterModel => "after_model",
        }
    }

    /// The event of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }

    /// Whether the call has not been made: a hook that fails here blocks it.
    #[must_use]
    pub fn is_before(self) -> bool {
        matches!(self, Self::BeforeTool | Self::BeforeModel)
    }

    /// The keys of `call` that count here.
    fn known_keys(self) -> &'static [&'static str] {
        match self {
            Self::BeforeTool => &["block", "arguments", "note"],
            Self::AfterTool => &["block", "result", "note"],
            Self::BeforeModel | Self::AfterModel => &["block", "note"],
        }
    }
}

/// What a hook wants of the call it is around.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallChange {
    /// Why it must not be made, or its result not be used.
    pub block: Option<String>,
    /// The arguments it is made with.
    pub arguments: Option<Map<String, Value>>,
    /// What the model reads instead of the result.
    pub result: Option<String>,
    /// What the model reads besides.
    pub note: Option<String>,
}

impl CallChange {
    /// Reads the object `call` of a hook's result.
    fn parse(call: &Value, event: CallEvent) -> Result<Self, String> {
        let map = call.as_object().ok_or("`call` is an object")?;
        if let Some(unknown) = map.keys().find(|key| !event.known_keys().contains(&key.as_str())) {
            let known = event.known_keys().join(", ");
            let unknown = rye_item::text::one_line(unknown);
            return Err(format!("`call.{unknown}` means nothing at {}; there are {known}", event.as_str()));
        }
        let text = |key: &str| match map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`call.{key}` is text")),
        };
        let arguments = match map.get("arguments") {
            None | Some(Value::Null) => None,
            Some(Value::Object(arguments)) => Some(arguments.clone()),
            Some(_) => return Err("`call.arguments` is an object: all arguments of the call".to_owned()),
        };
        let result = map.get("result").filter(|result| !result.is_null());
        let result = result.map(|result| result.as_str().map_or_else(|| result.to_string(), str::to_owned));
        Ok(Self { block: text("block")?, arguments, result, note: text("note")? })
    }
}

/// What a hook around a call answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallAnswer {
    /// It could not run, or its answer cannot be read.
    Failed(String),
    /// It steers the thread.
    Control(HookControl),
    /// It changes the call, or nothing.
    Change(CallChange),
    /// One of the thread's own tools answered, of this name.
    HookTool(String),
}

impl CallAnswer {
    /// Reads what the action of a hook answered. An infra hook changes nothing.
    pub(crate) fn read(
        hook: &Hook,
        action: &Value,
        envelope: &Value,
        event: CallEvent,
        revision: u32,
    ) -> Self {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let item = text(action, "item_id").unwrap_or_default();
        let item = item.strip_prefix("tool:").unwrap_or(&item);
        let data = envelope.get("data").filter(|data| !data.is_null());
        let has_failed = text(envelope, "status").as_deref() == Some("error");
        let can_steer = hook.kind == HookKind::Control;
        if item == CONTROL_TOOL {
            return match HookControl::parse(envelope).filter(|_| can_steer) {
                Some(control) => Self::Control(control),
                None if has_failed && data.is_none() => Self::Failed(failure_text(envelope)),
                None => Self::read_change(data, can_steer, event),
            };
        }
        if has_failed {
            return Self::Failed(failure_text(envelope));
        }
        if let Some(tool) = hook_tool_path(item) {
            return Self::HookTool(tool.to_owned());
        }
        // What is loaded stands beside the prompt.
        if text(action, "primary").as_deref() == Some("load") && event == CallEvent::BeforeModel {
            let content = data.and_then(|data| text(data, "content").or_else(|| text(data, "body")));
            let note = content.filter(|content| !content.trim().is_empty());
            return Self::Change(CallChange { note, ..CallChange::default() });
        }
        let is_tool = text(action, "primary")
            .is_none_or(|primary| primary == PrimaryAction::Execute.as_str())
            && text(action, "item_type").is_none_or(|item_type| item_type == ItemType::Tool.as_str());
        if revision >= 3 && is_tool && can_steer {
            return match readable_answer(data, event, revision) {
                Ok(answer) if revision >= 4 && event.is_before() && reports_failure(&answer) => {
                    Self::Failed(failure_text(&answer))
                }
                Ok(answer) => Self::read_change(Some(&answer), can_steer, event),
                Err(reason) => Self::Failed(reason),
            };
        }
        Self::read_change(data, can_steer, event)
    }

    fn read_change(data: Option<&Value>, can_steer: bool, event: CallEvent) -> Self {
        match data.and_then(|data| data.get("call")).filter(|call| can_steer && !call.is_null()) {
            None => Self::Change(CallChange::default()),
            Some(call) => CallChange::parse(call, event).map_or_else(Self::Failed, Self::Change),
        }
    }
}

/// What the tool of a hook answered: an object. `{}` has no opinion, silence is not an answer. What a program prints is
/// its answer if it is the text of an object.
fn readable_answer(data: Option<&Value>, event: CallEvent, revision: u32) -> Result<Value, String> {
    let hint = "it has to answer with an object: `{\"call\": {…}}`, or `{}` to let the call through";
    let Some(Value::Object(answer)) = data else {
        let what = match data {
            None | Some(Value::Null) => "it gave no answer",
            Some(_) => "its answer isn't an object",
        };
        return Err(format!("{what}; {hint}"));
    };
    let printed = answer.get("stdout").and_then(Value::as_str).filter(|_| answer.contains_key("return_code"));
    match printed {
        Some(printed) if !answer.contains_key("call") => match parse_printed(printed, revision) {
            Ok(answer @ Value::Object(_)) => Ok(answer),
            Err(error) if error.is_data() => Err(format!("what it printed has a {error}; {hint}")),
            // After a call nothing depends on it.
            Ok(_) | Err(_) if !event.is_before() => Ok(Value::Null),
            Ok(_) | Err(_) if printed.trim().is_empty() => Err(format!("it gave no answer; {hint}")),
            Ok(_) | Err(_) => Err(format!("what it printed isn't an answer; {hint}")),
        },
        _ => Ok(Value::Object(answer.clone())),
    }
}

/// What a program printed, as JSON. From revision 6 on no object of it has a key twice: a block could be hidden by what
/// follows it.
fn parse_printed(printed: &str, revision: u32) -> Result<Value, serde_json::Error> {
    match revision >= 6 {
        true => rye_item::json::parse_unique(printed.as_bytes()),
        false => serde_json::from_str(printed),
    }
}

/// Whether an answer says that the hook could not decide.
fn reports_failure(answer: &Value) -> bool {
    ResultEnvelope::parse(answer).reports_failure()
}

fn failure_text(envelope: &Value) -> String {
    envelope.get("error").and_then(Value::as_str).unwrap_or("it failed").to_owned()
}

/// What a hook answered to a request that a tool made while it ran. It can block and change that; what would steer the
/// thread blocks it too, because the thread waits for the tool.
///
/// # Errors
/// Why the hook's answer is not used.
pub fn read_tool_request_answer(
    hook: &Hook,
    action: &Value,
    envelope: &Value,
    event: CallEvent,
    revision: u32,
) -> Result<CallChange, String> {
    match CallAnswer::read(hook, action, envelope, event, revision) {
        CallAnswer::Failed(error) => Err(error),
        CallAnswer::Change(change) => Ok(change),
        CallAnswer::HookTool(_) | CallAnswer::Control(HookControl::Retry) => Ok(CallChange::default()),
        CallAnswer::Control(HookControl::Block(reason)) => {
            Ok(CallChange { block: Some(reason), ..CallChange::default() })
        }
        CallAnswer::Control(_) => {
            let reason = "it wants the thread to stop; the model can make this call itself".to_owned();
            Ok(CallChange { block: Some(reason), ..CallChange::default() })
        }
    }
}

/// The action of a hook, if the hook may take it.
///
/// # Errors
/// Why not.
pub fn permit_hook_action(
    spec: &ThreadSpec,
    hook: usize,
    action: &Value,
) -> Result<(String, PermittedAction), String> {
    let hook = spec.template.hooks.get(hook).ok_or("no such hook")?;
    let action = Action::from_value(action).map_err(|error| error.to_string())?;
    let granted = Capabilities::parse(&hook.grants).map_err(|error| error.to_string())?;
    let capabilities = match hook.is_inherited {
        true => &granted,
        false => hook.origin.effective_capabilities(&spec.instance.capabilities, &granted),
    };
    let principal = Principal::Hook { origin: hook.origin };
    let permitted = permit_as_of(capabilities, &action, principal, spec.template.revision)
        .map_err(|denied| denied.to_string())?;
    // What the user or the system wrote is their word already.
    let is_judged = matches!(hook.origin, HookOrigin::Directive | HookOrigin::Project);
    if spec.template.revision >= 3 && is_judged && !permitted.is_hook_tool() {
        unasked(spec, permitted.action())?;
    }
    let is_before = CallEvent::parse(&hook.event).is_some_and(CallEvent::is_before);
    Ok((hook.id.clone(), permitted.deciding_call(is_before && hook.kind == HookKind::Control)))
}

/// Whether an action that is not the model's call is done: a person is asked about calls of the model only.
///
/// # Errors
/// Why a person would be asked.
pub fn unasked(spec: &ThreadSpec, action: &Action) -> Result<(), String> {
    match spec.template.config.risk.approval_reason(&item_names::judged_capabilities(action)) {
        None => Ok(()),
        Some(reason) => Err(format!("it needs a person's approval ({reason}): let the model call it itself")),
    }
}

/// Which fields of a context are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NeededFields {
    /// Every field.
    #[default]
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// A context under construction. Only what is asked for is worked out.
#[derive(Debug)]
pub struct HookContext<'a> {
    needed: &'a NeededFields,
    fields: Map<String, Value>,
}

impl<'a> HookContext<'a> {
    /// What conditions see at every call.
    pub(crate) fn new(spec: &ThreadSpec, cost: &Cost, needed: &'a NeededFields) -> Self {
        let mut context = Self { needed, fields: Map::new() };
        context.add("cost", || cost.to_value());
        context.add("depth", || json!(spec.instance.depth));
        context.add("thread_id", || json!(spec.instance.thread_id));
        context.add("parent_thread_id", || json!(spec.instance.parent));
        context.add("directive", || json!(spec.template.directive));
        context
    }

    /// What conditions see of a call of a tool: who makes it (`model` or `tool`), the item, the arguments, what it needs.
    #[must_use]
    pub fn of_tool(
        spec: &ThreadSpec,
        cost: &Cost,
        caller: &str,
        (action, arguments): (&Action, &Map<String, Value>),
        needed: &'a NeededFields,
    ) -> Self {
        let mut context = Self::new(spec, cost, needed);
        let first = (spec.template.revision >= 3).then(|| item_names::with_first_id(action)).flatten();
        if first.is_some() {
            context.add("called_id", || json!(action.item_id));
        }
        context.of_item(caller, first.as_ref().unwrap_or(action), arguments)
    }

    fn of_item(mut self, caller: &str, action: &Action, arguments: &Map<String, Value>) -> Self {
        let context = &mut self;
        context.add("caller", || json!(caller));
        context.add("primary", || json!(action.primary));
        context.add("item_type", || json!(action.item_type));
        context.add("item", || json!(action.item_id));
        context.add("arguments", || Value::Object(arguments.clone()));
        context.add("capability", || json!(required_capabilities(action).first()));
        context.add("capabilities", || json!(required_capabilities(action)));
        self
    }

    /// Adds a field, if it is asked for.
    pub fn add(&mut self, name: &str, value: impl FnOnce() -> Value) {
        let is_needed = match self.needed {
            NeededFields::All => true,
            NeededFields::Only(names) => names.contains(name),
        };
        if is_needed {
            self.fields.insert(name.to_owned(), value());
        }
    }

    /// The fields.
    #[must_use]
    pub fn into_fields(self) -> Map<String, Value> {
        self.fields
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{CallChange, CallEvent};

    fn parse(call: &Value, event: CallEvent) -> Result<CallChange, String> {
        CallChange::parse(call, event)
    }

    #[test]
    fn call_change_reads_known_keys() {
        let change =
            parse(&json!({"arguments": {"a": 1}, "note": "n"}), CallEvent::BeforeTool).expect("read");
        assert_eq!(change.arguments.expect("arguments")["a"], 1);
        assert_eq!(change.note.as_deref(), Some("n"));
        let change = parse(&json!({"result": {"a": 1}}), CallEvent::AfterTool).expect("read");
        assert_eq!(change.result.as_deref(), Some(r#"{"a":1}"#));
        let change = parse(&json!({"result": "text", "block": null}), CallEvent::AfterTool).expect("read");
        assert_eq!((change.result.as_deref(), change.block), (Some("text"), None));
    }

    #[test]
    fn call_change_refuses_what_means_nothing() {
        for (call, event) in [
            (json!("no"), CallEvent::BeforeTool),
            (json!({"blocked": "why"}), CallEvent::BeforeTool),
            (json!({"result": 1}), CallEvent::BeforeTool),
            (json!({"arguments": {}}), CallEvent::AfterTool),
            (json!({"arguments": [1]}), CallEvent::BeforeTool),
            (json!({"block": true}), CallEvent::BeforeModel),
            (json!({"arguments": {}}), CallEvent::AfterModel),
        ] {
            assert!(parse(&call, event).is_err(), "{call} at {}", event.as_str());
        }
    }
}
