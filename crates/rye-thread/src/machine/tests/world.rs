//! A spec to play with, and a world that answers its effects.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::model::{Answer, Failure, Finish, Price, ToolCall, Usage};
use rye_item::ItemType;
use serde_json::{Map, Value, json};

use crate::capability::Capabilities;
use crate::config::Config;
use crate::definitions::{Bound, Definitions};
use crate::hooks::Hooks;
use crate::limits::Limits;
use crate::machine::{Effect, Event, State, ToolResult, step};
use crate::money::Nanos;
use crate::spec::{Own, Shared, Spec};
use crate::thread_id::ThreadId;

/// The configuration inside the binary, read once.
pub(super) fn shipped() -> Config {
    static SHIPPED: OnceLock<Config> = OnceLock::new();
    SHIPPED.get_or_init(Config::shipped).clone()
}

pub(super) const PRICE: Price = Price { input: 10, cached_input: 1, cache_write: 12, output: 50 };

/// What can be changed about the thread under test.
pub(super) struct Plan {
    pub(super) limits: Value,
    pub(super) hooks: Value,
    pub(super) outputs: Value,
    pub(super) config: Config,
    pub(super) price: Option<Price>,
    pub(super) context_window: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            limits: json!({"turns": 25, "tokens": 200_000, "spend": 1.0, "duration_seconds": 600}),
            hooks: json!([]),
            outputs: json!([]),
            config: shipped(),
            price: Some(PRICE),
            context_window: 200_000,
        }
    }
}

impl Plan {
    pub(super) fn spec(self) -> Arc<Spec> {
        let names = [
            ("allowed", Bound::Tool("team/allowed".to_owned())),
            ("other", Bound::Tool("team/other".to_owned())),
            ("secret", Bound::Tool("private/secret".to_owned())),
            ("control", Bound::Tool("rye/agent/threads/internal/control".to_owned())),
            ("directive_return", Bound::DirectiveReturn),
            ("ask", Bound::Tool("rye/agent/threads/human_approval".to_owned())),
        ];
        let names: BTreeMap<String, Bound> =
            names.into_iter().map(|(name, bound)| (name.to_owned(), bound)).collect();
        let definition = |name: &String| crate::model::ToolDefinition {
            name: name.clone(),
            description: String::new(),
            schema: json!({"type": "object"}),
            target: Value::Null,
        };
        let definitions =
            Definitions { tools: names.keys().map(definition).collect(), names, skipped: Vec::new() };
        let hooks = Hooks::merged(&self.config.hooks, Some(&self.hooks)).expect("hooks");
        let limits = Limits::default().with(self.limits.as_object().expect("limits")).expect("limits");
        let shared = Shared {
            directive: "team/test".to_owned(),
            directive_hash: String::new(),
            outputs: self.outputs.as_array().expect("outputs").clone(),
            system: None,
            before: Vec::new(),
            after: Vec::new(),
            hooks,
            definitions,
            provider: "fake".to_owned(),
            model: "fake-model".to_owned(),
            price: self.price,
            context_window: self.context_window,
            max_output_tokens: 1000,
            wants_stream: false,
            config: self.config,
        };
        let own = Own {
            thread_id: ThreadId::parse("thread-0123456789ab").expect("an id"),
            parent: None,
            prompt: "Do it.".to_owned(),
            inputs: Map::new(),
            actions: Vec::new(),
            limits,
            capabilities: Capabilities::parse([
                "rye.execute.tool.team.*",
                "rye.execute.tool.rye.agent.threads.human_approval",
            ])
            .expect("capabilities"),
            continues: None,
            history: Vec::new(),
            message: None,
            cause: None,
        };
        Arc::new(Spec { own, shared: Arc::new(shared) })
    }
}

/// A thread being played: its state, what was recorded, what it wants.
pub(super) struct Play {
    pub(super) state: State,
    pub(super) records: Vec<(u64, Event)>,
    pub(super) effects: Vec<Effect>,
    pub(super) told: Vec<(String, Value)>,
    pub(super) at_ms: u64,
}

impl Play {
    pub(super) fn new(spec: Arc<Spec>) -> Self {
        Self {
            state: State::new(spec),
            records: Vec::new(),
            effects: Vec::new(),
            told: Vec::new(),
            at_ms: 1_000,
        }
    }

    /// Started, its first hooks run.
    pub(super) fn started(plan: Plan) -> Self {
        let mut play = Self::new(plan.spec());
        play.take(Event::Started);
        play
    }

