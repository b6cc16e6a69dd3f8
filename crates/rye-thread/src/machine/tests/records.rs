//! What the record says of a thread that was stopped, ended from outside or resumed after a crash.

use serde_json::{Value, json};

use super::harness::{Harness, TestSpec, call_response};
use crate::machine::{Effect, ThreadEvent, ToolResult};
use crate::money::Nanos;
use crate::status::ThreadStatus;
use crate::thread_id::ThreadId;

fn start() -> Harness {
    Harness::start(TestSpec::default())
}

#[test]
fn stopped_answer_keeps_what_arrived() {
    let partial = || Some("Hello, wor".to_owned());
    let cancel =
        ThreadEvent::CancelRequested { reason: "enough".to_owned(), spend: Nanos(5), partial: partial() };
    for event in [cancel, ThreadEvent::Expired { spend: Nanos(5), partial: partial() }] {
        let mut play = start();
        play.apply(event);
        let output = play.payload("cognition_out");
        assert_eq!((&output["text"], &output["is_partial"]), (&json!("Hello, wor"), &json!(true)));
    }
}

#[test]
fn terminated_thread_says_how_it_ended() {
    for (status, event) in [
        (ThreadStatus::Cancelled, "thread_cancelled"),
        (ThreadStatus::Killed, "thread_killed"),
        (ThreadStatus::Continued, "thread_handoff"),
    ] {
        let mut play = start();
        play.respond(call_response(&["allowed"]));
        play.drain();
        play.apply(ThreadEvent::Terminated {
            status,
            reason: "thread-1".to_owned(),
            spend: Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
        });
        assert_eq!(play.state.status(), status);
        let types = play.event_types();
        assert_eq!(types[types.len() - 2..], ["tool_call_result", event]);
        let key = if status == ThreadStatus::Continued { "new_thread_id" } else { "reason" };
        assert_eq!(play.payload(event)[key], "thread-1");
        assert!(play.drain().iter().all(|effect| !matches!(effect, Effect::RunHook { .. })));
        assert_eq!(play.replay().status(), status);
    }
    let mut play = start();
    let completed = ThreadStatus::Completed;
    play.apply(ThreadEvent::Terminated {
        status: completed,
        reason: String::new(),
        spend: Nanos(0),
        tokens: crate::machine::InterruptedTokens::default(),
    });
    assert_eq!(play.state.status(), ThreadStatus::Running, "it completes only by itself");
}

#[test]
fn crash_resume_says_thread_resumed() {
    let interrupt = |revision: u32| {
        let mut play = Harness::start(TestSpec { revision, ..TestSpec::default() });
        play.apply(ThreadEvent::Interrupted {
            spend: Nanos(0),
            spend_at_most: Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
            repeatable: Vec::new(),
        });
        play.event_types().contains(&"thread_resumed")
    };
    assert!(interrupt(1));
    assert!(!interrupt(0), "a thread of an older release replays as it ran");
}

#[test]
fn required_payload_fields_are_there() {
    let mut play = start();
    play.respond(call_response(&["secret", "allowed"]));
    assert_eq!(play.payload("permission_denied")["required"], "rye.execute.tool.private.secret");
    let child = ThreadId::parse("thread-0a1b2c3d4e5f").ok();
    let child_status = Some(ThreadStatus::Error);
    let result = ToolResult { child, child_status, ..ToolResult::failure("no") };
    play.apply(ThreadEvent::ToolDone { index: 1, result });
    assert_eq!(play.payload("child_thread_finished")["status"], "error");
    let events = &play.state.spec.template.config.events;
    for (event, payload) in &play.emitted {
        let payload = payload.as_object().expect("an object");
        let checked = events.check_payload(event, payload);
        assert_eq!(checked, Ok(()), "{event}: {}", Value::Object(payload.clone()));
    }
}
