use serde_json::json;

use super::*;

#[test]
fn payload_has_declared_fields_in_order() {
    let event = CoreEvent::ThreadResumed {
        directive: "a/b".to_owned(),
        limits: crate::limits::ThreadLimits::default(),
        by: None,
        was: Nullable(None),
        turn: Some(2),
        spend: None,
        spend_at_most: None,
    };
    let (name, payload) = event.into_payload();
    assert_eq!(name, "thread_resumed");
    assert_eq!(payload.to_string(), r#"{"directive":"a/b","limits":{},"was":null,"turn":2}"#);
    assert_eq!(core_event(name).expect("declared").check(&payload), Ok(()));
}

#[test]
fn invalid_payloads_are_named_field_by_field() {
    let schema = core_event("tool_call_result").expect("declared");
    let problem = schema.check(&json!({"call_id": 1, "output": "x"})).expect_err("invalid");
    assert_eq!(problem, "the payload of `tool_call_result`: `call_id` is not text; `duration_ms` is missing");
    assert!(schema.check(&json!("x")).is_err());
    let suspended = core_event("thread_suspended").expect("declared");
    let payload = json!({"suspend_reason": "tired", "error": null, "detail": null, "cost": {}});
    let problem = suspended.check(&payload).expect_err("invalid");
    assert_eq!(problem, "the payload of `thread_suspended`: `suspend_reason` is not one of the known words");
}

#[test]
fn event_names_are_unique_and_sorted_out() {
    let names: std::collections::BTreeSet<&str> = CORE_EVENTS.iter().map(|schema| schema.name).collect();
    assert_eq!(names.len(), CORE_EVENTS.len());
    assert!(!is_core_event("checkpoint_saved"), "a shipped hook emits it");
}

#[test]
fn words_of_enums_match_their_types() {
    use crate::status::{SuspendReason, ThreadStatus};
    let words = |kind: EventFieldType| match kind {
        EventFieldType::OneOf(words) => words.to_vec(),
        other => panic!("{other:?}"),
    };
    let statuses = ThreadStatus::ALL.map(ThreadStatus::as_str);
    assert_eq!(words(<ThreadStatus as PayloadField>::FIELD_TYPE), statuses);
    let reasons = SuspendReason::ALL.map(SuspendReason::as_str);
    assert_eq!(words(<SuspendReason as PayloadField>::FIELD_TYPE), reasons);
}

#[test]
fn schemas_are_json_schemas_of_their_fields() {
    let schema = core_event("error_classified").expect("declared").to_json_schema();
    assert_eq!(schema["properties"]["status_code"]["type"], json!(["integer", "null"]));
    assert_eq!(schema["required"][0], "error_code");
}
