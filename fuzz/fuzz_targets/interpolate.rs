//! Filling values into texts: `[template, context]` as JSON, or a text alone.
#![no_main]

use rye_item::Value;
use rye_item::interpolate::{interpolate, interpolate_inputs, interpolate_text};
use serde_json::json;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let context = json!({ "a": "${b}", "b": ["{input:a}", 2], "é": { "c": null } });
    let Some(inputs) = context.as_object() else { return };
    let filled = interpolate_text(text, &context);
    if !text.contains('$') {
        assert_eq!(filled, text);
    }
    assert_eq!(interpolate_text(&text.replace('$', "$$"), &context), text);
    let filled = interpolate_inputs(text, inputs);
    if !text.contains("{input:") && !text.contains("${inputs.") {
        assert_eq!(filled, text);
    }
    if let Ok(Value::Array(mut pair)) = serde_json::from_str(text)
        && pair.len() == 2
    {
        let (template, context) = (pair.remove(0), pair.remove(0));
        let filled = interpolate(&template, &context);
        if let (Value::Object(before), Value::Object(after)) = (&template, &filled) {
            assert!(before.keys().eq(after.keys()));
        }
    }
});
