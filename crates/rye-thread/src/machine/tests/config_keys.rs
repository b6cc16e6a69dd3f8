//! Keys of the configuration: changing each changes what the machine does.

use crate::model::FinishReason;
use serde_json::{Value, json};

use super::harness::{Harness, TestSpec, call_response, model_error, shipped_config, text_response};
use crate::config::ThreadConfig;
use crate::machine::{BudgetRefusal, BudgetResource, Effect, SaveTrigger, ThreadEvent};
use crate::status::ThreadStatus;
use crate::thread_id::ThreadId;

/// The shipped configuration with one value changed.
pub(super) fn config_with(file: &str, path: &[&str], value: Value) -> ThreadConfig {
    let mut values = shipped_config().values().clone();
    let mut value_at = values.get_mut(file).expect("a file");
    for key in path {
        value_at = &mut value_at[*key];
    }
    *value_at = value;
    ThreadConfig::from_values(&values).expect("a configuration")
}

fn resilience_spec(path: &[&str], value: Value) -> TestSpec {
    TestSpec { config: config_with("resilience", path, value), ..TestSpec::default() }
}

#[test]
fn max_retries_bounds_model_retries() {
    for max in [0_u32, 2] {
        let mut play = Harness::start(resilience_spec(&["retry", "max_retries"], json!(max)));
        let mut calls = 1;
        while play.state.status() == ThreadStatus::Running {
            play.fail(model_error(500));
            if play.state.status() == ThreadStatus::Running {
                calls += 1;
                play.apply(ThreadEvent::BackoffElapsed);
            }
        }
        assert_eq!(calls, max + 1);
    }
}

#[test]
fn check_before_turn_blocks_first_call() {
    for (checks, is_calling) in [(true, false), (false, true)] {
        let plan = resilience_spec(&["limits", "enforcement", "check_before_turn"], json!(checks));
        let play = Harness::start(TestSpec { limits: json!({"turns": 0}), ..plan });
        assert_eq!(play.is_calling(), is_calling);
    }
}

#[test]
fn check_after_turn_suspends_at_limit() {
    for (checks, status) in [(true, ThreadStatus::Suspended), (false, ThreadStatus::Running)] {
        let mut config =
            config_with("resilience", &["limits", "enforcement", "check_before_turn"], json!(false));
        config.resilience.check_after_turn = checks;
        let mut play =
            Harness::start(TestSpec { config, limits: json!({"turns": 1}), ..TestSpec::default() });
        play.respond(call_response(&["allowed"]));
        play.finish_tool(0, "done");
        assert_eq!(play.state.status(), status);
    }
}

#[test]
fn on_exceed_applies_without_hooks() {
    for (word, status) in [
        ("escalate", ThreadStatus::Suspended),
        ("suspend", ThreadStatus::Suspended),
        ("fail", ThreadStatus::Error),
    ] {
        let mut play = Harness::start(resilience_spec(&["limits", "enforcement", "on_exceed"], json!(word)));
        let by = ThreadId::parse("thread-ffffffffffff").expect("an id");
        play.apply(ThreadEvent::BudgetRefused(BudgetRefusal {
            refused_by: by,
            resource: BudgetResource::Spend,
            limit: 1,
            used: 1,
            reserved: 0,
            requested: 1,
            rolling: None,
        }));
        assert_eq!(play.state.status(), status, "{word}");
    }
}

