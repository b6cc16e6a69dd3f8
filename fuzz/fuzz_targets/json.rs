//! JSON tools; and that canonical JSON of what was read is JSON of the same value.
#![no_main]

use lillux::canonical;
use rye_item::extractor::Parser;
use rye_item::{ItemType, Value};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rye_fuzz::read_item(ItemType::Tool, Parser::Json, ".json", data);
    if let Ok(value) = serde_json::from_slice::<Value>(data) {
        let text = canonical::to_string(&value);
        assert!(text.is_ascii());
        let back: Value = serde_json::from_str(&text).expect("canonical JSON is JSON");
        assert_eq!(canonical::to_string(&back), text);
    }
});