    /// Takes an event in; internal hooks answer at once, as they do in a driver.
    pub(super) fn take(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.at_ms += 1;
            self.records.push((self.at_ms, event.clone()));
            for effect in step(&mut self.state, self.at_ms, event) {
                match effect {
                    Effect::Emit { event_type, payload } => self.told.push((event_type, payload)),
                    Effect::RunHook { action, .. } if action.is_internal() => {
                        next = Some(Event::HookDone { result: internal(&action.action().to_value()) });
                    }
                    // The shipped hooks that bring knowledge: none of it matters here.
                    Effect::RunHook { action, .. }
                        if action.action().item_type == Some(ItemType::Knowledge) =>
                    {
                        next = Some(Event::HookDone { result: json!({"status": "success", "data": {}}) });
                    }
                    other => self.effects.push(other),
                }
            }
        }
    }

    /// Takes the effects there are.
    pub(super) fn drain(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        let spend = Nanos(self.state.spec.shared.price.unwrap_or_default().of(&answer.usage));
        self.take(Event::Answered { answer, spend });
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.take(Event::Failed { failure, spend: Nanos(0), is_unknown: false, jitter: 0 });
    }

    pub(super) fn tool(&mut self, index: usize, content: &str) {
        let result = ToolResult { content: content.to_owned(), is_error: false, duration_ms: 3, child: None };
        self.take(Event::ToolDone { index, result });
    }

    pub(super) fn types(&self) -> Vec<&str> {
        self.told.iter().map(|(event_type, _)| event_type.as_str()).collect()
    }

    pub(super) fn payload(&self, event_type: &str) -> &Value {
        let found = self.told.iter().rev().find(|(told, _)| told == event_type);
        &found.unwrap_or_else(|| panic!("{event_type} was told: {:?}", self.types())).1
    }

    pub(super) fn is_calling(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::CallModel { .. }))
    }

    /// The same thread from its records alone.
    pub(super) fn replayed(&self) -> State {
        let mut state = State::new(Arc::clone(&self.state.spec));
        for (at_ms, event) in &self.records {
            let text = serde_json::to_string(event).expect("written");
            let _ = step(&mut state, *at_ms, serde_json::from_str(&text).expect("read"));
        }
        state
    }
}

/// What the internal tools answer.
fn internal(action: &Value) -> Value {
    let params = &action["params"];
    let item = action["item_id"].as_str().unwrap_or_default();
    let data = if item.ends_with("/control") {
        match params["action"].as_str().unwrap_or_default() {
            "retry" => json!({"action": "retry"}),
            "fail" => json!({"success": false, "error": params["error"]}),
            "abort" => json!({"success": false, "aborted": true, "error": "Aborted by hook"}),
            "suspend" => json!({"success": false, "suspended": true, "error": params["suspend_reason"],
                "prompt": params["prompt"], "on_deny": params["on_deny"]}),
            "escalate" => {
                json!({"success": false, "suspended": true, "escalated": true, "escalation": params})
            }
            _ => Value::Null,
        }
    } else {
        json!({"success": true, "event_type": params["event_type"], "payload": params["payload"], "emitted": true})
    };
    json!({"status": "success", "data": data})
}

pub(super) fn says(text: &str) -> Answer {
    Answer {
        text: text.to_owned(),
        reasoning: String::new(),
        calls: Vec::new(),
        replay: Vec::new(),
        finish: Finish::Stop,
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        model: "fake-model".to_owned(),
    }
}

pub(super) fn calls(names: &[&str]) -> Answer {
    let call = |(index, name): (usize, &&str)| ToolCall {
        id: format!("c{index}"),
        name: (*name).to_owned(),
        input: Map::new(),
        malformed: None,
    };
    Answer { calls: names.iter().enumerate().map(call).collect(), finish: Finish::ToolCalls, ..says("") }
}

/// The model asks a person, beside these calls.
pub(super) fn asking(beside: &[&str]) -> Answer {
    let mut names = vec!["ask"];
    names.extend(beside);
    let mut answer = calls(&names);
    answer.calls[0].input = Map::from_iter([("prompt".to_owned(), json!("May I deploy?"))]);
    answer
}

pub(super) fn failure(status: u16) -> Failure {
    Failure {
        kind: "api_error".to_owned(),
        message: format!("status {status}"),
        code: None,
        status_code: Some(status),
        headers: BTreeMap::new(),
        partial: None,
        reached_server: true,
        is_declined: false,
    }
}
