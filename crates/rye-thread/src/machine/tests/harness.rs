//! A spec to play with, and a world that answers its effects.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::core_event::core_event;
use crate::model::{FinishReason, ModelError, ModelResponse, TokenPrice, ToolCall, Usage};
use rye_item::ItemType;
use serde_json::{Map, Value, json};

use crate::capability::Capabilities;
use crate::config::ThreadConfig;
use crate::definitions::{ToolBinding, ToolDefinitions};
use crate::hooks::Hooks;
use crate::limits::ThreadLimits;
use crate::machine::{Effect, ThreadEvent, ThreadState, ToolResult, step};
use crate::money::Nanos;
use crate::spec::{FallbackModel, MACHINE_REVISION, ThreadInstance, ThreadSpec, ThreadTemplate};
use crate::thread_id::ThreadId;

/// The configuration inside the binary, read once.
pub(super) fn shipped_config() -> ThreadConfig {
    static SHIPPED: OnceLock<ThreadConfig> = OnceLock::new();
    SHIPPED.get_or_init(ThreadConfig::shipped).clone()
}

pub(super) const PRICE: TokenPrice = TokenPrice { input: 10, cached_input: 1, cache_write: 12, output: 50 };

/// What can be changed about the thread under test.
pub(super) struct TestSpec {
    pub(super) limits: Value,
    pub(super) hooks: Value,
    pub(super) outputs: Value,
    pub(super) config: ThreadConfig,
    pub(super) price: Option<TokenPrice>,
    pub(super) context_window: u64,
    pub(super) revision: u32,
    pub(super) fallbacks: Vec<FallbackModel>,
}

impl Default for TestSpec {
    fn default() -> Self {
        Self {
            limits: json!({"turns": 25, "tokens": 200_000, "spend": 1.0, "duration_seconds": 600}),
            hooks: json!([]),
            outputs: json!([]),
            config: shipped_config(),
            price: Some(PRICE),
            context_window: 200_000,
            revision: MACHINE_REVISION,
            fallbacks: Vec::new(),
        }
    }
}

impl TestSpec {
    pub(super) fn build(self) -> Arc<ThreadSpec> {
        let names = [
            ("allowed", ToolBinding::Tool("team/allowed".to_owned())),
            ("other", ToolBinding::Tool("team/other".to_owned())),
            ("bash", ToolBinding::Tool("rye/bash".to_owned())),
            ("other_bash", ToolBinding::Tool("rye/bash/bash".to_owned())),
            ("secret", ToolBinding::Tool("private/secret".to_owned())),
            ("control", ToolBinding::Tool("rye/agent/threads/internal/control".to_owned())),
            ("directive_return", ToolBinding::DirectiveReturn),
            ("ask", ToolBinding::Tool("rye/agent/threads/human_approval".to_owned())),
        ];
        let names: BTreeMap<String, ToolBinding> =
            names.into_iter().map(|(name, bound)| (name.to_owned(), bound)).collect();
        let definition = |name: &String| crate::model::ToolDefinition {
            name: name.clone(),
            description: String::new(),
            schema: json!({"type": "object"}),
            target: Value::Null,
        };
        let definitions =
            ToolDefinitions { tools: names.keys().map(definition).collect(), names, skipped: Vec::new() };
        let hooks = Hooks::merge(&self.config.hooks, Some(&self.hooks)).expect("hooks");
        let limits =
            ThreadLimits::default().with_overrides(self.limits.as_object().expect("limits")).expect("limits");
        let shared = ThreadTemplate {
            revision: self.revision,
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
            candidates: Vec::new(),
            fallbacks: self.fallbacks,
            price: self.price,
            context_window: self.context_window,
            max_output_tokens: 1000,
            settings: Arc::default(),
            wants_stream: false,
            config: self.config,
        };
        let own = ThreadInstance {
            thread_id: ThreadId::parse("thread-0123456789ab").expect("an id"),
            parent: None,
            prompt: "Do it.".to_owned(),
            inputs: Map::new(),
            actions: Vec::new(),
            limits,
            capabilities: Capabilities::parse([
                "rye.execute.tool.team.*",
                "rye.execute.tool.rye.bash.*",
                "rye.execute.tool.rye.agent.threads.human_approval",
            ])
            .expect("capabilities"),
            continuation_of: None,
            forked_from: None,
            files: Vec::new(),
            history: Vec::new(),
            message: None,
            spawn_reason: None,
            depth: 0,
            cannot_suspend: false,
            removed_secrets: None,
        };
        Arc::new(ThreadSpec { instance: own, template: Arc::new(shared) })
    }
}

/// A thread being played: its state, what was recorded, what it wants.
pub(super) struct Harness {
    pub(super) state: ThreadState,
    pub(super) records: Vec<(u64, ThreadEvent)>,
    pub(super) effects: Vec<Effect>,
    pub(super) emitted: Vec<(String, Value)>,
    pub(super) at_ms: u64,
}

