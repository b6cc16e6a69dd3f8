//! Keys of the configuration: changing each changes what the machine does.

use crate::model::Finish;
use serde_json::{Value, json};

use super::world::{Plan, Play, calls, failure, says, shipped};
use crate::config::Config;
use crate::machine::{Effect, Event, Refusal, Scarce, Trigger};
use crate::status::Status;
use crate::thread_id::ThreadId;

/// The shipped configuration with one value changed.
pub(super) fn with(file: &str, path: &[&str], value: Value) -> Config {
    let mut values = shipped().values().clone();
    let mut place = values.get_mut(file).expect("a file");
    for key in path {
        place = &mut place[*key];
    }
    *place = value;
    Config::from_values(&values).expect("a configuration")
}

fn resilience(path: &[&str], value: Value) -> Plan {
    Plan { config: with("resilience", path, value), ..Plan::default() }
}

#[test]
fn max_retries_is_how_often_a_failing_model_is_asked_again() {
    for most in [0_u32, 2] {
        let mut play = Play::started(resilience(&["retry", "max_retries"], json!(most)));
        let mut asked = 1;
        while play.state.status() == Status::Running {
            play.fail(failure(500));
            if play.state.status() == Status::Running {
                asked += 1;
                play.take(Event::Slept);
            }
        }
        assert_eq!(asked, most + 1);
    }
}

#[test]
fn check_before_turn_stops_a_thread_before_its_first_call() {
    for (checks, is_calling) in [(true, false), (false, true)] {
        let plan = resilience(&["limits", "enforcement", "check_before_turn"], json!(checks));
        let play = Play::started(Plan { limits: json!({"turns": 0}), ..plan });
        assert_eq!(play.is_calling(), is_calling);
    }
}

#[test]
fn check_after_turn_stops_a_thread_when_a_turn_is_over() {
    for (checks, status) in [(true, Status::Suspended), (false, Status::Running)] {
        let mut config = with("resilience", &["limits", "enforcement", "check_before_turn"], json!(false));
        config.resilience.check_after_turn = checks;
        let mut play = Play::started(Plan { config, limits: json!({"turns": 1}), ..Plan::default() });
        play.answer(calls(&["allowed"]));
        play.tool(0, "done");
        assert_eq!(play.state.status(), status);
    }
}

#[test]
fn on_exceed_decides_where_no_hook_does() {
    for (word, status) in
        [("escalate", Status::Suspended), ("suspend", Status::Suspended), ("fail", Status::Error)]
    {
        let mut play = Play::started(resilience(&["limits", "enforcement", "on_exceed"], json!(word)));
        let by = ThreadId::parse("thread-ffffffffffff").expect("an id");
        play.take(Event::Refused(Refusal {
            by,
            what: Scarce::Spend,
            most: 1,
            used: 1,
            reserved: 0,
            asked: 1,
        }));
        assert_eq!(play.state.status(), status, "{word}");
    }
}

