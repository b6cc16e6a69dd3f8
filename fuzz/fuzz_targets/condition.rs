//! Conditions: `[condition, document]` as JSON, or a pattern alone. Whatever compiles can be asked, and `not` negates.
#![no_main]

use rye_item::Value;
use rye_item::condition::{Condition, resolve_path};
use serde_json::json;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (condition, document) = match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(mut pair)) if pair.len() == 2 => (pair.remove(0), pair.remove(0)),
        Ok(value) => (value, json!({ "a": [1, "b", null, { "c": 1.5 }] })),
        Err(_) => (
            json!({ "path": "a", "op": "regex", "value": text }),
            json!({ "a": "aaaaaaaaaaaaaaaa bbbb 1.5" }),
        ),
    };
    let _ = resolve_path(&document, text);
    if let Ok(compiled) = Condition::compile(&condition) {
        let answer = compiled.matches(&document);
        if let Ok(negated) = Condition::compile(&json!({ "not": condition })) {
            assert_ne!(negated.matches(&document), answer);
        }
    }
});