impl Harness {
    pub(super) fn new(spec: Arc<ThreadSpec>) -> Self {
        Self {
            state: ThreadState::new(spec),
            records: Vec::new(),
            effects: Vec::new(),
            emitted: Vec::new(),
            at_ms: 1_000,
        }
    }

    /// Started, its first hooks run.
    pub(super) fn start(plan: TestSpec) -> Self {
        let mut play = Self::new(plan.build());
        play.apply(ThreadEvent::Started);
        play
    }

    /// Takes an event in; internal hooks answer at once, as they do in a driver.
    pub(super) fn apply(&mut self, event: ThreadEvent) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.at_ms += 1;
            self.records.push((self.at_ms, event.clone()));
            for effect in step(&mut self.state, self.at_ms, event) {
                match effect {
                    Effect::Emit { event_type, payload } => {
                        let schema =
                            core_event(&event_type).filter(|_| self.state.spec.template.revision >= 1);
                        if let Some(Err(problem)) = schema.map(|schema| schema.check(&payload)) {
                            panic!("{problem}: {payload}");
                        }
                        self.emitted.push((event_type, payload));
                    }
                    Effect::RunHook { action, .. } if action.is_hook_tool() => {
                        next = Some(ThreadEvent::HookDone {
                            result: hook_tool_result(&action.action().to_value()),
                        });
                    }
                    // The shipped hooks that bring knowledge: none of it matters here.
                    Effect::RunHook { action, .. }
                        if action.action().item_type == Some(ItemType::Knowledge) =>
                    {
                        next =
                            Some(ThreadEvent::HookDone { result: json!({"status": "success", "data": {}}) });
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

    pub(super) fn respond(&mut self, response: ModelResponse) {
        let spend = Nanos(self.state.spec.template.price.unwrap_or_default().cost(&response.usage));
        self.apply(ThreadEvent::ModelResponded { response, spend });
    }

    pub(super) fn fail(&mut self, failure: ModelError) {
        self.apply(ThreadEvent::ModelFailed {
            error: failure,
            spend: Nanos(0),
            is_unknown: false,
            jitter: 0,
        });
    }

    pub(super) fn finish_tool(&mut self, index: usize, content: &str) {
        let result = ToolResult {
            content: content.to_owned(),
            is_error: false,
            duration_ms: 3,
            child: None,
            child_status: None,
            sandbox: None,
        };
        self.apply(ThreadEvent::ToolDone { index, result });
    }

    pub(super) fn event_types(&self) -> Vec<&str> {
        self.emitted.iter().map(|(event_type, _)| event_type.as_str()).collect()
    }

    pub(super) fn payload(&self, event_type: &str) -> &Value {
        let found = self.emitted.iter().rev().find(|(name, _)| name == event_type);
        &found.unwrap_or_else(|| panic!("{event_type} was told: {:?}", self.event_types())).1
    }

    pub(super) fn is_calling(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::CallModel { .. }))
    }

    /// The same thread from its records alone.
    pub(super) fn replay(&self) -> ThreadState {
        let mut state = ThreadState::new(Arc::clone(&self.state.spec));
        for (at_ms, event) in &self.records {
            let text = serde_json::to_string(event).expect("written");
            let _ = step(&mut state, *at_ms, serde_json::from_str(&text).expect("read"));
        }
        state
    }
}

/// What the internal tools answer.
fn hook_tool_result(action: &Value) -> Value {
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
            "block" => json!({"success": false, "blocked": true, "error": params["error"]}),
            _ => Value::Null,
        }
    } else if item.ends_with("/cost_tracker") {
        json!({"success": true, "added": params["added"]})
    } else {
        let mut data = json!({"success": true, "event_type": params["event_type"], "payload": params["payload"], "emitted": true});
        if let Some(criticality) = params.get("criticality") {
            data["criticality"] = criticality.clone();
        }
        data
    };
    json!({"status": "success", "data": data})
}

pub(super) fn text_response(text: &str) -> ModelResponse {
    ModelResponse {
        text: text.to_owned(),
        reasoning: String::new(),
        calls: Vec::new(),
        replay: Vec::new(),
        finish_reason: FinishReason::Stop,
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        model: "fake-model".to_owned(),
    }
}

pub(super) fn call_response(names: &[&str]) -> ModelResponse {
    let call = |(index, name): (usize, &&str)| ToolCall {
        id: format!("c{index}"),
        name: (*name).to_owned(),
        input: Map::new(),
        malformed: None,
    };
    ModelResponse {
        calls: names.iter().enumerate().map(call).collect(),
        finish_reason: FinishReason::ToolCalls,
        ..text_response("")
    }
}

/// The model asks a person, beside these calls.
pub(super) fn approval_response(beside: &[&str]) -> ModelResponse {
    let mut names = vec!["ask"];
    names.extend(beside);
    let mut response = call_response(&names);
    response.calls[0].input = Map::from_iter([("prompt".to_owned(), json!("May I deploy?"))]);
    response
}

pub(super) fn model_error(status: u16) -> ModelError {
    ModelError {
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