#[test]
fn hook_position_and_wrap_format_context() {
    let hook = |position: &str, wrap: bool| {
        json!([{"id": "rules", "event": "thread_started", "position": position, "wrap": wrap, "action": {
            "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}])
    };
    let text = |hooks: Value| {
        let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
        play.apply(ThreadEvent::HookDone {
            result: json!({"status": "success", "data": {"content": "Rules."}}),
        });
        play.payload("cognition_in")["text"].as_str().expect("a text").to_owned()
    };
    assert_eq!(text(hook("before", false)), "Rules.\n\nDo it.");
    assert_eq!(text(hook("after", false)), "Do it.\n\nRules.");
    let wrapped = "<allowed id=\"team/allowed\" type=\"tool\">\nRules.\n</allowed>\n\nDo it.";
    assert_eq!(text(hook("before", true)), wrapped);
}

/// Three turns, each of which leaves the context this full, with so long a result.
fn count_compactions(config: ThreadConfig, tokens: u64, result: usize) -> usize {
    let mut play =
        Harness::start(TestSpec { config, context_window: 1000, limits: json!({}), ..TestSpec::default() });
    for _ in 0..3 {
        let mut response = call_response(&["allowed"]);
        response.usage.input_tokens = tokens;
        play.respond(response);
        play.finish_tool(0, &"x".repeat(result));
        let is_hook = |effect: &Effect| matches!(effect, Effect::RunHook { .. });
        if play.drain().iter().any(is_hook) {
            play.apply(ThreadEvent::HookDone { result: json!({"status": "error", "error": "no summary"}) });
        }
    }
    play.event_types().iter().filter(|event_type| **event_type == "context_compacted").count()
}

#[test]
fn trigger_threshold_starts_compaction() {
    let at = |threshold: f64| {
        let path = ["coordination", "continuation", "trigger_threshold"];
        count_compactions(config_with("coordination", &path, json!(threshold)), 850, 40_000)
    };
    assert!(at(0.82) > 0);
    assert_eq!(at(0.95), 0);
}

#[test]
fn resume_ceiling_bounds_kept_conversation() {
    let at = |ceiling: u64| {
        let path = ["coordination", "continuation", "resume_ceiling_tokens"];
        count_compactions(config_with("coordination", &path, json!(ceiling)), 990, 2_000)
    };
    assert_eq!(at(100_000), 0, "everything fits");
    assert!(at(100) > 0);
}

#[test]
fn emit_on_error_controls_partial_output() {
    for (emits, expected) in [(true, 1), (false, 0)] {
        let path = ["event_types", "cognition_out", "emit_on_error"];
        let mut play = Harness::start(TestSpec {
            config: config_with("events", &path, json!(emits)),
            ..TestSpec::default()
        });
        let mut partial = text_response("half a");
        partial.finish_reason = FinishReason::Other("incomplete".to_owned());
        let mut broken = model_error(500);
        broken.status_code = None;
        broken.partial = Some(partial);
        play.fail(broken);
        assert_eq!(
            play.event_types().iter().filter(|event_type| **event_type == "cognition_out").count(),
            expected
        );
    }
}

#[test]
fn accumulate_on_error_controls_partial_reasoning() {
    for (keeps, expected) in [(true, 1), (false, 0)] {
        let path = ["event_types", "cognition_reasoning", "emit_config", "accumulate_on_error"];
        let mut play = Harness::start(TestSpec {
            config: config_with("events", &path, json!(keeps)),
            ..TestSpec::default()
        });
        let mut broken = model_error(500);
        broken.status_code = None;
        broken.partial =
            Some(crate::model::ModelResponse { reasoning: "half a thought".to_owned(), ..text_response("") });
        play.fail(broken);
        assert_eq!(
            play.event_types().iter().filter(|event_type| **event_type == "cognition_reasoning").count(),
            expected
        );
    }
}

#[test]
fn shipped_hook_follows_its_action() {
    let mut hooks = shipped_config().values()["hook_conditions"]["builtin_hooks"].clone();
    let retry = hooks.as_array_mut().expect("hooks").iter_mut();
    for hook in retry.filter(|hook| hook["id"] == "default_retry_transient") {
        hook["action"]["params"] = json!({"action": "abort"});
    }
    let config = config_with("hook_conditions", &["builtin_hooks"], hooks);
    let mut play = Harness::start(TestSpec { config, ..TestSpec::default() });
    play.fail(model_error(500));
    assert_eq!(play.state.status(), ThreadStatus::Cancelled);
}

#[test]
fn checkpoint_triggers_can_be_disabled() {
    let moments = [
        ("pre_turn", SaveTrigger::PreTurn),
        ("post_llm", SaveTrigger::PostLlm),
        ("post_tools", SaveTrigger::PostTools),
        ("on_error", SaveTrigger::OnError),
    ];
    for (key, trigger) in moments {
        let without =
            config_with("resilience", &["checkpoint", "triggers", key], json!(false)).resilience.triggers;
        for (_, other) in moments {
            assert_eq!(without.is_enabled(other), other != trigger, "{key} {other:?}");
        }
        assert!(without.is_enabled(SaveTrigger::Always), "where it stopped is always written");
    }
}

#[test]
fn state_is_saved_at_four_triggers() {
    let mut play = Harness::start(TestSpec::default());
    let mut seen: Vec<SaveTrigger> = Vec::new();
    let mut collect = |play: &mut Harness| {
        let found = play.drain().into_iter().filter_map(|effect| match effect {
            Effect::SaveState(trigger) => Some(trigger),
            _ => None,
        });
        seen.extend(found);
    };
    collect(&mut play);
    play.respond(call_response(&["allowed"]));
    collect(&mut play);
    play.finish_tool(0, "done");
    collect(&mut play);
    play.fail(model_error(500));
    collect(&mut play);
    for trigger in [SaveTrigger::PreTurn, SaveTrigger::PostLlm, SaveTrigger::PostTools, SaveTrigger::OnError]
    {
        assert!(seen.contains(&trigger), "{trigger:?}: {seen:?}");
    }
}