#[test]
fn a_hooks_position_and_wrap_decide_how_its_text_stands() {
    let hook = |position: &str, wrap: bool| {
        json!([{"id": "rules", "event": "thread_started", "position": position, "wrap": wrap, "action": {
            "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}])
    };
    let text = |hooks: Value| {
        let mut play = Play::started(Plan { hooks, ..Plan::default() });
        play.take(Event::HookDone { result: json!({"status": "success", "data": {"content": "Rules."}}) });
        play.payload("cognition_in")["text"].as_str().expect("a text").to_owned()
    };
    assert_eq!(text(hook("before", false)), "Rules.\n\nDo it.");
    assert_eq!(text(hook("after", false)), "Do it.\n\nRules.");
    let wrapped = "<allowed id=\"team/allowed\" type=\"tool\">\nRules.\n</allowed>\n\nDo it.";
    assert_eq!(text(hook("before", true)), wrapped);
}

/// Three turns, each of which leaves the context this full, with so long a result.
fn removed(config: Config, tokens: u64, result: usize) -> usize {
    let mut play = Play::started(Plan { config, context_window: 1000, limits: json!({}), ..Plan::default() });
    for _ in 0..3 {
        let mut answer = calls(&["allowed"]);
        answer.usage.input_tokens = tokens;
        play.answer(answer);
        play.tool(0, &"x".repeat(result));
        let is_hook = |effect: &Effect| matches!(effect, Effect::RunHook { .. });
        if play.drain().iter().any(is_hook) {
            play.take(Event::HookDone { result: json!({"status": "error", "error": "no summary"}) });
        }
    }
    play.types().iter().filter(|told| **told == "context_compacted").count()
}

#[test]
fn the_trigger_threshold_is_where_old_turns_go_without_a_summary() {
    let at = |threshold: f64| {
        let path = ["coordination", "continuation", "trigger_threshold"];
        removed(with("coordination", &path, json!(threshold)), 850, 40_000)
    };
    assert!(at(0.82) > 0);
    assert_eq!(at(0.95), 0);
}

#[test]
fn the_resume_ceiling_is_how_much_of_the_conversation_goes_along() {
    let at = |ceiling: u64| {
        let path = ["coordination", "continuation", "resume_ceiling_tokens"];
        removed(with("coordination", &path, json!(ceiling)), 990, 2_000)
    };
    assert_eq!(at(100_000), 0, "everything fits");
    assert!(at(100) > 0);
}

#[test]
fn emit_on_error_decides_whether_a_broken_stream_is_told() {
    for (emits, expected) in [(true, 1), (false, 0)] {
        let path = ["event_types", "cognition_out", "emit_on_error"];
        let mut play = Play::started(Plan { config: with("events", &path, json!(emits)), ..Plan::default() });
        let mut partial = says("half a");
        partial.finish = Finish::Other("incomplete".to_owned());
        let mut broken = failure(500);
        broken.status_code = None;
        broken.partial = Some(partial);
        play.fail(broken);
        assert_eq!(play.types().iter().filter(|told| **told == "cognition_out").count(), expected);
    }
}

#[test]
fn accumulate_on_error_decides_whether_interrupted_thoughts_are_kept() {
    for (keeps, expected) in [(true, 1), (false, 0)] {
        let path = ["event_types", "cognition_reasoning", "emit_config", "accumulate_on_error"];
        let mut play = Play::started(Plan { config: with("events", &path, json!(keeps)), ..Plan::default() });
        let mut broken = failure(500);
        broken.status_code = None;
        broken.partial = Some(crate::model::Answer { reasoning: "half a thought".to_owned(), ..says("") });
        play.fail(broken);
        assert_eq!(play.types().iter().filter(|told| **told == "cognition_reasoning").count(), expected);
    }
}

#[test]
fn what_a_shipped_hook_does_is_what_its_action_says() {
    let mut hooks = shipped().values()["hook_conditions"]["builtin_hooks"].clone();
    let retry = hooks.as_array_mut().expect("hooks").iter_mut();
    for hook in retry.filter(|hook| hook["id"] == "default_retry_transient") {
        hook["action"]["params"] = json!({"action": "abort"});
    }
    let config = with("hook_conditions", &["builtin_hooks"], hooks);
    let mut play = Play::started(Plan { config, ..Plan::default() });
    play.fail(failure(500));
    assert_eq!(play.state.status(), Status::Cancelled);
}

#[test]
fn state_is_written_at_the_moments_that_are_chosen() {
    let moments = [
        ("pre_turn", Trigger::PreTurn),
        ("post_llm", Trigger::PostLlm),
        ("post_tools", Trigger::PostTools),
        ("on_error", Trigger::OnError),
    ];
    for (key, trigger) in moments {
        let without = with("resilience", &["checkpoint", "triggers", key], json!(false)).resilience.triggers;
        for (_, other) in moments {
            assert_eq!(without.has(other), other != trigger, "{key} {other:?}");
        }
        assert!(without.has(Trigger::Always), "where it stopped is always written");
    }
}

#[test]
fn state_can_be_saved_at_four_moments() {
    let mut play = Play::started(Plan::default());
    let mut seen: Vec<Trigger> = Vec::new();
    let mut look = |play: &mut Play| {
        let found = play.drain().into_iter().filter_map(|effect| match effect {
            Effect::Save(trigger) => Some(trigger),
            _ => None,
        });
        seen.extend(found);
    };
    look(&mut play);
    play.answer(calls(&["allowed"]));
    look(&mut play);
    play.tool(0, "done");
    look(&mut play);
    play.fail(failure(500));
    look(&mut play);
    for trigger in [Trigger::PreTurn, Trigger::PostLlm, Trigger::PostTools, Trigger::OnError] {
        assert!(seen.contains(&trigger), "{trigger:?}: {seen:?}");
    }
}
